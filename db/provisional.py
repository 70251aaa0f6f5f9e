"""A database for what a command is about to measure: where it comes to nothing, none is left behind."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from .place import Place
from .store import Store

__all__ = ["open_for_results"]

_NOTHING = "SELECT NOT EXISTS (SELECT 1 FROM run) AND NOT EXISTS (SELECT 1 FROM system)"


@contextmanager
def open_for_results(url: str | os.PathLike[str]) -> Iterator[Store]:
    """Open a database for writing, and make it where there is none; one that was made is removed if it stays empty.

    A command that is refused (a wrong option, a model that does not exist) leaves no file that looks like results.

    Raises:
        StoreError: Its kinds as for ``Store.open``.
    """
    place = Place.of(url)
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
