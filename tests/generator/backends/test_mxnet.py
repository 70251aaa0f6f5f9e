"""MXNet, in its own environment, through its worker: what every backend must do, and what is particular to it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from computing import session
from dlbricks.bricks.reference import CHAIN, OVERHEAD
from dlbricks.db.store import Store
from dlbricks.db.values import Subject
from dlbricks.errors import BackendError, UnsupportedBrick
from dlbricks.generator.backends.mxnet.backend import MxnetBackend
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.network.network import synthetic_network
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.messages import Time
from dlbricks.models import find_models
from onnx.reference import ReferenceEvaluator
from working import UNPINNED, network, start

_PATH = Path(__file__).with_name("test_conformance.py")
_SPEC = importlib.util.spec_from_file_location("conformance_of_backends", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
conformance = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(conformance)

MAY_REFUSE = frozenset({
    "bfloat16", "bfloat16-weight", "branch", "columns", "cumulative-backwards", "eye", "float8", "gather-elements",
    "gather-nd-batched", "gelu", "grid-sample", "group-norm", "gru", "loop", "lstm", "matmul-half", "matmul-integer",
    "mish", "narrow-types", "norms", "numbers-that-are-none", "quantise", "quantise-per-channel", "resize-by-scales",
    "resize-linear", "scatter-elements", "scatter-nd", "scatter-nd-reduced", "strings", "trilu", "unit-length",
})  # fmt: skip
"""Cases that MXNet has no operator or type for."""

EXTRA = {
    "opset-9": (9, (
        "(float[1,8,6,6] x0, float[4,8,3,3] w0, float[4] w1, float[10,64] w2, float[10] w3) => (float[1,10] y){a = "
        'Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x0, w0, w1) b = Clip<min=0.0, max=6.0>(a) c = '
        "Pad<pads=[0,0,0,0,0,0,1,1], value=0.5>(b) d = Flatten(c) e = Gemm<transB=1>(d, w2, w3) y = Softmax(e)}")),
    "old-attributes": (9, (
        "(float[2,6,1] x0) => (float[2,3] y, float[2] z){a = Squeeze<axes=[2]>(x0) b, c = Split<axis=1, "
        "split=[3,3]>(a) d = Unsqueeze<axes=[0]>(b) e = Slice<axes=[0], starts=[0], ends=[1]>(d) f = "
        "Squeeze<axes=[0]>(e) y = Dropout<ratio=0.3>(f) z = ReduceSum<axes=[1], keepdims=0>(c)}")),
    "softmax-over-all-that-follow": (9, "(float[2,3,4] x0) => (float[2,3,4] y) {y = Softmax<axis=1>(x0)}"),
    "uneven-pads": (21, (
        "(float[1,4,7,7] x0, float[6,4,3,3] w0) => (float[1,6,8,7] y, float[1,4,8,8] z, float[1,4,4,4] u){y = "
        "Conv<pads=[2,1,1,1]>(x0, w0) z = MaxPool<kernel_shape=[2,2], pads=[1,1,1,1]>(x0) u = "
        "MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[0,0,2,2]>(x0)}")),
    "pads-with-values": (21, (
        "(float[2,3] x0, float[1,2,5,5] x1) => (float[5,4] y, float[2,4] z, float[1,2,4,4] u)<int64[4] c0 = {1, 0, "
        "2, 1}, float c1 = {-2.5}, int64[2] c2 = {0, 1}, int64[1] c3 = {1}>{y = Pad(x0, c0, c1) z = "
        'Pad<mode="edge">(x0, c2, , c3) u = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[2,2,2,2]>(x1)}')),
    "pool-rounded-up": (21, (
        "(float[1,4,8,8] x0) => (float[1,4,4,4] y, float[1,4,4,4] z){y = MaxPool<kernel_shape=[3,3], "
        "strides=[2,2], ceil_mode=1>(x0) z = AveragePool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x0)}")),
    "pool-padded-unevenly": (21, (
        "(float[1,2,8,8] x0) => (float[1,2,7,7] y, float[1,2,4,4] z){y = AveragePool<kernel_shape=[3,3], "
        "pads=[0,0,1,1]>(x0) z = AveragePool<kernel_shape=[2,3], strides=[2,2], pads=[1,1,0,0]>(x0)}")),
    "fused-and-read-by-others": (21, (
        "(float[4,8] x0, float[8,8] w0, float[8,8] w1) => (float[4,8] y, float[4,8] z){a = MatMul(x0, w0) b = "
        "Relu(a) c = Tanh(a) d = MatMul(b, w1) y = Add(c, d) z = Sigmoid(d)}")),
    "fused-and-seen": (21, (
        "(float[1,4,6,6] x0, float[4,4,3,3] w0) => (float[1,4,6,6] a, float[1,4,6,6] y){a = "
        "Conv<pads=[1,1,1,1]>(x0, w0) b = Relu(a) c = Add(b, x0) y = Relu(c)}")),
    "sum-with-itself": (21, (
        "(float[1,4,6,6] x0, float[4,4,3,3] w0) => (float[1,4,6,6] y){a = Conv<pads=[1,1,1,1]>(x0, w0) y = Add(a, "
        "a)}")),
    "residual-of-an-input": (21, (
        "(float[1,4,6,6] x0, float[4,4,3,3] w0) => (float[1,4,6,6] y){a = Conv<pads=[1,1,1,1]>(x0, w0) y = Add(a, "
        "x0)}")),
    "batches-that-repeat": (21, (
        "(float[2,3,4,5] x0, float[3,5,6] x1, float[1,5,4] x2) => (float[2,3,4,6] y, float[2,3,4,4] z){y = "
        "MatMul(x0, x1) z = MatMul(x0, x2)}")),
    "masks-that-repeat": (21, (
        "(bool[2,3] x0, bool[3] x1) => (bool[2,3] y, bool[2,3] z, bool[2,3] u){y = And(x0, x1) z = Or(x0, x1) u = "
        "Xor(x0, x1)}")),
    "to-scalars": (21, (
        "(float[2,3] x0) => (float y, float z) {y = ReduceMean<keepdims=0>(x0) z = ReduceMax<keepdims=0>(x0)}")),
}  # fmt: skip
"""Opset and graph."""

IN_BLOCKS = {
    "pool": "(float[1,16,9,9] x) => (float[1,16,9,9] y){m = MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>(x) y = Relu(m)}",
    "channels": "(float[1,16,9,9] x, float[1,24,9,9] z) => (float[1,40,9,9] y) {y = Concat<axis=1>(x, z)}",
    "sum": "(float[1,16,9,9] x, float[1,16,9,9] z) => (float[1,16,9,9] y) {y = Add(x, z)}",
    "scale": "(float[1,16,9,9] x, float[1,16,1,1] z) => (float[1,16,9,9] y) {y = Mul(x, z)}",
    "turn": "(float[2,8,9,9] x) => (float[2,9,9,8] y) {y = Transpose<perm=[0,2,3,1]>(x)}",
}
"""Bricks whose inputs may have their channels in blocks."""


@pytest.fixture
def worker(mxnet, worker_of):
    """One worker for all tests that leave it alive."""
    return worker_of("mxnet")


def execute(worker: Worker, path: Path, **more) -> dict[str, np.ndarray]:
    """Inputs and outputs of the first copy."""
    worker.load(network("it", path, **{"seed": 3, **more}))
    worker.outputs("it", path.with_suffix(".npz"))
    worker.drop("it")
    with np.load(path.with_suffix(".npz")) as values:
        return dict(values)


def assert_right(found: dict[str, np.ndarray], model: onnx.ModelProto, case: str = "") -> None:
    network = synthetic_network(model, seed=3)
    whole = network.self_contained()
    if model.opset_import[0].version < 13:  # the evaluator takes the Softmax of these opsets for the one of now
        expected = session(whole).run(None, dict(network.feeds))
    else:
        expected = ReferenceEvaluator(whole).run(None, dict(network.feeds))
    for name, fed in network.feeds.items():
        assert found[name].tobytes() == fed.tobytes(), "another NumPy made other inputs"
    outputs = [found[name] for name in network.outputs]
    conformance.assert_close(outputs, [np.asarray(value) for value in expected], conformance.BY_CASE.get(case))


@pytest.mark.sweep(40)
@pytest.mark.parametrize("case", conformance.CASES)
def test_a_brick_computes_what_onnx_says(worker, case, skeleton_of, tmp_path):
    model = skeleton_of(conformance.CASES[case])
    onnx.save(model, tmp_path / "brick.onnx")

    try:
        found = execute(worker, tmp_path / "brick.onnx")
    except UnsupportedBrick as error:
        if case not in MAY_REFUSE:
            raise
        pytest.skip(str(error))

    assert case not in MAY_REFUSE
    assert_right(found, model, case)
    assert_right(execute(worker, tmp_path / "brick.onnx", unroll=3), model, case)


@pytest.mark.parametrize("options", [{}, {"subgraph": "none"}], ids=["fused", "plain"])
def test_what_is_particular_to_it_computes_what_onnx_says(mxnet, worker_of, options, skeleton_of, tmp_path):
    for name, (opset, graph) in EXTRA.items():
        model = skeleton_of(graph)
        model.opset_import[0].version = opset
        model.ir_version = 8
        onnx.save(model, tmp_path / f"{name}.onnx")

        assert_right(execute(worker_of("mxnet", {**UNPINNED, **options}), tmp_path / f"{name}.onnx"), model)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "options",
    [{"engine": "naive"}, {"onednn": "off"}, {"common_expressions": "off"}],
    ids=lambda given: next(iter(given)),
)
def test_every_option_computes_the_same(mxnet, options, skeleton_of, tmp_path):
    model = skeleton_of(conformance.CASES["conv-bn-relu"])
    onnx.save(model, tmp_path / "brick.onnx")

    with start("mxnet", {**UNPINNED, **options}) as worker:
        assert_right(execute(worker, tmp_path / "brick.onnx"), model)
        assert dict(worker.greeting.stack.options).items() >= options.items()


def test_the_stack_is_the_same_on_both_sides_and_built_in_networks_run(worker):
    stack = MxnetBackend().stack("cpu", {"pinning": "off"})
    assert worker.greeting.stack == stack
    assert stack.versions == (("mxnet", "1.9.1"),)
    for name in (CHAIN, OVERHEAD):
        assert worker.load(network("built in", name, unroll=0)).unroll >= 1
        assert worker.time(Time("built in", loops=3)).elapsed_ns > 0


@pytest.mark.slow
def test_bricks_of_the_light_models_compute_what_onnx_runtime_does(worker, worker_of, tmp_path):
    names = ["squeezenet", "shufflenet", "inception_v1"]
    suite = generate(find_models(names), granularity=1, out=tmp_path / "suite").suite
    assert suite is not None
    refused = []
    files = sorted((suite.path / "bricks").glob("*.onnx"))
    for path in files:
        try:
            found = execute(worker, path)
        except UnsupportedBrick as error:
            refused.append(str(error))
            continue
        expected = execute(worker_of(), path)
        assert found.keys() == expected.keys()
        for name, value in found.items():
            assert value.dtype == expected[name].dtype
            np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-3)

    assert len(files) > 100
    assert len(refused) <= len(files) * 0.1


INSIDE = """
import ctypes, json, sys
import numpy as np
import onnx
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.mxnet.backend import MxnetBackend
from dlbricks.generator.network.network import synthetic_network

