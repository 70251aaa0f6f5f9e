"""Rewrites of real models: found where the pattern is, not where it only looks so; outputs are kept."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.generator.rewriting.rewrite import REWRITES, matches, rewritten
from dlbricks.models import ModelSource, find_models
from onnx import numpy_helper

Array = npt.NDArray[np.generic]

GELU = (
    "(float[2,64] x) => (float[2,64] y)"
    "<float k = {1.4142135}, float one = {1.0}, float half = {0.5}>"
    "{h = MatMul(x, w) a = Div(h, k) b = Erf(a) c = Add(b, one) d = Mul(h, c) e = Mul(d, half) y = Relu(e)}"
)
TANH = (
    "(float[2,64] x) => (float[2,64] y)"
    "<float k = {0.7978846}, float p = {0.044715}, float one = {1.0}, float half = {0.5}, float three = {3.0}>"
    "{h = MatMul(x, w) c = Pow(h, three) d = Mul(p, c) e = Add(h, d) f = Mul(e, k) g = Tanh(f) i = Add(one, g)"
    " j = Mul(half, h) l = Mul(j, i) y = Relu(l)}"
)
NORM = (
    "(float[2,8,64] x) => (float[2,8,64] y)"
    "<float two = {2.0}, float e = {1e-5}>"
    "{h = MatMul(x, w) m = ReduceMean<axes=[-1]>(h) d = Sub(h, m) p = Pow(d, two) v = ReduceMean<axes=[-1]>(p)"
    " s = Add(v, e) r = Sqrt(s) q = Div(d, r) t = Mul(q, g) y = Add(t, b)}"
)
MOMENTS = NORM.replace(  # mean of squares less square of the mean
    "d = Sub(h, m) p = Pow(d, two) v = ReduceMean<axes=[-1]>(p)",
    "p = Mul(h, h) o = ReduceMean<axes=[-1]>(p) n = Mul(m, m) v = Sub(o, n) d = Sub(h, m)",
)
FACTORED = (  # as TensorFlow's exporter writes it: scale and shift are multiplied in before the data
    "(float[2,8,64] x) => (float[2,8,64] y) <float e = {1e-5}>"
    "{h = MatMul(x, w) m = ReduceMean<axes=[2]>(h) d = Sub(h, m) p = Mul(d, d) v = ReduceMean<axes=[2]>(p)"
    " s = Add(e, v) r = Sqrt(s) i = Reciprocal(r) f = Mul(i, g) a = Mul(h, f) n = Mul(m, f) c = Sub(b, n)"
    " y = Add(a, c)}"
)
SUMMED = (  # sums in place of means, without their axis, a power in place of a root
    "(float[2,8,64] x) => (float[2,8,64] y)"
    "<float e = {1e-5}, int64[1] last = {2}, float n = {0.015625}, float k = {-0.5}>"
    "{h = MatMul(x, w) t = ReduceSum<keepdims=0>(h, last) u = Mul(t, n) m = Unsqueeze(u, last) d = Sub(h, m)"
    " q = ReduceSumSquare<axes=[2]>(d) v = Mul(q, n) s = Add(v, e) r = Pow(s, k) y = Mul(d, r)}"
)
ROOT = (
    "(float[2,8,64] x) => (float[2,8,64] y) <float e = {1e-6}, float one = {1.0}>"
    "{h = MatMul(x, w) p = Mul(h, h) v = ReduceMean<axes=[-1]>(p) s = Add(v, e) r = Sqrt(s) i = Div(one, r)"
    " q = Mul(i, h) y = Mul(g, q)}"
)
PLANES = (
    "(float[2,3,8,8] x) => (float[2,3,8,8] y)"
    "<float two = {2.0}, float e = {1e-5}, float[3,1,1] c = {0.5, 1.5, 2.5}, float[1,3,1,1] d = {0.1, 0.2, 0.3}>"
    "{h = Sigmoid(x) m = GlobalAveragePool(h) a = Sub(h, m) p = Pow(a, two) v = ReduceMean<axes=[2,3]>(p)"
    " s = Add(v, e) r = Sqrt(s) q = Div(a, r) t = Mul(c, q) y = Add(t, d)}"
)
SKIPPED = (
    "(float[2,8,64] x) => (float[2,8,64] y)"
    "{h = MatMul(x, w) a = Add(h, x) n = LayerNormalization<axis=-1>(a, g, b) y = Add(n, a)}"
)
UNEVEN = (
    "(float[1,3,8,8] x) => (float[1,5] y) <int64[2] flat = {1, 56}, float[7] s = {1, 2, 3, 4, 5, 6, 7}>"
    "{a = Conv<pads=[1,1,1,1]>(x, f7x3) n = BatchNormalization(a, s, s, s, s) b = Relu(n)"
    " c = Conv<group=7>(b, f7x1) d = Sigmoid(c) e = Concat<axis=1>(d, b) g = Conv<pads=[1,1,1,1]>(e, f14x14)"
    " k = Sigmoid(g) h = Add(g, k) i = MaxPool<kernel_shape=[4,4], strides=[4,4]>(h) j = Reshape(i, flat)"
    " y = Gemm(j, f56x5)}"
)
TRANSPOSES = (
    "(float[1,4,6,8] x) => (float[1,4,6,8] y)"
    "{a = Transpose<perm=[0,2,3,1]>(x) b = Relu(a) c = Transpose<perm=[0,3,1,2]>(b) y = Sigmoid(c)}"
)
CASTS = "(float[4,8] x) => (float[4,8] y) {a = Cast<to=11>(x) b = Cast<to=1>(a) y = Relu(b)}"
NARROW = "(float[4,8] x) => (float[4,8] y) {a = Cast<to=10>(x) b = Cast<to=1>(a) y = Relu(b)}"
ISLAND = (
    "(float[4,8] x) => (float[4,8] y) <double k = {1.5}>"
    "{r = Relu(x) a = Cast<to=11>(r) b = Mul(a, k) c = Exp(b) d = Cast<to=1>(c) y = Neg(d)}"
)
HEADS = (  # the order of axes, a move of heads through a shape that joins what was permuted, and back
    "(float[1,6,8] x) => (float[1,6,8] y)"
    "<int64[4] split = {1, 6, 2, 4}, int64[3] flat = {1, 2, 24}, int64[4] again = {1, 2, 6, 4},"
    " int64[3] all = {1, 6, 8}, float k = {0.5}>"
    "{r = Relu(x) a = Reshape(r, split) b = Transpose<perm=[0,2,1,3]>(a) c = Reshape(b, flat) d = Mul(c, k)"
    " e = Reshape(d, again) f = Transpose<perm=[0,2,1,3]>(e) g = Reshape(f, all) y = Tanh(g)}"
)
EINSUM = (
    "(float[1,4,6,8] x) => (float[1,4,6,8] y)"
    '{a = Einsum<equation="abcd->acdb">(x) b = Relu(a) c = Transpose<perm=[0,3,1,2]>(b) y = Sigmoid(c)}'
)
DEPTH = (
    "(float[1,8,4,6] x) => (float[1,8,4,6] y)"
    "{r = Relu(x) a = DepthToSpace<blocksize=2>(r) b = Sigmoid(a) c = SpaceToDepth<blocksize=2>(b) y = Tanh(c)}"
)
COLUMNS = DEPTH.replace("<blocksize=2>(r)", '<blocksize=2, mode="CRD">(r)')
DETOUR = (
    "(float[4,8] x) => (float[8,4] y) <int64[1] flat = {32}, int64[2] s = {8, 4}>"
    "{a = Cast<to=11>(x) b = Reshape(a, flat) c = Cast<to=1>(b) d = Reshape(c, s) y = Relu(d)}"
)
TWICE = (
    "(float[4,64] x) => (float[4,64] y)"
    "{a = MatMul(x, w) b = Relu(a) c = MatMul(x, v) d = Relu(c) e = Tanh(d) y = Add(b, e)}"
)
ONE_HOT = (
    "(int64[2,5] x) => (float[2,5,64] y) <int64 depth = {64}, float[2] values = {0, 1}>"
    "{a = OneHot(x, depth, values) b = MatMul(a, w) y = Relu(b)}"
)
COMPARED = (  # with more indices than a graph holds beside its structure
    "(int64[2,5,1] x) => (float[2,5,8] y) {a = Equal(x, range) b = Cast<to=1>(a) c = MatMul(b, table) y = Relu(c)}"
)
ROWS = "(float[64,3] x) => (float[64,3] y) {a = MatMul(p, x) y = Relu(a)}"
AXIS = "(float[2,5,64] x) => (float[2,5,64] y) {a = MatMul(x, p) y = Relu(a)}"
CHANNELS = "(float[1,64,3,3] x) => (float[1,64,3,3] y) {a = Conv(x, q) y = Relu(a)}"
STORED = (
    "(float[1,4,6,6] x) => (float[1,2,6,6] y) <int8[2,4,1,1] f = {1, 2, 3, 4, 5, 6, 7, 8}, float s = {0.25}>"
    "{a = DequantizeLinear(f, s) n = Neg(a) b = Conv(x, n) y = Relu(b)}"
)
LRN = "(float[1,8,6,6] x) => (float[1,8,6,6] y) {a = LRN<size=5, alpha=0.1, beta=0.75, bias=1.0>(x) y = Relu(a)}"
EXPAND = (
    "(float[4,8,1] x, float[4,8,16] z) => (float[4,8,16] y) <int64[3] s = {4, 8, 16}>"
    "{r = Abs(x) e = Expand(r, s) d = Mul(z, e) y = Relu(d)}"
)
ATTENTION = (
    "(float[2,6,64] x, float[2,1,1,6] m) => (float[2,6,64] y)"
    "<int64[4] s = {0, 0, 4, 16}, int64[3] o = {0, 0, 64}, float k = {4.0}>"
    "{xq = MatMul(x, w) xk = Tanh(xq) xv = Sin(xq)"
    " rq = Reshape(xq, s) q = Transpose<perm=[0,2,1,3]>(rq)"
    " rk = Reshape(xk, s) t = Transpose<perm=[0,2,3,1]>(rk)"
    " rv = Reshape(xv, s) u = Transpose<perm=[0,2,1,3]>(rv)"
    " a = MatMul(q, t) d = Div(a, k) e = Add(d, m) p = Softmax<axis=-1>(e) c = MatMul(p, u)"
    " f = Transpose<perm=[0,2,1,3]>(c) h = Reshape(f, o) y = Relu(h)}"
)
"""As PyTorch's exporter writes it: the mask is the same for all queries."""
SCALED_BEFORE = (
    ATTENTION
    .replace("a = MatMul(q, t) d = Div(a, k) e = Add(d, m)", "n = Mul(q, z) a = MatMul(n, i) e = Add(m, a)")
    .replace("t = Transpose<perm=[0,2,3,1]>(rk)", "g = Transpose<perm=[0,2,1,3]>(rk) t = Transpose<perm=[0,1,3,2]>(g)"
             " i = Mul(z, t)")
    .replace("float k = {4.0}", "float z = {0.3}")
)  # fmt: skip
"""Queries and keys are scaled, keys transposed twice."""
UNMASKED = ATTENTION.replace(", float[2,1,1,6] m", "").replace("e = Add(d, m) ", "").replace("(e)", "(d)")


