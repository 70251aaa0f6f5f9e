"""One measuring session after the other: groups, the worker that visits them, and what happens when it dies."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ...bricks.graph.boundary import BOUNDARY
from ...db.samples.statistics import MIN_SAMPLES
from ...db.values import HOST, INNER, PARTS, Block, Stop
from ...errors import BackendError, DlbricksError, WorkerError
from ..progress import Progress, ProgressCallback, Stage
from ..worker.client import Timeouts, Worker, refused
from ..worker.requests import Pack, Visit
from ..worker.standby import Standby
from .costs import RunCosts
from .item import Item
from .journal import Journal
from .sampling.grouping import Group, PackPlan, packs_of
from .sampling.pace import Pace, loops_of, warmups_of
from .sampling.taken import Taken, block_of
from .settings import MeasurementSettings
from .throttling import Throttling

__all__ = ["Session"]

_MEMBER_S = 0.5
"""Most time that one more brick of a pack takes to load."""

Subject = Item | PackPlan


@dataclass(slots=True, eq=False)
class _Waiting:
    """A group, its packs as they are by now, and the sessions that it may still have."""

    group: Group
    packs: list[PackPlan]
    sessions: int


class Session:
    """Measures groups until each of their items has a result or a failure, or the time is up.

    Each process loads a group; in each of its sessions every pack has an order of its own. Within a session packs and
    all else are visited in turn, again and again, in an order that changes each time. What a session took is committed
    as one, so that at most the session in flight is repeated. The parent does nothing while a visit is under way. A
    session in which the device held its clocks back is discarded and taken again, within limits (``Throttling``).

    Args:
        launch: Starts a greeted worker.
        journal: Where results go.
        settings: How to measure.
        pace: Visits and total time.
        costs: Where wall time is booked.
        progress: Called between visits.

    Attributes:
        throttling: Watches the device.
    """

    def __init__(
        self,
        launch: Callable[[], Worker],
        journal: Journal,
        settings: MeasurementSettings,
        pace: Pace,
        costs: RunCosts,
        *,
        progress: ProgressCallback | None = None,
    ) -> None:
        self._launch = launch
        self._journal = journal
        self._settings = settings
        self._pace = pace
        self._costs = costs
        self._progress = progress
        self.throttling = Throttling(settings.device, pace, costs)
        self._standby = Standby(self._started)
        self._process = self._round = -1
        self._running: Subject | None = None
        self._parts: dict[tuple[str, str], Item] = {}
        self._fresh: set[str] = set()  # loaded, and not visited since
        self._done = self._total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._costs.spend("start_s"):
            self._standby.__exit__(kind, error, trace)

    def measure(self, groups: Sequence[Group]) -> None:
        """Measure the groups; each item ends with ``result`` or ``failure``, or stays open where the time was short."""
        items = list(dict.fromkeys(item for group in groups for item in (*group.items, *group.models)))
        packed = [item for item in items if item.packed and not item.variant]
        self._parts = {(item.id, part): item.in_variant(part) for item in packed for part in PARTS}
        self._process = self._journal.resume([*items, *self._parts.values()])
        processes, sessions = self._settings.processes, self._settings.sessions
        waiting = [
            _Waiting(group, packs_of([item for item in group.items if item.packed], str(number)), processes * sessions)
            for number, group in enumerate(groups)
        ]
        self._total = sum(self._missing(group) * group.count for group in groups)
        for process in reversed(range(processes)):
            self._end_worker()
            for place, one in enumerate(waiting):
                if not self._pace.expired:
                    self._pace.expect(len(waiting) * (process + 1) - place, sessions, first=process + 1 == processes)
                    self._group(one, until=process * sessions)
                later = {id(item) for other in waiting[place + 1 :] for item in other.group.all}
                if not process or not self._missing(one.group):
                    self._finish(item for item in one.group.all if id(item) not in later)
        self._finish(items)

    def _finish(self, items: Iterable[Item]) -> None:
        """Close what was visited often enough."""
        ready = [item for item in items if item.open and item.visits >= min(MIN_SAMPLES, self._pace.wanted)]
        whole = [item for item in ready if item.visits >= self._pace.visits]
        short = [item for item in ready if item.visits < self._pace.visits and self._pace.budget_s is not None]
        for stop, found in ((Stop.VISITS, whole), (Stop.BUDGET, short)):
            parts = [part for item in found for part in self._parts_of(item)]
            closing = [*found, *(part for part in parts if part.open and part.blocks)]
            if closing:
                self._journal.finish(closing, stop)

    def _missing(self, group: Group) -> int:
        """Visits that a group still needs: those of its models, where it has any that are not measured."""
        anchors = [item for item in group.models if item.open] or [item for item in group.items if item.open]
        return max((self._pace.wanted - item.visits for item in anchors), default=0)

    def _group(self, waiting: _Waiting, *, until: int) -> None:
        """The sessions that one process has for a group; a worker that dies costs the session that it died in."""
        group = waiting.group
        while (visits := self._missing(group)) > 0 and waiting.sessions > until and not self._pace.expired:
            try:
                _ = self._standby.worker  # with its number, by which orders are drawn
                singles = self._load([item for item in group.all if item.open and not item.packed])
                while visits > 0 and waiting.sessions > until and not self._pace.expired:
                    if self._session(group, waiting.packs, singles, -(-visits // waiting.sessions)):
                        waiting.sessions -= 1
                    visits = self._missing(group)
                self._release([*waiting.packs, *singles])
            except (WorkerError, BackendError) as error:
                self._lose(error, waiting.packs)

    def _session(self, group: Group, packs: list[PackPlan], singles: list[Item], visits: int) -> bool:
        """Visit everything so often, and commit it; False where it is to be taken again."""
        self._round += 1
        self._pace.allot()
        packs[:] = [plan for plan in packs if self._pack(plan)]
        singles += self._load([item for item in group.items if item.alone and item.open and item not in singles])
        subjects: list[Subject] = [*packs, *(item for item in singles if item.open)]
        taken: dict[int, list[Taken]] = {id(subject): [] for subject in subjects}
        done = 0
        self.throttling.watch()
        while subjects and not self._pace.enough(done, visits):
            order = random.Random(f"{self._settings.seed}:{self._process}:{self._round}:{done}")  # noqa: S311
            order.shuffle(subjects)
            for subject in subjects:
                if isinstance(subject, Item) and not subject.open:
                    continue
                visit = self._visit(subject)
                if visit is not None:
                    taken[id(subject)].append(visit)
            done += 1
            self._done += group.count
        if not done:
            return True
        if self.throttling.discards():
            self._round -= 1
            self._done -= done * group.count
            return False
        blocks: list[tuple[Item, Block]] = []
        for subject in subjects:
            visits_of = taken[id(subject)]
            if len(visits_of) < done:
                continue  # it failed on the way
            if isinstance(subject, Item):
                blocks.append((subject, self._block(visits_of, [one.sample for one in visits_of])))
            else:
                blocks += self._unpack(subject, visits_of)
        self._journal.commit(blocks)
        return True

    def _block(self, taken: Sequence[Taken], samples: Sequence[tuple[int, int]]) -> Block:
        return block_of(self._process, self._round, taken, samples)

    def _visit(self, subject: Subject) -> Taken | None:
        """One visit; None where the runtime failed over a single item, which has failed with it."""
        self._tell(Stage.SAMPLE, subject)
        cold = isinstance(subject, Item) and (subject.cache or self._settings.cache) == "cold"
        loops = 1 if cold else loops_of(subject.run_ns)  # only the first of several would be cold
        footprint = 0 if isinstance(subject, Item) else subject.footprint
        run_ns, warmups = subject.run_ns * loops, 1 if cold else warmups_of(subject.run_ns, footprint)
        if subject.id in self._fresh:  # memory that was just written elsewhere, and buffers that were never used
            self._fresh.discard(subject.id)
            warmups += 1
        request = Visit(subject.id, loops, warmups, "cold" if cold else "hot")
        self._running = subject
        try:
            with self._costs.spend("sample_s"):
                timeout_s = self._settings.item_timeout_s + 2 * (1 + warmups) * run_ns / 1e9
                visited = self._standby.worker.visit(request, timeout_s=timeout_s)
        except BackendError as error:
            if not isinstance(subject, Item):
                raise
            self._running = None
            self._fail(subject, error)
            return None
        finally:
            self._costs.visits += 1
        self._running = None
        self._costs.timed_s += visited.elapsed_ns / 1e9
        subject.run_ns = max(1, visited.elapsed_ns // loops)
        return Taken(visited, loops, warmups)

    def _unpack(self, plan: PackPlan, taken: Sequence[Taken]) -> list[tuple[Item, Block]]:
        """The blocks of a pack's bricks and their parts, each sample the mean over the loops of a visit."""
        self._running = plan
        with self._costs.spend("unpack_s"):
            reply = self._standby.worker.unpack(plan.id, timeout_s=self._settings.item_timeout_s + Timeouts.prepare)
        self._running = None
        self._costs.watched_s += reply.watched_ns / 1e9
        self._costs.unwatched_s += reply.unwatched_ns / 1e9
        items = {item.id: item for item in plan.items}
        blocks: list[tuple[Item, Block]] = []
        for one in reply.times:
            item = items.get(one.id)
            if item is None or len(one.whole_ns) != len(taken):
                raise WorkerError(f"the worker timed {len(one.whole_ns)} of {len(taken)} visits of {one.id[:24]}")
            item.run_ns = max(1, one.whole_ns[-1])
            blocks.append((item, self._block(taken, [(ns, 1) for ns in one.whole_ns])))
            for name, times in ((INNER, one.inner_ns), (HOST, one.host_ns)):
                if times and (part := self._parts.get((item.id, name))) is not None:
                    part.footprint_bytes, part.unroll = item.footprint_bytes, 1
                    blocks.append((part, self._block(taken, [(ns, 1) for ns in times])))
        return blocks

    def _load(self, items: Sequence[Item]) -> list[Item]:
        """Load what is run by itself; what the runtime refuses has failed."""
        loaded: list[Item] = []
        for item in items:
            self._tell(Stage.PREPARE, item)
            self._running = item
            timeout_s = Timeouts.loading(item.size_bytes, bound_s=self._settings.item_timeout_s)
            try:
                with self._costs.spend("prepare_s"):
                    reply = self._standby.worker.prepare(item.request(self._settings.seed), timeout_s=timeout_s)
            except BackendError as error:
                self._running = None
                self._fail(item, error)
                continue
            self._running = None
            self._costs.load_s += reply.loading_ns / 1e9
            item.unroll, item.size_bytes = reply.unroll, reply.bytes
            item.run_ns = item.run_ns or reply.first_run_ns
            if item.footprint:
                item.footprint_bytes = 0
            item.load_ns, item.first_run_ns = item.load_ns or reply.load_ns, item.first_run_ns or reply.first_run_ns
            self._fresh.add(item.id)
            loaded.append(item)
        return loaded

    def _pack(self, plan: PackPlan) -> bool:
        """Load a pack in the order of this session; False where none of its bricks can be run in it."""
        plan.items = [item for item in plan.items if not item.failure and not item.alone]
        if not plan.items:
            return False
        first = plan.items[0]
        self._tell(Stage.PREPARE, plan)
        request = Pack(
            id=plan.id,
            members=tuple(
                (item.id, str(item.path), plan.copies.get(item.id, 1))
                for item in plan.ordered(f"{self._settings.seed}:{self._process}:{self._round}")
            ),
            seed=self._settings.seed,
            as_is=first.as_is,
            variant=first.algorithm,
            boundary=tuple((item.id, item.variant) for item in plan.items if item.variant in BOUNDARY),
            memory_reuse=plan.shares_memory(self._process + self._round),
        )
        self._running = plan
        size_bytes = sum(item.size_bytes for item in plan.items)
        timeout_s = Timeouts.loading(size_bytes, bound_s=self._settings.item_timeout_s) + _MEMBER_S * len(plan.items)
        with self._costs.spend("prepare_s"):
            reply = self._standby.worker.pack(request, timeout_s=timeout_s)
        self._running = None
        self._costs.load_s += reply.loading_ns / 1e9
        items = {item.id: item for item in plan.items}
        for left_out in reply.left_out:
            item = items.pop(left_out.id)
            if left_out.kind:
                self._fail(item, refused(left_out))
            else:
                item.alone = True
        plan.items = [*items.values()]
        self._fresh.add(plan.id)
        for item in plan.items:
            item.unroll, item.footprint_bytes = 1, plan.footprint_bytes
        return bool(plan.items)

    def _lose(self, error: WorkerError | BackendError, packs: list[PackPlan]) -> None:
        """A worker ended, or a pack failed: find out whose fault it was.

        A pack is halved, until the brick is alone that ends it; what is alone runs once more in a worker of its own,
        and fails where it ends that as well.

        Raises:
            WorkerError: It ended while it ran nothing.
        """
        running, self._running = self._running, None
        self._end_worker()
        if running is None:
            raise error
        self._tell(Stage.RETRY, running)
        if isinstance(running, PackPlan):
            if running not in packs:
                raise error
            packs.remove(running)
            if len(running.items) > 1:
                packs += running.halves()
                return
            (running,) = running.items
        self._alone(running)

    def _alone(self, item: Item) -> None:
        """Measure an item in workers that hold nothing else; it fails where it ends one."""
        item.alone = True
        _ = self._standby.worker
        try:
            singles = self._load([item])
            item.footprint_bytes = 0
            while not self._session(Group([item], []), [], singles, self._pace.wanted - item.visits):
                pass
        except WorkerError as error:
            self._running = None
            self._fail(item, error)
        self._finish([item])
        self._end_worker()

    def _release(self, subjects: Iterable[Subject]) -> None:
        """Drop what a group loaded; a worker that dies of it costs nothing, since all that it held is committed."""
        try:
            with self._costs.spend("prepare_s"):
                for subject in subjects:
                    self._standby.worker.release(subject.id)
        except (WorkerError, BackendError):
            self._end_worker()

    def _fail(self, item: Item, error: DlbricksError) -> None:
        """Store a failure; what is known of a part of a brick that failed is no measurement either."""
        self._journal.fail(item, error)
        for part in self._parts_of(item):
            self._journal.drop(part)

    def _parts_of(self, item: Item) -> list[Item]:
        return [self._parts[item.id, name] for name in PARTS if (item.id, name) in self._parts]

    def _end_worker(self) -> None:
        with self._costs.spend("start_s"):
            self._standby.close()

    def _started(self) -> Worker:
        """A new worker; it has the next process number."""
        with self._costs.spend("start_s"):
            worker = self._launch()
        self._process += 1
        self._round = -1
        return worker

    def _tell(self, stage: Stage, subject: Subject) -> None:
        if self._progress is None:
            return
        label = subject.label if isinstance(subject, Item) else f"{len(subject.items)} bricks"
        left = max(0, self._total - self._done)
        remaining_s = self._pace.remaining_s(self._done, left)
        with self._costs.spend("progress_s"):
            self._progress(Progress(stage, self._done, self._done + left, label, self._pace.elapsed_s, remaining_s))
