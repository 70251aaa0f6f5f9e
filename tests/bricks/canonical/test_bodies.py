"""Control flow: bodies are canonical and free of names, or the layer is skipped with its reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from dlbricks.bricks.cutting.sequences import make_sequence
from dlbricks.bricks.graph.model_graph import CAPTURE, ModelGraph, build_graph
from dlbricks.bricks.layer import Layer, LayerState
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.models.normal import normalise
from dlbricks.models.skeleton import Skeleton
from onnx import numpy_helper

from ..rebuild import reference

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


def _execute(graph: ModelGraph, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The output of the brick of a model's control flow."""
    (layer,) = [layer for layer in graph.layers if layer.op_type in {"If", "Loop"}]
    assert layer.state is LayerState.LIVE, layer.reason
    part = make_sequence(graph, (layer.index,))
    brick = build_brick(graph, part)
    assert load_brick(brick.model, expected=part.key).key == part.key
    model = onnx.ModelProto.FromString(brick.model)
    onnx.checker.check_model(model, full_check=True)
    return reference(
        model, {value.name: feeds[name] for value, name in zip(model.graph.input, part.inputs, strict=True)}
    )[0]


@pytest.mark.parametrize("condition", [True, False])
def test_if_computes_the_same_with_its_constants_inside(condition: bool) -> None:
    found = _execute(_if(), {"c": np.asarray(condition)})

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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(bool c, float[20] x) => (float[20] y) { k = Relu(x) BRANCH }", "'k'"),
        ("(bool c, float[20] k) => (float[20] y) { BRANCH }", "'k'"),
        ("(bool c) => (float[20] y) { BRANCH }", "holds weights"),
    ],
    ids=["an activation", "an input", "weights"],
)
def test_a_body_that_reads_what_is_no_small_constant_is_skipped(text: str, reason: str) -> None:
    branch = """y = If(c) <then_branch = a () => (float[20] r) { r = Neg(k) },
                          else_branch = b () => (float[20] s) { s = Identity(k) }>"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text.replace("BRANCH", branch)}')
    if "weights" in reason:
        model.graph.initializer.append(numpy_helper.from_array(np.arange(20, dtype=np.float32), "k"))
    graph = build_graph(Skeleton(normalise(model).model))

    layer = _only(graph, "If")
    assert layer.state is LayerState.SKIPPED
    assert reason in layer.reason
    if "Relu" in text:
        assert graph.consumers("k") == (layer.index,)
        assert graph.graph.has_edge(0, layer.index, ("k", CAPTURE))


def test_a_body_that_reads_a_weight_is_skipped(parse_graph: Build) -> None:
    graph = parse_graph(
        """g (bool c, float[3000] w) => (float[3000] y) {
            y = If(c) <then_branch = a () => (float[3000] r) { r = Neg(w) },
                       else_branch = b () => (float[3000] s) { s = Identity(w) }>
        }"""
    )

    assert "weight 'w'" in _only(graph, "If").reason


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


@pytest.mark.parametrize("model", [_loop, _branch_in_a_loop])
def test_bodies_compute_the_same_and_keep_their_key(model: Callable[[], onnx.ModelProto]) -> None:
    graph = build_graph(Skeleton(model()))
    x = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)

    np.testing.assert_allclose(_execute(graph, {"x": x}), reference(model(), {"x": x})[0], rtol=1e-6)
    assert b"outer" not in _only(graph, "Loop").canonical.SerializeToString()


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
    graph = build_graph(Skeleton(model))

    assert [float(_execute(graph, {"c": np.asarray(value)})[0]) for value in (True, False)] == [-2, -7]
