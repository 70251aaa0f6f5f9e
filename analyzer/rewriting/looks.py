"""A quick look at the saving of a change: two loaded models alternate in one process. A proof follows elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from .recording import Feeds


@dataclass(frozen=True, slots=True)
class Timing:
    """The saving of a change, by a quick look inside one process.

    Attributes:
        saving: Median saving as a share.
        low: Lower end of its 95 % interval.
        high: Upper end.
        before_ms: Median latency before.
    """

    saving: float
    low: float
    high: float
    before_ms: float


_LEAST_S, _FEWEST, _EARLY, _PLAIN = 3e-3, 7, 6, 0.9
"""Seconds of one sample at least; samples at least; samples after which a hopeless change is given up; the ratio of
all samples below which no more are taken."""


class Alternation:
    """Two loaded models that run alternately on the same inputs; on one thread CPU time counts, else elapsed time.

    Args:
        before: The first model.
        after: The second.
        feeds: The inputs.
        threads: Threads of the runtime.
    """

    def __init__(self, before: Any, after: Any, feeds: Feeds, *, threads: int) -> None:
        self._runners, self._feeds = (before, after), dict(feeds)
        self._clock = time.process_time if threads == 1 else time.perf_counter
        self.samples = list[tuple[float, float]]()
        for runner in self._runners:
            runner.run(None, self._feeds)  # the first run prepares kernels
        quickest = min(self._seconds(side, 1) for side in (0, 1))
        self._times = max(1, int(_LEAST_S / max(quickest, 1e-6)))

    def _seconds(self, side: int, times: int) -> float:
        runner, feeds = self._runners[side], self._feeds
        begun = self._clock()
        for _ in range(times):
            runner.run(None, feeds)
        return (self._clock() - begun) / times

    def sample(self) -> None:
        """Take one sample of each, in an order that changes."""
        first = len(self.samples) % 2
        taken = {side: self._seconds(side, self._times) for side in (first, 1 - first)}
        self.samples.append((taken[0], taken[1]))


def compare(before: Any, after: Any, feeds: Feeds, *, threads: int, budget_s: float, longer: int = 3) -> Timing:
    """Return the saving of one loaded model over another by a quick look; an unclear one takes longer."""
    begun = time.perf_counter()
    turns = Alternation(before, after, feeds, threads=threads)
    timing = _sampled(turns, begun + budget_s)
    if timing.low <= 0 < timing.saving:
        timing = _sampled(turns, begun + longer * budget_s)
    return timing


def _sampled(turns: Alternation, end: float) -> Timing:
    samples, latest = turns.samples, end + (end - time.perf_counter())
    while len(samples) < _FEWEST or time.perf_counter() < end:
        turns.sample()
        ratios = [new / old for old, new in samples]
        if len(samples) == _EARLY and np.median(ratios) > 1.0:
            break
        if len(samples) >= _FEWEST and max(ratios) < _PLAIN:
            break
        if time.perf_counter() > latest and len(samples) >= 3:
            break
    taken = np.array([new / old for old, new in samples])
    drawn = np.random.default_rng(0).integers(0, len(taken), (500, len(taken)))
    low, high = np.percentile(np.median(taken[drawn], 1), (2.5, 97.5))
    before_ms = float(np.median([old for old, _ in samples])) * 1e3
    return Timing(1 - float(np.median(taken)), 1 - float(high), 1 - float(low), before_ms)
