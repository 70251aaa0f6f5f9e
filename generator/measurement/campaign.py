"""What ``run`` and ``measure`` share: from options to a finished session."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from ...bricks.reference import OVERHEAD, built_in_key
from ...bricks.suite.suite import Suite
from ...db.samples.statistics import BASELINE, MIN_SAMPLES
from ...db.store import Store
from ...db.values import NATIVE, Conditions, Measurement, Stack, Subject, System
from ...errors import UsageError
from ...models import ModelSource
from ..backends.algorithms import Algorithm
from ..backends.base import Backend, PackingBackend
from ..backends.registry import get, require_available
from ..backends.requirements import in_turn, require_algorithms, require_dtype, require_in_turn, require_profiling
from ..backends.streams import StreamBackend
from ..decomposition.executed import instruction_set, runtime_salt
from ..decomposition.oracle import WorkerOracle
from ..machine.lock import machine_lock
from ..machine.nvml import gpu_state
from ..machine.system import probe_system
from ..progress import ProgressCallback
from ..worker.client import Worker
from .costs import RunCosts
from .item import Item
from .journal import Journal
from .launch import begin_run, end_run, launch
from .membership import Membership, companions, membership_of
from .pending import Selection, check_again, finished, select
from .profiling import ProfileReport, take_views
from .sampling.grouping import MOST_MODELS, Group, grouped
from .sampling.pace import Pace, forecast_s
from .session import Session
from .settings import MeasurementSettings
from .subjects import ModelItems, brick_items, inspect_bricks, model_items

__all__ = ["Campaign", "conduct"]

_HARD_LIMIT = 16
"""Tenths of ``memory_bytes`` at which a worker is stopped; groups keep below ``memory_bytes`` itself."""

_MOST_ON_GPU = 1
"""Models of a group on a GPU: in a pass with the bricks of others a kernel of microseconds is up to a fifth slower."""

_LEAST_LIMIT = 256 << 20
"""A runtime's own pools must fit, whatever ``memory_bytes`` says."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """What a run did, or would do.

    Attributes:
        run: UUID; None for a dry run, and where nothing was left to measure.
        system: This machine.
        stack: What it ran on.
        conditions: Threads, cache state, precision.
        bricks: What was selected of the suite.
        models: What was selected of the models.
        algorithms: What was selected of the bricks, each with each of the backend's other algorithms.
        sources: The models by argument, and what is wrong with the broken ones.
        broken: Bricks whose file cannot be run, and why; nothing is stored of them.
        forecast_s: Expected before it began.
        kernels: What the pass that records kernels did; None where it was not asked for.
        costs: Where the wall time went.
        wall_s: From the call to its end.
    """

    run: str | None
    system: System
    stack: Stack
    conditions: Conditions
    bricks: Selection
    models: Selection
    algorithms: Selection
    sources: ModelItems
    broken: Mapping[str, str]
    forecast_s: float
    kernels: ProfileReport | None
    costs: RunCosts
    wall_s: float


def conduct(
    settings: MeasurementSettings,
    *,
    command: str,
    store: Store,
    suite: Suite | None = None,
    models: Sequence[ModelSource] = (),
    again: Collection[str] = (),
    since: datetime | None = None,
    algorithms: bool | Collection[str] = False,
    kernels: bool = False,
    dry_run: bool = False,
    node: str | None = None,
    campaign: str = "",
    progress: ProgressCallback | None = None,
) -> Campaign:
    """Measure what is not measured yet, in one session.

    Args:
        settings: How to measure.
        command: ``run`` or ``measure``, for the record.
        store: Open for writing, unless ``dry_run``.
        suite: Bricks to measure.
        models: Whole models to measure beside them.
        again: What to measure although the store holds it.
        since: Of that only what was measured before this time.
        algorithms: Also measure each brick once with each of the backend's other algorithms, or with those named.
        kernels: Afterwards also record which kernels run for what is measured, where that is not stored.
        dry_run: Only forecast.
        node: What the owner calls this machine; None: ``$DLBRICKS_NODE``, else nothing.
        campaign: What this is part of, in the owner's words.
        progress: Called between requests.

    Raises:
        UsageError: An option has a wrong value, or the backend does not report its kernels.
        BackendUnavailable: The runtime cannot be used here.
        MachineBusy: Another process is measuring.
        WorkerError: No worker can be started, or it ends while it runs nothing.
        StoreError: The database cannot be written; what was committed stays.
    """
    settings.check()
    check_again(again, since)
    costs = RunCosts()
    with ExitStack() as resources:
        if not dry_run:
            resources.enter_context(machine_lock())
        begun = time.monotonic()  # waiting for another process is not counted against the budget
        backend = get(settings.backend)
        stack = backend.stack(settings.device, settings.options)
        effective = dict(stack.options)
        _check_backend(settings, backend, effective, bricks=suite is not None, kernels=kernels)
        together = settings.cache == "model" and in_turn(backend, effective)
        choices = _choices(backend, settings, effective, wanted=algorithms)
        system, conditions = probe_system(), settings.conditions
        _check_bound(suite, stack, system, as_given=not choices and settings.dtype == NATIVE)
        folder = Path(resources.enter_context(TemporaryDirectory(prefix="dlbricks-models-")))
        oracle = resources.enter_context(WorkerOracle())

        def selected(items: Sequence[Item]) -> Selection:
            return select(
                items,
                store=store,
                system=system.key,
                stack=stack.key,
                conditions=conditions,
                again=again,
                since=since,
            )

        with costs.spend("read_s"):
            sources = model_items(models, folder, oracle=oracle)
            packed = together and settings.device == "cpu" and isinstance(backend, PackingBackend)
            items = (
                brick_items(suite, unroll=settings.unroll, cache=settings.cache, packed=packed)
                if suite is not None
                else []
            )
            bricks = selected(items)
            varied = [item.in_variant(choice.name) for item in items for choice in choices if not item.variant]
            variants = selected(varied)
            chosen = selected(sources.items)
            cut = (
                membership_of(sources, suite, stack, threads=settings.threads, oracle=oracle)
                if suite and chosen.pending
                else Membership({}, {})
            )
            sources = sources.without(cut.apart)
            chosen, holds = chosen.among(sources.items), cut.bricks
            beside = companions(bricks, items, holds, chosen)
            broken = inspect_bricks(suite, [*bricks.pending, *variants.pending, *beside]) if suite is not None else {}
            bricks, variants = bricks.without(broken), variants.without(broken)
            beside = [item for item in beside if item.key not in broken]
        pending = [*chosen.pending, *bricks.pending, *variants.pending, *beside]
        forecast = _forecast_s(pending, settings, store)
        budget_s = None if settings.budget_s is None else settings.budget_s - (time.monotonic() - begun)
        run, views = None, None
        memory_bytes = settings.memory_bytes or _available_bytes(settings.device) // 2
        limit_bytes = max(memory_bytes * _HARD_LIMIT // 10, _LEAST_LIMIT)
        if pending and not dry_run:
            run = begin_run(
                store,
                settings,
                command=command,
                system=system,
                stack=stack,
                suite=suite.hash if suite is not None else None,
                more={
                    **({"algorithms": [choice.name for choice in choices]} if choices else {}),
                    **({"dims": dims} if (dims := _dims(sources)) else {}),
                },
                node=node,
                campaign=campaign,
            )
            groups = grouped(
                [*bricks.pending, *variants.pending, *beside],
                chosen.pending,
                holds,
                memory_bytes=memory_bytes,
                most_models=MOST_MODELS if settings.device == "cpu" else _MOST_ON_GPU,
                levels=cut.levels,
            )
            start = partial(launch, settings, backend, stack, memory_bytes=limit_bytes, together=together)
            journal, pace = Journal(store, run, conditions, costs), Pace(settings.visits, budget_s, forecast_s=forecast)
            end_run(store, run, more=_visit(groups, start, journal, settings, pace, costs, progress))
        if kernels and not dry_run:
            # Asked of the store: what is begun again has a measurement as well.
            measured = [
                item
                for group in (sources.items, items, varied)
                for item in finished(group, store=store, system=system.key, stack=stack.key, conditions=conditions)
            ]
            with costs.spend("profile_s"):
                views = take_views(
                    measured,
                    suite=suite,
                    store=store,
                    settings=settings,
                    backend=backend,
                    system=system.key,
                    stack=stack,
                    memory_bytes=limit_bytes,
                    again="all" in again,
                    since=since,
                    progress=progress,
                )
    return Campaign(
        run=run.id if run is not None else None,
        system=system,
        stack=stack,
        conditions=conditions,
        bricks=bricks,
        models=chosen,
        algorithms=variants,
        sources=sources,
        broken=broken,
        forecast_s=forecast,
        kernels=views,
        costs=costs,
        wall_s=time.monotonic() - begun,
    )


def _visit(  # noqa: PLR0917
    groups: list[Group],
    start: Callable[[], Worker],
    journal: Journal,
    settings: MeasurementSettings,
    pace: Pace,
    costs: RunCosts,
    progress: ProgressCallback | None,
) -> dict[str, object]:
    """Measure groups, and what a call costs beside the first of them.

    Returns:
        What the probes took when it was quiet, and how often the device held its clocks back.
    """
    groups[0].items.append(_built_in(OVERHEAD))
    with Session(start, journal, settings, pace, costs, progress=progress) as session:
        session.measure(groups)
    baseline = journal.baseline
    probes = None if baseline is None else [baseline.compute_ns, baseline.memory_ns]
    return {BASELINE: probes, **session.throttling.found}


def _dims(sources: ModelItems) -> dict[str, Mapping[str, int]]:
    """What dynamic dimensions were bound to, by key of the model: a run does not say what its models are called."""
    return {key: sources.bound[name] for name, key in sources.names if key is not None and sources.bound.get(name)}


def _available_bytes(device: str) -> int:
    """Memory that is free here, and on the GPU where one is measured and reports it."""
    available = int(psutil.virtual_memory().available)
    return available if device == "cpu" else min(available, gpu_state().get("memory_free_bytes", available))


def _check_backend(
    settings: MeasurementSettings, backend: Backend, options: Mapping[str, str], *, bricks: bool, kernels: bool
) -> None:
    """Make sure that the backend can do what is asked of it, before anything is measured."""
    require_available(backend, settings.backend, settings.device)
    require_dtype(backend, settings.dtype, settings.device)
    _check_cache(settings, backend)
    if kernels:
        require_profiling(backend)
    if settings.cache == "model" and bricks:
        require_in_turn(backend, options)  # a whole model is only repeated, which every backend can


def _choices(
    backend: Backend, settings: MeasurementSettings, options: Mapping[str, str], *, wanted: bool | Collection[str]
) -> tuple[Algorithm, ...]:
    """The algorithms that are measured beside the backend's own choice."""
    if not wanted:
        return ()
    names = () if wanted is True else wanted
    return require_algorithms(backend, settings.device, options, settings.dtype, names)


