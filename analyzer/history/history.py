"""Latencies of models over time: stored runs, changes of level, and their causes.

Witnesses show changes of the machine: probes around every visit, and reference networks, as series of the same runs. A
probe is our own code: versions of the runtime cannot slow it, and a slow machine slows it too. A reference network runs
in the runtime: if a version changed as well, it says nothing about the machine.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple, Unpack

from ...bricks.decomposition import Decomposition, Failed
from ...bricks.reference import CHAIN, OVERHEAD, built_in_key
from ...constructor.choice import COLD, Query
from ...db import Measurement, Run, Stack, Store, Subject
from ...db.samples.statistics import Baseline
from ...db.values import GIVEN, SIZES, Visit
from ...generator.decomposition.cut import Cut
from ...models import ModelSource
from ...tabular import Records, Row, Tabular, fields, nested_rows, record_of
from ..comparison.difference import Difference, Levels, Relation, check_minimum_effect
from ..comparison.results import ModelBrick, bricks_of, decomposed
from ..estimation.query import QueryFields, asked
from .changes import (
    FEWEST,
    MINIMUM_EFFECT,
    UNDISTURBED,
    RunPoint,
    Shift,
    Track,
    basis_of,
    confirmed_shifts,
    level_difference,
    measured_by_track,
    points_of,
    value_ns,
)

_HOT = "hot"
_NS_PER_US, _NS_PER_MS = 1e3, 1e6

_PROBE, _REFERENCE = "probe", "reference"

_NAMES = {built_in_key(OVERHEAD): "a call of one addition", built_in_key(CHAIN): "a chain of small operators"}

_LEVEL = 0.01
"""A series moved if the probability of chance is below this."""

_SHARE = 0.5
"""A witness explains a change if it moved by at least this share of the change, in the same direction."""

_SOON, _LATER = 5.0, 3.0
"""Steps in multiples of the scatter that are found within three and six runs (docs/explanation/statistics.md)."""

_SHOWN = 8
"""Characters of a key."""

_BrickRuns = Mapping[str, Mapping[str, Measurement]]
"""Measurements of bricks, by key of the brick and by run."""


# Result of ``history``: models over time, changes of level, and their causes.


class Cause(StrEnum):
    """The recorded cause of a change."""

    MACHINE = "machine"
    """The machine moved as well, and no version changed."""
    VERSIONS = "versions"
    """A version changed, and nothing shows that the machine moved."""
    UNKNOWN = "unknown"
    """Both are seen, or neither."""


class Standing(StrEnum):
    """The result of repeating an alarm."""

    CONFIRMED = "confirmed"
    """The new environment differs from the old one in the same way."""
    REFUTED = "not confirmed"
    """It does not differ, or in the opposite way."""
    UNCLEAR = "unclear"
    """The repetition does not decide it, or could not be made."""


_LEVELS = (
    "before_ms=levels.before_ms after_ms=levels.after_ms "
    "ratio=levels.difference.ratio ratio_ci95=levels.difference.ci95"
)
"""Keys of both levels of a change and of their difference."""


@dataclass(frozen=True, slots=True)
class BrickChange:
    """The contribution of a brick to the change of its model.

    Attributes:
        brick: The brick.
        before_ms: Latency over the runs before the change.
        after_ms: Latency over the runs after it.
        ratio: ``after_ms / before_ms``; None if either is 0.
        ratio_ci95: Its interval; None if either side is a single run.
    """

    brick: ModelBrick
    before_ms: float
    after_ms: float
    ratio: float | None
    ratio_ci95: tuple[float, float] | None

    @property
    def contribution_ms(self) -> float:
        """Occurrences times the difference."""
        return self.brick.occurrences * (self.after_ms - self.before_ms)

    def record(self) -> Row:
        """As a JSON object."""
        figures = record_of(self, fields("before_ms after_ms ratio ratio_ci95 contribution_ms"))
        return {**self.brick.record(), **figures, "form": asdict(self.brick.form)}


@dataclass(frozen=True, slots=True)
class Witness:
    """A series that runs measured along with the model.

    Attributes:
        name: Its name.
        kind: ``probe`` or ``reference``.
        latencies_us: One per run of the series; None for a run without it.
    """

    name: str
    kind: str
    latencies_us: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class MachineEvidence:
    """A witness at a change of the model.

    Attributes:
        name: The witness.
        kind: ``probe`` or ``reference``.
        ratio: After / before; None if too few runs measured it.
        ratio_ci95: Its interval.
        moved: True if it changed with the model, by at least half as much, beyond chance.
    """

    name: str
    kind: str
    ratio: float | None
    ratio_ci95: tuple[float, float] | None
    moved: bool


@dataclass(frozen=True, slots=True)
class Confirmation:
    """An alarm measured again in both environments; unknown values are None.

    Attributes:
        standing: The result.
        levels: Means in the old and the new environment, from alternating visits.
        old: Versions of the runtime's packages in the old environment.
        new: Versions in the new one.
        reason: Reason of the result.
    """

    standing: Standing
    levels: Levels | None = None
    old: Mapping[str, str] | None = None
    new: Mapping[str, str] | None = None
    reason: str | None = None

    def record(self) -> Row:
        """As a JSON object."""
        return record_of(self, fields(f"standing {_LEVELS} old new reason"))


class VersionChange(NamedTuple):
    """A package with another version than in the previous run; None if it was missing.

    Attributes:
        package: A package of the runtime, ``dlbricks``, or the ``kernel``.
        before: Version in the previous run.
        after: Version in this run.
    """

    package: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a model's level.

    Attributes:
        first: The first run at the new level.
        found: Id of the run that showed it.
        levels: Both levels (geometric means of their runs) and their difference, by the scatter of runs.
        runs_before: Runs at the old level.
        runs_after: Runs at the new level, until the next change.
        cause: The cause.
        reason: Reason for the cause, in words.
        versions: Version changes of the first run.
        machine: Behaviour of probes and reference networks.
        bricks: Contribution of each brick with measurements on both sides, the largest first.
        bricks_missing: Number of unique bricks without them.
        confirmation: Result of measuring it again in both environments; None if it was not requested.
    """

    first: RunPoint
    found: str
    levels: Levels
    runs_before: int
    runs_after: int
    cause: Cause
    reason: str
    versions: tuple[VersionChange, ...] = ()
    machine: tuple[MachineEvidence, ...] = ()
    bricks: tuple[BrickChange, ...] = ()
    bricks_missing: int = 0
    confirmation: Confirmation | None = None

    @property
    def verdict(self) -> Relation:
        """``SLOWER`` or ``FASTER``."""
        return Relation.SLOWER if self.levels.difference.ratio > 1 else Relation.FASTER

    @property
    def alarm(self) -> bool:
        """True unless the machine explains the change, or alternating visits do not show it."""
        refuted = self.confirmation is not None and self.confirmation.standing is Standing.REFUTED
        return self.cause is not Cause.MACHINE and not refuted

    def record(self) -> Row:
        """As a JSON object."""
        level_fields = (
            f"run=first.run started=first.started found verdict {_LEVELS} runs_before runs_after cause reason"
        )
        return {
            **record_of(self, fields(level_fields)),
            "versions": [version._asdict() for version in self.versions],
            "machine": [asdict(evidence) for evidence in self.machine],
            **record_of(self, fields("bricks bricks_missing confirmation")),
        }


