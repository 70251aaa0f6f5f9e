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
from computing import assert_alike, computed
from computing import settings as settings_of
from dlbricks.bricks.reference import CHAIN
from dlbricks.errors import BackendError, BackendUnavailable, UnsupportedBrick, UsageError
from dlbricks.generator.backends.base import Backend, Executable, Settings, released
from dlbricks.generator.backends.torch.backend import TorchBackend
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement import execution
from dlbricks.generator.measurement.execution import check_cache
from dlbricks.generator.measurement.run import run
from dlbricks.generator.measurement.settings import MeasurementSettings
from dlbricks.generator.network.export import export_model
from dlbricks.generator.network.network import Network, file_network, read_network, synthetic_network
from dlbricks.models import find_models
from working import network, start

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
MODELS = ("squeezenet", "shufflenet", "densenet121", "inception_v1", "bert_base", "gpt2", "vit_b16")


OLDER = {
    "softmax": (11, "(float[2,3,4] x) => (float[2,3,4] y) {y = Softmax<axis=1>(x)}"),
    "log-softmax": (11, "(float[2,3,4] x) => (float[2,3,4] y) {y = LogSoftmax(x)}"),
    "squeeze": (9, "(float[1,3,1] x) => (float[3,1] y) {y = Squeeze<axes=[0]>(x)}"),
    "unsqueeze": (9, "(float[3,4] x) => (float[1,3,4,1] y) {y = Unsqueeze<axes=[0,3]>(x)}"),
    "clip": (9, "(float[9] x) => (float[9] y) {y = Clip<min=-0.5, max=0.25>(x)}"),
    "pad": (9, "(float[2,3] x) => (float[3,5] y) {y = Pad<pads=[0,1,1,1], value=2.0>(x)}"),
    "slice": (9, "(float[6,8] x) => (float[4,8] y) {y = Slice<axes=[0], starts=[1], ends=[-1]>(x)}"),
    "split": (9, "(float[6,2] x) => (float[4,2] y, float[2,2] z) {y, z = Split<axis=0, split=[4,2]>(x)}"),
    "reduce-sum": (11, "(float[2,3,4] x) => (float[2,4] y) {y = ReduceSum<axes=[1], keepdims=0>(x)}"),
    "reduce-mean": (9, "(float[2,3,4] x) => (float[2,1,1] y) {y = ReduceMean<axes=[1,2]>(x)}"),
    "dropout": (9, "(float[3,4] x) => (float[3,4] y) {y = Dropout<ratio=0.4>(x)}"),
    "gemm": (9, "(float[3,4] x, float[4,5] w, float[5] b) => (float[3,5] y) {y = Gemm(x, w, b)}"),
    "top-k": (9, "(float[3,9] x) => (float[3,2] y, int64[3,2] z) {y, z = TopK<k=2>(x)}"),
    "normalized": (9, "(float[1,2,3] x, float[2] a) => (float[1,2,3] y) {y = BatchNormalization(x, a, a, a, a)}"),
    "upsample": (9, "(float[1,2,3,3] x) => (float[1,2,6,6] y) <float[4] s = {1, 1, 2, 2}> {y = Upsample(x, s)}"),
}


def settings(dtype: str = "float32", **options: str) -> Settings:
    return settings_of(TorchBackend(), dtype=dtype, **options)


def execute(network: Network, dtype: str = "float32", **options: str) -> list[np.ndarray]:
    return computed(network, TorchBackend(), settings(dtype, **options))


@pytest.fixture
def ready(skeleton_of):
    """A network of PyTorch that is ready to run, from its graph and options."""
    return lambda graph, **options: TorchBackend().prepare(synthetic_network(skeleton_of(graph)), settings(**options))


