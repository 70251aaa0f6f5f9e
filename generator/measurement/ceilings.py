"""What a machine can do at most: its rate of arithmetic and its bandwidths, as its runtimes reach them.

A product of large squares gives the rate of arithmetic. Two streams give the bandwidth at every size of working set
from what a first-level cache holds to several times the last level: an addition, and a copy, which may write past the
caches. All are built-in networks, timed hot in the worker like anything else, in every runtime that is asked for; the
best that any of them reaches is the machine's ceiling. A stream's time is taken less that of a call that does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from ...bricks.reference import CHAIN, COPY, GEMM, OVERHEAD, STREAM, built_in_key
from ...db.samples.rates import Rate, ceiling_names, ceiling_work, gemm_sizes_on, level_of_cache, rate_of, stream_sizes
from ...db.store import Store
from ...db.values import Measurement, Subject, System
from ...errors import BackendError, BackendUnavailable, UsageError, WorkerError
from ..backends.base import Backend
from ..backends.registry import backends, get, require_available
from ..backends.requirements import dtypes_on, require_dtype
from ..machine.lock import machine_lock
from ..machine.system import probe_system
from ..progress import ProgressCallback, Whole
from .costs import RunCosts
from .item import Item
from .journal import Journal
from .launch import begin_run, end_run, launch
from .sampling.grouping import grouped
from .sampling.pace import Pace, forecast_s
from .session import Session
from .settings import MeasurementSettings

__all__ = ["CeilingReport", "CeilingRow", "measure_ceilings"]

_TIMEOUT_S = 8.0
"""Hard limit of one network: a runtime that emulates a precision takes seconds for a product."""


@dataclass(frozen=True, slots=True)
class CeilingRow:
    """What one network reached in one runtime.

    Attributes:
        backend: The runtime.
        stack: Key of its stack; None where it cannot run.
        dtype: Precision.
        network: Name of the built-in network; None where none could be tried.
        working_set: Bytes that it reads and writes.
        level: Name of the cache that holds them, or ``memory``; on a GPU their size.
        latency_ms: Median.
        flops_s: FLOP/s, of a product.
        bytes_s: Bytes/s, of a stream, less the call; None where the call hides it.
        error: Why there is no latency.
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
    """What was measured of the machine.

    Attributes:
        system: This machine.
        threads: Threads of the runtimes.
        rows: By runtime, precision and network.
        runs: UUIDs of the runs, one per runtime and precision.
        wall_s: The whole call.
    """

    system: System
    threads: int
    rows: tuple[CeilingRow, ...]
    runs: tuple[str, ...]
    wall_s: float

    @property
    def complete(self) -> bool:
        """Whether every runtime has a rate of arithmetic in every precision that was tried."""
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
    visits: int = 24,
    processes: int = 2,
    sessions: int = 2,
    seed: int = 0,
    memory_bytes: int | None = None,
    progress: ProgressCallback | None = None,
) -> CeilingReport:
    """Measure what the machine can do at most, and store it.

    Always measures, whatever is stored.

    Args:
        store: Open for writing.
        backend: Name of a runtime; None: every one that runs here, one after the other.
        device: ``cpu`` or ``cuda``.
        options: The backend's own options; only with ``backend``.
        threads: Threads of the runtime; 0: all physical cores.
        dtype: Precision; None: all of each runtime.
        gemm_sizes: Sides of the squares; None: ``gemm_sizes_on`` the device.
        sizes: Working sets of the streams in bytes; None: ``stream_sizes``.
        visits: How often each network is visited.
        processes: Worker processes, one after the other.
        sessions: Sessions per process, each committed as a whole.
        seed: Of values and orders.
        memory_bytes: Networks are kept loaded up to this size; default half of the memory that is available.
        progress: Called between requests.

    Raises:
        UsageError: An option has a wrong value, or the backend does not compute in the precision.
        BackendUnavailable: The backend that was asked for cannot be used here, or none can.
        MachineBusy: Another process is measuring.
        WorkerError: No worker of the backend that was asked for can be started.
        StoreError: The database cannot be written; what was committed stays.
    """
    if options and backend is None:
        raise UsageError("options belong to one runtime", remedy="add --backend NAME")
    begun = time.monotonic()
    system = probe_system()
    rows: list[CeilingRow] = []
    runs: list[str] = []
    with ExitStack() as resources:
        resources.enter_context(machine_lock())
        planned: list[tuple[MeasurementSettings, Backend, list[str]]] = []
        for name in _names(backend, device):
            runtime = get(name)
            precisions = dtypes_on(runtime, device)
            for precision in precisions if dtype is None else (dtype,):
                if backend is None and precision not in precisions:
                    continue
                require_dtype(runtime, precision, device)
                settings = MeasurementSettings(
                    backend=name,
                    device=device,
                    options=dict(options or {}),
                    threads=threads,
                    cache="hot",
                    dtype=precision,
                    visits=visits,
                    item_timeout_s=_TIMEOUT_S,
                    processes=processes,
                    sessions=sessions,
                    seed=seed,
                    memory_bytes=memory_bytes,
                )
                settings.check()
                wanted = ceiling_names(
                    sizes or stream_sizes(system, device),
                    dtype=precision,
                    gemm_sizes=gemm_sizes or gemm_sizes_on(device),
                )
                planned.append((settings, runtime, wanted))
        whole = Whole(progress, [_forecast_s(settings, names) for settings, _, names in planned])
        for number, (settings, runtime, wanted) in enumerate(planned):
            try:
                run, found = _measured(settings, runtime, wanted, store, whole.part(number))
            except (BackendError, BackendUnavailable, WorkerError) as error:
                if backend is not None:
                    raise
                rows.append(CeilingRow(settings.backend, None, settings.dtype, error=str(error)))
                continue
            runs.append(run)
            rows += found
    conditions = MeasurementSettings(threads=threads, cache="hot").conditions
    return CeilingReport(system, conditions.threads, tuple(rows), tuple(runs), time.monotonic() - begun)


