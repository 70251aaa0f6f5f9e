"""Overlapping windows: which of them to compose a model from.

Where windows begin at every layer, a model can be cut in many ways; the cheapest way is taken: for an estimate from
overlapping sequences (DLBricks section 6), and for the lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ...errors import InvalidSequence

__all__ = ["Window", "cheapest_cover"]


@dataclass(frozen=True, slots=True)
class Window:
    """A window of consecutive layers, half-open.

    Attributes:
        begin: Position of the first layer.
        end: Position behind the last.
        latency: What it costs, in any unit; None where it is not measured.
    """

    begin: int
    end: int
    latency: float | None


def cheapest_cover(windows: Sequence[Window], size: int) -> list[int]:
    """Windows that hold each of ``size`` layers exactly once, at the smallest total latency.

    A shortest path over the cut points 0..size, on which a window is an edge; O(windows). What is not measured has no
    price: the cover with the fewest unmeasured layers comes first, then the lowest latency of the rest, then the fewest
    windows. Latencies are added exactly, so that more candidates never make a cover dearer, not by a rounding either.

    Args:
        windows: Candidates.
        size: Number of layers.

    Returns:
        Positions in ``windows``, in the order of the layers.

    Raises:
        InvalidSequence: No choice of windows holds every layer exactly once.
    """
    by_begin: list[list[int]] = [[] for _ in range(size + 1)]
    for position, window in enumerate(windows):
        by_begin[window.begin].append(position)
    cost: list[tuple[int, Fraction, int] | None] = [None] * (size + 1)
    chosen: list[int] = [-1] * (size + 1)
    cost[0] = (0, Fraction(0), 0)
    for begin in range(size):
        base = cost[begin]
        if base is None:
            continue
        missing, latency, count = base
        for position in by_begin[begin]:
            window = windows[position]
            unknown = window.end - begin if window.latency is None else 0
            candidate = (missing + unknown, latency + Fraction(window.latency or 0), count + 1)
            known = cost[window.end]
            if known is None or candidate < known:
                cost[window.end], chosen[window.end] = candidate, position
    if cost[size] is None:
        raise InvalidSequence(f"the sequences given cannot be joined to hold each of {size} layers once")
    cover: list[int] = []
    at = size
    while at > 0:
        cover.append(chosen[at])
        at = windows[chosen[at]].begin
    return cover[::-1]
