"""Synthetic weights: seeded, scaled to their use, legal for their operator."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from computing import session
from dlbricks.generator.network.synthetic.walk import Draw, Moments, draw
from dlbricks.generator.network.synthetic.weights import synthesise
from dlbricks.models.skeleton import mark_weight
from dlbricks.models.zoo import structure


def skeleton(text: str, *weights: str, opset: int = 21) -> onnx.ModelProto:
    """A model from ONNX text, with the named inputs marked as weights."""
    parsed = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    model = onnx.shape_inference.infer_shapes(parsed, strict_mode=True)
    for value in model.graph.input:
        if value.name in weights:
            mark_weight(value)
    onnx.checker.check_model(model, full_check=True)
    return model


def std(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64))))


@pytest.mark.parametrize(
    ("text", "fan_in"),
    [
        ("f (float[1,8,9,9] x, float[32,8,3,3] w) => (y) { y = Conv(x, w) }", 72),
        ("f (float[1,8,9,9] x, float[32,2,3,3] w) => (y) { y = Conv<group=4>(x, w) }", 18),
        ("f (float[1,32,9,9] x, float[32,8,4,4] w) => (y) { y = ConvTranspose<strides=[2,2]>(x, w) }", 128),
        ("f (float[4,64] x, float[64,99] w) => (y) { y = MatMul(x, w) }", 64),
        ("f (float[64,99] w, float[99,4] x) => (y) { y = MatMul(w, x) }", 99),
        ("f (float[4,64] x, float[64,99] w) => (y) { y = Gemm(x, w) }", 64),
        ("f (float[4,64] x, float[99,64] w) => (y) { y = Gemm<transB=1>(x, w) }", 64),
        ("f (float[4,64] x, float[99,64] w) => (y) { t = Transpose<perm=[1,0]>(w) y = MatMul(x, t) }", 64),
        ('f (float[4,64] x, float[64,99] w) => (y) { y = Einsum<equation="bi,io->bo">(x, w) }', 64),
        ("f (float[5,1,16] x, float[1,128,16] w, float[1,128,32] r) => (y) { y = LSTM<hidden_size=32>(x, w, r) }", 16),
        (  # of normal numbers twice as many count
            ("f (float[4,64] x, float[64] g, float[64] b, float[64,64] w, float[64,64] v) => (y)"
            "{ n = LayerNormalization(x, g, b)  h = MatMul(n, w)  r = Relu(h)  y = MatMul(r, v) }"), 128
        ),
    ],
)  # fmt: skip
def test_filters_are_he_scaled_by_fan_in(text: str, fan_in: int) -> None:
    weights = synthesise(skeleton(text, *"wrgbv"), seed=0)
    assert std(weights["w"]) == pytest.approx(math.sqrt(2 / fan_in), rel=0.05)
    if "v" in weights:
        assert std(weights["v"]) == pytest.approx(math.sqrt(2 / 64), rel=0.05)


def test_parameters_indices_shapes_and_tables_are_those_of_their_use() -> None:
    text = """f (float[1,600,2,2] x, float[600] scale, float[600] bias, float[600] mean, float[600] var, int64[500] hot,
        int64[9] i, float[500,64] table, float[64] shift, bool[9,64] mask, float[64] e, int64[2] s)
        => (y, z, p, float[3,192] q)
        <int64[1] depth = {9}, float[2] values = {0, 1}> {
        y = BatchNormalization(x, scale, bias, mean, var)  z = OneHot(hot, depth, values)
        r = Gather(table, i)  h = Add(r, shift)  m = Where(mask, h, r)  p = Pow(m, e)
        t = Transpose<perm=[1,0]>(table)  u = MatMul(r, t)  q = Reshape(h, s)
    }"""
    names = ("scale", "bias", "mean", "var", "hot", "table", "shift", "mask", "e", "s")
    weights = synthesise(skeleton(text, *names), seed=0)
    assert 0.9 <= weights["scale"].min() <= weights["scale"].max() <= 1.1
    assert 0.5 <= weights["var"].min() < 0.6 < 1.4 < weights["var"].max() <= 1.5
    assert std(weights["bias"]) < 0.05
    assert std(weights["mean"]) < 0.05
    assert set(weights["hot"].tolist()) == set(range(9))
    assert std(weights["table"]) == pytest.approx(0.02, rel=0.05)  # it serves its first use
    assert std(weights["shift"]) == pytest.approx(0.02, rel=0.3)
    assert weights["mask"].dtype == bool
    assert 0.3 < weights["mask"].mean() < 0.7
    assert (weights["e"] == 2).all()  # a power of negative numbers must be whole
    np.testing.assert_array_equal(weights["s"], [3, 192])


def test_arrays_depend_on_seed_and_position_but_not_on_names() -> None:
    text = "f (float[4,64] x, float[64,64] {0}, float[64,64] {1}) => (y) {{ h = MatMul(x, {0}) y = MatMul(h, {1}) }}"
    first = synthesise(skeleton(text.format("a", "b"), "a", "b"), seed=7)
    renamed = synthesise(skeleton(text.format("p", "q"), "p", "q"), seed=7)
    other = synthesise(skeleton(text.format("a", "b"), "a", "b"), seed=8)
    np.testing.assert_array_equal(first["a"], renamed["p"])
    np.testing.assert_array_equal(first["b"], renamed["q"])
    assert not np.array_equal(first["a"], other["a"])
    assert abs(np.corrcoef(first["a"].ravel(), first["b"].ravel())[0, 1]) < 0.1


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("f (float[7,30] x, int64[2000] i) => (y) { y = Gather(x, i) }", 7),
        ("f (float[7,30] x, int32[2000] i) => (y) { y = Gather<axis=-1>(x, i) }", 30),
        ("f (float[7,30] x, int64[7,400] i) => (y) { y = GatherElements<axis=1>(x, i) }", 30),
        ("f (float[7,30] x, int64[900,2] i) => (y) { y = GatherND(x, i) }", 7),
        ("f (float[7,30] x, int64[7,30] i, float[7,30] u) => (y) { y = ScatterElements<axis=0>(x, i, u) }", 7),
        ("f (float[7,30] x, int64[40,50] i) => (y) { j = Reshape<allowzero=0>(i, s) y = Gather(x, j) }", 7),
    ],
)
def test_indices_stay_within_their_axis(text: str, bound: int) -> None:
    text = text.replace("=> (y) {", "=> (y) <int64[1] s = {-1}> {") if "(i, s)" in text else text
    model = skeleton(text, "i")
    weights = synthesise(model, seed=0)
    assert weights["i"].min() == 0
    assert weights["i"].max() == bound - 1
    opened = session(model)
    floats = {value.name: np.ones(value.shape, np.float32) for value in opened.get_inputs() if value.name != "i"}
    assert np.isfinite(opened.run(None, {**floats, **weights})[0]).all()


def test_quantised_weights_dequantise_to_he_scale() -> None:
    text = """f (float[4,64] x, int8[64,96] w, float[96] s, int8[96] z) => (y) {
        d = DequantizeLinear<axis=1>(w, s, z)  y = MatMul(x, d)
    }"""
    weights = synthesise(skeleton(text, "w", "s", "z"), seed=0)
    assert weights["w"].dtype == np.int8
    assert (weights["z"] == 0).all()
    assert weights["s"].min() > 0
    assert std(weights["w"] * weights["s"]) == pytest.approx(math.sqrt(2 / 64), rel=0.1)


def test_quantised_convolution_keeps_its_range() -> None:
    text = """f (
        float[1,8,9,9] x, float xs, uint8 xz, uint8[16,8,3,3] w, float ws, uint8 wz, float ys, uint8 yz
    ) => (y) {
        q = QuantizeLinear(x, xs, xz)  y = QLinearConv(q, xs, xz, w, ws, wz, ys, yz)
    }"""
    model = skeleton(text, "xs", "xz", "w", "ws", "wz", "ys", "yz")
    weights = synthesise(model, seed=0)
    assert weights["wz"] == weights["xz"] == 128
    opened = session(model)
    images = np.random.default_rng(0).standard_normal((1, 8, 9, 9), dtype=np.float32)
    quantised = opened.run(None, {**weights, "x": images})[0].astype(np.float32) - 128
    assert 8 < std(quantised) < 100
    assert np.mean(np.abs(quantised) >= 127) < 0.05


@pytest.mark.parametrize(
    "dtype", [onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16]
)
def test_floats_of_every_width_are_finite_and_normal(dtype: int) -> None:
    numbers = draw(Draw("normal", high=0.01), dtype, (400, 500), seed=0, ordinal=0)
    assert numbers.dtype == onnx.helper.tensor_dtype_to_np_dtype(dtype)
    magnitude = np.abs(numbers.astype(np.float64))
    tiny = float(ml_dtypes.finfo(numbers.dtype).smallest_normal)
    assert np.isfinite(magnitude).all()
    assert not ((magnitude > 0) & (magnitude < tiny)).any()
    assert std(numbers.astype(np.float64)) == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize(
    ("steps", "function"),
    [
        ("h = Relu(x)", lambda x: np.maximum(x, 0)),
        ("h = LeakyRelu<alpha=0.5>(x)", lambda x: np.where(x > 0, x, x / 2)),
        ("h = Clip(x, zero, six)", lambda x: np.clip(x, 0, 6)),
        ("s = Sigmoid(x) h = Mul(x, s)", lambda x: x / (1 + np.exp(-x))),
        (
            "a = Add(x, three) b = Clip(a, zero, six) c = Mul(x, b) h = Div(c, six)",
            lambda x: x * np.clip(x + 3, 0, 6) / 6,
        ),
        ("h = HardSwish(x)", lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
        (
            "d = Div(x, three) e = Erf(d) q = Add(e, one) p = Mul(x, q) h = Mul(p, half)",
            lambda x: x * (1 + np.vectorize(math.erf)(x / 3)) / 2,
        ),
    ],
)
def test_filters_follow_any_activation(steps: str, function: Callable[[np.ndarray], np.ndarray]) -> None:
    text = f"""f (float[4,64] i, float[64] g, float[64,256] w) => (y)
        <float zero = {{0}}, float half = {{0.5}}, float one = {{1}}, float three = {{3}}, float six = {{6}}> {{
        x = LayerNormalization(i, g) {steps} y = MatMul(h, w)
    }}"""
    weights = synthesise(skeleton(text, "g", "w"), seed=0)
    normal = np.random.default_rng(0).standard_normal(400_000)
    assert std(weights["w"]) == pytest.approx(1 / (8 * std(function(normal))), rel=0.02)


def test_scores_in_front_of_a_softmax_stay_small() -> None:
    text = """f (
        float[64,256] x, float[256] g, float[256,256] q, float[256,256] k
    ) => (float[64,64] s, float[64,64] y) {
        n = LayerNormalization(x, g)  a = MatMul(n, q)  b = MatMul(n, k)
        t = Transpose<perm=[1,0]>(b)  s = MatMul(a, t)  y = Softmax(s)
    }"""
    model = skeleton(text, "g", "q", "k")
    opened = session(model)
    feeds = synthesise(model, seed=0)
    feeds["x"] = np.random.default_rng(0).standard_normal((64, 256), dtype=np.float32)
    scores, shares = opened.run(["s", "y"], feeds)
    assert std(scores) == pytest.approx(1, rel=0.2)  # 16 without care: unscaled products over 256 elements
    assert shares.min() > 1e-6


def test_a_deep_residual_network_keeps_its_scale() -> None:
    model = structure("resnet50").model
    logits = next(node.input[0] for node in model.graph.node if node.op_type == "Softmax")
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(logits))
    opened = session(model)
    feeds = synthesise(model, seed=0)
    feeds["gpu_0/data_0"] = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
    assert 0.1 < std(opened.run([logits], feeds)[0]) < 5


def test_pooled_moments_agree_with_samples() -> None:
    largest = np.random.default_rng(0).normal(0.5, 2.0, (400_000, 9)).max(axis=1)
    moments = Moments(math.hypot(0.5, 2.0), 0.5).largest_of(9)
    assert moments.mean == pytest.approx(largest.mean(), rel=0.01)
    assert moments.rms == pytest.approx(std(largest), rel=0.02)
