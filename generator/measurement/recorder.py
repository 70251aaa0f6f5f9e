"""Record visits as blocks, results and failures: in memory, or in the database at the end of each session."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from ...db.queries import LeftOpen
from ...db.samples.statistics import MIN_SAMPLES, Baseline, Values, block_values, summarise, undisturbed
from ...db.store import OpenedMeasurement, Store
from ...db.values import PARTS, PROTOCOL, Block, Failure, Identity, Measurement, Run, Stop, Visit
from ...errors import BackendError, DlbricksError, UnsupportedBrick, WorkerOutOfMemory, WorkerTimeout
from ..worker.messages import Loaded
from .pace import FEWEST_VISITS, RunCosts
from .plan import MeasurementTask, TaskMember

_SAME_MOMENT = timedelta(hours=1)
"""Machines change: visits of a run that began longer ago are not combined with new visits."""


@dataclass(slots=True, eq=False)
class Record:
    """Samples of a member, or of a part of a member, and its result or error.

    Attributes:
        identity: Subject, key and conditions of the measurement.
        blocks: Committed blocks, including blocks of an interrupted run.
        unroll: Copies in one network; 0 until the worker has chosen.
        footprint_bytes: Bytes touched between two visits of it.
        load_ns: Duration of session creation in the first process of this run.
        first_run_ns: Duration of the first execution in that process.
        starts_ns: Both durations in each process, for a member that runs alone.
        measurement: UUID in the database; None until it is opened there.
        result: Set when it is measured.
        error: Set when it cannot be measured.
        failure: The error as stored in the database.
    """

    identity: Identity
    blocks: list[Block] = field(default_factory=list)
    unroll: int = 0
    footprint_bytes: int | None = None
    load_ns: int | None = None
    first_run_ns: int | None = None
    starts_ns: list[tuple[int, int]] = field(default_factory=list)
    measurement: str | None = None
    result: Measurement | None = None
    error: DlbricksError | None = None
    failure: Failure | None = None

    @property
    def open(self) -> bool:
        """True without a result and without an error."""
        return self.result is None and self.error is None

    @property
    def watched(self) -> bool:
        """True if the time of each visit is known."""
        return all(len(block.visits) == len(block.samples) for block in self.blocks)

    @property
    def visits(self) -> int:
        """Number of its visits so far."""
        return sum(len(block.samples) for block in self.blocks)


class SampleRecorder:
    """Keeps samples in memory."""

    def __init__(self, costs: RunCosts | None = None) -> None:
        self.records: dict[Identity, Record] = {}
        self.costs = costs or RunCosts()

    def of(self, member: TaskMember) -> Record:
        """Return the record of a member; create it if it does not exist."""
        record = self.records.get(member.identity)
        if record is None:
            unroll = 1 if member.footprint else 0
            record = self.records[member.identity] = Record(
                member.identity, unroll=unroll, footprint_bytes=member.footprint_bytes
            )
        return record

    def part(self, member: TaskMember, variant: str) -> Record | None:
        """Return the record of a part of a brick; None for a member without parts."""
        if not member.in_parts:
            return None
        identity = member.part(variant)
        return self.records.setdefault(identity, Record(identity, unroll=self.of(member).unroll))

    def parts(self, member: TaskMember) -> list[Record]:
        """Return the records of all parts of a member."""
        if member.identity.variant:
            return []
        records = (self.records.get(member.part(name)) for name in PARTS)
        return [record for record in records if record is not None]

    def loaded(self, task: MeasurementTask, reply: Loaded) -> None:
        """Note a worker's reply about a loaded task."""
        touched = task.footprint_bytes
        for member in task.members:
            record = self.of(member)
            if task.packed:
                record.unroll, record.footprint_bytes = 1, touched
                continue
            record.unroll = reply.unroll
            record.load_ns = record.load_ns or reply.load_ns
            record.first_run_ns = record.first_run_ns or reply.first_run_ns
            record.starts_ns.append((reply.load_ns, reply.first_run_ns))
            if member.footprint:
                record.footprint_bytes = 0

    def commit(self, taken: Sequence[tuple[Record, Block]]) -> None:
        """Keep the blocks of one session, all or nothing, before the next session begins."""
        for record, block in taken:
            record.blocks.append(block)

    def finish(self, records: Sequence[Record], stop: Stop) -> None:
        """Close records with enough visits; in memory this changes nothing."""

    def fail(self, member: TaskMember, error: DlbricksError) -> None:
        """Note why a member cannot be measured, and drop its blocks."""
        record = self.of(member)
        record.error = error
        record.blocks.clear()


