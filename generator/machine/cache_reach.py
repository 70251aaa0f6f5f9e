"""How many bytes this machine's caches hold from one use to the next, by a loop that reads memory again and again.

What the system reports is of little use: a virtual machine shares its last-level cache with others, and some report the
cache of a whole socket. On an AMD EPYC with 32 MiB reported, 16 MiB are read at 55 GB/s and 32 MiB at 21, like memory;
on an Intel Xeon with 480 MiB reported, 80 MiB at 21 GB/s and 128 MiB at 9.
"""

from __future__ import annotations

import math
import time
from functools import cache

import numpy as np
import numpy.typing as npt

from ...bricks.graph.boundary import Caches
from ...bricks.graph.footprint import REUSE_LEVELS
from .cores import private_cache_bytes


def caches_here() -> Caches:
    """Return what the caches of this machine hold: a core's own as reported, the last level as measured."""
    return Caches(private_cache_bytes(), warm_bytes())


_IN_CACHE = 4 << 20
"""Bytes that every last-level cache holds."""
_WARMING = 6
"""Passes after which a cache has taken over what it will (an Intel Xeon needs five)."""
_TIMED = 3
_NOTICED = 1.3
"""Ratio of memory's time to the cache's below which both are as fast."""


@cache
def warm_bytes() -> int:
    """Return the largest footprint class that this process's core reads again at the rate of its caches.

    It takes about 0.2 s and as much memory as the largest class; the fastest of some passes counts, since neighbours
    only slow them down.

    Returns:
        One of ``REUSE_LEVELS``; 0 if even the smallest comes from memory.
    """
    buffer = np.ones(max(REUSE_LEVELS) // 8, np.int64)
    cached, memory = (_ns_per_byte(buffer, size) for size in (_IN_CACHE, max(REUSE_LEVELS)))
    if memory < _NOTICED * cached:
        return max(REUSE_LEVELS)
    between = math.sqrt(cached * memory)
    warm = 0
    for level in REUSE_LEVELS:
        if _ns_per_byte(buffer, level) > between:
            break
        warm = level
    return warm


def _ns_per_byte(buffer: npt.NDArray[np.int64], size: int) -> float:
    part = buffer[: size // 8]
    for _ in range(_WARMING):
        part.sum()
    times = []
    for _ in range(_TIMED):
        begun = time.perf_counter_ns()
        part.sum()
        times.append(time.perf_counter_ns() - begun)
    return min(times) / size
