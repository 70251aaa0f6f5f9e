"""Compare two ways to run a network: do they compute the same, and which is faster?

A model is compared with a changed model, or with itself under other settings; a brick is compared with itself in
another environment. Every round visits each side once, in an order that changes. Nothing is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from ...bricks.graph.footprint import CORE_LEVEL, level_name
from ...bricks.reference import OVERHEAD
from ...bricks.suite.suite import Suite
from ...db.values import NATIVE, Conditions, Identity, Runtime, Stack, Subject
from ...errors import BackendError, DlbricksError, MachineBusy, WorkerError
from ...models.runnable import Runnable
from ...models.user_inputs import spelled_type
from ..backends.registry import get, require_available
from ..machine.lock import machine_lock
from ..machine.system import free_cores
from ..network.network import relative_difference
from ..progress import ProgressCallback
from ..worker.client import Timeouts, Worker, Workers, start_worker
from ..worker.messages import Load, NetworkFile, PackMember, Place
from .pace import Pace
from .plan import Group, MeasurementPlan, MeasurementTask, Membership, TaskMember, plan_groups, single
from .recorder import Record, SampleRecorder
from .scheduler import Scheduler, in_time
from .selection import brick_members

Array = npt.NDArray[np.float64]

_MODULE = ("-E", "-P", "-m", "dlbricks.generator.worker")
"""Arguments that start the worker of another environment, without settings of the caller's Python."""

_BEFORE, _AFTER = "before", "after"


def place_of(runtime: Runtime, threads: int = 1, dtype: str = NATIVE, python: Path | None = None) -> Place:
    """Return the place of one side of a trial.

    Args:
        runtime: Backend, device and options.
        threads: Threads of the runtime.
        dtype: Precision.
        python: Interpreter of an environment that has dlbricks and the runtime; None: the backend's environment here.

    Raises:
        UsageError: An option has a wrong value.
        BackendUnavailable: The backend cannot be used here.
    """
    backend = get(runtime.backend)
    if python is None:
        require_available(backend, runtime.backend, runtime.device)
    together = backend.in_turn(backend.resolve(runtime.device, dict(runtime.options)))
    return Place(runtime, threads, dtype, together, None if python is None else (str(python), *_MODULE))


@dataclass(frozen=True, slots=True)
class Contender:
    """A model and the place at which it runs.

    Attributes:
        runnable: The model.
        place: Place at which it runs.
    """

    runnable: Runnable
    place: Place


@dataclass(frozen=True, slots=True)
class TrialPair:
    """Two ways to run a model.

    Attributes:
        before: The first way.
        after: The second way; it reads inputs of the same names.
        tolerance: If outputs differ by more, nothing is timed; None: no limit.
        label: Name for progress reports.
        brief: True for a first look at many pairs: a visit is a tenth as long.
    """

    before: Contender
    after: Contender
    tolerance: float | None = None
    label: str = ""
    brief: bool = False

    @property
    def cores(self) -> int:
        """Cores that must be free: only if both ways use different numbers of them, since both must find them free."""
        before, after = (_cores(way.place) for way in (self.before, self.after))
        return max(before, after) if before != after else 0


def brick_pair(path: Path, places: tuple[Place, Place], label: str, *, brief: bool = False) -> TrialPair:
    """Return the pair of one brick at two places.

    Args:
        path: File of the brick.
        places: The first and the second place.
        label: Name for progress reports.
        brief: As for ``TrialPair``.
    """
    runnable = Runnable(path.resolve(), synthetic=True)
    before, after = (Contender(runnable, place) for place in places)
    return TrialPair(before, after, label=label, brief=brief)


def _cores(place: Place) -> int:
    """Return the number of cores that a place uses at once: threads of each branch, times branches."""
    return place.threads * int(dict(place.runtime.options).get("inter_op", "1"))