def _check_cache(settings: MeasurementSettings, backend: Backend) -> None:
    """Make sure that what is evicted are the caches of the device that is measured."""
    if settings.device != "cpu" and settings.cache != "hot" and not isinstance(backend, StreamBackend):
        raise UsageError(
            f"backend {settings.backend} has no cache mode {settings.cache!r} on device {settings.device!r}",
            remedy="use --cache hot",
        )


def _check_bound(suite: Suite | None, stack: Stack, system: System, *, as_given: bool) -> None:
    """Make sure that graphs which a runtime executes are run by it, as they stand."""
    if suite is None or suite.bound_to is None:
        return
    if suite.bound_to != runtime_salt(stack, instruction_set(system)):
        raise UsageError(
            f"suite {suite.path} holds graphs that another stack or machine executes",
            remedy="generate it here, with the same backend and options, or use --graph source",
        )
    if not as_given:
        raise UsageError(
            f"suite {suite.path} holds graphs that are executed as they stand, in {NATIVE}: neither --dtype nor "
            "--algorithms applies to them",
            remedy="use a suite of --graph source or fused",
        )


def _forecast_s(pending: Sequence[Item], settings: MeasurementSettings, store: Store) -> float:
    """Seconds that the items take; within a total time, unless not even a measurement of each fits into it."""
    known = _earlier(store, pending)
    whole, least = (
        forecast_s(pending, visits=visits, processes=settings.processes, sessions=settings.sessions, known=known)
        for visits in (settings.visits, min(settings.visits, MIN_SAMPLES))
    )
    if settings.budget_s is None:
        return whole
    return max(least, min(whole, settings.budget_s)) if pending else 0.0


def _earlier(store: Store, items: Sequence[Item]) -> dict[str, Measurement]:
    """Latest measurement of each item, wherever it was taken: what the forecast goes by."""
    if not items:
        return {}
    return {entry.key: entry for entry in store.measurements(keys=[item.key for item in items])}


def _built_in(name: str) -> Item:
    """A network of our own as an item, to be repeated; its key is that of its content."""
    return Item(subject=Subject.REFERENCE, key=built_in_key(name), label=name, path=Path(name), unroll=1, cache="hot")
