"""An open database: how it is found, checked, created, and given back."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Engine, delete, false

from ..errors import ForeignDatabase, StoreError
from .faults import guarded
from .place import BUSY_TIMEOUT_S, WRITING, Place, engine
from .revision import NEW, check, found, identify, use_wal
from .schema import REVISION_TABLE, REVISIONS

__all__ = ["Handle"]


class Handle:
    """Connections to one database of ours, for reading and for writing; a context manager."""

    def __init__(self, place: Place, engine: Engine) -> None:
        self.place = place
        self._engine = engine
        self._writer = engine.execution_options(**{WRITING: True})
        snapshot = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
        self._reader = engine.execution_options(**snapshot)  # in SQLite every transaction is one

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        *,
        create: bool = True,
        read_only: bool = False,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> Self:
        """Open a database, and make it where there is none.

        Args:
            url: A path (an SQLite file), or any SQLAlchemy URL.
            create: Make a database that is not there; otherwise its absence is an error.
            read_only: Open for reading; works in a folder that cannot be written. Implies ``create=False``.
            busy_timeout_s: How long a call waits for another process before ``DatabaseLocked``.

        Raises:
            ForeignDatabase: For something that dlbricks did not make.
            NewerDatabase: For a schema of a later version.
            OlderDatabase: For one that wants ``dlbricks db upgrade``.
            DatabaseReadOnly: Where it cannot be written and ``read_only`` was not asked for.
            DatabaseLocked: Where another process holds it.
            StoreError: For everything else: not there, not readable, no driver.
        """
        place = Place.of(url)
        create = create and not read_only
        if not place.inspect() and not create:
            raise StoreError(
                f"there is no database at {place}", remedy="measure something first (`dlbricks run`), or give --db"
            )
        made = engine(place, read_only=read_only, busy_timeout_s=busy_timeout_s)
        handle = cls(place, made)
        try:
            with guarded(str(place)):
                handle._prepare(create=create, read_only=read_only, busy_timeout_s=busy_timeout_s)
        except BaseException:
            handle.close()
            raise
        return handle

    def _prepare(self, *, create: bool, read_only: bool, busy_timeout_s: float) -> None:
        with self._engine.connect() as connection:
            revision = identify(connection, self.place)
        if not read_only and revision in (NEW, REVISIONS[-1]):
            use_wal(self._engine, self.place, timeout_s=busy_timeout_s)
        if revision == NEW:
            if not create:
                raise ForeignDatabase(f"database {self.place} is empty", remedy="name another one with --db")
            revision = found(self._engine, self.place)
        check(revision, self.place)
        if not read_only and self.place.sqlite:
            with self._writer.begin() as connection:
                # Changes nothing, but a file that cannot be written says so now, and not after the first measurement.
                connection.execute(delete(REVISION_TABLE).where(false()))

    def close(self) -> None:
        """Give every connection back; SQLite's side files vanish with the last one."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection whose reads all see the same moment (merge and export use it).

        Raises:
            StoreError: Also for values that are none of ours: a database may come from anywhere.
        """
        try:
            with guarded(str(self.place)), self._reader.connect() as connection:
                yield connection
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
            raise StoreError(
                f"database {self.place} holds a value that dlbricks did not write: {error}", remedy="restore a copy"
            ) from error

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A connection with one transaction, committed at the end and rolled back on an error."""
        with guarded(str(self.place)), self._writer.begin() as connection:
            yield connection
