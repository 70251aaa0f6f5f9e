"""Which schema revision a database has, whether it is ours at all, and making a new one."""

from __future__ import annotations

import sqlite3
import time

from sqlalchemy import Connection, Engine, func, insert, inspect, select, text
from sqlalchemy.exc import OperationalError

from ..errors import ForeignDatabase, NewerDatabase, OlderDatabase
from .place import BUSY_TIMEOUT_S, WRITING, Place
from .schema import APPLICATION_ID, REVISION_TABLE, REVISIONS, Base

__all__ = ["NEW", "alone", "check", "found", "identify", "mark", "use_wal"]

NEW = "new"
"""What ``identify`` says of a database without any table."""


def identify(connection: Connection, place: Place) -> str:
    """The schema revision of a database of ours: ``NEW`` for an empty one, empty for one that was never stamped.

    Raises:
        ForeignDatabase: For a database with tables that we did not make.
    """
    tables = inspect(connection).get_table_names()
    if place.sqlite:
        ours = connection.exec_driver_sql("PRAGMA application_id").scalar_one() == APPLICATION_ID
    else:
        ours = REVISION_TABLE.name in tables
    if not ours:
        if not tables and not (place.sqlite and connection.exec_driver_sql("PRAGMA application_id").scalar_one()):
            return NEW
        raise ForeignDatabase(f"database {place} was not made by dlbricks", remedy="name another one with --db")
    if REVISION_TABLE.name not in tables:
        return ""
    return connection.scalars(select(REVISION_TABLE.c.version_num)).one_or_none() or ""


def check(revision: str, place: Place) -> None:
    """Refuse every revision but our own.

    Raises:
        NewerDatabase: For a revision that this version does not know.
        OlderDatabase: For one that ``dlbricks db upgrade`` can bring up to date.
    """
    if revision == REVISIONS[-1]:
        return
    if revision == "" or revision in REVISIONS:
        raise OlderDatabase(
            f"database {place} has schema {revision or '0000'}, this version wants {REVISIONS[-1]}",
            remedy=f"run `dlbricks db upgrade --db {place}`",
        )
    raise NewerDatabase(
        f"database {place} has schema {revision}, made by a newer dlbricks; this version knows {REVISIONS[-1]}",
        remedy="update dlbricks, or name another database with --db",
    )


def alone(connection: Connection) -> None:
    """Keep others from making or upgrading the tables until the transaction ends; SQLite's write lock does so too."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(APPLICATION_ID)))


def found(engine: Engine, place: Place) -> str:
    """Make the tables of a new database and stamp it; all in one transaction, so that nobody sees half of it.

    Equal to running every migration (a test compares the two), without the 0.3 s of importing alembic.

    Returns:
        The revision, which is another one where a process was here first.
    """
    with engine.connect().execution_options(**{WRITING: True}) as connection, connection.begin():
        alone(connection)
        revision = identify(connection, place)
        if revision == NEW:
            Base.metadata.create_all(connection)
            REVISION_TABLE.create(connection)
            connection.execute(insert(REVISION_TABLE).values(version_num=REVISIONS[-1]))
            mark(connection, place)
            revision = REVISIONS[-1]
    return revision


def mark(connection: Connection, place: Place) -> None:
    """Say in the file's header that it is ours (SQLite; elsewhere the revision table's name says so)."""
    if place.sqlite:
        connection.execute(text(f"PRAGMA application_id={APPLICATION_ID:d}"))


def use_wal(engine: Engine, place: Place, *, timeout_s: float = BUSY_TIMEOUT_S) -> None:
    """Let SQLite keep a write-ahead log: readers and the writer no longer block each other.

    The busy timeout does not cover this statement (SQLite answers at once), so that two processes which open a new
    database together want a loop here.
    """
    if place.path is None:
        return
    deadline = time.monotonic() + timeout_s
    while True:
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA journal_mode=WAL")
        except (sqlite3.OperationalError, OperationalError) as error:
            busy = (getattr(error, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
        finally:
            raw.close()
