"""Bring the measurements of another database into ours."""

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

# A database for what a command is about to measure: where it comes to nothing, none is left behind.


_NOTHING = "SELECT NOT EXISTS (SELECT 1 FROM run) AND NOT EXISTS (SELECT 1 FROM system)"


@contextmanager
def open_for_results(url: str | os.PathLike[str]) -> Iterator[Store]:
    """Open a database for writing, and make it where there is none; one that was made is removed if it stays empty.

    A command that is refused (a wrong option, a model that does not exist) leaves no file that looks like results.

    Raises:
        StoreError: Its kinds as for ``Store.open``.
    """
    place = DatabasePlace.of(url)
    made = place.path is not None and not place.path.exists() and not place.inspect()
    try:
        with Store.open(url) as store:
            yield store
    finally:
        if made and place.path is not None:
            _remove_empty(place.path)


def _remove_empty(path: Path) -> None:
    """Remove a database that holds nothing and that no other process has open."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=rw", uri=True, timeout=0)) as connection:
            # Only the last connection can leave WAL mode: whoever else has it open may be about to write.
            (mode,) = connection.execute("PRAGMA journal_mode=DELETE").fetchone()
            if mode != "delete":
                return
            connection.isolation_level = None
            connection.execute("BEGIN EXCLUSIVE")
            (nothing,) = connection.execute(_NOTHING).fetchone()
            if nothing:
                path.unlink()
    except sqlite3.OperationalError:
        return  # another process holds it, or it was never written: it stays as it is


_PATIENCE_S = 60.0
"""How long other writers are waited for: a transaction that copies a large database holds SQLite's lock for seconds."""

_PAUSE_S = 0.2
"""Longest pause before the next attempt, drawn at random, so that two that met do not meet again."""


def merge(target: Store, other: Store | str | os.PathLike[str], *, node: str | None = None) -> Transferred:
    """Add what another database holds, in one transaction; doing it twice adds nothing, and so does doing it at once.

    Databases of several machines merge: systems and stacks have content keys, everything measured has a UUID. Where
    both hold measurements of the same brick on the same system and stack, the newest is the one that queries see, by
    the clocks of the machines that took them. Open items of the other database are not taken: they are unfinished work
    of the machine that began them.

    Args:
        target: The database to add to.
        other: The database to add, or its path or URL; it is only read.
        node: Only what was measured on the node of this name, without kernel views, which are of none; None: all.

    Returns:
        How many rows were new.

    Raises:
        StoreError: Its kinds as for ``Store.open``, and for a database merged into itself; nothing is added then.
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
            # Nothing was added: another process held it for too long, or the two waited for each other.
            if time.monotonic() >= deadline:
                raise
            time.sleep(random.uniform(0, _PAUSE_S))  # noqa: S311  (no secret)


def _same(one: Store, other: Store) -> bool:
    if one.place.path is None or other.place.path is None:
        return not one.place.sqlite and one.place.url == other.place.url  # each database in memory is another one
    return one.place.path.samefile(other.place.path)
