"""Each engine recognises what it is for, and every rewrite keeps the values; no latency is asserted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.generator.rewriting.checking import computes_the_same, loaded
from dlbricks.generator.rewriting.engines import ENGINES
from dlbricks.generator.rewriting.form import Rewrite, RewriteGraph
from dlbricks.generator.rewriting.generic import generic_of
from dlbricks.generator.rewriting.recurrence import looped
from dlbricks.generator.rewriting.repetition import loops
from dlbricks.generator.rewriting.values import Values, apart, session
from onnx import numpy_helper


def model_of(graph: str, opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> model {graph}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def feeds_of(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    random, feeds = np.random.default_rng(seed), {}
    for value in model.graph.input:
        shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        made = random.integers(0, 4, shape) if dtype.kind in "iu" else random.standard_normal(shape)
        feeds[value.name] = made.astype(dtype)
    return feeds


def values_of(model: onnx.ModelProto) -> Values:
    return Values(RewriteGraph(model), [feeds_of(model, seed) for seed in range(3)])


def found_by(engine: str, values: Values) -> list[Rewrite]:
    return ENGINES[engine][0](values, time.perf_counter() + 20)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def one_hot(size: int) -> np.ndarray:
    return np.eye(size, dtype=np.float32)[np.random.default_rng(0).permutation(size)]


def blocks(size: int, number: int) -> np.ndarray:
    return random(size, size, 1, 1) * np.kron(np.eye(number), np.ones((size // number,) * 2))[..., None, None].astype(
        "f"
    )


X = "(float[1,8,16,16] x) => (float[1,8,16,16] y)"
ROWS = "(float[32,64] x) => (float[32,64] y)"
GATES = (
    "(float[1,6,8] x) => (float[1,16] y) <int64[4] s = {16, 16, 16, 16}>{"
    "xt = Transpose<perm=[1,0,2]>(x) p = MatMul(xt, w) pb = Add(p, b) "
    + " ".join(
        f"i{t} = Constant<value_int={t}>() p{t} = Gather<axis=0>(pb, i{t}) r{t} = MatMul(h{t}, u)"
        f" g{t} = Add(p{t}, r{t})"
        f" a{t}, f{t}, c{t}, o{t} = Split<axis=1>(g{t}, s) sa{t} = Sigmoid(a{t}) sf{t} = Sigmoid(f{t})"
        f" tc{t} = Tanh(c{t})"
        f" so{t} = Sigmoid(o{t}) k{t} = Mul(sf{t}, m{t}) l{t} = Mul(sa{t}, tc{t}) m{t + 1} = Add(k{t}, l{t})"
        f" tm{t} = Tanh(m{t + 1}) h{t + 1} = Mul(so{t}, tm{t})"
        for t in range(6)
    )
    + " y = Relu(h6)}"
)

CASES = {
    "a GELU of any order": (
        "pointwise", "Gelu", ROWS + "<float k = {0.70710677}, float one = {1}, float half = {0.5}>"
        "{a = Mul(x, k) b = Erf(a) c = Add(b, one) d = Mul(half, c) y = Mul(d, x)}", {},
    ),
    "a hard swish by a clip": (
        "pointwise", "HardSwish", ROWS + "<float three = {3}, float zero = {0}, float six = {6}>"
        "{a = Add(x, three) b = Clip(a, zero, six) c = Mul(x, b) y = Div(c, six)}", {},
    ),
    "a power of three quarters": (
        "pointwise", "Power 0.75",
        "(float[256,64] x) => (float[256,64] y) <float p = {0.75}>{a = Abs(x) y = Pow(a, p)}", {},
    ),
    "a factor and a summand for each channel": (
        "affine", "affine by channel", X + "{a = Sub(x, m) b = Div(a, s) c = Mul(b, g) y = Add(c, m)}",
        {"m": random(8, 1, 1), "s": abs(random(8, 1, 1)) + 1, "g": random(8, 1, 1, seed=1)},
    ),
    "two convolutions without an activation": (
        "affine", "one convolution",
        X + "{a = Conv<pads=[1,1,1,1]>(x, v) y = Conv(a, w)}", {"v": random(64, 8, 3, 3), "w": random(8, 64, 1, 1)},
    ),
    "an adapter": (
        "affine", "one product", ROWS + "{a = MatMul(x, w) b = MatMul(x, u) c = MatMul(b, v) y = Add(a, c)}",
        {"w": random(64, 64), "u": random(64, 8), "v": random(8, 64)},
    ),
    "moves that cancel": (
        "affine", "nothing", X + '{a = Einsum<equation="abcd->acdb">(x) y = Transpose<perm=[0,3,1,2]>(a)}', {},
    ),
    "a selection after pointwise work": (
        "demand", "only what is needed",
        ("(float[64,64] x) => (float[1,64] y) <int64[1] b = {63}, int64[1] e = {64}, int64[1] a = {0}>"
        "{m = MatMul(x, w) t = Tanh(m) y = Slice(t, b, e, a)}"), {"w": random(64, 64)},
    ),
    "channels that are multiplied by zeros": (
        "demand", "zero weights and channels", X + "{a = Conv<pads=[1,1,1,1]>(x, v) b = Relu(a) y = Conv(b, w)}",
        {"v": random(32, 8, 3, 3), "w": random(8, 32, 1, 1) * (np.arange(32) < 8)[None, :, None, None].astype("f")},
    ),
    "channels behind a gate of zeros": (
        "demand", "zero weights and channels", X + "{a = Conv(x, v) b = Relu(a) c = Mul(b, g) y = Conv(c, w)}",
        {"v": random(32, 8, 1, 1), "w": random(8, 32, 1, 1), "g": (np.arange(32) % 3 > 1)[:, None, None].astype("f")},
    ),
    "a batch of copies": (
        "demand", "equal slices computed once",
        ("(float[1,8,16,16] x) => (float[1,8] y) <int64[4] n = {3, 1, 1, 1}>"
        "{t = Tile(x, n) c = Conv(t, w) r = Relu(c) g = ReduceMean<axes=[2, 3], keepdims=0>(r)"
        " y = ReduceMean<axes=[0]>(g)}"), {"w": random(8, 8, 3, 3)},
    ),
    "filters that are equal": (
        "demand", "equal slices computed once", X + "{c = Conv(x, w) y = Exp(c)}",
        {"w": np.repeat(random(4, 8, 1, 1), 2, 0)},
    ),
    "tables that are expanded to every head": (
        "demand", "equal slices computed once",
        ("(float[1,4,32,16] x, float[32,16] a) => (float[1,4,32,16] y) <int64[4] n = {1, 4, 32, 16}>"
        "{e = Expand(a, n) c = Cos(e) y = Mul(x, c)}"), {},
    ),
    "a direction that nobody reads": (
        "demand", "only what is needed",
        ("(float[12,2,8] x) => (float[12,1,2,16] y) <int64[1] b = {1}, int64[1] e = {2}, int64[1] a = {1}>"
        "{h, l, c = LSTM<hidden_size=16, direction=\"bidirectional\">(x, w, u) y = Slice(h, b, e, a)}"),
        {"w": random(2, 64, 8), "u": random(2, 64, 16, seed=1)},
    ),
    "linear attention in the wrong order": (
        "products", "products in a cheaper order",
        ("(float[2,96,8] q, float[2,96,8] k, float[2,96,8] v) => (float[2,96,8] y) <float s = {0.1}>"
        "{t = Transpose<perm=[0,2,1]>(k) a = MatMul(q, t) b = Mul(a, s) y = MatMul(b, v)}"), {},
    ),
    "distances of pairs": (
        "products", "sum of differences as products",
        ("(float[48,16] x) => (float[48,64] y) <int64[1] a = {1}, float two = {2}>"
        "{e = Unsqueeze(x, a) d = Sub(e, c) p = Pow(d, two) y = ReduceSum<keepdims=0>(p, l)}"),
        {"c": random(1, 64, 16), "l": np.array([2])},
    ),
    "a transposed convolution by zeros in between": (
        "affine", "convolution by phases",
        ("(float[1,8,12,12] x) => (float[1,4,24,24] y) <int64[6] r = {1, 8, 12, 1, 12, 1}, int64[4] s = {1, 8, 24, 24},"
        " int64[12] p = {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1}>"
        "{a = Reshape(x, r) b = Pad(a, p) c = Reshape(b, s) y = Conv<pads=[1,1,1,1]>(c, w)}"),
        {"w": random(4, 8, 3, 3)},
    ),
    "a dilation by space to batch": (
        "affine", "one dilated convolution",
        ("(float[1,8,12,12] x) => (float[1,8,12,12] y) <int64[8] p = {0, 0, 2, 2, 0, 0, 2, 2},"
        " int64[6] r = {1, 8, 8, 2, 8, 2}, int64[4] s = {4, 8, 8, 8}, int64[6] t = {2, 2, 1, 8, 6, 6},"
        " int64[4] u = {1, 8, 12, 12}>{a = Pad(x, p) b = Reshape(a, r) c = Transpose<perm=[3,5,0,1,2,4]>(b)"
        " d = Reshape(c, s) e = Conv(d, w) f = Reshape(e, t) g = Transpose<perm=[2,3,4,0,5,1]>(f) y = Reshape(g, u)}"),
        {"w": random(8, 8, 3, 3)},
    ),
    "a depthwise kernel of rank one": (
        "weights", "separable kernel", X + "{y = Conv<pads=[4,4,4,4], group=8>(x, w)}",
        {"w": (random(8, 1, 9, 1) * random(8, 1, 1, 9, seed=1))},
    ),
    "a dense kernel of a low rank": (
        "weights", "separable kernel", X + "{y = Conv<pads=[1,1,1,1]>(x, w)}",
        {"w": np.einsum("or,ri,rhw->oihw", random(8, 2), random(2, 8), random(2, 3, 3)).astype("f")},
    ),
    "blocks in any order": (
        "weights", "blocks", ROWS + "{y = MatMul(x, w)}",
        {"w": (random(64, 64) * np.kron(np.eye(4), np.ones((16, 16))))[:, np.random.default_rng(0).permutation(64)]
              .astype("f")},
    ),
    "a running sum by a triangle": (
        "weights", "running sum", ROWS + "{y = MatMul(x, w)}", {"w": np.triu(np.ones((64, 64), "f"))},
    ),
    "overlapping frames before the work on each element": (
        "order", "Gather last",
        "(float[1,64,16] x) => (float[1,16,16,32] y) {g = Gather<axis=1>(x, i) m = MatMul(g, w) y = Tanh(m)}",
        {"i": np.arange(16)[:, None] * 3 + np.arange(16), "w": random(16, 32)},
    ),
    "pairs of copies before a product": (
        "order", "product before copies",
        ("(float[24,16] x) => (float[24,24,32] y) <int64[1] a = {1}, int64[1] o = {0}, int64[3] n = {24, 24, 16}>"
        "{p = Unsqueeze(x, a) q = Unsqueeze(x, o) e = Expand(p, n) f = Expand(q, n) c = Concat<axis=2>(e, f)"
        " m = MatMul(c, w) y = Relu(m)}"), {"w": random(32, 32)},
    ),
    "pooling after a pointwise product": (
        "order", "GlobalAveragePool first",
        "(float[1,64,16,16] x) => (float[1,64,1,1] y) {a = Conv(x, w) y = GlobalAveragePool(a)}",
        {"w": random(64, 64, 1, 1)},
    ),
    "the largest element after a softmax": (
        "order", "ArgMax before monotone functions",
        "(float[32,64] x) => (int64[32] y) {s = Softmax<axis=1>(x) y = ArgMax<axis=1, keepdims=0>(s)}", {},
    ),
    "means of two coordinates": (
        "products", "sums of one value at once", ("(float[1,24,32,32] x) => (float[1,24] y, float[1,24] z)"
        "{p = Mul(x, a) y = ReduceSum<keepdims=0>(p, s) q = Mul(x, b) z = ReduceSum<keepdims=0>(q, s)}"),
        {"a": random(1, 1, 32, 1), "b": random(1, 32), "s": np.array([2, 3])},
    ),
    "moves around a clip": (
        "layout", "moves undone", X + "<float l = {-1}, float h = {1}>"
        "{a = DepthToSpace<blocksize=2>(x) b = Clip(a, l, h) y = SpaceToDepth<blocksize=2>(b)}", {},
    ),
    "a large maximum": (
        "order", "pool by rows and columns",
        X + "{y = MaxPool<kernel_shape=[9,9], pads=[4,4,4,4]>(x)}", {},
    ),
    "an average of an opset with a slow kernel": (
        "order", "average as a convolution",
        "(float[1,8,16,16] x) => (float[1,8,14,14] y) {y = AveragePool<kernel_shape=[3,3]>(x)}",
        {"opset": 20},
    ),
    "equal products of two names": (
        "equality", "computed twice", ROWS + "{a = MatMul(x, v) b = MatMul(x, w) c = Tanh(b) y = Add(a, c)}",
        {"v": random(64, 64), "w": random(64, 64)},
    ),
    "a filter in bytes": (
        "constants", "computed once",
        X + "<float s = {0.1}>{f = DequantizeLinear(w, s) y = Conv<pads=[1,1,1,1]>(x, f)}",
        {"w": np.rint(10 * random(8, 8, 3, 3)).astype(np.int8)},
    ),
    "a permutation as a product": ("weights", "selection", ROWS + "{y = MatMul(x, w)}", {"w": one_hot(64)}),
    "blocks along the diagonal": ("weights", "grouped convolution", X + "{y = Conv(x, w)}", {"w": blocks(8, 4)}),
    "a matrix of rank four": (
        "weights", "low rank", ROWS + "{y = MatMul(x, w)}", {"w": random(64, 4) @ random(4, 64)},
    ),
    "rows picked by a product": (
        "weights", "lookup", ("(int64[4,6] i) => (float[4,6,32] y) <int64 d = {64}, float[2] v = {0, 1}>"
        "{h = OneHot(i, d, v) y = MatMul(h, w)}"), {"w": random(64, 32)},
    ),
    "a part in float64": (
        "precision", "float64 in float32", ROWS + "{a = Cast<to=11>(x) b = Sin(a) c = Cast<to=1>(b) y = Relu(c)}", {},
    ),
    "a layer normalisation by moments": (
        "normalisations", "LayerNormalization", ROWS + "<float k = {1e-5}>"
        "{a = ReduceMean<axes=[-1]>(x) s = Mul(x, x) b = ReduceMean<axes=[-1]>(s) c = Mul(a, a) v = Sub(b, c)"
        " e = Add(v, k) r = Sqrt(e) d = Sub(x, a) y = Div(d, r)}", {},
    ),
    "a softmax by sums": (
        "normalisations", "Softmax", ROWS + "{m = ReduceMax<axes=[-1]>(x) d = Sub(x, m) e = Exp(d)"
        " s = ReduceSum(e, a) y = Div(e, s)}", {"a": np.array([-1])},
    ),
    "local response": (
        "normalisations", "local response", X + "{y = LRN<size=5, alpha=0.1, beta=0.75, bias=1.0>(x)}", {},
    ),
    "an addition before a layer normalisation": (
        "normalisations", "addition kept apart",
        ROWS + "{a = Tanh(x) s = Add(a, x) y = LayerNormalization<axis=-1>(s, g, b)}",
        {"g": random(64), "b": random(64)},
    ),
    "a product by letters": (
        "products", "Einsum as MatMul", ("(float[2,64,4,64] q, float[2,64,4,64] k) => (float[2,4,64,64] y)"
        '{y = Einsum<equation="bqhd,bkhd->bhqk">(q, k)}'), {},
    ),
    "a product by broadcasting": (
        "products", "broadcast sum as MatMul", ("(float[16,1,32] a, float[1,16,32] b) => (float[16,16] y)"
        "{m = Mul(a, b) y = ReduceSum<keepdims=0>(m, s)}"), {"s": np.array([-1])},
    ),
    "uneven channels": (
        "channels", "multiples of 16", X + "{a = Conv(x, v) b = Relu(a) y = Conv(b, w)}",
        {"v": random(15, 8, 3, 3)[:, :, :1, :1], "w": random(8, 15, 1, 1)},
    ),
    "products of one input": (
        "repetition", "products of one input", ("(float[32,64] x) => (float[32,64] y, float[32,16] z)"
        "{y = MatMul(x, v) z = MatMul(x, w)}"), {"v": random(64, 64), "w": random(64, 16)},
    ),
    "two towers with the same weights": (
        "towers", "one batch",
        (
            "(float[1,8,64] x, float[1,8,64] y) => (float[1,8,64] z)"
            "{a = MatMul(x, w) b = Tanh(a) c = MatMul(y, w) d = Tanh(c) z = Sub(b, d)}"
        ),
        {"w": random(64, 64)},
    ),
    "an unrolled cell": (
        "recurrence", "LSTM", GATES,
        {"w": random(8, 64) / 4, "u": random(16, 64) / 4, "b": random(64) / 4,
         "h0": np.zeros((1, 16), np.float32), "m0": np.zeros((1, 16), np.float32)},
    ),
    "a doubled batch": (
        "order", "Concat last", ("(float[1,8,32,32] x, float[2,8,32,32] z) => (float[2,8,32,32] y)"
        "{d = Concat<axis=0>(x, x) c = Conv<pads=[1,1,1,1]>(d, w) r = Relu(c) y = Mul(r, z)}"),
        {"w": random(8, 8, 3, 3)},
    ),
    "columns that an input chooses": (
        "order", "rows chosen first", ("(float[32,64] x, int64[6] k) => (float[32,6] y)"
        "{m = MatMul(x, w) b = Add(m, c) y = Gather<axis=1>(b, k)}"), {"w": random(64, 512), "c": random(512)},
    ),
    "three masks": (
        "affine", "affine by channel", ("(float[4,64,64] x) => (float[4,64,64] y)"
        "{a = Add(x, p) b = Add(a, q) y = Add(b, r)}"),
        {"p": random(4, 64, 64), "q": random(64, 64), "r": random(1, 64, 64)},
    ),
    "a constant product by broadcasting": (
        "products", "broadcast sum as MatMul", ("(float[512,1,8] x) => (float[512,160] y)"
        "{t = Transpose<perm=[0,2,1]>(x) m = Mul(t, w) y = ReduceSum<keepdims=0>(m, s)}"),
        {"w": random(512, 8, 160), "s": np.array([1])},
    ),
    "the same layers on parts of a value": (
        "towers", "one batch", ("(float[4,64] x) => (float[4,64] y)"
        "{a, b, c, d = Split<axis=0>(x) "
        + " ".join(f"m{n} = MatMul({n}, w) r{n} = Relu(m{n}) o{n} = MatMul(r{n}, v)" for n in "abcd")
        + " y = Concat<axis=0>(oa, ob, oc, od)}"), {"w": random(64, 256), "v": random(256, 64)},
    ),
    "layers on rows of a table": (
        "order", "layers applied to the table", ("(int64[2,64] x) => (float[2,64,48] y)"
        "{e = Gather<axis=0>(t, x) m = MatMul(e, w) b = Add(m, c) y = Relu(b)}"),
        {"t": random(9, 32), "w": random(32, 48), "c": random(48)},
    ),
    "a leaky ramp by boolean indexing": (
        "order", "all elements, and a Where", (X + "<float z = {0}, float k = {0.2}>"
        "{n = Less(x, z) i = NonZero(n) t = Transpose(i) g = GatherND(x, t) m = Mul(g, k) y = ScatterND(x, t, m)}"), {},
    ),
    "a slice written element by element": (
        "order", "slice written by Concat", ("(float[1,6,16,16] x, float[1,6,8,16] z) => (float[1,6,16,16] y)"
        "{s = ScatterND(x, i, z) y = Relu(s)}"),
        {"i": np.stack(np.meshgrid([0], range(6), range(4, 12), range(16), indexing="ij"), -1).astype(np.int64)},
    ),
    "an even power": ("pointwise", "Power 4", X + "<float p = {4}>{c = Abs(x) y = Pow(c, p)}", {}),
    "noise without weight": (
        "constants", "zeros and ones left out",
        X + "<float z = {0}>{e = Exp(x) n = Mul(e, z) s = Add(x, n) y = Tanh(s)}", {},
    ),
    "all pairs of rows": (
        "products", "pairs as the square of a sum", ("(float[32,12,16] x) => (float[32,16] y)"
        "{a = Gather<axis=1>(x, i) b = Gather<axis=1>(x, j) m = Mul(a, b) y = ReduceSum<keepdims=0>(m, s)}"),
        {**dict(zip("ij", np.triu_indices(12, 1), strict=True)), "s": np.array([1])},
    ),
    "products of all columns": (
        "products", "products in a cheaper order", ("(float[128,32] x) => (float[128,4] y)"
        "{a = Gather<axis=1>(x, i) b = Gather<axis=1>(x, j) m = Mul(a, b) y = MatMul(m, w)}"),
        {**dict(zip("ij", np.triu_indices(32), strict=True)), "w": random(528, 4)},
    ),
    "keys of one query in heads": (
        "products", "products in a cheaper order", ("(float[1,256,64] x, float[1,4,1,16] q) => (float[1,4,1,256] y)"
        "{k = MatMul(x, w) r = Reshape(k, s) t = Transpose<perm=[0,2,3,1]>(r) y = MatMul(q, t)}"),
        {"w": random(64, 64), "s": np.array([1, 256, 4, 16])},
    ),
    "convolutions mixed by numbers": (
        "products", "weights mixed first", ("(float[1,16,24,24] x, float[1,3] g) => (float[1,16,24,24] y)"
        "<int64[4] one = {1, 1, 1, 1}> {p, q, r = Split<axis=1>(g) "
        + " ".join(f"g{n} = Reshape({n}, one) c{n} = Conv<pads=[1,1,1,1]>(x, w{n})"
                   f" m{n} = Mul(c{n}, g{n})" for n in "pqr")
        + " s = Add(mp, mq) y = Add(s, mr)}"),
        {f"w{n}": random(16, 16, 3, 3, seed=place) for place, n in enumerate("pqr")},
    ),
    "rows that the best scores choose": (
        "order", "rows chosen first", ("(float[400,32] x, float[400] c) => (float[8,4] y) <int64[1] k = {8}>"
        "{r = Reshape(x, u) f = Softmax<axis=2>(r) m = MatMul(f, w) e = Reshape(m, v)"
        " a, b = Split<axis=1>(e) d = Sub(b, a) o = Concat<axis=1>(a, d) v0, i = TopK<axis=0>(c, k)"
        " y = Gather<axis=0>(o, i)}"),
        {"w": random(8, 1), "u": np.array([400, 4, 8]), "v": np.array([400, 4])},
    ),
    "rows chosen element by element": (
        "order", "rows chosen first", ("(float[1,900,32] x, int64[1,8] i) => (float[1,8,64] y)"
        "{m = MatMul(x, w) t = Tanh(m) u = Unsqueeze(i, a) e = Expand(u, s) y = GatherElements<axis=1>(t, e)}"),
        {"w": random(32, 64), "a": np.array([2]), "s": np.array([1, 8, 64])},
    ),
    "the first of a sorted value": (
        "order", "fewer elements sorted", ("(float[8,512] x) => (float[8,4] y) <int64[1] k = {512}, int64[1] b = {0},"
        "int64[1] e = {4}, int64[1] a = {1}>{v, i = TopK(x, k) y = Slice(v, b, e, a)}"), {},
    ),
    "constant channels before a convolution": (
        "order", "product before copies", ("(float[2,8,24,24] x) => (float[2,8,24,24] y)"
        "{a = Concat<axis=1>(x, p) y = Conv<pads=[1,1,1,1]>(a, w)}"),
        {"p": random(2, 8, 24, 24)[:1].repeat(2, 0), "w": random(8, 16, 3, 3)},
    ),
    "the last step of two directions": (
        "demand", "only what is needed", ("(float[32,2,8] x) => (float[1,2,2,8] y) <int64[1] b = {31}>"
        "{h, l, c = LSTM<direction=\"bidirectional\", hidden_size=8>(x, w, r, z) y = Gather<axis=0>(h, b)}"),
        {"w": random(2, 32, 8), "r": random(2, 32, 8), "z": random(2, 64)},
    ),
    "pairs of all vectors, one by one": (
        "products", "pairs at once", ("(float[64,9,16] x) => (float[64,16] y)"
        "{f0, f1, f2, f3, f4, f5, f6, f7, f8 = Split<axis=1>(x) "
        + " ".join(f"p{i}{j} = Mul(f{i}, f{j}) r{i}{j} = Squeeze(p{i}{j}, a)" for i in range(9) for j in range(i))
        + " y = Sum(" + ", ".join(f"r{i}{j}" for i in range(9) for j in range(i)) + ")}"), {"a": np.array([1])},
    ),
    "scores of all pairs, one by one": (
        "products", "pairs at once", ("(float[64,6,16] x) => (float[64,15] y)"
        "{f0, f1, f2, f3, f4, f5 = Split<axis=1>(x) "
        + " ".join(f"p{i}{j} = Mul(f{i}, f{j}) r{i}{j} = ReduceSum<keepdims=0>(p{i}{j}, a)"
                   for i in range(6) for j in range(i))
        + " y = Concat<axis=1>(" + ", ".join(f"r{i}{j}" for i in range(6) for j in range(i)) + ")}"),
        {"a": np.array([2])},
    ),
    "weights that a style scales": (
        "products", "channels scaled in place of weights", (
            "(float[1,16,24,24] x, float[1,16] s, float[1,16] d) => (float[1,16,24,24] y)"
            "{r = Reshape(s, m) t = Reshape(d, n) p = Mul(w, r) q = Div(p, t) y = Conv<pads=[1,1,1,1]>(x, q)}"),
        {"w": random(16, 16, 3, 3), "m": np.array([1, 16, 1, 1]), "n": np.array([16, 1, 1, 1])},
    ),
    "weights of each sample as groups": (
        "products", "channels scaled in place of weights", (
            "(float[2,16,24,24] x, float[2,16] s) => (float[2,8,24,24] y)"
            "{r = Reshape(s, m) p = Mul(w, r) q = Reshape(p, n) u = Reshape(x, i)"
            " c = Conv<group=2, pads=[1,1,1,1]>(u, q) y = Reshape(c, o)}"),
        {"w": random(1, 8, 16, 3, 3), "m": np.array([2, 1, 16, 1, 1]), "n": np.array([16, 16, 3, 3]),
         "i": np.array([1, 32, 24, 24]), "o": np.array([2, 8, 24, 24])},
    ),
    "a computed diagonal matrix": (
        "weights", "diagonal matrix as factors",
        "(float[64,64] a, float[64,1] d) => (float[64,64] y) {m = Mul(d, e) y = MatMul(m, a)}",
        {"e": np.eye(64, dtype=np.float32)},
    ),
    "one-hot channels before a convolution": (
        "weights", "lookup", ("(int64[1,400] x) => (float[1,32,200] y) <int64 n = {96}, float[2] v = {0, 1}>"
        "{h = OneHot<axis=1>(x, n, v) y = Conv<pads=[2,2], strides=[2]>(h, w, c)}"),
        {"w": random(32, 96, 5), "c": random(32)},
    ),
    "flips around layers": (
        "order", "no other order needed", (
            "(float[1,8,200] x) => (float[1,8,200] y) <int64[1] b = {-1}, int64[1] e = {-9999}, int64[1] a = {2}>"
            "{f = Slice(x, b, e, a, b) c = Conv<pads=[4,0], dilations=[2]>(f, w, k) r = Relu(c)"
            " y = Slice(r, b, e, a, b)}"), {"w": random(8, 8, 3), "k": random(8)},
    ),
    "an order of columns before weights": (
        "order", "no other order needed",
        ROWS + "{m = MatMul(x, w) r = Tanh(m) p = Gather<axis=1>(r, i) y = Relu(p)}",
        {"w": random(64, 64), "i": np.random.default_rng(1).permutation(64)},
    ),
    "features of all pairs of nodes": (
        "order", "product before copies", ("(float[24,64] x) => (float[576,8] y)"
        "{u = Unsqueeze(x, one) t = Tile(u, r) i = Reshape(t, s) j = Tile(x, q) d = Sub(j, i)"
        " c = Concat<axis=1>(i, d) m = MatMul(c, w) y = Add(m, k)}"),
        {"one": np.array([1]), "r": np.array([1, 24, 1]), "s": np.array([576, 64]), "q": np.array([24, 1]),
         "w": random(128, 8), "k": random(8)},
    ),
    "neighbours before a convolution of points": (
        "order", "product before copies", ("(float[64,64] x, int64[64,12] k) => (float[1,16,64,12] y)"
        "{g = Gather<axis=0>(x, k) u = Unsqueeze(x, one) e = Expand(u, s) d = Sub(g, e) c = Concat<axis=2>(e, d)"
        " z = Unsqueeze(c, zero) t = Transpose<perm=[0,3,1,2]>(z) y = Conv(t, w, b)}"),
        {"one": np.array([1]), "zero": np.array([0]), "s": np.array([64, 12, 64]), "w": random(16, 128, 1, 1),
         "b": random(16)},
    ),
    "a resize after normalisation": (
        "order", "Resize first", ("(float[1,64,64,3] x) => (float[1,3,16,16] y) {a = Div(x, d)"
        " t = Transpose<perm=[0,3,1,2]>(a) b = Sub(t, m)"
        ' y = Resize<mode="linear", coordinate_transformation_mode="half_pixel">(b, , , s)}'),
        {"d": np.float32([255]), "m": random(1, 3, 1, 1), "s": np.array([1, 3, 16, 16])},
    ),
    "a linear recurrence": (
        "affine", "one product", ("(float[16,40] x) => (float[16,40] y) <float a = {0.3}, float b = {0.7}>"
        "{s0" + "".join(f", s{t}" for t in range(1, 40)) + " = Split<axis=1>(x) h0 = Identity(s0) "
        + " ".join(f"u{t} = Mul(s{t}, a) v{t} = Mul(h{t - 1}, b) h{t} = Add(u{t}, v{t})" for t in range(1, 40))
        + " y = Concat<axis=1>(" + ", ".join(f"h{t}" for t in range(40)) + ")}"), {},
    ),
    "frames that overlap": (
        "affine", "overlapping frames added", ("(float[1,20,32] x) => (float[1,184] y)"
        "{" + " ".join(f"f{t} = Gather<axis=1>(x, i{t}) p{t} = Pad(f{t}, q{t})" for t in range(20))
        + " y = Sum(" + ", ".join(f"p{t}" for t in range(20)) + ")}"),
        {**{f"i{t}": np.array(t) for t in range(20)},
         **{f"q{t}": np.array([0, 8 * t, 0, 152 - 8 * t]) for t in range(20)}},
    ),
    "means of cells": (
        "affine", "one convolution", ("(float[1,16,24,24] x) => (float[1,16,3,3] y)"
        "{" + " ".join(f"s{i}{j} = Slice(x, b{i}{j}, e{i}{j}, a) m{i}{j} = ReduceMean<axes=[2,3]>(s{i}{j})"
                       for i in range(3) for j in range(3))
        + " ".join(f" r{i} = Concat<axis=3>(m{i}0, m{i}1, m{i}2)" for i in range(3))
        + " y = Concat<axis=2>(r0, r1, r2)}"),
        {"a": np.array([2, 3]),
         **{f"b{i}{j}": np.array([8 * i, 8 * j]) for i in range(3) for j in range(3)},
         **{f"e{i}{j}": np.array([8 * i + 8, 8 * j + 8]) for i in range(3) for j in range(3)}},
    ),
    "attention to a window": (
        "attention", "masked keys left out", ("(float[1,2,128,16] q, float[1,2,16,128] k, float[1,2,128,16] v)"
        " => (float[1,2,128,16] y) {s = MatMul(q, k) m = Add(s, w) p = Softmax<axis=-1>(m) y = MatMul(p, v)}"),
        {"w": np.where(np.abs(np.subtract.outer(np.arange(128), np.arange(128))) > 9, -1e4, 0).astype(np.float32)},
    ),
    "a coupling of one half": (
        "demand", "zero weights and channels", (
            "(float[256,64] x) => (float[256,64] y) {m = MatMul(x, w) t = Tanh(m) n = MatMul(t, v) o = Exp(n)"
            " y = Mul(o, z)}"),
        {"w": random(64, 64), "v": random(64, 64), "z": (np.arange(64) < 32).astype(np.float32)},
    ),
    "rows, element by element": (
        "order", "elements gathered by rows", ("(float[300,32] x, int64[200] k) => (float[200,32] y)"
        "{u = Unsqueeze(k, one) e = Expand(u, s) y = GatherElements<axis=0>(x, e)}"),
        {"one": np.array([1]), "s": np.array([200, 32])},
    ),
    "kernels of depth one": (
        "order", "frames as a batch", ("(float[1,8,6,20,20] x) => (float[1,16,6,10,10] y)"
        "{y = Conv<pads=[0,1,1,0,1,1], strides=[1,2,2]>(x, w, c)}"), {"w": random(16, 8, 1, 3, 3), "c": random(16)},
    ),
    "a flip by interpolation": (
        "affine", "selection", X + "{y = GridSample(x, g)}",
        {"g": np.stack(np.meshgrid(*[(np.arange(16) * 2 + 1) / 16 - 1] * 2), -1)[None, :, ::-1].astype(np.float32)},
    ),
    "a gate in another layout": (
        "layout", "moves undone", X + "{r = Reshape(x, s) t = Transpose<perm=[0,2,1]>(r) g = Sigmoid(t) p = Mul(g, c)"
        " m = Mul(p, t) u = Transpose<perm=[0,2,1]>(m) y = Reshape(u, z)}",
        {"s": np.array([1, 8, 256]), "c": random(8), "z": np.array([1, 8, 16, 16])},
    ),
    "a logarithm of a softmax": (
        "normalisations", "LogSoftmax", ROWS + "{t = Softmax<axis=-1>(x) y = Log(t)}", {},
    ),
    "a logarithm of a softmax written out": (
        "normalisations", "LogSoftmax", ROWS + "{e = Exp(x) s = ReduceSum<keepdims=1>(e, a) l = Log(s) y = Sub(x, l)}",
        {"a": np.array([-1])},
    ),
    "a curve of bytes": (
        "pointwise", "table of all bytes",
        ("(uint8[64,64] x) => (float[64,64] y) <float d = {255}, float p = {2.2}>{f = Cast<to=1>(x) n = Div(f, d)"
        " y = Pow(n, p)}"), {},
    ),
    "a gray image in three scaled colours": (
        "order", "product before copies", ("(float[1,1,64,64] x) => (float[1,16,32,32] y) <int64[4] s = {1, 3, 64, 64}>"
        "{e = Expand(x, s) m = Sub(e, n) d = Div(m, f) y = Conv<pads=[3,3,3,3], strides=[2,2]>(d, w, b)}"),
        {"n": random(1, 3, 1, 1), "f": abs(random(1, 3, 1, 1)) + 1, "w": random(16, 3, 7, 7), "b": random(16)},
    ),
    "the diagonal of a product": (
        "products", "only the elements that are read", ("(float[96,32] x, float[32,96] z) => (float[96] y)"
        "{m = MatMul(x, z) d = Mul(m, e) y = ReduceSum<keepdims=0>(d, a)}"),
        {"e": np.eye(96, dtype=np.float32), "a": np.array([1])},
    ),
    "the diagonals of products by indices": (
        "products", "only the elements that are read", ("(float[2,64,32] x, float[2,32,64] z) => (float[2,64] y)"
        "{m = MatMul(x, z) r = Reshape(m, s) y = Gather<axis=1>(r, i)}"),
        {"s": np.array([2, 4096]), "i": np.arange(64) * 65},
    ),
    "one product for each column vector": (
        "products", "products in a cheaper order",
        "(float[64,32,1] x) => (float[64,32,1] y) {y = MatMul(w, x)}", {"w": random(32, 32)},
    ),
    "channels mixed before a graph": (
        "products", "Einsum as MatMul", ("(float[1,8,32,16] x) => (float[1,32,32,16] y)"
        '{c = Conv(x, w, b) r = Reshape(c, s) y = Einsum<equation="nkctv,kvw->nctw">(r, g)}'),
        {"w": random(96, 8, 1, 1), "b": random(96), "s": np.array([1, 3, 32, 32, 16]), "g": random(3, 16, 16)},
    ),
    "channels mixed without a bias": (
        "products", "Einsum as MatMul", ("(float[1,8,32,16] x) => (float[1,32,32,16] y)"
        '{c = Conv(x, w) r = Reshape(c, s) y = Einsum<equation="nkctv,kvw->nctw">(r, g)}'),
        {"w": random(96, 8, 1, 1), "s": np.array([1, 3, 32, 32, 16]), "g": random(3, 16, 16)},
    ),
    "a value grown step by step": (
        "order", "one Concat", ("(float[32,8] x, float[32,8] z) => (float[160,8] y) {c0 = Concat<axis=0>(x, z) "
        + " ".join(f"c{t} = Concat<axis=0>(c{t - 1}, z)" for t in (1, 2)) + " y = Concat<axis=0>(c2, x)}"), {},
    ),
    "copies of neighbours": (
        "affine", "Resize", X.replace("[1,8,16,16] y", "[1,8,32,32] y")
        + "{r = Reshape(x, s) e = Expand(r, t) y = Reshape(e, u)}",
        {"s": np.array([1, 8, 16, 1, 16, 1]), "t": np.array([1, 8, 16, 2, 16, 2]), "u": np.array([1, 8, 32, 32])},
    ),
    "a long filter and every fourth sample": (
        "affine", "one convolution", ("(float[1,1,1024] x) => (float[1,4,241] y)"
        "{c = Conv(x, w) y = Conv<strides=[4]>(c, v)}"),
        {"w": random(4, 1, 63), "v": np.eye(4, dtype=np.float32)[..., None] * np.float32([1, 0])},
    ),
    "one of several transposed convolutions": (
        "demand", "only what is needed", ("(float[4,8,64] x) => (float[1,2,130] y) <int64[1] b = {1}, int64[1] e = {2},"
        "int64[1] a = {0}>{r = Relu(x) c = ConvTranspose<strides=[2]>(r, w) y = Slice(c, b, e, a)}"),
        {"w": random(8, 2, 4)},
    ),
    "a bag of words": (
        "weights", "lookup", ("(int64[32,10] i) => (float[32,16] y) <int64 d = {256}, float[2] v = {0, 1}>"
        "{h = OneHot<axis=-1>(i, d, v) s = ReduceSum<keepdims=0>(h, a) y = MatMul(s, w)}"),
        {"a": np.array([1]), "w": random(256, 16)},
    ),
    "a mask of zeros": (
        "constants", "zeros and ones left out", ROWS + "{t = Tanh(x) s = Add(t, z) y = Exp(s)}",
        {"z": np.zeros((32, 64), np.float32)},
    ),
    "a vector of all pairs": (
        "order", "product before copies", ("(float[48,16] x) => (float[48,48] y) {u = Unsqueeze(x, one)"
        " i = Expand(u, s) v = Unsqueeze(x, zero) j = Expand(v, s) c = Concat<axis=2>(i, j)"
        " m = MatMul(c, w) y = Tanh(m)}"),
        {"one": np.array([1]), "zero": np.array([0]), "s": np.array([48, 48, 16]), "w": random(32)},
    ),
    "features that are differences of others": (
        "order", "product before copies", ("(float[64,32,4] x) => (float[64,32,16] y)"
        "{s = Slice(x, b, e, a) m = ReduceMean<axes=[1]>(s) d = Sub(s, m) c = Concat<axis=2>(x, d) p = MatMul(c, w)"
        " y = Tanh(p)}"), {"b": np.array([0]), "e": np.array([3]), "a": np.array([2]), "w": random(7, 16)},
    ),
    "outputs far apart of dilated convolutions": (
        "demand", "only what is needed", ("(float[4,64,27] x) => (float[4,64,1] y) {a = Conv(x, u) r = Relu(a)"
        " b = Conv<dilations=[3]>(r, v) t = Relu(b) y = Conv<dilations=[9]>(t, w)}"),
        {name: random(64, 64, 3, seed=place) for place, name in enumerate("uvw")},
    ),
    "slopes that are all equal": (
        "pointwise", "LeakyRelu", X + "{y = PRelu(x, s)}", {"s": np.full((8, 1, 1), 0.25, np.float32)},
    ),
    "an exponential of a broadcast sum": (
        "pointwise", "Mul of Exp and Exp",
        "(float[64,1] x, float[1,64] z) => (float[64,64] y) {s = Add(x, z) y = Exp(s)}", {},
    ),
}  # fmt: skip
"""By what is written: the engine, what it recognises, the graph and its weights."""


def outputs_of(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return session(model).run(None, feeds)


def assert_alike(model: onnx.ModelProto, changed: onnx.ModelProto, close: float = 1e-4) -> None:
    feeds = feeds_of(model, 7)
    for mine, theirs in zip(outputs_of(changed, feeds), outputs_of(model, feeds), strict=True):
        assert apart(mine, theirs) < close


@pytest.mark.parametrize("case", CASES)
def test_an_engine_recognises_what_it_is_for_and_keeps_the_outputs(case: str):
    engine, kind, graph, weights = CASES[case]
    model = model_of(graph, **weights)
    values = values_of(model)

    found = {rewrite.kind.partition(": ")[2]: rewrite for rewrite in found_by(engine, values)}

    assert kind in found
    assert computes_the_same(values, found[kind])
    assert found[kind].saving_ns > 0
    assert found[kind].replaces
    assert_alike(model, values.graph.build([found[kind]]))


@pytest.mark.parametrize(
    "graph",
    [
        ROWS + "<float l = {-8}, float h = {8}>{a = Clip(x, l, h) b = Tanh(x) y = Add(a, b)}",
        ROWS + "<float k = {0.7}>{a = Mul(x, k) b = Erf(a) c = Add(b, k) d = Mul(c, x) y = Mul(d, k)}",
        ROWS + "{a = Relu(x) b = Softmax<axis=0>(a) y = Mul(b, x)}",
    ],
    ids=["a clip that small numbers do not reach", "nearly a GELU", "a softmax over rows"],
)
def test_what_only_looks_alike_stays(graph: str):
    values = values_of(model_of(graph))

    for name in ("equality", "pointwise", "normalisations"):
        for rewrite in found_by(name, values):
            assert_alike(model_of(graph), values.graph.build([rewrite]), 1e-6)
            wide = {name: 30 * array for name, array in feeds_of(model_of(graph), 3).items()}
            before, after = (outputs_of(model, wide) for model in (model_of(graph), values.graph.build([rewrite])))
            assert apart(after[0], before[0]) < 1e-5


def test_the_last_step_of_two_directions_is_the_last_of_a_longer_sequence():
    engine, kind, graph, weights = CASES["the last step of two directions"]
    model = model_of(graph.replace("{31}", "{-1}"), **weights)
    values = values_of(model)
    found = {rewrite.kind.partition(": ")[2]: rewrite for rewrite in found_by(engine, values)}
    changed = values.graph.build([found[kind]])

    for longer in (model, changed):
        longer.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 40

    assert_alike(model, changed, 1e-6)


def test_a_loop_with_a_known_number_of_rounds_is_written_out():
    model = model_of(
        "(float[4,8] x) => (float[4,8] y, float[3,4,8] s) <int64 n = {3}, bool c = {1}>"
        "{y, s = Loop(n, c, x) <body = b (int64 i, bool on, float[4,8] h) => (bool o, float[4,8] g, float[4,8] k)"
        "{o = Identity(on) g = Tanh(h) k = Mul(g, g)}>}"
    )
    values = values_of(model)

    (found,) = loops(values)
    changed = values.graph.build([found])

    assert "Loop" not in {node.op_type for node in changed.graph.node}
    assert_alike(model, changed, 1e-7)


def test_a_scan_is_written_out():
    model = model_of(
        "(float[4,8] x, float[5,4,8] z) => (float[4,8] y, float[5,4,8] s)"
        "{y, s = Scan<num_scan_inputs=1, body = b (float[4,8] h, float[4,8] i) => (float[4,8] g, float[4,8] k)"
        "{g = Add(h, i) k = Tanh(g)}>(x, z)}"
    )
    values = values_of(model)

    (found,) = loops(values)
    changed = values.graph.build([found])

    assert "Scan" not in {node.op_type for node in changed.graph.node}
    assert_alike(model, changed, 1e-7)


def test_a_recurrent_cell_in_a_loop_is_recognised_in_a_few_rounds():
    model = model_of(
        "(float[40,2,6] x) => (float[40,2,8] y) {last, y = Scan<num_scan_inputs = 1, body = rounds"
        " (float[2,8] h, float[2,6] s) => (float[2,8] g, float[2,8] o)"
        " {a = MatMul(s, w) b = MatMul(h, r) c = Add(a, b) d = Add(c, z) g = Tanh(d) o = Identity(g)}>(begin, x)}",
        w=random(6, 8), r=random(8, 8) / 8, z=random(8), begin=np.zeros((2, 8), np.float32),
    )  # fmt: skip
    values = values_of(model)
    (rewrite,) = looped(values, time.perf_counter() + 20)
    assert rewrite.kind == "recurrence: RNN"
    changed = values.graph.build([rewrite])
    assert [node.op_type for node in changed.graph.node].count("Scan") == 0
    assert_alike(model, changed)


def test_a_constant_for_each_sample_is_computed_once():
    model = model_of(
        "(float[n,16] x) => (float[n,16] y) <int64[1] i = {0}> {s = Shape(x) b = Gather(s, i)"
        " t = Concat<axis=0>(b, w) e = Expand(q, t) m = MatMul(e, v) r = Relu(m) k = MatMul(r, v) g = Tanh(k)"
        " h = MatMul(g, v) y = Add(x, h)}",
        q=random(1, 16), v=random(16, 16), w=np.array([16]),
    )  # fmt: skip
    feeds = [{"x": random(2, 16, seed=seed)} for seed in range(3)]
    values = Values(RewriteGraph(model), feeds, {"x": random(3, 16)})
    (rewrite,) = [found for found in found_by("constants", values) if "samples" in found.kind]
    changed = values.graph.build([rewrite])
    assert sum(node.op_type == "MatMul" for node in changed.graph.node) == 0
    for number in (1, 5):
        feed = {"x": random(number, 16, seed=9)}
        assert apart(outputs_of(changed, feed)[0], outputs_of(model, feed)[0]) < 1e-5


def test_a_branch_that_is_always_taken_is_the_only_one():
    model = model_of(
        "(float[4,8] x) => (float[4,8] y) <bool c = {1}>"
        "{y = If(c) <then_branch = t () => (float[4,8] g) {g = Tanh(x)}, else_branch = e () => (float[4,8] g)"
        "{g = Exp(x)}>}"
    )
    values = values_of(model)

    (found,) = loops(values)

    assert_alike(model, values.graph.build([found]), 1e-7)


def test_what_a_relu_makes_equal_is_not_equal_whatever_the_input():
    model = model_of(
        "(float[4,64] x) => (float[4,32] y) {a = MatMul(x, w) b = Add(a, c) r = Relu(b) y = Exp(r)}",
        w=random(64, 32), c=np.where(np.arange(32) < 16, -1e3, 0).astype("f"),
    )  # fmt: skip
    values = values_of(model)

    assert not values.runs[0]["r"][:, :16].any()
    assert "r" not in generic_of(values).copies
    assert not len(generic_of(values).zeros("r", 1))


def test_a_late_engine_finds_nothing():
    _, _, graph, weights = CASES["an adapter"]
    values = values_of(model_of(graph, **weights))

    assert [name for name, (engine, _) in ENGINES.items() if engine(values, -math.inf)] == []


def kinds() -> Iterator[str]:
    yield from (engine for engine, *_ in CASES.values())


def test_every_engine_is_tested_but_for_the_witnesses():
    assert set(ENGINES) - set(kinds()) == {"witnesses"}


def test_executed_graphs_differ_if_a_small_constant_differs():
    graph = "(float[8,64] x) => (float[8,4] y) <int64[1] k = {K}, int64[1] b = {0}, int64[1] e = {4}, int64[1] a = {1}>"
    graph += "{v, i = TopK(x, k) y = Slice(v, b, e, a)}"
    one, two = (loaded(model_of(graph.replace("{K}", f"{{{k}}}")).SerializeToString(), threads=1)[1] for k in (8, 64))
    assert one != two


def test_executed_graphs_differ_if_operators_have_another_order():
    """Both graphs have the same operators, attributes and shapes of constants."""
    graph = "(float[1,8,16,16] x) => (float[1,8,32,32] y) <float[4] s = {1, 1, 2, 2}>"
    before = model_of(graph + '{a = Resize<mode="nearest">(x, , s) y = Conv(a, w)}', w=random(8, 8, 1, 1))
    after = model_of(graph + '{a = Conv(x, w) y = Resize<mode="nearest">(a, , s)}', w=random(8, 8, 1, 1))

    (_, first), (_, second), (_, again) = (
        loaded(model.SerializeToString(), threads=1) for model in (before, after, before)
    )

    assert first == again != second