def write(path: Path, graph: str) -> ModelSource:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> model {graph}')
    generator = np.random.default_rng(0)
    weights = {"w": (64, 64), "g": (64,), "b": (64,)}
    values: dict[str, Array] = {
        name: generator.normal(size=shape).astype(np.float32) for name, shape in weights.items()
    }
    values["v"] = values["w"]
    values["range"], values["table"] = np.arange(500), generator.normal(size=(500, 8)).astype(np.float32)
    values["p"] = np.eye(64, dtype=np.float32)[generator.permutation(64)]
    values["q"] = values["p"][:, :, None, None]
    filters = {"f7x3": (7, 3, 3, 3), "f7x1": (7, 1, 1, 1), "f14x14": (14, 14, 3, 3), "f56x5": (56, 5)}
    values |= {name: generator.normal(size=shape).astype(np.float32) for name, shape in filters.items()}
    read = {name for node in model.graph.node for name in node.input}
    made = {name for node in model.graph.node for name in node.output} | {one.name for one in model.graph.initializer}
    for name in sorted((read & values.keys()) - made):
        model.graph.initializer.append(numpy_helper.from_array(values[name], name))
    onnx.save(model, path)
    (source,) = find_models([path])
    return source


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def outputs(path: Path, seed: int = 1) -> list[Array]:
    opened = session(path)
    generator = np.random.default_rng(seed)
    feeds = {
        one.name: generator.integers(0, 64, one.shape)
        if one.type == "tensor(int64)"
        else generator.normal(size=one.shape).astype(np.float32)
        for one in opened.get_inputs()
    }
    return [np.asarray(found) for found in opened.run(None, feeds)]


