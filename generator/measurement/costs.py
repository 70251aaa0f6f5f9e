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
        start_s: Starting and ending workers, the reference network included.
        prepare_s: ``prepare`` requests: reading, filling, session creation, first run, choice of the unroll.
        load_s: Of ``prepare_s``, what the runtime itself took: creation of sessions and first runs.
        sample_s: ``sample`` requests: warm-up and timed samples.
        timed_s: Of ``sample_s``, the timed samples.
        store_s: Commits and queries.
        statistics_s: Intervals and verdicts.
        read_s: Reading and checking bricks and models.
        profile_s: The pass that tells which kernels run, where that was asked for.
        progress_s: The caller's progress callback.
    """

    start_s: float = 0.0
    prepare_s: float = 0.0
    load_s: float = 0.0
    sample_s: float = 0.0
    timed_s: float = 0.0
    store_s: float = 0.0
    statistics_s: float = 0.0
    read_s: float = 0.0
    profile_s: float = 0.0
    progress_s: float = 0.0

    @contextmanager
    def spend(self, part: str) -> Iterator[None]:
        """Add the wall time of a block of code to a part."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + time.perf_counter() - begun)