class LeftOut(NamedTuple):
    """Runs that measured another model under the same name.

    Attributes:
        runs: Their number.
        difference: The difference of that model, and how to see its runs.
    """

    runs: int
    difference: str


@dataclass(frozen=True, slots=True)
class ModelHistory:
    """One model in one place; unknown values are None.

    Attributes:
        name: The model.
        track: Place of its runs.
        basis: ``undisturbed`` if all runs have this latency, else ``mean``.
        scatter: Relative standard deviation of runs around their level.
        points: The runs, oldest first.
        changes: Changes of level since the requested time, oldest first.
        machine: Probes and reference networks over the same runs.
        reason: Why no change can be found.
        error: Why the model could not be decomposed.
        left_out: Runs of other models under this name.
    """

    name: str
    track: Track | None = None
    basis: str | None = None
    scatter: float | None = None
    points: tuple[RunPoint, ...] = ()
    changes: tuple[Change, ...] = ()
    machine: tuple[Witness, ...] = ()
    reason: str | None = None
    error: str | None = None
    left_out: tuple[LeftOut, ...] = ()

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.points)

    @property
    def soon(self) -> float | None:
        """Relative change that is found within three runs; None without a known scatter."""
        return None if self.scatter is None else _SOON * self.scatter

    @property
    def later(self) -> float | None:
        """Relative change that is found within six runs; None without a known scatter."""
        return None if self.scatter is None else _LATER * self.scatter

    @property
    def latest_ms(self) -> float | None:
        """Latency of the newest run."""
        return self.points[-1].latency_ms if self.points else None

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "name": self.name,
            **(dict.fromkeys(_PLACE) if self.track is None else self.track.record()),
            **record_of(self, fields("basis runs latest_ms scatter found_in_3_runs=soon found_in_6_runs=later")),
            "points": [asdict(point) for point in self.points],
            "changes": [change.record() for change in self.changes],
            "machine": [asdict(witness) for witness in self.machine],
            **record_of(self, fields("reason error")),
            "left_out": [other._asdict() for other in self.left_out],
        }


