"""What can be asked of a database: nothing here writes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import select

from . import contents, queries
from .faults import guarded
from .handle import Handle
from .identity import Identity
from .kernel_views import kernel_views
from .queries import Fastest, Filter, LeftOpen
from .rows import to_run
from .schema import REVISIONS, MeasurementRow, RunRow, table_of
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

__all__ = ["Reader"]

_measurement, _run = map(table_of, (MeasurementRow, RunRow))


class Reader(Handle):
    """The questions of a ``Store``; each sees the database as it is at that moment."""

    def systems(self) -> dict[str, System]:
        """Every system by its key."""
        with self.reading() as connection:
            return contents.systems(connection)

    def stacks(self) -> dict[str, Stack]:
        """Every stack by its key."""
        with self.reading() as connection:
            return contents.stacks(connection)

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
        since_us: int | None = None,
        node: str | None = None,
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
            since_us: Finished at that time or later, in microseconds since 1970, UTC.
            node: Taken on the node of this name; empty: on one without a name; None for all.
        """
        wanted = Filter(
            subject,
            keys,
            system,
            stack,
            conditions,
            threads,
            cache,
            dtype,
            backend,
            device,
            variant,
            protocol,
            since_us,
            node,
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

    def contenders(
        self,
        subject: Subject,
        keys: Collection[str],
        *,
        system: str,
        device: str,
        conditions: Conditions,
        without: Collection[str] = (),
        parts: Collection[str] = (),
        reach: float = 1.0,
    ) -> dict[str, list[Fastest]]:
        """The same, and all of up to ``reach`` times that; variants in ``parts`` do not count."""
        wanted = Filter(subject, keys, system, conditions=conditions, device=device, variant=None)
        with self.reading() as connection:
            return queries.contenders(connection, wanted, without=without, parts=parts, reach=reach)

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
        since_us: int | None = None,
        node: str | None = None,
    ) -> list[Failure]:
        """The newest failure of each item that matches, unless it was measured after that."""
        wanted = Filter(
            subject,
            keys,
            system,
            stack,
            conditions,
            threads,
            cache,
            dtype,
            backend,
            device,
            variant,
            since_us=since_us,
            node=node,
        )
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
            counts = contents.counts(connection)
            systems, stacks = contents.systems(connection), contents.stacks(connection)
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
