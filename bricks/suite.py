"""A suite: the folder of bricks that is carried to the machine where they are measured.

::

    SUITE/manifest.json         schema, granularity, how it was cut, and each brick's key, digest and size
    SUITE/bricks/<key>.onnx     one small ONNX file per brick

Sorted by key, without names or times: the same bricks give the same bytes on every machine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import MissingBrick, SuiteError, TamperedBrick
from .brick import MAX_BRICK_BYTES, Brick, load_brick
from .footprint import REUSE_LEVELS

__all__ = ["GRAPHS", "MANIFEST", "SCHEMA", "Suite", "refuse_foreign", "write_suite"]

SCHEMA = 1
"""Version of the manifest."""

MANIFEST = "manifest.json"

GRAPHS = ("source", "fused", "runtime")
"""What bricks can be cut from: the model as it is, along the runtime's fusions, or the graph that it executes."""

_FOLDER = "bricks"
_MAX_MANIFEST_BYTES = 1 << 30
_HEX64 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Suite:
    """A set of bricks on disk.

    Attributes:
        path: Its folder.
        granularity: G of the bricks.
        overlap: Whether they were cut at every offset.
        connected: Whether weakly connected windows were accepted.
        keys: Keys of the bricks, sorted.
        hash: SHA-256 of the manifest, which holds the digest of every brick file: names the suite's content.
        annotations: Where asked for when it was made: model name to the number of occurrences by brick key.
        graph: Which graphs its bricks were cut from: ``source``, ``fused`` or ``runtime``.
        bound_to: What bricks of executed graphs belong to, a stack and an instruction set; None for others.
    """

    path: Path
    granularity: int
    overlap: bool
    connected: bool
    keys: tuple[str, ...]
    hash: str
    annotations: Mapping[str, Mapping[str, int]] | None
    _digests: Mapping[str, tuple[str, int]] = field(repr=False, compare=False)
    graph: str = "source"
    bound_to: str | None = None
    _distances: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: str | Path) -> Suite:
        """Read the manifest of a suite; bricks are read when asked for.

        Raises:
            SuiteError: It is not there or cannot be read, or dlbricks did not make it, or a newer version did.
        """
        folder = Path(path)
        try:
            data = _read(folder / MANIFEST, _MAX_MANIFEST_BYTES)
        except FileNotFoundError as error:
            raise SuiteError(f"{folder} is not a suite: it has no {MANIFEST}", remedy="give its folder") from error
        manifest = _parse(folder, data)
        entries = {entry["key"]: (entry["sha256"], entry["bytes"]) for entry in manifest["bricks"]}
        return cls(
            path=folder,
            granularity=manifest["granularity"],
            overlap=manifest["overlap"],
            connected=manifest["connected"],
            keys=tuple(entries),
            hash=hashlib.sha256(data).hexdigest(),
            annotations=manifest.get("annotations"),
            _digests=entries,
            graph=manifest.get("graph", "source"),
            bound_to=manifest.get("bound_to"),
            _distances={entry["key"]: tuple(entry.get("distances", ())) for entry in manifest["bricks"]},
        )

    def distances(self, key: str) -> tuple[int, ...]:
        """Reuse distances, in bytes, of the models that a brick was found in; all levels where that is not noted."""
        return self._distances.get(key) or REUSE_LEVELS

    def brick_path(self, key: str) -> Path:
        """Where the file of a brick lies.

        Raises:
            MissingBrick: The suite has no such brick.
        """
        if key not in self._digests:
            raise MissingBrick(f"suite {self.path} has no brick {key}", remedy="'dlbricks brick list' names them")
        return self.path / _FOLDER / f"{key}.onnx"

    def brick(self, key: str) -> Brick:
        """Read a brick and verify it against the manifest and against its own key.

        Raises:
            MissingBrick: The suite has no such brick, or its file is not there.
            TamperedBrick: The file is not the one that the manifest names, or its key is not its name.
            SuiteError: It cannot be read.
        """
        path = self.brick_path(key)
        digest, size = self._digests[key]
        try:
            data = _read(path, MAX_BRICK_BYTES)
        except FileNotFoundError as error:
            raise MissingBrick(
                f"suite {self.path} lacks the file of brick {key}", remedy="generate the suite again"
            ) from error
        if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
            raise TamperedBrick(
                f"{path} is not the file that the suite's manifest names", remedy="generate the suite again"
            )
        return load_brick(data, expected=key)


