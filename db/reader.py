"""What can be asked of a database: nothing here writes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Unpack

from sqlalchemy import ColumnElement, Connection, Table, func, select

from . import queries
from .faults import guarded
from .filter import Filter, FilterFields
from .handle import Handle
from .identity import Identity, stored_stacks, stored_systems
from .kernel_views import kernel_views
from .queries import Fastest, LeftOpen
from .rows import to_run
from .schema import (
    REVISIONS,
    BlockRow,
    FailureRow,
    KernelViewRow,
    MeasurementRow,
    RunRow,
    StackRow,
    SystemRow,
    table_of,
)
from .values import (
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

__all__ = ["Reader"]

ANY = Filter()
"""Whatever is measured as this version measures, without variants."""

_system, _stack, _run = map(table_of, (SystemRow, StackRow, RunRow))
_measurement, _block, _failure, _view = map(table_of, (MeasurementRow, BlockRow, FailureRow, KernelViewRow))


class Reader(Handle):
    """The questions of a ``Store``; each sees the database as it is at that moment."""

    def systems(self) -> dict[str, System]:
        """Every system by its key."""
        with self.reading() as connection:
            return stored_systems(connection)

    def stacks(self) -> dict[str, Stack]:
        """Every stack by its key."""
        with self.reading() as connection:
            return stored_stacks(connection)

    def runs(self) -> list[Run]:
        """Every run, oldest first."""
        with self.reading() as connection:
            rows = connection.execute(select(_run).order_by(_run.c.started, _run.c.id)).mappings()
            return [to_run(dict(row)) for row in rows]

    def open_item(  # noqa: PLR0917
        self,
        subject: Subject,
        key: str,
        system: str,
        stack: str,
        conditions: Conditions,
        variant: str = "",
        *,
        node: str = "",
    ) -> tuple[str, int, list[Block]] | None:
        """What an interrupted run left of an item on a node: (measurement id, unroll, blocks); None for nothing."""
        wanted = Filter(
            subject=subject, keys=(key,), system=system, stack=stack, conditions=conditions, variant=variant
        )
        with self.reading() as connection:
            items = queries.matching_items(connection, wanted)
            query = select(_measurement.c.id, _measurement.c.unroll).where(
                _measurement.c.item_id.in_(items), _measurement.c.finished_us.is_(None), _measurement.c.node == node
            )
            row = connection.execute(query).one_or_none()
            return None if row is None else (row[0], row[1], queries.blocks(connection, [row[0]]).get(row[0], []))

    def left_open(self, system: str, stack: str, conditions: Conditions, *, node: str = "") -> list[LeftOpen]:
        """Everything that interrupted runs of a node left under a combination, of whatever suite and variant."""
        wanted = Filter(system=system, stack=stack, conditions=conditions, variant=None, node=node)
        with self.reading() as connection:
            return queries.left_open(connection, wanted)

    def blocks(self, measurement_id: str) -> list[Block]:
        """Raw samples of a measurement, open or finished, in (process, round) order."""
        return self.blocks_of([measurement_id]).get(measurement_id, [])

    def blocks_of(self, measurements: Collection[str]) -> dict[str, list[Block]]:
        """Raw samples of measurements by their ids, each in (process, round) order; those without are absent."""
        with self.reading() as connection:
            return queries.blocks(connection, measurements)

    def measurements(
        self, wanted: Filter = ANY, /, *, latest: bool = True, **fields: Unpack[FilterFields]
    ) -> list[Measurement]:
        """Finished measurements that match, sorted by key; raw samples are not read (``blocks`` reads them).

        Args:
            wanted: Which.
            latest: Only the newest of each item.
            **fields: Fields of ``Filter`` in place of those of ``wanted``.
        """
        chosen = wanted.but(**fields)
        with self.reading() as connection:
            return queries.measurements(connection, chosen, latest=latest)

    def failures(self, wanted: Filter = ANY, /, **fields: Unpack[FilterFields]) -> list[Failure]:
        """The newest failure of each item that matches, unless it was measured after that."""
        chosen = wanted.but(**fields)
        with self.reading() as connection:
            return queries.failures(connection, chosen)

    def kernels(self, wanted: Filter = ANY, /, **fields: Unpack[FilterFields]) -> dict[Identity, KernelView]:
        """The kernel views that match, by what they are of."""
        chosen = wanted.but(**fields)
        with self.reading() as connection:
            return kernel_views(connection, chosen)

    def contenders(
        self,
        wanted: Filter = ANY,
        /,
        *,
        without: Collection[str] = (),
        parts: Collection[str] = (),
        reach: float = 1.0,
        most: int | None = None,
        **fields: Unpack[FilterFields],
    ) -> dict[str, list[Fastest]]:
        """Per key the lowest latency of what matches, and all of up to ``reach`` times that, the lowest first.

        Args:
            wanted: Which; ``variant=None`` looks over all variants.
            without: Keys of stacks that do not count.
            parts: Names of variants that do not.
            reach: How many times the lowest latency another one may be; at 1 only that is given.
            most: Of a key; None: all.
            **fields: Fields of ``Filter`` in place of those of ``wanted``.
        """
        chosen = wanted.but(**fields)
        with self.reading() as connection:
            return queries.contenders(connection, chosen, without=without, parts=parts, reach=reach, most=most)

    def combinations(
        self,
        subject: Subject | None = None,
        keys: Collection[str] | None = None,
        *,
        variant: str | None = None,
        among: Filter = ANY,
    ) -> list[Combination]:
        """Systems, stacks and conditions under which something is measured, with the number of items.

        Args:
            subject: Of what; None: of everything.
            keys: Of which; None: of all.
            variant: Name of the variant; None for all.
            among: Of these combinations only: counting takes as long as there are items.
        """
        wanted = among.but(subject=subject, keys=keys, variant=variant)
        with self.reading() as connection:
            return queries.combinations(connection, wanted)

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
            counts = _counts(connection)
            systems, stacks = stored_systems(connection), stored_stacks(connection)
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


def _counts(connection: Connection) -> dict[str, int]:
    """Numbers of everything stored."""
    finished = _measurement.c.finished_us.is_not(None)

    def count(table: Table, *where: ColumnElement[bool]) -> int:
        return int(connection.scalar(select(func.count()).select_from(table).where(*where)) or 0)

    def measured(subject: Subject) -> int:
        return len(queries.measured_keys(connection, Filter(subject, variant=None, protocol=None)))

    return {
        "systems": count(_system),
        "stacks": count(_stack),
        "runs": count(_run),
        "bricks": measured(Subject.BRICK),
        "models": measured(Subject.MODEL),
        "measurements": count(_measurement, finished),
        "open": count(_measurement, ~finished),
        "blocks": count(_block),
        "failures": count(_failure),
        "kernel_views": count(_view),
    }
