"""What is particular to OpenVINO."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from computing import assert_alike, computed
from computing import settings as settings_of
from dlbricks.db.values import Runtime
from dlbricks.errors import BackendError, BackendUnavailable, UnsupportedBrick, UsageError
from dlbricks.generator.backends.base import WORKER_COMMAND, Settings
from dlbricks.generator.backends.openvino.backend import _WORDING, OpenVinoBackend, _core, _OvExecutable, _properties
from dlbricks.generator.backends.openvino.model import Edges, read_model, reading_one_of, with_edges
from dlbricks.generator.machine.cores import physical_cores
from dlbricks.generator.network.network import Network, file_network, synthetic_network
from dlbricks.generator.worker.messages import Greeting, Hello, Loaded, Place, line_of, read_line
from working import network

pytestmark = pytest.mark.skipif(not OpenVinoBackend().probe().ok, reason="OpenVINO is not installed")

MATMUL = "(float[8,96] x0, float[96,64] w0) => (float[8,64] v0) {v0 = MatMul(x0, w0)}"
BLOCK = (
    "(float[1,16,8,8] x0, float[32,16,1,1] w0, float[32] w1) => (float[1,32,8,8] v1)"
    "{v0 = Conv(x0, w0, w1) v1 = Relu(v0)}"
)
VOLUME = (
    "(float[1,16,4,6,6] x0, float[32,16,3,3,3] w0) => (float[1,32,4,6,6] v0){v0 = Conv<pads=[1,1,1,1,1,1]>(x0, w0)}"
)
RESIDUAL = (
    "(float[1,16,8,8] x0, float[16,16,3,3] w0, float[1,16,8,8] x1) => (float[1,16,8,8] v0, float[1,16,8,8] v2)"
    "{v0 = Conv<pads=[1,1,1,1]>(x0, w0) v1 = Add(v0, x1) v2 = Relu(v1)}"
)
TINY_PRODUCT = """
import sys, onnx, numpy as np
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.openvino.backend import OpenVinoBackend
from dlbricks.generator.network.network import synthetic_network
network = synthetic_network(onnx.load(sys.argv[1]))
for array in network.feeds.values():
    array[:] = np.float32(1e-20)
backend = OpenVinoBackend()
settings = Settings("cpu", 1, backend.resolve("cpu", {"pinning": "off", "denormal_as_zero": sys.argv[2]}))
backend.setup(settings)
executable = backend.prepare(network, settings)
executable.run()
print(executable.outputs()[0].tobytes().hex())
"""
HINTS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def settings(**given) -> Settings:
    return settings_of(OpenVinoBackend(), **given)


def execute(network: Network, chosen: Settings | None = None) -> list[np.ndarray]:
    return computed(network, OpenVinoBackend(), chosen)


def assert_agree(network: Network, relative: float = 1e-4, chosen: Settings | None = None) -> None:
    """OpenVINO computes what ONNX Runtime does, relative to each output's largest value."""
    assert_alike(execute(network, chosen), computed(network), relative)


def hint_of(executable) -> str:
    return executable._request.get_compiled_model().get_property("INFERENCE_PRECISION_HINT").get_type_name()


@pytest.mark.parametrize("options", [{}, {"denormal_as_zero": "on"}, {"dynamic_quantization": "32"}], ids=str)
def test_every_option_computes_the_same(skeleton_of, options):
    stack = OpenVinoBackend().stack("cpu", options)

    assert dict(stack.options) == {"denormal_as_zero": "off", "dynamic_quantization": "0", "pinning": "on"} | options
    assert_agree(synthetic_network(skeleton_of(BLOCK), unroll=8), chosen=settings(**options))


@pytest.mark.parametrize(("choice", "product"), [("off", 1e-40), ("on", 0)])
def test_denormals_are_kept_unless_they_are_to_be_zero(skeleton_of, tmp_path, choice, product):
    """A process of its own: threads that have started keep the mode they started with."""
    path = tmp_path / "brick.onnx"
    onnx.save(skeleton_of("(float[4] x0, float[4] x1) => (float[4] v0) {v0 = Mul(x0, x1)}"), path)

    done = subprocess.run(
        [sys.executable, "-c", TINY_PRODUCT, path, choice], capture_output=True, text=True, check=True
    )

    values = np.frombuffer(bytes.fromhex(done.stdout), np.float32)
    assert values == pytest.approx(product, rel=1e-3, abs=0)


