"""Control flow: bodies are canonical and free of names, or the layer is skipped with its reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.graph import CAPTURE, ModelGraph, build_graph
from dlbricks.bricks.layer import Layer, LayerState, Role
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.bricks.tensor import TensorType
from dlbricks.models.normal import normalise
from dlbricks.models.skeleton import Skeleton
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Build = Callable[..., ModelGraph]


def _if(opset: int = 9, name: str = "k", inner: str = "t", values: str = "1, 2, 3") -> ModelGraph:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g (bool c, float[3] x) => (float[3] y)
    <float[3] {name} = {{{values}}}> {{
        y = If(c) <
            then_branch = {inner}_body () => (float[3] {inner}_out) {{
                {inner} = Sub({name}, {name})
                {inner}_out = Clip<min = 0.5>({inner})
            }},
            else_branch = other () => (float[3] {inner}_else) {{ {inner}_else = Neg({name}) }}
        >
        z = Relu(x)
    }}"""
    return build_graph(Skeleton(onnx.parser.parse_model(text)))


def _loop() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 11]> g (float[2, 3] x) => (float[2, 3] y)
        <int64 trips = {3}, bool go = {1}> {
            y = Loop(trips, go, x) <body = b (int64 i, bool c, float[2, 3] state) => (bool d, float[2, 3] next) {
                d = Identity(c)
                long = Unsqueeze<axes = [0]>(state)
                flat = Squeeze<axes = [0]>(long)
                next = Softmax<axis = -1>(flat)
            }>
        }"""
    )


def _only(graph: ModelGraph, op_type: str) -> Layer:
    (layer,) = [layer for layer in graph.layers if layer.op_type == op_type]
    return layer


def _typed(name: str, found: TensorType) -> onnx.ValueInfoProto:
    number = onnx.TensorProto.DataType.Value(found.dtype.upper())
    return helper.make_tensor_value_info(name, number, found.shape)


def _execute(layer: Layer, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a layer's canonical form."""
    constants = []
    for operand in layer.operands:
        if operand.role is Role.CONSTANT:
            constants.append(onnx.TensorProto.FromString(operand.data or b""))
            constants[-1].name = operand.value
    inputs = [_typed(operand.value, operand.type) for operand in layer.operands if operand.role is Role.ACTIVATION]
    output = _typed(layer.outputs[0], layer.output_types[0])
    graph = helper.make_graph([layer.canonical], "g", inputs, [output], constants)
    imports = [helper.make_opsetid(domain, version) for domain, version in layer.canonical_opsets]
    model = helper.make_model(graph, ir_version=10, opset_imports=imports)
    onnx.checker.check_model(model)
    onnx.shape_inference.infer_shapes(model, strict_mode=True)
    return ReferenceEvaluator(model).run(None, feeds)[0]


@pytest.mark.parametrize("condition", [True, False])
def test_if_computes_the_same_with_its_constants_inside(condition: bool) -> None:
    layer = _only(_if(), "If")

    assert layer.state is LayerState.LIVE
    found = _execute(layer, {"c": np.asarray(condition)})
    np.testing.assert_array_equal(found, [0.5, 0.5, 0.5] if condition else [-1, -2, -3])


def test_bodies_are_free_of_names() -> None:
    one, other = _only(_if(), "If"), _only(_if(name="secret", inner="hidden"), "If")

    assert one.key == other.key
    assert b"secret" not in other.canonical.SerializeToString()
    assert b"hidden" not in other.canonical.SerializeToString().replace(b"hidden_out", b"")


def test_values_that_a_body_reads_are_in_the_key() -> None:
    assert _only(_if(), "If").key != _only(_if(values="1, 2, 4"), "If").key


def test_bodies_are_brought_to_the_canonical_opset() -> None:
    old = _only(_if(opset=7), "If")
    body = next(a.g for a in old.canonical.attribute if a.name == "then_branch")

    clip = next(node for node in body.node if node.op_type == "Clip")
    assert len(clip.input) == 2
    assert not clip.attribute
    assert old.key == _only(_if(opset=9), "If").key


