"""How to measure: the options of ``run`` and ``measure`` as one value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from ...db.values import Conditions
from ...errors import UsageError
from ..machine.cores import physical_cores

__all__ = ["CACHE_MODES", "MeasurementFields", "MeasurementSettings", "settings_from"]

CACHE_MODES = ("model", "hot", "cold")
"""Cache states that can be asked for."""


@dataclass(frozen=True, slots=True)
class MeasurementSettings:
    """How to measure; the options of ``run`` and ``measure``.

    Attributes:
        backend: Name of the runtime.
        device: ``cpu`` or ``cuda``.
        options: The backend's own options.
        threads: Threads of the runtime; 0: all physical cores.
        cache: ``model`` (as in a running model, docs/estimates.md), ``hot`` (plain repetition) or ``cold`` (everything
            evicted before each sample); of whole models the first two are the same.
        dtype: Precision to compute in, one of the backend's; ``float32``: that of each network itself.
        visits: How often each brick and each model is visited.
        budget_s: Total time: as many visits as fit into it, at least as many as make a measurement; None: ``visits``.
        item_timeout_s: Hard limit of one visit.
        processes: Worker processes, one after the other.
        sessions: Sessions of each process, each committed as a whole: in each, the bricks of a pack have an order of
            their own.
        seed: Of weights, inputs and orders.
        memory_bytes: Networks are kept loaded up to this size; None: half of the memory that is available.
    """

    backend: str = "onnxruntime"
    device: str = "cpu"
    options: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    cache: str = "model"
    dtype: str = "float32"
    visits: int = 24
    budget_s: float | None = None
    item_timeout_s: float = 120.0
    processes: int = 2
    sessions: int = 2
    seed: int = 0
    memory_bytes: int | None = None

    def check(self) -> None:
        """Raise ``UsageError`` for a value that makes no sense."""
        if self.cache not in CACHE_MODES:
            raise UsageError(f"unknown cache mode {self.cache!r}", remedy=f"use {' or '.join(CACHE_MODES)}")
        if self.threads < 0:
            raise UsageError(f"threads cannot be {self.threads}", remedy="0 means all physical cores")
        for name in ("processes", "sessions", "visits"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} cannot be {getattr(self, name)}", remedy="use 1 or more")
        for name in ("budget_s", "item_timeout_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name} cannot be {value}", remedy="use a positive number of seconds")

    @property
    def unroll(self) -> int:
        """Copies of a brick in one network that is repeated hot; 0: the worker chooses.

        One where copies would warm each other's caches, and where they would run at the same time: the time of all of
        them divided by their number is then no latency.
        """
        return 1 if self.cache == "cold" or self.options.get("execution") == "parallel" else 0

    @property
    def conditions(self) -> Conditions:
        """What is part of every measurement's identity."""
        return Conditions(threads=self.threads or len(physical_cores()), cache=self.cache, dtype=self.dtype)


class MeasurementFields(TypedDict, total=False):
    """The fields of ``MeasurementSettings`` as keywords of the functions that measure."""

    backend: str
    device: str
    options: Mapping[str, str] | None
    threads: int
    cache: str
    dtype: str
    visits: int
    budget_s: float | None
    item_timeout_s: float
    processes: int
    sessions: int
    seed: int
    memory_bytes: int | None


def settings_from(settings: MeasurementSettings | None, fields: MeasurementFields) -> MeasurementSettings:
    """What the caller asked for: settings, or fields of them.

    Raises:
        UsageError: Both are given.
    """
    if settings is None:
        values: dict[str, Any] = {**fields, "options": dict(fields.get("options") or {})}
        return MeasurementSettings(**values)
    if fields:
        raise UsageError(f"settings are given, and {', '.join(fields)} beside them", remedy="give all of it in one")
    return settings
