"""The runs of a model in one place, in the order in which they were made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...constructor.choice import COLD
from ...db import Measurement, Run, Stack, Store, Subject
from ..estimation.query import Query, matching

__all__ = ["MEAN", "UNDISTURBED", "Point", "Track", "basis_of", "points_of", "tracks", "value_ns"]

MEAN, UNDISTURBED = "mean", "undisturbed"
"""What the latencies of a series are: means, or those of a quiet machine."""

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Track:
    """Where the runs of a series were made: all that is part of what is measured, but for versions.

    Attributes:
        system: Key of the system.
        backend: Name of the backend.
        device: Its device.
        options: Sorted options of the runtime.
        threads: Its threads.
        dtype: Precision.
        cold: Whether everything is evicted before each execution; else a model is in its own cache state.
    """

    system: str
    backend: str
    device: str
    options: tuple[tuple[str, str], ...]
    threads: int
    dtype: str
    cold: bool

    @classmethod
    def of(cls, measurement: Measurement, stack: Stack) -> Track:
        """That of a measurement."""
        conditions = measurement.conditions
        cold = conditions.cache == COLD
        where = (stack.backend, stack.device, stack.options, conditions.threads, conditions.dtype)
        return cls(measurement.system, *where, cold)


@dataclass(frozen=True, slots=True)
class Point:
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


def tracks(store: Store, query: Query, models: Collection[str]) -> dict[str, dict[Track, list[Measurement]]]:
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
    for one in sorted(stored, key=lambda one: order[one.run]):
        if (one.system, one.stack, one.conditions) in wanted and value_ns(one, MEAN):
            found[one.key][Track.of(one, stacks[one.stack])][one.run] = one
    return {key: {track: list(runs.values()) for track, runs in of.items()} for key, of in found.items()}


def basis_of(measurements: Iterable[Measurement]) -> str:
    """What a series is made of: undisturbed latencies where all runs have one, else means; never some of both."""
    return UNDISTURBED if all(one.undisturbed_ns for one in measurements) else MEAN


def value_ns(measurement: Measurement, basis: str) -> float:
    """The latency of a measurement."""
    return measurement.latency_ns if basis == MEAN else measurement.undisturbed_ns or 0.0


def points_of(
    measurements: Sequence[Measurement], basis: str, runs: Mapping[str, Run], stacks: Mapping[str, Stack]
) -> tuple[Point, ...]:
    """The points of a series.

    Args:
        measurements: Of each run one, oldest first.
        basis: What their latencies are.
        runs: By id.
        stacks: By key.
    """
    points = []
    for one in measurements:
        run, latency_ms = runs[one.run], value_ns(one, basis) / _NS_PER_MS
        low, high = (bound * latency_ms / one.latency_ns for bound in one.ci95_ns)
        kernel = run.before.get("kernel")
        versions = {**dict(stacks[one.stack].versions), "dlbricks": run.tool}
        versions |= {"kernel": str(kernel)} if kernel else {}
        versions |= {"node": run.node} if run.node else {}
        points.append(Point(run.id, run.started, latency_ms, (low, high), one.quiet, one.stack, versions))
    return tuple(points)
