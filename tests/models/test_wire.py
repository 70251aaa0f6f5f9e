"""The walk over the wire keeps what a parser would, and no payload."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from dlbricks.errors import BrokenModel
from dlbricks.models import wire
from dlbricks.models.external import PAYLOAD_FIELDS
from dlbricks.models.skeleton import KEPT_ELEMENTS, may_be_mask
from dlbricks.models.subgraphs import all_graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper


def compact(data: bytes) -> ModelProto:
    return ModelProto.FromString(wire.compact(lambda offset, size: data[offset : offset + size], len(data)))


def stripped(model: ModelProto) -> ModelProto:
    """What the walk should yield, computed on the parsed model and without regard to sizes on the wire."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for name in ("doc_string", "metadata_props", "training_info"):
        copy.ClearField(name)
    strip_graph(copy.graph)
    for function in copy.functions:
        function.ClearField("doc_string")
        strip_nodes(function.node)
    return copy


def strip_graph(graph: GraphProto) -> None:
    for name in ("doc_string", "metadata_props", "quantization_annotation"):
        graph.ClearField(name)
    for tensor in graph.initializer:
        strip_tensor(tensor)
    for sparse in graph.sparse_initializer:
        strip_tensor(sparse.values)
        strip_tensor(sparse.indices)
    strip_nodes(graph.node)


def strip_nodes(nodes) -> None:
    for node in nodes:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            if attribute.type == AttributeProto.GRAPH:
                strip_graph(attribute.g)
            if attribute.type == AttributeProto.TENSOR and node.op_type == "Constant" and not node.domain:
                strip_tensor(attribute.t)


def strip_tensor(tensor: TensorProto) -> None:
    tensor.ClearField("doc_string")
    if int(np.prod(tensor.dims, dtype=object)) > KEPT_ELEMENTS and not may_be_mask(tensor.data_type, tensor.dims):
        for name in PAYLOAD_FIELDS:
            tensor.ClearField(name)


TYPES = [TensorProto.FLOAT, TensorProto.INT64, TensorProto.DOUBLE, TensorProto.UINT64, TensorProto.BOOL]


@st.composite
def tensors(draw: st.DrawFn) -> TensorProto:
    shape = draw(st.sampled_from([(), (0,), (3,), (32, 32), (1025,), (41, 25), (2, 600)]))
    kind = draw(st.sampled_from(TYPES))
    values = np.arange(np.prod(shape)).astype(helper.tensor_dtype_to_np_dtype(kind)).reshape(shape)
    if draw(st.booleans()):
        tensor = numpy_helper.from_array(values, "t")
    else:
        tensor = helper.make_tensor("t", kind, shape, values.reshape(-1).tolist())
    # Long documentation makes a message large enough to be walked and not copied whole.
    tensor.doc_string = draw(st.sampled_from(["", "d" * wire._DESCEND_BYTES]))
    return tensor


@st.composite
def graphs(draw: st.DrawFn, depth: int) -> GraphProto:
    graph = GraphProto(name=draw(st.text(max_size=5)), doc_string="d" * wire._DESCEND_BYTES)
    for index in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["Relu", "Constant", "Other"] + (["If"] if depth else [])))
        node = graph.node.add(op_type=kind, output=[f"o{index}"], doc_string="d" * draw(st.sampled_from([0, 5000])))
        if kind == "If":
            node.attribute.append(helper.make_attribute("then_branch", draw(graphs(depth - 1))))
        elif kind != "Relu":
            node.attribute.append(helper.make_attribute("value", draw(tensors())))
            if draw(st.booleans()):
                node.domain = draw(st.sampled_from(["", "custom"]))
    graph.initializer.extend(draw(st.lists(tensors(), max_size=3)))
    if draw(st.booleans()):
        sparse = graph.sparse_initializer.add(dims=[100000])
        sparse.values.CopyFrom(draw(tensors()))
        sparse.indices.CopyFrom(draw(tensors()))
    graph.metadata_props.add(key="k", value="v" * 10)
    return graph


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    model = ModelProto(ir_version=8, doc_string="d", producer_name=draw(st.text(max_size=3)))
    model.opset_import.add(domain="", version=17)
    model.graph.CopyFrom(draw(graphs(2)))
    if draw(st.booleans()):
        function = model.functions.add(name="f", domain="l", doc_string="d" * wire._DESCEND_BYTES)
        function.node.add(op_type="Constant", output=["c"]).attribute.append(
            helper.make_attribute("value", draw(tensors()))
        )
    return model


