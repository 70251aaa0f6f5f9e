"""What a visit needs: a clock, caches that are evicted, and no garbage collection."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from ...machine.cores import allowed, last_level_bytes, pin, private_cache_bytes

__all__ = ["Evictor", "evicted_bytes", "time_once", "undisturbed"]

_SMALL_LAST_LEVEL = 64 << 20
"""A last-level cache up to this size is evicted as a whole; larger ones are shared by many cores (see Evictor)."""

Run = Callable[[], None]


class Evictor:
    """Evicts what the cores hold in their caches, by streaming through a buffer.

    The buffer is twice the last-level cache where that is at most 64 MiB. Larger ones are shared: streaming
    through 2 x 260 MiB would cost 100 ms a sample and evict the neighbours' data as well. There it is four times
    the private cache, and 'cold' means: not in the core's own caches.

    Args:
        cores: Logical processors whose private caches are evicted; the calling thread visits each and returns to
            where it was allowed to run when this was made. Empty: only where the calling thread happens to be.
    """

    def __init__(self, cores: tuple[int, ...] = ()) -> None:
        size = evicted_bytes(last_level_bytes(), private_cache_bytes())
        self._buffer = np.ones(size // 8, dtype=np.int64)
        self._cores = cores
        self._home = tuple(sorted(allowed())) if cores else ()

    @property
    def nbytes(self) -> int:
        """Size of the buffer."""
        return self._buffer.nbytes

    def __call__(self) -> None:
        """Evict now."""
        for core in reversed(self._cores):
            pin((core,))
            np.add(self._buffer, 1, out=self._buffer)
        if self._cores:
            pin(self._home)
        else:
            np.add(self._buffer, 1, out=self._buffer)


def evicted_bytes(last_level: int, private: int) -> int:
    """Bytes that the evictor streams through, by the sizes of the last-level cache and of one core's L2."""
    return 2 * last_level if last_level <= _SMALL_LAST_LEVEL else 4 * private


def time_once(run: Run, synchronize: Run) -> int:
    """Nanoseconds of one execution, to its end."""
    start = time.perf_counter_ns()
    run()
    synchronize()
    return time.perf_counter_ns() - start


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection: collect now, then not until the end."""
    enabled = gc.isenabled()
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
