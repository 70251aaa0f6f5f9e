"""The store: every latency that was ever measured, in SQLite or any other SQLAlchemy database."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from ..errors import StoreError
from . import queries
from .faults import guarded
from .handle import Handle
from .identity import Identity, item_id, item_ids, put_stack_row, put_system_row
from .kernel_views import kernel_views, put_view, view_row
from .queries import Fastest, Filter, LeftOpen
from .rows import STATISTICS, block_row, run_row, stack_row, statistics_row, system_row, to_run
from .schema import (
    REVISIONS,
    BlockRow,
    FailureRow,
    MeasurementRow,
    RunRow,
    table_of,
)
from .values import (
    PROTOCOL,
    Block,
    Combination,
    Conditions,
    Failure,
    KernelView,
    Measurement,
    Run,
    Stack,
    Subject,
    System,
)

__all__ = ["Opened", "Store"]


_measurement, _block, _failure, _run = map(table_of, (MeasurementRow, BlockRow, FailureRow, RunRow))
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
class Opened:
    """A measurement that begins.

    Attributes:
        id: Its UUID.
        run: The run that begins it.
        identity: What is measured, and under what.
        unroll: Copies in the network.
    """

    id: str
    run: str
    identity: Identity
    unroll: int


class Store(Handle):
    """An open database; a context manager.

    Each writing call is one transaction that is committed when it returns; every call raises ``StoreError`` kinds only.
    A process may use one store from several threads, but not across a fork.

    Example:
        >>> with Store.open("sqlite://") as store:
        ...     store.combinations()
        []
    """

    # Systems, stacks, runs ----------------------------------------------------------------------------------------

    def put_system(self, system: System) -> str:
        """Store a system, once; return its key."""
        with self.writing() as connection:
            put_system_row(connection, system_row(system))
        return system.key

    def put_stack(self, stack: Stack) -> str:
        """Store a stack, once; return its key."""
        with self.writing() as connection:
            put_stack_row(connection, stack_row(stack))
        return stack.key

    def systems(self) -> dict[str, System]:
        """Every system by its key."""
        with self.reading() as connection:
            return queries.systems(connection)

    def stacks(self) -> dict[str, Stack]:
        """Every stack by its key."""
        with self.reading() as connection:
            return queries.stacks(connection)

    def begin_run(self, run: Run) -> None:
        """Store a run before its first measurement; its system and stack must be stored."""
        with self.writing() as connection:
            connection.execute(insert(_run), run_row(run))

    def end_run(self, id: str, *, after: Mapping[str, object], finished: str) -> None:  # noqa: A002  (as in Run)
        """Note the state after a run and when it ended."""
        with self.writing() as connection:
            changed = connection.execute(
                update(_run).where(_run.c.id == id).values(after=dict(after), finished=finished)
            )
            if changed.rowcount != 1:
                raise StoreError(f"database {self.place} holds no run {id}")

    def runs(self) -> list[Run]:
        """Every run, oldest first."""
        with self.reading() as connection:
            rows = connection.execute(select(_run).order_by(_run.c.started, _run.c.id)).mappings()
            return [to_run(dict(row)) for row in rows]

    # Measuring ----------------------------------------------------------------------------------------------------

    def begin(  # noqa: PLR0917  (the order of Measurement; callers name them)
        self,
        measurement_id: str,
        run: str,
        subject: Subject,
        key: str,
        system: str,
        stack: str,
        conditions: Conditions,
        unroll: int,
        variant: str = "",
    ) -> None:
        """Open an item, so that its blocks can be added.

        Raises:
            StoreError: Where the item is open already (resume it with ``open_item``, or ``discard`` it), or run,
                system or stack are not stored.
        """
        with self.writing() as connection:
            item = item_id(connection, Identity(subject, key, system, stack, conditions, variant))
            row = {"id": measurement_id, "item_id": item, "run_id": run, "unroll": unroll, "protocol": PROTOCOL}
            try:
                connection.execute(_BEGIN, row)
            except IntegrityError as error:
                raise StoreError(
                    f"{subject} {key[:12]} cannot be begun in database {self.place}: it is open already, or run {run} "
                    "is not stored",
                    remedy="resume what is open",
                ) from error

    def open_item(  # noqa: PLR0917
        self, subject: Subject, key: str, system: str, stack: str, conditions: Conditions, variant: str = ""
    ) -> tuple[str, int, list[Block]] | None:
        """What an interrupted run left of an item: (measurement id, unroll, blocks); None where nothing is open."""
        wanted = Filter(
            subject=subject, keys=(key,), system=system, stack=stack, conditions=conditions, variant=variant
        )
        with self.reading() as connection:
            items = queries.matching_items(connection, wanted)
            query = select(_measurement.c.id, _measurement.c.unroll).where(_measurement.c.item_id.in_(items), _is_open)
            row = connection.execute(query).one_or_none()
            return None if row is None else (row[0], row[1], queries.blocks(connection, [row[0]]).get(row[0], []))

    def left_open(self, system: str, stack: str, conditions: Conditions) -> list[LeftOpen]:
        """Everything that interrupted runs left under a combination, of whatever suite and variant."""
        wanted = Filter(system=system, stack=stack, conditions=conditions, variant=None)
        with self.reading() as connection:
            return queries.left_open(connection, wanted)

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

    def add_block(self, measurement_id: str, block: Block) -> None:
        """Commit the samples of one process and round.

        Raises:
            StoreError: Where this block is stored already (it is never doubled), or the item was not begun.
        """
        with self.writing() as connection:
            try:
                connection.execute(_ADD_BLOCK, block_row(measurement_id, block))
            except IntegrityError as error:
                raise StoreError(
                    f"block (process {block.process}, round {block.round}) of measurement {measurement_id} is stored "
                    f"already in database {self.place}, or the measurement was never begun"
                ) from error

    def add_session(self, opened: Iterable[Opened], blocks: Iterable[tuple[str, Block]]) -> None:
        """Open items and commit what one session took of them and others, all or nothing.

        Args:
            opened: Items that are not open yet.
            blocks: Measurement id and block, of items that are open.

        Raises:
            StoreError: An item is open already, a block is stored already, or a measurement was not begun.
        """
        with self.writing() as connection:
            new = list(opened)
            items = item_ids(connection, [one.identity for one in new])
            begun = [
                {"id": one.id, "item_id": items[one.identity], "run_id": one.run, "unroll": one.unroll,
                 "protocol": PROTOCOL}
                for one in new
            ]  # fmt: skip
            rows = [block_row(measurement, block) for measurement, block in blocks]
            try:
                for statement, values in ((_BEGIN, begun), (_ADD_BLOCK, rows)):
                    if values:
                        connection.execute(statement, values)
            except IntegrityError as error:
                raise StoreError(
                    f"a session cannot be stored in database {self.place}: an item of it is open already, or a block "
                    "is stored already",
                    remedy="resume what is open",
                ) from error

    def blocks(self, measurement_id: str) -> list[Block]:
        """Raw samples of a measurement, open or finished, in (process, round) order."""
        return self.blocks_of([measurement_id]).get(measurement_id, [])

    def blocks_of(self, measurements: Collection[str]) -> dict[str, list[Block]]:
        """Raw samples of measurements by their ids, each in (process, round) order; those without are absent."""
        with self.reading() as connection:
            return queries.blocks(connection, measurements)

    def finish(self, *measurements: Measurement) -> None:
        """Fill in the statistics of open items and close them, in one commit."""
        with self.writing() as connection:
            items = item_ids(connection, [Identity.of(measurement) for measurement in measurements])
            for measurement in measurements:
                known = {
                    "known_id": measurement.id,
                    "known_item": items[Identity.of(measurement)],
                    "finished_us": _now_us(),
                }
                changed = connection.execute(_FINISH, statistics_row(measurement) | known)
                if changed.rowcount != 1:
                    raise StoreError(
                        f"database {self.place} holds no open measurement {measurement.id} of "
                        f"{measurement.subject} {measurement.key[:12]}",
                        remedy="begin it first",
                    )

    def add(self, measurements: Iterable[tuple[Measurement, Sequence[Block]]]) -> int:
        """Store finished measurements with their blocks, in one commit; return how many."""
        added = list(measurements)
        with self.writing() as connection:
            items = item_ids(connection, [Identity.of(measurement) for measurement, _ in added])
            rows = [
                statistics_row(measurement)
                | {"id": measurement.id, "item_id": items[Identity.of(measurement)], "finished_us": _now_us()}
                for measurement, _ in added
            ]
            blocks = [block_row(measurement.id, block) for measurement, taken in added for block in taken]
            for table, values in ((_measurement, rows), (_block, blocks)):
                if values:
                    connection.execute(insert(table), values)
        return len(added)

    def add_failure(self, failure: Failure, *, instead_of: str | None = None) -> None:
        """Store why an item could not be measured; an older measurement of it stays.

        Args:
            failure: What to store.
            instead_of: UUID of its open measurement, which is dropped in the same commit: a kill in between would
                leave neither samples nor failure.
        """
        with self.writing() as connection:
            if instead_of is not None:
                self._discard(connection, instead_of)
            row = {
                "id": failure.id,
                "item_id": item_id(connection, Identity.of(failure)),
                "run_id": failure.run,
                "failed_us": _now_us(),
                "kind": failure.kind,
                "reason": failure.reason,
            }
            connection.execute(insert(_failure), row)

    def put_kernels(self, identity: Identity, view: KernelView) -> None:
        """Store which kernels ran for an item, in place of an earlier view of it; its stack must be stored."""
        with self.writing() as connection:
            put_view(connection, identity, view_row(view) | {"taken_us": _now_us()})

    def clear_failures(
        self,
        *,
        subject: Subject | None = None,
        keys: Collection[str] | None = None,
        system: str | None = None,
        stack: str | None = None,
        conditions: Conditions | None = None,
        variant: str | None = "",
    ) -> int:
        """Forget failures, before their items are tried again; return how many."""
        wanted = Filter(subject, keys, system, stack, conditions, variant=variant)
        with self.writing() as connection:
            items = queries.matching_items(connection, wanted)
            return sum(
                connection.execute(delete(_failure).where(_failure.c.item_id == item)).rowcount for item in items
            )

    # Asking -------------------------------------------------------------------------------------------------------

    def measurements(
        self,
        *,
        subject: Subject | None = None,
        keys: Collection[str] | None = None,
        system: str | None = None,
        stack: str | None = None,
        conditions: Conditions | None = None,
        threads: int | None = None,
        cache: str | None = None,
        dtype: str | None = None,
        backend: str | None = None,
        device: str | None = None,
        variant: str | None = "",
        latest: bool = True,
        protocol: int | None = PROTOCOL,
    ) -> list[Measurement]:
        """Finished measurements that match, sorted by key; raw samples are not read (``blocks`` reads them).

        Args:
            subject: Brick, model or reference.
            keys: Keys of bricks or models; any number.
            system: Key of the system.
            stack: Key of the stack.
            conditions: Threads, cache state and precision together.
            threads: Threads.
            cache: Cache state.
            dtype: Precision.
            backend: Name of the backend.
            device: Its device.
            variant: Name of the variant; None for all.
            latest: Only the newest of each item.
            protocol: How they were taken; None for all, those of earlier versions included.
        """
        wanted = Filter(
            subject, keys, system, stack, conditions, threads, cache, dtype, backend, device, variant, protocol
        )
        with self.reading() as connection:
            return queries.measurements(connection, wanted, latest=latest)

    def kernels(self, wanted: Filter) -> dict[Identity, KernelView]:
        """The kernel views that match, by what they are of."""
        with self.reading() as connection:
            return kernel_views(connection, wanted)

    def fastest(
        self,
        subject: Subject,
        keys: Collection[str],
        *,
        system: str,
        device: str,
        conditions: Conditions,
        without: Collection[str] = (),
    ) -> dict[str, Fastest]:
        """Per key the lowest latency on a system and device, over all variants and all stacks but ``without``."""
        wanted = Filter(subject, keys, system, conditions=conditions, device=device, variant=None)
        with self.reading() as connection:
            return queries.fastest(connection, wanted, without=without)

    def failures(
        self,
        *,
        subject: Subject | None = None,
        keys: Collection[str] | None = None,
        system: str | None = None,
        stack: str | None = None,
        conditions: Conditions | None = None,
        threads: int | None = None,
        cache: str | None = None,
        dtype: str | None = None,
        backend: str | None = None,
        device: str | None = None,
        variant: str | None = "",
    ) -> list[Failure]:
        """The newest failure of each item that matches, unless it was measured after that."""
        wanted = Filter(subject, keys, system, stack, conditions, threads, cache, dtype, backend, device, variant)
        with self.reading() as connection:
            return queries.failures(connection, wanted)

    def combinations(
        self, subject: Subject | None = None, keys: Collection[str] | None = None, *, variant: str | None = None
    ) -> list[Combination]:
        """Systems, stacks and conditions under which something is measured, with the number of items."""
        with self.reading() as connection:
            return queries.combinations(connection, Filter(subject=subject, keys=keys, variant=variant))

    def measured_keys(
        self, system: str, stack: str, conditions: Conditions, subject: Subject, variant: str = ""
    ) -> set[str]:
        """Keys that need not be measured again under this combination."""
        wanted = Filter(subject=subject, system=system, stack=stack, conditions=conditions, variant=variant)
        with self.reading() as connection:
            return queries.measured_keys(connection, wanted)

    def outdated_keys(self, keys: Collection[str]) -> set[str]:
        """Of some bricks, those that an earlier version measured, wherever that was."""
        with self.reading() as connection:
            return queries.outdated_keys(connection, Filter(subject=Subject.BRICK, keys=keys))

    def info(self) -> dict[str, Any]:
        """Where the database is, its schema, how much it holds, and its systems and stacks."""
        with self.reading() as connection:
            counts = queries.info(connection)
            systems, stacks = queries.systems(connection), queries.stacks(connection)
        path = self.place.path
        with guarded(str(self.place)):
            size = None if path is None else path.stat().st_size
        return {
            "database": str(self.place),
            "revision": REVISIONS[-1],
            "bytes": size,
            "counts": counts,
            "systems": systems,
            "stacks": stacks,
        }


def _now_us() -> int:
    return time.time_ns() // 1000
