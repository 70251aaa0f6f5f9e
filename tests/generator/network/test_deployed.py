"""Models as people deploy them: attention as one operator, weights of products in few bits; both compute the same."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.errors import BackendError
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.network.deployed import with_attention, with_weights
from dlbricks.generator.network.network import export_network
from dlbricks.models import find_models
from onnx import TensorProto, helper, numpy_helper

needs_ir = pytest.mark.skipif(not find_spec("onnx_ir"), reason="onnxscript is not installed")


def run(data: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime as ort

    return ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)


def product() -> bytes:
    value = helper.make_tensor_value_info
    weight = np.random.default_rng(0).normal(size=(256, 64)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [value("x", TensorProto.FLOAT, ["rows", 256])],
        [value("y", TensorProto.FLOAT, ["rows", 64])], [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


@needs_ir
@pytest.mark.parametrize(("kind", "error"), [("int4", 0.15), ("int8", 0.01)])
def test_weights_of_few_bits_are_layers_whose_work_is_known(kind, error, tmp_path):
    data = with_weights(product(), kind)

    (node,) = onnx.load_from_string(data).graph.node
    assert node.op_type == "MatMulNBits"
    feeds = {"x": np.random.default_rng(1).normal(size=(4, 256)).astype(np.float32)}
    (exact,), (found,) = run(product(), feeds), run(data, feeds)
    assert np.abs(found - exact).max() < error * np.abs(exact).max()
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    (source,) = find_models([path], dims={"rows": 4})
    graph = build_graph(source.skeleton())
    assert graph.layers[0].cost.macs == 4 * 256 * 64
    assert len(sequences(graph, 1)) == 1


@needs_ir
@pytest.mark.parametrize("turned", [False, True])
def test_products_are_found_however_exporters_write_them(turned):
    """A Gemm with a bias, as of GPT-2, and a table that is looked up and then the last product as well."""
    value, draw = helper.make_tensor_value_info, np.random.default_rng(0)
    weight = draw.normal(size=(64, 128) if turned else (128, 64)).astype(np.float32)
    table = draw.normal(size=(200, 64)).astype(np.float32)
    constants = {"w": weight, "b": draw.normal(size=64).astype(np.float32), "t": table}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["g"], transB=int(turned)),
        helper.make_node("Gather", ["t", "ids"], ["e"]),
        helper.make_node("Add", ["g", "e"], ["s"]),
        helper.make_node("Transpose", ["t"], ["columns"], perm=[1, 0]),
        helper.make_node("MatMul", ["s", "columns"], ["y"]),
    ]
    inputs = [value("x", TensorProto.FLOAT, ["rows", 128]), value("ids", TensorProto.INT64, ["rows"])]
    outputs = [value("y", TensorProto.FLOAT, ["rows", 200])]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    plain = bytes(model.SerializeToString())

    data = with_weights(plain, "int8")

    found = Counter(node.op_type for node in onnx.load_from_string(data).graph.node)
    assert found == {"MatMulNBits": 2, "Add": 2, "Gather": 1}
    feeds = {"x": draw.normal(size=(3, 128)).astype(np.float32), "ids": np.array([0, 5, 199])}
    (exact,), (made,) = run(plain, feeds), run(data, feeds)
    assert np.abs(made - exact).max() < 0.03 * np.abs(exact).max()


@needs_ir
def test_a_product_that_is_more_than_one_stays():
    value = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], alpha=0.5)], "g", [value("x", TensorProto.FLOAT, [4, 64])],
        [value("y", TensorProto.FLOAT, [4, 64])], [weight],
    )  # fmt: skip
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()

    with pytest.raises(BackendError, match="no products"):
        with_weights(data, "int4")


@needs_ir
def test_what_is_not_there_is_an_error():
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [output])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()

    with pytest.raises(BackendError, match="no products"):
        with_weights(data, "int4")
    with pytest.raises(BackendError, match="dlbricks finds attention"):
        with_attention(data)


@pytest.mark.slow
def test_attention_becomes_one_operator_of_each_layer(tmp_path):
    (source,) = find_models(["bert_base"], dims={"sequence_length": 16})
    plain = export_network(source.skeleton().model)

    data = with_attention(plain)

    model = onnx.load_from_string(data)
    found = Counter(node.op_type for node in model.graph.node)
    assert found["Attention"] + found["MultiHeadAttention"] == 12
    assert not found["Softmax"]
    path = tmp_path / "bert.onnx"
    path.write_bytes(data)
    (row,) = generate(find_models([path]), granularity=1, out=tmp_path / "suite").rows
    assert (row.skipped, row.error) == ((), None)
    assert "Attention" not in row.uncounted
    feeds = {
        value.name: np.ones([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.int64)
        for value in model.graph.input
    }
    np.testing.assert_allclose(run(data, feeds)[0], run(plain, feeds)[0], rtol=1e-2, atol=1e-3)