backend = MxnetBackend()
settings = Settings("cpu", 1, backend.resolve("cpu", {"pinning": "off"}))
backend.setup(settings)
import mxnet as mx
from dlbricks.generator.backends.mxnet.operators.translation import translate
network = synthetic_network(onnx.load(sys.argv[1]), seed=3, unroll=int(sys.argv[2]))
"""


def inside(code: str, path: Path, unroll: int = 1) -> dict:
    """What code says in JSON, as its last line, of the network of a brick in the environment of MXNet."""
    command = [str(MxnetBackend.environment.interpreter), "-E", "-P", "-c", INSIDE + code, str(path), str(unroll)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_depends_on_constants_alone_is_computed_once_whatever_its_size(mxnet, worker, skeleton_of, tmp_path):
    model = skeleton_of(
        "(float[2,64] x0, float[2,100] x1, float[100,64] w0, float[100,10,1] w1) => (float[2,100] y, float[2,10] z)"
        "<int64[2] c = {100, 10}>"
        "{a = Transpose(w0) y = MatMul(x0, a) b = Reshape(w1, c) z = Gemm(x1, b)}"
    )
    onnx.save(model, tmp_path / "brick.onnx")
    code = """
translated = translate(network, fused=True)
operators = [node["op"] for node in json.loads(translated.symbol.tojson())["nodes"]]
print(json.dumps({
    "operators": sorted(name for name in operators if name != "null"),
    "shapes": sorted(array.shape for array in {id(array): array for array in translated.arrays.values()}.values()),
}))
"""

    found = inside(code, tmp_path / "brick.onnx", unroll=2)

    assert found["operators"] == ["FullyConnected"] * 4
    assert found["shapes"] == [[2, 64], [2, 64], [2, 100], [2, 100], [10, 100], [100, 64]], (
        "the copies share what was computed"
    )
    assert_right(execute(worker, tmp_path / "brick.onnx"), model)


def test_a_run_ends_when_its_outputs_are_there(mxnet, skeleton_of, tmp_path):
    products = " ".join(f"v{index} = MatMul(v{index - 1}, w0)" for index in range(1, 6))
    model = skeleton_of(
        "(float[1024,1024] x0, float[1024,1024] w0) => (float[1024,1024] y)"
        f"{{v0 = Identity(x0) {products} y = Identity(v5)}}"
    )
    onnx.save(model, tmp_path / "brick.onnx")
    code = """
