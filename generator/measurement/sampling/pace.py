"""How often to visit, and how long that takes."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ....bricks.graph.footprint import REUSE_LEVELS
from ....db.samples.statistics import MIN_SAMPLES
from ....db.values import Measurement
from ..item import Item

__all__ = ["Pace", "forecast_s", "loops_of", "warmups_of"]

WORKER_START_S = 0.5
"""Start of a worker: interpreter, runtime."""
_LOAD_S = 0.003
"""Loading of a small network in one process."""
_LOAD_S_PER_BYTE = 5e-9
"""Filling and packing weights: from 5 to 7 ns of a core for each byte of the weights of ResNet-50, BERT and GPT-2."""
_NS_PER_MAC = 0.025
"""40 GMAC/s: models of convolutions and of products had 45 to 70 on one core."""
_CLOCK_PASSES = 60
_CLOCK_BRICKS = 200
"""In each process, so many passes over as many of the shortest bricks show what the profiler's clock costs."""

_LOOP_NS = 20_000_000
"""What is short is repeated until a visit takes so long: whatever disturbs it must be met as often as by a long one."""
_WARM_NS = 40_000_000
"""What takes less than this is executed once before each visit: others were visited in between, and what is small
finds its caches and its code cold, which repetition, or a model that goes on, would not."""

_MOST_VISITS = 96

_SOON_S = 1.0
"""Before the first visit, a forecast that is used up but for this says nothing."""


def loops_of(run_ns: int) -> int:
    """Executions, of so long each, that are timed together."""
    return max(1, math.ceil(_LOOP_NS / max(run_ns, 1_000))) if run_ns else 1  # what was never run is tried once


def warmups_of(run_ns: int, footprint: int = 0) -> int:
    """Executions before a visit of something that takes so long, and finds its caches as cold as it leaves them.

    Args:
        run_ns: Latest guess at its time.
        footprint: Footprint class of a pack.
    """
    return int(run_ns < _WARM_NS and footprint < max(REUSE_LEVELS))


def forecast_s(
    items: Collection[Item],
    *,
    visits: int,
    processes: int,
    sessions: int,
    known: Mapping[str, Measurement] | None = None,
) -> float:
    """Seconds to measure the items: workers, loading and visits.

    Args:
        items: What is to be measured; visits of an interrupted run count as done.
        visits: How often each is visited.
        processes: Worker processes.
        sessions: Sessions of each.
        known: Earlier measurements by key, wherever they were taken.
    """
    if not items:
        return 0.0
    total = processes * WORKER_START_S
    packed: list[float] = []
    for item in items:
        earlier = (known or {}).get(item.key)
        run_ns = earlier.latency_ns if earlier is not None else (item.macs or 0) * _NS_PER_MAC
        weights = item.weight_bytes or item.size_bytes // 2  # a runtime keeps a packed copy
        load_s = _LOAD_S + weights * _LOAD_S_PER_BYTE
        if not item.packed and earlier is not None and earlier.load_ns is not None:
            load_s = max(load_s, (earlier.load_ns + (earlier.first_run_ns or 0)) / 1e9)
        total += load_s * processes * (sessions if item.packed else 1)
        once_ns = run_ns if item.packed else max(run_ns, _LOOP_NS)
        total += max(0, visits - item.visits) * once_ns * (1 + warmups_of(int(once_ns), item.footprint)) / 1e9
        packed += [run_ns] if item.packed else []
    return total + processes * _CLOCK_PASSES * sum(sorted(packed)[:_CLOCK_BRICKS]) / 1e9


@dataclass(slots=True)
class Pace:
    """Keeps a run within its total time.

    Attributes:
        visits: How often each item is visited where time does not press.
        budget_s: Total time; None: as long as it takes.
        waiting: Sessions that are still to come.
        forecast_s: What was expected before it began; None where nothing was.
        least: Visits that a session makes whatever the time.
    """

    visits: int
    budget_s: float | None = None
    waiting: int = 1
    forecast_s: float | None = None
    least: int = 0
    _begun: float = field(default_factory=time.monotonic)
    _until: float = math.inf

    @property
    def elapsed_s(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._begun

    @property
    def expired(self) -> bool:
        """Whether the total time is spent."""
        return self.budget_s is not None and self.elapsed_s >= self.budget_s

    def remaining_s(self, done: int, left: int) -> float | None:
        """Time that is left after some visits, and before others; None where nothing is known.

        The first visits have all the loading before them: the forecast counts as much as what is not done yet.
        """
        elapsed = self.elapsed_s
        ahead = None if self.forecast_s is None else max(0.0, self.forecast_s - elapsed)
        if ahead is not None and not done and ahead < _SOON_S:
            ahead = None
        found = elapsed / done * left if done else None
        if found is not None and ahead is not None:
            found = (found * done + ahead * left) / (done + left)
        remaining = found if done else ahead
        if remaining is None or self.budget_s is None:
            return remaining
        return min(remaining, max(0.0, self.budget_s - elapsed))

    @property
    def wanted(self) -> int:
        """Visits of an item that is done."""
        return self.visits if self.budget_s is None else _MOST_VISITS

    def expect(self, groups: int, sessions: int, *, first: bool) -> None:
        """State what is still to come.

        Args:
            groups: So many, each as often as there are processes still.
            sessions: Of each in one process.
            first: Whether this is the first process. What it visits must be enough: on a machine that is busy with
                other things there may be no time for another one.
        """
        self.waiting, self.least = groups * sessions, math.ceil(MIN_SAMPLES / sessions) if first else 0

    def allot(self) -> None:
        """Let the session that begins take its share of the time that is left."""
        if self.budget_s is not None:
            self._until = self.elapsed_s + max(0.0, self.budget_s - self.elapsed_s) / max(1, self.waiting)
            self.waiting -= 1

    def again(self, taken_s: float) -> bool:
        """Whether there is time to take a session again; it then gets a share of what is left.

        That is so where all that are to come could be half as long as the one that was taken.

        Args:
            taken_s: How long that was.
        """
        if self.budget_s is not None and self.budget_s - self.elapsed_s < (1 + self.waiting) * taken_s / 2:
            return False
        self.waiting += 1
        return True

    def enough(self, done: int, planned: int) -> bool:
        """Whether a session has visited often enough.

        Args:
            done: Its visits of each item.
            planned: Those that were planned for it.
        """
        if self.budget_s is None:
            return done >= planned
        fewest = max(self.least, math.ceil(planned * MIN_SAMPLES / max(self.wanted, 1)))
        return done >= planned or (done >= fewest and self.elapsed_s >= self._until)