class StoreRecorder(SampleRecorder):
    """Writes to the database: blocks at the end of each session, every result and every failure, each in one commit."""

    def __init__(self, store: Store, run: Run, costs: RunCosts) -> None:
        super().__init__(costs)
        self._store = store
        self._run = run
        alike = [other for other in store.runs() if (other.system, other.stack) == (run.system, run.stack)]
        self._earlier = [baseline for other in alike if (baseline := Baseline.of_run(other)) is not None]
        self._visits: list[Visit] = []
        self._kept: set[Identity] = set()

    @property
    def baseline(self) -> Baseline | None:
        """Duration of the probes on the quiet machine, by this run and earlier runs."""
        return Baseline.of(self._visits, self._earlier)

    @property
    def kept(self) -> str:
        """Text about the visits that are kept after an interrupt."""
        if not self._kept:
            return "the session that was running is lost, the first of its run"
        begun = sum(self.records[identity].result is None for identity in self._kept)
        taken = sum(self.records[identity].visits for identity in self._kept)
        return f"kept are {taken} visits in {len(self._kept)} measurements, {begun} of which are not finished"

    def resume(self, members: Collection[TaskMember]) -> int:
        """Continue unfinished measurements of these members by interrupted runs of this node.

        If the interrupted run began more than an hour ago, its samples are not combined with new ones. With enough
        samples they become a separate measurement of that run; the member is begun anew.

        Returns:
            The largest process number in use by members of any suite, so that a number means one moment; -1 if nothing
            is open.
        """
        members_by_identity = {member.identity: member for member in members}
        members_by_identity |= {member.part(name): member for member in members if member.in_parts for name in PARTS}
        conditions = {identity.conditions for identity in members_by_identity}
        system, stack, node = self._run.system, self._run.stack, self._run.node
        entries: list[LeftOpen] = []
        with self.costs.spend("store_s"):
            for condition in sorted(conditions, key=lambda condition: condition.cache):
                entries += self._store.left_open(system, stack, condition, node=node)
        for entry in entries:
            identity, stale = entry.identity, entry.protocol != PROTOCOL or self._stale(entry)
            if identity not in members_by_identity and not stale:
                continue  # a member of another suite: a run of that suite continues it
            record = self._resumed(identity)
            if stale:
                self._close(record, entry)
            if identity in members_by_identity:
                self.records[identity] = record
                record.footprint_bytes = members_by_identity[identity].footprint_bytes
        return max((entry.process for entry in entries if entry.process is not None), default=-1)

    def close(self) -> None:
        """Close what an interrupted run left open with the fewest usable visits, as if its time had ended."""
        entries = self._store.left_open(self._run.system, self._run.stack, node=self._run.node)
        fresh = [entry for entry in entries if entry.protocol == PROTOCOL and not self._stale(entry)]
        records = [self._resumed(entry.identity) for entry in fresh]
        self.finish([record for record in records if record.visits >= FEWEST_VISITS], Stop.BUDGET)

    def _stale(self, entry: LeftOpen) -> bool:
        age = datetime.fromisoformat(self._run.started) - datetime.fromisoformat(entry.started)
        return age > _SAME_MOMENT

    def _resumed(self, identity: Identity) -> Record:
        record = Record(identity)
        with self.costs.spend("store_s"):
            item = self._store.open_item(identity, node=self._run.node)
        if item is not None:
            record.measurement, record.unroll, record.blocks = item
            self._visits += [visit for block in record.blocks for visit in block.visits]
        return record

    def _close(self, record: Record, entry: LeftOpen) -> None:
        """Close an item of an interrupted run, and begin it anew; enough samples are kept as a measurement."""
        if record.measurement is None:
            return
        if record.visits >= MIN_SAMPLES:
            self._finish([record], Stop.BUDGET, run=entry.run, protocol=entry.protocol)
            record.measurement = None  # it is closed: keep its samples
        self._drop(record)
        record.result = None

    def commit(self, taken: Sequence[tuple[Record, Block]]) -> None:
        """Store the blocks of one session, all or nothing; an item is opened with its first block."""
        opened: list[OpenedMeasurement] = []
        blocks: list[tuple[str, Block]] = []
        for record, block in taken:
            if record.measurement is None:
                record.measurement = str(uuid.uuid4())
                opened.append(
                    OpenedMeasurement(record.measurement, self._run.id, record.identity, max(1, record.unroll))
                )
            blocks.append((record.measurement, block))
        try:
            with self.costs.spend("store_s"):
                self._store.add_session(opened, blocks)
        except BaseException:
            begun = {measurement.id for measurement in opened}
            for record, _ in taken:
                if record.measurement in begun:
                    record.measurement = None
            raise
        super().commit(taken)
        self._kept.update(record.identity for record, _ in taken)
        seen = {block.visits: block for _, block in taken}
        self._visits += [visit for visits in seen for visit in visits]

    def finish(self, records: Sequence[Record], stop: Stop) -> None:
        """Compute the statistics of records with enough visits, and close them."""
        self._finish(records, stop, run=self._run.id, protocol=PROTOCOL)

    def _finish(self, records: Sequence[Record], stop: Stop, *, run: str, protocol: int) -> None:
        baseline = self.baseline
        with self.costs.spend("statistics_s"):
            together = _together(records)
            for record in records:
                assert record.measurement is not None  # noqa: S101  # it has blocks
                unroll = max(1, record.unroll)
                quiet_ns, quiet = undisturbed(
                    record.blocks,
                    unroll,
                    baseline,
                    threads=record.identity.conditions.threads,
                    together=[together[_moment(block)] for block in record.blocks] if record.watched else None,
                )
                record.result = Measurement(
                    record.measurement,
                    run,
                    record.identity,
                    unroll,
                    summarise(record.blocks, unroll),
                    stop,
                    load_ns=record.load_ns,
                    first_run_ns=record.first_run_ns,
                    protocol=protocol,
                    footprint_bytes=record.footprint_bytes,
                    undisturbed_ns=quiet_ns if protocol == PROTOCOL else None,
                    quiet=quiet if protocol == PROTOCOL else None,
                )
        with self.costs.spend("store_s"):
            self._store.finish(*(record.result for record in records if record.result is not None))

    def _drop(self, record: Record) -> None:
        """Drop the open measurement of an item."""
        if record.measurement is not None:
            with self.costs.spend("store_s"):
                self._store.discard(record.measurement)
        record.measurement = None
        record.blocks.clear()

    def fail(self, member: TaskMember, error: DlbricksError) -> None:
        """Store why a member cannot be measured, and drop the samples of the member and its parts."""
        record = self.of(member)
        record.error = error
        record.failure = Failure(str(uuid.uuid4()), self._run.id, member.identity, _kind(error), str(error))
        with self.costs.spend("store_s"):
            self._store.add_failure(record.failure, instead_of=record.measurement)
        record.measurement = None
        record.blocks.clear()
        for part in self.parts(member):
            self._drop(part)


