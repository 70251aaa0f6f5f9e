"""How to measure: the options of ``run`` and ``measure`` as one value."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self, TypedDict

from ...bricks.suite.suite import Suite
from ...db.values import DEFAULT_RUNTIME, NATIVE, Conditions, Runtime, RuntimeFields, runtime_from
from ...errors import UsageError
from ..machine.cores import physical_cores
from ..machine.priority import PRIORITIES

CACHE_MODES = ("model", "hot", "cold")
"""Cache states that a caller can choose."""

DEFAULT_CONDITIONS = Conditions(threads=1, cache="model")
"""Conditions of a measurement by default."""


class ConditionsFields(RuntimeFields, total=False):
    """A ``Runtime`` and ``Conditions`` as keywords of a function; 0 threads are all physical cores."""

    threads: int
    cache: str
    dtype: str


class PaceFields(TypedDict, total=False):
    """Number of visits, time limits and related options, as keywords of a function."""

    visits: int
    budget_s: float | None
    within_s: float | None
    item_timeout_s: float
    processes: int
    sessions: int
    seed: int
    memory_bytes: int | None
    together_bytes: int | None
    priority: str


class MeasurementFields(ConditionsFields, PaceFields, total=False):
    """``MeasurementSettings`` as keywords of the functions that measure."""


@dataclass(frozen=True, slots=True)
class MeasurementSettings:
    """How to measure; the options of ``run`` and ``measure``.

    Attributes:
        runtime: Backend, device and options.
        conditions: Threads, cache and precision. The cache is ``model`` (as in a running model,
            docs/explanation/estimates.md), ``hot`` (plain repetition) or ``cold`` (everything evicted before each
            sample); for whole models the first two are the same. The precision is one that the backend supports;
            ``float32``: each network's own.
        visits: Visits of each brick and each model.
        budget_s: Total time: as many visits as fit, at least the number that a measurement needs; None: ``visits``.
        within_s: Seconds after which visits and loading end, even after too few; a later run continues what is open.
        item_timeout_s: Hard limit of one visit.
        processes: Worker processes, one after the other.
        sessions: Sessions of each process. Each session orders the bricks of a pack anew. A long session is committed
            in parts, and each part orders them again.
        seed: Seed of weights, inputs and orders.
        memory_bytes: Memory of a worker, of which it may take 1.6 times; None: half of the available memory.
        together_bytes: Networks are kept loaded together up to this size; None: ``memory_bytes``.
        priority: Priority of workers while they time, one of ``machine.priority.PRIORITIES``.
    """

    runtime: Runtime = DEFAULT_RUNTIME
    conditions: Conditions = DEFAULT_CONDITIONS
    visits: int = 24
    budget_s: float | None = None
    within_s: float | None = None
    item_timeout_s: float = 120.0
    processes: int = 2
    sessions: int = 2
    seed: int = 0
    memory_bytes: int | None = None
    together_bytes: int | None = None
    priority: str = "high"

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return settings from keywords."""
        named = ConditionsFields.__annotations__
        other_fields: dict[str, Any] = {name: value for name, value in fields.items() if name not in named}
        return cls(runtime=runtime_from(fields), conditions=conditions_from(fields), **other_fields)

    def record(self) -> dict[str, Any]:
        """Return the settings as flat JSON, by the names of ``MeasurementFields``."""
        attributes = {name: getattr(self, name) for name in MeasurementFields.__annotations__ if hasattr(self, name)}
        runtime, where = self.runtime, self.conditions
        return {
            "backend": runtime.backend,
            "device": runtime.device,
            "options": dict(runtime.options),
            "threads": where.threads,
            "cache": where.cache,
            "dtype": where.dtype,
            **attributes,
        }

    def check(self) -> None:
        """Raise ``UsageError`` for a value that makes no sense."""
        check_conditions(self.conditions)
        if self.priority not in PRIORITIES:
            raise UsageError(f"unknown priority {self.priority!r}", remedy=f"use {' or '.join(PRIORITIES)}")
        for name in ("processes", "sessions", "visits"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} cannot be {getattr(self, name)}", remedy="use 1 or more")
        for name in ("budget_s", "within_s", "item_timeout_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name} cannot be {value}", remedy="use a positive number of seconds")

    @property
    def unroll(self) -> int:
        """Copies of a brick in one network that is repeated hot; 0: the worker chooses.

        It is 1 if copies would warm each other's caches, or would run at the same time. In these cases the time of all
        copies divided by their number is not a latency.
        """
        parallel = dict(self.runtime.options).get("execution") == "parallel"
        return 1 if self.conditions.cache == "cold" or parallel else 0


