"""Result of ``history``: models over time, changes of level, and their causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ...tabular import Records, Row, Tabular, nested_rows
from ..comparison.difference import Levels, Relation
from ..comparison.results import ModelBrick
from .changes import RunPoint, Track

_SHOWN = 8
"""Characters of a key."""


class Cause(StrEnum):
    """The recorded cause of a change."""

    MACHINE = "machine"
    """The machine moved as well, and no version changed."""
    VERSIONS = "versions"
    """A version changed, and nothing shows that the machine moved."""
    UNKNOWN = "unknown"
    """Neither is seen, or both."""


class Standing(StrEnum):
    """The result of repeating an alarm."""

    CONFIRMED = "confirmed"
    """The new environment differs from the old one in the same way."""
    REFUTED = "not confirmed"
    """It does not, or in the other way."""
    UNCLEAR = "unclear"
    """They do not decide it, or it could not be tried."""


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
        return {
            **self.brick.record(),
            "before_ms": self.before_ms,
            "after_ms": self.after_ms,
            "ratio": self.ratio,
            "ratio_ci95": self.ratio_ci95,
            "contribution_ms": self.contribution_ms,
            "form": asdict(self.brick.form),
        }


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
        bricks: Contribution of each brick, measured alone with hot caches, the largest first; only if confirmed.
        reason: Reason of the result.
    """

    standing: Standing
    levels: Levels | None = None
    old: Mapping[str, str] | None = None
    new: Mapping[str, str] | None = None
    bricks: tuple[BrickChange, ...] = ()
    reason: str | None = None

    def record(self) -> Row:
        """As a JSON object."""
        return {
            "standing": self.standing,
            **_levels(self.levels),
            "old": self.old,
            "new": self.new,
            "bricks": [brick.record() for brick in self.bricks],
            "reason": self.reason,
        }


def _levels(levels: Levels | None) -> Row:
    return {
        "before_ms": None if levels is None else levels.before_ms,
        "after_ms": None if levels is None else levels.after_ms,
        "ratio": None if levels is None else levels.difference.ratio,
        "ratio_ci95": None if levels is None else levels.difference.ci95,
    }


VersionChange = tuple[str, str | None, str | None]
"""A package of the runtime, ``dlbricks`` or the ``kernel``, with its versions in the previous run and in this one; None
if it was missing."""


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
        return {
            "run": self.first.run,
            "started": self.first.started,
            "found": self.found,
            "verdict": self.verdict,
            **_levels(self.levels),
            "runs_before": self.runs_before,
            "runs_after": self.runs_after,
            "cause": self.cause,
            "reason": self.reason,
            "versions": [dict(zip(("package", "before", "after"), version, strict=True)) for version in self.versions],
            "machine": [asdict(evidence) for evidence in self.machine],
            "bricks": [brick.record() for brick in self.bricks],
            "bricks_missing": self.bricks_missing,
            "confirmation": None if self.confirmation is None else self.confirmation.record(),
        }


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

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.points)

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "name": self.name,
            **(dict.fromkeys(_PLACE) if self.track is None else self.track.record()),
            "basis": self.basis,
            "runs": self.runs,
            "latest_ms": self.points[-1].latency_ms if self.points else None,
            "scatter": self.scatter,
            "points": [asdict(point) for point in self.points],
            "changes": [change.record() for change in self.changes],
            "machine": [asdict(witness) for witness in self.machine],
            "reason": self.reason,
            "error": self.error,
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
        """The changes that nothing explains but the runtime: not the machine's, and none that was not confirmed."""
        return tuple(change for row in self.rows for change in row.changes if change.alarm)

    def place_of(self, row: ModelHistory) -> str:
        """Return the backend and the properties that distinguish a row from other places of its model."""
        if row.track is None:
            return ""
        alike = [other.track for other in self.rows if other.name == row.name and other.track is not None]
        own, tracks = _words(row.track), [_words(track) for track in alike]
        options = [dict(track.runtime.options) for track in alike if track.runtime.backend == row.track.runtime.backend]
        words = [row.track.runtime.backend]
        words += [
            f"{name}={value}"
            for name, value in row.track.runtime.options
            if len({given.get(name) for given in options}) > 1
        ]
        words += [text for text, others in zip(own, zip(*tracks, strict=True), strict=True) if len({*others}) > 1]
        return " ".join(words)


def _words(track: Track) -> tuple[str, ...]:
    """Return the name of a track without backend and options."""
    threads = "1 thread" if track.threads == 1 else f"{track.threads} threads"
    return track.runtime.device, threads, track.cache, track.dtype, track.system[:_SHOWN]
