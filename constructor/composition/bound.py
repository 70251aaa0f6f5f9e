"""The lower bound: how fast a model could be here, from the best that is stored of any bricks that make it up.

A *cover* is a way to cut the model into windows that are all measured. Every window costs the lowest latency of its
brick over all stacks and variants (frameworks, versions, options, algorithms) on the same system and device, at the
same precision, threads and cache state. Bricks of at most G layers compete, whatever the granularity that the estimate
itself is composed at: a larger G lets longer stored bricks, in which layers may be fused, compete with their parts, so
that the sequential bound never grows with G. The critical path is minimised on its own, over a few covers; it assumes
that branches which run at once do not contend (Benanza section III.D).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...bricks.cutting.windows import KeyedWindow
from ...errors import InvalidSequence
from .composition import Quotient, contract, critical_path, sequential
from .cover import Window, cheapest_cover

__all__ = ["Cover", "LowerBound", "further_covers", "lower_bound"]


@dataclass(frozen=True, slots=True)
class Cover:
    """Windows that hold every layer of a model once.

    Attributes:
        quotient: Their quotient DAG.
        keys: Key of the brick of each.
    """

    quotient: Quotient
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Lower bounds, in the unit of the latencies given.

    Attributes:
        sequential: Least sum of lowest latencies.
        critical_path: Least of the greatest sums along a path; at most ``sequential``.
        sequential_keys: Bricks of the cover that ``sequential`` is of.
        critical_path_keys: Bricks of the cover that ``critical_path`` is of.
        path_keys: Those of them on the path.
    """

    sequential: float
    critical_path: float
    sequential_keys: tuple[str, ...]
    critical_path_keys: tuple[str, ...]
    path_keys: tuple[str, ...]


def further_covers(
    edges: Iterable[tuple[int, int]], live: Sequence[int], windows: Iterable[KeyedWindow], lowest: Mapping[str, float]
) -> list[Cover]:
    """Covers that are worth trying beside the one that was asked for: the cheapest, and all layers one by one.

    Args:
        edges: (producer, consumer) pairs of layer indices.
        live: Indices of the layers to cover, in order.
        windows: Every window that may be taken.
        lowest: Lowest latency per key.

    Returns:
        Those that are measured and can be run: windows that wait for each other in a circle are no cover.
    """
    edges = tuple(edges)
    measured = [window for window in windows if window.key in lowest]
    found: list[Cover] = []
    for choice in (measured, [window for window in measured if window.end == window.begin + 1]):
        candidates = [Window(window.begin, window.end, lowest[window.key]) for window in choice]
        try:
            cover = [choice[position] for position in cheapest_cover(candidates, len(live))]
            quotient = contract(edges, [live[window.begin : window.end] for window in cover])
        except InvalidSequence:
            continue
        found.append(Cover(quotient, tuple(window.key for window in cover)))
    return found


def lower_bound(covers: Iterable[Cover], lowest: Mapping[str, float]) -> LowerBound | None:
    """The least latencies among covers.

    Args:
        covers: Candidates.
        lowest: Lowest latency per key.

    Returns:
        None where every cover has a brick that is not measured anywhere: a sum without it would be no bound.
    """
    sums: list[tuple[float, tuple[str, ...]]] = []
    paths: list[tuple[float, tuple[str, ...], tuple[str, ...]]] = []
    for cover in covers:
        if all(key in lowest for key in cover.keys):
            latencies = [lowest[key] for key in cover.keys]
            sums.append((sequential(latencies), cover.keys))
            path = critical_path(cover.quotient, latencies)
            paths.append((path.latency, cover.keys, tuple(cover.keys[position] for position in path.members)))
    if not sums:
        return None
    (least_sum, of_sum), (least_path, of_path, members) = min(sums), min(paths)
    return LowerBound(least_sum, least_path, of_sum, of_path, members)
