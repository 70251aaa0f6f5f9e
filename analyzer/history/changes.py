"""Where a series of runs changed its level: a sequential two-sample test.

Runs are taken in the order in which they came. After each one, the newest runs are held against those before, for every
place where the series may have been cut: Student's t test with the scatter of both sides pooled, of logarithms, so
that up and down are alike. Where the least of these probabilities is below ``LEVEL``, the series changed there, and
what came before it is no longer looked at. One slow run does not make a change: there have to be some, and their median
has to have moved as well as their mean.

The scatter is that of the series itself, and Student's t pays for how few runs it is known from: the rate of false
alarms holds for short series too. That is where this does better than the libraries that it was held against
(docs/history.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...constructor.choice import COLD, MODEL
from ...db import Measurement, Run, Stack, Store, Subject
from ...db.queries import Filter
from ...db.values import Runtime
from ...tabular import Row
from ..comparison.difference import Difference, difference, two_sided
from ..estimation.query import Query, matching

# The runs of a model in one place, in the order in which they were made.


MEAN, UNDISTURBED = "mean", "undisturbed"
"""What the latencies of a series are: means, or those of a quiet machine."""

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Track:
    """Where the runs of a series were made: all that is part of what is measured, but for versions.

    Attributes:
        system: Key of the system.
        runtime: The backend, its device and options.
        threads: Its threads.
        dtype: Precision.
        cold: Whether everything is evicted before each execution; else a model is in its own cache state.
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
        """``cold``, or ``model``: whatever a model that is repeated leaves in the caches."""
        return COLD if self.cold else MODEL

    @property
    def filter(self) -> Filter:
        """What else was measured there, in whatever precision and with whatever options."""
        runtime = self.runtime
        return Filter(system=self.system, threads=self.threads, backend=runtime.backend, device=runtime.device)

    def record(self) -> Row:
        """Return the keys of a JSON object that say where it was."""
        return {
            "system": self.system,
            "backend": self.runtime.backend,
            "device": self.runtime.device,
            "options": dict(self.runtime.options),
            "threads": self.threads,
            "cache": self.cache,
            "dtype": self.dtype,
        }


@dataclass(frozen=True, slots=True)
class RunPoint:
    """One run of a series.

    Attributes:
        run: Its id.
        started: When it began, ISO 8601, UTC.
        latency_ms: Undisturbed, or the mean; which, the series says.
        ci95_ms: Interval of it, relatively as wide as that of the mean; it holds nothing that runs differ by.
        quiet: Share of the visits during which the machine was quiet; None where that is not known.
        stack: Key of the stack.
        versions: Of the runtime's packages, of dlbricks, and of the operating system's kernel; and the node, where the
            run has one: equal machines are one system, and so is a series.
    """

    run: str
    started: str
    latency_ms: float
    ci95_ms: tuple[float, float]
    quiet: float | None
    stack: str
    versions: Mapping[str, str]


def measured_by_track(store: Store, query: Query, models: Collection[str]) -> dict[str, dict[Track, list[Measurement]]]:
    """What was measured of whole models, by model and track; one measurement of each run, oldest run first.

    Args:
        store: The database.
        query: What the caller asked for.
        models: Keys of the models.

    Raises:
        UsageError: No stored system, or stack, has a key that begins as asked.
    """
    stacks, order = store.stacks(), {run.id: number for number, run in enumerate(store.runs())}
    # A model that is repeated is in its own cache state: hot and model are the same of it.
    places = matching(store, models, replace(query, cache=None), Subject.MODEL)
    wanted = {
        (place.system_key, place.stack_key, place.conditions)
        for place in places
        if query.cache is None or (query.cache == COLD) == (place.conditions.cache == COLD)
    }
    found: defaultdict[str, defaultdict[Track, dict[str, Measurement]]] = defaultdict(lambda: defaultdict(dict))
    stored = store.measurements(subject=Subject.MODEL, keys=models, latest=False)
    for taken in sorted(stored, key=lambda measurement: order[measurement.run]):
        if (taken.system, taken.stack, taken.conditions) in wanted and value_ns(taken, MEAN):
            found[taken.key][Track.of(taken, stacks[taken.stack])][taken.run] = taken
    return {key: {track: list(runs.values()) for track, runs in of.items()} for key, of in found.items()}


def basis_of(measurements: Iterable[Measurement]) -> str:
    """What a series is made of: undisturbed latencies where all runs have one, else means; never some of both."""
    return UNDISTURBED if all(measurement.undisturbed_ns for measurement in measurements) else MEAN


