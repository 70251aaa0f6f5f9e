"""A suite: the folder of bricks that is carried to the machines that measure them.

::

    SUITE/manifest.json         schema, granularity, how it was cut, and each brick's key, digest and size
    SUITE/bricks/<key>.onnx     one small ONNX file per brick

Sorted by key, without names or times: the same bricks give the same bytes on every machine. Of an executed graph the
manifest also has the variants that this machine's caches require.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ...errors import MissingBrick, SuiteError, TamperedBrick
from ..graph.boundary import BOUNDARY, Caches, nearest
from ..graph.footprint import LEVELS, REUSE_LEVELS, level_of
from .brick import MAX_BRICK_BYTES, Brick, load_brick

# The manifest, an untrusted file: every field and every size is checked.


SCHEMA = 1
"""Version of the manifest."""

MANIFEST = "manifest.json"

GRAPHS = ("source", "fused", "runtime")
"""The graphs that bricks can be cut from: the model unchanged, along the runtime's fusions, or the executed graph."""

FOLDER = "bricks"
"""Folder of the brick files."""

MAX_MANIFEST_BYTES = 1 << 30

_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}\\Z")]
"""A key becomes a file name: only hexadecimal digits are allowed."""

_Footprint = Annotated[int, msgspec.Meta(gt=0, le=1 << 62)]
"""Any positive size, since earlier versions had more footprint classes."""

_Reach = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""What a cache holds; one that a virtual machine does not get holds nothing."""


class BrickEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A brick in a manifest, with its footprint classes and boundary variants."""

    key: _Digest
    sha256: _Digest
    bytes: int
    distances: tuple[_Footprint, ...] = ()
    boundary: tuple[Literal[*BOUNDARY], ...] = ()  # type: ignore[valid-type]
    typical: tuple[tuple[_Reach, tuple[Literal[*BOUNDARY], ...]], ...] = ()  # type: ignore[valid-type]


class SuiteManifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of a manifest, in the order of the file; other fields are ignored."""

    granularity: Annotated[int, msgspec.Meta(ge=1)]
    overlap: bool
    connected: bool
    bricks: list[BrickEntry]
    graph: Literal[*GRAPHS] = GRAPHS[0]  # type: ignore[valid-type]
    bound_to: str = ""
    annotations: dict[str, dict[str, int]] | None = None
    levels: dict[str, _Footprint] | None = None
    caches: Annotated[tuple[_Reach, ...], msgspec.Meta(min_length=2, max_length=3)] | None = None


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a whole file that may be untrusted: a regular file of at most ``limit`` bytes.

    Raises:
        FileNotFoundError: The file does not exist.
        SuiteError: It cannot be read, is not a regular file, or is too large.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe has no writer to wait for
        try:
            status = os.fstat(opened)  # of this file: another writer may replace it by a larger one meanwhile
            if not stat.S_ISREG(status.st_mode):
                raise SuiteError(f"{path} is not a regular file", remedy="generate the suite again")
            with open(opened, "rb", closefd=False) as file:
                data = file.read(min(limit, status.st_size) + 1)  # as much memory as is asked for is taken
        finally:
            os.close(opened)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SuiteError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise SuiteError(f"{path} is larger than {limit} bytes", remedy="generate the suite again")
    return data


def parse_manifest(folder: Path, data: bytes) -> SuiteManifest:
    """Check every field of a manifest: a suite may come from an untrusted source.

    Raises:
        SuiteError: It is not a manifest of this version.
    """
    try:
        read = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SuiteError(f"{folder / MANIFEST} is not JSON", remedy="generate the suite again") from error
    schema = read.get("schema") if isinstance(read, dict) else None
    if type(schema) is int and schema > SCHEMA:  # only the newer version can check the other fields
        raise SuiteError(f"suite {folder} was made by a newer dlbricks (schema {schema})", remedy="update dlbricks")
    if type(schema) is not int or "bricks" not in read:
        raise SuiteError(f"{folder} is not a suite of dlbricks", remedy="'dlbricks generate' makes one")
    try:
        manifest = msgspec.convert(read, SuiteManifest)
    except msgspec.ValidationError as error:
        raise SuiteError(f"{folder / MANIFEST} is damaged: {error}", remedy="generate the suite again") from error
    keys = [entry.key for entry in manifest.bricks]
    if keys != sorted(set(keys)):
        raise SuiteError(f"{folder / MANIFEST} is damaged: bricks are not sorted", remedy="generate the suite again")
    return manifest


@dataclass(frozen=True, slots=True)
class Suite:
    """A set of bricks on disk.

    Attributes:
        path: Its folder.
        granularity: G of the bricks.
        overlap: The bricks were cut at every offset.
        connected: Weakly connected windows were accepted.
        keys: Keys of the bricks, sorted.
        hash: SHA-256 of the manifest, which contains the digest of every brick file: identifies the suite's content.
        annotations: If requested at generation: model name to the number of occurrences by brick key; else None.
        graph: The graphs that its bricks were cut from: ``source``, ``fused`` or ``runtime``.
        bound_to: The stack and instruction set of bricks of executed graphs; None for others.
        levels: If it has annotations: model name to the footprint class, in bytes, of the graph that was cut.
        caches: What the caches hold for which its variants (``boundary``) were chosen; None without, or for any.
    """

    path: Path
    granularity: int
    overlap: bool
    connected: bool
    keys: tuple[str, ...]
    hash: str
    annotations: Mapping[str, Mapping[str, int]] | None
    _entries: Mapping[str, BrickEntry] = field(repr=False, compare=False)
    graph: str = "source"
    bound_to: str | None = None
    levels: Mapping[str, int] = field(default_factory=dict)
    caches: Caches | None = None
    _written: Mapping[str, Brick] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: str | Path) -> Suite:
        """Read the manifest of a suite; bricks are read on request.

        Raises:
            SuiteError: It does not exist or cannot be read, or dlbricks did not make it, or a newer version did.
        """
        folder = Path(path)
        try:
            data = read_bounded(folder / MANIFEST, MAX_MANIFEST_BYTES)
        except FileNotFoundError as error:
            raise SuiteError(f"{folder} is not a suite: it has no {MANIFEST}", remedy="give its folder") from error
        manifest = parse_manifest(folder, data)
        return cls(
            path=folder,
            granularity=manifest.granularity,
            overlap=manifest.overlap,
            connected=manifest.connected,
            keys=tuple(entry.key for entry in manifest.bricks),
            hash=hashlib.sha256(data).hexdigest(),
            annotations=manifest.annotations,
            _entries={entry.key: entry for entry in manifest.bricks},
            graph=manifest.graph,
            bound_to=manifest.bound_to or None,
            levels=manifest.levels or {},
            caches=None if manifest.caches is None else Caches(*manifest.caches),
        )

    def footprints(self, key: str) -> tuple[int, ...]:
        """Return the footprint classes, in bytes, to measure a brick in: of its models and of their iterations.

        All classes of models if the suite does not note them.
        """
        noted = self._entries[key].distances if key in self._entries else ()
        if not noted:
            return REUSE_LEVELS
        return tuple(sorted({size if size in LEVELS else level_of(size) for size in noted}))

    @property
    def by_caches(self) -> bool:
        """True if variants of its bricks depend on the caches of the machine that measures them."""
        return any(entry.typical for entry in self._entries.values())

    def boundary(self, key: str, last_bytes: int = 0) -> tuple[str, ...]:
        """Return additional variants to measure a brick in (``graph.boundary``).

        Args:
            key: The brick.
            last_bytes: What the last-level cache holds where it is measured, if the suite is bound to no machine.
        """
        entry = self._entries.get(key)
        if entry is None or not entry.typical:
            return entry.boundary if entry is not None else ()
        by_size = dict(entry.typical)
        return by_size[nearest(by_size, last_bytes)]

    def brick_path(self, key: str) -> Path:
        """Return the path of a brick's file.

        Raises:
            MissingBrick: The brick is not in the suite.
        """
        if key not in self._entries:
            raise MissingBrick(f"suite {self.path} has no brick {key}", remedy="'dlbricks brick list' names them")
        return self.path / FOLDER / f"{key}.onnx"

    def brick(self, key: str) -> Brick:
        """Read a brick and verify it against the manifest and its own key; bricks just written are cached.

        Raises:
            MissingBrick: The brick is not in the suite, or its file does not exist.
            TamperedBrick: The file differs from its digest in the manifest, or its key from its name.
            SuiteError: It cannot be read.
        """
        if key in self._written:
            return self._written[key]
        path = self.brick_path(key)
        entry = self._entries[key]
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise SuiteError(f"{path} is a link out of the suite", remedy="generate the suite again")
        try:
            data = read_bounded(path, MAX_BRICK_BYTES)
        except FileNotFoundError as error:
            raise MissingBrick(
                f"suite {self.path} lacks the file of brick {key}", remedy="generate the suite again"
            ) from error
        if len(data) != entry.bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise TamperedBrick(
                f"{path} is not the file that the suite's manifest names", remedy="generate the suite again"
            )
        return load_brick(data, expected=key)
