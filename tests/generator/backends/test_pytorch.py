"""The backend torch: its options, older forms of operators, precisions, whole models, bricks of the zoo."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx.parser
import pytest
from dlbricks.bricks.reference import CHAIN
from dlbricks.errors import BackendError, BackendUnavailable, UnsupportedBrick, UsageError
from dlbricks.generator.backends.algorithms import AlgorithmBackend
from dlbricks.generator.backends.base import Executable, OptimisingBackend, PackingBackend, Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.backends.requirements import require_in_turn
from dlbricks.generator.backends.torch.backend import TorchBackend
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement import campaign
from dlbricks.generator.measurement.campaign import _check_cache
from dlbricks.generator.measurement.run import run
from dlbricks.generator.measurement.settings import MeasurementSettings
from dlbricks.generator.network.export import export_model
from dlbricks.generator.network.network import Network, file_network, read_network, synthetic_network
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.requests import Prepare
from dlbricks.models import find_models

torch = pytest.importorskip("torch")

BLOCK = (
    "(float[1,8,14,14] x0, float[16,8,3,3] w0, float[16] w1, float[16] w2, float[16] w3, float[16] w4, float[16] w5)"
    " => (float[1,16,7,7] v3)"
    "{v0 = Conv<pads=[1,1,1,1]>(x0, w0, w1) v1 = BatchNormalization(v0, w2, w3, w4, w5) v2 = Relu(v1)"
    " v3 = MaxPool<kernel_shape=[2,2], strides=[2,2]>(v2)}"
)
ATTENTION = (
    "(float[1,4,8,16] x0, float[1,4,16,8] x1, float[16] w0, float[16] w1, float[16,16] w2) => (float[1,4,8,16] v4)"
    "{v0 = MatMul(x0, x1) v1 = Softmax(v0) v2 = MatMul(v1, x0) v3 = LayerNormalization(v2, w0, w1)"
    " v4 = MatMul(v3, w2)}"
)
OLDER = {
    "softmax-11": (11, "(float[2,3,4] x) => (float[2,3,4] y) {y = Softmax<axis=1>(x)}"),
    "log-softmax-11": (11, "(float[2,3,4] x) => (float[2,3,4] y) {y = LogSoftmax(x)}"),
    "squeeze-1": (9, "(float[1,3,1] x) => (float[3,1] y) {y = Squeeze<axes=[0]>(x)}"),
    "unsqueeze-1": (9, "(float[3,4] x) => (float[1,3,4,1] y) {y = Unsqueeze<axes=[0,3]>(x)}"),
    "clip-6": (9, "(float[9] x) => (float[9] y) {y = Clip<min=-0.5, max=0.25>(x)}"),
    "pad-2": (9, "(float[2,3] x) => (float[3,5] y) {y = Pad<pads=[0,1,1,1], value=2.0>(x)}"),
    "slice-1": (9, "(float[6,8] x) => (float[4,8] y) {y = Slice<axes=[0], starts=[1], ends=[-1]>(x)}"),
    "split-2": (9, "(float[6,2] x) => (float[4,2] y, float[2,2] z) {y, z = Split<axis=0, split=[4,2]>(x)}"),
    "reduce-sum-11": (11, "(float[2,3,4] x) => (float[2,4] y) {y = ReduceSum<axes=[1], keepdims=0>(x)}"),
    "reduce-mean-1": (9, "(float[2,3,4] x) => (float[2,1,1] y) {y = ReduceMean<axes=[1,2]>(x)}"),
    "dropout-7": (9, "(float[3,4] x) => (float[3,4] y) {y = Dropout<ratio=0.4>(x)}"),
    "gemm-9": (9, "(float[3,4] x, float[4,5] w, float[5] b) => (float[3,5] y) {y = Gemm(x, w, b)}"),
    "top-k-1": (9, "(float[3,9] x) => (float[3,2] y, int64[3,2] z) {y, z = TopK<k=2>(x)}"),
    "batch-normalization-9": (
        9,
        "(float[1,2,3] x, float[2] a, float[2] b) => (float[1,2,3] y) {y = BatchNormalization(x, a, b, a, b)}",
    ),
    "upsample-9": (
        9,
        "(float[1,2,3,3] x) => (float[1,2,6,6] y) <float[4] s = {1, 1, 2, 2}> {y = Upsample(x, s)}",
    ),
}
MODELS = ("squeezenet", "shufflenet", "densenet121", "inception_v1", "bert_base", "gpt2", "vit_b16")


def settings(dtype: str = "float32", **options: str) -> Settings:
    """The test process itself must not be bound to a core."""
    effective = TorchBackend().resolve("cpu", {"pinning": "off", **options})
    return Settings("cpu", 1, effective, cores=(0,), dtype=dtype)


def execute(network: Network, dtype: str = "float32", **options: str) -> list[np.ndarray]:
    executable = TorchBackend().prepare(network, settings(dtype, **options))
    executable.run()
    executable.run()
    executable.synchronize()
    outputs = executable.outputs()
    assert executable.output_bytes() > 0
    executable.close()
    return outputs


def calls(executable: Executable) -> list[object]:
    """The functions that a network is made of, in order."""
    return [node.target for node in executable._call.__self__.graph.nodes if node.op == "call_function"]


def by_onnxruntime(network: Network) -> list[np.ndarray]:
    backend = OrtBackend()
    executable = backend.prepare(network, Settings("cpu", 1, backend.resolve("cpu", {"pinning": "off"})))
    executable.run()
    outputs = executable.outputs()
    executable.close()
    return outputs


def assert_like(found: list[np.ndarray], expected: list[np.ndarray], limit: float = 1e-3) -> None:
    assert [(each.shape, each.dtype) for each in found] == [(each.shape, each.dtype) for each in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=limit, atol=limit)


@pytest.mark.parametrize("graph", [BLOCK, ATTENTION], ids=["block", "attention"])
@pytest.mark.parametrize("options", [{"layout": "channels_last"}, {"onednn": "off"}], ids=str)
def test_layout_and_kernels_leave_the_result(skeleton_of, graph, options):
    network = synthetic_network(skeleton_of(graph))

    assert_like(execute(network, **options), execute(network), 1e-5)


def test_images_and_their_weights_have_their_channels_last_where_asked(skeleton_of):
    network = synthetic_network(skeleton_of(BLOCK))
    executable = TorchBackend().prepare(network, settings(layout="channels_last"))

    executable.run()

    (image,) = executable._inputs
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert executable._latest[0].is_contiguous(memory_format=torch.channels_last)


IDENTITIES = (
    "(float[1,4,8,16] x0, float[1,4,16,8] x1) => (float[1,4,8,8] v2)"
    "{v0 = Identity(x0) v1 = Identity(x1) v2 = MatMul(v0, v1)}"
)


@pytest.mark.parametrize("graph", [ATTENTION, IDENTITIES], ids=["attention", "identities"])
def test_no_image_is_made_of_what_matrices_are_multiplied_with(skeleton_of, graph):
    executable = TorchBackend().prepare(synthetic_network(skeleton_of(graph)), settings(layout="channels_last"))

    assert len(executable._inputs) == 2
    assert all(tensor.is_contiguous() for tensor in executable._inputs)


def test_onednn_is_off_for_its_own_runs_only(skeleton_of):
    wide = "(float[1,16,14,14] x0, float[16,16,5,5] w0) => (float[1,16,10,10] v0) {v0 = Conv(x0, w0)}"
    network = synthetic_network(skeleton_of(wide))
    kernels = []
    for value in ("off", "on"):
        executable = TorchBackend().prepare(network, settings(onednn=value))
        with torch.profiler.profile() as profile:
            executable.run()
        kernels.append({event.key for event in profile.key_averages()})

    assert "aten::mkldnn_convolution" not in kernels[0]
    assert "aten::mkldnn_convolution" in kernels[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("graph", [BLOCK, ATTENTION], ids=["block", "attention"])
def test_a_narrow_type_computes_nearly_the_same(skeleton_of, graph, dtype):
    network = synthetic_network(skeleton_of(graph))
    exact = execute(network)

    narrow = execute(network, dtype)

    assert_like(narrow, exact, 5e-2)
    assert any((one != other).any() for one, other in zip(narrow, exact, strict=True))


def test_the_largest_number_stays_a_number_in_a_narrow_type(skeleton_of):
    masked = "(float[8] x0) => (float[8] v0) <float c0 = {-3.4028235e38}> {v0 = Mul(x0, c0)}"
    network = synthetic_network(skeleton_of(masked))
    network.feeds["x0"][:] = 0

    assert not np.isnan(execute(network, "float16")[0]).any()
    assert not np.isnan(execute(network, "bfloat16")[0]).any()


@pytest.mark.slow
def test_compiled_code_computes_the_same_and_leaves_nothing_behind(skeleton_of, tmp_path, monkeypatch):
    network = synthetic_network(skeleton_of("(float[3,40] x0, float[40] w0) => (float[3,40] v1)"
                                            "{v0 = Add(x0, w0) v1 = Relu(v0)}"))  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))

    found = execute(network, mode="compile")

    assert_like(found, execute(network), 1e-6)
    assert not list(tmp_path.iterdir())
    assert "dlbricks-torch-" in os.environ["TORCHINDUCTOR_CACHE_DIR"]


@pytest.mark.slow
def test_compiled_code_is_kept_where_the_user_says_and_found_there_again(tmp_path, monkeypatch):
    monkeypatch.setenv("DLBRICKS_COMPILED", str(tmp_path))
    written = []
    for _ in range(2):
        with Worker.start("torch", options={"pinning": "off", "mode": "compile"}) as worker:
            assert worker.prepare(Prepare(id=CHAIN, path=CHAIN, synthetic=True, unroll=1)).first_run_ns > 0
        written.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")})

    first, second = written
    assert first
    assert second == first


def test_without_a_compiler_nothing_is_compiled(skeleton_of, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)

    with pytest.raises(BackendUnavailable, match="C\\+\\+ compiler; install g\\+\\+"):
        TorchBackend().prepare(synthetic_network(skeleton_of(ATTENTION)), settings(mode="compile"))


@pytest.mark.parametrize("case", OLDER)
def test_operators_of_older_opsets_mean_what_they_meant(case):
    opset, graph = OLDER[case]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> brick {graph}')
    network = synthetic_network(model)

    found = execute(network)

    assert_like(found, by_onnxruntime(network))


def test_what_no_input_decides_is_computed_ahead(skeleton_of):
    graph = "(float[2,6] x0, float[6,4] w0) => (float[2,4] v3) {v0 = Shape(w0) v1 = Transpose(w0) v2 = Reshape(v1, v0) v3 = MatMul(x0, v2)}"  # noqa: E501
    executable = TorchBackend().prepare(synthetic_network(skeleton_of(graph)), settings())

    assert calls(executable) == [torch.matmul]


def test_what_is_made_of_numbers_is_made_by_every_run(skeleton_of):
    network = synthetic_network(skeleton_of("(int64[2] x0) => (float[3,2] v0) {v0 = ConstantOfShape(x0)}"))
    executable = TorchBackend().prepare(network, settings())

    executable.run()
    first = executable._latest[0]
    executable.run()

    assert executable._latest[0] is not first


def test_an_error_of_a_run_names_the_operator(skeleton_of):
    network = synthetic_network(skeleton_of("(int64[7] x0, float[11,6] w0) => (float[7,6] v1)"
                                            "{v0 = Gather(w0, x0) v1 = Neg(v0)}"))  # fmt: skip
    executable = TorchBackend().prepare(network, settings())
    network.feeds["x0"][:] = 1000  # the same memory as the tensor's

    with pytest.raises(BackendError, match=r"^PyTorch failed in Gather: .*out of range"):
        executable.run()


def test_what_is_refused_is_named(skeleton_of):
    network = synthetic_network(skeleton_of("(float[2,4,5,5] x0) => (float[2,4,5,5] v0) {v0 = LRN<size=4>(x0)}"))

    with pytest.raises(UnsupportedBrick, match=r"^PyTorch has no LRN over an even number"):
        execute(network)


def test_a_brick_is_executed_as_it_is_written(skeleton_of):
    network = synthetic_network(skeleton_of(ATTENTION))
    backend = TorchBackend()

    optimised = backend.optimised(network, settings())

    assert isinstance(backend, OptimisingBackend)
    assert not isinstance(backend, PackingBackend)
    assert optimised.as_is
    assert optimised.model == network.model
    assert len(calls(backend.prepare(optimised, settings()))) == 5


def test_what_is_compiled_is_not_run_in_turn():
    backend = TorchBackend()

    assert require_in_turn(backend, backend.resolve("cpu", {})) is backend
    with pytest.raises(UsageError, match=r"backend torch cannot measure in cache mode.* compile each.*--cache hot"):
        require_in_turn(backend, backend.resolve("cpu", {"mode": "compile"}))


@pytest.mark.parametrize("mode", ["graph", "compile-graph", "branches"])
def test_modes_of_a_gpu_are_there_alone(mode):
    backend = TorchBackend()

    assert dict(backend.stack("cuda", {"mode": mode}).options)["mode"] == mode
    assert backend.in_turn(backend.resolve("cuda", {"mode": mode})) is (mode == "graph")
    assert backend.eager(backend.resolve("cuda", {"mode": mode})) is (mode != "compile-graph")
    with pytest.raises(UsageError, match=f"'mode'.*'{mode}'|'{mode}'.*mode"):
        backend.resolve("cpu", {"mode": mode})


@pytest.mark.parametrize(("mode", "why"), [("compile-graph", "compile each for seconds"), ("branches", "whole models")])
def test_bricks_are_refused_in_modes_that_are_about_whole_models(small_suite, store, monkeypatch, mode, why):
    """Before anything is measured, and whether or not there is a GPU."""
    monkeypatch.setattr(campaign, "require_available", lambda *_: None)

    with pytest.raises(UsageError, match=f"cache mode 'model' with these options.*{why}.*whole models alone"):
        run(small_suite, store=store, backend="torch", device="cuda", options={"mode": mode})

    assert store.runs() == []


def test_each_algorithm_differs_from_what_is_chosen_and_runs(skeleton_of):
    backend = TorchBackend()
    assert isinstance(backend, AlgorithmBackend)
    network = synthetic_network(skeleton_of(BLOCK))
    chosen = settings()

    names = {}
    offered = backend.algorithms("cpu", chosen.options, "float32")
    for algorithm in (each for each in offered if each.channels == 1):
        other = replace(chosen, options={**chosen.options, **algorithm.options})
        assert other.options != chosen.options
        executable = backend.prepare(network, other)
        executable.run()
        names[algorithm.name] = executable.outputs()

    assert list(names) == ["channels_last", "onednn-off"]
    for outputs in names.values():
        assert_like(outputs, execute(network), 1e-5)
    reverse = {**chosen.options, "layout": "channels_last", "onednn": "off"}
    padded = ["padded-16", "padded-8"]
    assert [each.name for each in offered if each.channels > 1] == padded
    there = backend.algorithms("cpu", reverse, "float32")
    assert [each.name for each in there] == ["contiguous", "onednn-on", *padded]
    on_gpu = backend.algorithms("cuda", chosen.options, "float32")
    assert [each.name for each in on_gpu] == ["channels_last", *padded]


@pytest.mark.parametrize("tf32", ["off", "on"])
def test_float32_is_computed_as_such_on_a_gpu_unless_asked_otherwise(tf32):
    """The switches are the process's, and there without a GPU."""
    code = (
        "import contextlib, torch\n"
        "from dlbricks.errors import BackendUnavailable\n"
        "from dlbricks.generator.backends.base import Settings\n"
        "from dlbricks.generator.backends.torch.backend import TorchBackend\n"
        "torch.backends.cuda.matmul.allow_tf32 = True\n"
        "backend = TorchBackend()\n"
        f"options = backend.resolve('cuda', {{'pinning': 'off', 'tf32': '{tf32}'}})\n"
        "with contextlib.nullcontext() if torch.cuda.is_available() else contextlib.suppress(BackendUnavailable):\n"
        "    backend.setup(Settings('cuda', 1, options))\n"
        "print(torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)"
    )

    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == [str(tf32 == "on")] * 2


