"""The common part of ``run`` and ``measure``: from options to measurements in the database.

Kernels are recorded in a separate pass after all timing: a profiler slows down the profiled network, so its times are
not latencies.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from ...bricks.decomposition import Decomposition, Failed
from ...bricks.graph.boundary import BOUNDARY, Caches
from ...bricks.reference import OVERHEAD, built_in_key
from ...bricks.suite.suite import Suite
from ...db.queries import Filter
from ...db.samples.statistics import BASELINE
from ...db.store import Store
from ...db.values import (
    CACHES,
    GIVEN,
    MODELS,
    NATIVE,
    PARTS,
    PROFILED_CACHE,
    SIZES,
    Circumstances,
    Identity,
    Stack,
    Subject,
    System,
)
from ...errors import BackendError, DlbricksError, UsageError, WorkerError
from ...models.runnable import Runnable
from ...tabular import Tabular
from ..backends.base import Algorithm, Backend
from ..backends.registry import get, require_available
from ..decomposition.cut import Cut, instruction_set, runtime_salt
from ..decomposition.decompose import Model, decompose, decomposing_until
from ..decomposition.executed import ExecutedGraphs
from ..machine.cache_reach import caches_here, noted_caches
from ..machine.free_memory import whole_pieces
from ..machine.lock import machine_lock, work_clock
from ..machine.nvml import gpu_state
from ..machine.system import probe_system
from ..progress import Progress, ProgressCallback, Stage
from ..worker.client import Timeouts, Workers, file_of
from ..worker.messages import Place
from . import selection
from .pace import FEWEST_VISITS, Pace, RunCosts
from .plan import MeasurementPlan, Membership, TaskMember, plan_groups
from .recorder import Record, StoreRecorder
from .scheduler import Scheduler
from .settings import MeasurementSettings, Order
from .start import PRIORITY, begin_run, end_run, stack_of, start_checked

_HARD_LIMIT = 16
"""Tenths of ``memory_bytes`` at which a worker is stopped; groups keep below ``memory_bytes`` itself."""

_LEAST_LIMIT = 256 << 20
"""Least memory limit of a worker in bytes: a runtime's own pools must fit even if ``memory_bytes`` is small."""


EXECUTIONS = 5
"""Profiled executions of each network; times are medians over them."""

_PROFILED_S = 60.0
"""Extra seconds allowed for profiled executions: some take many times their duration without a profiler."""


