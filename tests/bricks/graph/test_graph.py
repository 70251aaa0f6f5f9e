"""The ModelGraph: layers, states, wiring and keys, on small models; ``test_corpus.py`` has those of the onnx wheel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import networkx as nx
import onnx
import onnx.backend.test
import pytest
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph, deciding_inputs
from dlbricks.bricks.layer import LayerState, TensorType
from dlbricks.errors import BrokenModel
from dlbricks.models import find_models
from dlbricks.models.skeleton import Skeleton

Build = Callable[..., ModelGraph]


def test_edges_carry_values_slots_and_types(parse_graph: Build) -> None:
    graph = parse_graph("g (float[2, 3] x) => (float[2, 6] y) { h = Relu(x) y = Concat<axis = 1>(h, h) }")

    edges = list(graph.graph.edges(keys=True, data=True))
    kind = TensorType("float", (2, 3))
    assert edges == [
        (0, 1, ("h", 0), {"value": "h", "slot": 0, "type": kind}),
        (0, 1, ("h", 1), {"value": "h", "slot": 1, "type": kind}),
    ]
    assert graph.graph.nodes[1]["layer"] is graph.layers[1]
    assert graph.inputs == {"x": kind}
    assert graph.outputs == ("y",)


def test_readers_at_inference_exclude_folded_layers(parse_graph: Build) -> None:
    graph = parse_graph(
        "g (float[2, 3] x) => (float[2, 3] y) { h = Relu(x) s = Shape(h) r = Neg(h) y = Reshape(r, s) }"
    )

    assert graph.consumers("h") == (2,)
    assert graph.graph.has_edge(0, 1)
    assert graph.producer("h") == 0
    assert graph.producer("x") is None
    assert graph.consumers("y") == ()


def test_outputs_that_nothing_reads_are_not_wanted(parse_graph: Build) -> None:
    pool = "MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)"
    text = f"g (float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y) {{ y%s = {pool} %s }}"
    plain = parse_graph(text % ("", "")).layers[0]
    unread = parse_graph(text % (", i", "")).layers[0]
    read = parse_graph(text % (", i", "z = Neg(i)")).layers[0]

    assert plain.key == unread.key != read.key
    assert unread.outputs == ("y",)
    assert read.outputs == ("y", "i")


def test_a_layer_that_nothing_needs_keeps_its_outputs(parse_graph: Build) -> None:
    graph = parse_graph(
        "g (float[4, 1, 3] x, float[1, 8, 3] w, float[1, 8, 2] w1) => (float[4, 1, 3] y) "
        "{ y = Relu(x) a, b, c = LSTM<hidden_size = 2>(x, w, w1) }"
    )

    assert graph.layers[1].state is LayerState.LIVE
    assert graph.layers[1].outputs == ("a", "b", "c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[2] x) => (float[2] y) { y = Relu(nowhere) }", "reads 'nowhere'"),
        ("g (float[2] x) => (float[2] y) { y = Relu(h) h = Neg(x) }", "reads 'h', which nothing before it makes"),
        ("g (float[2] x) => (float[2] y) { y = Relu(x) y = Neg(x) }", "makes 'y', which exists already"),
        ("g (float[2] x) => (float[2] y) { x = Relu(x) }", "makes 'x', which exists already"),
        ("g (float[2] x) => (float[2] y) { z = Relu(x) }", "nothing makes the output 'y'"),
    ],
)
def test_what_is_no_graph_is_broken(text: str, message: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')

    with pytest.raises(BrokenModel, match=message):
        build_graph(Skeleton(model))


def test_an_illegal_operator_is_skipped_with_its_reason(parse_graph: Build) -> None:
    """Its output's type is only what the file says: no inference agrees with it."""
    graph = parse_graph("g (float[2, 3] x) => (float[2, 3] y) { y = Concat<axis = 7>(x, x) z = Relu(x) }")

    assert [layer.state.value for layer in graph.layers] == ["skipped", "live"]
    assert "axis 7 of rank 2" in graph.layers[0].reason