_PLACE = ("system", "backend", "device", "options", "threads", "cache", "dtype")
"""Keys that say where a model was measured."""


@dataclass(frozen=True, slots=True)
class History(Tabular):
    """Models over time.

    Attributes:
        rows: One per model and place.
        minimum_effect: Relative change that matters.
        since: Only changes from then on are listed; None for all.
    """

    ANSWER = "report.answers.comparison.history_answer"

    rows: tuple[ModelHistory, ...]
    minimum_effect: float
    since: str | None = None

    @property
    def complete(self) -> bool:
        """True if every model has stored runs."""
        return all(row.runs for row in self.rows)

    def records(self) -> Records:
        """One row per model and place."""
        rows, hidden = [row.record() for row in self.rows], {"points", "changes", "machine"}
        flat = [line for row in rows for line in nested_rows(row, "run", row["points"], without=hidden)]
        return Records(rows, {"minimum_effect": self.minimum_effect, "since": self.since}, flat)

    @property
    def alarms(self) -> tuple[Change, ...]:
        """The changes that raise an alarm: the machine does not explain them, and no repetition refuted them."""
        return tuple(change for row in self.rows for change in row.changes if change.alarm)

    def place_of(self, row: ModelHistory) -> str:
        """Return the backend and the properties that distinguish a row from other places of its model."""
        if row.track is None:
            return ""
        alike = [other.track for other in self.rows if other.name == row.name and other.track is not None]
        row_words, tracks = _words(row.track), [_words(track) for track in alike]
        options = [dict(track.runtime.options) for track in alike if track.runtime.backend == row.track.runtime.backend]
        words = [row.track.runtime.backend]
        words += [
            f"{name}={value}"
            for name, value in row.track.runtime.options
            if len({track_options.get(name) for track_options in options}) > 1
        ]
        words += [text for text, others in zip(row_words, zip(*tracks, strict=True), strict=True) if len({*others}) > 1]
        return " ".join(words)


def _words(track: Track) -> tuple[str, ...]:
    """Return the name of a track without backend and options."""
    threads = "1 thread" if track.threads == 1 else f"{track.threads} threads"
    return track.runtime.device, threads, track.cache, track.dtype, track.system[:_SHOWN]


# The runs of a database, and what they show.


@dataclass(frozen=True, slots=True)
class _Known:
    """Common data of all rows."""

    store: Store
    runs: Mapping[str, Run]
    order: Mapping[str, int]
    """Number of every run; the oldest first."""
    stacks: Mapping[str, Stack]
    minimum_effect: float
    since: datetime | None