executable = backend.prepare(network, settings)
(output,) = executable.executor.outputs
place = ctypes.c_void_p()
mx.base.check_call(mx.base._LIB.MXNDArrayGetData(output.handle, ctypes.byref(place)))
executable.run()
seen = np.ctypeslib.as_array(ctypes.cast(place, ctypes.POINTER(ctypes.c_float)), output.shape).copy()
print(json.dumps({"equal": bool(np.array_equal(seen, executable.outputs()[0])), "any": bool(seen.any())}))
"""

    assert inside(code, tmp_path / "brick.onnx") == {"equal": True, "any": True}


@pytest.mark.slow
def test_bricks_are_measured_as_in_a_model(mxnet, cli, here, small_suite):
    done = cli("run", str(small_suite.path), "--backend", "mxnet", "--visits", 10, "--db", "x.db", "--json")

    assert done.code == 0, done.err
    with Store.open("x.db") as store:
        measured = store.measurements(subject=Subject.BRICK)
    assert {one.key for one in measured} == {*small_suite.keys}
    assert {one.conditions.cache for one in measured} == {"64KiB"}
    assert all(one.footprint_bytes is None for one in measured), "alone, in no pack"


def test_bricks_of_a_pass_share_memory_and_compute_what_onnx_says(mxnet, skeleton_of, tmp_path):
    models = {case: skeleton_of(conformance.CASES[case]) for case in sorted(conformance.CORE)}
    models |= {f"{name} in blocks": skeleton_of(graph) for name, graph in IN_BLOCKS.items()}
    for case, model in models.items():
        onnx.save(model, tmp_path / f"{case}.onnx")
    code = """
