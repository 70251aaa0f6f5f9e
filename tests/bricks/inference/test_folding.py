"""Folding: what costs nothing at inference, what is evaluated, and what is left a weight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.bricks.inference.arithmetic import EVALUATED_ELEMENTS, Unevaluated, evaluate
from dlbricks.bricks.layer import Layer, Role
from dlbricks.models.skeleton import Skeleton
from onnx import helper
from onnx.reference import ReferenceEvaluator

Build = Callable[..., ModelGraph]


def _states(graph: ModelGraph) -> dict[str, str]:
    return {layer.outputs[0]: layer.state.value for layer in graph.layers}


def _constant(layer: Layer, slot: int) -> list[float]:
    operand = layer.operands[slot]
    assert operand.role is Role.CONSTANT
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(operand.data)).ravel().tolist()


def test_quantised_weights_may_be_left_to_the_runtime() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2, 3] x) => (float[2, 4] y)'
        "<int8[3, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float s = {0.5}>"
        "{a = DequantizeLinear(w, s) b = Neg(a) y = MatMul(x, b)}"
    )

    plain, taken = (build_graph(Skeleton(model), dequantise=left) for left in (False, True))

    assert _states(plain) == {"a": "folded", "b": "folded", "y": "live"}
    assert _states(taken) == {"a": "live", "b": "live", "y": "live"}
    (conversion, _, _) = taken.layers
    assert conversion.cost is not None
    assert conversion.cost.weight_bytes == 12 + 4


def test_shape_arithmetic_disappears_into_its_target(parse_graph: Build) -> None:
    graph = parse_graph(
        """g (float[2, 3, 4] x) => (float[a, b] y) <int64 one = {1}, int64[1] zero = {0}, int64[1] rest = {-1}> {
            s = Shape(x)
            d = Gather(s, one)
            u = Unsqueeze(d, zero)
            t = Concat<axis = 0>(u, rest)
            y = Reshape(x, t)
        }"""
    )

    assert _states(graph) == {"s": "folded", "d": "folded", "u": "folded", "t": "folded", "y": "live"}
    assert _constant(graph.layers[-1], 1) == [3, 8]
    assert graph.types["y"].shape == (3, 8)


def test_floats_on_the_way_to_a_shape_are_evaluated(parse_graph: Build) -> None:
    graph = parse_graph(
        """g (float[1, 3, 8, 10] x) => (float[a, b, c, d] y) <int64[1] cut = {2}, int64[1] end = {4}, float f = {1.5}> {
            s = Shape(x)
            hw = Slice(s, cut, end)
            r = Cast<to = 1>(hw)
            m = Mul(r, f)
            l = Floor(m)
            i = Cast<to = 7>(l)
            nc = Shape<start = 0, end = 2>(x)
            z = Concat<axis = 0>(nc, i)
            y = Resize<mode = "nearest">(x, , , z)
        }"""
    )

    assert graph.types["y"].shape == (1, 3, 12, 15)
    assert graph.live == (graph.layers[-1].index,)
    assert _constant(graph.layers[-1], 2) == [1, 1, 1.5, 1.5]


def test_what_depends_on_weights_is_a_weight(parse_graph: Build) -> None:
    graph = parse_graph(
        """g (float[8, 4] x, float[5000, 4] w) => (float[8, 5000] y) {
            t = Transpose(w)
            y = MatMul(x, t)
        }"""
    )

    assert _states(graph) == {"t": "folded", "y": "live"}
    assert graph.layers[0].reason == "depends on constants only"
    assert graph.layers[1].operands[1].role is Role.WEIGHT
    assert graph.layers[1].operands[1].value == "t"
    assert graph.layers[0].key == ""


def test_small_results_are_constants_like_any_other(parse_graph: Build) -> None:
    text = "g (float[8, 4] x) => (float[8, 4] y) <float k = {%s}> { %s y = Div(x, %s) }"
    folded = parse_graph(text % ("64.0", "r = Sqrt(k)", "r"))
    given = parse_graph(text % ("8.0", "", "k"))

    assert folded.layers[1].key == given.layers[0].key


def test_large_results_are_weights(parse_graph: Build) -> None:
    graph = parse_graph(
        """g (int64[2000] x) => (int64[2000] y) <int64 from = {0}, int64 to = {2000}, int64 step = {1}> {
            r = Range(from, to, step)
            y = Add(x, r)
        }"""
    )

    assert _states(graph) == {"r": "folded", "y": "live"}
    assert graph.layers[1].operands[1].role is Role.WEIGHT


@pytest.mark.parametrize(
    "node",
    [
        "Expand(one, huge)",
        "ConstantOfShape(huge)",
        "Tile(row, huge)",
        "Range(zero, many, one)",
        "Gather(row, many_indices)",
    ],
)
def test_expansion_bombs_are_not_evaluated(node: str) -> None:
    arrays = {
        "one": np.asarray(1, np.int64),
        "zero": np.asarray(0, np.int64),
        "many": np.asarray(2**62, np.int64),
        "row": np.zeros((1, 1024), np.int64),
        "huge": np.asarray([2**31, 2**31], np.int64),
        "many_indices": np.zeros((1024,), np.int64),
    }
    op_type, _, arguments = node.rstrip(")").partition("(")
    names = arguments.split(", ")
    attributes = {"axis": 0} if op_type == "Gather" else {}

    with pytest.raises(Unevaluated):
        evaluate(helper.make_node(op_type, names, ["y"], **attributes), [arrays[name] for name in names])


BRANCH = """r = If(on) <then_branch = a () => (float[3] t) { t = Neg(k) },
    else_branch = b () => (float[3] u) { u = Abs(k) }> y = Add(x, r)"""


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("r = RandomNormal<shape = [3]>() y = Add(x, r)", "live"),
        ("r = RandomUniformLike(k) y = Add(x, r)", "live"),
        ("r = Bernoulli(k) y = Add(x, r)", "live"),
        ("r = Dropout(k, ratio, on) y = Add(x, r)", "live"),  # it trains
        ("r = Dropout(k) y = Add(x, r)", "folded"),
        (BRANCH, "folded"),
    ],
)
def test_random_numbers_are_not_folded_and_control_flow_over_constants_is(
    parse_graph: Build, text: str, state: str
) -> None:
    constants = "<float[3] k = {1, 2, 3}, float ratio = {0.5}, bool on = {1}>"

    assert _states(parse_graph(f"g (float[3] x) => (float[3] y) {constants} {{ {text} }}")) == {"r": state, "y": "live"}


def test_the_shape_of_an_unknown_shape_is_not_folded(parse_graph: Build) -> None:
    graph = parse_graph("g (float[3] x) => (int64[2] y) { n = NonZero(x) y = Shape(n) }")

    assert _states(graph) == {"n": "skipped", "y": "skipped"}


def _int(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


ARITHMETIC = [
    ("Div", [_int(-7, 7, -8), _int(2, -2, 3)], {}),
    ("Mod", [_int(-7, 7), _int(3, -3)], {}),
    ("Mod", [_int(-7, 7), _int(3, -3)], {"fmod": 1}),
    ("Slice", [_int(0, 1, 2, 3, 4), _int(-1), _int(-(2**63)), _int(0), _int(-2)], {}),
    ("Slice", [np.arange(12).reshape(3, 4), _int(1, 0), _int(2**63 - 1, -1), _int(1, 0)], {}),
    ("Split", [_int(1, 2, 3, 4), _int(1, 3)], {}),
    ("Squeeze", [_int(5).reshape(1, 1), _int(0)], {}),
    ("Squeeze", [_int(5).reshape(1, 1)], {}),
    ("Unsqueeze", [_int(5, 6), _int(-1, 0)], {}),
    ("Reshape", [_int(1, 2, 3, 4), _int(2, -1)], {}),
    ("Reshape", [_int(1, 2, 3, 4).reshape(2, 2), _int(0, 1, 2)], {}),
    ("Flatten", [np.arange(8).reshape(2, 2, 2)], {"axis": -1}),
    ("Concat", [_int(1), _int(2, 3)], {"axis": -1}),
    ("Gather", [np.arange(6).reshape(2, 3), _int(-1, 0)], {"axis": 1}),
    ("Range", [np.asarray(5), np.asarray(-3), np.asarray(-2)], {}),
    ("Range", [np.asarray(5), np.asarray(3), np.asarray(1)], {}),
    ("Expand", [_int(1, 2).reshape(2, 1), _int(1, 3)], {}),
    ("Tile", [_int(1, 2), _int(3)], {}),
    ("Where", [np.asarray([True, False]), _int(1), _int(2, 3)], {}),
    ("Max", [_int(1, 5), _int(3), _int(2, 2)], {}),
    ("ReduceProd", [np.arange(1, 7).reshape(2, 3)], {"keepdims": 0}),
    ("ReduceSum", [np.arange(6).reshape(2, 3), _int(-1)], {}),
    ("ReduceMax", [np.arange(6).reshape(2, 3), _int(0)], {"keepdims": 0}),
    ("Transpose", [np.arange(6).reshape(2, 3)], {}),
    ("NonZero", [_int(0, 3, 0, 4)], {}),
    ("Pow", [_int(2, 3), _int(3, 2)], {}),
    ("Cast", [np.asarray([1.7, -1.7], np.float32)], {"to": 7}),
    ("Cast", [_int(0, 3)], {"to": 9}),
    ("Floor", [np.asarray([1.7, -1.2], np.float32)], {}),
    ("Round", [np.asarray([0.5, 1.5, -2.5], np.float32)], {}),
    ("Sqrt", [np.asarray([2.0], np.float32)], {}),
    ("Equal", [_int(1, 2), _int(1)], {}),
    ("Not", [np.asarray([True, False])], {}),
    ("Sign", [_int(-3, 0, 9)], {}),
    ("ConstantOfShape", [_int(2, 2)], {"value": onnx.numpy_helper.from_array(_int(7))}),
]


@pytest.mark.parametrize(("op_type", "inputs", "attributes"), ARITHMETIC)
def test_arithmetic_agrees_with_the_reference(op_type: str, inputs: list[np.ndarray], attributes: dict) -> None:
    names = [f"i{slot}" for slot in range(len(inputs))]
    outputs = ["y", "z"] if op_type == "Split" else ["y"]
    node = helper.make_node(op_type, names, outputs, **attributes)

    found = evaluate(node, inputs)

    graph_inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph(
        [node], "g", graph_inputs, [helper.make_empty_tensor_value_info(name) for name in outputs]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    wanted = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("node", "inputs"),
    [
        (helper.make_node("Div", ["a", "b"], ["y"]), [_int(1), _int(0)]),
        (helper.make_node("Add", ["a", "b"], ["y"], broadcast=1, axis=0), [_int(1, 2), _int(1)]),
        (helper.make_node("Gather", ["a", "b"], ["y"]), [_int(1, 2), _int(5)]),
        (helper.make_node("Reshape", ["a", "b"], ["y"]), [_int(1, 2), _int(3)]),
        (helper.make_node("Range", ["a", "b", "c"], ["y"]), [np.asarray(0), np.asarray(1), np.asarray(0)]),
        (helper.make_node("Squeeze", ["a", "b"], ["y"]), [_int(1, 2), _int(4)]),
        (helper.make_node("Exp", ["a"], ["y"]), [np.ones(1, np.float32)]),
        (helper.make_node("Concat", ["a", "b"], ["y"], axis=0), [np.zeros(EVALUATED_ELEMENTS, np.int64), _int(1)]),
        (helper.make_node("Cast", ["a"], ["y"], to=onnx.TensorProto.STRING), [_int(1)]),
    ],
)
def test_what_is_not_exact_or_not_legal_has_no_value(node: onnx.NodeProto, inputs: list[np.ndarray]) -> None:
    with pytest.raises(Unevaluated):
        evaluate(node, inputs)


def test_a_repetition_of_nothing_takes_no_memory() -> None:
    node = helper.make_node("Tile", ["x", "n"], ["y"])

    (tiled,) = evaluate(node, [np.ones((1, 1), np.int64), np.array([1 << 40, 0])])

    assert tiled.shape == (1 << 40, 0)
