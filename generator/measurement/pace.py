"""The number of visits, their time limits, and the costs of a run by part."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field

from ...db.samples.statistics import MIN_SAMPLES
from ..machine.lock import work_clock

SESSION_S = 10.0
"""Seconds after which a session is committed, and continued as a new one: an interrupt loses at most this time."""

LOOP_NS = 20_000_000
"""A short network is repeated until a visit takes this long, so that disturbances meet it as often as a long one."""
_WARM_NS = 60_000_000
"""Time for executing a network before each visit. Other visits came in between, so that its data and code are cold in
the caches. In plain repetition, or in a running model, they would not be cold."""
_MOST_WARMUPS = 5
"""Most executions before a visit. A last-level cache may keep new data only after several."""

_MOST_VISITS = 96

FEWEST_VISITS = 3
"""Visits that suffice once the total time is overrun, the fewest with a usable interval."""
_OVERRUN = 1.1
"""Share of the total time in which the usual least of visits may still be completed."""

_LATEST, _LEAST_S = 1.2, 10.0
"""Share of the total time after which loading is given up, but not before so many seconds."""

_SOON_S = 1.0
"""Before the first visit, a forecast with less than this time left is ignored."""


def loop_ns(*, brief: bool = False) -> int:
    """Return the duration of a visit of a short network: a tenth for one of many bricks of a small model (brief)."""
    return LOOP_NS // 10 if brief else LOOP_NS


def loops_of(run_ns: int, *, brief: bool = False) -> int:
    """Return the number of executions to time together.

    Args:
        run_ns: Duration of one; 0: unknown, try it once.
        brief: As for ``loop_ns``.
    """
    return max(1, math.ceil(loop_ns(brief=brief) / max(run_ns, 1_000))) if run_ns else 1


def warmups_of(run_ns: int, *, evicts: bool | None = None) -> int:
    """Return the number of warm-up executions before a visit.

    Other visits came in between. What fits into the caches is executed before, however long it takes: repeated, it
    finds its weights there.

    Args:
        run_ns: Latest estimate of the duration of one execution; 0: unknown.
        evicts: True for what evicts its own weights, so that it needs no warm-up; None: not known.
    """
    if evicts:
        return 0
    if not run_ns:
        return 1
    return max(int(evicts is False), min(_MOST_WARMUPS, _WARM_NS // run_ns))


@dataclass(slots=True)
class Pace:
    """Keeps a run within its total time.

    Attributes:
        visits: Visits of each item if there is enough time.
        budget_s: Total time; None: unlimited.
        waiting: Number of sessions still to come.
        forecast_s: Forecast made before the run; None without one.
        least: Visits that a session makes even without time left, until the total time is overrun.
        others: Groups that wait for their first visits.
        pressed: Their time was not enough for the usual least of visits: few suffice, so that all groups get some.
        deadline: Time on the ``work_clock`` at which visiting and loading end, even after too few visits.
    """

    visits: int
    budget_s: float | None = None
    waiting: int = 1
    forecast_s: float | None = None
    least: int = 0
    others: int = 0
    pressed: bool = False
    deadline: float = math.inf
    _begun: float = field(default_factory=time.monotonic)
    _until: float = math.inf

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._begun

    @property
    def expired(self) -> bool:
        """True if the total time is spent."""
        if work_clock() >= self.deadline:
            return True
        return self.budget_s is not None and self.elapsed_s >= self.budget_s

    @property
    def loading_left_s(self) -> float:
        """Seconds after which loading is given up; infinite without a total time or a deadline."""
        left_s = self.deadline - work_clock()
        if self.budget_s is None:
            return left_s
        return min(left_s, max(_LATEST * self.budget_s, _LEAST_S) - self.elapsed_s)

    def affords(self, loading_s: float) -> bool:
        """Return True if a process that loads for so many seconds begins to visit within the total time."""
        return not self.expired and (self.budget_s is None or self.elapsed_s + loading_s <= self.budget_s)

    def remaining_s(self, done: int, visits_left: int) -> float | None:
        """Return the estimated seconds for the visits that are left; None if nothing is known.

        All loading comes before the first visits. The forecast therefore has the weight of the visits left, and the
        measured speed the weight of the visits done.
        """
        elapsed = self.elapsed_s
        ahead = None if self.forecast_s is None else max(0.0, self.forecast_s - elapsed)
        if ahead is not None and not done and ahead < _SOON_S:
            ahead = None
        expected_s = elapsed / done * visits_left if done else None
        if expected_s is not None and ahead is not None:
            expected_s = (expected_s * done + ahead * visits_left) / (done + visits_left)
        remaining = expected_s if done else ahead
        if remaining is None or self.budget_s is None:
            return remaining
        return min(remaining, max(0.0, self.budget_s - elapsed))

    @property
    def suffices(self) -> int:
        """Number of visits that make a measurement now."""
        overrun = self.budget_s is not None and self.elapsed_s >= _OVERRUN * self.budget_s
        return min(FEWEST_VISITS if overrun or self.pressed else MIN_SAMPLES, self.wanted)

    @property
    def wanted(self) -> int:
        """Number of visits after which an item is done."""
        return self.visits if self.budget_s is None else _MOST_VISITS

    def expect(self, groups: int, sessions: int, *, first: bool, others: int = 0) -> None:
        """Set the number of sessions still to come.

        Args:
            groups: Number of groups, each counted once per process still to come.
            others: Groups that wait for their first visits.
            sessions: Sessions of a group in one process.
            first: True for the first process. Its visits must suffice for a measurement: on a busy machine there may
                not be time for another process.
        """
        self.waiting, self.least = groups * sessions, math.ceil(MIN_SAMPLES / sessions) if first else 0
        self.others = others

    def allot(self) -> None:
        """Give the session that begins its share of the time left."""
        if self.budget_s is not None:
            self._until = self.elapsed_s + max(0.0, self.budget_s - self.elapsed_s) / max(1, self.waiting)
            self.waiting -= 1

    def again(self, taken_s: float) -> bool:
        """Return True if there is time to repeat a session, and count it as a session to come.

        There is time if all sessions to come can be half as long as the session to repeat.
        """
        if self.budget_s is not None and self.budget_s - self.elapsed_s < (1 + self.waiting) * taken_s / 2:
            return False
        self.waiting += 1
        return True

    def enough(self, done: int, planned: int) -> bool:
        """Return True if a session has made enough visits."""
        if self.budget_s is None:
            return done >= planned or work_clock() >= self.deadline
        self.pressed = self.pressed or (self.others > 0 and self.elapsed_s >= self._until)
        fewest = max(self.least, math.ceil(planned * MIN_SAMPLES / max(self.wanted, 1)))
        fewest = min(fewest, self.suffices)
        return done >= planned or (done >= fewest and self.elapsed_s >= self._until)


@dataclass(slots=True)
class RunCosts:
    """Wall seconds by part; the rest is scheduling.

    Attributes:
        start_s: Starting and ending workers.
        prepare_s: ``Load`` requests: reading, filling, optimising, session creation, first run.
        load_s: The runtime's own part of ``prepare_s``: creation of sessions and first runs.
        sample_s: ``Time`` requests: warm-up, probes and timed executions.
        timed_s: The timed executions in ``sample_s``.
        unpack_s: Reading the profiles of packs.
        store_s: Commits and queries.
        statistics_s: Intervals and verdicts.
        read_s: Reading and checking bricks and models.
        profile_s: The pass that records kernels, if requested.
        progress_s: The caller's progress callback.
        visits: Number of visits.
        again: Sessions that were discarded and repeated because the device held its clocks back.
        throttled: Sessions that were kept although the device held its clocks back.
        watched_s: Passes of some packs with a profiler, by the times of their nodes: the sum of the sessions' medians.
        unwatched_s: The same passes without a profiler.
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

    def __add__(self, other: RunCosts) -> RunCosts:
        """Return the costs of two runs."""
        return RunCosts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @contextmanager
    def spend(self, part: str) -> Iterator[None]:
        """Add the wall time of a block of code to a part."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + time.perf_counter() - begun)
