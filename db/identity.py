"""Rows that are identified by their content and created on demand: combinations, items, systems, stacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from ..errors import StoreError
from .rows import Row, to_keyed
from .schema import COMBINATION, ITEM, STACK, SYSTEM
from .values import Conditions, Identity, Stack, System

CHUNK = 500
"""Values in one IN clause; SQLite before 3.32 allows 999 parameters."""

_LARGE_CHUNK = 20_000
"""The same for a server: every statement is a round trip, and PostgreSQL allows 65,535 parameters."""


def chunks(connection: Connection, values: Iterable[str]) -> Iterator[list[str]]:
    """Yield distinct values in sorted chunks for one IN clause each."""
    size = _LARGE_CHUNK if connection.dialect.name == "postgresql" else CHUNK
    rest = iter(sorted(set(values)))
    while chunk := list(islice(rest, size)):
        yield chunk


_ON_CONFLICT = frozenset({"sqlite", "postgresql"})
"""Databases with ``ON CONFLICT``."""


def insert_new(connection: Connection, table: Table, rows: Sequence[Row]) -> int:
    """Insert rows, except for those with an existing key.

    The step is atomic for other writers: concurrent inserts of the same key wait, and the first commit wins. A
    transaction that inserts into many tables uses the same order as all others, with rows sorted by key, so that no
    deadlock occurs.

    Args:
        connection: Inside a writing transaction.
        table: The table; its primary key or another constraint decides equality.
        rows: Rows with the same columns.

    Returns:
        The number of new rows.
    """
    if not rows:
        return 0
    dialect = connection.dialect
    if dialect.name in _ON_CONFLICT and dialect.insert_returning:  # SQLite returns rows since 3.35
        # Importing PostgreSQL's dialect takes 50 ms.
        make = import_module(f"sqlalchemy.dialects.{dialect.name}").insert
        statement = make(table).on_conflict_do_nothing().returning(*table.primary_key)
        return len(connection.execute(statement, rows).all())
    return sum(_inserted(connection, table, row) for row in rows)


def _inserted(connection: Connection, table: Table, row: Row) -> bool:
    """Insert one row for databases without ``ON CONFLICT``; return False for an existing key."""
    try:
        with connection.begin_nested():
            connection.execute(insert(table), row)
    except IntegrityError:
        return False  # for any other reason the caller will miss the row
    return True


_NAMES = ("system", "stack", "threads", "cache", "dtype")
_COMBINATION_ID = select(COMBINATION.c.id).where(*(COMBINATION.c[name] == bindparam(name) for name in _NAMES))
"""Built once, because building is slower than running."""


_Value = TypeVar("_Value")


class _Referred(dict[str, _Value]):
    """Values by key that other rows refer to; in a damaged file one may be missing.

    Raises:
        StoreError: The key is missing; ``get`` and ``in`` do not raise.
    """

    def __missing__(self, key: str) -> _Value:
        raise StoreError(f"the database lacks {key}, to which it refers", remedy="restore a copy")


def stored_systems(connection: Connection) -> dict[str, System]:
    """Return every system by its key."""
    rows = connection.execute(select(SYSTEM)).mappings()
    return _Referred((row["key"], to_keyed(System, dict(row))) for row in rows)


def stored_stacks(connection: Connection) -> dict[str, Stack]:
    """Return every stack by its key."""
    rows = connection.execute(select(STACK)).mappings()
    return _Referred((row["key"], to_keyed(Stack, dict(row))) for row in rows)


def combination_id(connection: Connection, system: str, stack: str, conditions: Conditions) -> int:
    """Return the local key of a combination, after creating the combination if necessary.

    Another process may create it in between; the second query then finds it.

    Raises:
        StoreError: System or stack are not stored.
    """
    row = {"system": system, "stack": stack, **asdict(conditions)}
    stored_id = connection.scalar(_COMBINATION_ID, row)
    if stored_id is not None:
        return int(stored_id)
    try:
        insert_new(connection, COMBINATION, [row])
    except IntegrityError as error:
        raise StoreError(
            f"system {system[:12]} or stack {stack[:12]} is not stored", remedy="put_system and put_stack come first"
        ) from error
    return int(connection.execute(_COMBINATION_ID, row).scalar_one())


def item_ids(connection: Connection, identities: Collection[Identity]) -> dict[Identity, int]:
    """Return local keys of many items, creating missing ones with few statements.

    Items are sorted, so that concurrent writers of the same items do not deadlock.
    """
    groups: dict[tuple[str, str, Conditions], list[Identity]] = {}
    for identity in sorted(set(identities), key=_order):
        groups.setdefault((identity.system, identity.stack, identity.conditions), []).append(identity)
    ids_by_identity: dict[Identity, int] = {}
    for (system, stack, conditions), members in groups.items():
        combination = combination_id(connection, system, stack, conditions)
        for start in range(0, len(members), CHUNK):
            chunk = members[start : start + CHUNK]
            stored_ids = _known_items(connection, combination, chunk)
            rows = [
                {"combination_id": combination, "subject": subject, "key": key, "variant": variant}
                for subject, key, variant in dict.fromkeys((str(i.subject), i.key, i.variant) for i in chunk)
                if (subject, key, variant) not in stored_ids
            ]
            if rows:
                insert_new(connection, ITEM, rows)
                stored_ids = _known_items(connection, combination, chunk)
            ids_by_identity |= {i: stored_ids[str(i.subject), i.key, i.variant] for i in chunk}
    return ids_by_identity


def _order(identity: Identity) -> tuple[object, ...]:
    where = identity.conditions
    combination = (identity.system, identity.stack, where.threads, where.cache, where.dtype)
    return (*combination, str(identity.subject), identity.key, identity.variant)


def _known_items(
    connection: Connection, combination: int, identities: Collection[Identity]
) -> dict[tuple[str, str, str], int]:
    c = ITEM.c
    query = select(c.id, c.subject, c.key, c.variant).where(
        c.combination_id == combination,
        c.subject.in_({str(identity.subject) for identity in identities}),
        c.key.in_({identity.key for identity in identities}),
    )
    return {(subject, key, variant): id_ for id_, subject, key, variant in connection.execute(query)}


def put_latest(connection: Connection, table: Table, identity: Identity, row: Mapping[str, Any]) -> bool:
    """Store a row of an item, in place of an older one.

    Args:
        connection: Inside a writing transaction.
        table: ``KERNEL_VIEW`` or ``PROOF``.
        identity: Identity of the item.
        row: Columns of the table except ``item_id``.

    Returns:
        True if it was stored; False if the existing row is as new.
    """
    item = item_ids(connection, [identity])[identity]
    if insert_new(connection, table, [{**row, "item_id": item}]):
        return True
    later = update(table).where(table.c.item_id == item, table.c.taken_us < row["taken_us"]).values(**row)
    return connection.execute(later).rowcount == 1