@dataclass(frozen=True, slots=True)
class SharedValue:
    """An input or output of two ways to run a model.

    Attributes:
        name: Its name.
        before: Its type in the first way, such as ``float32[1, 64]``; None if that lacks it.
        after: Its type in the second way; None if that lacks it.
        error: Largest difference, relative to its largest value in the first way; None unless both have its shape.
    """

    name: str
    before: str | None
    after: str | None
    error: float | None


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a pair.

    Attributes:
        before_ns: Latency of the first way in each visit, by process; visits at the same position belong together.
        after_ns: Latency of the second way, likewise.
        largest_error: Largest difference between the outputs of both, relative to the largest value of the first's
            output; infinite if an output is missing, or has another shape.
        stacks: Stack of each way.
        starts_ns: Of each way, the load time and the first run after it, by process.
        values: The inputs and outputs of both.
        second_first: Of each process, whether it loaded the second way first; empty: every other one, from the second.
    """

    before_ns: tuple[Array, ...]
    after_ns: tuple[Array, ...]
    largest_error: float
    stacks: tuple[Stack, ...] = ()
    starts_ns: tuple[Sequence[tuple[int, int]], ...] = ()
    values: tuple[SharedValue, ...] = ()
    second_first: tuple[bool, ...] = ()

    @property
    def visits(self) -> int:
        """Visits of each side, over all processes."""
        return sum(map(len, self.before_ns))

    @property
    def measurable(self) -> bool:
        """True if it was visited, and each visit took time that could be measured."""
        return bool(self.visits) and min(float(times.min()) for times in (*self.before_ns, *self.after_ns)) > 0


def try_out(
    pairs: Sequence[TrialPair],
    *,
    visits: int = 24,
    processes: int = 2,
    until: float = math.inf,
    settled: Callable[[Trial], bool] | None = None,
    start: Callable[[Place], Worker] = start_worker,
    progress: ProgressCallback | None = None,
) -> list[Trial | DlbricksError]:
    """Run models in two ways alternately, on the same inputs; pairs at the same places share workers.

    Args:
        pairs: Pairs to try.
        visits: Visits of each side, over all processes.
        processes: Number of fresh workers, one after the other.
        until: Time on the ``work_clock`` at which loading and visiting end; the result contains the visits until then.
            A pair that was not loaded until then has no stacks.
        settled: Returns True if the result so far decides a pair; no further process is started for it.
        start: Starts a worker.
        progress: Called between visits.

    Returns:
        The result of each pair, in order. An error if a runtime cannot load or run one side, a worker died, or the
        two ways use different numbers of cores and too few cores are free.

    Raises:
        MachineBusy: Another process is measuring.
    """
    with machine_lock(), TemporaryDirectory(prefix="dlbricks-trial-") as name:
        free = free_cores() if any(pair.cores for pair in pairs) else 0
        trials = [_Tried(pair, number, Path(name), settled, free) for number, pair in enumerate(pairs)]
        groups = {tried.group: tried for tried in trials}
        plan, recorder = MeasurementPlan(tuple(groups), processes, sessions=1, isolate=False), SampleRecorder()
        with Workers(start) as workers:

            class Comparing(Scheduler):
                """Compares the outputs of a pair before its first visit."""

                def prepare(self, group: Group) -> None:
                    groups[group].compare(workers, recorder, pace)

            pace = Pace(visits, deadline=until)
            Comparing(plan, workers, recorder, pace, progress).measure()
        return [tried.result(recorder) for tried in trials]


def try_in_models(
    suite: Suite,
    keys: Collection[str],
    places: tuple[Place, Place],
    *,
    visits: int,
    processes: int,
    until: float = math.inf,
    progress: ProgressCallback | None = None,
) -> dict[str, Trial | DlbricksError]:
    """Run bricks at two places alternately, in the cache state of their models; their outputs are not compared.

    They run in packs with other bricks of the suite, as large as the footprint class: between two uses of a weight the
    others run, as in a model. Bricks of models that stay in a core's own caches are left out.

    Args:
        suite: The bricks.
        keys: The bricks to try.
        places: The first and the second place; their backends must support the cache state ``model``.
        visits: Visits of each side, over all processes.
        processes: Number of fresh workers, one after the other.
        until: Time on the ``work_clock`` at which visiting ends.
        progress: Called between visits.

    Raises:
        MachineBusy: Another process is measuring.
    """
    sizes = {key: max(suite.footprints(key)) for key in suite.keys}
    classes = {sizes[key] for key in keys} - {CORE_LEVEL}
    members: list[dict[str, TaskMember]] = []
    sides: list[list[MeasurementTask]] = []
    memory_bytes = psutil.virtual_memory().available // 4
    for side, place in zip((_BEFORE, _AFTER), places, strict=True):
        footprints = {
            Identity(Subject.BRICK, key, "", side, Conditions(place.threads, level_name(size), place.dtype), ""): size
            for key, size in sizes.items()
            if size in classes
        }
        made, _ = brick_members(suite, footprints, footprints, 1, packed=True)
        members.append(
            {  # tasks of both sides have different ids
                identity.key: replace(member, identity=replace(identity, key=f"{side}: {identity.key}"))
                for identity, member in made.items()
            }
        )
        asked = {member.id for key, member in members[-1].items() if key in keys}
        planned = plan_groups([*members[-1].values()], (), Membership(), place, memory_bytes=memory_bytes)
        tasks = [replace(task, id=f"{side}: {task.id}") for group in planned for task in group.tasks]
        sides.append([task for task in tasks if any(member.id in asked for member in task.members)])
    both = tuple(map(Group, zip(*sides, strict=True)))
    recorder = SampleRecorder()
    with machine_lock(), Workers(start_worker) as workers:
        plan = MeasurementPlan(both, processes, sessions=1)
        Scheduler(plan, workers, recorder, Pace(visits, deadline=until), progress).measure()
    return {
        key: _result([recorder.of(side[key]) for side in members])
        for key in keys
        if all(key in side for side in members)
    }


def _result(records: Sequence[Record], error: float = 0.0, stacks: tuple[Stack, ...] = ()) -> Trial | DlbricksError:
    """Return the trial of two records, or the error of one."""
    errors = [record.error for record in records if record.error is not None]
    if errors and not isinstance(errors[0], _TrialSettled):
        return errors[0]
    before, after = (_by_process(record) for record in records)
    both = sorted(before.keys() & after.keys())  # of what a process timed on one side only, nothing counts
    return Trial(
        tuple(before[process] for process in both), tuple(after[process] for process in both), error, stacks,
        tuple(record.starts_ns for record in records), second_first=tuple(process % 2 == 1 for process in both),
    )  # fmt: skip


def warm_worker(place: Place) -> Worker:
    """Start a worker that has run a network; raises as ``start_worker``, and ``BackendError``.

    The first load of a process reads its library. Equal environments differ by a tenth in this.
    """
    worker = start_worker(place)
    member = PackMember(OVERHEAD, NetworkFile(path=OVERHEAD, synthetic=True))
    worker.load(Load(id=OVERHEAD, members=(member,)), timeout_s=Timeouts.load)
    worker.drop(OVERHEAD)
    return worker


class _Tried:
    """State of a pair during a trial."""

    def __init__(
        self, pair: TrialPair, number: int, folder: Path, settled: Callable[[Trial], bool] | None, free: int
    ) -> None:
        self._pair, self._settled, self._free = pair, settled, free
        self._first, self._second = folder / f"{number}-first.npz", folder / f"{number}-second.npz"
        before, after = (
            # Both sides read their inputs from one file: what a process allocates moves what it loads next.
            single(_member(pair, way, f"{number}: {side}", side, replace(way.runnable, partner=self._first)), way.place)
            for way, side in ((pair.before, _BEFORE), (pair.after, _AFTER))
        )
        self._tasks = (before, after)
        self.group = Group(self._tasks)
        self._values: tuple[SharedValue, ...] = ()
        self._stacks: tuple[Stack, ...] = ()
        self._is_compared = False

    def compare(self, workers: Workers[Place], recorder: SampleRecorder, pace: Pace) -> None:
        """Load both sides, compare their outputs and drop them, in the first process only.

        Raises:
            TimeUp: The total time was over before.
        """
        if self._is_compared:
            result = self.result(recorder)
            if self._settled is not None and isinstance(result, Trial) and result.visits and self._settled(result):
                self._refuse(recorder, _TrialSettled("what was timed decides it"))
            return
        self._is_compared = True
        if self._pair.cores > self._free:
            text = (
                f"only {self._free} of the {self._pair.cores} cores that it needs are free of other programs, and a "
                "comparison of different numbers of cores would measure those"
            )
            self._refuse(recorder, MachineBusy(text, remedy="end the other programs"))
            return
        try:
            feeds = self._pair.before.runnable.feeds
            self._values = _joined([self._shared(number, workers, pace) for number in reversed(range(len(feeds) or 1))])
            greetings = [workers.at(task.place).greeting for task in self._tasks]
            self._stacks = tuple(greeting.stack for greeting in greetings if greeting is not None)
            for task in self._tasks:
                workers.at(task.place).drop(task.id)
        except (BackendError, WorkerError) as error:
            self._refuse(recorder, error)
            return
        if self._pair.tolerance is not None and largest_error(self._values) > self._pair.tolerance:
            self._refuse(recorder, _TrialSettled("the outputs differ"))

    def _shared(self, number: int, workers: Workers[Place], pace: Pace) -> list[SharedValue]:
        """Load both sides, in place of earlier ones, and return their inputs and outputs on one set of inputs."""
        paths = (self._first, self._second)
        for task, path in zip(self._tasks, paths, strict=True):
            (member,) = task.members
            partner = None if path == self._first else self._first
            network = replace(member.network, feeds=member.network.feeds[number : number + 1], partner=partner)
            worker, size = workers.at(task.place), network.path.stat().st_size
            request = replace(task, members=(replace(member, network=network),)).load(seed=0)
            in_time(partial(worker.load, request), pace, timeout_s=Timeouts.loading(size))
            in_time(partial(worker.outputs, task.id, path), pace, timeout_s=Timeouts.time)
        values = shared_values(*paths)
        self._second.unlink()  # the first has the inputs of both
        return values

    def _refuse(self, recorder: SampleRecorder, error: DlbricksError) -> None:
        for task in self._tasks:
            recorder.of(task.members[0]).error = error  # its blocks stay

    def result(self, recorder: SampleRecorder) -> Trial | DlbricksError:
        """Return the result of the pair, or its error."""
        error = largest_error(self._values) if self._stacks else math.inf
        trial = _result([recorder.of(task.members[0]) for task in self._tasks], error, self._stacks)
        return trial if isinstance(trial, DlbricksError) else replace(trial, values=self._values)


class _TrialSettled(BackendError):
    """Both sides run, and no more visits are wanted."""


def _member(pair: TrialPair, way: Contender, key: str, side: str, network: Runnable) -> TaskMember:
    """Return a member that is not stored: its side replaces the stack."""
    cache = level_name(CORE_LEVEL) if pair.brief else "hot"
    conditions = Conditions(way.place.threads, cache, way.place.dtype)
    return TaskMember(Identity(Subject.MODEL, key, "", side, conditions, ""), pair.label, network)


def _by_process(record: Record) -> dict[int, Array]:
    latencies: dict[int, list[float]] = {}
    for block in record.blocks:
        latencies.setdefault(block.process, []).extend(elapsed / loops for elapsed, loops in block.samples)
    return {process: np.array(taken, dtype=np.float64) for process, taken in latencies.items()}


def shared_values(first: Path, second: Path) -> list[SharedValue]:
    """Return the values in two npz files, with the errors of those in the second relative to those in the first."""
    with np.load(first) as theirs_of, np.load(second) as mine_of:
        values = []
        for name in dict.fromkeys((*theirs_of.files, *mine_of.files)):
            theirs = theirs_of[name] if name in theirs_of.files else None
            mine = mine_of[name] if name in mine_of.files else None
            error = None if theirs is None or mine is None or theirs.shape != mine.shape else _error(mine, theirs)
            values.append(SharedValue(name, _spelled(theirs), _spelled(mine), error))
        return values


def _spelled(array: npt.NDArray[Any] | None) -> str | None:
    if array is None:
        return None
    return spelled_type("string" if array.dtype.kind in "US" else str(array.dtype), array.shape)


def largest_error(values: Sequence[SharedValue]) -> float:
    """Return the largest error of values of the first way; infinite if the second lacks one, or has another shape."""
    errors = (math.inf if value.error is None else value.error for value in values if value.before is not None)
    return max(errors, default=0.0)


def _joined(sets: Sequence[Sequence[SharedValue]]) -> tuple[SharedValue, ...]:
    """Return the values of several sets of inputs, each with its largest error."""
    joined = {value.name: value for value in sets[-1]}
    for value in (value for values in sets for value in values):
        known = joined.get(value.name, value)
        worse = None if value.error is None or known.error is None else max(value.error, known.error)
        joined[value.name] = replace(known, error=worse)
    return tuple(joined.values())


def _error(mine: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    if theirs.dtype.kind in "US":
        return 0.0 if np.array_equal(mine, theirs) else math.inf
    return relative_difference(mine, theirs)