def history(
    models: Sequence[ModelSource],
    *,
    store: Store,
    minimum_effect: float = MINIMUM_EFFECT,
    since: datetime | None = None,
    query: Query | None = None,
    granularity: int = 1,
    connected: bool = False,
    **fields: Unpack[QueryFields],
) -> History:
    """Return every stored run of models, and the changes of their latency; nothing is measured.

    A series has the same system and conditions, and any versions. The test for changes raises less than one false alarm
    in 1,000 runs (``changes``).

    Args:
        models: The models, from ``find_models``.
        store: Database of the latencies.
        minimum_effect: Relative change that matters.
        since: List only changes after this time; earlier runs still define the old level. Local time without a time
            zone.
        query: Narrows the result.
        granularity: Most layers in the bricks; they are cut from the models' own graphs.
        connected: Bricks may be weakly connected windows.
        **fields: Fields of a ``Query``; they replace the fields of ``query``.

    Raises:
        UsageError: The minimum effect is not positive, or the system or stack is not stored.
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
    decompositions = decomposed(models, Cut(granularity, connected=connected))
    runs = {run.id: run for run in store.runs()}
    order = {run: number for number, run in enumerate(runs)}
    common = _Known(store, runs, order, store.stacks(), minimum_effect, begin)
    keys = {model.source.name: _keys(model, common.runs.values()) for model in decompositions}
    stored = measured_by_track(store, asked(query, fields), {key for files in keys.values() for key in files})
    rows: list[ModelHistory] = []
    for model in decompositions:
        if isinstance(model, Failed):
            rows.append(ModelHistory(model.source.name, reason=model.reason, error=model.reason))
            continue
        by_track: defaultdict[Track, list[Measurement]] = defaultdict(list)
        for key in keys[model.name]:
            for track, measurements in stored.get(key, {}).items():
                by_track[track] += measurements
        left_out = _left_out(model, runs.values(), keys[model.name])
        if not by_track:
            rows.append(ModelHistory(model.source.name, reason="nothing is stored", left_out=left_out))
        for track, measurements in by_track.items():
            row = _row(common, model, track, sorted(measurements, key=lambda taken: order[taken.run]))
            rows.append(replace(row, left_out=left_out))
    return History(tuple(rows), minimum_effect, None if begin is None else begin.isoformat())


_TURNS = 2
"""Most changes between two files of one model: it was changed, and changed back."""


def _keys(model: Decomposition | Failed, runs: Collection[Run]) -> list[str]:
    """Return the keys of a model's files: its own file, and files that runs measured under its name before or after.

    Other sizes of its dimensions and other values of its inputs are other models.
    """
    if isinstance(model, Failed):
        return []
    own = model.own.key
    measured = ((run, key) for run in runs if (key := run.measured(model.name)) is not None)
    named = dict.fromkeys(key for run, key in measured if _same_inputs(run, key, model))
    return [own, *(key for key in named if key != own and _is_one({own, key}, runs))]


def _same_inputs(run: Run, key: str, model: Decomposition) -> bool:
    """Return True if a run measured a model in the sizes of another one, and on the same given values."""
    noted, bound = run.of_model(SIZES, key), model.own.bound
    sizes: Mapping[str, object] = noted if isinstance(noted, Mapping) else {}
    same_sizes = all(sizes.get(name, size) == size for name, size in bound.items())
    return same_sizes and (run.of_model(GIVEN, key) or "") == model.own.given


def _left_out(model: Decomposition, runs: Collection[Run], keys: Collection[str]) -> tuple[LeftOut, ...]:
    """Return the runs under a model's name that measured another model."""
    counts: Counter[str] = Counter()
    for run in runs:
        key = run.measured(model.name)
        if key is not None and key not in keys:
            counts[_difference(run, key, model)] += 1
    return tuple(LeftOut(count, difference) for difference, count in counts.items())


def _difference(run: Run, key: str, model: Decomposition) -> str:
    """Return the difference of a measured model from another one of its name, and how to see its runs."""
    noted = run.of_model(SIZES, key)
    sizes: Mapping[str, object] = noted if isinstance(noted, Mapping) else {}
    others = {name: sizes[name] for name, size in model.own.bound.items() if sizes.get(name, size) != size}
    if others:
        words = " ".join(f"{name}={size}" for name, size in others.items())
        return f"in other sizes ({words}): give them with --dim or --batch"
    if (run.of_model(GIVEN, key) or "") != model.own.given:
        return "on other values of its inputs: give them with --value or --data"
    return "of another file that is measured beside or in turn with this one: name that file"


def _is_one(keys: set[str], runs: Collection[Run]) -> bool:
    """Return True if two files can be one model over time: no run has both, and no machine alternates between them."""
    by_machine: defaultdict[tuple[str, str], list[set[str]]] = defaultdict(list)
    for run in runs:
        if taken := keys & run.models.keys():
            by_machine[run.system, run.node].append(taken)
    return all(
        keys not in taken and sum(before != after for before, after in pairwise(taken)) <= _TURNS
        for taken in by_machine.values()
    )


def _row(common: _Known, model: Decomposition, track: Track, measurements: Sequence[Measurement]) -> ModelHistory:
    basis = basis_of(measurements)
    points = points_of(measurements, basis, common.runs, common.stacks)
    latencies = [point.latency_ms for point in points]
    shifts = confirmed_shifts(latencies, minimum_effect=common.minimum_effect)
    witnesses = (
        *_probes(common.store, measurements, basis),
        *_references(common, track, [point.run for point in points]),
    )
    bricks = _brick_runs(common, track, model) if shifts else {}
    blamed = partial(_blamed, model, bricks, common.order)
    changes = [_change(points, witnesses, shift, blamed) for shift in shifts]
    few = f"{len(points)} of the {FEWEST} runs that it takes to find a change" if len(points) < FEWEST else None
    return ModelHistory(
        model.source.name,
        track,
        basis,
        _scatter(latencies, [shift.at for shift in shifts]),
        points,
        tuple(
            change
            for change in changes
            if common.since is None or datetime.fromisoformat(change.first.started) >= common.since
        ),
        witnesses,
        few,
    )


