"""What ``history`` returns: models over time, where their level changed, and what that goes with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ...tabular import Records, Tabular, nested_rows
from ..comparison.difference import Relation
from .blame import BrickChange
from .machine import Evidence, Witness
from .series import Point

__all__ = ["Cause", "Change", "Confirmation", "History", "ModelHistory", "Standing", "VersionChange"]

_SHOWN = 8
"""Characters of a key."""


class Cause(StrEnum):
    """What a change goes with, as far as it is recorded."""

    MACHINE = "machine"
    """The machine moved as well, and no version changed."""
    VERSIONS = "versions"
    """A version changed, and nothing shows that the machine moved."""
    UNKNOWN = "unknown"
    """Neither is seen, or both."""


class Standing(StrEnum):
    """What visits in turn say of an alarm."""

    CONFIRMED = "confirmed"
    """The new environment differs from the old one in the same way."""
    REFUTED = "not confirmed"
    """It does not, or in the other way."""
    UNCLEAR = "unclear"
    """They do not decide it, or it could not be tried."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """An alarm measured again, in the old environment and in the new one in turn; None is what is not known.

    Attributes:
        standing: What came of it.
        before_ms: Mean in the old environment.
        after_ms: In the new one.
        ratio: ``after_ms / before_ms``, of visits in turn.
        ratio_ci95: Its interval.
        old: Versions of the runtime's packages in the old environment.
        new: In the new one.
        bricks: What each brick contributes, by itself with hot caches, the one to blame first; only of what is
            confirmed.
        reason: What it rests on, or why it is unclear.
    """

    standing: Standing
    before_ms: float | None = None
    after_ms: float | None = None
    ratio: float | None = None
    ratio_ci95: tuple[float, float] | None = None
    old: Mapping[str, str] | None = None
    new: Mapping[str, str] | None = None
    bricks: tuple[BrickChange, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class VersionChange:
    """A package of another version than in the run before; None where it was not there.

    Attributes:
        package: Its name: a package of the runtime, ``dlbricks``, or the operating system's ``kernel``.
        before: Its version in the run before.
        after: In this one.
    """

    package: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a model's level.

    Attributes:
        run: Id of the first run at the new level.
        started: When that began.
        found: Id of the run with which it became known.
        verdict: ``SLOWER`` or ``FASTER``.
        before_ms: The old level: geometric mean of its runs.
        after_ms: The new one.
        ratio: ``after_ms / before_ms``.
        ratio_ci95: Its interval, by what runs scatter.
        runs_before: Runs at the old level.
        runs_after: Runs at the new one, until the next change.
        cause: What it goes with.
        reason: What that rests on, in words.
        versions: What changed with that run.
        machine: What the probes and our own networks did meanwhile.
        bricks: What each brick that is measured on both sides contributes, the one to blame first.
        bricks_missing: Number of unique bricks that are not.
        confirmation: What came of measuring it again in both environments; None where that was not asked for.
    """

    run: str
    started: str
    found: str
    verdict: Relation
    before_ms: float
    after_ms: float
    ratio: float
    ratio_ci95: tuple[float, float]
    runs_before: int
    runs_after: int
    cause: Cause
    reason: str
    versions: tuple[VersionChange, ...] = ()
    machine: tuple[Evidence, ...] = ()
    bricks: tuple[BrickChange, ...] = ()
    bricks_missing: int = 0
    confirmation: Confirmation | None = None

    @property
    def alarm(self) -> bool:
        """Whether nothing explains it but the runtime: neither the machine, nor that visits in turn do not show it."""
        refuted = self.confirmation is not None and self.confirmation.standing is Standing.REFUTED
        return self.cause is not Cause.MACHINE and not refuted


@dataclass(frozen=True, slots=True)
class ModelHistory:
    """One model in one place; None is what is not known.

    Attributes:
        name: The model.
        system: Key of the system.
        backend: Name of the backend.
        device: Its device.
        options: Options of the runtime.
        threads: Its threads.
        cache: ``cold``, or ``model``: whatever a model that is repeated leaves in the caches.
        dtype: Precision.
        basis: What latencies are: ``undisturbed`` where all runs know that, else ``mean``.
        runs: Number of runs.
        latest_ms: The newest.
        scatter: Relative standard deviation of runs around the level they are at.
        points: The runs, oldest first.
        changes: Where the level changed, oldest first; since when, was asked for.
        machine: The probes and our own networks over the same runs.
        reason: Why no change can be found.
        error: Why the model could not be decomposed.
    """

    name: str
    system: str | None = None
    backend: str | None = None
    device: str | None = None
    options: Mapping[str, str] | None = None
    threads: int | None = None
    cache: str | None = None
    dtype: str | None = None
    basis: str | None = None
    runs: int = 0
    latest_ms: float | None = None
    scatter: float | None = None
    points: tuple[Point, ...] = ()
    changes: tuple[Change, ...] = ()
    machine: tuple[Witness, ...] = ()
    reason: str | None = None
    error: str | None = None

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


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
        """Whether something is stored of every model."""
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
        """The backend, and what else distinguishes where a row was measured from other places of its model."""
        alike = [other for other in self.rows if other.name == row.name and other.options is not None]
        words = [row.backend or ""]
        words += [
            f"{name}={value}"
            for name, value in (row.options or {}).items()
            if len({dict(other.options or {}).get(name) for other in alike if other.backend == row.backend}) > 1
        ]
        threads = "1 thread" if row.threads == 1 else f"{row.threads} threads"
        properties = {"device": row.device, "threads": threads, "cache": row.cache, "dtype": row.dtype}
        words += [text or "" for name, text in properties.items() if len({getattr(other, name) for other in alike}) > 1]
        words += [(row.system or "")[:_SHOWN]] if len({other.system for other in alike}) > 1 else []
        return " ".join(words)
