"""Read-only queries of a database, as Core statements that read the minimum."""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict, Unpack

import sqlalchemy as sql

from ..errors import ForeignDatabase, StoreError
from . import schema, values
from .faults import guarded
from .identity import CHUNK, chunks, stored_stacks, stored_systems
from .place import BUSY_TIMEOUT_S, WRITING, DatabasePlace, engine
from .revision import NEW, check, has_proofs, identify, make_tables, use_wal
from .rows import STATISTICS, checked, to_block, to_measurement, to_proofs, to_run, to_view

# Selection of measurements, failures or kernel views.


class FilterFields(TypedDict, total=False):
    """The fields of ``Filter`` as keywords."""

    subject: values.Subject | None
    keys: Collection[str] | None
    system: str | None
    stack: str | None
    conditions: values.Conditions | None
    threads: int | None
    cache: str | frozenset[str] | None
    dtype: str | None
    backend: str | None
    device: str | None
    variant: str | frozenset[str] | None
    protocol: int | None
    since_us: int | None
    node: str | None


@dataclass(frozen=True, slots=True)
class Filter:
    """A selection; None leaves a property open.

    Attributes:
        subject: Brick, model or reference.
        keys: Keys of bricks or models.
        system: Key of the system.
        stack: Key of the stack.
        conditions: Threads, cache and dtype together.
        threads: Threads.
        cache: Cache state, or several.
        dtype: Precision.
        backend: Name of the backend.
        device: Its device.
        variant: Name of the variant, or several; None for all.
        protocol: Protocol of the measurements; None for all.
        since_us: Earliest time of measurement, failure or profile, in microseconds since 1970, UTC.
        node: Name of the measuring node; empty for a node without a name. Kernel views are not assigned to nodes.
    """

    subject: values.Subject | None = None
    keys: Collection[str] | None = None
    system: str | None = None
    stack: str | None = None
    conditions: values.Conditions | None = None
    threads: int | None = None
    cache: str | frozenset[str] | None = None
    dtype: str | None = None
    backend: str | None = None
    device: str | None = None
    variant: str | frozenset[str] | None = ""
    protocol: int | None = values.PROTOCOL
    since_us: int | None = None
    node: str | None = None

    @classmethod
    def of(cls, identity: values.Identity, keys: Collection[str] | None = None) -> Self:
        """Return the filter for one identity, or for identities that differ from it in their keys only."""
        keys = (identity.key,) if keys is None else keys
        where = (identity.system, identity.stack, identity.conditions)
        return cls(identity.subject, keys, *where, variant=identity.variant)

    def but(self, **fields: Unpack[FilterFields]) -> Self:
        """Return a copy with other values of some fields."""
        return replace(self, **fields)


_stack = schema.STACK
_combination = schema.COMBINATION
_item = schema.ITEM
_measurement = schema.MEASUREMENT
_block = schema.BLOCK
_run = schema.RUN
_failure, _view, _system = (
    schema.FAILURE,
    schema.KERNEL_VIEW,
    schema.SYSTEM,
)
_IDENTITY = (_item.c.combination_id, _item.c.subject, _item.c.key, _item.c.variant)
"""The first columns of every query for identities."""


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """An item that an interrupted run left open.

    Attributes:
        identity: Its identity.
        run: The run that opened it.
        started: Start of that run.
        process: Its largest process number; None without blocks.
        protocol: Protocol of its samples.
    """

    identity: values.Identity
    run: str
    started: str
    process: int | None
    protocol: int = values.PROTOCOL


def _places(connection: sql.Connection, criteria: Filter) -> dict[int, values.Circumstances]:
    """Return the matching combinations; these are few, for any number of measurements."""
    c = _combination.c
    query = sql.select(c.id, c.system, c.stack, c.threads, c.cache, c.dtype)
    conditions = criteria.conditions
    equal: list[tuple[sql.ColumnElement[Any], object]] = [
        (c.system, criteria.system), (c.stack, criteria.stack), (c.threads, criteria.threads),
        (c.cache, criteria.cache), (c.dtype, criteria.dtype),
    ]  # fmt: skip
    if conditions is not None:
        equal += [(c.threads, conditions.threads), (c.cache, conditions.cache), (c.dtype, conditions.dtype)]
    if criteria.backend is not None or criteria.device is not None:
        query = query.join(_stack, _stack.c.key == c.stack)
        equal += [(_stack.c.backend, criteria.backend), (_stack.c.device, criteria.device)]
    query = query.where(*(_is(column, value) for column, value in equal if value is not None)).order_by(c.id)
    rows = [checked(_combination, row) for row in connection.execute(query).mappings()]
    return {
        row["id"]: values.Circumstances(
            row["system"], row["stack"], values.Conditions(row["threads"], row["cache"], row["dtype"])
        )
        for row in rows
    }


