"""Writing a suite: all of it appears at once, and nothing else in its folder is touched."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import SuiteError
from .brick import Brick
from .manifest import FOLDER, MANIFEST, SCHEMA
from .suite import Suite

__all__ = ["refuse_foreign", "write_suite"]


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
        (staging / FOLDER).mkdir(parents=True)
        for key, brick in bricks.items():
            (staging / FOLDER / f"{key}.onnx").write_bytes(brick.model)
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
        folder = target / FOLDER
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise SuiteError(f"{folder} is not the folder of a suite", remedy="move it away, or choose another place")
        folder.mkdir(exist_ok=True)
        bricks = sorted((staging / FOLDER).iterdir())
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