@settings(max_examples=150, deadline=None)
@given(models())
def test_walk_equals_parse(model: ModelProto) -> None:
    # Small messages may keep what the walk would drop, so that both sides are brought to the same form.
    kept = compact(model.SerializeToString())
    assert stripped(kept) == stripped(model)
    for graph in all_graphs(kept.graph):
        for tensor in graph.initializer:
            assert len(tensor.SerializeToString()) <= 2 * wire._DESCEND_BYTES + 16 * KEPT_ELEMENTS


def big_model() -> bytes:
    weights = [numpy_helper.from_array(np.ones((64, 64), np.float32), f"w{index}") for index in range(20)]
    nodes = [helper.make_node("MatMul", ["x", f"w{index}"], [f"y{index}"]) for index in range(20)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])
    y = helper.make_tensor_value_info("y0", TensorProto.FLOAT, [1, 64])
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights)).SerializeToString()


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (np.tri(64, dtype=bool), True),
        (np.zeros((1, 1, 64, 80), np.float32), True),
        (np.zeros((64, 80), np.float32), False),
        (np.zeros((2, 64, 64), bool), False),
        (np.zeros((80, 64), bool), False),
        (np.zeros((1, 64, 64), np.int64), False),
    ],
)
def test_what_may_be_a_mask_keeps_its_values_to_be_looked_at(values, kept) -> None:
    tensor = numpy_helper.from_array(values, "mask")
    model = helper.make_model(helper.make_graph([], "g", [], [], [tensor]))

    (found,) = compact(model.SerializeToString()).graph.initializer

    assert list(found.dims) == list(values.shape)
    assert found.raw_data == (tensor.raw_data if kept else b"")


def test_payload_is_never_read() -> None:
    data = big_model()
    touched = []

    def read(offset: int, size: int) -> bytes:
        touched.append(size)
        return data[offset : offset + size]

    kept = wire.compact(read, len(data))
    assert len(kept) < 3_000
    assert sum(touched) < len(data) / 2
    assert [list(t.dims) for t in ModelProto.FromString(kept).graph.initializer] == [[64, 64]] * 20


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=200) | st.integers(1, len(big_model()) - 1).map(lambda end: big_model()[:end]))
def test_any_bytes(data: bytes) -> None:
    """Nothing but what is known is raised, of noise and of a model that was cut off."""
    kept = b""
    with contextlib.suppress(BrokenModel):
        kept = wire.compact(lambda offset, size: data[offset : offset + size], len(data))
    assert len(kept) <= len(data)


def test_dims_behind_the_payload() -> None:
    # Field order is a habit of serialisers, not a rule.
    payload = bytes(8192)
    behind = (
        TensorProto(raw_data=payload).SerializeToString() + TensorProto(dims=[2048], data_type=1).SerializeToString()
    )
    graph = b"\x2a" + wire._varint(len(behind)) + behind
    data = b"\x3a" + wire._varint(len(graph)) + graph
    assert ModelProto.FromString(data).graph.initializer[0].raw_data == payload
    assert not compact(data).graph.initializer[0].HasField("raw_data")


def test_nesting_bomb() -> None:
    body = bytes(wire._DESCEND_BYTES)
    body = b"\x52" + wire._varint(len(body)) + body
    for _ in range(60):
        attribute = b"\x32" + wire._varint(len(body)) + body
        node = b"\x2a" + wire._varint(len(attribute)) + attribute
        body = b"\x0a" + wire._varint(len(node)) + node
    data = b"\x3a" + wire._varint(len(body)) + body
    with pytest.raises(BrokenModel, match="nested"):
        compact(data)
