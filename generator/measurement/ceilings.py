"""Measure a machine's ceilings: the highest rate of arithmetic and bandwidths that its runtimes reach.

A product of large square matrices gives the rate of arithmetic. Two streams give the bandwidth of each working set: an
addition, and a copy, which may bypass the caches on writes. Working sets range from the size of a first-level cache to
several times the last-level cache. All are built-in networks, which the worker times hot like other networks. Every
requested runtime runs them, and the best result is the machine's ceiling. The time of an empty call is subtracted from
a stream's time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Unpack

import psutil

from ...bricks.reference import CHAIN, COPY, GEMM, OVERHEAD, STREAM, built_in_key
from ...db.samples.rates import Rate, ceiling_names, ceiling_work, gemm_sizes_on, level_of_cache, rate_of, stream_sizes
from ...db.store import Store
from ...db.values import Circumstances, Measurement, Subject, System
from ...errors import BackendError, BackendUnavailable, DlbricksError, UsageError, WorkerError
from ...models.runnable import Runnable
from ..backends.registry import backends, get, require_available
from ..machine.free_memory import whole_pieces
from ..machine.lock import machine_lock
from ..machine.system import probe_system
from ..progress import ProgressCallback, Whole
from ..worker.client import Workers
from ..worker.messages import Place
from .pace import Pace, RunCosts
from .plan import MeasurementPlan, Membership, TaskMember, plan_groups
from .recorder import Record, StoreRecorder
from .scheduler import Scheduler
from .settings import MeasurementSettings, Order, PaceFields
from .start import begin_run, end_run, stack_of, start_checked

_TIMEOUT_S = 8.0
"""Hard limit of one network: a runtime that emulates a precision takes seconds for a product."""


@dataclass(frozen=True, slots=True)
class CeilingRow:
    """Result of one network in one runtime.

    Attributes:
        backend: The runtime.
        stack: Key of its stack; None if it cannot run.
        dtype: Precision.
        network: Name of the built-in network; None if the runtime could not try any.
        working_set: Bytes that it reads and writes.
        level: Name of the cache that holds these bytes, or ``memory``; on a GPU the number of bytes.
        latency_ms: Median latency.
        flops_s: FLOP/s of a product.
        bytes_s: Bytes/s of a stream without the time of the call; None if the call hides it.
        error: Why the latency is missing.
    """

    backend: str
    stack: str | None
    dtype: str
    network: str | None = None
    working_set: int | None = None
    level: str | None = None
    latency_ms: float | None = None
    flops_s: Rate | None = None
    bytes_s: Rate | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CeilingReport:
    """Measured ceilings of a machine.

    Attributes:
        system: This machine.
        threads: Threads of the runtimes.
        rows: Results by runtime, precision and network.
        runs: UUIDs of the runs, one per runtime and precision.
        wall_s: Duration of the whole call.
    """

    system: System
    threads: int
    rows: tuple[CeilingRow, ...]
    runs: tuple[str, ...]
    wall_s: float

    @property
    def complete(self) -> bool:
        """True if every runtime has a rate of arithmetic in every tried precision."""
        tried = {(row.backend, row.dtype) for row in self.rows}
        return tried == {(row.backend, row.dtype) for row in self.rows if row.flops_s is not None}


def measure_ceilings(
    *,
    store: Store,
    backend: str | None = None,
    device: str = "cpu",
    options: Mapping[str, str] | None = None,
    threads: int = 1,
    dtype: str | None = None,
    gemm_sizes: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
    progress: ProgressCallback | None = None,
    **fields: Unpack[PaceFields],
) -> CeilingReport:
    """Measure the machine's ceilings, and store them.

    Stored ceilings are not reused.

    Args:
        store: Open for writing.
        backend: Name of a runtime; None: every runtime available here, one after the other.
        device: ``cpu`` or ``cuda``.
        options: The backend's own options; only with ``backend``.
        threads: Threads of the runtime; 0: all physical cores.
        dtype: Precision; None: all precisions of each runtime.
        gemm_sizes: Sides of the square matrices; None: ``gemm_sizes_on`` the device.
        sizes: Working sets of the streams in bytes; None: ``stream_sizes``.
        progress: Called between requests.
        **fields: Visits, processes, sessions, seed and memory, as in ``MeasurementSettings``.

    Raises:
        UsageError: An option has a wrong value, or the backend does not compute in the precision.
        BackendUnavailable: The requested backend cannot be used here, or no backend can.
        MachineBusy: Another process is measuring.
        WorkerError: No worker of the requested backend can be started.
        StoreError: The database cannot be written; committed samples remain.
    """
    if options and backend is None:
        raise UsageError("options belong to one runtime", remedy="add --backend NAME")
    conditions_fields = {"device": device, "options": options, "threads": threads, "cache": "hot"}
    usual = MeasurementSettings.of({**conditions_fields, "item_timeout_s": _TIMEOUT_S, **fields})
    usual.check()
    begun = time.monotonic()
    system = probe_system()
    rows: list[CeilingRow] = []
    runs: list[str] = []
    with ExitStack() as resources:
        resources.enter_context(machine_lock())
        plans: list[_Planned] = []
        working_sets, products = sizes or stream_sizes(system, device), gemm_sizes or gemm_sizes_on(device)
        resources.enter_context(whole_pieces(max(working_sets, default=0) if device == "cpu" else 0))
        for name in _names(backend, device):
            runtime = get(name)
            precisions = runtime.dtypes_on(device)
            for precision in precisions if dtype is None else (dtype,):
                if backend is None and precision not in precisions:
                    continue
                runtime.require_dtype(precision, device)
                conditions = replace(usual.conditions, dtype=precision)
                settings = replace(usual, runtime=replace(usual.runtime, backend=name), conditions=conditions)
                ceilings = ceiling_names(working_sets, dtype=precision, gemm_sizes=products)
                try:
                    plans.append(_Planned(settings, ceilings, system))
                except (BackendError, BackendUnavailable) as error:
                    if backend is not None:
                        raise
                    rows.append(_unable(settings, error))
        whole = Whole(progress, [plan.forecast_s for plan in plans])
        for number, plan in enumerate(plans):
            try:
                run, measured_rows = plan.measure(store, whole.part(number))
            except (BackendError, BackendUnavailable, WorkerError) as error:
                if backend is not None:
                    raise
                rows.append(_unable(plan.settings, error))
                continue
            runs.append(run)
            rows += measured_rows
    return CeilingReport(system, usual.conditions.threads, tuple(rows), tuple(runs), time.monotonic() - begun)


def _unable(settings: MeasurementSettings, error: DlbricksError) -> CeilingRow:
    return CeilingRow(settings.runtime.backend, None, settings.conditions.dtype, error=str(error))


def _names(backend: str | None, device: str) -> list[str]:
    """Return the requested backend, or all backends that run here."""
    if backend is not None:
        require_available(get(backend), backend, device)
        return [backend]
    names = [name for name, here in backends().items() if device in get(name).devices and not here.why_not(device)]
    if not names:
        raise BackendUnavailable(
            f"no backend can run on device {device!r} here", remedy="'dlbricks backends list' shows what is missing"
        )
    return names


class _Planned:
    """The networks of one runtime in one precision."""

    def __init__(self, settings: MeasurementSettings, names: Sequence[str], system: System) -> None:
        conditions = settings.conditions
        self.settings = settings
        self._names, self._system, self._stack = names, system, stack_of(settings.runtime)
        self._memory_bytes = settings.memory_bytes or psutil.virtual_memory().available // 2
        where = Circumstances(system.key, self._stack.key, conditions)
        self._members = {name: _member(name, where) for name in (OVERHEAD, CHAIN, *names)}
        place = Place(settings.runtime, conditions.threads, conditions.dtype, priority=settings.priority)
        groups = plan_groups([*self._members.values()], (), Membership(), place, memory_bytes=self._memory_bytes)
        self._plan = MeasurementPlan(
            groups, settings.processes, settings.sessions, settings.seed, settings.item_timeout_s
        )
        self.forecast_s = self._plan.forecast_s(settings.visits, {})

    def measure(self, store: Store, progress: ProgressCallback | None) -> tuple[str, list[CeilingRow]]:
        """Measure all networks; return the run, and one row for each."""
        run = begin_run(store, self.settings, Order("system --ceilings"), self._system, self._stack)
        recorder = StoreRecorder(store, run, RunCosts())
        number = recorder.resume(self._members.values())
        start = partial(start_checked, stack=self._stack, memory_bytes=2 * self._memory_bytes)
        pace = Pace(self.settings.visits, forecast_s=self.forecast_s)
        with Workers(start, number=number) as workers:
            scheduler = Scheduler(self._plan, workers, recorder, pace, progress)
            scheduler.measure()
        end_run(store, run, more=scheduler.throttling)
        records = {name: recorder.of(member) for name, member in self._members.items()}
        return run.id, [self._row(name, records[name], records[OVERHEAD].result) for name in self._names]

    def _row(self, name: str, record: Record, call: Measurement | None) -> CeilingRow:
        flops, moved = ceiling_work(name)
        device, conditions = self.settings.runtime.device, self.settings.conditions
        level = level_of_cache(moved, self._system, conditions.threads, device)
        row = CeilingRow(self.settings.runtime.backend, self._stack.key, conditions.dtype, name, moved, level)
        if record.result is None:
            reason = "the time was up before enough samples" if record.error is None else str(record.error)
            return replace(row, error=reason)
        rate, latency_ms = rate_of(name, record.result, call, device), record.result.latency_ms
        return replace(row, latency_ms=latency_ms, flops_s=rate if flops else None, bytes_s=None if flops else rate)


def _member(name: str, where: Circumstances) -> TaskMember:
    flops, moved = ceiling_work(name) if name.startswith((GEMM, STREAM, COPY)) else (0, 0)
    identity = where.identity(Subject.REFERENCE, built_in_key(name))
    return TaskMember(identity, name, Runnable(Path(name), synthetic=True), live_bytes=2 * moved, macs=flops // 2)