from pathlib import Path
folder = Path(sys.argv[1]).parent
bricks = []
for path in [*folder.glob("*.onnx"), *folder.glob("*.onnx")]:
    network = synthetic_network(onnx.load(path), seed=3)
    bricks.append((path.stem, backend.prepare_streamed(network, settings)))
found, places = {}, set()
for number, (case, brick) in enumerate([*bricks, *bricks]):
    brick.refresh()
    brick.run()
    found |= {f"{case}@{number}@{index}": array for index, array in enumerate(brick.outputs())}
    place = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(brick.executor.outputs[0].handle, ctypes.byref(place)))
    places.add(place.value)
np.savez(folder / "found.npz", **found)
for _, brick in bricks:
    brick.close()
backend.prepare_streamed(network, settings).run()  # nothing is left to share memory with
print(json.dumps({"bricks": len(bricks), "places": len(places)}))
"""

    reported = inside(code, tmp_path / "gemm.onnx")

    assert reported["bricks"] == 2 * len(models)
    assert reported["places"] < reported["bricks"] / 2
    with np.load(tmp_path / "found.npz") as found:
        for case, model in models.items():
            network = synthetic_network(model, seed=3)
            expected = ReferenceEvaluator(network.self_contained()).run(None, dict(network.feeds))
            names = [name for name in found if name.startswith(f"{case}@")]
            assert len(names) == 4 * len(expected)
            for name in names:
                conformance.assert_close([found[name]], [np.asarray(expected[int(name.split("@")[2])])])


def test_an_index_out_of_range_is_an_error_that_names_the_operator(worker, source):
    model = source("(float[5,3] x) => (float[1,3] y) <int64[1] c = {7}> {y = Gather(x, c)}")

    with pytest.raises(BackendError, match="Gather: index 7 is out of range for 5 elements") as caught:
        execute(worker, model.path, synthetic=False)

    assert "\n" not in str(caught.value)


def test_too_much_memory_is_reported_and_survived(mxnet, skeleton_of, tmp_path):
    huge = skeleton_of("(float[1,2048] x0, float[2048,200000] w0) => (float[1,200000] v0) {v0 = MatMul(x0, w0)}")
    onnx.save(huge, tmp_path / "huge.onnx")
    good = skeleton_of(conformance.CASES["gemm"])
    onnx.save(good, tmp_path / "good.onnx")

    with start("mxnet", memory_bytes=1 << 30) as worker:
        with pytest.raises(Exception, match="memory"):
            execute(worker, tmp_path / "huge.onnx")
        assert_right(execute(worker, tmp_path / "good.onnx"), good)


PROGRAM = """
import warnings; warnings.simplefilter("ignore")
import numpy as np, mxnet as mx
from dlbricks.generator.backends.mxnet.backend import in_blocks, read_in_blocks, rewrite
mx.util.set_np_shape(True)

x, w, z = (mx.sym.var(name) for name in "xwz")
convolution = mx.sym.Convolution(x, w, num_filter=16, kernel=(1, 1), no_bias=True)
assert read_in_blocks(convolution) == {"x", "w"}, read_in_blocks(convolution)
assert read_in_blocks(mx.sym.broadcast_mul(z, convolution)) == {"x", "w"}
assert read_in_blocks(mx.sym.transpose(z, axes=(0, 2, 3, 1))) == set()

values = np.random.default_rng(0).standard_normal((1, 24, 5, 7), dtype=np.float32)
laid_out, target = in_blocks(values), in_blocks(np.zeros_like(values))
assert (laid_out.asnumpy() == values).all()
rewrite(laid_out, target)
assert (target.asnumpy() == values).all()

assert in_blocks(values[:, :3]) is None
assert in_blocks(values[0]) is None
assert in_blocks(values.astype(np.float64)) is None
"""


def test_what_is_read_in_blocks_is_computed_as_before(mxnet):
    command = [*MxnetBackend().command()[:-2], "-c", PROGRAM]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
