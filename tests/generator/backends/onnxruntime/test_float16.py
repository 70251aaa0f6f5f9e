"""Networks in float16: what is converted, what stays in float32, and what they compute."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from dlbricks.errors import BackendError
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.backends.onnxruntime.precision import float16_network, rounded
from dlbricks.generator.network.network import file_network, synthetic_network
from onnx import TensorProto, numpy_helper

BRICKS = {
    "convolution": "(float[1,8,9,9] x, float[16,8,3,3] w0, float[16] w1) => (float[1,16,7,7] y)"
    "{a = Conv(x, w0, w1) y = Relu(a)}",
    "product": "(float[4,64] x, float[64,32] w0) => (float[4,32] y) {y = MatMul(x, w0)}",
    "normalization": "(float[2,8,64] x, float[64] w0, float[64] w1) => (float[2,8,64] y)"
    "{y = LayerNormalization<axis=-1>(x, w0, w1)}",
    "softmax": "(float[2,8,64] x) => (float[2,8,64] y) {y = Softmax(x)}",
    "casts": "(int64[3,4] x) => (float[3,4] y) {a = Cast<to=1>(x) y = Sqrt(a)}",
    "filled": "(int64[2] x) => (float[3,2] y) {y = ConstantOfShape(x)}",
    "scales": "(float[1,2,4,4] x) => (float[1,2,8,8] y)"
    "{s = Constant<value_floats=[1.0,1.0,2.0,2.0]>() y = Resize<mode=\"nearest\">(x, , s)}",
    "boxes": "(float[1,6,4] x, float[1,1,6] s) => (int64[n,3] y)"
    "{i = NonMaxSuppression(x, s) y = Identity(i)}",
}  # fmt: skip


def settings() -> Settings:
    return Settings("cpu", 1, OrtBackend().resolve("cpu", {"pinning": "off"}))


def computed(network):
    executable = OrtBackend().prepare(network, settings())
    executable.run()
    found = executable.outputs()
    executable.close()
    return found


def assert_alike(exact, found):
    assert len(exact) == len(found)
    for one, other in zip(exact, found, strict=True):
        assert one.shape == other.shape
        if one.dtype == np.float32:
            assert other.dtype == np.float16
            np.testing.assert_allclose(other.astype(np.float32), one, rtol=0.02, atol=0.02 * np.abs(one).max())
        else:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("brick", BRICKS)
@pytest.mark.parametrize("unroll", [1, 2])
def test_float16_computes_nearly_the_same(skeleton_of, brick, unroll):
    network = synthetic_network(skeleton_of(BRICKS[brick]), unroll=unroll)

    converted = float16_network(network)

    assert_alike(computed(network), computed(converted))
    assert not any(array.dtype == np.float32 for array in converted.feeds.values())
    assert TensorProto.FLOAT not in {value.type.tensor_type.elem_type for value in converted.model.graph.input}


def test_weights_stay_outside_and_copies_share_them(skeleton_of):
    network = synthetic_network(skeleton_of(BRICKS["product"]), unroll=3)

    converted = float16_network(network)

    assert converted.weights.keys() == network.weights.keys()
    assert len({id(array) for array in converted.weights.values()}) == 1
    assert converted.weight_bytes == network.weight_bytes / 2
    assert {array.dtype for array in network.weights.values()} == {np.dtype(np.float32)}


def test_what_has_no_float16_stays_in_float32_and_exact(skeleton_of):
    graph = '(float[1,2,5,5] x, float[4] w0) => (float[1,2,6,6] y) {y = Resize<mode="nearest">(x, , w0)}'
    network = synthetic_network(skeleton_of(graph))
    scales = np.array([1, 1, 1.2001, 1.2001], dtype=np.float32)
    (tensor,) = network.model.graph.initializer
    tensor.CopyFrom(numpy_helper.from_array(scales, tensor.name))

    converted = float16_network(network)

    (resize,) = converted.model.graph.node
    kept = {tensor.name: tensor for tensor in converted.model.graph.initializer}[resize.input[2]]
    np.testing.assert_array_equal(numpy_helper.to_array(kept), scales)
    assert_alike(computed(network), computed(converted))


def test_an_operator_without_float16_computes_between_casts():
    text = '<ir_version: 8, opset_import: ["": 13]> g (float[4] x, int64 a) => (float[4] y) {y = CumSum(x, a)}'
    model = onnx.parser.parse_model(text)
    model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "a"))
    network = synthetic_network(model)

    converted = float16_network(network)

    assert [node.op_type for node in converted.model.graph.node] == ["Cast", "CumSum", "Cast"]
    assert_alike(computed(network), computed(converted))


def test_bodies_are_converted_with_what_they_read(skeleton_of):
    text = """<ir_version: 8, opset_import: ["": 17]> g (bool c, float[2,3] x) => (float[2,3] y) {
        y = If(c) <then_branch = t () => (float[2,3] p) {p = Relu(x)},
                   else_branch = e () => (float[2,3] q) {k = Constant<value_float=3.0>() q = Mul(x, k)}>
    }"""
    network = synthetic_network(onnx.parser.parse_model(text))

    assert_alike(computed(network), computed(float16_network(network)))


def test_a_model_in_a_file_is_converted_and_the_file_is_not(tmp_path):
    text = '<ir_version: 8, opset_import: ["": 17]> model (float[N, 256] x) => (float[N, 64] y) {y = MatMul(x, w)}'
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((256, 64), dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    network = file_network(tmp_path / "m.onnx", overrides={"N": 3})

    converted = float16_network(network)

    assert converted.path is None
    assert_alike(computed(network), computed(converted))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_numbers_beyond_float16_stay_finite_and_none_becomes_zero():
    numbers = np.array([0, 1e-12, -1e-12, 1e30, -3.4e38, np.inf, -np.inf, 1 / 3], dtype=np.float32)

    found = rounded(numbers)

    assert found.dtype == np.float16
    tiny = np.float16(5.96e-8)
    np.testing.assert_array_equal(found[:7], np.array([0, tiny, -tiny, 65504, -65504, np.inf, -np.inf], np.float16))
    assert np.isnan(rounded(np.array([np.nan], dtype=np.float32))).all()
    assert rounded(np.float32(2.5).reshape(())).shape == ()


def test_what_cannot_be_converted_says_so(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no model")
    network = synthetic_network(
        onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) {y = Relu(x)}')
    )
    broken = type(network)(None, tmp_path / "m.onnx", {}, {}, ("y",))

    with pytest.raises(BackendError, match=r"^the network cannot be converted to float16: "):
        float16_network(broken)