def calls(executable: Executable) -> list[object]:
    """The functions that a network is made of, in order."""
    return [node.target for node in executable._call.__self__.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("graph", "images"),
    [
        (BLOCK, True),
        (ATTENTION, False),  # no image is made of what matrices are multiplied with
        (
            ("(float[1,4,8,16] x0, float[1,4,16,8] x1) => (float[1,4,8,8] v2)"
            "{v0 = Identity(x0) v1 = Identity(x1) v2 = MatMul(v0, v1)}"), False,
        ),
    ],
    ids=["block", "attention", "identities"],
)  # fmt: skip
def test_images_and_their_weights_have_their_channels_last_where_asked(ready, graph, images):
    executable = ready(graph, layout="channels_last")

    executable.run()

    order = torch.channels_last if images else torch.contiguous_format
    for tensor in (*executable._inputs, *(executable._latest[:1] if images else ())):
        assert tensor.is_contiguous(memory_format=order)


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
def test_a_narrow_type_computes_nearly_the_same_and_the_largest_number_stays_one(skeleton_of, dtype):
    for graph in (BLOCK, ATTENTION):
        network = synthetic_network(skeleton_of(graph))
        exact, narrow = execute(network), execute(network, dtype)
        assert_alike(narrow, exact, 5e-2)
        assert any((one != other).any() for one, other in zip(narrow, exact, strict=True))
    masked = "(float[8] x0) => (float[8] v0) <float c0 = {-3.4028235e38}> {v0 = Mul(x0, c0)}"
    network = synthetic_network(skeleton_of(masked))
    network.feeds["x0"][:] = 0
    assert not np.isnan(execute(network, dtype)[0]).any()


@pytest.mark.slow
def test_compiled_code_computes_the_same_and_leaves_nothing_behind(skeleton_of, tmp_path, monkeypatch):
    network = synthetic_network(skeleton_of("(float[3,40] x0, float[40] w0) => (float[3,40] v1)"
                                            "{v0 = Add(x0, w0) v1 = Relu(v0)}"))  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))

    found = execute(network, mode="compile")

    assert_alike(found, execute(network), 1e-6)
    assert not list(tmp_path.iterdir())
    assert "dlbricks-torch-" in os.environ["TORCHINDUCTOR_CACHE_DIR"]


@pytest.mark.slow
def test_compiled_code_is_kept_where_the_user_says_and_found_there_again(tmp_path, monkeypatch):
    monkeypatch.setenv("DLBRICKS_COMPILED", str(tmp_path))
    written = []
    for _ in range(2):
        with start("torch", {"pinning": "off", "mode": "compile"}) as worker:
            assert worker.load(network(CHAIN, CHAIN)).first_run_ns > 0
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
    network = synthetic_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> brick {graph}'))

    assert_alike(execute(network), computed(network), 1e-3)


def test_a_brick_is_executed_as_it_is_written_but_for_what_no_input_decides(ready, skeleton_of):
    folded = (
        "(float[2,6] x0, float[6,4] w0) => (float[2,4] v3)"
        "{v0 = Shape(w0) v1 = Transpose(w0) v2 = Reshape(v1, v0) v3 = MatMul(x0, v2)}"
    )
    assert calls(ready(folded)) == [torch.matmul]
    made = ready("(int64[2] x0) => (float[3,2] v0) {v0 = ConstantOfShape(x0)}")
    made.run()
    first = made._latest[0]
    made.run()
    assert made._latest[0] is not first  # what is made of numbers is made by every run
    network, backend = synthetic_network(skeleton_of(ATTENTION)), TorchBackend()

    optimised = backend.optimised(network, settings())

    assert backend.offers(Backend.in_turn)
    assert not backend.offers(Backend.prepare_packed)
    assert optimised.as_is
    assert optimised.model == network.model
    assert len(calls(backend.prepare(optimised, settings()))) == 5


def test_an_error_of_a_run_names_the_operator(skeleton_of):
    network = synthetic_network(skeleton_of("(int64[7] x0, float[11,6] w0) => (float[7,6] v1)"
                                            "{v0 = Gather(w0, x0) v1 = Neg(v0)}"))  # fmt: skip
    executable = TorchBackend().prepare(network, settings())
    network.feeds["x0"][:] = 1000  # the same memory as the tensor's

    with pytest.raises(BackendError, match=r"^PyTorch failed in Gather: .*out of range"):
        executable.run()
    refused = synthetic_network(skeleton_of("(float[2,4,5,5] x0) => (float[2,4,5,5] v0) {v0 = LRN<size=4>(x0)}"))
    with pytest.raises(UnsupportedBrick, match=r"^PyTorch has no LRN over an even number"):
        execute(refused)


