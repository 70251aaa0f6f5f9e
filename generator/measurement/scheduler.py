"""One loop that times all tasks alternately: bricks in packs, whole models, trials, ceilings.

A process loads a group of tasks, every other process in reverse order. Each session orders the bricks of every pack
anew, then visits all tasks round after round: in a new order, then in the reverse of it. A session is committed as one,
so that an interrupt loses at most this session. The parent does nothing during a visit. If the device held its clocks
back during a session, the session is discarded and repeated, within limits.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from ...db.values import HOST, INNER, Block, Stop, Visit
from ...errors import BackendError, WorkerError, WorkerTimeout
from ..device.host import state_of
from ..machine.nvml import throttled
from ..progress import Progress, ProgressCallback, Stage
from ..worker.client import Timeouts, Workers, refusal_of
from ..worker.messages import Load, Loaded, Place, Time, Timed
from .pace import SESSION_S, Pace, loops_of, warmups_of
from .plan import Group, MeasurementPlan, MeasurementTask, TaskMember, single
from .recorder import Record, SampleRecorder

_MEMBER_S = 0.5
"""Upper bound on the seconds to load one more brick of a pack."""

_LOADINGS = 8
"""How many times as long as the loading of its packs a session is at least: each loads them in another order."""

_FRESH_NS = 10**9
"""What takes longer needs no warm-up after loading: it was executed once, and touching its memory is a small share."""

_Answer = TypeVar("_Answer")

_AGAIN = 2
"""Most sessions discarded in a row: if the device is still held back, its load or its location is the cause."""


class _TaskFailed(Exception):  # never reaches a caller: it carries the task and its error
    """A worker ended during a request about a task, or a runtime failed."""

    def __init__(self, task: MeasurementTask, error: WorkerError | BackendError) -> None:
        super().__init__(str(error))
        self.task, self.error = task, error


class TimeUp(Exception):  # never reaches a caller: what was asked for stays without a result
    """The total time was spent in a request that is not timed."""


def in_time(ask: Callable[..., _Answer], pace: Pace, *, timeout_s: float) -> _Answer:
    """Ask a worker for something that is not timed, until its own limit or until the total time is up.

    Args:
        ask: The request, called with ``timeout_s``.
        pace: What knows how much of the total time is left.
        timeout_s: The request's own limit.

    Raises:
        TimeUp: The total time was spent.
        WorkerError: The worker ended.
        BackendError: The runtime failed.
    """
    left_s = pace.loading_left_s
    if left_s <= 0:
        raise TimeUp
    try:
        return ask(timeout_s=min(timeout_s, left_s))
    except WorkerTimeout as error:
        if pace.loading_left_s <= 0:
            raise TimeUp from error
        raise


@dataclass(slots=True, eq=False)
class _Waiting:
    """Current state of a group.

    Attributes:
        group: The group as planned.
        packs: Its packs: some may have lost bricks, or be halves.
        singles: Tasks that run alone.
        sessions: Number of sessions left.
        loading_s: Seconds that its latest process took to start and to load the tasks that run alone.
    """

    group: Group
    packs: list[MeasurementTask]
    singles: list[MeasurementTask]
    sessions: int
    loading_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TimedVisit:
    """One visit of a task."""

    timed: Timed
    loops: int
    warmups: int

    @property
    def stored(self) -> Visit:
        """When it was made, and how quiet the machine was."""
        timed = self.timed
        return Visit(timed.begun_us, timed.compute_ns, timed.memory_ns, timed.cpu_ns, timed.switches, timed.waited_ns)


@dataclass(slots=True)
class _Session:
    """The session in flight: its visits, by task id, and when they began."""

    planned: int
    begun_s: float = field(default_factory=time.monotonic)
    loaded_s: float = math.inf
    done: int = 0
    taken: dict[str, list[TimedVisit]] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """True if it is long enough to be committed, also against loading its packs, which follows each commit."""
        loading_s, visiting_s = self.loaded_s - self.begun_s, time.monotonic() - self.loaded_s
        return self.done > 0 and visiting_s >= max(SESSION_S, _LOADINGS * loading_s)


class Scheduler:
    """Visits the tasks of a plan until each member has a result or an error, or the budget is spent."""

    def __init__(
        self,
        plan: MeasurementPlan,
        workers: Workers[Place],
        recorder: SampleRecorder,
        pace: Pace,
        progress: ProgressCallback | None = None,
    ) -> None:
        self._plan = plan
        self._workers = workers
        self._recorder = recorder
        self._pace = pace
        self._costs = recorder.costs
        self._progress = progress
        devices = {task.place.runtime.device for group in plan.groups for task in group.tasks}
        self._watched = tuple(device for device in sorted(devices) if "held_back" in state_of(device))
        self._number = self._round = -1
        self._run_ns: dict[str, int] = {}
        self._fresh: set[str] = set()  # loaded, and not visited since
        self._done = self._total = self._discarded = 0

    @property
    def throttling(self) -> dict[str, object]:
        """Number of sessions with clocks held back, for the record of a run; empty if the devices do not report it."""
        if not self._watched:
            return {}
        return {"sessions_again": self._costs.again, "sessions_throttled": self._costs.throttled}

    def prepare(self, group: Group) -> None:
        """Do what a subclass has to before the sessions of a group in a process."""

    def measure(self) -> None:
        """Measure the groups; each record gets a ``result`` or ``error``, or stays open if the time was short.

        Raises:
            WorkerError: A worker cannot be started, or ended while idle.
        """
        processes = self._plan.processes
        waiting = [
            _Waiting(
                group,
                [task for task in group.tasks if task.packed],
                [task for task in group.tasks if not task.packed],
                processes * self._plan.sessions_of(group),
            )
            for group in self._plan.groups
        ]
        self._total = sum(self._missing(state) * len(state.group.members) for state in waiting)
        for process in reversed(range(processes)):
            if process + 1 < processes:
                self._end_workers()
            for position, state in enumerate(waiting):
                sessions = self._plan.sessions_of(state.group)
                if self._pace.affords(state.loading_s):
                    first, after = process + 1 == processes, len(waiting) - position - 1
                    self._pace.expect(
                        len(waiting) * process + 1 + after, sessions, first=first, others=after if first else 0
                    )
                    self._group(state, until=process * sessions)
                later = {member.identity for other in waiting[position + 1 :] for member in other.group.members}
                if not process or not self._missing(state):
                    self._finish(member for member in state.group.members if member.identity not in later)
        self._finish(member for state in waiting for member in state.group.members)

    def _finish(self, members: Iterable[TaskMember]) -> None:
        """Close the records of members with enough visits."""
        unique = {member.identity: member for member in members}.values()
        least = self._pace.suffices
        ready = [member for member in unique if self._of(member).open and self._of(member).visits >= least]
        whole = [member for member in ready if self._of(member).visits >= self._pace.visits]
        short = [member for member in ready if self._of(member).visits < self._pace.visits]
        for stop, closed in ((Stop.VISITS, whole), (Stop.BUDGET, short if self._pace.budget_s is not None else [])):
            parts = [part for member in closed for part in self._recorder.parts(member) if part.open and part.blocks]
            if closing := [*map(self._of, closed), *parts]:
                self._recorder.finish(closing, stop)

    def _of(self, member: TaskMember) -> Record:
        return self._recorder.of(member)

    def _is_open(self, task: MeasurementTask) -> bool:
        return any(self._of(member).open for member in task.members)

    def _missing(self, waiting: _Waiting) -> int:
        """Return how many visits a group still needs: unmeasured models decide, or without them all open members."""
        remaining = {member.id: self._of(member) for member in waiting.group.members if self._of(member).open}
        anchors = [record for name, record in remaining.items() if name in waiting.group.anchors] or remaining.values()
        return max((self._pace.wanted - record.visits for record in anchors), default=0)

    def _group(self, waiting: _Waiting, *, until: int) -> None:
        """Run the sessions of a group in one process; if a worker ends, its current session is lost."""
        while (visits := self._missing(waiting)) > 0 and waiting.sessions > until and not self._pace.expired:
            try:
                self.prepare(waiting.group)
                if self._missing(waiting) <= 0:
                    return
                begun = time.monotonic()
                self._begin_process(waiting)
                singles = self._load(self._drawn(waiting.singles))
                waiting.loading_s = time.monotonic() - begun
                while visits > 0 and waiting.sessions > until and not self._pace.expired:
                    self._take(waiting, singles, -(-visits // waiting.sessions))
                    waiting.sessions -= 1
                    visits = self._missing(waiting)
                self._drop([*waiting.packs, *singles])
            except _TaskFailed as failed:
                self._isolate(failed, waiting)
            except TimeUp:
                self._end_workers()
                return

    def _begin_process(self, waiting: _Waiting) -> None:
        """Start the workers of a group, so that its orders are drawn by the number of the process.

        They start in an order that changes like that of loading: caches of the first are cold when the last is ready.
        """
        for task in [*waiting.packs, *waiting.singles][:: 1 if self._workers.number % 2 else -1]:
            with self._costs.spend("start_s"):
                self._workers.at(task.place)
        if self._workers.number != self._number:
            self._number, self._round = self._workers.number, -1

    def _drawn(self, tasks: Sequence[MeasurementTask]) -> list[MeasurementTask]:
        """Return tasks in the order in which this process loads them: what is loaded first has other memory.

        The order of a process is the reverse of the one before it, so that of two tasks each is loaded first in every
        other process.
        """
        return [*tasks][:: -1 if self._number % 2 else 1]

    def _take(self, waiting: _Waiting, singles: list[MeasurementTask], planned: int) -> None:
        """Visit all tasks the planned number of times; a long session is committed in parts, as separate sessions."""
        self._pace.allot()
        done = 0
        while not done or not self._pace.enough(done, planned):
            session = _Session(planned - done)
            begun = {device: state_of(device) for device in self._watched}
            self._visit_all(waiting, singles, session, done)
            if not session.done:
                return
            if self._discards(session, begun):
                self._round -= 1
                self._done -= session.done * len(waiting.group.members)
                self._pace.allot()
                continue
            self._recorder.commit(self._blocks([*waiting.packs, *singles], session))
            done += session.done

    def _visit_all(self, waiting: _Waiting, singles: list[MeasurementTask], session: _Session, before: int) -> None:
        """Make the visits of one session."""
        self._round += 1
        waiting.packs[:] = [pack for task in waiting.packs if (pack := self._load_pack(task, waiting)) is not None]
        loaded_ids = {task.id for task in singles}
        singles += self._load([task for task in waiting.singles if task.id not in loaded_ids])
        session.loaded_s = time.monotonic()
        tasks = [*waiting.packs, *(task for task in singles if self._is_open(task))]
        session.taken = {task.id: [] for task in tasks}
        while tasks and not self._pace.enough(before + session.done, before + session.planned) and not session.full:
            if session.done % 2:  # of two tasks each is visited first equally often
                tasks.reverse()
            else:
                order = random.Random(f"{self._plan.seed}:{self._number}:{self._round}:{session.done}")  # noqa: S311
                order.shuffle(tasks)
            for task in tasks:
                if not task.packed and not self._is_open(task):
                    continue
                visit = self._visit(task)
                if visit is not None:
                    session.taken[task.id].append(visit)
            session.done += 1
            self._done += len(waiting.group.members)

    def _discards(self, session: _Session, before: Mapping[str, Mapping[str, object]]) -> bool:
        """Return True if the session must be repeated because a device held its clocks back meanwhile.

        It is not repeated after several repetitions in a row, or if the sessions to come would lack the time.
        """
        if not before:
            return False
        elapsed_s = time.monotonic() - session.begun_s
        if not any(throttled(state, state_of(device), elapsed_s) for device, state in before.items()):
            self._discarded = 0
            return False
        if self._discarded == _AGAIN or not self._pace.again(elapsed_s):
            self._costs.throttled += 1
            return False
        self._discarded += 1
        self._costs.again += 1
        return True

    @contextmanager
    def _asking(self, task: MeasurementTask, part: str) -> Iterator[None]:
        """Book the time of a request about a task; if the request fails, raise an error that carries the task."""
        try:
            with self._costs.spend(part):
                yield
        except (WorkerError, BackendError) as error:
            raise _TaskFailed(task, error) from error

    def _ask_to_load(self, task: MeasurementTask, request: Load, timeout_s: float) -> Loaded:
        with self._asking(task, "prepare_s"):
            load = partial(self._workers.at(task.place).load, request)
            return in_time(load, self._pace, timeout_s=timeout_s)

    def _visit(self, task: MeasurementTask) -> TimedVisit | None:
        """Make one visit; return None if the runtime failed over a single network."""
        self._tell(Stage.SAMPLE, task)
        run_ns = self._run_ns.get(task.id, 0)
        # Only the first of several executions would be cold.
        loops = 1 if task.cold else loops_of(run_ns, brief=task.brief)
        warmups = 1 if task.cold else warmups_of(run_ns, evicts=task.evicts)
        if task.id in self._fresh:  # its memory was just written elsewhere, and its buffers were never used
            self._fresh.discard(task.id)
            warmups += run_ns < _FRESH_NS
        timeout_s = self._plan.timeout_s + 2 * (1 + warmups) * run_ns * loops / 1e9
        self._costs.visits += 1
        try:
            with self._asking(task, "sample_s"):
                timed = self._workers.at(task.place).time(Time(task.id, loops, warmups, task.cold), timeout_s=timeout_s)
        except _TaskFailed as failed:
            if task.packed or not isinstance(failed.error, BackendError):
                raise
            self._fail(task, failed.error)
            return None
        self._costs.timed_s += timed.elapsed_ns / 1e9
        self._run_ns[task.id] = max(1, timed.elapsed_ns // loops)
        return TimedVisit(timed, loops, warmups)

    def _blocks(self, tasks: Sequence[MeasurementTask], session: _Session) -> list[tuple[Record, Block]]:
        """Return the blocks of a session, with the records of members and their parts."""
        blocks: list[tuple[Record, Block]] = []
        for task in tasks:
            taken = session.taken.get(task.id, [])
            if len(taken) < session.done:
                continue  # it failed during the session
            warmups, visits = sum(visit.warmups for visit in taken), tuple(visit.stored for visit in taken)
            block = partial(Block, self._number, self._round, warmups=warmups, visits=visits)
            if not task.packed:
                (alone,) = task.members
                inner = tuple((visit.timed.elapsed_ns, visit.loops) for visit in taken)
                edges = [visit.timed.edges_ns or 0 for visit in taken]
                whole = tuple((ns + edge_ns, loops) for (ns, loops), edge_ns in zip(inner, edges, strict=True))
                blocks.append((self._of(alone), block(whole)))
                if any(edges) and (part := self._recorder.part(alone, INNER)) is not None:
                    blocks.append((part, block(inner)))
                continue
            with self._asking(task, "unpack_s"):
                timeout_s = self._plan.timeout_s + Timeouts.load
                readings = self._workers.at(task.place).read(task.id, timeout_s=timeout_s)
            self._costs.watched_s += readings.watched_ns / 1e9
            self._costs.unwatched_s += readings.unwatched_ns / 1e9
            members, touched = {member.id: member for member in task.members}, task.footprint_bytes
            for times in readings.times:
                member, timed = members.get(times.id), len(times.whole_ns)
                if member is None or timed != len(taken):
                    raise WorkerError(f"the worker timed {timed} of {len(taken)} visits of {times.id[:24]}")
                self._run_ns[times.id] = max(1, times.whole_ns[-1])
                blocks.append((self._of(member), block(tuple((ns, 1) for ns in times.whole_ns))))
                for name, part_ns in ((INNER, times.inner_ns), (HOST, times.host_ns)):
                    if part_ns and (part := self._recorder.part(member, name)) is not None:
                        part.footprint_bytes = touched
                        blocks.append((part, block(tuple((ns, 1) for ns in part_ns))))
        return blocks

    def _load(self, tasks: Sequence[MeasurementTask]) -> list[MeasurementTask]:
        """Load the tasks that run alone, and return them; a task that the runtime refuses has failed."""
        loaded: list[MeasurementTask] = []
        for task in tasks:
            if not self._is_open(task):
                continue
            self._tell(Stage.PREPARE, task)
            timeout_s = Timeouts.loading(task.size_bytes, bound_s=self._plan.timeout_s)
            request = task.load(self._plan.seed, unroll=self._of(task.members[0]).unroll)
            try:
                reply = self._ask_to_load(task, request, timeout_s)
            except _TaskFailed as failed:
                if not isinstance(failed.error, BackendError):
                    raise
                self._fail(task, failed.error)
                continue
            self._costs.load_s += reply.loading_ns / 1e9
            self._recorder.loaded(task, reply)
            self._run_ns.setdefault(task.id, reply.first_run_ns)
            self._fresh.add(task.id)
            loaded.append(task)
        return loaded

    def _load_pack(self, task: MeasurementTask, waiting: _Waiting) -> MeasurementTask | None:
        """Load a pack in the order of this session; return it without unusable bricks, or None if none is left."""
        alone = {single_task.id for single_task in waiting.singles}
        gone = {member.id for member in task.members if self._of(member).error is not None or member.id in alone}
        pack = task.without(gone) if gone else task
        if pack is None:
            return None
        self._tell(Stage.PREPARE, pack)
        bound_s = Timeouts.loading(pack.size_bytes, bound_s=self._plan.timeout_s)
        request = pack.load(self._plan.seed, process=self._number, session=self._round)
        reply = self._ask_to_load(task, request, bound_s + _MEMBER_S * len(pack.members))
        self._costs.load_s += reply.loading_ns / 1e9
        members = {member.id: member for member in pack.members}
        for brick in reply.left_out:
            member = members[brick.id]
            if brick.kind is None:
                waiting.singles.append(single(member, task.place))
            else:
                self._recorder.fail(member, refusal_of(brick.kind, brick.reason))
        pack = pack.without({brick.id for brick in reply.left_out})
        if pack is not None:
            self._fresh.add(pack.id)
            self._recorder.loaded(pack, reply)
        return pack

    def _isolate(self, failed: _TaskFailed, waiting: _Waiting) -> None:
        """Find the culprit after a worker ended or a pack failed, if the plan isolates failures.

        A pack is halved until one brick is left. A single brick or network runs once more, alone in a fresh worker;
        a second failure is final.
        """
        task = failed.task
        self._end_workers()
        if not self._plan.isolate:
            self._fail(task, failed.error)
            return
        self._tell(Stage.RETRY, task)
        if task.packed:
            waiting.packs[:] = [pack for pack in waiting.packs if pack.id != task.id]
            if halves := task.halves():
                waiting.packs += halves
                return
            task = single(task.members[0], task.place)
        alone = _Waiting(Group((task,)), [], [task], 1)
        try:
            self._begin_process(alone)
            singles = self._load([task])
            if self._is_open(task) and task.members[0].footprint:
                self._of(task.members[0]).footprint_bytes = 0
            while singles and self._is_open(task) and (visits := self._missing(alone)) > 0:
                self._take(alone, singles, visits)
                if self._pace.expired:
                    break
        except _TaskFailed as again:
            self._fail(task, again.error)
        except TimeUp:
            pass  # it stays without a result
        self._finish(task.members)
        self._end_workers()

    def _fail(self, task: MeasurementTask, error: WorkerError | BackendError) -> None:
        self._recorder.fail(task.members[0], error)

    def _drop(self, tasks: Iterable[MeasurementTask]) -> None:
        """Drop the loaded tasks of a group; if a worker dies, nothing is lost, since all samples are committed."""
        try:
            with self._costs.spend("prepare_s"):
                for task in tasks:
                    self._workers.at(task.place).drop(task.id)
        except (WorkerError, BackendError):
            self._end_workers()

    def _end_workers(self) -> None:
        with self._costs.spend("start_s"):
            self._workers.close()

    def _tell(self, stage: Stage, task: MeasurementTask) -> None:
        if self._progress is None:
            return
        visits_left = max(0, self._total - self._done)
        remaining_s = self._pace.remaining_s(self._done, visits_left)
        with self._costs.spend("progress_s"):
            self._progress(
                Progress(stage, self._done, self._done + visits_left, task.label, self._pace.elapsed_s, remaining_s)
            )
