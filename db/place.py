"""The place of a database, as a file or a URL, and an engine that opens it."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from ..errors import DatabaseReadOnly, ForeignDatabase, StoreError
from .faults import fault, guarded
from .rows import read_json

BUSY_TIMEOUT_S = 5.0
"""Maximum wait of a statement for another process before ``DatabaseLocked``."""

WRITING = "dlbricks_writing"
"""Execution option of a connection with a writing transaction.

SQLite then takes its write lock at once. A transaction that reads first and writes later fails without waiting if
another process has written in between."""

_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """A database by path or URL.

    Attributes:
        url: SQLAlchemy URL.
        path: The file, for an SQLite database on disk; else None.
    """

    url: URL
    path: Path | None

    @classmethod
    def of(cls, where: str | os.PathLike[str]) -> DatabasePlace:
        """Parse a path or a SQLAlchemy URL (anything with ``://``)."""
        text = os.fspath(where)
        if "://" not in text:
            path = Path(text)
            return cls(URL.create("sqlite", database=str(path)), path)
        with guarded(text.split("@")[-1]):  # shown without credentials if parsing fails
            url = make_url(text)
        if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
            return cls(url, None)
        return cls(url, Path(str(url.database)))

    def __str__(self) -> str:
        """Return a path, or a URL without its password, for messages."""
        return str(self.path) if self.path is not None else self.url.render_as_string(hide_password=True)

    @property
    def sqlite(self) -> bool:
        """True for an SQLite database."""
        return self.url.get_backend_name() == "sqlite"

    def inspect(self) -> bool:
        """Check the file before SQLite opens it.

        Returns:
            False for a missing or empty file, or a database in memory; else True. True for a URL of a server.

        Raises:
            ForeignDatabase: The path is a directory, a device, a pipe (which would block), or a file that is not
                SQLite.
            StoreError: The file cannot be read, or its folder does not exist.
        """
        if self.path is None:
            return not self.sqlite  # a database in memory is always new
        try:
            mode = self.path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise ForeignDatabase(f"database {self} is a directory", remedy="name a file with --db")
            if not stat.S_ISREG(mode):
                raise ForeignDatabase(f"database {self} is not a regular file", remedy="name a file with --db")
            with self.path.open("rb") as file:
                head = file.read(len(_MAGIC))
        except FileNotFoundError:
            if not self.path.parent.is_dir():
                raise StoreError(f"the folder of database {self} does not exist", remedy="create it first") from None
            return False
        except NotADirectoryError as error:
            raise StoreError(f"the path of database {self} contains a file in place of a folder") from error
        except OSError as error:
            raise StoreError(
                f"database {self} cannot be read: {error.strerror}", remedy="check its permissions"
            ) from error
        if head and head != _MAGIC:
            raise ForeignDatabase(f"database {self} is not an SQLite database", remedy="name another file with --db")
        return bool(head)


def engine(database: DatabasePlace, *, read_only: bool = False, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Engine:
    """Return a configured engine.

    Errors on its connections are raised as ``StoreError``s that name this database, even if a merge reads one database
    and writes another in the same block. Conflicting rows are left to the code that inserts them.

    For SQLite: foreign keys enforced, ``synchronous=NORMAL`` (in WAL mode a killed process loses no commit; a power cut
    may lose the last ones but corrupts nothing), a busy timeout, and transactions that begin under SQLAlchemy's
    control.

    Args:
        database: The database.
        read_only: Refuse writes. A read-only file is opened without touching its folder.
        busy_timeout_s: Maximum wait for another process.
    """
    how: dict[str, Any] = {"json_deserializer": read_json}
    with guarded(str(database)):
        if not database.sqlite:
            options = {"postgresql_readonly": True} if read_only else {}
            sql_engine = create_engine(database.url, pool_pre_ping=True, execution_options=options, **how)
        elif database.path is None:
            sql_engine = create_engine(
                database.url, poolclass=StaticPool, connect_args={"check_same_thread": False}, **how
            )
        else:
            # Only the dialect comes from the URL; ``connect`` makes the connection.
            connect = _connector(database.path, read_only=read_only, timeout_s=busy_timeout_s)
            sql_engine = create_engine(database.url.set(query={}), creator=connect, poolclass=QueuePool, **how)
    _name_in_errors(sql_engine, database)
    if not database.sqlite:
        return sql_engine
    pragmas = ["PRAGMA foreign_keys=ON", "PRAGMA synchronous=NORMAL"]
    pragmas += ["PRAGMA query_only=ON"] if read_only else []

    def set_up(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # no implicit transactions of the driver
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(pragma)
        cursor.close()

    def begin(connection: Connection) -> None:
        writing = connection.get_execution_options().get(WRITING, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    event.listen(sql_engine, "connect", set_up)
    event.listen(sql_engine, "begin", begin)
    return sql_engine


def _name_in_errors(sql_engine: Engine, database: DatabasePlace) -> None:
    def named(context: ExceptionContext) -> StoreError | None:
        error = context.sqlalchemy_exception or context.original_exception
        is_database_error = isinstance(error, SQLAlchemyError | sqlite3.Error | OSError | UnicodeDecodeError)
        if not is_database_error or isinstance(error, IntegrityError) or context.is_pre_ping:
            return None
        return fault(error, str(database))

    event.listen(sql_engine, "handle_error", named)


def _connector(path: Path, *, read_only: bool, timeout_s: float) -> Callable[[], sqlite3.Connection]:
    name = f"file:{quote(str(path.absolute()))}"

    def connect(query: str) -> sqlite3.Connection:
        return sqlite3.connect(f"{name}?{query}", uri=True, timeout=timeout_s, check_same_thread=False)

    def readable() -> sqlite3.Connection:
        if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
            # Reading through a writable connection (``query_only`` forbids writes) leaves no -wal and -shm files. With
            # mode=ro they are created too, but cannot be removed.
            return connect("mode=rw")
        connection = connect("mode=ro")
        try:
            connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.OperationalError as error:
            connection.close()
            if (error.sqlite_errorcode & 0xFF) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
            # WAL mode creates two files in the database's folder. If this is impossible, the database cannot change
            # either, and may be read as immutable, unless a -wal file contains commits, which would be invisible.
            wal = path.with_name(path.name + "-wal")
            if wal.exists() and wal.stat().st_size:
                raise DatabaseReadOnly(
                    f"database {path} is in a read-only folder, with unfinished writes in {wal.name}",
                    remedy="copy both files to a folder that can be written, and open the copy",
                ) from error
            return connect("mode=ro&immutable=1")
        return connection

    return readable if read_only else lambda: connect("mode=rwc")