def value_ns(measurement: Measurement, basis: str) -> float:
    """The latency of a measurement."""
    return measurement.latency_ns if basis == MEAN else measurement.undisturbed_ns or 0.0


def points_of(
    measurements: Sequence[Measurement], basis: str, runs: Mapping[str, Run], stacks: Mapping[str, Stack]
) -> tuple[RunPoint, ...]:
    """The points of a series.

    Args:
        measurements: Of each run one, oldest first.
        basis: What their latencies are.
        runs: By id.
        stacks: By key.
    """
    points = []
    for taken in measurements:
        run, latency_ms = runs[taken.run], value_ns(taken, basis) / _NS_PER_MS
        low, high = (bound * latency_ms / taken.latency_ns for bound in taken.ci95_ns)
        kernel = run.before.get("kernel")
        versions = {**dict(stacks[taken.stack].versions), "dlbricks": run.tool}
        versions |= {"kernel": str(kernel)} if kernel else {}
        versions |= {"node": run.node} if run.node else {}
        points.append(RunPoint(run.id, run.started, latency_ms, (low, high), taken.quiet, taken.stack, versions))
    return tuple(points)


LEVEL = 2e-4
"""Probability of a cut by chance below which it is a change: with that a series without changes raises less than one
alarm in 1,000 runs (docs/results/history.md), although every new run is looked at with up to ``_NEWEST`` cuts."""

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
        found: Index of the run at which it was found.
        begin: Index of the first run at the old level.
        end: Index behind the last run at the new level, as far as it is known.
        seen: How far both levels differ.
        places: Where else the cut may be: those that explain the series as well, in order, ``at`` among them.
    """

    at: int
    found: int
    begin: int
    end: int
    seen: Difference
    places: tuple[int, ...]


def shifts(latencies: Sequence[float], *, minimum_effect: float = MINIMUM_EFFECT) -> list[Shift]:
    """The changes of level of a series, oldest first: each alarm that was raised run by run, whatever came later.

    Args:
        latencies: Of each run, oldest first; positive, in any unit.
        minimum_effect: Relative change that matters.

    Example:
        >>> quiet = [1.00, 1.01, 0.99, 1.00, 1.01, 1.00, 0.99, 1.01]
        >>> [(shift.at, round(shift.seen.ratio, 2)) for shift in shifts([*quiet, *(1.1 * ms for ms in quiet)])]
        [(8, 1.1)]
    """
    logs = np.log(np.asarray(latencies, dtype=np.float64))
    found: list[tuple[int, int]] = []
    begin = 0
    for last in range(FEWEST - 1, logs.size):
        cut = _cut(logs[begin : last + 1], math.log1p(minimum_effect))
        if cut is not None:
            begin += cut
            found.append((begin, last))
    return _described(logs, found)


def confirmed_shifts(latencies: Sequence[float], *, minimum_effect: float = MINIMUM_EFFECT) -> list[Shift]:
    """The same without alarms that later runs did not bear out: whose levels, over all their runs, hardly differ.

    Args:
        latencies: As of ``shifts``.
        minimum_effect: Relative change that matters.
    """
    logs, least = np.log(np.asarray(latencies, dtype=np.float64)), math.log1p(minimum_effect)
    found = shifts(latencies, minimum_effect=minimum_effect)
    while found:
        weakest = min(found, key=_size)
        if _size(weakest) >= least:
            break
        found = _described(logs, [(shift.at, shift.found) for shift in found if shift is not weakest])
    return found


def _size(shift: Shift) -> float:
    return abs(math.log(shift.seen.ratio))


def _described(logs: Values, found: Sequence[tuple[int, int]]) -> list[Shift]:
    """The changes at some cuts that were found with some runs, with what all runs say of them."""
    cuts = [at for at, _ in found]
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
        for number, (near, (_, last)) in enumerate(zip(places, found, strict=True))
    ]


def level_difference(before: Sequence[float], after: Sequence[float]) -> Difference | None:
    """How far the levels of two groups of runs differ; None where either has fewer than two.

    Args:
        before: Positive values, in any unit.
        after: Positive values in the same unit.
    """
    if min(len(before), len(after)) < 2:
        return None
    return _difference(np.log(np.asarray(before, dtype=np.float64)), np.log(np.asarray(after, dtype=np.float64)))


def _cut(logs: Values, least: float) -> int | None:
    """Where the newest runs are at another level than those before, most clearly; None where they are at none."""
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
    """The cuts near one that explain all runs of both levels as well as the best of them, which is the first."""
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
