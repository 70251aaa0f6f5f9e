"""Where the wall time of a run goes: what is timed, what loads, and what the harness itself costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["RunCosts"]


@dataclass(slots=True)
class RunCosts:
    """Wall seconds by part; what is in none of them is scheduling.

    Attributes:
        start_s: Starting and ending workers.
        prepare_s: ``prepare`` and ``pack`` requests: reading, filling, optimising, session creation, first run.
        load_s: Of ``prepare_s``, what the runtime itself took: creation of sessions and first runs.
        sample_s: ``visit`` requests: warm-up, probes and timed executions.
        timed_s: Of ``sample_s``, the timed executions.
        unpack_s: Reading the profiles of packs.
        store_s: Commits and queries.
        statistics_s: Intervals and verdicts.
        read_s: Reading and checking bricks and models.
        profile_s: The pass that records which kernels run, where that was asked for.
        progress_s: The caller's progress callback.
        visits: How many there were.
        again: Sessions that were discarded and taken again, since the device held its clocks back meanwhile.
        throttled: Sessions that were kept although it did.
        watched_s: Passes of packs, by the times of their nodes: the medians of all sessions together.
        unwatched_s: The same passes when no profiler watched.
    """

    start_s: float = 0.0
    prepare_s: float = 0.0
    load_s: float = 0.0
    sample_s: float = 0.0
    timed_s: float = 0.0
    unpack_s: float = 0.0
    store_s: float = 0.0
    statistics_s: float = 0.0
    read_s: float = 0.0
    profile_s: float = 0.0
    progress_s: float = 0.0
    visits: int = 0
    again: int = 0
    throttled: int = 0
    watched_s: float = 0.0
    unwatched_s: float = 0.0

    @contextmanager
    def spend(self, part: str) -> Iterator[None]:
        """Add the wall time of a block of code to a part."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + time.perf_counter() - begun)
