"""Control flow in graphs: what is written out, along which course, and who said so."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.control import given_courses
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.bricks.layer import LayerState
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.models import find_models
from dlbricks.models.control_flow import CourseChoice, How
from speech import generation, speech_detector

HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def graph_of(
    model: onnx.ModelProto, path: Path, *choices: CourseChoice, dims: dict[str, int] | None = None
) -> ModelGraph:
    onnx.save(model, path / "model.onnx")
    (source,) = find_models([path / "model.onnx"], dims=dims)
    return build_graph(replace(source, control=choices).skeleton())


def operators(graph: ModelGraph) -> Counter[str]:
    return Counter(layer.op_type for layer in graph.layers if layer.state is LayerState.LIVE)


def test_unknown_it_stays_one_layer(tmp_path: Path) -> None:
    graph = graph_of(speech_detector(), tmp_path)
    (flow,) = graph.control
    assert (flow.name, flow.how, flow.course, flow.layers) == ("If_0", "unknown", "", 0)
    assert "--branch" in flow.reason
    assert [layer.op_type for layer in graph.layers] == ["Equal", "If"]


@pytest.mark.parametrize(
    ("trips", "goes_on", "state"),
    [
        ("n", "d = Identity(c)", LayerState.LIVE),
        ("m", "d = Identity(c)", LayerState.SKIPPED),
        ("n", "z = Constant <value_int = 0> () d = Greater(z, i)", LayerState.SKIPPED),
    ],
    ids=["counts to a constant", "counts to an input", "ends by a condition"],
)
def test_a_loop_is_a_brick_only_if_the_file_tells_how_often_it_runs(trips, goes_on, state, tmp_path: Path) -> None:
    """On made-up values another one may run once or always."""
    text = (
        f'{HEAD} g (float[4] x, int64 m) => (float[4] y) <int64 n = {{3}}> {{ y = Loop({trips}, "", x)'
        f" <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t) {{ {goes_on} t = Neg(s) }}> }}"
    )

    (layer,) = graph_of(onnx.parser.parse_model(text), tmp_path).layers

    assert layer.state is state, layer.reason
    assert ("--trip observed" in layer.reason) is (state is LayerState.SKIPPED)


@pytest.mark.parametrize("branch", ["then", "else"])
@pytest.mark.parametrize("node", ["", "If_0"])
def test_a_branch_that_is_given(branch: str, node: str, tmp_path: Path) -> None:
    graph = graph_of(speech_detector(), tmp_path, CourseChoice(node, branch))
    (flow,) = graph.control
    assert (flow.how, flow.course, flow.times, flow.layers) == ("given", branch, 1, len(graph.layers) - 1)
    found = operators(graph)
    assert (found["Conv"], found["LSTM"], found["Equal"]) == (5, 1, 1)
    assert found["If"] == 1  # what it takes beyond its branch
    assert all(layer.state is LayerState.LIVE for layer in graph.layers)
    assert given_courses(graph.control) == [CourseChoice("If_0", branch)]
    wide = next(layer for layer in graph.layers if layer.op_type == "LSTM").operands[1].type
    assert wide is not None
    assert wide.shape == (1, 512, 128)


def test_who_said_a_course_and_that_each_is_another_model(tmp_path: Path) -> None:
    choices = [(), (CourseChoice("", "then"),), (CourseChoice("", "else"),), (CourseChoice("If_1", "then"),)]
    graphs = [graph_of(speech_detector(), tmp_path, *one) for one in choices]
    observed = graph_of(speech_detector(), tmp_path, CourseChoice("If_0", "then", How.OBSERVED))

    assert [graph.control[0].how for graph in (*graphs, observed)] == [
        "unknown", "given", "given", "unknown", "observed",
    ]  # fmt: skip
    assert given_courses(observed.control) == []
    assert len({graph.key for graph in graphs[:3]}) == 3
    assert graphs[0].key == graphs[3].key  # another operator's choice is none


def test_a_constant_condition_needs_no_word_and_costs_nothing(tmp_path: Path) -> None:
    text = (
        HEAD
        + """g (float[N,3] x) => (float[N,3] y) {
        s = Shape(x) first = Gather(s, zero) many = Greater(first, one)
        r = Relu(x)
        y = If(many) <
            then_branch = t () => (float[N,3] a) { a = Neg(r) },
            else_branch = e () => (float[N,3] b) { b = Abs(r) }
        >
    }"""
    )
    model = onnx.parser.parse_model(text)
    for name, value in (("zero", 0), ("one", 1)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    for size, kind, course in ((4, "Neg", "then"), (1, "Abs", "else")):
        graph = graph_of(model, tmp_path, CourseChoice("", "then"), dims={"N": size})
        assert operators(graph) == {"Relu": 1, kind: 1}
        (flow,) = graph.control
        assert (flow.how, flow.course, flow.reason) == ("resolved", course, "")


def test_a_counted_loop_that_captures_weights_is_written_out(tmp_path: Path) -> None:
    graph = graph_of(generation(trips=12), tmp_path)
    (flow,) = graph.control
    assert (flow.how, flow.course) == ("resolved", "12")
    found = operators(graph)
    assert (found["MatMul"], found["Tanh"], found["Concat"], found["Loop"]) == (24, 12, 1, 1)
    macs = sum(graph.layers[index].cost.macs for index in graph.live)  # type: ignore[union-attr]
    assert macs == 12 * 2 * 256 * 1024
    counts = Counter(part.key for part in sequences(graph, 1))
    assert sorted(counts.values()) == [1, 1, *[12] * 7]


def test_its_layers_are_bricks(tmp_path: Path) -> None:
    for model, choice in ((speech_detector(), CourseChoice("", "then")), (generation(), CourseChoice("", 3))):
        graph = graph_of(model, tmp_path, choice)
        for part in sequences(graph, 1):
            assert build_brick(graph, part).key == part.key


CLOSED = (
    HEAD
    + """g (float[2] x) => (float[2] y) <int64 n = {5}> {
    y = Loop(n, "", x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u) { d = Identity(c) u = Neg(v) }>
}"""
)


def test_a_counted_loop_that_is_a_brick_stays_one(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(CLOSED)
    graph = graph_of(model, tmp_path)
    assert operators(graph) == {"Loop": 1}
    (flow,) = graph.control
    assert (flow.how, flow.course, flow.layers) == ("resolved", "5", 0)
    written = graph_of(model, tmp_path, CourseChoice("", 5))
    assert operators(written) == {"Neg": 5, "Loop": 1}


def test_the_file_knows_better_than_the_caller(tmp_path: Path) -> None:
    graph = graph_of(onnx.parser.parse_model(CLOSED), tmp_path, CourseChoice("", 9))
    assert operators(graph)["Neg"] == 5
    assert graph.control[0].how == "resolved"


def test_what_iterations_stack_counts_as_layers(tmp_path: Path) -> None:
    names = range(60)
    body = (
        f"(int64 i, bool c, float[2] v) => (bool d, float[2] u, {', '.join(f'float[2] r{name}' for name in names)})"
        f"{{ d = Identity(c) u = Add(v, w) {' '.join(f'r{name} = Abs(w)' for name in names)} }}"
    )
    text = HEAD + (
        "g (float[2] x) => (float[2] y) <int64 n = {165}, bool true = {1}>"
        f"{{ w = Neg(x) y, {', '.join(f's{name}' for name in names)} = Loop(n, true, w) <body = b {body}> }}"
    )
    (flow,) = graph_of(onnx.parser.parse_model(text), tmp_path).control
    assert "more than 20000 layers" in flow.reason  # half of them are in the body


def test_no_iteration_and_stacked_results(tmp_path: Path) -> None:
    graph = graph_of(generation(), tmp_path, CourseChoice("", 0))
    (flow,) = graph.control
    assert (flow.how, flow.layers) == ("given", 0)
    assert "in no iteration" in flow.reason


def test_an_if_in_each_iteration_is_one_entry(tmp_path: Path) -> None:
    text = (
        HEAD
        + """g (float[2] x, bool c) => (float[2] y) <int64 n = {3}> {
        y = Loop(n, "", x) <body = b (int64 i, bool go, float[2] v) => (bool d, float[2] u) {
            d = Identity(go)
            u = If(c) <then_branch = t () => (float[2] p) { p = Neg(v) },
                       else_branch = e () => (float[2] q) { q = Abs(v) }>
        }>
    }"""
    )
    graph = graph_of(onnx.parser.parse_model(text), tmp_path, CourseChoice("", "else"))
    assert operators(graph) == {"Abs": 3, "If": 3, "Loop": 1}
    assert [(flow.op_type, flow.how, flow.times) for flow in graph.control] == [
        ("Loop", "resolved", 1),
        ("If", "given", 3),
    ]


@pytest.mark.parametrize("course", ["then", "else"])
def test_a_given_course_holds_for_all_executions_or_for_none(course: str, tmp_path: Path) -> None:
    text = (
        HEAD
        + """g (float[2] x) => (float[2] y) <int64 n = {3}, bool first = {1}, float zero = {0.0}> {
        y, last = Loop(n, "", x, first) <
            body = b (int64 i, bool go, float[2] v, bool early) => (bool d, float[2] u, bool late) {
                d = Identity(go)
                u = If(early) <then_branch = t () => (float[2] p) { p = Neg(v) },
                               else_branch = e () => (float[2] q) { q = Abs(v) }>
                sum = ReduceSum<keepdims = 0>(u) late = Less(sum, zero)
            }
        >
    }"""
    )
    graph = graph_of(onnx.parser.parse_model(text), tmp_path, CourseChoice("", course))
    (first, later) = (flow for flow in graph.control if flow.op_type == "If")
    assert (first.how, first.course, first.times) == ("resolved", "then", 1)
    if course == "then":
        assert (later.how, later.course, later.times) == ("given", "then", 2)
        assert given_courses(graph.control) == [CourseChoice("u", "then")]
    else:
        assert (later.how, later.course, later.times) == ("unknown", "", 2)
        assert "another course than else" in later.reason
        assert given_courses(graph.control) == []