SIGNED = (  # a signed value that two operators read, and a signed constant beside one
    "(float[4,2] x) => (float[4,2] y)"
    "<float s = {0.05}, int8 z = {3}, int8 none = {0}, int8[2] k = {-100, 90}>"
    "{q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) b = DequantizeLinear(q, s, z) c = Relu(a)"
    " d = Add(b, c) e = QuantizeLinear(d, s, z) f = DequantizeLinear(e, s, z) g = DequantizeLinear(k, s, none)"
    " i = Mul(f, g) j = QuantizeLinear(i, s, z) y = DequantizeLinear(j, s, z)}"
)
APART = (  # a value that is converted back with another zero point than it was made with
    "(float[4,2] x) => (float[4,2] y) <float s = {0.05}, int8 z = {3}, int8 other = {-7}, int8 third = {0}>"
    "{q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, other) b = DequantizeLinear(q, s, third) y = Mul(a, b)}"
)
CASES = [
    ("unsigned", APART, 1, {"QuantizeLinear", "DequantizeLinear"}, set[str]()),
    ("unsigned", SIGNED, 4, {"QuantizeLinear", "DequantizeLinear"}, set[str]()),
    ("activations", GELU, 1, {"Gelu"}, {"Erf"}),
    ("activations", TANH, 1, {"FastGelu"}, {"Tanh", "Pow"}),
    ("normalisations", NORM, 1, {"LayerNormalization"}, {"ReduceMean", "Sqrt"}),
    ("normalisations", MOMENTS, 1, {"LayerNormalization"}, {"ReduceMean", "Sqrt", "Mul"}),
    ("normalisations", FACTORED, 1, {"LayerNormalization"}, {"ReduceMean", "Sqrt", "Mul", "Add"}),
    ("normalisations", SUMMED, 1, {"LayerNormalization"}, {"ReduceSum", "Pow", "Mul"}),
    ("normalisations", ROOT, 1, {"SimplifiedLayerNormalization"}, {"ReduceMean", "Sqrt", "Mul"}),
    ("normalisations", PLANES, 1, {"InstanceNormalization"}, {"ReduceMean", "GlobalAveragePool", "Mul"}),
    ("sums", SKIPPED, 1, {"Sum", "LayerNormalization", "Add"}, set[str]()),
    ("padding_8", UNEVEN, 1, {"Conv"}, set[str]()),
    ("padding_16", UNEVEN, 1, {"Conv"}, set[str]()),
    ("transposes", TRANSPOSES, 1, {"Relu"}, {"Transpose"}),
    ("casts", CASTS, 1, {"Relu"}, {"Cast"}),
    ("transposes", HEADS, 1, {"Relu", "Mul"}, {"Transpose"}),
    ("transposes", EINSUM, 1, {"Relu"}, {"Transpose", "Einsum"}),
    ("transposes", DEPTH, 1, {"Sigmoid"}, {"DepthToSpace", "SpaceToDepth"}),
    ("casts", DETOUR, 1, {"Reshape"}, {"Cast"}),
    ("roundings", NARROW, 1, {"Relu"}, {"Cast"}),
    ("constants", STORED, 1, {"Conv"}, {"DequantizeLinear", "Neg"}),
    ("expansions", EXPAND, 1, {"Mul"}, {"Expand"}),
    ("islands", ISLAND, 1, {"Exp"}, set[str]()),
    ("duplicates", TWICE, 2, {"Tanh"}, set[str]()),
    ("one_hot", ONE_HOT, 1, {"Gather"}, {"OneHot", "MatMul"}),
    ("one_hot", COMPARED, 1, {"Gather"}, {"Equal", "MatMul"}),
    ("one_hot", ROWS, 1, {"Gather"}, {"MatMul"}),
    ("one_hot", AXIS, 1, {"Gather"}, {"MatMul"}),
    ("one_hot", CHANNELS, 1, {"Gather"}, {"Conv"}),
    ("local_response", LRN, 1, {"Conv"}, {"LRN"}),
    ("attention", ATTENTION, 1, {"MultiHeadAttention", "Expand"}, {"Softmax", "Transpose"}),
    ("attention", SCALED_BEFORE, 1, {"MultiHeadAttention"}, {"Softmax", "Transpose", "Mul"}),
    ("attention", UNMASKED, 1, {"MultiHeadAttention"}, {"Softmax", "Transpose", "Expand"}),
]