@pytest.mark.parametrize("mode", ["graph", "compile-graph", "branches"])
def test_what_decides_on_a_gpu_alone_is_there_alone(mode):
    backend = TorchBackend()

    assert dict(backend.stack("cuda", {"mode": mode}).options)["mode"] == mode
    assert backend.in_turn(backend.resolve("cuda", {"mode": mode})) is (mode == "graph")
    assert backend.eager(backend.resolve("cuda", {"mode": mode})) is (mode != "compile-graph")
    with pytest.raises(UsageError, match=f"'mode'.*'{mode}'|'{mode}'.*mode"):
        backend.resolve("cpu", {"mode": mode})
    assert dict(backend.stack("cuda", {}).options)["tf32"] == "off"
    assert backend.stack("cuda", {"tf32": "on"}).key != backend.stack("cuda", {}).key
    with pytest.raises(UsageError, match="no option 'tf32'"):
        backend.resolve("cpu", {"tf32": "on"})
    if not torch.cuda.is_available():
        with pytest.raises(BackendUnavailable, match="no CUDA device; use --device cpu"):
            backend.setup(Settings("cuda", 1, backend.resolve("cuda", {"pinning": "off"})))
    backend.require_in_turn(backend.resolve("cpu", {}))
    with pytest.raises(UsageError, match=r"backend torch cannot measure in cache mode.* compile each.*--cache hot"):
        backend.require_in_turn(backend.resolve("cpu", {"mode": "compile"}))


@pytest.mark.parametrize(("mode", "why"), [("compile-graph", "compile each for seconds"), ("branches", "whole models")])
def test_bricks_are_refused_in_modes_that_are_about_whole_models(small_suite, store, monkeypatch, mode, why):
    """Before anything is measured, and whether or not there is a GPU."""
    monkeypatch.setattr(execution, "require_available", lambda *_: None)

    with pytest.raises(UsageError, match=f"cache mode 'model' with these options.*{why}.*whole models alone"):
        run(small_suite, store=store, backend="torch", device="cuda", options={"mode": mode})

    assert store.runs() == []


def test_each_algorithm_differs_from_what_is_chosen_and_runs(skeleton_of):
    backend = TorchBackend()
    network = synthetic_network(skeleton_of(BLOCK))
    chosen = settings()

    offered = backend.algorithms("cpu", chosen.options, "float32")
    assert [each.name for each in offered] == ["channels_last", "onednn-off"]
    for algorithm in offered:
        other = replace(chosen, options={**chosen.options, **algorithm.options})
        assert other.options != chosen.options
        assert_alike(computed(network, backend, other), execute(network))
    reverse = {**chosen.options, "layout": "channels_last", "onednn": "off"}
    there = backend.algorithms("cpu", reverse, "float32")
    assert [each.name for each in there] == ["contiguous", "onednn-on"]
    on_gpu = backend.algorithms("cuda", chosen.options, "float32")
    assert [each.name for each in on_gpu] == ["channels_last"]


@pytest.mark.sweep(1)
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


class Bare(Backend):
    """What every backend must have, and no more."""

    name = "bare"
    setup = prepare = released


@pytest.mark.parametrize("cache", ["model", "cold"])
def test_caches_of_a_gpu_are_those_of_a_backend_that_works_in_its_stream(cache):
    asked = MeasurementSettings.of({"backend": "torch", "device": "cuda", "cache": cache})

    check_cache(asked, TorchBackend())
    with pytest.raises(UsageError, match=f"'{cache}'.*'cuda'.*--cache hot"):
        check_cache(asked, Bare())


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

    assert_alike(found, computed(network), 1e-4)


@pytest.mark.slow
def test_every_brick_of_some_models_computes_what_onnxruntime_does(tmp_path, thorough):
    suite = generate(find_models(list(MODELS)), granularity=1, out=tmp_path / "suite").suite
    assert suite is not None
    wrong = []
    for key in suite.keys if thorough else random.Random(11).sample(suite.keys, 50):
        network = synthetic_network(read_network(suite.brick_path(key)))
        try:
            assert_alike(execute(network), computed(network), 1e-3)
        except (AssertionError, BackendError) as error:
            wrong.append(f"{[node.op_type for node in network.model.graph.node]}: {error}")

    assert not wrong
    assert len(suite.keys) > 200
