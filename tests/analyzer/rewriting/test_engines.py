"""Each engine recognises what it is for, the prover shows it, and values are kept; no latency is asserted."""

from __future__ import annotations

import math
import time

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.rewriting.checking import loaded
from dlbricks.analyzer.rewriting.engines import ENGINES
from dlbricks.analyzer.rewriting.prover import Prover
from dlbricks.analyzer.rewriting.recording import Values, apart, session
from dlbricks.analyzer.rewriting.rewrite import Rewrite, RewriteGraph
from onnx import numpy_helper


def model_of(graph: str, opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    domains = f'"" : {opset}, "com.microsoft" : 1'
    model = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{domains}]> model {graph}")
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


def outputs_of(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(session(model, optimised=False).run(None, feeds))


X = "(float[1,8,16,16] x) => (float[1,8,16,16] y)"
ROWS = "(float[32,64] x) => (float[32,64] y)"
HALF = "(float16[8,16] x) => (float16[8,16] y)"

CASES = {
    "a GELU of any order": (
        "pointwise", "Gelu", ROWS + "<float k = {0.70710677}, float one = {1}, float half = {0.5}>"
        "{a = Mul(x, k) b = Erf(a) c = Add(b, one) d = Mul(half, c) y = Mul(d, x)}", {},
    ),
    "a hard swish by a clip": (
        "pointwise", "HardSwish", ROWS + "<float three = {3}, float zero = {0}, float six = {6}>"
        "{a = Add(x, three) b = Clip(a, zero, six) c = Mul(x, b) y = Div(c, six)}", {},
    ),
    "a selection after pointwise work": (
        "unused", "parts that no output needs",
        ("(float[64,64] x) => (float[1,64] y) <int64[1] b = {63}, int64[1] e = {64}, int64[1] a = {0}>"
        "{m = MatMul(x, w) t = Tanh(m) y = Slice(t, b, e, a)}"), {"w": random(64, 64)},
    ),
    "pooling after a pointwise product": (
        "order", "GlobalAveragePool first",
        "(float[1,64,16,16] x) => (float[1,64,1,1] y) {a = Conv(x, w) y = GlobalAveragePool(a)}",
        {"w": random(64, 64, 1, 1)},
    ),
    "equal products of two names": (
        "constants", "common subexpressions", ROWS + "{a = MatMul(x, v) b = MatMul(x, w) c = Tanh(b) y = Add(a, c)}",
        {"v": random(64, 64), "w": random(64, 64)},
    ),
    "a filter in bytes": (
        "constants", "folded",
        X + "<float s = {0.1}>{f = DequantizeLinear(w, s) y = Conv<pads=[1,1,1,1]>(x, f)}",
        {"w": np.rint(10 * random(8, 8, 3, 3)).astype(np.int8)},
    ),
    "an addition before a layer normalisation": (
        "normalisations", "addition kept apart",
        ROWS + "{a = Tanh(x) s = Add(a, x) y = LayerNormalization<axis=-1>(s, g, b)}",
        {"g": random(64), "b": random(64)},
    ),
    "uneven channels": (
        "channels", "multiples of 16", X + "{a = Conv(x, v) b = Relu(a) y = Conv(b, w)}",
        {"v": random(15, 8, 3, 3)[:, :, :1, :1], "w": random(8, 15, 1, 1)},
    ),
    "products of one input": (
        "repetition", "products of one input", ("(float[32,64] x) => (float[32,64] y, float[32,16] z)"
        "{y = MatMul(x, v) z = MatMul(x, w)}"), {"v": random(64, 64), "w": random(64, 16)},
    ),
    "one of several transposed convolutions": (
        "unused", "parts that no output needs",
        ("(float[4,8,64] x) => (float[1,2,130] y) <int64[1] b = {1}, int64[1] e = {2},"
        "int64[1] a = {0}>{r = Relu(x) c = ConvTranspose<strides=[2]>(r, w) y = Slice(c, b, e, a)}"),
        {"w": random(8, 2, 4)},
    ),
    "a mask of zeros": (
        "constants", "identities removed", ROWS + "{t = Tanh(x) s = Add(t, z) y = Exp(s)}",
        {"z": np.zeros((32, 64), np.float32)},
    ),
    "outputs far apart of dilated convolutions": (
        "unused", "parts that no output needs", ("(float[4,64,27] x) => (float[4,64,1] y) {a = Conv(x, u) r = Relu(a)"
        " b = Conv<dilations=[3]>(r, v) t = Relu(b) y = Conv<dilations=[9]>(t, w)}"),
        {name: random(64, 64, 3, seed=place) for place, name in enumerate("uvw")},
    ),
    "a product through a wide value": (
        "affine", "one product", ROWS + "{a = MatMul(x, u) b = MatMul(a, v) c = Add(b, k) y = Tanh(c)}",
        {"u": random(64, 512) / 8, "v": random(512, 64) / 8, "k": random(64)},
    ),
    "a focus of every second pixel": (
        "affine", "one convolution",
        (
            "(float[1,3,32,32] x) => (float[1,8,16,16] y) <int64[2] a = {0,0}, int64[2] b = {1,0}, int64[2] c = {0,1},"
            " int64[2] d = {1,1}, int64[2] e = {64,64}, int64[2] t = {2,2}, int64[2] i = {2,3}>"
            "{p = Slice(x, a, e, i, t) q = Slice(x, b, e, i, t) r = Slice(x, c, e, i, t) s = Slice(x, d, e, i, t)"
            " f = Concat<axis = 1>(p, q, r, s) g = Conv<pads = [1, 1, 1, 1]>(f, w) y = Relu(g)}"
        ),
        {"w": random(8, 12, 3, 3)},
    ),
    "a GELU by a tanh": (
        "pointwise", "FastGelu", ROWS + "<float h = {0.5}, float one = {1}, float k = {0.044715}, float three = {3},"
        " float r = {0.7978845608}> {p = Pow(x, three) q = Mul(p, k) s = Add(x, q) u = Mul(s, r) t = Tanh(u)"
        " v = Add(t, one) m = Mul(x, v) y = Mul(m, h)}", {},
    ),
    "a square by a power": ("pointwise", "Square", ROWS + "<float two = {2}> {y = Pow(x, two)}", {}),
    "a rectifier with slopes of any sign": ("pointwise", "PRelu", ROWS + "{y = PRelu(x, s)}", {"s": 3 * random(64)}),
    "a product before a maximum over rows": (
        "order", "ReduceMax first", ("(float[32,64] x) => (float[32] y) <float two = {2}, float one = {1}>"
        "{m = Mul(x, two) a = Add(m, one) r = Sigmoid(a) t = Tanh(r) y = ReduceMax<axes = [1], keepdims = 0>(t)}"), {},
    ),
    "a local response behind a convolution": (
        "normalisations", "local response",
        ("(float[1,8,16,16] x) => (float[1,8,16,16] y) {c = Conv(x, w)"
        " y = LRN<size = 5, alpha = 0.0001, beta = 0.75, bias = 1.0>(c)}"), {"w": random(8, 8, 1, 1)},
    ),
    "float16 on the CPU": (
        "precision", "float16 in float32", HALF + "{m = MatMul(x, w) y = Relu(m)}",
        {"w": random(16, 16).astype(np.float16)},
    ),
    "a spectrum": (
        "transforms", "DFT as a product", ("(float[4,32,1] x) => (float[4,17,2] y)"
        "{d = DFT<axis = 1, onesided = 1>(x) y = Neg(d)}"), {},
    ),
    "short spectra": (
        "transforms", "STFT as a convolution", ("(float[2,256,1] x) => (float[2,15,17,2] y)"
        "<int64 hop = {16}> {s = STFT<onesided = 1>(x, hop, window) y = Neg(s)}"),
        {"window": np.hanning(32).astype(np.float32)},
    ),
    "a code among others, and a product": (
        "lookup", "rows of a table", ("(int64[200] x) => (float[200,64] y) <int64[1] last = {-1}>"
        "{u = Unsqueeze(x, last) e = Equal(u, codes) f = Cast<to = 1>(e) m = MatMul(f, w) y = Tanh(m)}"),
        {"codes": np.arange(256), "w": random(256, 64)},
    ),
    "a function of an embedding": (
        "lookup", "rows of a table",
        "(int64[2,100] x) => (float[2,100,32] y) {g = Gather(e, x) m = MatMul(g, w) y = Tanh(m)}",
        {"e": random(128, 64), "w": random(64, 32)},
    ),
    "a branch that is always taken": (
        "repetition", "only branch", ("(float[4,8] x) => (float[4,8] y) <bool c = {1}>"
        "{y = If(c) <then_branch = t () => (float[4,8] g) {g = Tanh(x)}, else_branch = e () => (float[4,8] g)"
        "{g = Exp(x)}>}"), {},
    ),
}  # fmt: skip
"""By what is written: the engine, what it recognises, the graph and its weights."""


@pytest.mark.parametrize("case", CASES)
def test_an_engine_recognises_what_it_is_for_and_the_prover_shows_it(case: str):
    engine, kind, graph, weights = CASES[case]
    model = model_of(graph, **weights)
    values = values_of(model)

    found = {rewrite.kind.partition(": ")[2]: rewrite for rewrite in found_by(engine, values)}

    assert kind in found
    assert Prover(values, {}).prove(found[kind]).reason
    assert found[kind].saving_ns > 0
    assert found[kind].replaces
    feeds = feeds_of(model, 7)
    changed = values.graph.build([found[kind]])
    for mine, theirs in zip(outputs_of(changed, feeds), outputs_of(model, feeds), strict=True):
        assert apart(mine, theirs) < (1e-2 if theirs.dtype == np.float16 else 1e-4)


def test_a_late_engine_finds_nothing():
    _, _, graph, weights = CASES["products of one input"]
    values = values_of(model_of(graph, **weights))

    assert [name for name, (engine, _) in ENGINES.items() if engine(values, -math.inf)] == []


def test_every_engine_is_tested():
    assert set(ENGINES) == {engine for engine, *_ in CASES.values()}


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