def _scatter(latencies: Sequence[float], cuts: Sequence[int]) -> float | None:
    """Return the relative standard deviation within levels; None if no level has a second run."""
    logs = [math.log(latency) for latency in latencies]
    parts = [logs[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(logs)], strict=True)]
    degrees = len(logs) - len(parts)
    rest = sum((value - fmean(part)) ** 2 for part in parts for value in part)
    return math.sqrt(rest / degrees) if degrees else None


def _change(
    points: Sequence[RunPoint],
    witnesses: Sequence[Witness],
    shift: Shift,
    blamed: Callable[[Sequence[RunPoint], Sequence[RunPoint]], tuple[tuple[BrickChange, ...], int]],
) -> Change:
    # Several runs may be the first at the new level: prefer one with a changed version.
    at = min(shift.places, key=lambda index: (not _versions(points, index), abs(index - shift.at)))
    before, after = points[shift.begin : at], points[at : shift.end]
    seen = level_difference([point.latency_ms for point in before], [point.latency_ms for point in after])
    assert seen is not None  # noqa: S101  # there are several runs on either side
    machine = tuple(_evidence(witness, seen, shift.begin, at, shift.end) for witness in witnesses)
    versions = _versions(points, at)
    cause, reason = _cause(versions, machine)
    bricks, missing = blamed(before, after)
    ordered = sorted(bricks, key=lambda change: change.contribution_ms, reverse=seen.ratio > 1)
    return Change(
        points[at],
        points[max(shift.found, at)].run,
        Levels(_level(before), _level(after), seen),
        len(before),
        len(after),
        cause,
        reason,
        versions,
        machine,
        tuple(ordered),
        missing,
    )


def _level(points: Sequence[RunPoint]) -> float:
    return math.exp(fmean(math.log(point.latency_ms) for point in points))


def _versions(points: Sequence[RunPoint], at: int) -> tuple[VersionChange, ...]:
    """Return the version changes between a run and the previous one."""
    old, new = points[at - 1].versions, points[at].versions
    names = dict.fromkeys([*old, *new])
    return tuple(VersionChange(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name))


def _cause(versions: Sequence[VersionChange], machine: Sequence[MachineEvidence]) -> tuple[Cause, str]:
    """Return the cause of a change, and the reason for it."""
    changed = ", ".join(f"{package} {before or 'absent'} → {after or 'absent'}" for package, before, after in versions)
    # In another version of a runtime our own networks may take longer as well.
    telling = [witness for witness in machine if witness.kind == _PROBE or not versions]
    moving = [witness for witness in telling if witness.moved]
    names = ", ".join(f"{witness.name} x {witness.ratio:.3f}" for witness in moving)
    if moving and versions:
        return Cause.UNKNOWN, f"both may be: {changed}, and the machine moved ({names})"
    if moving:
        return Cause.MACHINE, f"the machine and not the runtime: it moved as well ({names}), and no version changed"
    looked = any(witness.ratio is not None for witness in telling)
    still = "the machine did not move with it" if looked else "it is unknown if the machine changed"
    if versions:
        return Cause.VERSIONS, f"{changed}; {still}"
    return Cause.UNKNOWN, f"no recorded version changed, and {still}"


# Which bricks of a model changed when the model did.


def _brick_runs(common: _Known, track: Track, model: Decomposition) -> _BrickRuns:
    """Return the measurements of a model's bricks at the place of a series, in their most common cache state."""
    by_state: defaultdict[str, defaultdict[str, dict[str, Measurement]]] = defaultdict(lambda: defaultdict(dict))
    states = (COLD,) if track.cold else (model.level, _HOT)
    where = track.filter.but(subject=Subject.BRICK, keys={part.key for part in model.sequences}, dtype=track.dtype)
    for state in states:
        for measurement in common.store.measurements(where, cache=state, latest=False):
            if common.stacks[measurement.stack].options == track.runtime.options:
                by_state[state][measurement.key][measurement.run] = measurement
    return max((by_state[state] for state in states), key=lambda bricks: sum(map(len, bricks.values())))