def _is(column: sql.ColumnElement[Any], value: object) -> sql.ColumnElement[bool]:
    """Return the condition that a column has a value, or one of several."""
    return column.in_(value) if isinstance(value, frozenset) else column == value


def _identity(places: Mapping[int, values.Circumstances], row: Sequence[Any]) -> values.Identity:
    """Return the identity in a row that begins with ``_IDENTITY``."""
    combination, subject, key, variant, *_ = row
    return places[combination].identity(values.Subject(subject), key, variant=variant)


def _chunks(connection: sql.Connection, keys: Collection[str] | None) -> Iterator[list[str] | None]:
    if keys is None:
        yield None
    else:
        yield from chunks(connection, keys)


def _select_items(
    query: sql.Select[Any], criteria: Filter, places: Collection[int], chunk: list[str] | None
) -> sql.Select[Any]:
    query = query.where(_item.c.combination_id.in_(places))
    if criteria.subject is None:
        # Every subject by name, so that the index (combination, subject, key, variant) is used.
        query = query.where(_item.c.subject.in_([str(subject) for subject in values.Subject]))
    else:
        query = query.where(_item.c.subject == str(criteria.subject))
    if chunk is not None:
        query = query.where(_item.c.key.in_(chunk))
    if criteria.variant is not None:
        query = query.where(_is(_item.c.variant, criteria.variant))
    return query


def _matching_items(connection: sql.Connection, criteria: Filter) -> list[int]:
    """Return local keys of the matching items."""
    places = _places(connection, criteria)
    return [
        id_
        for chunk in _chunks(connection, criteria.keys)
        for id_ in connection.scalars(_select_items(sql.select(_item.c.id), criteria, list(places), chunk))
    ]


def _finished(table: sql.FromClause, criteria: Filter) -> sql.ColumnElement[bool]:
    """Return the condition that a measurement is finished and matches protocol, time and node."""
    c = table.c
    return sql.and_(
        c.finished_us.is_not(None) if criteria.since_us is None else c.finished_us >= criteria.since_us,
        *([] if criteria.protocol is None else [c.protocol == criteria.protocol]),
        *([] if criteria.node is None else [c.node == criteria.node]),
    )


def _taken(
    connection: sql.Connection, criteria: Filter, *, latest: bool
) -> tuple[sql.FromClause, sql.ColumnElement[bool]]:
    """Return the table to join with an item for its measurements, and the join condition.

    The newest measurement is the first of its item in the index ``ix_measurement_latest``. PostgreSQL uses the index
    only for ``LATERAL``; if asked for a row by that id, it reads the whole table.

    Args:
        connection: The database.
        criteria: The filter.
        latest: Return only the newest measurement.
    """
    if not latest:
        return _measurement, sql.and_(_measurement.c.item_id == _item.c.id, _finished(_measurement, criteria))
    newer = _measurement.alias("newer")
    newest = sql.select(newer).where(newer.c.item_id == _item.c.id, _finished(newer, criteria))
    newest = newest.order_by(newer.c.finished_us.desc(), newer.c.id.desc()).limit(1)
    if connection.dialect.name == "postgresql":
        return newest.lateral("latest"), sql.true()
    first = newest.with_only_columns(newer.c.id).scalar_subquery()
    return _measurement, sql.and_(_measurement.c.item_id == _item.c.id, _measurement.c.id == first)


def _by(run: sql.ColumnElement[str], criteria: Filter) -> list[sql.ColumnElement[bool]]:
    """Return the condition that a run is of the filter's node; empty without a node."""
    return [] if criteria.node is None else [run.in_(sql.select(_run.c.id).where(_run.c.node == criteria.node))]


def _measured(condition: sql.ColumnElement[bool]) -> sql.ColumnElement[bool]:
    """Return the condition that an item has a measurement with some property."""
    return sql.select(_measurement.c.id).where(_measurement.c.item_id == _item.c.id, condition).exists()


