"""Every window of at most G layers that a brick can be made of, with the key of that brick.

``split`` chooses some of these windows; here are all of them, for whoever looks for the best choice. What makes a
window valid is said there. Begun at one layer and made longer step by step, a window of either kind takes O(1) steps
per layer to check, and its key costs little more than hashing what was added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..graph.flow import Flow, common_opsets, flow_of, is_empty
from ..graph.graph import ModelGraph
from .wiring import keys_from

__all__ = ["KeyedWindow", "windows"]


@dataclass(frozen=True, slots=True)
class KeyedWindow:
    """A window of consecutive live layers, half-open.

    Attributes:
        begin: Position of the first layer in ``ModelGraph.live``.
        end: Position behind the last.
        key: The key of its brick.
    """

    begin: int
    end: int
    key: str


def windows(graph: ModelGraph, granularity: int, *, connected: bool = False) -> Iterator[KeyedWindow]:
    """All valid windows of 1 to ``granularity`` layers: those of ``split`` at any smaller granularity, with any stride.

    Args:
        graph: The model.
        granularity: G, the largest number of layers in a window.
        connected: Weakly connected windows, which paths are among, instead of paths.

    Yields:
        Windows by first layer, then length.
    """
    flow = flow_of(graph)
    ends_of = _connected_ends if connected else _path_ends
    size = len(graph.live)
    for begin in range(size):
        ends = list(ends_of(flow, begin, min(begin + granularity, size)))
        for end, key in zip(ends, keys_from(graph, begin, ends), strict=True):
            yield KeyedWindow(begin, end, key)


def _path_ends(flow: Flow, begin: int, limit: int) -> Iterator[int]:
    """Ends, up to ``limit``, of the windows from ``begin`` that are paths."""
    last_use = -1
    opsets = flow.opsets[begin]
    yield begin + 1
    for added in range(begin + 1, limit):
        last_use = max(last_use, flow.last_use[added - 1])
        opsets = common_opsets((opsets, flow.opsets[added]))
        if not flow.feeds_next[added - 1] or last_use >= limit or is_empty(opsets):
            return
        if last_use <= added:
            yield added + 1


def _connected_ends(flow: Flow, begin: int, limit: int) -> Iterator[int]:
    """Ends, up to ``limit``, of the windows from ``begin`` that are weakly connected."""
    opsets = flow.opsets[begin]
    joined = [begin]  # for each layer another one that it is connected with; itself for one per part

    def part_of(position: int) -> int:
        while (other := joined[position - begin]) != position:
            joined[position - begin] = position = joined[other - begin]
        return position

    parts = 1
    yield begin + 1
    for added in range(begin + 1, limit):
        opsets = common_opsets((opsets, flow.opsets[added]))
        if flow.detour[added] >= begin or is_empty(opsets):
            return
        joined.append(added)
        reached = {part_of(other) for other in flow.neighbours[added] if begin <= other < added}
        for part in reached:
            joined[part - begin] = added
        parts += 1 - len(reached)
        if parts == 1:
            yield added + 1