@pytest.mark.parametrize("dtype", HINTS)
def test_a_precision_takes_effect_or_is_refused(skeleton_of, dtype):
    backend, network = OpenVinoBackend(), synthetic_network(skeleton_of(MATMUL))
    chosen = settings(dtype=dtype)
    try:
        backend.setup(chosen)
    except BackendUnavailable as error:
        assert f"does not compute in {dtype} on this CPU" in str(error)  # noqa: PT017  # it depends on the CPU
        return

    executable = backend.prepare(network, chosen)
    assert hint_of(executable) == HINTS[dtype]
    executable.close()
    found, exact = execute(network, chosen), execute(network)
    assert_alike(found, exact, 2e-2)
    assert np.array_equal(found[0], exact[0]) == (dtype == "float32")
    assert sys.modules["openvino_telemetry"] is None  # what it would send to others is missing


@pytest.fixture
def bfloat16() -> Settings:
    """Settings of a precision that this CPU computes in."""
    chosen = settings(dtype="bfloat16")
    try:
        OpenVinoBackend().setup(chosen)
    except BackendUnavailable as error:
        pytest.skip(str(error))
    return chosen


@pytest.mark.parametrize("copies", [1, 6])
@pytest.mark.parametrize(
    "graph",
    [
        MATMUL,
        BLOCK,
        "(float[8,96] x0) => (float[8,96] v0, float[8,96] v1) {v0 = Softmax(x0) v1 = Relu(x0)}",
        "(float[8,96] x0) => (float[8,96] v0) {v0 = Softmax(x0)}",
        "(int64[5] x0, float[90,9] w0) => (float[5,9] v0, int64[5] v1) {v0 = Gather(w0, x0) v1 = Neg(x0)}",
        "(float[2,3] x0) => (float[3,2] v0, float[2,3] v1) {v0 = Transpose(x0) v1 = Identity(x0)}",
        "(float[4] x0, bool[4] x1, float[4] x2) => (float[4] v0) {v0 = Where(x1, x0, x2)}",
    ],
)
def test_a_lower_precision_is_that_of_inputs_and_outputs_too(skeleton_of, bfloat16, graph, copies):
    network = synthetic_network(skeleton_of(graph), unroll=copies)
    executable = OpenVinoBackend().prepare(network, bfloat16)
    executable.run()
    found, exact = executable.outputs(), computed(network)

    request = executable._request
    tensors = [request.get_input_tensor(index) for index in range(len(network.feeds))]
    tensors += [request.get_output_tensor(index) for index in range(len(network.outputs))]
    types = [tensor.element_type.get_type_name() for tensor in tensors]
    given = [array.dtype for array in (*network.feeds.values(), *exact)]
    assert types == [{"float32": "bf16", "int64": "i64", "bool": "boolean"}[kind.name] for kind in given]
    if len(types) == 2 * copies:  # an operator that stands alone is computed in it too
        computing: dict[str, set[str]] = {}  # what reads an input: weights may be converted while the network is loaded
        for node in request.get_compiled_model().get_runtime_model().get_ordered_ops():
            readers = [port.get_source_output().get_node().get_name() in computing for port in node.inputs()]
            if node.get_type_name() == "Parameter" or any(readers):
                computing[node.get_name()] = {port.get_element_type().get_type_name() for port in node.outputs()}
        assert len(computing) >= len(types)
        assert set().union(*computing.values()) == {"bf16"}
    executable.close()
    assert_alike(found, exact, 2e-2)


def test_the_largest_number_stays_finite_in_a_lower_precision(skeleton_of, bfloat16):
    network = synthetic_network(skeleton_of("(float[4] x0) => (float[4] v0) {v0 = Abs(x0)}"))
    network.feeds["x0"][:] = [np.finfo(np.float32).min, np.inf, 0, 1]

    (found,) = execute(network, bfloat16)

    assert np.isfinite(found).tolist() == [True, False, True, True]
    assert found[0] > 3e38


def test_more_threads_than_there_are_cores_are_refused():
    many = len(physical_cores()) + 1

    with pytest.raises(UsageError, match="cannot be bound"):
        OpenVinoBackend().setup(settings(threads=many, pinning="on"))
    with pytest.raises(UsageError, match=f"where {many} are asked for"):
        OpenVinoBackend().setup(settings(threads=many))


@pytest.mark.parametrize("dtype", HINTS)
@pytest.mark.parametrize("graph", [BLOCK, VOLUME, RESIDUAL], ids=["block", "volume", "residual"])
def test_a_brick_of_a_pass_computes_the_same_whatever_layout_its_edges_have(skeleton_of, graph, dtype):
    chosen = settings(dtype=dtype)
    network = synthetic_network(skeleton_of(graph))

    brick = OpenVinoBackend().prepare_streamed(network, chosen)
    brick.refresh()
    brick.run()

    limit = 1e-5 if dtype == "float32" else 0.05
    assert_alike(brick.outputs(), execute(network, chosen), limit)