def test_what_decides_on_a_gpu_alone_is_recorded_there_alone():
    backend = TorchBackend()

    assert dict(backend.stack("cuda", {}).options)["tf32"] == "off"
    assert backend.stack("cuda", {"tf32": "on"}).key != backend.stack("cuda", {}).key
    assert "tf32" not in dict(backend.stack("cpu", {}).options)
    with pytest.raises(UsageError, match="no option 'tf32'"):
        backend.resolve("cpu", {"tf32": "on"})


@pytest.mark.parametrize("cache", ["model", "cold"])
def test_caches_of_a_gpu_are_those_of_a_backend_that_works_in_its_stream(cache):
    asked = MeasurementSettings(backend="torch", device="cuda", cache=cache)

    _check_cache(asked, TorchBackend())
    with pytest.raises(UsageError, match=f"'{cache}'.*'cuda'.*--cache hot"):
        _check_cache(asked, object())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_unavailable():
    with pytest.raises(BackendUnavailable, match="no CUDA device; use --device cpu"):
        TorchBackend().setup(Settings("cuda", 1, TorchBackend().resolve("cuda", {"pinning": "off"})))


def test_a_worker_has_the_threads_that_were_asked_for():
    code = (
        "import torch, os\n"
        "from dlbricks.generator.backends.base import Settings\n"
        "from dlbricks.generator.backends.torch.backend import TorchBackend\n"
        "from dlbricks.generator.machine.cores import physical_cores\n"
        "backend, cores = TorchBackend(), physical_cores()\n"
        "options = backend.resolve('cpu', {'denormal_as_zero': 'on'})\n"
        "backend.setup(Settings('cpu', 1, options, cores))\n"
        "tiny = torch.full((4,), 1e-39)\n"
        "print(torch.get_num_threads(), len(os.sched_getaffinity(0)), float((tiny * 1.0).sum()))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["1", "1", "0.0"]


def test_a_whole_model_computes_what_onnxruntime_does(tmp_path):
    (source,) = find_models(["squeezenet"])
    export_model(source, tmp_path / "squeezenet.onnx")
    network = file_network(tmp_path / "squeezenet.onnx", overrides={})

    found = execute(network)

    assert_like(found, by_onnxruntime(network), 1e-4)


def test_every_brick_of_some_models_computes_what_onnxruntime_does(tmp_path, thorough):
    suite = generate(find_models(list(MODELS)), granularity=1, out=tmp_path / "suite").suite
    assert suite is not None
    wrong = []
    for key in suite.keys if thorough else random.Random(11).sample(suite.keys, 50):
        network = synthetic_network(read_network(suite.brick_path(key)))
        try:
            assert_like(execute(network), by_onnxruntime(network))
        except (AssertionError, BackendError) as error:
            wrong.append(f"{[node.op_type for node in network.model.graph.node]}: {error}")

    assert not wrong
    assert len(suite.keys) > 200
