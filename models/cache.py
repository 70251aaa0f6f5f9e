"""The user's cache folder: results that take seconds to compute, and may be deleted at any time.

The folder is ``$DLBRICKS_CACHE``, else ``~/.cache/dlbricks``. Each entry is a folder named by a digest of everything
that determines it. Entries appear whole or not at all, and nothing in them ever enters a suite or a database. If the
folder cannot be read or written, nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_MOST_ENTRIES = 1000
"""Maximum number of entries of one kind; the oldest are deleted."""


def cache_folder() -> Path:
    """Return the folder: ``$DLBRICKS_CACHE``, else ``~/.cache/dlbricks``; a path that cannot exist without a home."""
    chosen = os.environ.get("DLBRICKS_CACHE")
    try:
        return Path(chosen) if chosen else Path.home() / ".cache" / "dlbricks"
    except RuntimeError:
        return Path(os.devnull) / "dlbricks"


def kept(kind: str, name: str) -> Path | None:
    """Return the folder of an entry; None if it is not kept, or cannot be read."""
    with contextlib.suppress(OSError):
        folder = cache_folder() / kind / name
        if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK):
            return folder
    return None


def entries_of(kind: str) -> list[Path]:
    """Return the folders of all entries of a kind, sorted; none if they cannot be read."""
    with contextlib.suppress(OSError):
        return sorted(path for path in (cache_folder() / kind).iterdir() if not path.name.startswith("."))
    return []


def keep(kind: str, name: str, write: Callable[[Path], None], *, most: int = _MOST_ENTRIES) -> None:
    """Keep an entry; if the cache folder cannot be written, do nothing.

    Args:
        kind: Kind of the entry, a folder's name.
        name: Digest of everything that determines it.
        write: Writes it into an empty folder.
        most: Entries of the kind that stay; the oldest are deleted.
    """
    with contextlib.suppress(OSError):
        parent = cache_folder() / kind
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix=".new-", ignore_cleanup_errors=True) as folder:
            entry = Path(folder) / name
            entry.mkdir()
            write(entry)
            shutil.rmtree(parent / name, ignore_errors=True)
            entry.rename(parent / name)
        entries = sorted((path for path in parent.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime_ns)
        for old in entries[:-most]:
            shutil.rmtree(old, ignore_errors=True)
