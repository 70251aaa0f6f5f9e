"""What the passes of a pack say of its bricks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..replies import Times

__all__ = ["STALL", "Array", "Reading", "by_visit", "rounded", "without_stalls"]

Array = npt.NDArray[np.float64]

STALL, _STALL_NS = 3.0, 20_000.0
"""So many times its median, and so much more, takes what the scheduler let wait."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the visits of a pack say.

    Attributes:
        times: Of each brick.
        idle_ns: What a node costs that does nothing: the clock's share of its reading is the rest.
        watched_ns: Median time of a pass by its nodes.
        unwatched_ns: The time of a pass that nobody watched.
    """

    times: tuple[Times, ...]
    idle_ns: float
    watched_ns: float
    unwatched_ns: float


def without_stalls(times: Array) -> Array:
    """The same times with those spread over a visit during which the scheduler ran somebody else.

    A stall of milliseconds meets one brick of microseconds, at random and in proportion to its time. A model that holds
    that brick many times would count it every time. So what a brick takes beyond three times its median,
    and 20 microseconds more, is shared by all bricks of the visit in proportion to their times: the visit's sum stays.

    Args:
        times: Nanoseconds, visits by bricks.
    """
    if not times.size:
        return times
    even: Array = np.minimum(times, STALL * np.median(times, axis=0).clip(min=0) + _STALL_NS)
    sums = even.sum(axis=1, keepdims=True)
    beyond = (times - even).sum(axis=1, keepdims=True)
    even *= 1 + np.divide(beyond, sums, out=np.zeros_like(sums), where=sums > 0)
    return even


def by_visit(times: Array, visits: Sequence[int | None], middle: Callable[..., Array] = np.mean) -> Array:
    """Means, or another middle, over the executions of each visit: visits by nodes."""
    numbers = np.array([-1 if visit is None else visit for visit in visits])
    return (
        np.stack([middle(times[numbers == number], axis=0) for number in range(numbers.max() + 1)])
        if (numbers.max(initial=-1) >= 0)
        else times[:0]
    )


def rounded(times: Array) -> tuple[int, ...]:
    """Whole nanoseconds."""
    return tuple(round(value) for value in times.tolist())
