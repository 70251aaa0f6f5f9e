"""Algorithms 1 and 2 of DLBricks: cut a model into sequences of at most G layers.

The paper walks the layers in order. A window of G layers that forms a valid network becomes one sequence; otherwise
its first layer becomes a sequence of its own and a window of the same width is tried one layer further on. The
recursion of Algorithm 2 is the iteration below: the window that is tried after a failure depends on its first layer
alone. Windows are half-open, ``[begin, end)``, and clamped at the end; the indices as printed are off by one.

A window is valid when it is a simple path, each layer feeding the next, whose interior values are used only inside it
and are no model outputs; other inputs may come from outside. ``connected`` relaxes this to weakly connected windows,
whose interior values may be used elsewhere too. Besides, an opset must exist that all layers of a window can be written
for. A single layer is always valid.
"""

from __future__ import annotations

from ...errors import UsageError
from ..graph.flow import Flow, common_opsets, flow_of, is_empty
from ..graph.graph import ModelGraph

__all__ = ["spans", "split"]


def split(
    graph: ModelGraph, granularity: int, *, overlap: bool = False, connected: bool = False
) -> list[tuple[int, ...]]:
    """Cut the live layers of a model into windows.

    Takes O(layers) steps at G = 1 and O(layers * G) at most: an obstacle that a failed window met is remembered, and
    windows that would meet it again are not tried.

    Args:
        graph: The model.
        granularity: G, the largest number of layers in a window.
        overlap: Begin a window at *every* layer (stride 1) instead of behind the last one, and add every layer as a
            window of its own. The windows without overlap are among them, and so are the covers that begin at any
            other offset: what is composed later may choose the cheapest.
        connected: Accept weakly connected windows.

    Returns:
        Windows as ascending layer indices, ordered by first layer, then length. Without ``overlap`` every live layer
        is in exactly one.

    Raises:
        UsageError: ``granularity`` is less than 1.
    """
    found = spans(flow_of(graph), granularity, overlap=overlap, connected=connected)
    return [graph.live[begin:end] for begin, end in found]


def spans(flow: Flow, granularity: int, *, overlap: bool = False, connected: bool = False) -> list[tuple[int, int]]:
    """The same over any dataflow: that of layers, or that of units (``flow_over``).

    Returns:
        Half-open windows of positions.

    Raises:
        UsageError: As ``split``.
    """
    if granularity < 1:
        raise UsageError(f"granularity {granularity} is less than 1", remedy="give the number of layers per sequence")
    size = len(flow.last_use)
    obstacle = _connection_obstacle if connected else _path_obstacle
    chosen: list[tuple[int, int]] = []
    begin = retry = 0
    while begin < size:
        end = min(begin + granularity, size)
        if retry <= begin:
            retry = max(obstacle(flow, begin, end, granularity), _opset_obstacle(flow, begin, end))
        valid = retry <= begin
        if overlap or not valid:
            chosen.append((begin, begin + 1))
        if valid and not (overlap and end == begin + 1):
            chosen.append((begin, end))
        begin = end if valid and not overlap else begin + 1
    return chosen


def _opset_obstacle(flow: Flow, begin: int, end: int) -> int:
    """The first later begin at which no opset conflict of ``[begin, end)`` is left; 0 where it has none."""
    common = None
    for position in reversed(range(begin, end)):
        common = common_opsets((common, flow.opsets[position]))
        if is_empty(common):
            return position + 1
    return 0


def _path_obstacle(flow: Flow, begin: int, end: int, granularity: int) -> int:
    """The first later begin at which what makes ``[begin, end)`` no path may be gone; 0 where it is a path."""
    retry = 0
    size = len(flow.last_use)
    for interior in range(begin, end - 1):
        last = flow.last_use[interior]
        if not flow.feeds_next[interior] or last >= size:
            retry = max(retry, interior + 1)
        elif last >= end:  # gone once the layer is left behind, or once a window reaches its last reader
            retry = max(retry, min(interior + 1, last + 1 - granularity))
    return retry


def _connection_obstacle(flow: Flow, begin: int, end: int, _granularity: int) -> int:
    """``begin + 1`` where ``[begin, end)`` is not weakly connected; 0 where it is.

    A window that holds both ends of a way through a skipped layer would wait for its own result: it is refused too.
    """
    if any(flow.detour[position] >= begin for position in range(begin + 1, end)):
        return begin + 1
    reached = {begin}
    frontier = [begin]
    while frontier:
        position = frontier.pop()
        for neighbour in flow.neighbours[position]:
            if begin <= neighbour < end and neighbour not in reached:
                reached.add(neighbour)
                frontier.append(neighbour)
    return 0 if len(reached) == end - begin else begin + 1