def write_suite(
    path: str | Path,
    bricks: Mapping[str, Brick],
    *,
    granularity: int,
    overlap: bool = False,
    connected: bool = False,
    annotations: Mapping[str, Mapping[str, int]] | None = None,
    graph: str = "source",
    bound_to: str | None = None,
    distances: Mapping[str, Collection[int]] | None = None,
) -> Suite:
    """Write a suite; all of it appears at once, or nothing.

    A new folder is written beside ``path`` and renamed into place. Where a suite stands already, only what a suite
    owns is replaced: first the bricks that are new come in, then the manifest is renamed over the old one, then the
    bricks that only the old one named go. Whatever else lies in the folder is not touched.

    Args:
        path: The folder. It must not exist, or be empty, or be a suite (which is replaced).
        bricks: The bricks by key.
        granularity: G that they were cut with.
        overlap: As given to ``split``.
        connected: As given to ``split``.
        annotations: Model name to occurrences by brick key. Without it the suite tells nothing about its models but
            the ``distances``.
        graph: Which graphs the bricks were cut from.
        bound_to: Stack and instruction set that executed graphs belong to.
        distances: Levels of reuse distance (``footprint.REUSE_LEVELS``) to measure each brick at: those of the models
            that hold it.

    Raises:
        SuiteError: Something else stands at ``path`` or has the name of a brick there, or it cannot be written
            (read-only, disk full). What was there before is still there.
    """
    target = Path(path)
    refuse_foreign(target)
    fresh = not (target / MANIFEST).exists()
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "granularity": granularity,
        "overlap": overlap,
        "connected": connected,
        "bricks": [
            {
                "key": key,
                "sha256": hashlib.sha256(brick.model).hexdigest(),
                "bytes": len(brick.model),
                **({"distances": sorted(distances[key])} if distances and key in distances else {}),
            }
            for key, brick in sorted(bricks.items())
        ],
    }
    if graph != "source":
        manifest["graph"] = graph
    if bound_to is not None:
        manifest["bound_to"] = bound_to
    if annotations is not None:
        manifest["annotations"] = {model: dict(sorted(counts.items())) for model, counts in sorted(annotations.items())}
    # On the file system of what it will replace, which need not be that of the folder above.
    staging = (target.parent if fresh else target) / f".{target.name}.{uuid.uuid4().hex}.partial"
    try:
        (staging / _FOLDER).mkdir(parents=True)
        for key, brick in bricks.items():
            (staging / _FOLDER / f"{key}.onnx").write_bytes(brick.model)
        _write_durably(staging / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
        if fresh:
            staging.rename(target)
        else:
            _replace(staging, target)
    except OSError as error:
        raise SuiteError(
            f"suite {target} cannot be written: {error.strerror or error}", remedy="choose another place for it"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Suite.open(target)


def refuse_foreign(target: Path) -> None:
    """Make sure that a suite may be written: nothing or a suite stands at ``target``, and its folder can be written.

    Raises:
        SuiteError: Something else stands there, or the folder cannot be written.
    """
    folders = target.absolute().parents
    try:
        existing = next(folder for folder in folders if folder.exists())
        if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
            raise SuiteError(
                f"suite {target} cannot be written: {existing} is no folder that can be written",
                remedy="choose another place for it",
            )
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            return
    except OSError as error:
        raise SuiteError(f"suite {target} cannot be written: {error.strerror or error}") from error
    if not (target / MANIFEST).is_file():
        raise SuiteError(f"{target} exists and is not a suite", remedy="give a new folder for the suite")
    Suite.open(target)


def _replace(staging: Path, target: Path) -> None:
    """Put a finished suite in the place of another, file by file; until its manifest is there, the old one holds.

    A brick whose file differs from the old one of the same key (another version of dlbricks wrote it) is exchanged
    just before the manifest: a process that is killed between the two leaves a suite that says so when it is read.
    """
    with _locked(target), contextlib.ExitStack() as undo:
        old = Suite.open(target)
        folder = target / _FOLDER
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise SuiteError(f"{folder} is not the folder of a suite", remedy="move it away, or choose another place")
        folder.mkdir(exist_ok=True)
        bricks = sorted((staging / _FOLDER).iterdir())
        incoming = [path for path in bricks if not _same(path, folder / path.name)]
        for path in incoming:
            place = folder / path.name
            if os.path.lexists(place) and (place.stem not in old.keys or not place.is_file() or place.is_symlink()):
                raise SuiteError(f"{place} is not of the suite that stands there", remedy="move it away")
        incoming.sort(key=lambda path: path.stem in old.keys)
        for number, path in enumerate(incoming):
            place = folder / path.name
            if place.exists():
                kept = shutil.copyfile(place, staging / f"{number}.old")
                undo.callback(kept.replace, place)
            else:
                undo.callback(place.unlink, missing_ok=True)
            path.replace(place)
        (staging / MANIFEST).replace(target / MANIFEST)
        undo.pop_all()
        for key in set(old.keys).difference(path.stem for path in bricks):
            (folder / f"{key}.onnx").unlink(missing_ok=True)


def _same(path: Path, place: Path) -> bool:
    """Whether a file stands in its place already."""
    return place.is_file() and not place.is_symlink() and place.read_bytes() == path.read_bytes()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time replace what a folder holds, where its file system has locks for folders."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in {errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP}:  # as NFS answers for folders
                raise
        yield
    finally:
        os.close(descriptor)


def _write_durably(path: Path, data: bytes) -> None:
    """Write the manifest through to the device: it is what makes the folder a suite."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, limit: int) -> bytes:
    """Read a whole file that may be untrusted: a regular file of at most ``limit`` bytes.

    Raises:
        FileNotFoundError: It is not there.
        SuiteError: It cannot be read, or is no regular file, or too large.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise SuiteError(f"{path} is not a regular file", remedy="generate the suite again")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SuiteError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise SuiteError(f"{path} is larger than {limit} bytes", remedy="generate the suite again")
    return data


def _parse(folder: Path, data: bytes) -> dict[str, Any]:
    """Check a manifest, every field of it: a suite may come from anywhere.

    Raises:
        SuiteError: It is no manifest of this version.
    """
    try:
        manifest: dict[str, Any] = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SuiteError(f"{folder / MANIFEST} is not JSON", remedy="generate the suite again") from error
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if type(schema) is int and schema > SCHEMA:  # whatever else it holds: only the newer version knows
        raise SuiteError(f"suite {folder} was made by a newer dlbricks (schema {schema})", remedy="update dlbricks")
    if type(schema) is not int or "bricks" not in manifest:
        raise SuiteError(f"{folder} is not a suite of dlbricks", remedy="'dlbricks generate' makes one")
    if not _well_formed(manifest):
        raise SuiteError(f"{folder / MANIFEST} is damaged", remedy="generate the suite again")
    return manifest


def _well_formed(manifest: dict[str, Any]) -> bool:
    """Whether a manifest has all fields, each of its type, and its bricks sorted and each once."""
    granularity, bricks = manifest.get("granularity"), manifest["bricks"]
    if type(granularity) is not int or granularity < 1 or not isinstance(bricks, list):
        return False
    if not all(isinstance(manifest.get(name), bool) for name in ("overlap", "connected")):
        return False
    keys = []
    for entry in bricks:
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int:
            return False
        # A key becomes a file name: nothing but hexadecimal digits may pass here.
        if not all(_HEX64.fullmatch(str(entry.get(name))) for name in ("key", "sha256")):
            return False
        keys.append(entry["key"])
    return keys == sorted(set(keys)) and _well_described(manifest)


def _well_described(manifest: dict[str, Any]) -> bool:
    """Whether what a manifest may hold besides is as it should be."""
    return (
        manifest.get("graph", "source") in GRAPHS
        and isinstance(manifest.get("bound_to", ""), str)
        and all(_are_levels(entry.get("distances", [])) for entry in manifest["bricks"])
        and _counts_occurrences(manifest.get("annotations"))
    )


def _are_levels(distances: object) -> bool:
    """Whether these are levels of reuse distance."""
    return isinstance(distances, list) and all(distance in REUSE_LEVELS for distance in distances)


def _counts_occurrences(annotations: object) -> bool:
    """Whether annotations, if there are any, map names to counts by brick."""
    if annotations is None:
        return True
    return isinstance(annotations, dict) and all(
        isinstance(counts, dict) and all(type(count) is int for count in counts.values())
        for counts in annotations.values()
    )
