"""The store: all measured latencies, in SQLite or any other SQLAlchemy database."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from ..errors import StoreError
from .faults import guarded
from .identity import insert_new, item_ids, put_latest
from .queries import Reader
from .rows import STATISTICS, block_row, keyed_row, proofs_row, run_row, statistics_row, view_row
from .schema import BLOCK, FAILURE, KERNEL_VIEW, MEASUREMENT, PROOF, RUN, STACK, SYSTEM
from .values import PROTOCOL, Block, Failure, Identity, KernelView, Measurement, Proofs, Run, Stack, System

_measurement, _block, _failure, _run = MEASUREMENT, BLOCK, FAILURE, RUN
_is_open = _measurement.c.finished_us.is_(None)

# Statements of the measuring loop, built once: building them costs more than running them.
_BEGIN = insert(_measurement)
_ADD_BLOCK = insert(_block)
_FINISH = (
    update(_measurement)
    .where(_measurement.c.id == bindparam("known_id"), _measurement.c.item_id == bindparam("known_item"), _is_open)
    .values({column.name: bindparam(column.name) for column in (*STATISTICS[1:], _measurement.c.finished_us)})
)


@dataclass(frozen=True, slots=True)
class OpenedMeasurement:
    """A measurement that begins.

    Attributes:
        id: Its UUID.
        run: The run that begins it.
        identity: The measured item and its conditions.
        unroll: Copies in the network.
    """

    id: str
    run: str
    identity: Identity
    unroll: int


class Store(Reader):
    """An open database; a context manager.

    Each writing call is one transaction, committed when the call returns. Every call raises ``StoreError`` kinds only.
    A process may use one store from several threads, but not across a fork.

    Example:
        >>> with Store.open("sqlite://") as store:
        ...     store.combinations()
        []
    """

    def put_system(self, system: System) -> str:
        """Store a system, once; return its key."""
        with self.writing() as connection:
            insert_new(connection, SYSTEM, [keyed_row(system)])
        return system.key

    def put_stack(self, stack: Stack) -> str:
        """Store a stack, once; return its key."""
        with self.writing() as connection:
            insert_new(connection, STACK, [keyed_row(stack)])
        return stack.key

    def begin_run(self, run: Run) -> None:
        """Store a run before its first measurement; its system and stack must be stored."""
        with self.writing() as connection:
            connection.execute(insert(_run), run_row(run))

    def end_run(self, id: str, *, after: Mapping[str, object], finished: str) -> None:  # noqa: A002  (as in Run)
        """Store the state after a run and its end time."""
        with self.writing() as connection:
            changed = connection.execute(
                update(_run).where(_run.c.id == id).values(after=dict(after), finished=finished)
            )
            if changed.rowcount != 1:
                raise StoreError(f"database {self.place} holds no run {id}")

    def discard(self, measurement_id: str) -> None:
        """Drop an open item and its blocks; a finished measurement cannot be dropped."""
        with self.writing() as connection:
            self._discard(connection, measurement_id)

    def _discard(self, connection: Connection, measurement_id: str) -> None:
        query = select(_measurement.c.id).where(_measurement.c.id == measurement_id, _is_open)
        if connection.scalar(query) is None:
            raise StoreError(f"database {self.place} holds no open measurement {measurement_id}")
        connection.execute(delete(_block).where(_block.c.measurement_id == measurement_id))
        connection.execute(delete(_measurement).where(_measurement.c.id == measurement_id))

    def add_session(self, opened: Iterable[OpenedMeasurement], blocks: Iterable[tuple[str, Block]]) -> None:
        """Open items and commit the blocks of one session, all or nothing.

        Args:
            opened: Items that are not open yet.
            blocks: Measurement id and block, of open items.

        Raises:
            StoreError: An item is open already (resume it with ``open_item``, or ``discard`` it), a block is stored
                already (it is never doubled), a measurement was not begun, or run, system or stack are not stored.
        """
        new, taken = list(opened), list(blocks)
        with guarded(str(self.place)):
            try:
                with self._writer.begin() as connection:
                    items = item_ids(connection, [item.identity for item in new])
                    nodes = _nodes(connection, {item.run for item in new})
                    begun = [
                        {"id": item.id, "item_id": items[item.identity], "run_id": item.run, "unroll": item.unroll,
                         "protocol": PROTOCOL, "node": nodes.get(item.run, "")}
                        for item in new
                    ]  # fmt: skip
                    rows = [block_row(measurement, block) for measurement, block in taken]
                    for statement, values in ((_BEGIN, begun), (_ADD_BLOCK, rows)):
                        if values:
                            connection.execute(statement, values)
            except IntegrityError as error:
                reason = self._not_begun(new) or self._not_added(new, taken) or str(error.orig)
                raise StoreError(
                    f"a session cannot be stored in database {self.place}: {reason}", remedy="resume what is open"
                ) from error

    def _not_begun(self, new: Sequence[OpenedMeasurement]) -> str:
        """Return which item of a refused session cannot be begun, and why; empty if all can."""
        nodes, seen = {run.id: run.node for run in self.runs()}, set()
        for item in new:
            what = item.identity
            named = f"{what.subject} {what.key[:12]}"
            held = self.open_item(what, node=nodes.get(item.run, ""))
            if held is not None:
                return f"{named} is open already as measurement {held[0]}"
            if what in seen:
                return f"{named} is begun twice"
            if item.run not in nodes:
                return f"run {item.run} of {named} is not stored"
            seen.add(what)
        return ""

    def _not_added(self, new: Sequence[OpenedMeasurement], taken: Sequence[tuple[str, Block]]) -> str:
        """Return which block of a refused session cannot be added, and why; empty if all can."""
        begun_ids, seen = {item.id for item in new}, set()
        stored = self.blocks_of({measurement for measurement, _ in taken})
        for measurement, block in taken:
            block_position = (measurement, block.process, block.round)
            named = f"process {block.process}, round {block.round} of measurement {measurement}"
            if any((old.process, old.round) == block_position[1:] for old in stored.get(measurement, ())):
                return f"{named} is stored already"
            if block_position in seen:
                return f"{named} is given twice"
            if measurement not in begun_ids:
                query = select(_measurement.c.id).where(_measurement.c.id == measurement)
                with self.reading() as connection:
                    if connection.scalar(query) is None:
                        return f"{named}, which was never begun"
                begun_ids.add(measurement)
            seen.add(block_position)
        return ""

    def finish(self, *measurements: Measurement) -> None:
        """Fill in the statistics of open items and close them, in one commit."""
        with self.writing() as connection:
            items = item_ids(connection, [measurement.identity for measurement in measurements])
            for measurement in measurements:
                parameters = {
                    "known_id": measurement.id,
                    "known_item": items[measurement.identity],
                    "finished_us": _now_us(),
                }
                changed = connection.execute(_FINISH, statistics_row(measurement) | parameters)
                if changed.rowcount != 1:
                    raise StoreError(
                        f"database {self.place} holds no open measurement {measurement.id} of "
                        f"{measurement.subject} {measurement.key[:12]}",
                        remedy="begin it first",
                    )

    def add(self, measurements: Iterable[tuple[Measurement, Sequence[Block]]]) -> int:
        """Store finished measurements with their blocks, in one commit; return how many were new."""
        added = list(measurements)
        with self.writing() as connection:
            items = item_ids(connection, [measurement.identity for measurement, _ in added])
            nodes = _nodes(connection, {measurement.run for measurement, _ in added})
            rows = [
                statistics_row(measurement)
                | {"id": measurement.id, "item_id": items[measurement.identity], "finished_us": _now_us()}
                | {"node": nodes.get(measurement.run, "")}
                for measurement, _ in added
            ]
            blocks = [block_row(measurement.id, block) for measurement, taken in added for block in taken]
            new = insert_new(connection, _measurement, rows)
            insert_new(connection, _block, blocks)
        return new

    def add_failure(self, failure: Failure, *, instead_of: str | None = None) -> None:
        """Store why an item could not be measured; an older measurement of it stays.

        Args:
            failure: The failure to store.
            instead_of: UUID of its open measurement, which is dropped in the same commit: a kill in between would lose
                both samples and failure.
        """
        with self.writing() as connection:
            if instead_of is not None:
                self._discard(connection, instead_of)
            row = {
                "id": failure.id,
                "item_id": item_ids(connection, [failure.identity])[failure.identity],
                "run_id": failure.run,
                "failed_us": _now_us(),
                "kind": failure.kind,
                "reason": failure.reason,
            }
            insert_new(connection, _failure, [row])

    def put_kernels(self, identity: Identity, view: KernelView) -> None:
        """Store which kernels ran for an item, in place of an earlier view of it; its stack must be stored."""
        with self.writing() as connection:
            put_latest(connection, KERNEL_VIEW, identity, view_row(view) | {"taken_us": _now_us()})

    def put_proofs(self, identity: Identity, proofs: Proofs) -> None:
        """Store the results of trials for a model, in place of earlier ones; its system and stack must be stored."""
        with self.writing() as connection:
            put_latest(connection, PROOF, identity, proofs_row(proofs) | {"taken_us": _now_us()})


def _nodes(connection: Connection, runs: Collection[str]) -> dict[str, str]:
    """Return the node of each stored run."""
    rows = connection.execute(select(_run.c.id, _run.c.node).where(_run.c.id.in_(runs)))
    return {run: node for run, node in rows}  # noqa: C416  (dict() takes no rows that mypy knows as pairs)


def _now_us() -> int:
    return time.time_ns() // 1000
