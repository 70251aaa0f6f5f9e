"""All windows at once are those of every cut, and have the keys that they have one by one."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from dlbricks.bricks.cutting.split import split
from dlbricks.bricks.cutting.windows import windows
from dlbricks.bricks.cutting.wiring import make_sequence
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.models.skeleton import Skeleton
from hypothesis import given
from hypothesis import strategies as st

DrawModel = Callable[[st.DataObject], onnx.ModelProto]


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
