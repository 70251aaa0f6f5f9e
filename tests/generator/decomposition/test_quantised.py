"""Quantised models: what the runtime folds is one unit, and its brick executes what the model does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from computing import session
from dlbricks.bricks.cutting.fused import copied_layers, fused_sequences, fused_units
from dlbricks.bricks.encoding import decode_constant
from dlbricks.bricks.graph.model_graph import ExecutedModel, build_graph
from dlbricks.bricks.layer import LayerState
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.constructor.interventions import quotient_of
from dlbricks.generator.decomposition import executed as executed_module
from dlbricks.generator.decomposition.executed import with_unsigned
from dlbricks.generator.network.network import synthetic_network
from dlbricks.models import ModelSource, find_models
from dlbricks.models.control_flow import CourseChoice
from executing import executed_model
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

LAYOUTS = {"Reshape", "ReorderInput", "ReorderOutput", "Transpose"}


@pytest.fixture
def quantised(source: Callable[..., ModelSource], tmp_path: Path) -> Callable[..., ModelSource]:
    """Two convolutions, a shortcut around the second, a GELU that has no quantised kernel, and a product."""

    def make(activations: QuantType, *, per_channel: bool = False) -> ModelSource:
        draws = np.random.default_rng(1)
        shapes = {"w0": (16, 8, 3, 3), "b0": (16,), "w1": (16, 16, 3, 3), "b1": (16,), "w2": (16, 10), "b2": (10,)}
        plain = source(
            "(float[1,8,12,12] x) => (float[1,10] y) {a = Conv<pads=[1,1,1,1]>(x, w0, b0) b = Relu(a)"
            " c = Conv<pads=[1,1,1,1]>(b, w1, b1) d = Add(b, c) e = GlobalAveragePool(d) f = Flatten(e) g = Gelu(f)"
            " y = Gemm(g, w2, b2)}",
            {name: draws.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()},
            opset=21,
        )
        draws = np.random.default_rng(0)
        inputs = iter([{"x": draws.standard_normal((1, 8, 12, 12)).astype(np.float32)} for _ in range(2)])
        quantize_static(
            plain.path, tmp_path / "quantised.onnx", SimpleNamespace(get_next=lambda: next(inputs, None)),
            quant_format=QuantFormat.QDQ, per_channel=per_channel, activation_type=activations,
            weight_type=QuantType.QInt8,
        )  # fmt: skip
        return find_models([tmp_path / "quantised.onnx"])[0]

    return make


def executed_as(found: ExecutedModel, part: Any, folder: Path) -> Counter[str]:
    """Operators that the runtime makes of a brick."""
    brick = build_brick(found.source, part)
    assert load_brick(brick.model, expected=part.key).key == part.key
    network = synthetic_network(onnx.load_model_from_string(brick.model))
    session(network.self_contained(), optimized_model_filepath=str(folder / "executed.onnx"))
    return Counter(node.op_type for node in onnx.load(folder / "executed.onnx").graph.node)


def units_of(executed: ExecutedModel) -> list[set[str]]:
    layers = executed.source.layers
    return [{layers[index].op_type for index in unit} for unit in fused_units(executed).groups]


def test_conversions_are_one_unit_with_the_operator_that_takes_them_in(quantised):
    executed = executed_model(quantised(QuantType.QUInt8), options={"pinning": "off"})

    conv = {"DequantizeLinear", "Conv", "QuantizeLinear"}
    add = {"DequantizeLinear", "Add", "QuantizeLinear"}
    assert units_of(executed).count(conv) == 2
    assert units_of(executed).count(add) == 1
    for layer, origin in zip(executed.graph.layers, executed.origins, strict=True):
        kinds = Counter(executed.source.layers[index].op_type for index in origin)
        if layer.op_type == "QLinearConv":
            assert kinds == {"DequantizeLinear": 3, "Conv": 1, "QuantizeLinear": 1}
        if layer.op_type == "QLinearAdd":
            assert kinds == {"DequantizeLinear": 2, "Add": 1, "QuantizeLinear": 1}
    assert {layer.op_type for layer in executed.graph.layers} >= {"QLinearConv", "QLinearAdd"}
    assert all(layer.cost is not None for layer in executed.graph.layers)
    (conv, *_) = (layer for layer in executed.graph.layers if layer.op_type == "QLinearConv")
    assert conv.cost.macs == 16 * 12 * 12 * 8 * 9
    assert 16 * 8 * 9 <= conv.cost.weight_bytes < 16 * 8 * 9 + 16 * 4 + 64  # one byte each, biases of four, scales


@pytest.mark.sweep(2)
@pytest.mark.parametrize("activations", [QuantType.QUInt8, QuantType.QInt8, QuantType.QUInt16])
@pytest.mark.parametrize("per_channel", [False, True])
def test_bricks_execute_what_the_model_executes(quantised, tmp_path, activations, per_channel):
    source = quantised(activations, per_channel=per_channel)
    executed = executed_model(source, options={"pinning": "off"})
    model = Counter(layer.op_type for layer in executed.graph.layers)

    bricks = Counter[str]()
    for part in fused_sequences(executed, 1):
        bricks += executed_as(executed, part, tmp_path)

    differing = {kind for kind in {*model, *bricks} - LAYOUTS if model[kind] != bricks[kind]}
    assert not differing, (model, bricks)


def test_signed_values_are_unsigned_where_they_are_executed_so(quantised):
    source = quantised(QuantType.QInt8)
    executed = executed_model(source, options={"pinning": "off"})
    plain, types = build_graph(source.skeleton()), executed.source.types

    signed = [
        value for value, kind in plain.types.items() if kind.dtype == "int8" and plain.producer(value) is not None
    ]
    turned = [value for value in signed if types[value].dtype == "uint8"]
    made = {value for layer in executed.graph.layers for value in layer.outputs}
    assert signed
    # On x86 it turns some of them; elsewhere none.
    assert bool(turned) == ("uint8" in {kind.dtype for value, kind in executed.graph.types.items() if value in made})
    # A prepared graph is the model that it was made of.
    assert executed.source.key == plain.key
    assert [layer.name for layer in executed.source.layers] == [layer.name for layer in plain.layers]
    folded = {layer.op_type for layer in plain.layers if layer.state is LayerState.FOLDED}
    assert folded == {"DequantizeLinear"}
    assert not any(layer.state is LayerState.FOLDED for layer in executed.source.layers)


@pytest.mark.parametrize(("last", "dtype"), [("other", "uint8"), ("", "int8"), ("given", "int8")])
def test_each_zero_point_of_a_value_is_shifted_or_none(source: Callable[..., ModelSource], last: str, dtype: str):
    """Of a signed value that is converted back twice."""
    graph = (
        "(float[4,8] x, int8 given) => (float[4,8] y) <float s = {0.1}, int8 z = {3}, int8 other = {-7}>"
        "{q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) b = DequantizeLinear(q, s, OTHER) y = Add(a, b)}"
    )
    model = source(graph.replace(", OTHER", f", {last}" if last else ""), opset=21)

    graph = build_graph(with_unsigned(model.skeleton(), {"q"}))

    assert graph.types["q"].dtype == dtype
    zeros = [layer.operands[2] for layer in graph.layers if len(layer.operands) > 2]
    found = [int(decode_constant(zero.data)) for zero in zeros if zero.data is not None]
    assert found == {"other": [131, 131, 121], "": [3, 3], "given": [3, 3]}[last]


BODIES = (  # conversions in a branch, each with a scale of its own
    '<ir_version: 10, opset_import: ["": 21]> g (float[1,4,8,8] x, bool c) => (float[1,4,4,4] y)'
    "<float s = {0.1}, float t = {0.1}, float u = {0.1}, int8 z = {3}>"
    "{p = Sigmoid(x)"
    " y = If(c) <"
    "  then_branch = taken () => (float[1,4,4,4] d) {q = QuantizeLinear(p, s, z) b = DequantizeLinear(q, t, z)"
    "   m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b) r = QuantizeLinear(m, u, z) d = DequantizeLinear(r, s, z)},"
    "  else_branch = other () => (float[1,4,4,4] e) {e = AveragePool<kernel_shape=[2,2], strides=[2,2]>(p)}>}"
)


def test_conversions_in_a_branch_that_is_written_out_are_prepared_too(tmp_path, monkeypatch):
    onnx.save(onnx.parser.parse_model(BODIES), tmp_path / "model.onnx")
    (source,) = find_models([tmp_path / "model.onnx"], control=[CourseChoice("", "then")])
    plain = build_graph(source.skeleton())
    (quantise, _) = (layer for layer in plain.layers if layer.op_type == "QuantizeLinear")
    value = quantise.outputs[0]
    monkeypatch.setattr(executed_module, "unsigned_values", lambda *_: frozenset({value}))  # as on x86

    graph = executed_model(source, options={"pinning": "off"}).source

    conversions = [layer for layer in graph.layers if layer.op_type in {"QuantizeLinear", "DequantizeLinear"}]
    assert len(conversions) == 4
    assert len({layer.node.input[1] for layer in conversions}) == 1
    assert (plain.types[value].dtype, graph.types[value].dtype) == ("int8", "uint8")
    assert (graph.key, graph.control) == (plain.key, plain.control)
    assert [(flow.how, flow.course) for flow in graph.control] == [("given", "then")]


def test_each_reader_of_a_shared_value_has_the_conversion_for_itself(quantised):
    executed = executed_model(quantised(QuantType.QUInt8), options={"pinning": "off"})
    parts = fused_sequences(executed, 1)

    (shared,) = copied_layers(executed)
    holders = [part for part in parts if shared in part.layers]
    assert [len(part.copies) for part in holders] == [0, 1]
    assert sorted(index for part in parts for index in part.own) == list(executed.source.live)
    value = executed.source.layers[shared].outputs[0]
    assert all(value not in part.outputs for part in holders)
    quotient = quotient_of(executed.source, tuple(parts))
    assert len(quotient.order) == len(parts)
    maker = executed.source.producer(executed.source.layers[shared].node.input[0])
    (made,) = (number for number, part in enumerate(parts) if maker in part.own)
    assert all(made in quotient.predecessors[parts.index(part)] for part in holders)


def test_equal_scales_are_one_however_a_file_names_them(source, tmp_path):
    model = source(
        "(float[1,4,8,8] x) => (float[1,4,4,4] y) <float s = {0.1}, float t = {0.1}, float u = {0.1}, uint8 z = {3}>"
        "{a = Sigmoid(x) q = QuantizeLinear(a, s, z) b = DequantizeLinear(q, t, z)"
        " c = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b) r = QuantizeLinear(c, u, z) d = DequantizeLinear(r, s, z)"
        " y = Tanh(d)}",
        opset=21,
    )
    executed = executed_model(model, options={"pinning": "off"})

    (part,) = (part for part in fused_sequences(executed, 1) if len(part.layers) > 1)

    kinds = [executed.source.layers[index].op_type for index in part.layers]
    assert kinds == ["DequantizeLinear", "MaxPool", "QuantizeLinear"]
    assert set(executed_as(executed, part, tmp_path)) <= {"MaxPool", "NhwcMaxPool", "Transpose"}
