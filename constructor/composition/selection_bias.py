r"""How far a lower bound is off because it was chosen by noisy latencies.

The lowest of several noisy latencies is too low on average, also where all are of the same work: whoever was lucky is
taken (the winner's curse). A bound takes the lowest many times over, and a critical path the longest of several paths,
which is too long on average likewise. The cure is to choose by one look at the data and to read from another one that
is independent. For a normal :math:`x` with error :math:`e` drawn anew, :math:`x + e` and :math:`x - e` are such a pair:
both have twice its variance, and their covariance is zero (Rasines and Young 2023, "Splitting strategies for
post-selection inference", Biometrika 110). In each replicate bricks, cover and path are chosen anew by the one and read
from the other.

What is chosen so and read apart is never too low on average: it is a latency that the machine has, of a choice that may
not be the best. That is the most that a bound may be too low by. The least is what a bootstrap says: by how much the
minimum falls where the same errors are added once more. It finds nearly all of it where latencies are some errors
apart, and two fifths where they are equal. A path is too long by at most what the longest is longer than one that was
chosen apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...bricks.cutting.windows import KeyedWindow
from .bound import Cover
from .composition import Quotient, critical_path

__all__ = ["SelectionBias", "selection_bias"]

Array = NDArray[np.float64]

_Seen = Mapping[str, tuple[Array, Array]]
"""By key, what replicates choose by, and what they read."""


@dataclass(frozen=True, slots=True)
class SelectionBias:
    """By how much bounds are too low, in the unit of the latencies: at least, and at most.

    Attributes:
        sequential: The sequential bound.
        critical_path: The critical path; may be negative, since the longest of several paths is too long.
    """

    sequential: tuple[float, float]
    critical_path: tuple[float, float]


def selection_bias(
    covers: Sequence[Cover],
    windows: Sequence[KeyedWindow],
    size: int,
    latencies: Mapping[str, Sequence[float]],
    errors: Mapping[str, Array],
) -> SelectionBias:
    """How lucky the lowest of latencies and covers may have been.

    Args:
        covers: Those that the bound was chosen from, all measured.
        windows: Windows that further covers may be made of; the sequential bound alone is chosen from these.
        size: Number of layers that they cover.
        latencies: By key, those of all that competes.
        errors: By key, errors of these as they may be: one row each, a column per replicate.
    """
    seen: dict[str, tuple[Array, Array]] = {}
    taken: dict[str, tuple[Array, Array]] = {}
    alike: dict[int, list[str]] = {}
    for key, values in latencies.items():
        alike.setdefault(len(values), []).append(key)
    for keys in alike.values():  # those with as many rivals at once
        means = np.array([latencies[key] for key in keys], dtype=np.float64)[:, :, None]
        drawn = np.stack([errors[key] for key in keys])
        chosen_by, read = means + drawn, means - drawn
        best = chosen_by.argmin(axis=1)[:, None]
        lucky, honest = (np.take_along_axis(side, best, axis=1)[:, 0] for side in (chosen_by, read))
        for number, (key, lowest) in enumerate(zip(keys, means.argmin(axis=1)[:, 0], strict=True)):
            seen[key] = lucky[number], honest[number]
            taken[key] = chosen_by[number, lowest], read[number, lowest]
    plain = {key: min(values) for key, values in latencies.items()}
    sums = [(_summed(cover, seen, 0), _summed(cover, seen, 1)) for cover in covers]
    sums += _cheapest([window for window in windows if window.key in seen], size, seen)
    paths = [(_longest(cover, seen, 0, 0), _longest(cover, seen, 1, 1)) for cover in covers]
    naive_sum = min(sum(plain[key] for key in cover.keys) for cover in covers)
    flat = {key: (np.array([value]), np.array([value])) for key, value in plain.items()}
    naive_paths = [float(_longest(cover, flat, 0, 0)[0]) for cover in covers]
    naive_path = min(naive_paths)
    shortest = covers[naive_paths.index(naive_path)]
    longest = _longest(shortest, taken, 1, 1) - _longest(shortest, taken, 0, 1)
    along = critical_path(shortest.quotient, [plain[key] for key in shortest.keys]).members
    fallen = sum(plain[shortest.keys[one]] - float(seen[shortest.keys[one]][0].mean()) for one in along)
    return SelectionBias(
        sequential=_within(naive_sum - _lowest(sums), _read(sums) - naive_sum),
        critical_path=_within(fallen - max(0.0, float(longest.mean())), _read(paths) - naive_path),
    )


def _within(least: float, most: float) -> tuple[float, float]:
    """Both, the most no less than the least and than nothing: replicates are a sample."""
    return least, max(0.0, least, most)


def _lowest(choices: Sequence[tuple[Array, Array]]) -> float:
    """The mean over replicates of what each was chosen by."""
    return float(np.stack(np.broadcast_arrays(*(by for by, _ in choices))).min(axis=0).mean())


def _summed(cover: Cover, seen: _Seen, side: int) -> Array:
    return np.sum(np.stack([seen[key][side] for key in cover.keys]), axis=0) if cover.keys else np.zeros(1)


def _read(choices: Sequence[tuple[Array, Array]]) -> float:
    """The mean over replicates of what was chosen in each."""
    by, read = (np.stack(np.broadcast_arrays(*side)) for side in zip(*choices, strict=True))
    return float(np.take_along_axis(read, by.argmin(axis=0)[None], axis=0).mean())


def _cheapest(windows: Sequence[KeyedWindow], size: int, seen: _Seen) -> list[tuple[Array, Array]]:
    """The cheapest cover of each replicate (``cover``), by what it is chosen by and as it is read, if any."""
    cost: list[tuple[Array, Array] | None] = [None] * (size + 1)
    cost[0] = np.zeros(1), np.zeros(1)
    for window in sorted(windows, key=lambda window: window.begin):
        base, known = cost[window.begin], cost[window.end]
        if base is None:
            continue
        by, read = (one + more for one, more in zip(base, seen[window.key], strict=True))
        if known is not None:
            less = by < known[0]
            by, read = np.where(less, by, known[0]), np.where(less, read, known[1])
        cost[window.end] = by, read
    last = cost[size]
    return [last] if last is not None and windows else []


def _longest(cover: Cover, seen: _Seen, by: int, read: int) -> Array:
    """The longest path of each replicate, chosen by one side and read from a side."""
    quotient: Quotient = cover.quotient
    finish: list[tuple[Array, Array]] = [(np.zeros(1), np.zeros(1))] * len(cover.keys)
    for position in quotient.order:
        one = seen[cover.keys[position]]
        last = _latest([finish[before] for before in quotient.predecessors[position]])
        finish[position] = last[0] + one[by], last[1] + one[read]
    return _latest([finish[position] for position in quotient.ends])[1]


def _latest(finished: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Of several the one that is chosen as the latest, replicate by replicate."""
    if not finished:
        return np.zeros(1), np.zeros(1)
    (by, read), *others = finished
    for other, there in others:
        later = other > by
        by, read = np.where(later, other, by), np.where(later, there, read)
    return by, read
