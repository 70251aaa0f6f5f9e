"""The schema revision of a database: identify it, check it, and make a new database."""

from __future__ import annotations

import os
import sqlite3
import time
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, func, insert, inspect, select, text, update
from sqlalchemy.exc import OperationalError

from ..errors import ForeignDatabase, NewerDatabase, OlderDatabase, StoreError
from .faults import guarded
from .place import BUSY_TIMEOUT_S, WRITING, DatabasePlace, engine
from .schema import APPLICATION_ID, EARLIER, EXTENDABLE, METADATA, PROOF, REVISION, REVISION_TABLE


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The result of ``upgrade``.

    Attributes:
        before: Revision found.
        after: Revision now.
    """

    before: str
    after: str


NEW = "new"
"""The revision that ``identify`` returns for a database without any table."""


def identify(connection: Connection, database: DatabasePlace) -> str:
    """Return the schema revision of a dlbricks database.

    ``NEW`` for an empty database; an empty text for one without a revision.

    Raises:
        ForeignDatabase: The database has tables of another program.
    """
    tables = inspect(connection).get_table_names()
    if database.sqlite:
        ours = connection.exec_driver_sql("PRAGMA application_id").scalar_one() == APPLICATION_ID
    else:
        ours = REVISION_TABLE.name in tables
    if not ours:
        if not tables and not (database.sqlite and connection.exec_driver_sql("PRAGMA application_id").scalar_one()):
            return NEW
        raise ForeignDatabase(f"database {database} was not made by dlbricks", remedy="name another one with --db")
    if database.sqlite:
        _require_tables(connection, database)
    if REVISION_TABLE.name not in tables:
        return ""
    return connection.scalars(select(REVISION_TABLE.c.version_num)).one_or_none() or ""


def _require_tables(connection: Connection, database: DatabasePlace) -> None:
    """Refuse a view in place of a table, and triggers: they compute whatever their author wants, for any time."""
    names = {*METADATA.tables, REVISION_TABLE.name}
    for kind, name, table in connection.exec_driver_sql("SELECT type, name, tbl_name FROM sqlite_master"):
        if (kind == "view" and name in names) or (kind == "trigger" and table in names):
            raise ForeignDatabase(
                f"database {database} has a {kind} '{name}', which dlbricks did not make", remedy="restore a copy"
            )


def has_proofs(connection: Connection) -> bool:
    """Return False for a database of a revision without the table of proofs."""
    return inspect(connection).has_table(PROOF.name)


def check(revision: str, database: DatabasePlace) -> None:
    """Refuse every revision that this version cannot read.

    Raises:
        NewerDatabase: The revision is unknown to this version.
        OlderDatabase: The revision is from before the first release.
    """
    if revision in (REVISION, *EXTENDABLE):
        return
    if revision in EARLIER:
        raise OlderDatabase(
            f"database {database} has schema {revision or '0000'}, of a version before 0.1, and this version wants "
            f"{REVISION}",
            remedy="measure again, into another database",
        )
    raise NewerDatabase(
        f"database {database} has schema {revision}, made by a newer dlbricks; this version knows {REVISION}",
        remedy="update dlbricks, or name another database with --db",
    )


def upgrade(url: str | os.PathLike[str]) -> Upgrade:
    """Upgrade a database: add the tables that it lacks.

    Raises:
        StoreError: As in ``Store.open``; also if the database does not exist or is empty.
    """
    database = DatabasePlace.of(url)
    if not database.inspect():
        raise StoreError(f"there is no database at {database}", remedy="nothing needs an upgrade")
    sql_engine = engine(database)
    try:
        with guarded(str(database)), sql_engine.connect() as connection:
            before = identify(connection, database)
        if before == NEW:
            raise StoreError(f"database {database} is empty", remedy="nothing needs an upgrade")
        check(before, database)
        with guarded(str(database)):
            return Upgrade(before, make_tables(sql_engine, database))
    finally:
        sql_engine.dispose()


def make_tables(engine: Engine, database: DatabasePlace) -> str:
    """Create the tables that a database lacks, and set its revision, in one transaction.

    Returns:
        The revision; another one for a database that this version cannot extend.
    """
    with engine.connect().execution_options(**{WRITING: True}) as connection, connection.begin():
        if connection.dialect.name == "postgresql":  # no other process makes tables meanwhile
            connection.execute(select(func.pg_advisory_xact_lock(APPLICATION_ID)))
        revision = identify(connection, database)
        if revision == NEW:
            METADATA.create_all(connection)
            REVISION_TABLE.create(connection)
            connection.execute(insert(REVISION_TABLE).values(version_num=REVISION))
            if database.sqlite:
                connection.execute(text(f"PRAGMA application_id={APPLICATION_ID:d}"))
            revision = REVISION
        elif revision in EXTENDABLE:
            METADATA.create_all(connection)  # those that are missing
            connection.execute(update(REVISION_TABLE).values(version_num=REVISION))
            revision = REVISION
    return revision


def use_wal(engine: Engine, database: DatabasePlace, *, timeout_s: float = BUSY_TIMEOUT_S) -> None:
    """Let SQLite use a write-ahead log, so that readers and the writer do not block each other.

    The busy timeout does not cover this statement (SQLite answers at once). Two processes that open a new database
    together therefore need a loop here.
    """
    if database.path is None:
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
