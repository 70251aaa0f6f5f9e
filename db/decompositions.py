"""What models were decomposed into, kept for the next time: private to a database, in no export and no merge.

A *record* is plain data that JSON can say. It is kept deflated, under the fingerprint of a model and the name of one of
its parts. A database may come from anywhere: what cannot be read is as good as not kept, and whoever asked decomposes
again. What a record says is checked by its reader.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import delete, select

from ..errors import DatabaseLocked, DatabaseReadOnly, StoreError
from .handle import Handle
from .identity import chunks, put_rows
from .schema import DecompositionRow, ModelFileRow, table_of
from .store import Store

__all__ = [
    "Record",
    "keep_file",
    "keep_records",
    "kept_data",
    "kept_file",
    "kept_files",
    "kept_records",
    "open_keeping",
    "read_records",
]

Record = dict[str, Any]

_file, _decomposition = map(table_of, (ModelFileRow, DecompositionRow))
_MOST_BYTES = 1 << 25
"""Of one record: a crafted row must not fill the memory, and parsed it takes twenty times as much. A layer takes some
hundred bytes; a model of more than some ten thousand is decomposed every time."""
_LEVEL = 6
_PATIENCE_S = 1.0
"""How long whoever only asks waits for another process that writes: less than decomposing some models takes."""


def open_keeping(url: str | os.PathLike[str]) -> Store:
    """Open a database to ask it about models: for reading, and where it can be written for keeping decompositions.

    Raises:
        StoreError: Its kinds as for ``Store.open``.
    """
    try:
        return Store.open(url, create=False, busy_timeout_s=_PATIENCE_S)
    except (DatabaseReadOnly, DatabaseLocked):
        return Store.open(url, read_only=True)


def kept_file(store: Handle, path: Path, state: tuple[int, int]) -> tuple[str, tuple[str, ...]] | None:
    """What is known to be in a model file.

    Args:
        store: The database.
        path: The file.
        state: Its size in bytes and its time in ns.

    Returns:
        The SHA-256 of its content, and the files of external data that it names; None where that is not known of this
        state.
    """
    return kept_files(store, {path: state}).get(path)


def kept_files(store: Handle, states: Mapping[Path, tuple[int, int]]) -> dict[Path, tuple[str, tuple[str, ...]]]:
    """The same of many files; those of which it is not known are absent."""
    c, places = _file.c, {_place(path): path for path in states}
    query = select(c.place, c.size, c.mtime_ns, c.sha256, c.external)
    found: dict[Path, tuple[str, tuple[str, ...]]] = {}
    try:
        with store.reading() as connection:
            rows = [
                row for some in chunks(connection, places) for row in connection.execute(query.where(c.place.in_(some)))
            ]
    except StoreError:
        return {}
    for place, size, mtime_ns, sha256, written in rows:
        try:
            external = json.loads(written)
        except (ValueError, TypeError, RecursionError):
            continue
        texts = isinstance(external, list) and all(isinstance(one, str) for one in external)
        if texts and isinstance(sha256, str) and (size, mtime_ns) == states[places[place]]:
            found[places[place]] = sha256, tuple(external)
    return found


def keep_file(store: Handle, path: Path, state: tuple[int, int], sha256: str, external: Collection[str]) -> None:
    """Keep what is in a model file.

    Raises:
        StoreError: The database cannot be written.
    """
    size, mtime_ns = state
    row = {"place": _place(path), "size": size, "mtime_ns": mtime_ns, "sha256": sha256}
    with store.writing() as connection:
        put_rows(connection, _file, [row | {"external": json.dumps(list(external))}])


def kept_records(store: Handle, model: str, parts: Collection[str], maker: str) -> dict[str, Record]:
    """The records of a model that can be read.

    Args:
        store: The database.
        model: Fingerprint of the model.
        parts: Names of its parts.
        maker: Versions of the code that they must be of.
    """
    return read_records(kept_data(store, [model], parts, maker).get(model, {}))


def kept_data(
    store: Handle, models: Collection[str], parts: Collection[str], maker: str
) -> dict[str, dict[str, bytes]]:
    """What is kept of many models, by fingerprint and part, as ``read_records`` takes it; the others are absent."""
    c = _decomposition.c
    query = select(c.model, c.part, c.data).where(c.part.in_(parts), c.maker == maker)
    found: dict[str, dict[str, bytes]] = {}
    try:
        with store.reading() as connection:
            for some in chunks(connection, models):
                for model, part, data in connection.execute(query.where(c.model.in_(some))):
                    found.setdefault(model, {})[part] = data
    except StoreError:
        return {}
    return found


def read_records(data: Mapping[str, bytes]) -> dict[str, Record]:
    """The records of one model by part; none where one of them cannot be read."""
    try:
        return {part: _inflated(one) for part, one in data.items()}
    except (ValueError, TypeError, RecursionError, zlib.error):
        return {}


def keep_records(store: Handle, model: str, records: Mapping[str, Record], maker: str) -> None:
    """Keep records of a model, in place of earlier ones; those of other versions of the code are dropped.

    Raises:
        StoreError: The database cannot be written.
    """
    c = _decomposition.c
    rows = [{"model": model, "part": part, "maker": maker, "data": _deflated(one)} for part, one in records.items()]
    with store.writing() as connection:
        connection.execute(delete(_decomposition).where(c.maker != maker))
        put_rows(connection, _decomposition, rows)


def _place(path: Path) -> str:
    """Of a path no more than distinguishes it from others."""
    return hashlib.sha256(str(path.absolute()).encode("utf-8", "surrogateescape")).hexdigest()


def _deflated(record: Record) -> bytes:
    return zlib.compress(json.dumps(record, separators=(",", ":")).encode(), _LEVEL)


def _inflated(data: bytes) -> Record:
    inflating = zlib.decompressobj()
    text = inflating.decompress(data, _MOST_BYTES)
    if not inflating.eof:
        raise ValueError("a record ends early, or does not end")
    record = json.loads(text)
    if not isinstance(record, dict):
        raise TypeError("no record")
    return record