@pytest.mark.parametrize("layout", ["acdb", None])
def test_edges_with_channels_last_carry_the_same_values(skeleton_of, layout):
    """Which layout a processor prefers is its own affair; that it is carried over is ours."""
    network = synthetic_network(skeleton_of(BLOCK))
    edges = Edges({0: layout}, {0: layout}) if layout else Edges({}, {})
    compiled = _core().compile_model(with_edges(read_model(_core(), network), edges), "CPU", _properties(settings()))

    brick = _OvExecutable(compiled.create_infer_request(), network, frozenset(), edges)
    brick.run()

    shape = list(compiled.input(0).shape)
    assert shape == ([1, 8, 8, 16] if layout else [1, 16, 8, 8])
    np.testing.assert_allclose(brick.outputs()[0], execute(network)[0], rtol=1e-5, atol=1e-5)


def test_one_element_of_an_output_is_that_of_the_whole(skeleton_of):
    network = synthetic_network(skeleton_of(RESIDUAL))
    edges = Edges({0: "acdb"}, {0: "acdb"})
    model = with_edges(read_model(_core(), network), edges)

    compiled = _core().compile_model(reading_one_of(model, frozenset({0})), "CPU", _properties(settings()))
    brick = _OvExecutable(compiled.create_infer_request(), network, frozenset(), edges)
    brick.run()

    assert [*compiled.output(0).shape] == [1, 1, 1, 1]
    (one,) = brick._request.get_output_tensor(0).data.ravel()
    assert one == pytest.approx(execute(network)[0].ravel()[0], rel=1e-5)


def test_what_a_sum_is_written_over_is_not_copied_out_in_a_pass(skeleton_of):
    """Where the processor has convolutions write so: what is handed out is the whole all the same."""
    network = synthetic_network(skeleton_of(RESIDUAL))

    brick = OpenVinoBackend().prepare_streamed(network, settings())

    assert brick.output_bytes() == sum(array.nbytes for array in execute(network))
    executed = brick._request.get_compiled_model().get_runtime_model().get_ordered_ops()
    assert "Transpose" not in {operator.get_rt_info()["layerType"].astype(str) for operator in executed}


@pytest.mark.parametrize("dtype", HINTS)
def test_bricks_of_a_pass_write_where_others_of_their_size_did(skeleton_of, dtype):
    backend, chosen = OpenVinoBackend(), settings(dtype=dtype)
    models = [skeleton_of(f"(float[4,{size}] x0) => (float[4,{size}] v0) {{v0 = Exp(x0)}}") for size in (90, 100, 1000)]
    networks = [synthetic_network(model) for model in models]
    alone = [execute(network, chosen) for network in networks]

    bricks = [backend.prepare_streamed(network, chosen) for network in networks]
    found = []
    for brick in bricks:
        brick.refresh()
        brick.run()
        found.append(brick.outputs())

    places = [brick._request.get_output_tensor(0).data.ctypes.data for brick in bricks]
    assert len({*places}) == 2
    assert places[0] == places[1]
    assert all(place % 64 == 0 for place in places)
    for (one,), (other,) in zip(found, alone, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_worker_is_bound_to_the_first_core_and_leaves_nothing_behind(skeleton_of, tmp_path):
    home, folder = tmp_path / "home", tmp_path / "empty"
    home.mkdir()
    folder.mkdir()
    brick = tmp_path / "brick.onnx"
    onnx.save(skeleton_of(BLOCK), brick)
    worker = subprocess.Popen(
        WORKER_COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, "HOME": str(home), "OPENBLAS_NUM_THREADS": "1"},  # no idle threads of NumPy's own
        text=True,
    )

    def ask(request, expected):
        worker.stdin.write(line_of(request).decode())
        worker.stdin.flush()
        return read_line(worker.stdout.readline(), expected)

    greeting = ask(Hello(Place(Runtime.of("openvino"))), Greeting)
    prepared = ask(network("one", brick), Loaded)
    affinities = {
        frozenset(os.sched_getaffinity(int(task.name))) for task in Path(f"/proc/{worker.pid}/task").iterdir()
    }
    worker.communicate(timeout=20)

    assert dict(greeting.stack.options)["pinning"] == "on"
    assert prepared.unroll == 1
    assert affinities == {frozenset(physical_cores()[:1])}
    assert list(home.rglob("*")) == []
    assert list(folder.iterdir()) == []