@pytest.mark.parametrize(("name", "graph", "count", "there", "gone"), CASES)
def test_a_rewrite_keeps_what_the_model_computes(
    tmp_path: Path, name: str, graph: str, count: int, there: set[str], gone: set[str]
) -> None:
    source = write(tmp_path / "model.onnx", graph)

    changed = rewritten(source, name, tmp_path / "new" / "model.onnx")

    assert changed is not None
    assert changed.count == count
    operators = {node.op_type for node in onnx.load(changed.path).graph.node}
    assert there <= operators
    assert not gone & operators
    assert source.path is not None
    for mine, theirs in zip(outputs(changed.path), outputs(source.path), strict=True):
        scale = float(np.abs(theirs).max())
        assert float(np.abs(mine - theirs).max()) <= changed.tolerance * scale


@pytest.mark.parametrize("epsilon", ["1e-12", "1e-5", "1e-3"])
@pytest.mark.parametrize("graph", [NORM, MOMENTS, FACTORED, SUMMED, ROOT, PLANES])
def test_equal_elements_are_normalised_as_before(tmp_path: Path, graph: str, epsilon: str) -> None:
    written = re.sub(r"float e = {[^}]*}", f"float e = {{{epsilon}}}", graph).replace("MatMul(x, w)", "Identity(x)")
    source = write(tmp_path / "model.onnx", written.replace("Sigmoid(x)", "Identity(x)"))
    assert source.path is not None
    (shape,) = (one.shape for one in session(source.path).get_inputs())
    image = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    image[0] = 0.0
    image[1, 0] = 0.5

    changed = rewritten(source, "normalisations", tmp_path / "new.onnx")

    assert changed is not None
    made = next(node for node in onnx.load(changed.path).graph.node if "Normalization" in node.op_type)
    assert {one.name: one.f for one in made.attribute}["epsilon"] == np.float32(epsilon)
    mine, theirs = (session(path).run(None, {"x": image})[0] for path in (changed.path, source.path))
    rounding = 0.5 / np.sqrt(float(epsilon)) * 2**-23  # where an element is divided before the mean is taken off
    assert np.isfinite(theirs).all()
    assert float(np.abs(mine - theirs).max()) <= rounding + changed.tolerance * float(np.abs(theirs).max())