def _measured_keys(connection: sql.Connection, criteria: Filter) -> set[str]:
    query = sql.select(_item.c.key).distinct().where(_measured(_finished(_measurement, criteria)))
    places = list(_places(connection, criteria))
    return {
        key
        for chunk in _chunks(connection, criteria.keys)
        for key in connection.scalars(_select_items(query, criteria, places, chunk))
    }


def _blocks(connection: sql.Connection, measurements: Collection[str]) -> dict[str, list[values.Block]]:
    c = _block.c
    query = sql.select(c.measurement_id, c.process, c.round, c.warmups, c.samples, c.data, c.visits)
    query = query.order_by(c.measurement_id, c.process, c.round)
    blocks_by_measurement: dict[str, list[values.Block]] = {}
    for chunk in chunks(connection, measurements):
        for id_, *row in connection.execute(query.where(c.measurement_id.in_(chunk))):
            blocks_by_measurement.setdefault(id_, []).append(to_block(row))
    return blocks_by_measurement


class StoreInfo(TypedDict):
    """Path, schema and contents of a database; ``bytes`` is None without a file."""

    database: str
    revision: str
    bytes: int | None
    counts: dict[str, int]
    systems: dict[str, values.System]
    stacks: dict[str, values.Stack]


ANY = Filter()
"""Filter for all measurements of this version's protocol, without variants."""


