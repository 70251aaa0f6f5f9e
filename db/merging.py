"""Merging the measurements of another database into this one."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from ..errors import DatabaseLocked, StoreError
from .place import DatabasePlace
from .store import Store
from .transfer import Policy, Transferred, transfer

# A database for the results of a command, which is removed again if it stays empty.


_NOTHING = "SELECT NOT EXISTS (SELECT 1 FROM run) AND NOT EXISTS (SELECT 1 FROM system)"


@contextmanager
def open_for_results(url: str | os.PathLike[str]) -> Iterator[Store]:
    """Open a database for writing, and create it if necessary; a new one is removed if it stays empty.

    A refused command (wrong option, missing model) thus leaves no empty database.

    Raises:
        StoreError: As in ``Store.open``.
    """
    database = DatabasePlace.of(url)
    creates_file = database.path is not None and not database.path.exists() and not database.inspect()
    try:
        with Store.open(url) as store:
            yield store
    finally:
        if creates_file and database.path is not None:
            _remove_empty(database.path)


def _remove_empty(path: Path) -> None:
    """Remove an empty database that no other process has open."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=rw", uri=True, timeout=0)) as connection:
            # Only the last connection can leave WAL mode; another process may be about to write.
            (mode,) = connection.execute("PRAGMA journal_mode=DELETE").fetchone()
            if mode != "delete":
                return
            connection.isolation_level = None
            connection.execute("BEGIN EXCLUSIVE")
            (nothing,) = connection.execute(_NOTHING).fetchone()
            if nothing:
                path.unlink()
    except sqlite3.OperationalError:
        return  # another process holds it, or it was never written


_PATIENCE_S = 60.0
"""Maximum wait for other writers: copying a large database holds SQLite's lock for seconds."""

_PAUSE_S = 0.2
"""Longest random pause before the next attempt, so that two writers do not collide again."""


def merge(target: Store, other: Store | str | os.PathLike[str], *, node: str | None = None) -> Transferred:
    """Add the contents of another database in one transaction; repeating it, also concurrently, adds nothing.

    Databases of several machines can be merged: systems and stacks have content keys, measurements have UUIDs. If both
    contain measurements of the same brick on the same system and stack, queries return the newest, by the clocks of the
    measuring machines. Open items of the other database stay there: they are unfinished work of the machine that began
    them.

    Args:
        target: The database that is extended.
        other: The other database, or its path or URL; it is only read.
        node: Merge only measurements of this node, without kernel views, which are not assigned to nodes; None for all.

    Returns:
        The numbers of new rows.

    Raises:
        StoreError: As in ``Store.open``, and for a merge of a database into itself; nothing is added then.
    """
    if not isinstance(other, Store):
        with Store.open(other, read_only=True) as opened:
            return merge(target, opened, node=node)
    if other is target or _same(target, other):
        raise StoreError(f"database {target.place} cannot be merged into itself", remedy="name another one")
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with other.reading() as source, target.writing() as connection:
                return transfer(source, connection, Policy(node))
        except DatabaseLocked:
            # Nothing was added: another process held it for too long, or the two deadlocked.
            if time.monotonic() >= deadline:
                raise
            time.sleep(random.uniform(0, _PAUSE_S))  # noqa: S311  (no secret)


def _same(target: Store, other: Store) -> bool:
    if target.place.path is None or other.place.path is None:
        return not target.place.sqlite and target.place.url == other.place.url  # databases in memory are distinct
    return target.place.path.samefile(other.place.path)