def _names(backend: str | None, device: str) -> list[str]:
    """The backend that was asked for, else all that run here."""
    if backend is not None:
        require_available(get(backend), backend, device)
        return [backend]
    found = [
        name
        for name, here in backends().items()
        if here.ok and device in get(name).devices and not here.why_not(device)
    ]
    if not found:
        raise BackendUnavailable(
            f"no backend can run on device {device!r} here", remedy="'dlbricks backends list' shows what is missing"
        )
    return found


def _measured(
    settings: MeasurementSettings,
    backend: Backend,
    names: Sequence[str],
    store: Store,
    progress: ProgressCallback | None,
) -> tuple[str, list[CeilingRow]]:
    """Measure networks in one runtime and precision: id of the run, and what they reached."""
    stack = backend.stack(settings.device, settings.options)
    costs = RunCosts()
    memory_bytes = settings.memory_bytes or psutil.virtual_memory().available // 2
    run = begin_run(store, settings, command="system --ceilings", system=probe_system(), stack=stack)
    items = {name: _item(name) for name in (OVERHEAD, CHAIN, *names)}
    with Session(
        # The worker's own limit leaves room for what the runtime keeps beside the networks.
        partial(launch, settings, backend, stack, memory_bytes=2 * memory_bytes, together=False),
        Journal(store, run, settings.conditions, costs),
        settings,
        Pace(settings.visits, forecast_s=_forecast_s(settings, names)),
        costs,
        progress=progress,
    ) as session:
        session.measure(grouped([*items.values()], (), {}, memory_bytes=memory_bytes))
    end_run(store, run, more=session.throttling.found)
    call = items[OVERHEAD].result
    blank = CeilingRow(settings.backend, stack.key, settings.dtype)
    return run.id, [_row(blank, items[name], call, settings) for name in names]


def _item(name: str) -> Item:
    flops, moved = ceiling_work(name) if name.startswith((GEMM, STREAM, COPY)) else (0, 0)
    return Item(
        Subject.REFERENCE,
        built_in_key(name),
        label=name,
        path=Path(name),
        unroll=1,
        size_bytes=2 * moved,
        macs=flops // 2,
    )


def _forecast_s(settings: MeasurementSettings, names: Sequence[str]) -> float:
    """Seconds that networks take in one runtime and precision."""
    items = [_item(name) for name in (OVERHEAD, CHAIN, *names)]
    return forecast_s(items, visits=settings.visits, processes=settings.processes, sessions=settings.sessions)


def _row(blank: CeilingRow, item: Item, call: Measurement | None, settings: MeasurementSettings) -> CeilingRow:
    """What a network reached; ``blank`` names the runtime."""
    flops, moved = ceiling_work(item.label)
    level = level_of_cache(moved, probe_system(), settings.conditions.threads, settings.device)
    row = replace(blank, network=item.label, working_set=moved, level=level)
    if item.result is None:
        reason = item.failure.reason if item.failure is not None else "the time was up before enough samples"
        return replace(row, error=reason)
    rate, latency_ms = rate_of(item.label, item.result, call, settings.device), item.result.latency_ms
    return replace(row, latency_ms=latency_ms, flops_s=rate if flops else None, bytes_s=None if flops else rate)
