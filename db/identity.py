"""Rows that are found by what they say and made where they are not there: combinations, items, systems, stacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, Table, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from ..errors import StoreError
from .rows import to_stack, to_system
from .schema import CombinationRow, ItemRow, KernelViewRow, StackRow, SystemRow, table_of
from .values import Conditions, Identity, Stack, System

CHUNK = 500
"""Values in one IN clause; SQLite before 3.32 takes 999 parameters in all."""

_LARGE_CHUNK = 20_000
"""The same on a server: each statement is a way there and back, and PostgreSQL takes 65,535 parameters."""


def chunks(connection: Connection, values: Iterable[str]) -> Iterator[list[str]]:
    """Values in parts that one IN clause takes, each once and in order."""
    size = _LARGE_CHUNK if connection.dialect.name == "postgresql" else CHUNK
    rest = iter(sorted(set(values)))
    while chunk := list(islice(rest, size)):
        yield chunk


_INSERTS: dict[str, Callable[[Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}
"""Databases that have a word for it (``ON CONFLICT``)."""


def insert_new(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> int:
    """Insert rows, leaving out those whose key is there.

    One step to every other writer: whoever inserts the same key meanwhile is waited for, and whichever commits first
    stays. A transaction that inserts in many tables does so in the same order as all others, rows sorted by their keys,
    so that two never wait for each other.

    Args:
        connection: Inside a writing transaction.
        table: Its primary key or another constraint says what is the same.
        rows: All with the same columns.

    Returns:
        How many were new.
    """
    if not rows:
        return 0
    make = _INSERTS.get(connection.dialect.name)
    if make is not None and connection.dialect.insert_returning:  # SQLite returns rows since 3.35
        statement = make(table).on_conflict_do_nothing().returning(*table.primary_key)
        return len(connection.execute(statement, rows).all())
    return sum(_inserted(connection, table, row) for row in rows)


def _inserted(connection: Connection, table: Table, row: dict[str, Any]) -> bool:
    """The same for one row where a database has no word for it."""
    try:
        with connection.begin_nested():
            connection.execute(insert(table), row)
    except IntegrityError:
        return False  # whoever needs the row looks for it, and misses it where the reason was another
    return True


class Natural:
    """A table whose rows are found by some columns, its statements built once (building costs more than running)."""

    def __init__(self, table: Table, *columns: str) -> None:
        (self._primary,) = table.primary_key.columns
        where = (table.c[name] == bindparam(name) for name in columns)
        self._columns = columns
        self._select: Select[tuple[Any]] = select(self._primary).where(*where)
        self._table = table

    def ensure(self, connection: Connection, row: dict[str, Any]) -> Any:
        """The primary key of a row, inserted where it is not there yet.

        Another process may insert the same between the two statements; the second look then finds its row.
        """
        wanted = {name: row[name] for name in self._columns}
        found = connection.scalar(self._select, wanted)
        if found is None:
            insert_new(connection, self._table, [row])
            found = connection.scalar(self._select, wanted)
        return found


_ITEM, _KERNEL_VIEW = table_of(ItemRow), table_of(KernelViewRow)
_systems = Natural(table_of(SystemRow), "key")
_stacks = Natural(table_of(StackRow), "key")
_combinations = Natural(table_of(CombinationRow), "system", "stack", "threads", "cache", "dtype")
_items = Natural(_ITEM, "combination_id", "subject", "key", "variant")


def put_system_row(connection: Connection, row: dict[str, Any]) -> None:
    """Store a row of ``SystemRow`` unless it is there."""
    _systems.ensure(connection, row)


def put_stack_row(connection: Connection, row: dict[str, Any]) -> None:
    """Store a row of ``StackRow`` unless it is there."""
    _stacks.ensure(connection, row)


_Value = TypeVar("_Value")


class _Referred(dict[str, _Value]):
    """What is stored by its key, where others refer to it: in a damaged file it may be missing.

    Raises:
        StoreError: There is nothing of a key; ``get`` and ``in`` ask without.
    """

    def __missing__(self, key: str) -> _Value:
        raise StoreError(f"the database lacks {key}, to which it refers", remedy="restore a copy")


def stored_systems(connection: Connection) -> dict[str, System]:
    """Every system by its key."""
    rows = connection.execute(select(table_of(SystemRow))).mappings()
    return _Referred((row["key"], to_system(dict(row))) for row in rows)


def stored_stacks(connection: Connection) -> dict[str, Stack]:
    """Every stack by its key."""
    rows = connection.execute(select(table_of(StackRow))).mappings()
    return _Referred((row["key"], to_stack(dict(row))) for row in rows)


def combination_id(connection: Connection, system: str, stack: str, conditions: Conditions) -> int:
    """The local key of a combination.

    Raises:
        StoreError: Where system or stack are not stored.
    """
    row = {
        "system": system,
        "stack": stack,
        "threads": conditions.threads,
        "cache": conditions.cache,
        "dtype": conditions.dtype,
    }
    try:
        return int(_combinations.ensure(connection, row))
    except IntegrityError as error:
        raise StoreError(
            f"system {system[:12]} or stack {stack[:12]} is not stored", remedy="put_system and put_stack come first"
        ) from error


def item_id(connection: Connection, identity: Identity) -> int:
    """The local key of an item, made where there is none."""
    combination = combination_id(connection, identity.system, identity.stack, identity.conditions)
    row = {
        "combination_id": combination,
        "subject": str(identity.subject),
        "key": identity.key,
        "variant": identity.variant,
    }
    return int(_items.ensure(connection, row))


def item_ids(connection: Connection, identities: Collection[Identity]) -> dict[Identity, int]:
    """Local keys of many items, made where there are none: a few statements instead of two per item.

    In the order of what they say, so that of writers that make the same ones at once none waits in a circle.
    """
    groups: dict[tuple[str, str, Conditions], list[Identity]] = {}
    for identity in sorted(set(identities), key=_order):
        groups.setdefault((identity.system, identity.stack, identity.conditions), []).append(identity)
    found: dict[Identity, int] = {}
    for (system, stack, conditions), members in groups.items():
        combination = combination_id(connection, system, stack, conditions)
        for start in range(0, len(members), CHUNK):
            chunk = members[start : start + CHUNK]
            known = _known_items(connection, combination, chunk)
            rows = [
                {"combination_id": combination, "subject": subject, "key": key, "variant": variant}
                for subject, key, variant in dict.fromkeys((str(i.subject), i.key, i.variant) for i in chunk)
                if (subject, key, variant) not in known
            ]
            if rows:
                insert_new(connection, _ITEM, rows)
                known = _known_items(connection, combination, chunk)
            found |= {i: known[str(i.subject), i.key, i.variant] for i in chunk}
    return found


def _order(identity: Identity) -> tuple[object, ...]:
    where = identity.conditions
    place = (identity.system, identity.stack, where.threads, where.cache, where.dtype)
    return (*place, str(identity.subject), identity.key, identity.variant)


def _known_items(
    connection: Connection, combination: int, wanted: Collection[Identity]
) -> dict[tuple[str, str, str], int]:
    c = _ITEM.c
    query = select(c.id, c.subject, c.key, c.variant).where(
        c.combination_id == combination,
        c.subject.in_({str(identity.subject) for identity in wanted}),
        c.key.in_({identity.key for identity in wanted}),
    )
    return {(subject, key, variant): id_ for id_, subject, key, variant in connection.execute(query)}


def put_view(connection: Connection, identity: Identity, row: Mapping[str, Any]) -> bool:
    """Store a view in place of an older one of the same item.

    Args:
        connection: Inside a writing transaction.
        identity: What it is of.
        row: Columns of ``KernelViewRow`` but for ``item_id``.

    Returns:
        Whether it was stored: not where the one that is there is as new.
    """
    item = item_id(connection, identity)
    if insert_new(connection, _KERNEL_VIEW, [{**row, "item_id": item}]):
        return True
    later = (
        update(_KERNEL_VIEW)
        .where(_KERNEL_VIEW.c.item_id == item, _KERNEL_VIEW.c.taken_us < row["taken_us"])
        .values(**row)
    )
    return connection.execute(later).rowcount == 1
