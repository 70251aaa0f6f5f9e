"""How many bytes this machine's caches hold from one use to the next, by a loop that reads memory again and again.

What the system reports is of little use: a virtual machine shares its last-level cache with others, and some report the
cache of a whole socket. On an AMD EPYC with 32 MiB reported, 16 MiB are read at 55 GB/s and 32 MiB at 21, like memory;
on an Intel Xeon with 480 MiB reported, 80 MiB at 21 GB/s and 128 MiB at 9.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import cycle, islice, takewhile
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...bricks.graph.boundary import Caches
from ...bricks.graph.footprint import REUSE_LEVELS
from ...db.values import CACHES, Run
from .cores import private_cache_bytes


def caches_here() -> Caches:
    """Return what the caches of this machine hold: a core's own as reported, the last level as measured."""
    return Caches(private_cache_bytes(), *last_level())


def noted_caches(runs: Iterable[Run]) -> Caches | None:
    """Return what caches hold as the latest of some runs noted it; None if none did."""
    for run in sorted(runs, key=lambda run: run.started, reverse=True):
        match run.options.get(CACHES):
            case [int(), int()] | [int(), int(), int()] as found:
                return Caches(*found)
    return None


_PART_BYTES = 4 << 20
"""Bytes that every last-level cache holds; the classes are multiples."""
_WARMING = 6
"""Passes after which a cache has taken over what it will (an Intel Xeon needs five)."""
_TIMED = 5
"""Timed repetitions; the fastest counts, since neighbours only slow them down."""
_ROUNDS, _USES = 14, 2
"""Rounds of passing others, of which the second half counts: a cache learns what is used again."""
_NOTICED = 1.3
"""Ratio of memory's time to the cache's below which both are as fast."""

_Words: TypeAlias = npt.NDArray[np.int64]


@cache
def last_level() -> tuple[int, int]:
    """Return what the last level holds of what is used several times, and while others pass that are used once.

    Some caches give way only to memory that is used several times. An AMD EPYC keeps 4 MiB while 96 MiB pass that are
    used once, but no more than 24 MiB that are used again and again. It takes about 0.4 s and as much memory as the
    largest class.

    Returns:
        Two of ``REUSE_LEVELS``, in bytes; 0 if even the smallest comes from memory.
    """
    parts = np.ones((max(REUSE_LEVELS) // _PART_BYTES, _PART_BYTES // 8), np.int64)
    cached, memory = (_again_ns(parts[: size // _PART_BYTES]) for size in (_PART_BYTES, max(REUSE_LEVELS)))
    if memory < _NOTICED * cached:
        return max(REUSE_LEVELS), max(REUSE_LEVELS)
    between = math.sqrt(cached * memory)
    others = cycle(parts[1:])
    fast = takewhile(lambda level: _again_ns(parts[: level // _PART_BYTES]) <= between, REUSE_LEVELS)
    several = max(fast, default=0)
    passing = [level for level in REUSE_LEVELS if _after_ns(parts[0], others, level // _PART_BYTES) <= between]
    return several, max([several, *passing])


def _again_ns(parts: _Words) -> float:
    """Return the time of reading some memory again, in nanoseconds per byte."""
    for _ in range(_WARMING):
        parts.sum()
    return min(_timed_ns(parts) for _ in range(_TIMED)) / parts.nbytes


def _after_ns(part: _Words, others: Iterator[_Words], count: int) -> float:
    """Return the same of a part that is read several times, after so many others were read once, again and again."""
    times = []
    for _ in range(_ROUNDS):
        for _ in range(_USES):
            part.sum()
        for other in islice(others, count):
            other.sum()
        times.append(_timed_ns(part))
    return statistics.median(times[_ROUNDS // 2 :]) / part.nbytes


def _timed_ns(parts: _Words) -> int:
    begun = time.perf_counter_ns()
    parts.sum()
    return time.perf_counter_ns() - begun
