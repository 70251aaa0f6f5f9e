"""Models as people deploy them: attention as one operator, weights of products in few bits; both compute the same."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
from computing import session
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.errors import BackendError
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.network.export import with_attention, with_weights
from dlbricks.generator.network.network import export_network
from dlbricks.models import find_models

needs_ir = pytest.mark.skipif(not find_spec("onnx_ir"), reason="onnxscript is not installed")


@pytest.fixture
def model(source):
    """The bytes of a model that is written as text."""
    return lambda graph, weights: source(graph, weights).path.read_bytes()


def run(data, feeds):
    return session(data).run(None, feeds)


@needs_ir
@pytest.mark.parametrize(("kind", "error"), [("int4", 0.15), ("int8", 0.01)])
def test_weights_of_few_bits_are_layers_whose_work_is_known(kind, error, tmp_path, model):
    weight = np.random.default_rng(0).normal(size=(256, 64)).astype(np.float32)
    plain = model("(float[rows,256] x) => (float[rows,64] y) {y = MatMul(x, w)}", {"w": weight})
    data = with_weights(plain, kind)

    (node,) = onnx.load_from_string(data).graph.node
    assert node.op_type == "MatMulNBits"
    feeds = {"x": np.random.default_rng(1).normal(size=(4, 256)).astype(np.float32)}
    (exact,), (found,) = run(plain, feeds), run(data, feeds)
    assert np.abs(found - exact).max() < error * np.abs(exact).max()
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    (source,) = find_models([path], dims={"rows": 4})
    graph = build_graph(source.skeleton())
    assert graph.layers[0].cost.macs == 4 * 256 * 64
    assert len(sequences(graph, 1)) == 1


@needs_ir
@pytest.mark.parametrize("turned", [False, True])
def test_products_are_found_however_exporters_write_them(turned, model):
    """A Gemm with a bias, as of GPT-2, and a table that is looked up and then the last product as well."""
    draw = np.random.default_rng(0)
    shapes = {"w": (64, 128) if turned else (128, 64), "b": (64,), "t": (200, 64)}
    plain = model(
        f"(float[rows,128] x, int64[rows] ids) => (float[rows,200] y) {{g = Gemm<transB={int(turned)}>(x, w, b)"
        " e = Gather(t, ids) s = Add(g, e) columns = Transpose<perm=[1,0]>(t) y = MatMul(s, columns)}",
        {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()},
    )

    data = with_weights(plain, "int8")

    found = Counter(node.op_type for node in onnx.load_from_string(data).graph.node)
    assert found == {"MatMulNBits": 2, "Add": 2, "Gather": 1}
    feeds = {"x": draw.normal(size=(3, 128)).astype(np.float32), "ids": np.array([0, 5, 199])}
    (exact,), (made,) = run(plain, feeds), run(data, feeds)
    assert np.abs(made - exact).max() < 0.03 * np.abs(exact).max()


@needs_ir
def test_what_is_not_there_is_an_error(model):
    """A product that is more than one stays, too."""
    relu = model("(float[4] x) => (float[4] y) {y = Relu(x)}", {})
    more = model("(float[4,64] x) => (float[4,64] y) {y = Gemm<alpha=0.5>(x, w)}", {"w": (64, 64)})
    for data in (relu, more):
        with pytest.raises(BackendError, match="no products"):
            with_weights(data, "int4")
    with pytest.raises(BackendError, match="dlbricks finds attention"):
        with_attention(relu)


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
