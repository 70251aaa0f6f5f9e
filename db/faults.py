"""Conversion of drivers' errors into ``StoreError``s with a remedy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from ..errors import DatabaseLocked, DatabaseReadOnly, DatabaseUnreachable, DiskFull, ForeignDatabase, StoreError

_Row = tuple[type[StoreError], str, str]

_LOCKED: _Row = (DatabaseLocked, "is held by another process", "wait until it has finished, then try again")
_READ_ONLY: _Row = (
    DatabaseReadOnly,
    "cannot be written: the file or its folder is read-only",
    "change its permissions, or name a database elsewhere with --db",
)
_ONLY_READ: _Row = (
    DatabaseReadOnly,
    "cannot be written: here its server lets it be read only",
    "name another one with --db, or ask who runs the server",
)
_FULL: _Row = (
    DiskFull,
    "cannot grow: no space is left",
    "free some space and run the same command again; what was committed before is kept",
)
_FOREIGN: _Row = (ForeignDatabase, "is not an SQLite database", "name another file with --db")
_CORRUPT: _Row = (StoreError, "is damaged", "restore a copy; `dlbricks db export` may still read parts of it")
_AWAY: _Row = (
    DatabaseUnreachable,
    "cannot be reached: its server does not answer, or the connection broke",
    "look at its address, the server and the way to it, then try again",
)
_IO: _Row = (StoreError, "cannot be read or written: the disk reports an error", "check the disk and its free space")

_SQLITE: dict[int, _Row] = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    # The file itself was read before (``place.inspect``), so the journal cannot be created.
    sqlite3.SQLITE_CANTOPEN: _READ_ONLY,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_NOTADB: _FOREIGN,
    sqlite3.SQLITE_CORRUPT: _CORRUPT,
    sqlite3.SQLITE_IOERR: _IO,
}

# SQLSTATE of the SQL standard and PostgreSQL, as drivers such as psycopg report it.
_SQLSTATE: dict[str, _Row] = {
    "25006": _ONLY_READ,
    "53100": _FULL,
    **dict.fromkeys(("40001", "40P01", "55P03"), _LOCKED),
    **dict.fromkeys(("53300", "57P01", "57P02", "57P03", "08000", "08001", "08003", "08004", "08006"), _AWAY),
}


def fault(error: BaseException, where: str) -> StoreError:
    """Return the ``StoreError`` for an error of SQLAlchemy, a driver or the operating system.

    Args:
        error: The caught error.
        where: The database as the user knows it: a path, or a URL without its password.
    """
    if isinstance(error, StoreError):
        return error
    origin = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
    row = _SQLITE.get((getattr(origin, "sqlite_errorcode", None) or 0) & 0xFF)
    if isinstance(error, UnicodeDecodeError):  # from sqlite3, for invalid text or messages
        row = _CORRUPT
    row = row or _SQLSTATE.get(str(getattr(origin, "sqlstate", "") or ""))
    if row is not None:
        kind, message, remedy = row
        return kind(f"database {where} {message}", remedy=remedy)
    if isinstance(error, exc.NoSuchModuleError | ImportError):
        return StoreError(
            f"database {where} needs a driver that is not installed: {origin}",
            remedy="install it (PostgreSQL: pip install 'dlbricks[postgres]' and a URL postgresql+psycopg://…)",
        )
    if isinstance(error, exc.ArgumentError):
        return StoreError(f"database {where} is not a URL that SQLAlchemy knows", remedy="give a path, or a full URL")
    if isinstance(error, exc.IntegrityError | exc.DataError):
        what = "row that contradicts what it holds" if isinstance(error, exc.IntegrityError) else "value it cannot hold"
        return StoreError(f"database {where} refused a {what}: {origin}")
    lost = isinstance(error, exc.OperationalError) and not isinstance(origin, sqlite3.Error)
    kind = DatabaseUnreachable if lost and not getattr(origin, "sqlstate", None) else StoreError
    return kind(f"database {where} cannot be used: {origin}")


@contextmanager
def guarded(where: str) -> Iterator[None]:
    """Turn all errors of a database in the block into ``StoreError``s."""
    try:
        yield
    except (exc.SQLAlchemyError, sqlite3.Error, OSError, ImportError, UnicodeDecodeError) as error:
        raise fault(error, where) from error