def test_loop_with_operators_that_changed_computes_the_same() -> None:
    model = _loop()
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)

    layer = _only(build_graph(Skeleton(model)), "Loop")

    assert layer.state is LayerState.LIVE, layer.reason
    np.testing.assert_allclose(_execute(layer, {"x": x}), ReferenceEvaluator(model).run(None, {"x": x})[0], rtol=1e-6)


def test_a_body_that_reads_an_activation_is_skipped(parse_graph: Build) -> None:
    graph = parse_graph(
        """g (bool c, float[3] x) => (float[3] y) {
            h = Relu(x)
            y = If(c) <then_branch = a () => (float[3] r) { r = Neg(h) },
                       else_branch = b () => (float[3] s) { s = Identity(h) }>
        }"""
    )

    layer = _only(graph, "If")
    assert layer.state is LayerState.SKIPPED
    assert "'h'" in layer.reason
    assert graph.consumers("h") == (layer.index,)
    assert graph.graph.has_edge(0, layer.index, ("h", CAPTURE))


def test_a_body_that_reads_a_weight_is_skipped(parse_graph: Build) -> None:
    graph = parse_graph(
        """g (bool c, float[3000] w) => (float[3000] y) {
            y = If(c) <then_branch = a () => (float[3000] r) { r = Neg(w) },
                       else_branch = b () => (float[3000] s) { s = Identity(w) }>
        }"""
    )

    layer = _only(graph, "If")
    assert layer.state is LayerState.SKIPPED
    assert "weight 'w'" in layer.reason


def test_a_body_that_holds_weights_is_skipped() -> None:
    values = numpy_helper.from_array(np.arange(20, dtype=np.float32), "k")
    graph = _weights_in_body(values)

    layer = _only(graph, "If")
    assert layer.state is LayerState.SKIPPED
    assert "holds weights" in layer.reason


def _weights_in_body(values: onnx.TensorProto) -> ModelGraph:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (bool c) => (float[20] y) {
            y = If(c) <then_branch = a () => (float[20] r) { r = Neg(k) },
                       else_branch = b () => (float[20] s) { s = Identity(k) }>
        }"""
    )
    model.graph.initializer.append(values)
    return build_graph(Skeleton(normalise(model).model))


def _branch_in_a_loop() -> onnx.ModelProto:
    """Bodies in a body, with constants of both: old opset, so that operators in them change."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 11]> g (float[2, 3] x) => (float[2, 3] y)
        <int64 trips = {2}, bool go = {1}> {
            y = Loop(trips, go, x) <body = b (int64 i, bool c, float[2, 3] state) => (bool d, float[2, 3] next) {
                d = Identity(c)
                long = Unsqueeze<axes = [0]>(state)
                flat = Squeeze<axes = [0]>(long)
                k = Constant<value = float {3.0}>()
                next = If(d) <
                    then_branch = then () => (float[2, 3] one) { one = Mul(flat, k) },
                    else_branch = otherwise () => (float[2, 3] other) {
                        q = Constant<value = float {5.0}>()
                        other = Add(state, q)
                    }
                >
            }>
        }"""
    )


def test_bodies_in_bodies_compute_the_same_and_keep_their_key() -> None:
    model = _branch_in_a_loop()
    graph = build_graph(Skeleton(model))
    layer, x = _only(graph, "Loop"), np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)

    assert layer.state is LayerState.LIVE
    assert b"outer" not in layer.canonical.SerializeToString()
    np.testing.assert_allclose(_execute(layer, {"x": x}), ReferenceEvaluator(model).run(None, {"x": x})[0], rtol=1e-6)
    (sequence,) = sequences(graph, 1)
    load_brick(build_brick(graph, sequence).model, expected=sequence.key)


def test_a_body_prefers_its_own_constant_to_one_around_it() -> None:
    """ONNX forbids the name, and models have it."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 13]> g (bool c) => (float[1] y) <float[1] k = {7.0}> {
            y = If(c) <
                then_branch = then () => (float[1] one) {
                    k = Constant<value = float[1] {2.0}>()
                    one = Neg(k)
                },
                else_branch = otherwise () => (float[1] other) { other = Neg(k) }
            >
        }"""
    )
    layer = _only(build_graph(Skeleton(model)), "If")

    assert [float(_execute(layer, {"c": np.asarray(value)})[0]) for value in (True, False)] == [-2, -7]
