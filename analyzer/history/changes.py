"""Changes of level in a series of runs: a sequential two-sample test.

After each run, the newest runs are compared with the earlier ones, for every possible cut. The test is Student's t on
logarithms, with the pooled scatter of both sides. If the smallest probability is below ``LEVEL``, the level changed at
this cut, and earlier runs no longer count. A single slow run is not a change: the median must move as well as the mean.

The scatter is estimated from the series. Student's t accounts for a small number of runs, so that the rate of false
alarms also holds for short series. In this it is better than the libraries that were compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...constructor.choice import COLD, MODEL, Query
from ...db import Measurement, Run, Stack, Store, Subject
from ...db.queries import Filter
from ...db.values import Runtime
from ...tabular import Row, fields, record_of
from ..comparison.difference import Difference, difference, two_sided
from ..estimation.query import matching

# The runs of a model in one place, in the order in which they were made.


MEAN, UNDISTURBED = "mean", "undisturbed"
"""What the latencies of a series are: means, or those of a quiet machine."""

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Track:
    """The place of a series: everything that is part of a measurement, except versions.

    Attributes:
        system: Key of the system.
        runtime: The backend, its device and options.
        threads: Its threads.
        dtype: Precision.
        cold: True if all caches are evicted before each execution; else a model's own cache state.
    """

    system: str
    runtime: Runtime
    threads: int
    dtype: str
    cold: bool

    @classmethod
    def of(cls, measurement: Measurement, stack: Stack) -> Track:
        """Return the track of a measurement."""
        conditions = measurement.conditions
        cold = conditions.cache == COLD
        return cls(measurement.system, stack.runtime, conditions.threads, conditions.dtype, cold)

    @property
    def cache(self) -> str:
        """``cold``, or ``model`` for a repeated model."""
        return COLD if self.cold else MODEL

    @property
    def filter(self) -> Filter:
        """Return true for the same place with any precision and options."""
        runtime = self.runtime
        return Filter(system=self.system, threads=self.threads, backend=runtime.backend, device=runtime.device)

    def record(self) -> Row:
        """Return the keys of the place in JSON."""
        return {
            **record_of(self, fields("system backend=runtime.backend device=runtime.device")),
            "options": dict(self.runtime.options),
            **record_of(self, fields("threads cache dtype")),
        }


@dataclass(frozen=True, slots=True)
class RunPoint:
    """One run of a series.

    Attributes:
        run: Its id.
        started: Its begin, ISO 8601, UTC.
        latency_ms: Undisturbed latency or mean, by the basis of the series.
        ci95_ms: Its interval, relatively as wide as that of the mean; without the scatter between runs.
        quiet: Share of quiet visits; None if it is unknown.
        stack: Key of the stack.
        versions: Versions of the runtime's packages, dlbricks and the kernel; and the node, if the run has one. Equal
            machines are one system, and thus one series. ``file`` is there if the model's file changed in the series.
        label: The owner's name of the measured state, such as a commit; empty without one.
    """

    run: str
    started: str
    latency_ms: float
    ci95_ms: tuple[float, float]
    quiet: float | None
    stack: str
    versions: Mapping[str, str]
    label: str = ""


_SHOWN = 8
"""Characters of the key of a file."""


def measured_by_track(store: Store, query: Query, models: Collection[str]) -> dict[str, dict[Track, list[Measurement]]]:
    """Return the measurements of whole models by model and track: one per run, oldest first.

    Args:
        store: The database.
        query: What the caller asked for.
        models: Keys of the models.

    Raises:
        UsageError: No stored system, or stack, has a key with this beginning.
    """
    stacks, order = store.stacks(), {run.id: number for number, run in enumerate(store.runs())}
    # A model that is repeated is in its own cache state: hot and model are the same of it.
    choices = matching(store, models, replace(query, cache=None), Subject.MODEL)
    combinations = {
        (choice.system_key, choice.stack_key, choice.conditions)
        for choice in choices
        if query.cache is None or (query.cache == COLD) == (choice.conditions.cache == COLD)
    }
    by_track: defaultdict[str, defaultdict[Track, dict[str, Measurement]]] = defaultdict(lambda: defaultdict(dict))
    stored = store.measurements(subject=Subject.MODEL, keys=models, latest=False)
    for taken in sorted(stored, key=lambda measurement: order[measurement.run]):
        if (taken.system, taken.stack, taken.conditions) in combinations and value_ns(taken, MEAN):
            by_track[taken.key][Track.of(taken, stacks[taken.stack])][taken.run] = taken
    return {key: {track: list(runs.values()) for track, runs in of.items()} for key, of in by_track.items()}


def basis_of(measurements: Iterable[Measurement]) -> str:
    """Return the basis of a series: undisturbed latencies if all runs have one, else means."""
    return UNDISTURBED if all(measurement.undisturbed_ns for measurement in measurements) else MEAN


def value_ns(measurement: Measurement, basis: str) -> float:
    """Return the latency of a measurement."""
    return measurement.latency_ns if basis == MEAN else measurement.undisturbed_ns or 0.0


def points_of(
    measurements: Sequence[Measurement], basis: str, runs: Mapping[str, Run], stacks: Mapping[str, Stack]
) -> tuple[RunPoint, ...]:
    """Return the points of a series.

    Args:
        measurements: One per run, oldest first.
        basis: Basis of the latencies.
        runs: Runs by id.
        stacks: Stacks by key.
    """
    points = []
    files = {taken.key for taken in measurements}
    for taken in measurements:
        run, latency_ms = runs[taken.run], value_ns(taken, basis) / _NS_PER_MS
        low, high = (bound * latency_ms / taken.latency_ns for bound in taken.ci95_ns)
        kernel = run.before.get("kernel")
        versions = {**dict(stacks[taken.stack].versions), "dlbricks": run.tool}
        versions |= {"kernel": str(kernel)} if kernel else {}
        versions |= {"node": run.node} if run.node else {}
        versions |= {"file": taken.key[:_SHOWN]} if len(files) > 1 else {}
        where = (run.id, run.started, latency_ms, (low, high), taken.quiet, taken.stack)
        points.append(RunPoint(*where, versions, run.label))
    return tuple(points)


LEVEL = 2e-4
"""Probability of a cut by chance below which it is a change: with that a series without changes raises less than one
alarm in 1,000 runs (docs/results/history.json), although every new run is looked at with up to ``_NEWEST`` cuts."""

MINIMUM_EFFECT = 0.01
"""Relative change of level that matters where nothing else is asked for."""

_BEFORE, _AFTER = 6, 3
"""Fewest runs before a cut and after it."""

FEWEST = _BEFORE + _AFTER
"""Runs of a series below which no change can be found."""

_OLDEST, _NEWEST = 50, 20
"""Most runs before a cut and after it that are held against each other: machines drift."""

_AGREEING = 0.7
"""The medians of both sides have to differ by this share of what their means differ by."""

_NEAR = 3
"""Runs to either side of a cut among which a better one is looked for, once more runs are known."""

_CHI_SQUARED = 3.84
"""Twice the logarithm of the likelihood by which a cut is worse than the best beyond chance (5 %, one degree)."""

_EXACT = 1e-9
"""Least relative scatter: clocks tick, and runs that are exactly equal are made up."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of level.

    Attributes:
        at: Index of the first run at the new level.
        found: Index of the run that showed it.
        begin: Index of the first run at the old level.
        end: Index behind the last known run at the new level.
        seen: Difference of both levels.
        places: All cuts that explain the series equally well, in order, ``at`` among them.
    """

    at: int
    found: int
    begin: int
    end: int
    seen: Difference
    places: tuple[int, ...]


def shifts(latencies: Sequence[float], *, minimum_effect: float = MINIMUM_EFFECT) -> list[Shift]:
    """Return the changes of level of a series, oldest first: each alarm that was raised run by run.

    Args:
        latencies: Latency of each run, oldest first; positive, in any unit.
        minimum_effect: Relative change that matters.

    Example:
        >>> quiet = [1.00, 1.01, 0.99, 1.00, 1.01, 1.00, 0.99, 1.01]
        >>> [(shift.at, round(shift.seen.ratio, 2)) for shift in shifts([*quiet, *(1.1 * ms for ms in quiet)])]
        [(8, 1.1)]
    """
    logs = np.log(np.asarray(latencies, dtype=np.float64))
    alarms: list[tuple[int, int]] = []
    begin = 0
    for last in range(FEWEST - 1, logs.size):
        cut = _cut(logs[begin : last + 1], math.log1p(minimum_effect))
        if cut is not None:
            begin += cut
            alarms.append((begin, last))
    return _described(logs, alarms)


def confirmed_shifts(latencies: Sequence[float], *, minimum_effect: float = MINIMUM_EFFECT) -> list[Shift]:
    """Return the changes without alarms that later runs contradict: their levels, over all runs, hardly differ.

    Args:
        latencies: As for ``shifts``.
        minimum_effect: Relative change that matters.
    """
    logs, least = np.log(np.asarray(latencies, dtype=np.float64)), math.log1p(minimum_effect)
    remaining = shifts(latencies, minimum_effect=minimum_effect)
    while remaining:
        weakest = min(remaining, key=_size)
        if _size(weakest) >= least:
            break
        remaining = _described(logs, [(shift.at, shift.found) for shift in remaining if shift is not weakest])
    return remaining


def _size(shift: Shift) -> float:
    return abs(math.log(shift.seen.ratio))


def _described(logs: Values, alarms: Sequence[tuple[int, int]]) -> list[Shift]:
    """Return the changes at some cuts, with levels from all runs."""
    cuts = [at for at, _ in alarms]
    places = [
        _places(logs, begin, at, end) for begin, at, end in zip([0, *cuts], cuts, [*cuts[1:], logs.size], strict=False)
    ]
    best = [0, *(near[0] for near in places), logs.size]
    return [
        Shift(
            at=(at := near[0]),
            found=max(last, at + _AFTER - 1),
            begin=best[number],
            end=best[number + 2],
            seen=_difference(logs[best[number] : at], logs[at : best[number + 2]]),
            places=tuple(sorted(near)),
        )
        for number, (near, (_, last)) in enumerate(zip(places, alarms, strict=True))
    ]


def level_difference(before: Sequence[float], after: Sequence[float]) -> Difference | None:
    """Return the difference of two groups of runs; None if either has fewer than two.

    Args:
        before: Positive values, in any unit.
        after: Positive values in the same unit.
    """
    if min(len(before), len(after)) < 2:
        return None
    return _difference(np.log(np.asarray(before, dtype=np.float64)), np.log(np.asarray(after, dtype=np.float64)))


def _cut(logs: Values, least: float) -> int | None:
    """Return the clearest cut between the newest runs and the earlier ones; None if no level differs."""
    size = logs.size
    cuts = np.arange(max(_BEFORE, size - _NEWEST), size - _AFTER + 1)
    if not cuts.size:
        return None
    first = np.maximum(0, cuts - _OLDEST)
    before, after = cuts - first, size - cuts
    centred = logs - logs.mean()
    sums, squares = (np.concatenate([[0.0], np.cumsum(part)]) for part in (centred, centred**2))
    old_mean, new_mean = (sums[cuts] - sums[first]) / before, (sums[-1] - sums[cuts]) / after
    rest = squares[-1] - squares[first] - before * old_mean**2 - after * new_mean**2
    degrees = before + after - 2
    error = np.sqrt(np.maximum(rest / degrees, _EXACT**2) * (1 / before + 1 / after))
    far = np.abs(new_mean - old_mean)
    for index in np.argsort(-far / error):
        if two_sided(float(far[index] / error[index]), float(degrees[index])) >= LEVEL:
            return None  # of almost as many runs each: those that follow are no clearer
        old, new = logs[first[index] : cuts[index]], logs[cuts[index] :]
        agreeing = float(np.median(new) - np.median(old)) * math.copysign(1, new_mean[index] - old_mean[index])
        if far[index] >= least and agreeing >= _AGREEING * far[index]:
            return int(cuts[index])
    return None


def _places(logs: Values, begin: int, at: int, end: int) -> list[int]:
    """Return the cuts near the best one that explain all runs of both levels equally well, the best first."""
    cuts = sorted({at, *range(max(begin + _BEFORE, at - _NEAR), min(end - _AFTER, at + _NEAR) + 1)})
    rest = {cut: max(_rest(logs[begin:cut]) + _rest(logs[cut:end]), (end - begin) * _EXACT**2) for cut in cuts}
    best = min(rest.values())
    alike = [cut for cut in cuts if (end - begin) * math.log(rest[cut] / best) <= _CHI_SQUARED]
    return sorted(alike, key=rest.__getitem__)


def _rest(logs: Values) -> float:
    return float(((logs - logs.mean()) ** 2).sum())


def _difference(before: Values, after: Values) -> Difference:
    degrees = before.size + after.size - 2
    error = math.sqrt(max((_rest(before) + _rest(after)) / degrees, _EXACT**2) * (1 / before.size + 1 / after.size))
    return difference(math.exp(before.mean()), math.exp(after.mean()), (error, degrees))