@dataclass(frozen=True, slots=True)
class ProfileFailure:
    """A brick or model without recorded kernels because of an error; its measurement stays valid."""

    label: str
    variant: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """Report of a pass that records kernels.

    Attributes:
        taken: Number of views that the pass stored.
        known: Number of views of measured bricks and models that were stored before.
        failures: Bricks and models that could not be profiled.
    """

    taken: int
    known: int
    failures: tuple[ProfileFailure, ...]

    def __add__(self, other: ProfileReport) -> ProfileReport:
        """Return the report of two passes."""
        return ProfileReport(self.taken + other.taken, self.known + other.known, self.failures + other.failures)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Results of a run, or the plan of a dry run.

    Attributes:
        settings: How it measured.
        order: What was asked for.
        run: UUID; None for a dry run, and if nothing was left to measure.
        circumstances: System, stack and conditions.
        chosen: The selected bricks and models, without the models' graphs.
        forecast_s: Forecast made before the run, in seconds.
        kernels: Report of the pass that records kernels; None if not requested.
        costs: Wall time by part.
        wall_s: Duration of the call, without waiting for another process.
    """

    settings: MeasurementSettings
    order: Order
    run: str | None
    circumstances: Circumstances
    chosen: selection.Chosen
    forecast_s: float
    kernels: ProfileReport | None
    costs: RunCosts
    wall_s: float


class MeasuredReport(Tabular):
    """A report about one run."""

    __slots__ = ()
    outcome: RunOutcome

    @property
    def run(self) -> str | None:
        """UUID of the run; None for a dry run, and if nothing was left to measure."""
        return self.outcome.run

    @property
    def system(self) -> str:
        """Key of this system."""
        return self.outcome.circumstances.system

    @property
    def stack(self) -> str:
        """Key of the stack."""
        return self.outcome.circumstances.stack

    @property
    def threads(self) -> int:
        """Threads of the runtime."""
        return self.outcome.circumstances.conditions.threads

    @property
    def costs(self) -> RunCosts:
        """Wall time by part."""
        return self.outcome.costs

    @property
    def kernels(self) -> ProfileReport | None:
        """Report of the pass that records kernels; None if not requested."""
        return self.outcome.kernels

    @property
    def wall_s(self) -> float:
        """Duration of the whole call."""
        return self.outcome.wall_s

    @property
    def bounded_s(self) -> float:
        """Seconds that count against the budget: all but the pass that records kernels; the forecast of a dry run."""
        outcome = self.outcome
        return outcome.forecast_s if outcome.order.dry_run else outcome.wall_s - outcome.costs.profile_s


def all_kernels(reports: Sequence[MeasuredReport]) -> dict[str, object] | None:
    """Return the JSON object about the kernels that several runs recorded; null if none was to record any."""
    profiles = [report.kernels for report in reports if report.kernels is not None]
    return asdict(sum(profiles[1:], start=profiles[0])) if profiles else None


def execute_run(
    settings: MeasurementSettings,
    order: Order,
    *,
    store: Store,
    models: Sequence[Model] = (),
    progress: ProgressCallback | None = None,
) -> RunOutcome:
    """Measure the bricks and models without a stored measurement.

    Args:
        settings: How to measure.
        order: Suite and options of the command.
        store: Open for writing, unless this is a dry run.
        models: Whole models to measure.
        progress: Called between requests.

    Raises:
        UsageError: An option has a wrong value, or the backend does not report its kernels.
        BackendUnavailable: The runtime cannot be used here.
        MachineBusy: Another process is measuring.
        WorkerError: No worker can be started, or a worker ends while idle.
        StoreError: The database cannot be written; committed sessions remain.
        KeyboardInterrupt: With a note on the visits that are kept.
    """
    settings.check()
    order.check()
    begun = work_clock()
    with ExitStack() as resources:
        # Before the wait for another process: what is wrong with a model is told at once.
        with decomposing_until(math.inf if settings.budget_s is None else begun + settings.budget_s):
            sources = _sources(settings, order, models)
        read_s = work_clock() - begun
        if not order.dry_run and (order.suite is not None or sources.keys):
            resources.enter_context(machine_lock())
        folder = Path(resources.enter_context(TemporaryDirectory(prefix="dlbricks-models-")))
        execution = _RunExecution(settings, order, store, folder, progress)
        execution.costs.read_s += read_s
        chosen = execution.choose(sources)
        plan = execution.plan()
        forecast_s = execution.forecast_s(plan)
        run = views = None
        if plan.groups and not order.dry_run:
            resources.enter_context(whole_pieces(max(group.largest_bytes for group in plan.groups)))
            budget_s = None if settings.budget_s is None else settings.budget_s - (work_clock() - begun)
            deadline = math.inf if settings.within_s is None else begun + settings.within_s
            pace = Pace(settings.visits, budget_s, forecast_s=forecast_s, deadline=deadline)
            run, records = execution.measure(plan, pace, chosen.sources)
            chosen = chosen.after(records)
            execution.keep_executed(chosen.sources)
        if order.kernels and not order.dry_run:
            views = execution.views(chosen.sources)
    light = replace(chosen, sources=replace(chosen.sources, models={}))
    wall_s = work_clock() - begun
    where = execution.circumstances
    return RunOutcome(settings, order, run, where, light, forecast_s, views, execution.costs, wall_s)


class _RunExecution:
    """A run from its first check to its end: its arguments, and what each step needs of those before."""

    def __init__(
        self, settings: MeasurementSettings, order: Order, store: Store, folder: Path, progress: ProgressCallback | None
    ) -> None:
        self._settings, self._order, self._store = settings, order, store
        self._folder, self._progress = folder, progress
        self.costs = RunCosts()
        runtime, conditions = settings.runtime, settings.conditions
        backend, self._stack, self._system = get(runtime.backend), stack_of(runtime), probe_system()
        effective = dict(self._stack.options)
        _check_backend(settings, backend, effective, order)
        self._choices: tuple[Algorithm, ...] = ()
        if order.algorithms:
            names = () if order.algorithms is True else order.algorithms
            self._choices = backend.require_algorithms(runtime.device, effective, conditions.dtype, names)
        as_given = not self._choices and conditions.dtype == NATIVE
        _check_bound(order.suite, self._stack, self._system, as_given=as_given)
        together = conditions.cache == "model" and backend.in_turn(effective)
        self._place = Place(runtime, conditions.threads, conditions.dtype, together, priority=settings.priority)
        self._packed = together and runtime.device == "cpu" and backend.offers(Backend.prepare_packed)
        self.circumstances = Circumstances(self._system.key, self._stack.key, conditions)
        self._memory_bytes = settings.memory_bytes or _available_bytes(runtime.device) // 2
        limit_bytes = max(self._memory_bytes * _HARD_LIMIT // 10, _LEAST_LIMIT)
        self._start = partial(start_checked, stack=self._stack, memory_bytes=limit_bytes)
        self._footprints: dict[Identity, int] = {}
        self._caches: Caches | None = None
        self._varied: list[Identity] = []
        self._membership = Membership()
        self._brick_members: list[TaskMember] = []
        self._model_members: list[TaskMember] = []

    def choose(self, sources: selection.Sources) -> selection.Chosen:
        """Find the bricks and models to measure, given the stored measurements, and how to run each of them."""
        with self.costs.spend("read_s"):
            suite = self._order.suite
            chosen = selection.Chosen(selection.select(self._identities(sources), self._store, self._order), sources)
            if suite is not None:
                chosen = self._with_bricks(suite, chosen)
            members, problems = selection.model_members(chosen.sources, chosen.models.pending, self._folder / "pending")
            self._model_members = [*members.values()]
            return chosen.apart(problems)

    def _identities(self, sources: selection.Sources) -> list[Identity]:
        return [self.circumstances.identity(Subject.MODEL, key) for key in sources.keys]

    def _with_bricks(self, suite: Suite, chosen: selection.Chosen) -> selection.Chosen:
        self._caches = suite.caches
        if self._packed and suite.by_caches:
            # Looks an hour apart differ, and other variants would then be missing in what is stored.
            earlier = (run for run in self._store.runs() if run.system == self._system.key)
            self._caches = noted_caches(earlier) or caches_here()
        self._footprints = selection.wanted_bricks(
            suite, self.circumstances, self._caches, packed=self._packed, device=self._place.runtime.device
        )
        identities = [*self._footprints]
        plain = [identity for identity in identities if not identity.variant]
        self._varied = [replace(identity, variant=choice.name) for identity in plain for choice in self._choices]
        bricks = selection.select(identities, self._store, self._order)
        algorithms = selection.select(self._varied, self._store, self._order)
        if chosen.models.pending:
            self._membership = selection.membership_of(chosen.sources, suite)
            chosen = chosen.apart(self._membership.apart)
        beside = selection.companions(bricks, identities, self._membership.bricks, chosen.models)
        pending = [*bricks.pending, *algorithms.pending, *beside]
        members, broken = selection.brick_members(
            suite, pending, self._footprints, self._settings.unroll, packed=self._packed
        )
        self._brick_members = [members[identity] for identity in pending if identity in members]
        return replace(chosen, bricks=bricks.without(broken), algorithms=algorithms.without(broken), broken=broken)

    def plan(self) -> MeasurementPlan:
        """Return groups of the bricks and models to measure; the first group also times an empty call."""
        settings = self._settings
        overhead = self.circumstances.identity(Subject.REFERENCE, built_in_key(OVERHEAD), cache="hot")
        groups = plan_groups(
            self._brick_members,
            self._model_members,
            self._membership,
            self._place,
            memory_bytes=min(self._memory_bytes, settings.together_bytes or self._memory_bytes),
            beside=(TaskMember(overhead, OVERHEAD, Runnable(Path(OVERHEAD), synthetic=True)),),
        )
        return MeasurementPlan(groups, settings.processes, settings.sessions, settings.seed, settings.item_timeout_s)

    def forecast_s(self, plan: MeasurementPlan) -> float:
        """Return the seconds of a plan: within the budget, unless the least visits of each member exceed it."""
        settings = self._settings
        keys = [member.key for group in plan.groups for member in group.members]
        # The latest measurement of each key, from any machine.
        measurements = {entry.key: entry for entry in self._store.measurements(keys=keys)} if keys else {}
        whole = plan.forecast_s(settings.visits, measurements)
        if settings.budget_s is None:
            return whole
        return max(plan.forecast_s(min(settings.visits, FEWEST_VISITS), measurements), min(whole, settings.budget_s))

    def measure(
        self, plan: MeasurementPlan, pace: Pace, sources: selection.Sources
    ) -> tuple[str, Mapping[Identity, Record]]:
        """Measure a plan; return the UUID of the run and its records."""
        more: dict[str, object] = {
            "algorithms": [choice.name for choice in self._choices],
            SIZES: _dims(sources),
            GIVEN: {model.own.key: model.own.given for model in sources.models.values() if model.own.given},
            MODELS: _names(sources),
        }
        if any(member.identity.variant in BOUNDARY for group in plan.groups for member in group.members):
            more[CACHES] = self._caches
        more = {name: value for name, value in more.items() if value}
        run = begin_run(self._store, self._settings, self._order, self._system, self._stack, more)
        recorder = StoreRecorder(self._store, run, self.costs)
        members = {member.identity: member for group in plan.groups for member in group.members}
        number = recorder.resume(members.values())
        try:
            with Workers(self._start, number=number) as workers:
                scheduler = Scheduler(plan, workers, recorder, pace, progress=self._progress)
                scheduler.measure()
                with self.costs.spend("start_s"):
                    workers.close()
        except KeyboardInterrupt as error:
            error.add_note(recorder.kept)
            raise
        # Duration of the probes on the quiet machine, and how often the device held its clocks back.
        baseline = recorder.baseline
        probes = None if baseline is None else [baseline.compute_ns, baseline.memory_ns]
        granted = ", ".join(sorted(workers.priorities))
        end_run(self._store, run, more={BASELINE: probes, PRIORITY: granted, **scheduler.throttling})
        return run.id, recorder.records

    def keep_executed(self, sources: selection.Sources) -> None:
        """Save the graphs that the runtime executes for the models in the cache folder; estimates use them."""
        runtime, conditions = self._stack.runtime, self._settings.conditions
        backend = get(runtime.backend)
        told = backend.graph != "source" and conditions.dtype == NATIVE
        models = [model for model in sources.models.values() if model.executed is None]
        if self._order.suite is None or not told or not models:
            return
        with self.costs.spend("read_s"), ExecutedGraphs(runtime, conditions.threads) as graphs:
            for model in models:
                try:
                    graphs.ensure(model.source)
                except DlbricksError:
                    continue  # the measurement is valid; an estimate reports the missing graph

    def views(self, sources: selection.Sources) -> ProfileReport:
        """Record the kernels of all that the database has measurements of, including what was begun again.

        Each network without a view is profiled alone, and its view is stored at once. If a network ends the worker,
        only this network is lost: the next network has a fresh worker. Parts of a brick cannot run alone.
        """
        with self.costs.spend("profile_s"):
            identities, viewed_count = self._without_view(sources)
            members, failures = self._profiled_members(identities, sources)
            queue = [members[identity] for identity in identities if identity in members]
            place = replace(self._place, together=False)
            taken, begun = 0, time.monotonic()
            with Workers(self._start) as workers:
                for number, member in enumerate(queue):
                    if self._progress is not None:
                        elapsed_s = time.monotonic() - begun
                        self._progress(Progress(Stage.PROFILE, number, len(queue), member.label, elapsed_s))
                    variant = member.identity.variant
                    file = file_of(member.network, seed=self._settings.seed, as_is=member.as_is, variant=variant)
                    bound_s = Timeouts.loading(member.size_bytes, bound_s=self._settings.item_timeout_s)
                    try:
                        view = workers.at(place).profile(file, EXECUTIONS, timeout_s=bound_s + _PROFILED_S)
                    except (BackendError, WorkerError) as error:
                        label = member.key if member.identity.subject is Subject.BRICK else member.label
                        failures.append(ProfileFailure(label, variant, str(error)))
                        continue
                    self._store.put_kernels(member.identity, view)
                    taken += 1
        return ProfileReport(taken, viewed_count, tuple(failures))

    def _without_view(self, sources: selection.Sources) -> tuple[list[Identity], int]:
        """Return the measured bricks and models to profile, in the cache state of views; and how many have a view."""
        groups = (self._identities(sources), [*self._footprints], self._varied)
        measured = [identity for group in groups for identity in selection.finished(group, self._store)]
        conditions = replace(self._settings.conditions, cache=PROFILED_CACHE)
        whole = [identity for identity in measured if identity.variant not in {*PARTS, *BOUNDARY}]
        identities = dict.fromkeys(replace(identity, conditions=conditions) for identity in whole)
        if not identities or self._order.repeats_all:
            return [*identities], 0
        since_us = self._order.since_us if "all" in self._order.again else None
        where = self.circumstances
        stored = Filter(system=where.system, stack=where.stack, conditions=conditions, variant=None, since_us=since_us)
        viewed = identities.keys() & self._store.kernels(stored)
        return [identity for identity in identities if identity not in viewed], len(viewed)

    def _profiled_members(
        self, identities: Sequence[Identity], sources: selection.Sources
    ) -> tuple[dict[Identity, TaskMember], list[ProfileFailure]]:
        """Return members to profile, and the failures of those that cannot be read."""
        models = [identity for identity in identities if identity.subject is Subject.MODEL]
        members, problems = selection.model_members(sources, models, self._folder / "profiled")
        if self._order.suite is not None:
            of_bricks = [identity for identity in identities if identity.subject is Subject.BRICK]
            bricks, broken = selection.brick_members(self._order.suite, of_bricks, {}, 1, packed=False)
            members, problems = members | bricks, problems | broken
        return members, [ProfileFailure(name, "", reason) for name, reason in problems.items()]


def _cut_of(suite: Suite, stack: Stack, threads: int) -> Cut:
    """Return how to cut models as the suite's models were cut, along the runtime's fused or executed graph if any."""
    cut = Cut(suite.granularity, suite.overlap, suite.connected)
    return cut if suite.graph == "source" else cut.of(suite.graph, stack, threads)


def _sources(settings: MeasurementSettings, order: Order, models: Sequence[Model]) -> selection.Sources:
    """Return the models of a run, decomposed like its suite.

    Raises:
        UsageError: A dimension is given that no model has, or a given value does not fit its input.
        BackendUnavailable: The runtime cannot be used here.
    """
    suite, cut = order.suite, Cut(1)
    if suite is not None and models:
        cut = _cut_of(suite, stack_of(settings.runtime), settings.conditions.threads)
    return selection.Sources.of(_decomposed(models, cut))


def _decomposed(models: Sequence[Model], cut: Cut) -> list[Decomposition | Failed]:
    """Decompose models; a model that this runtime cannot cut like the suite is cut into its own layers."""
    results = decompose(models, cut)
    if cut.graph == "source":
        return results
    stand_ins = iter(decompose([model.source for model in results if isinstance(model, Failed)], Cut(cut.granularity)))
    return [next(stand_ins) if isinstance(model, Failed) else model for model in results]


def _names(sources: selection.Sources) -> dict[str, str]:
    """Return the names of models by key: they tell when the file of a name has changed."""
    return {key: name for name, key in sources.names if key is not None}


def _dims(sources: selection.Sources) -> dict[str, Mapping[str, int]]:
    """Return the sizes of dynamic dimensions by model key."""
    bound = sources.bound
    return {key: bound[name] for name, key in sources.names if key is not None and bound.get(name)}


def _available_bytes(device: str) -> int:
    """Return the bytes of free memory; for a GPU that reports its free memory, the smaller of both."""
    available = int(psutil.virtual_memory().available)
    return available if device == "cpu" else min(available, gpu_state().get("memory_free_bytes", available))


def _check_backend(settings: MeasurementSettings, backend: Backend, options: Mapping[str, str], order: Order) -> None:
    """Check that the backend supports the settings and the order, before measuring."""
    runtime, conditions = settings.runtime, settings.conditions
    require_available(backend, runtime.backend, runtime.device)
    backend.require_dtype(conditions.dtype, runtime.device)
    check_cache(settings, backend)
    if order.kernels:
        backend.require(Backend.kernels)
    if conditions.cache == "model" and order.suite is not None:
        backend.require_in_turn(options)  # every backend can repeat a whole model


def check_cache(settings: MeasurementSettings, backend: Backend) -> None:
    """Check that the backend can evict the caches of the measured device.

    Raises:
        UsageError: The backend does not work in the stream of the device.
    """
    runtime, cache = settings.runtime, settings.conditions.cache
    if runtime.device != "cpu" and cache != "hot" and not backend.offers(Backend.prepare_streamed):
        raise UsageError(
            f"backend {runtime.backend} has no cache mode {cache!r} on device {runtime.device!r}",
            remedy="use --cache hot",
        )


def _check_bound(suite: Suite | None, stack: Stack, system: System, *, as_given: bool) -> None:
    """Check that bricks of an executed graph run unchanged, on the stack and machine that executes the graph."""
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