AGAIN = ("noisy", "failed", "all")
"""Kinds of stored results that a caller can have measured again."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a command asks for, other than models and settings.

    Attributes:
        command: ``run`` or ``measure``, as recorded with the run.
        suite: Bricks to measure; None: only models.
        again: Kinds of stored results to repeat: ``noisy`` measurements, ``failed`` ones, or ``all``.
        since: Repeat only results from before this time.
        algorithms: Measure each brick also with all of the backend's other algorithms (True), or with the named ones.
        kernels: Afterwards, record the kernels of measured bricks and models, unless they are stored.
        dry_run: Only forecast.
        node: The owner's name of this machine; None: ``$DLBRICKS_NODE``, or else empty.
        campaign: The owner's name of the campaign that the run belongs to.
        label: The owner's name of the state that is measured, such as a commit.
    """

    command: str
    suite: Suite | None = None
    again: Collection[str] = ()
    since: datetime | None = None
    algorithms: bool | Collection[str] = False
    kernels: bool = False
    dry_run: bool = False
    node: str | None = None
    campaign: str = ""
    label: str = ""

    @property
    def since_us(self) -> int | None:
        """The time after which results are not repeated, in microseconds since 1970, UTC."""
        return None if self.since is None else round(self.since.timestamp() * 1e6)

    @property
    def repeats_all(self) -> bool:
        """True if no stored result is reused."""
        return "all" in self.again and self.since is None

    def check(self) -> None:
        """Raise ``UsageError`` for unknown kinds of results, and for a time in the future or without kinds."""
        unknown = sorted(set(self.again) - set(AGAIN))
        if unknown:
            raise UsageError(f"cannot measure {', '.join(unknown)} again", remedy=f"use {', '.join(AGAIN)}")
        if self.since is not None and not self.again:
            raise UsageError(
                "since bounds what is measured again, and nothing is to be", remedy=f"add again: {', '.join(AGAIN)}"
            )
        if self.since is not None and self.since.astimezone(UTC) > datetime.now(UTC):
            raise UsageError(
                f"nothing was measured since {self.since.isoformat()}: that is yet to come", remedy="name a past one"
            )


def conditions_from(fields: Mapping[str, Any]) -> Conditions:
    """Return conditions from keywords (``ConditionsFields``)."""
    threads = fields.get("threads", 1)
    return Conditions(threads or len(physical_cores()), fields.get("cache", "model"), fields.get("dtype", NATIVE))


def check_conditions(conditions: Conditions) -> None:
    """Raise ``UsageError`` for an unknown cache state or an impossible number of threads."""
    if conditions.cache not in CACHE_MODES:
        raise UsageError(f"unknown cache mode {conditions.cache!r}", remedy=f"use {' or '.join(CACHE_MODES)}")
    if conditions.threads < 1:
        raise UsageError(f"threads cannot be {conditions.threads}", remedy="0 means all physical cores")


def settings_from(settings: MeasurementSettings | None, fields: MeasurementFields) -> MeasurementSettings:
    """Return the caller's settings, given as settings or as their fields.

    Raises:
        UsageError: Both are given, or a field is unknown.
    """
    if settings is None:
        return MeasurementSettings.of(fields)
    if fields:
        raise UsageError(f"settings are given, and {', '.join(fields)} beside them", remedy="give all of it in one")
    return settings