@pytest.mark.parametrize(
    "change", [("s = Add(v, e) r = Sqrt(s)", "r = Sqrt(v)"), ("{1e-5}", "{0.0}"), ("s = Add(v, e)", "s = Max(v, e)")]
)
def test_a_normalisation_without_an_epsilon_stays(tmp_path: Path, change: tuple[str, str]) -> None:
    source = write(tmp_path / "model.onnx", NORM.replace(*change))

    assert not matches("normalisations", build_graph(source.skeleton()))


@pytest.mark.parametrize("name", REWRITES)
def test_no_rewrite_applies_to_a_model_without_its_pattern(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "model.onnx", "(float[2,64] x) => (float[2,64] y) {a = MatMul(x, w) y = Tanh(a)}")

    assert rewritten(source, name, tmp_path / "new.onnx") is None
    assert not (tmp_path / "new.onnx").exists()


@pytest.mark.parametrize(
    "change",
    [
        ("DequantizeLinear(q, s, third)", "DequantizeLinear(q, s)"),
        ("DequantizeLinear(q, s, third)", "DequantizeLinear(q, s, given)"),
        ("QuantizeLinear(x, s, z)", "QuantizeLinear(x, s, given)"),
    ],
)
def test_a_signed_value_stays_where_a_zero_point_is_not_known(tmp_path: Path, change: tuple[str, str]) -> None:
    source = write(tmp_path / "model.onnx", APART.replace(*change).replace("[4,2] x)", "[4,2] x, int8 given)", 1))

    assert not matches("unsigned", build_graph(source.skeleton()))


