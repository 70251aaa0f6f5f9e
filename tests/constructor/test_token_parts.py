"""Where the time of a decoder's step goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import onnx
import onnx.parser
import pytest
from decoders import built, one_file
from dlbricks.bricks.decomposition import alone
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.constructor.token_parts import PartTime, parts_of
from dlbricks.models import find_models
from dlbricks.models.skeleton import Skeleton

CACHES = ("past_key_values.0.key", "past_key_values.0.value")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("parts") / "decoder.onnx"
    onnx.save(one_file(1), path)
    (source,) = find_models([path], dims={"past_sequence_length": 8, "sequence_length": 1})
    return build_graph(source.skeleton())


def test_each_layer_belongs_to_one_part(graph):
    homes = parts_of(graph, CACHES, "logits")

    found = {part: Counter(graph.layers[index].op_type for index in homes if homes[index] == part) for part in
             {*homes.values()}}  # fmt: skip
    assert {*homes} == {*graph.live}
    assert found["weights"] == {"MatMul": 4}  # queries, keys, values, and the result of attention
    assert found["head"] == {"MatMul": 1}
    # What extends the cache, both products of attention, the softmax, and the heads put together.
    assert found["attention"] == {
        "Concat": 2, "Transpose": 2, "MatMul": 2, "Add": 1, "Softmax": 1, "Reshape": 1,
    }  # fmt: skip
    assert "shapes" not in found
    assert len(alone(graph)) == len(graph.live)


def test_fused_attention_is_no_product_with_its_tables_of_angles(tmp_path):
    path = tmp_path / "decoder.onnx"
    onnx.save(built(1), path)
    dims = {"past_sequence_length": 8, "sequence_length": 1, "total_sequence_length": 9}
    (source,) = find_models([path], dims=dims)
    fused = build_graph(source.skeleton())

    homes = parts_of(fused, CACHES, "logits")

    (attention,) = (layer for layer in fused.layers if layer.op_type == "GroupQueryAttention")
    assert homes[attention.index] == "attention"


SIZED = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1, 4, 6] x) => (float[2, 12] y)
<int64[1] rows = {2}>
{
    s = Shape(x)
    a = ReduceProd<keepdims=1>(s)
    b = Div(a, rows)
    c = Concat<axis=0>(rows, b)
    y = Reshape(x, c)
}
"""


def test_what_depends_on_sizes_alone_is_the_computing_of_shapes():
    model = onnx.parser.parse_model(SIZED)
    types = {"s": (7, [3]), "a": (7, [1]), "b": (7, [1]), "c": (7, [2])}
    model.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in types.items()
    )
    executed = build_graph(Skeleton(model), salt="a runtime folds nothing of an open length")

    homes = parts_of(executed, (), "y")

    assert [homes[layer.index] for layer in executed.layers] == ["shapes"] * 4 + ["others"]


def test_the_rate_of_weights_is_their_bytes_over_their_time():
    part = PartTime("weights", ms=2.0, nodes=3, weight_bytes=40_000_000)

    assert part.gb_per_s == 20.0
    assert replace(part, weight_bytes=0).gb_per_s is None