def test_runtime_operators_in_onnx_domain_are_known() -> None:
    text = "g (float[2, 4] x, float[4] s) => (float[2, 4] y) { y = LayerNormalization<axis = -1>(x, s) }"
    keys = set()
    for opset in (12, 17):
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
        layer = build_graph(Skeleton(model)).layers[0]
        assert layer.canonical_opsets == (("", 21),)
        keys.add(layer.key)

    assert len(keys) == 1


def test_operators_of_other_domains_keep_their_form() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[2, 4] x) => (float[2, 4] y) '
        "{ y = com.microsoft.Gelu(x) z = com.microsoft.BiasGelu<b = 2, a = 1>(x, x) }"
    )
    layer = build_graph(Skeleton(model)).layers[0]

    assert layer.state is LayerState.LIVE
    assert layer.canonical.domain == "com.microsoft"
    assert layer.canonical_opsets == (("com.microsoft", 1),)


def test_the_model_key_ignores_names_and_weight_values() -> None:
    def key(prefix: str, value: float, op_type: str = "Relu") -> str:
        weights = ", ".join([str(value)] * 20)
        text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[2, 20] {prefix}x) => (float[2, 20] {prefix}y)
        <float[20] {prefix}k = {{{weights}}}> {{
            {prefix}h = Add({prefix}x, {prefix}k)
            {prefix}s = NonZero({prefix}h)
            {prefix}y = {op_type}({prefix}h)
        }}"""
        return build_graph(Skeleton(onnx.parser.parse_model(text))).key

    assert key("a", 1) == key("b", 2)
    assert key("a", 1) != key("a", 1, "Neg")


def test_the_model_key_covers_wiring_and_outputs(parse_graph: Build) -> None:
    text = "g (float[2] x, float[2] u) => (float[2] y%s) { h = Relu(x) i = Relu(u) y = Sub(%s) }"
    keys = {
        parse_graph(text % filled).key
        for filled in (("", "h, i"), ("", "i, h"), ("", "h, h"), (", float[2] h", "h, i"), (", float[2] i", "h, i"))
    }

    assert len(keys) == 5


@pytest.mark.parametrize(("version", "same"), [(3, True), (10, False)], ids=["before IR 4", "since"])
def test_weights_that_a_caller_may_override_make_another_model(version: int, same: bool, tmp_path: Path) -> None:
    """Runtimes neither fold nor pack such weights: the model is slower than its twin."""

    def key(*, inputs: str) -> str:
        weights = ", ".join(["0.5"] * 16)
        model = onnx.parser.parse_model(
            f"""<ir_version: {version}, opset_import: ["" : 17]> g (float[2, 4] x{inputs}) => (float[2, 4] y)
            <float[4, 4] w = {{{weights}}}> {{ y = MatMul(x, w) }}"""
        )
        onnx.save(model, tmp_path / "model.onnx")
        (source,) = find_models([tmp_path / "model.onnx"])
        return build_graph(replace(source.skeleton(), contents="")).key

    assert (key(inputs="") == key(inputs=", float[4, 4] w")) == same


def test_the_graph_cannot_be_changed(parse_graph: Build) -> None:
    graph = parse_graph("g (float[2] x) => (float[2] y) { y = Relu(x) }")

    with pytest.raises(nx.NetworkXError):
        graph.graph.add_edge(0, 0)


def test_inputs_and_outputs_may_be_the_same_value(parse_graph: Build) -> None:
    graph = parse_graph("g (float[2] x, float[2] u) => (float[2] x, float[2] y, float[2] y) { y = Relu(x) }")

    assert graph.outputs == ("x", "y", "y")
    assert list(graph.inputs) == ["x", "u"]


def test_inputs_whose_values_decide_shapes(parse_graph: Build) -> None:
    graph = parse_graph(
        """g (float[1, 3, 8, 8] x, float[1] ratio, int64[2] size, float[1, 3, 8, 8] like) => (float[a, b, c, d] y)
        <float[2] ones = {1, 1}> {
            s = Concat<axis = 0>(ones, ratio, ratio)
            r = Resize<mode = "linear">(x, , s)
            n = Shape(like)
            e = Expand(x, n)
            f = Reshape(e, size)
            y = Identity(r)
            z = Identity(f)
        }"""
    )

    assert deciding_inputs(graph) == ("ratio", "size")