def test_numbers_that_are_computed_between_conversions_are_no_rounding_alone(tmp_path: Path) -> None:
    source = write(tmp_path / "model.onnx", NARROW.replace("b = Cast<to=1>(a)", "h = Relu(a) b = Cast<to=1>(h)"))
    integers = write(tmp_path / "integers.onnx", NARROW.replace("to=10", "to=7"))

    assert not matches("roundings", build_graph(source.skeleton()))
    assert not matches("roundings", build_graph(integers.skeleton()))


@pytest.mark.parametrize("graph", [AXIS, CHANNELS, ROWS])
def test_a_product_that_does_more_than_pick_stays(tmp_path: Path, graph: str) -> None:
    source = write(tmp_path / "model.onnx", graph)
    assert source.path is not None
    model = onnx.load(source.path)
    (tensor,) = model.graph.initializer
    array = numpy_helper.to_array(tensor).copy()
    array[0] *= 2
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, source.path)

    assert not matches("one_hot", build_graph(source.skeleton()), source)


@pytest.mark.parametrize(
    "graph",
    [
        COLUMNS,
        HEADS.replace("float k = {0.5}", "float[24] k = {" + ", ".join(str(0.5 + one) for one in range(24)) + "}"),
        HEADS.replace("f = Transpose<perm=[0,2,1,3]>(e)", "f = Transpose<perm=[0,1,3,2]>(e)"),
        EINSUM.replace("acdb", "adcb"),
    ],
)
def test_moves_that_do_not_undo_each_other_stay(tmp_path: Path, graph: str) -> None:
    source = write(tmp_path / "model.onnx", graph)

    assert not matches("transposes", build_graph(source.skeleton()))