def test_weights_too_large_for_a_protobuf_are_read_from_a_file(skeleton_of, monkeypatch, tmp_path):
    network = synthetic_network(skeleton_of(BLOCK), unroll=2)
    expected = execute(network)
    monkeypatch.setattr("onnx.checker.MAXIMUM_PROTOBUF", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    found = execute(network)

    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_a_dynamic_batch_runs_at_the_size_that_is_asked_for(model_file, tmp_path):
    graph = (
        '(float["N",3,8,8] x) => (float["N",4] y) {a = Conv(x, w0) b = Relu(a) c = GlobalAveragePool(b) y = Flatten(c)}'
    )
    path = model_file(tmp_path / "dynamic.onnx", graph, {"w0": (4, 3, 3, 3)})
    network = file_network(path, overrides={"N": 5})

    assert execute(network)[0].shape == (5, 4)
    assert_agree(network)


@pytest.mark.parametrize(
    ("graph", "copies"),
    [
        (
            ("(float[2,3] x0) => (float[2,3] v0, float[2] v1, float[2,3] v2)"  # an input, and a constant
            "{v0 = Identity(x0) v1 = Constant<value_floats=[1.0, 2.0]>() v2 = Neg(x0)}"), 1,
        ),
        (  # OpenVINO gives an input that becomes an output unchanged the output's name
            "(float[2,3] x1, float[2,3] x0) => (float[2,3] v0, float[2,3] v1) {v0 = Dropout(x0) v1 = Neg(x1)}", 2,
        ),
        ("(float[4] x0) => (float[4] v3, float[4] v1) {v1 = Neg(x0) v2 = Abs(v1) v3 = Exp(v2)}", 3),
        ("(double[2,4] x0) => (float[2,4] v1) {v0 = Cast<to=1>(x0) v1 = Neg(v0)}", 1),
        ("(float[2,4] x0, float16[4,5] w0) => (float[2,5] v1) {v0 = Cast<to=1>(w0) v1 = MatMul(x0, v0)}", 1),
        ("(double[2,4] x0) => (int64[2] v0) {v0 = Shape(x0)}", 1),
    ],
)  # fmt: skip
def test_outputs_are_the_network_s_and_what_only_passes_in_another_type_is_run(skeleton_of, graph, copies):
    assert_agree(synthetic_network(skeleton_of(graph), unroll=copies))


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            "Check 'a' failed at src/b.cpp:14:\nFrontEnd API failed with OpConversionFailure:\nNo rule for: a.B",
            UnsupportedBrick, "OpenVINO cannot express it: No rule for: a.B",
        ),
        (
            ("Model wasn't fully converted. Failed operations detailed log:\n-- Pool-21 with a message:\n"
            "While validating ONNX node '<Node(Pool): v0>': Check 'x' failed at src/core/x.hpp:9:\n"
            "While validating node 'p (a[0]:f32[1])' with friendly_name 'p':\nKernel is too large.\n\n"
            "Summary:\n-- Conversion is failed for: Pool-21"),
            BackendError, "OpenVINO failed: Pool-21 with a message: Kernel is too large.",
        ),
        (
            "Exception from src/inference/src/cpp/core.cpp:117:\nUnsupported operation of type: Foo in /home/me/x.onnx",
            UnsupportedBrick, "OpenVINO cannot express it: Unsupported operation of type: Foo in",
        ),
        ("std::bad_alloc", MemoryError, "std::bad_alloc"),
        ("Exception from src/inference/a.cpp:1:\nfirst\nsecond", BackendError, "OpenVINO failed: first second"),
    ],
)  # fmt: skip
def test_the_runtime_s_words_become_one_line_of_the_right_kind(text, kind, said):
    meaning = _WORDING.meaning(RuntimeError(text))

    assert (type(meaning), str(meaning)) == (kind, said)


def test_what_it_cannot_express_is_said_with_the_operator(skeleton_of):
    model = skeleton_of("(float[2,3,4] x0, int64[2] x1) => (float[3] v0) {v0 = ReduceSum<keepdims=0>(x0, x1)}")

    with pytest.raises(UnsupportedBrick, match="ReduceSum operation with dynamic rank"):
        execute(synthetic_network(model))


@pytest.mark.parametrize(("kind", "copies"), [("double", 1), ("float16", 3), ("bfloat16", 1)])
def test_what_it_would_compute_in_another_type_is_refused(skeleton_of, kind, copies):
    product = f"({kind}[2,4] x0, {kind}[4,5] w0) => (float[2,5] v1) {{v0 = MatMul(x0, w0) v1 = Cast<to=1>(v0)}}"
    network = synthetic_network(skeleton_of(product), unroll=copies)

    with pytest.raises(UnsupportedBrick, match=f"no MatMul of {kind}: it would compute it in float32"):
        execute(network)
    if kind != "double":
        read_model(_core(), network, kind)
        other = {"float16": "bfloat16", "bfloat16": "float16"}[kind]
        with pytest.raises(UnsupportedBrick, match=f"compute it in {other}"):
            read_model(_core(), network, other)


def test_an_index_out_of_range_is_refused_where_it_would_read_zeros(skeleton_of):
    model = skeleton_of("(float[4,5] x0, int64[4,2] x1) => (float[4,2] v0) {v0 = GatherElements<axis=1>(x0, x1)}")
    network = synthetic_network(model)
    network.feeds["x1"][0, 0] = -6

    with pytest.raises(BackendError, match=r"GatherElements cannot read elements -6 to . of 5"):
        execute(network)
