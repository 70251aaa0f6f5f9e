"""The latencies of models over time: every run that is stored, and where the level changed, by what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import Unpack

from ...bricks.inference.shapes import ShapeOracle
from ...constructor.choice import COLD, MODEL
from ...constructor.decomposition import Decomposition, Failed
from ...db import Measurement, Run, Stack, Store
from ...generator.decomposition.cutter import Cut
from ...generator.decomposition.oracle import WorkerOracle
from ...models import ModelSource
from ..comparison.difference import Relation, check_minimum_effect
from ..estimation.cutting import readable_of
from ..estimation.query import Query, QueryFields, asked
from ..estimation.survey import decompose_all
from .blame import BrickRuns, blamed, brick_runs
from .changes import FEWEST, MINIMUM_EFFECT, Shift, moved, standing
from .machine import PROBE, Evidence, Witness, evidence, witnesses
from .result import Cause, Change, History, ModelHistory, VersionChange
from .series import Point, Track, basis_of, points_of, tracks

__all__ = ["history"]


@dataclass(frozen=True, slots=True)
class _Known:
    """What all rows are made from."""

    store: Store
    runs: Mapping[str, Run]
    stacks: Mapping[str, Stack]
    minimum_effect: float
    since: datetime | None


@dataclass(frozen=True, slots=True)
class _Series:
    """What the changes of one row are made from."""

    model: Decomposition
    points: Sequence[Point]
    witnesses: Sequence[Witness]
    bricks: BrickRuns
    order: Mapping[str, int]
    """Number of every run of the database, the oldest first."""


def history(
    models: Sequence[ModelSource],
    *,
    store: Store,
    minimum_effect: float = MINIMUM_EFFECT,
    since: datetime | None = None,
    query: Query | None = None,
    granularity: int = 1,
    connected: bool = False,
    oracle: ShapeOracle | None = None,
    **fields: Unpack[QueryFields],
) -> History:
    """Show every stored run of models, and where their latency changed; nothing is measured.

    A series holds what was measured under the same conditions on the same system, whatever the versions. Its level
    changes where a test says so that raises less than one false alarm in 1,000 runs (``changes``).

    Args:
        models: The models, from ``find_models``.
        store: Where latencies are.
        minimum_effect: Relative change that matters.
        since: List only changes from then on; runs before still say what was usual. Local time where it has no time
            zone.
        query: Narrows what is shown.
        granularity: Most layers in the bricks that are held to account; they are those of the models' own graphs.
        connected: Bricks may be weakly connected windows.
        oracle: Finds shapes that inference does not.
        **fields: Fields of a ``Query``, in place of those of ``query``.

    Raises:
        UsageError: The minimum effect is not positive, or there is no such system or stack.
        StoreError: The database cannot be read.

    Example:
        >>> from dlbricks.db import Store
        >>> from dlbricks.models import find_models
        >>> with Store.open("sqlite://") as store:
        ...     (row,) = history(find_models(["squeezenet"]), store=store).rows
        >>> row.runs, row.reason
        (0, 'nothing is stored')
    """
    check_minimum_effect(minimum_effect)
    begin = None if since is None else since.astimezone(UTC)
    cut = Cut(granularity, connected=connected)
    cut.check()
    with WorkerOracle() as worker:
        found = decompose_all(models, cut, oracle or worker, store=store)
    readable_of(models, found)
    known = _Known(store, {run.id: run for run in store.runs()}, store.stacks(), minimum_effect, begin)
    keys = {model.own.key for model in found if isinstance(model, Decomposition)}
    stored = tracks(store, asked(query, fields), keys)
    rows: list[ModelHistory] = []
    for model in found:
        if isinstance(model, Failed):
            rows.append(ModelHistory(model.source.name, reason=model.reason, error=model.reason))
        elif model.own.key not in stored:
            rows.append(ModelHistory(model.source.name, reason="nothing is stored"))
        else:
            rows += [_row(known, model, track, runs) for track, runs in stored[model.own.key].items()]
    return History(tuple(rows), minimum_effect, None if begin is None else begin.isoformat())


def _row(known: _Known, model: Decomposition, track: Track, measurements: Sequence[Measurement]) -> ModelHistory:
    basis = basis_of(measurements)
    points = points_of(measurements, basis, known.runs, known.stacks)
    latencies = [point.latency_ms for point in points]
    found = standing(latencies, minimum_effect=known.minimum_effect)
    seen = witnesses(known.store, track, measurements, known.stacks, basis=basis)
    bricks = brick_runs(known.store, track, model, known.stacks) if found else {}
    series = _Series(model, points, seen, bricks, {run: number for number, run in enumerate(known.runs)})
    changes = [_change(series, shift) for shift in found]
    few = f"{len(points)} of the {FEWEST} runs that it takes to find a change" if len(points) < FEWEST else None
    return ModelHistory(
        name=model.source.name,
        system=track.system,
        backend=track.backend,
        device=track.device,
        options=dict(track.options),
        threads=track.threads,
        cache=COLD if track.cold else MODEL,
        dtype=track.dtype,
        basis=basis,
        runs=len(points),
        latest_ms=latencies[-1],
        scatter=_scatter(latencies, [shift.at for shift in found]),
        points=points,
        changes=tuple(
            one for one in changes if known.since is None or datetime.fromisoformat(one.started) >= known.since
        ),
        machine=seen,
        reason=few,
    )


def _scatter(latencies: Sequence[float], cuts: Sequence[int]) -> float | None:
    """Relative standard deviation within levels; None where no level has a second run."""
    logs = [math.log(one) for one in latencies]
    parts = [logs[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(logs)], strict=True)]
    degrees = len(logs) - len(parts)
    rest = sum((one - fmean(part)) ** 2 for part in parts for one in part)
    return math.sqrt(rest / degrees) if degrees else None


def _change(series: _Series, shift: Shift) -> Change:
    points = series.points
    # Of the runs that may be the first at the new level, that with which a version changed.
    at = min(shift.places, key=lambda place: (not _versions(points, place), abs(place - shift.at)))
    before, after = points[shift.begin : at], points[at : shift.end]
    seen = moved([one.latency_ms for one in before], [one.latency_ms for one in after])
    assert seen is not None  # noqa: S101  # there are several runs on either side
    slower = seen.ratio > 1
    machine = tuple(evidence(one, seen, shift.begin, at, shift.end) for one in series.witnesses)
    versions = _versions(points, at)
    cause, reason = _cause(versions, machine)
    # Bricks may have been measured by other runs than the model.
    first, middle, last = (series.order[one.run] for one in (before[0], after[0], after[-1]))
    sides = (
        [run for run, number in series.order.items() if first <= number < middle],
        [run for run, number in series.order.items() if middle <= number <= last],
    )
    bricks, missing = blamed(series.model, series.bricks, *sides, slower=slower)
    return Change(
        run=points[at].run,
        started=points[at].started,
        found=points[max(shift.found, at)].run,
        verdict=Relation.SLOWER if slower else Relation.FASTER,
        before_ms=_level(before),
        after_ms=_level(after),
        ratio=seen.ratio,
        ratio_ci95=seen.ci95,
        runs_before=len(before),
        runs_after=len(after),
        cause=cause,
        reason=reason,
        versions=versions,
        machine=machine,
        bricks=bricks,
        bricks_missing=missing,
    )


def _level(points: Sequence[Point]) -> float:
    return math.exp(fmean(math.log(one.latency_ms) for one in points))


def _versions(points: Sequence[Point], at: int) -> tuple[VersionChange, ...]:
    """What changed between a run and the one before it."""
    old, new = points[at - 1].versions, points[at].versions
    names = dict.fromkeys([*old, *new])
    return tuple(VersionChange(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name))


def _cause(versions: Sequence[VersionChange], machine: Sequence[Evidence]) -> tuple[Cause, str]:
    """What a change goes with, and how that is known."""
    changed = ", ".join(f"{one.package} {one.before or 'absent'} → {one.after or 'absent'}" for one in versions)
    # In another version of a runtime our own networks may take longer as well.
    moving = [one for one in machine if one.moved and (one.kind == PROBE or not versions)]
    names = ", ".join(f"{one.name} x {one.ratio:.3f}" for one in moving)
    if moving and versions:
        return Cause.UNKNOWN, f"both may be: {changed}, and the machine moved ({names})"
    if moving:
        return Cause.MACHINE, f"the machine and not the runtime: it moved as well ({names}), and no version changed"
    looked = [one for one in machine if one.ratio is not None and (one.kind == PROBE or not versions)]
    still = "the machine did not move with it" if looked else "whether the machine moved is not known"
    if versions:
        return Cause.VERSIONS, f"{changed}; {still}"
    return Cause.UNKNOWN, f"no recorded version changed, and {still}"