class Reader:
    """An open database for queries; a context manager.

    Each query sees the database at that moment.
    """

    def __init__(self, database: DatabasePlace, engine: sql.Engine) -> None:
        self.place = database
        self._engine = engine
        self._writer = engine.execution_options(**{WRITING: True})
        snapshot = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
        self._reader = engine.execution_options(**snapshot)  # in SQLite every transaction is one
        self._undone: AbstractContextManager[sql.Connection] | None = None

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        *,
        create: bool = True,
        read_only: bool = False,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> Self:
        """Open a database, and create it if necessary.

        Args:
            url: A path (an SQLite file), or any SQLAlchemy URL.
            create: Create a missing database; otherwise its absence is an error.
            read_only: Open for reading; works in a read-only folder. Implies ``create=False``.
            busy_timeout_s: Maximum wait for another process before ``DatabaseLocked``.

        Raises:
            ForeignDatabase: The database was not made by dlbricks.
            NewerDatabase: Its schema is of a later version.
            OlderDatabase: Its schema is of a version before the first release.
            DatabaseReadOnly: It cannot be written, and ``read_only`` is False.
            DatabaseLocked: Another process holds it.
            StoreError: Any other problem: missing, not readable, no driver.
        """
        database = DatabasePlace.of(url)
        create = create and not read_only
        if not database.inspect() and not create:
            raise StoreError(
                f"there is no database at {database}", remedy="measure something first (`dlbricks run`), or give --db"
            )
        sql_engine = engine(database, read_only=read_only, busy_timeout_s=busy_timeout_s)
        opened = cls(database, sql_engine)
        try:
            with guarded(str(database)):
                opened._prepare(create=create, read_only=read_only, busy_timeout_s=busy_timeout_s)
        except BaseException:
            opened.close()
            raise
        return opened

    def _prepare(self, *, create: bool, read_only: bool, busy_timeout_s: float) -> None:
        with self._engine.connect() as connection:
            revision = identify(connection, self.place)
        if not read_only and revision in (NEW, schema.REVISION, *schema.EXTENDABLE):
            use_wal(self._engine, self.place, timeout_s=busy_timeout_s)
        if revision == NEW:
            if not create:
                raise ForeignDatabase(f"database {self.place} is empty", remedy="name another one with --db")
            revision = make_tables(self._engine, self.place)
        elif not read_only and revision in schema.EXTENDABLE:
            revision = make_tables(self._engine, self.place)
        check(revision, self.place)
        if not read_only and self.place.sqlite:
            with self._writer.begin() as connection:
                # Changes nothing, but a read-only file fails now, not after the first measurement.
                connection.execute(sql.delete(schema.REVISION_TABLE).where(sql.false()))

    def close(self) -> None:
        """Close all connections; SQLite's side files vanish with the last one."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """Return a connection that sees one moment in all reads (for merge and export).

        Raises:
            StoreError: Also for values that dlbricks did not write: a database may come from anywhere.
        """
        try:
            with guarded(str(self.place)), self._undone or self._reader.connect() as connection:
                yield connection
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
            raise StoreError(
                f"database {self.place} holds a value that dlbricks did not write: {error}", remedy="restore a copy"
            ) from error

    @contextmanager
    def writing(self) -> Iterator[sql.Connection]:
        """Return a connection with one transaction, committed at the end and rolled back on an error."""
        with guarded(str(self.place)), self._undone or self._writer.begin() as connection:
            yield connection

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo at its end whatever is written meanwhile; until then this store's own queries see it.

        For what is true only for now, such as the results of an interrupted run. No other thread may use the store
        meanwhile.
        """
        with guarded(str(self.place)), self._writer.connect() as connection, connection.begin() as transaction:
            self._undone = nullcontext(connection)
            try:
                yield
            finally:
                self._undone = None
                transaction.rollback()

    def systems(self) -> dict[str, values.System]:
        """Return every system by its key."""
        with self.reading() as connection:
            return stored_systems(connection)

    def stacks(self) -> dict[str, values.Stack]:
        """Return every stack by its key."""
        with self.reading() as connection:
            return stored_stacks(connection)

    def runs(self) -> list[values.Run]:
        """Return every run, oldest first."""
        with self.reading() as connection:
            rows = connection.execute(sql.select(_run).order_by(_run.c.started, _run.c.id)).mappings()
            return [to_run(dict(row)) for row in rows]

    def open_item(self, identity: values.Identity, *, node: str = "") -> tuple[str, int, list[values.Block]] | None:
        """Return (measurement id, unroll, blocks) of an item left open by an interrupted run on a node, or None."""
        with self.reading() as connection:
            items = _matching_items(connection, Filter.of(identity))
            query = sql.select(_measurement.c.id, _measurement.c.unroll).where(
                _measurement.c.item_id.in_(items), _measurement.c.finished_us.is_(None), _measurement.c.node == node
            )
            row = connection.execute(query).one_or_none()
            return None if row is None else (row[0], row[1], _blocks(connection, [row[0]]).get(row[0], []))

    def left_open(
        self, system: str, stack: str, conditions: values.Conditions | None = None, *, node: str = ""
    ) -> list[LeftOpen]:
        """Return all items that interrupted runs of a node left, for any suite and variant.

        Args:
            system: Key of the system.
            stack: Key of the stack.
            conditions: Conditions of the items; None: any.
            node: Name of the node.
        """
        with self.reading() as connection:
            places = _places(connection, Filter(None, None, system, stack, conditions))
            query = (
                sql.select(
                    *_IDENTITY, _run.c.id, _run.c.started, sql.func.max(_block.c.process), _measurement.c.protocol
                )
                .select_from(_measurement)
                .join(_item, _item.c.id == _measurement.c.item_id)
                .join(_run, _run.c.id == _measurement.c.run_id)
                .join(_block, _block.c.measurement_id == _measurement.c.id, isouter=True)
                .where(_measurement.c.finished_us.is_(None), _item.c.combination_id.in_(list(places)))
                .where(_measurement.c.node == node)
                .group_by(_measurement.c.id, *_IDENTITY, _run.c.id, _run.c.started)
            )
            return [LeftOpen(_identity(places, row), *row[4:]) for row in connection.execute(query)]

    def blocks(self, measurement_id: str) -> list[values.Block]:
        """Return the raw samples of a measurement, open or finished, in (process, round) order."""
        return self.blocks_of([measurement_id]).get(measurement_id, [])

    def blocks_of(self, measurements: Collection[str]) -> dict[str, list[values.Block]]:
        """Return raw samples by measurement id, each in (process, round) order; ids without samples are absent."""
        with self.reading() as connection:
            return _blocks(connection, measurements)

    def measurements(
        self, criteria: Filter = ANY, /, *, latest: bool = True, **fields: Unpack[FilterFields]
    ) -> list[values.Measurement]:
        """Return matching finished measurements, by key, combination and time; ``blocks`` returns raw samples.

        Args:
            criteria: The filter.
            latest: Return only the newest of each item.
            **fields: Fields of ``Filter`` that replace those in ``criteria``.
        """
        criteria = criteria.but(**fields)
        with self.reading() as connection:
            places = _places(connection, criteria)
            if not places:
                return []
            item, (taken, on) = _item.c, _taken(connection, criteria, latest=latest)
            said = [taken.c[column.name] for column in STATISTICS]
            query = sql.select(*_IDENTITY, *said).select_from(_item).join(taken, on)
            query = query.order_by(item.key, item.combination_id, item.variant, taken.c.finished_us, taken.c.id)
            return [
                to_measurement(row[4:], _identity(places, row))
                for chunk in _chunks(connection, criteria.keys)
                for row in connection.execute(_select_items(query, criteria, list(places), chunk))
            ]

    def failures(self, criteria: Filter = ANY, /, **fields: Unpack[FilterFields]) -> list[values.Failure]:
        """Return the newest failure of each matching item, unless it was measured later."""
        criteria = criteria.but(**fields)
        item, failure = _item.c, _failure.c
        later, newer = _failure.alias("later"), _measurement.alias("newer")
        query = (
            sql.select(*_IDENTITY, failure.id, failure.run_id, failure.kind, failure.reason)
            .join(_failure, failure.item_id == item.id)
            .where(
                ~sql.select(later.c.id)
                .where(
                    later.c.item_id == item.id,
                    *_by(later.c.run_id, criteria),
                    sql.tuple_(later.c.failed_us, later.c.id) > sql.tuple_(failure.failed_us, failure.id),
                )
                .exists(),
                ~sql.select(newer.c.id)
                .where(
                    newer.c.item_id == item.id, newer.c.finished_us > failure.failed_us, *_by(newer.c.run_id, criteria)
                )
                .exists(),
                *_by(failure.run_id, criteria),
                *([] if criteria.since_us is None else [failure.failed_us >= criteria.since_us]),
            )
            .order_by(item.key, item.combination_id, item.variant)
        )
        with self.reading() as connection:
            places = _places(connection, criteria)
            return [
                values.Failure(id_, run, _identity(places, whose), str(kind), str(reason))
                for chunk in _chunks(connection, criteria.keys)
                for *whose, id_, run, kind, reason in connection.execute(
                    _select_items(query, criteria, list(places), chunk)
                )
            ]

    def kernels(
        self, criteria: Filter = ANY, /, **fields: Unpack[FilterFields]
    ) -> dict[values.Identity, values.KernelView]:
        """Return the matching kernel views by identity."""
        criteria = criteria.but(**fields)
        c = _view.c
        query = sql.select(*_IDENTITY, c.source, c.executions, c.wall_ns, c.kernels).join(
            _view, c.item_id == _item.c.id
        )
        if criteria.since_us is not None:
            query = query.where(c.taken_us >= criteria.since_us)
        with self.reading() as connection:
            places, items = _places(connection, criteria), _matching_items(connection, criteria)
            parts = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
            return {
                _identity(places, row): to_view(dict(row._mapping))  # noqa: SLF001  (SQLAlchemy's own name for it)
                for part in parts
                for row in connection.execute(query.where(c.item_id.in_(part)))
            }

    def proofs(self, identity: values.Identity) -> values.Proofs | None:
        """Return the results of trials for a model; None without any."""
        c = schema.PROOF.c
        query = sql.select(c.contents, c.form, c.findings, c.untried)
        with self.reading() as connection:
            if not has_proofs(connection):
                return None
            items = _matching_items(connection, Filter.of(identity))
            row = connection.execute(query.where(c.item_id.in_(items))).mappings().one_or_none()
            return None if row is None else to_proofs(dict(row))

    def contenders(
        self,
        *,
        without: Collection[str] = (),
        parts: Collection[str] = (),
        apart: Collection[str] = (),
        reach: float = 1.0,
        most: int | None = None,
        **fields: Unpack[FilterFields],
    ) -> dict[str, list[values.Measurement]]:
        """Return per key and cache state the lowest latency, and all latencies up to ``reach`` times it, in order.

        Args:
            without: Keys of excluded stacks.
            parts: Names of excluded variants.
            apart: Keys of stacks that compete only with each other.
            reach: Maximum ratio to the lowest latency; 1 returns only the lowest.
            most: Maximum number per key; None for all.
            **fields: Fields of ``Filter``; ``variant=None`` selects all variants.
        """
        criteria = Filter(**fields)
        contenders: dict[str, list[values.Measurement]] = {}
        lowest: dict[tuple[str, int], float] = {}
        with self.reading() as connection:
            places = {
                id_: circumstances
                for id_, circumstances in _places(connection, criteria).items()
                if circumstances.stack not in without
            }
            if not places:
                return {}
            kinds = {
                id_: (circumstances.conditions.cache, circumstances.stack in apart)
                for id_, circumstances in places.items()
            }
            numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds.values()))}
            taken, on = _taken(connection, criteria, latest=True)
            group = sql.case({id_: numbers[kind] for id_, kind in kinds.items()}, value=_item.c.combination_id)
            rank = sql.func.row_number().over(partition_by=(_item.c.key, group), order_by=(taken.c.mean_ns, _item.c.id))
            columns = [*_IDENTITY, *(taken.c[column.name] for column in STATISTICS)]
            labelled = [column.label(f"c{number}") for number, column in enumerate(columns)]
            query = sql.select(*labelled, group.label("among"), taken.c.mean_ns.label("ranked_ns"), rank.label("rank"))
            query = query.select_from(_item).join(taken, on).where(_item.c.variant.not_in(parts))
            for chunk in _chunks(connection, criteria.keys):
                every = _select_items(query, criteria, list(places), chunk).subquery()
                outer = sql.select(every).order_by(every.c.c2, every.c.among, every.c.rank)
                # Rows omitted here are not transferred.
                outer = outer if most is None else outer.where(every.c.rank <= most)
                for *row, among, latency_ns, _ in connection.execute(outer):
                    if latency_ns <= reach * lowest.setdefault((row[2], among), latency_ns):
                        contenders.setdefault(row[2], []).append(to_measurement(row[4:], _identity(places, row)))
        return contenders

    def combinations(
        self,
        subject: values.Subject | None = None,
        keys: Collection[str] | None = None,
        *,
        variant: str | None = None,
        among: Filter = ANY,
    ) -> list[values.Combination]:
        """Return systems, stacks and conditions with measurements, and their numbers of items.

        Args:
            subject: The subject; None for all.
            keys: The keys; None for all.
            variant: Name of the variant; None for all.
            among: Restricts the combinations: counting time grows with the number of items.
        """
        criteria = among.but(subject=subject, keys=keys, variant=variant)
        # An item counts once, for any number of measurements.
        query = sql.select(_item.c.combination_id, sql.func.count()).where(_measured(_finished(_measurement, criteria)))
        query = query.group_by(_item.c.combination_id)
        counts: Counter[int] = Counter()
        with self.reading() as connection:
            places = _places(connection, criteria)
            for chunk in _chunks(connection, criteria.keys):
                for combination, count in connection.execute(_select_items(query, criteria, list(places), chunk)):
                    counts[combination] += count
        return [
            values.Combination(circumstances.system, circumstances.stack, circumstances.conditions, counts[id_])
            for id_, circumstances in places.items()
            if id_ in counts
        ]

    def measured_keys(
        self, system: str, stack: str, conditions: values.Conditions, subject: values.Subject, variant: str = ""
    ) -> set[str]:
        """Return the keys with a measurement under this combination."""
        with self.reading() as connection:
            return _measured_keys(connection, Filter(subject, None, system, stack, conditions, variant=variant))

    def info(self) -> StoreInfo:
        """Return path, schema, contents, systems and stacks of the database."""
        with self.reading() as connection:
            counts = _counts(connection)
            systems, stacks = stored_systems(connection), stored_stacks(connection)
        path = self.place.path
        with guarded(str(self.place)):
            size = None if path is None else path.stat().st_size
        return {
            "database": str(self.place),
            "revision": schema.REVISION,
            "bytes": size,
            "counts": counts,
            "systems": systems,
            "stacks": stacks,
        }


def _counts(connection: sql.Connection) -> dict[str, int]:
    """Return the number of rows of each kind."""
    finished = _measurement.c.finished_us.is_not(None)

    def count(table: sql.Table, *where: sql.ColumnElement[bool]) -> int:
        return int(connection.scalar(sql.select(sql.func.count()).select_from(table).where(*where)) or 0)

    def measured(subject: values.Subject) -> int:
        return len(_measured_keys(connection, Filter(subject, variant=None, protocol=None)))

    return {
        "systems": count(_system),
        "stacks": count(_stack),
        "runs": count(_run),
        "bricks": measured(values.Subject.BRICK),
        "models": measured(values.Subject.MODEL),
        "measurements": count(_measurement, finished),
        "open": count(_measurement, ~finished),
        "blocks": count(_block),
        "failures": count(_failure),
        "kernel_views": count(_view),
        "proofs": count(schema.PROOF) if has_proofs(connection) else 0,
    }
