"""Rows that many writers may bring at once: each is stored once, whoever comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

__all__ = ["insert_new", "put_rows"]

_INSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def insert_new(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> int:
    """Insert rows, leaving out those whose key is there.

    One step to every other writer: whoever inserts the same key meanwhile is waited for, and whichever commits first
    stays. A transaction that inserts in many tables does so in the same order as all others, rows sorted by their keys,
    so that two never wait for each other.

    Args:
        connection: Inside a writing transaction.
        table: Its primary key or another constraint tells what is the same.
        rows: All with the same columns.

    Returns:
        How many were new.
    """
    if not rows:
        return 0
    make = _INSERTS.get(connection.dialect.name)
    if make is not None:
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


def put_rows(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, in place of those with the same primary key; the last writer wins."""
    if not rows:
        return
    keys = [column.name for column in table.primary_key]
    make = _INSERTS.get(connection.dialect.name)
    if make is None:
        for row in rows:
            connection.execute(table.delete().where(*(table.c[name] == row[name] for name in keys)))
        connection.execute(insert(table), rows)
        return
    statement = make(table)
    changed = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed), rows)