def test_what_somebody_else_wants_moved_is_still_moved(tmp_path: Path) -> None:
    shared = HEADS.replace("(float[1,6,8] y)", "(float[1,6,8] y, float[1,2,24] z)").replace(
        "d = Mul", "z = Neg(c) d = Mul"
    )
    source = write(tmp_path / "model.onnx", shared)

    changed = rewritten(source, "transposes", tmp_path / "new.onnx")

    assert changed is not None
    assert [node.op_type for node in onnx.load(changed.path).graph.node].count("Transpose") == 1
    for mine, theirs in zip(outputs(changed.path), outputs(source.path), strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize(
    "change", [("0.5", "0.51"), ("{1.4142135}", "{1.3}"), ("Add(b, one)", "Sub(b, one)"), ("Mul(h, c)", "Mul(x, c)")]
)
def test_what_only_looks_like_a_gelu_is_none(tmp_path: Path, change: tuple[str, str]) -> None:
    source = write(tmp_path / "model.onnx", GELU.replace(*change))

    assert not matches("activations", build_graph(source.skeleton()))


@pytest.mark.parametrize(
    "body", ["d = Mul(c, h) e = Mul(half, d)", "d = Mul(h, half) e = Mul(d, c)", "d = Mul(half, c) e = Mul(d, h)"]
)
def test_a_gelu_is_found_in_any_order(tmp_path: Path, body: str) -> None:
    source = write(tmp_path / "model.onnx", GELU.replace("d = Mul(h, c) e = Mul(d, half)", body))

    (match,) = matches("activations", build_graph(source.skeleton()))

    assert match.form == "gelu"
    assert match.value == "e"
    assert match.reads == ("h",)


def test_what_breaks_a_fusion_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "model.onnx", GELU.replace("=> (float[2,64] y)", "=> (float[2,64] y, float[2,64] c)"))

    (match,) = matches("activations", build_graph(source.skeleton()))

    assert match.broken_by == ("output c",)


@pytest.mark.parametrize(
    "change",
    [
        ("Transpose<perm=[0,2,3,1]>(rk)", "Transpose<perm=[0,2,1,3]>(rk)"),  # keys that are not transposed
        ("axis=-1", "axis=1"),
        ("float[2,6,64] y)", "float[2,6,64] y, float[2,4,6,6] p)"),
        ("float k = {4.0}", "float[1,4,1,1] k = {1, 2, 3, 4}"),
        ("e = Add(d, m)", "e = Sub(d, m)"),
    ],
)
def test_what_only_looks_like_an_attention_is_none(tmp_path: Path, change: tuple[str, str]) -> None:
    graph = ATTENTION.replace(",6,64]", ",16,64]").replace(",1,1,6]", ",1,1,16]").replace("4,6,6]", "4,16,16]")
    assert matches("attention", build_graph(write(tmp_path / "true.onnx", graph).skeleton()))
    change = (change[0].replace(",6,64]", ",16,64]"), change[1].replace(",6,", ",16,").replace(",6]", ",16]"))
    assert change[0] in graph
    source = write(tmp_path / "model.onnx", graph.replace(*change))

    assert not matches("attention", build_graph(source.skeleton()))


def test_equal_weights_under_two_names_are_one(tmp_path: Path) -> None:
    source = write(tmp_path / "model.onnx", TWICE)
    graph = build_graph(source.skeleton())

    assert not matches("duplicates", graph)
    assert [match.twin for match in matches("duplicates", graph, source)] == ["a", "b"]


def test_transpositions_stay_where_somebody_reads_what_lies_between(tmp_path: Path) -> None:
    source = write(
        tmp_path / "model.onnx", TRANSPOSES.replace("(float[1,4,6,8] y)", "(float[1,4,6,8] y, float[1,6,8,4] b)")
    )

    assert not matches("transposes", build_graph(source.skeleton()))


def test_a_conversion_that_loses_digits_stays(tmp_path: Path) -> None:
    source = write(tmp_path / "model.onnx", NARROW)

    assert not matches("casts", build_graph(source.skeleton()))


NEEDED = (
    "(float[4,8,1] x) => (float[4,8,16] y) <int64[3] s = {4, 8, 16}>"
    "{r = Abs(x) e = Expand(r, s) d = Mul(e, e) y = Relu(d)}"
)


def test_an_expansion_that_nothing_else_makes_up_for_stays(tmp_path: Path) -> None:
    source = write(tmp_path / "model.onnx", NEEDED)

    assert not matches("expansions", build_graph(source.skeleton()))


def test_conversions_alone_are_no_part_in_float64(tmp_path: Path) -> None:
    source = write(tmp_path / "model.onnx", DETOUR)

    assert not matches("islands", build_graph(source.skeleton()))
