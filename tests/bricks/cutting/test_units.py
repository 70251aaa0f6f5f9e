"""Units: every live layer in one, none waits for itself, and windows of them are bricks."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import onnx
import pytest
from dlbricks.bricks.cutting.fused import units_of
from dlbricks.bricks.cutting.sequences import make_sequence, spans, split
from dlbricks.bricks.graph.flow import flow_over
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.bricks.layer import LayerState
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.models.skeleton import Skeleton
from hypothesis import given
from hypothesis import strategies as st

DrawModel = Callable[[st.DataObject], onnx.ModelProto]
ParseGraph = Callable[..., ModelGraph]

DIAMOND = "m (float[4] x) => (float[4] y) {a = Relu(x) b = Exp(a) c = Sqrt(a) d = Add(b, c) y = Neg(d)}"


def contracted(graph: ModelGraph, groups: list[tuple[int, ...]]) -> nx.DiGraph[int]:
    """The model's DAG, straight from its definition, with every group as one node."""
    place = {index: -1 - number for number, group in enumerate(groups) for index in group}
    flow = nx.DiGraph()
    for maker, reader in graph.graph.edges():
        if LayerState.FOLDED in {graph.layers[maker].state, graph.layers[reader].state}:
            continue
        one, other = place.get(maker, maker), place.get(reader, reader)
        if one != other:
            flow.add_edge(one, other)
    return flow


@given(data=st.data())
def test_units_are_bricks_that_hold_every_live_layer_once(draw_model: DrawModel, data: st.DataObject) -> None:
    graph = build_graph(Skeleton(draw_model(data)))
    layers = st.sets(st.integers(0, len(graph.layers) - 1), max_size=4)
    wishes = data.draw(st.lists(layers, max_size=4))

    units = units_of(graph, wishes)

    assert sorted(index for group in units.groups for index in group) == list(graph.live)
    assert nx.is_directed_acyclic_graph(contracted(graph, list(units.groups)))
    for group in units.groups:
        sequence = make_sequence(graph, group)
        load_brick(build_brick(graph, sequence).model, expected=sequence.key)
    kept = [set(group) for group in units.groups]
    broken = {index for group in units.reasons for index in group}
    for wish in (wish & set(graph.live) for wish in wishes):
        assert not wish or wish & broken or any(wish <= group for group in kept)


@given(data=st.data())
def test_windows_of_units_are_bricks_too(draw_model: DrawModel, data: st.DataObject) -> None:
    graph = build_graph(Skeleton(draw_model(data)))
    pairs = [{one, other} for one, other in graph.graph.edges()]
    wishes = data.draw(st.lists(st.sampled_from(pairs), max_size=4)) if pairs else []
    connected, granularity = data.draw(st.booleans()), data.draw(st.integers(1, 4))
    groups = units_of(graph, wishes).groups

    found = spans(flow_over(graph, groups), granularity, connected=connected)

    assert [place for begin, end in found for place in range(begin, end)] == list(range(len(groups)))
    windows = [tuple(sorted(i for group in groups[begin:end] for i in group)) for begin, end in found]
    assert nx.is_directed_acyclic_graph(contracted(graph, windows))
    for window in windows:
        sequence = make_sequence(graph, window)
        load_brick(build_brick(graph, sequence).model, expected=sequence.key)


@given(data=st.data(), granularity=st.integers(1, 5), overlap=st.booleans(), connected=st.booleans())
def test_units_of_one_layer_are_split_like_layers(
    draw_model: DrawModel, data: st.DataObject, granularity: int, overlap: bool, connected: bool
) -> None:
    graph = build_graph(Skeleton(draw_model(data)))
    single = [(index,) for index in graph.live]

    found = spans(flow_over(graph, single), granularity, overlap=overlap, connected=connected)
    assert [graph.live[begin:end] for begin, end in found] == split(
        graph, granularity, overlap=overlap, connected=connected
    )


@pytest.mark.parametrize(
    ("wishes", "groups", "cut"),
    [
        ([], [(0,), (1,), (2,), (3,), (4,)], []),
        ([{1, 3}], [(0,), (2,), (1, 3), (4,)], []),
        ([{0, 1}, {1, 3}], [(0, 1), (2,), (3,), (4,)], [(0, 1, 3)]),  # c would stand between its layers
        ([{0, 1, 2, 3}], [(0, 1, 2, 3), (4,)], []),
        ([{1, 2}], [(0,), (1, 2), (3,), (4,)], []),  # not connected, and yet a network
    ],
)
def test_a_group_that_waits_for_itself_is_cut(
    parse_graph: ParseGraph, wishes: list[set[int]], groups: list[tuple[int, ...]], cut: list[tuple[int, ...]]
) -> None:
    units = units_of(parse_graph(DIAMOND), wishes)

    assert list(units.groups) == groups
    assert sorted(units.reasons) == cut
    assert all("wait for its own result" in why for why in units.reasons.values())


def test_of_groups_that_wait_for_each_other_one_is_cut(parse_graph: ParseGraph) -> None:
    graph = parse_graph(
        "m (float[4] x, float[4] z) => (float[4] y, float[4] u) {a = Relu(x) b = Exp(z) y = Sqrt(b) u = Neg(a)}"
    )

    units = units_of(graph, [{0, 2}, {1, 3}])  # the one makes what the other reads, and reads what it makes

    assert len(units.groups) == 3
    assert len(units.reasons) == 1