@contextmanager
def closed_for_now(store: Store, run: Run) -> Iterator[None]:
    """Close what a run left open, so that queries find it; undone at the end, so that the run can be continued.

    Args:
        store: The database, open for writing.
        run: The interrupted run.
    """
    with store.undone():
        StoreRecorder(store, run, RunCosts()).close()
        yield


_Moment: TypeAlias = tuple[int, int, int, tuple[Visit, ...]]


def _moment(block: Block) -> _Moment:
    """Return what blocks have in common that were visited together: hashing all visits of all bricks takes seconds."""
    return block.process, block.round, len(block.visits), block.visits[:1]


def _together(records: Sequence[Record]) -> Mapping[_Moment, Values]:
    """Return the time of all that was executed together in each visit, by the moment of a block."""
    sums: dict[_Moment, Values] = {}
    for record in (record for record in records if record.watched):
        for block, values in zip(record.blocks, block_values(record.blocks, max(1, record.unroll)), strict=True):
            moment = _moment(block)
            sums[moment] = sums[moment] + values if moment in sums else values
    return sums


def _kind(error: DlbricksError) -> str:
    """Return the stored kind of a failure."""
    kinds: tuple[tuple[type[DlbricksError], str], ...] = (
        (UnsupportedBrick, "unsupported"),
        (BackendError, "error"),
        (WorkerTimeout, "timeout"),
        (WorkerOutOfMemory, "memory"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), "crashed")
