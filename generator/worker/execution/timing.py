"""The sampling loop: warm-up, calibration of loops, raw samples. Nothing else runs while a sample is timed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from ...machine.cores import allowed, last_level_bytes, pin, private_cache_bytes

__all__ = ["RAW_NS", "Evictor", "Samples", "evicted_bytes", "measure", "time_once", "undisturbed"]

RAW_NS = 1_000_000
"""Shortest raw sample: 1 ms, ten thousand times what reading the clock costs (pyperf calls less 'too short')."""

_WARM_SHARE = 0.25
"""Largest part of the budget that goes into warm-up."""

_WARM_SAMPLES = 64
"""Most warm-up samples."""

_AGREEMENT = 0.03
"""Warm-up is over when the later half of its samples is at most this much faster than the earlier half."""

_SMALL_LAST_LEVEL = 64 << 20
"""A last-level cache up to this size is evicted as a whole; larger ones are shared by many cores (see Evictor)."""

Run = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Samples:
    """What one call took.

    Attributes:
        raw: (elapsed_ns, loops) in the order taken.
        warmups: Warm-up samples dropped before, those of the calibration included.
    """

    raw: tuple[tuple[int, int], ...]
    warmups: int


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


def measure(
    run: Run,
    synchronize: Run,
    *,
    budget_ns: int,
    min_samples: int = 1,
    max_samples: int = 1_000_000,
    evict: Run | None = None,
) -> Samples:
    """Warm up and take samples until the budget is spent.

    Args:
        run: Executes the network once.
        synchronize: Waits until everything that was started is done; called once at the end of each sample.
        budget_ns: For warm-up and samples together, evictions included.
        min_samples: Taken even where the budget is too short.
        max_samples: Ends the sampling before the budget is spent.
        evict: Called before each sample, outside the timed part; a sample is then one execution.

    Returns:
        Raw samples. Without ``evict`` each is of so many loops that it lasts at least ``RAW_NS``.
    """
    with undisturbed():
        deadline = time.perf_counter_ns() + budget_ns
        if evict is None:
            loops, warmups = _warm_up(run, synchronize, time.perf_counter_ns() + int(budget_ns * _WARM_SHARE))
        else:
            evict()
            time_once(run, synchronize)
            loops, warmups = 1, 1
        raw: list[tuple[int, int]] = []
        while len(raw) < max_samples and (len(raw) < min_samples or time.perf_counter_ns() < deadline):
            if evict is not None:
                evict()
            raw.append((_timed(run, synchronize, loops), loops))
    return Samples(tuple(raw), warmups)


def _warm_up(run: Run, synchronize: Run, deadline: int) -> tuple[int, int]:
    """Loops of a sample and number of warm-up samples.

    Loops grow until a sample is long enough; then samples are taken until the later half is no longer faster than
    the earlier half. At least one run is made, whatever the deadline.
    """
    loops, count = 1, 0
    while True:
        elapsed = _timed(run, synchronize, loops)
        count += 1
        if elapsed >= RAW_NS or time.perf_counter_ns() >= deadline:
            break
        # 20 % above what seems to be needed, at most tenfold: the first runs are slow and mislead.
        loops = min(10 * loops, int(1.2 * loops * RAW_NS / max(elapsed, 1)) + 1)
    if elapsed < RAW_NS:
        loops = max(loops, -(-loops * RAW_NS // max(elapsed, 1)))
    taken: list[int] = []
    while len(taken) < _WARM_SAMPLES and time.perf_counter_ns() < deadline:
        taken.append(_timed(run, synchronize, loops))
        half = len(taken) // 2
        if half >= 2 and len(taken) % 2 == 0 and sum(taken[half:]) >= (1 - _AGREEMENT) * sum(taken[:half]):
            break
    return loops, count + len(taken)


def _timed(run: Run, synchronize: Run, loops: int) -> int:
    """Nanoseconds of so many executions, one after the other."""
    times = repeat(None, loops)
    start = time.perf_counter_ns()
    for _ in times:
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