def _blamed(
    model: Decomposition,
    measured: _BrickRuns,
    order: Mapping[str, int],
    before: Sequence[RunPoint],
    after: Sequence[RunPoint],
) -> tuple[tuple[BrickChange, ...], int]:
    """Return the bricks that runs before and after a change measured.

    Bricks may have been measured by other runs than the model, at the same time.

    Args:
        model: The model.
        measured: The measurements of its bricks.
        order: Number of every run of the database.
        before: Runs of the model before the change.
        after: Its runs after it.

    Returns:
        The bricks, and the number of unique ones that are not known on both sides.
    """
    first, middle, last = (order[point.run] for point in (before[0], after[0], after[-1]))
    sides = range(first, middle), range(middle, last + 1)
    changes = []
    bricks = bricks_of(model)
    for key, brick in bricks.items():
        runs = measured.get(key, {})
        basis = basis_of(runs.values())
        numbers = sorted(runs, key=order.__getitem__)
        old, new = ([value_ns(runs[run], basis) for run in numbers if order[run] in side] for side in sides)
        if not old or not new:
            continue
        old_ms, new_ms = fmean(old) / _NS_PER_MS, fmean(new) / _NS_PER_MS
        seen = level_difference(old, new) if min(*old, *new) > 0 else None  # a logarithm of anything else has no sense
        ratio = new_ms / old_ms if old_ms and new_ms else None
        interval = None if seen is None else seen.ci95
        changes.append(BrickChange(brick, old_ms, new_ms, ratio, interval))
    return tuple(changes), len(bricks) - len(changes)


# Changes of the machine.


def _evidence(witness: Witness, seen: Difference, begin: int, at: int, end: int) -> MachineEvidence:
    """Return the behaviour of a witness at a change of the model.

    Args:
        witness: The witness.
        seen: The change of the model.
        begin: Index of the first run at the old level.
        at: Index of the first run at the new level.
        end: Index behind its last run.
    """
    values = witness.latencies_us
    witnessed = level_difference(
        [value for value in values[begin:at] if value], [value for value in values[at:end] if value]
    )
    if witnessed is None:
        return MachineEvidence(witness.name, witness.kind, None, None, moved=False)
    ours, theirs = math.log(seen.ratio), math.log(witnessed.ratio)
    with_it = witnessed.p < _LEVEL and ours * theirs > 0 and abs(theirs) >= _SHARE * abs(ours)
    return MachineEvidence(witness.name, witness.kind, witnessed.ratio, witnessed.ci95, moved=with_it)


def _probes(store: Store, measurements: Sequence[Measurement], basis: str) -> list[Witness]:
    """Return the probes on the same basis as the latencies: at their quietest (``Baseline``), or their means."""
    blocks = store.blocks_of([measurement.id for measurement in measurements])
    levels = [
        _probe_levels([visit for block in blocks.get(measurement.id, []) for visit in block.visits], basis)
        for measurement in measurements
    ]
    names = "probe of arithmetic", "probe of memory"
    witnesses = [Witness(name, _PROBE, values) for name, values in zip(names, zip(*levels, strict=True), strict=True)]
    return [witness for witness in witnesses if any(witness.latencies_us)]


def _probe_levels(visits: Sequence[Visit], basis: str) -> tuple[float, float] | tuple[None, None]:
    """Return the times of the probes of arithmetic and of memory, in microseconds; None without visits."""
    quietest = Baseline.of(visits)
    if quietest is None:
        return None, None
    if basis == UNDISTURBED:
        return quietest.compute_ns / _NS_PER_US, quietest.memory_ns / _NS_PER_US
    compute_ns, memory_ns = fmean(visit.compute_ns for visit in visits), fmean(visit.memory_ns for visit in visits)
    return compute_ns / _NS_PER_US, memory_ns / _NS_PER_US


def _references(common: _Known, track: Track, order: Sequence[str]) -> list[Witness]:
    """Return the reference networks measured by a run of the series."""
    by_network: defaultdict[str, dict[str, Measurement]] = defaultdict(dict)
    for measurement in common.store.measurements(track.filter, subject=Subject.REFERENCE, latest=False):
        if measurement.run in order and common.stacks[measurement.stack].options == track.runtime.options:
            by_network[measurement.key][measurement.run] = measurement
    witnesses = []
    for key, by_run in sorted(by_network.items()):
        basis = basis_of(by_run.values())
        values = [value_ns(by_run[run], basis) / _NS_PER_US if run in by_run else None for run in order]
        witnesses.append(Witness(_NAMES.get(key, f"reference {key[:_SHOWN]}"), _REFERENCE, tuple(values)))
    return witnesses
