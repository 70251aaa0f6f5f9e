"""Algorithms 1 and 2 against a plain transcription of the paper, on random graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import networkx as nx
import onnx
import pytest
from dlbricks.bricks.cutting.sequences import make_sequence, split, windows
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.bricks.layer import LayerState
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.errors import InvalidSequence, UsageError
from dlbricks.models.skeleton import Skeleton
from hypothesis import given
from hypothesis import strategies as st

DrawModel = Callable[[st.DataObject], onnx.ModelProto]


def create_model(graph: ModelGraph, window: tuple[int, ...], connected: bool) -> tuple[int, ...]:
    """CreateModel of the paper: the window if it is a valid network, straight from the definition."""
    if len(window) == 1:
        return window
    inside = set(window)
    edges = nx.DiGraph(graph.graph)
    if connected:
        if not nx.is_weakly_connected(edges.subgraph(window)):
            raise InvalidSequence("not connected")
        skipped = [layer.index for layer in graph.layers if layer.state is LayerState.SKIPPED]
        around = edges.subgraph([*window, *skipped])
        for layer in skipped:
            if inside & nx.ancestors(around, layer) and inside & nx.descendants(around, layer):
                raise InvalidSequence("waits for its own result")
        return window
    for one, other in itertools.pairwise(window):
        if not edges.has_edge(one, other):
            raise InvalidSequence("not a path")
    for index in window[:-1]:
        for value in graph.layers[index].outputs:
            users = [user for user in graph.consumers(value) if graph.layers[user].state is not LayerState.FOLDED]
            if value in graph.outputs or not inside.issuperset(users):
                raise InvalidSequence("an interior value is used outside")
    return window


def split_model(
    graph: ModelGraph, verts: tuple[int, ...], begin: int, end: int, connected: bool
) -> tuple[list[tuple[int, ...]], int]:
    """Algorithm 2 with half-open windows, ``end`` clamped."""
    try:
        return [create_model(graph, verts[begin:end], connected)], end
    except InvalidSequence:
        single = create_model(graph, (verts[begin],), connected)
        rest, stop = split_model(graph, verts, begin + 1, min(end + 1, len(verts)), connected)
        return [single, *rest], stop


def find_model_subgraphs(graph: ModelGraph, granularity: int, connected: bool) -> list[tuple[int, ...]]:
    """Algorithm 1."""
    verts = graph.live
    begin = 0
    models: list[tuple[int, ...]] = []
    while begin < len(verts):
        found, begin = split_model(graph, verts, begin, min(begin + granularity, len(verts)), connected)
        models += found
    return models


@given(data=st.data(), granularity=st.integers(1, 8), connected=st.booleans())
def test_the_iteration_finds_what_the_paper_finds(
    draw_model: DrawModel, data: st.DataObject, granularity: int, connected: bool
) -> None:
    graph = build_graph(Skeleton(draw_model(data)))
    assert split(graph, granularity, connected=connected) == find_model_subgraphs(graph, granularity, connected)


@given(data=st.data(), granularity=st.integers(1, 8), connected=st.booleans())
def test_every_live_layer_is_in_exactly_one_window(
    draw_model: DrawModel, data: st.DataObject, granularity: int, connected: bool
) -> None:
    graph = build_graph(Skeleton(draw_model(data)))
    windows = split(graph, granularity, connected=connected)
    assert tuple(index for window in windows for index in window) == graph.live
    assert all(1 <= len(window) <= granularity for window in windows)


@given(data=st.data(), granularity=st.integers(1, 8), connected=st.booleans())
def test_overlapping_windows(draw_model: DrawModel, data: st.DataObject, granularity: int, connected: bool) -> None:
    graph = build_graph(Skeleton(draw_model(data)))
    windows = split(graph, granularity, overlap=True, connected=connected)
    assert len(set(windows)) == len(windows)
    assert windows == sorted(windows, key=lambda window: (window[0], len(window)))
    assert set(split(graph, granularity, connected=connected)) <= set(windows)
    assert {(index,) for index in graph.live} <= set(windows)
    for begin in range(len(graph.live)):
        window = graph.live[begin : begin + granularity]
        try:
            assert create_model(graph, window, connected) in windows
        except InvalidSequence:
            assert window not in windows


@pytest.mark.parametrize("granularity", [0, -3])
def test_granularity_below_one_is_a_usage_error(parse_graph: Callable[[str], ModelGraph], granularity: int) -> None:
    graph = parse_graph("agraph (float[4] x) => (float[4] y) { y = Relu(x) }")
    with pytest.raises(UsageError, match="granularity"):
        split(graph, granularity)


CHAIN = "(float[4] x) => (float[4] y) { a = Relu(x) b = Tanh(a) y = Sigmoid(b) }"
TWICE = "(float[4] x) => (float[4] y) { a = Relu(x) b = Tanh(a) y = Add(a, b) }"
OUTPUT = "(float[4] x) => (float[4] a, float[4] y) { a = Relu(x) y = Tanh(a) }"
BRANCHES = "(float[4] x) => (float[4] y) { s = Abs(x) a = Relu(s) b = Tanh(s) y = Add(a, b) }"


@pytest.mark.parametrize(
    ("text", "granularity", "connected", "windows"),
    [
        (CHAIN, 3, False, [(0, 1, 2)]),
        (CHAIN, 99, False, [(0, 1, 2)]),
        (CHAIN, 2, False, [(0, 1), (2,)]),
        (TWICE, 3, False, [(0, 1, 2)]),  # what is used twice inside the window stays inside
        (TWICE, 2, False, [(0,), (1, 2)]),
        (OUTPUT, 2, False, [(0,), (1,)]),  # an output of the model ends a window
        (OUTPUT, 2, True, [(0, 1)]),
        (BRANCHES, 4, False, [(0,), (1,), (2, 3)]),
        (BRANCHES, 4, True, [(0, 1, 2, 3)]),
    ],
)
def test_windows_of_small_graphs(
    parse_graph: Callable[[str], ModelGraph], text: str, granularity: int, connected: bool, windows: list[object]
) -> None:
    assert split(parse_graph(f"g {text}"), granularity, connected=connected) == windows


def test_a_window_needs_an_opset_that_all_its_layers_can_be_written_for() -> None:
    """A Softmax over several axes was withdrawn with the opset in which ReduceSum took its axes as an input."""
    text = """<ir_version: 8, opset_import: ["": 12]> g (float[2,3,4] x) => (float[2,1,4] y) {
        a = Relu(x) b = Softmax<axis=1>(a) y = ReduceSum<axes=[1]>(b) }"""
    graph = build_graph(Skeleton(onnx.parser.parse_model(text)))

    assert split(graph, 3) == [(0,), (1,), (2,)]
    assert split(graph, 2) == [(0, 1), (2,)]
    assert [(one.begin, one.end) for one in windows(graph, 3)] == [(0, 1), (0, 2), (1, 2), (2, 3)]
    brick = onnx.load_from_string(build_brick(graph, make_sequence(graph, (0, 1))).model)
    assert brick.opset_import[0].version == 12


def test_conversions_share_an_opset_with_pools_that_are_older_than_their_newest_attributes() -> None:
    """Cast got ``saturate`` with opset 19: at its default it says nothing, and is left out."""
    text = """<ir_version: 8, opset_import: ["": 13]> g (float16[1,3,8,8] x) => (float16[1,3,4,4] y) {
        a = Cast<to=1>(x) b = AveragePool<kernel_shape=[2,2], strides=[2,2]>(a) y = Cast<to=10>(b) }"""
    graph = build_graph(Skeleton(onnx.parser.parse_model(text)))

    assert split(graph, 3) == [(0, 1, 2)]
    brick = build_brick(graph, make_sequence(graph, (0, 1, 2)))
    written = onnx.load_from_string(brick.model)
    assert written.opset_import[0].version == 18
    onnx.checker.check_model(written, full_check=True)
    assert load_brick(brick.model, expected=brick.key).key == brick.key


# All windows at once are those of every cut, and have the keys that they have one by one ---------------------------


@given(data=st.data(), granularity=st.integers(1, 8), connected=st.booleans())
def test_the_windows_of_all_cuts(draw_model: DrawModel, data: st.DataObject, granularity: int, connected: bool) -> None:
    graph = build_graph(Skeleton(draw_model(data)))
    found = [graph.live[window.begin : window.end] for window in windows(graph, granularity, connected=connected)]
    cuts = [split(graph, size, overlap=True, connected=connected) for size in range(1, granularity + 1)]
    assert found == sorted({window for cut in cuts for window in cut}, key=lambda one: (one[0], len(one)))
    if connected:
        paths = {graph.live[window.begin : window.end] for window in windows(graph, granularity)}
        assert paths <= set(found)


@given(data=st.data(), connected=st.booleans())
def test_keys_are_those_of_the_sequences(draw_model: DrawModel, data: st.DataObject, connected: bool) -> None:
    graph = build_graph(Skeleton(draw_model(data)))
    for window in windows(graph, len(graph.live), connected=connected):
        assert window.key == make_sequence(graph, graph.live[window.begin : window.end]).key
