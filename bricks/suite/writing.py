"""Writing a suite at once, without touching other files in its folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from ...errors import SuiteError
from ..graph.boundary import Caches
from .brick import Brick
from .suite import FOLDER, MANIFEST, SCHEMA, BrickEntry, Suite, SuiteManifest

_NO_LOCKS = {errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""Errors of network file systems that cannot lock a folder."""


def write_suite(
    path: str | Path,
    bricks: Mapping[str, Brick],
    *,
    granularity: int,
    overlap: bool = False,
    connected: bool = False,
    annotations: Mapping[str, Mapping[str, int]] | None = None,
    levels: Mapping[str, int] | None = None,
    graph: str = "source",
    bound_to: str | None = None,
    distances: Mapping[str, Collection[int]] | None = None,
    boundary: Mapping[str, Collection[str]] | None = None,
    caches: Caches | None = None,
    typical: Mapping[str, Mapping[int, Collection[str]]] | None = None,
) -> Suite:
    """Write a suite completely, or leave the old state.

    A new folder is written under another name and renamed. In an existing suite, new bricks are added first. Then the
    new manifest replaces the old one by renaming, and bricks that only the old one named are removed. Other files are
    not touched. A brick with the same key but another file (written by another version of dlbricks) is exchanged just
    before the manifest. If the process is killed between the two, reading the suite reports the difference, and it can
    be written again.

    Args:
        path: The folder: new, empty, or an existing suite, which is replaced.
        bricks: The bricks by key.
        granularity: The G of the bricks.
        overlap: As given to ``split``.
        connected: As given to ``split``.
        annotations: Model name to occurrences by brick key. Without it the suite contains nothing of its models except
            ``distances``.
        levels: Model name to its footprint class, added to ``annotations``.
        graph: The graphs that the bricks were cut from.
        bound_to: Stack and instruction set of executed graphs.
        distances: Footprint classes (``footprint``) to measure each brick in: of its models, and of their iterations.
        boundary: Additional variants (``graph.boundary``) to measure bricks in, by key.
        caches: What the caches hold for which these were chosen.
        typical: Such variants of a suite that is bound to no machine, by key and bytes that a last-level cache holds.

    Raises:
        SuiteError: Something else exists at ``path`` or has the name of a brick there, or writing fails (read-only,
            disk full). The old state is kept.
    """
    target = Path(path)
    refuse_foreign(target)
    classes, variants = distances or {}, boundary or {}
    entries = [
        BrickEntry(
            key,
            hashlib.sha256(brick.model).hexdigest(),
            len(brick.model),
            tuple(sorted(classes.get(key, ()))),
            tuple(sorted(variants.get(key, ()))),
            tuple((size, tuple(sorted(few))) for size, few in sorted((typical or {}).get(key, {}).items())),
        )
        for key, brick in sorted(bricks.items())
    ]
    counts = None
    if annotations is not None:
        counts = {name: dict(sorted(annotations[name].items())) for name in sorted(annotations)}
    sizes = None if levels is None else dict(sorted(levels.items()))
    reach = caches if variants else None
    manifest = SuiteManifest(granularity, overlap, connected, entries, graph, bound_to or "", counts, sizes, reach)
    data = json.dumps({"schema": SCHEMA, **msgspec.to_builtins(manifest)}, indent=1).encode() + b"\n"
    try:
        new = not (target / MANIFEST).exists() and _created(target, bricks, data)
        suite = Suite.open(target) if new else _replaced(target, bricks, data)
        return replace(suite, _written=dict(bricks))
    except OSError as error:
        raise SuiteError(
            f"suite {target} cannot be written: {error.strerror or error}", remedy="choose another place for it"
        ) from error


def refuse_foreign(target: Path) -> None:
    """Check that a suite may be written: ``target`` is free or a suite, and its folder is writable.

    Raises:
        SuiteError: Something else exists there, or the folder is not writable.
    """
    stands = (target / MANIFEST).is_file()
    try:
        existing = target if stands else next(folder for folder in target.absolute().parents if folder.exists())
        folders = [existing, target / FOLDER] if stands and (target / FOLDER).exists() else [existing]
        for folder in folders:
            if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
                raise SuiteError(
                    f"suite {target} cannot be written: {folder} is not a writable folder",
                    remedy="choose another place for it",
                )
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            return
    except OSError as error:
        raise SuiteError(f"suite {target} cannot be written: {error.strerror or error}") from error
    if not (target / MANIFEST).is_file():  # again: another writer may have added it
        raise SuiteError(f"{target} exists and is not a suite", remedy="give a new folder for the suite")
    Suite.open(target)


def _created(target: Path, bricks: Mapping[str, Brick], manifest: bytes) -> bool:
    """Write a new suite; return False if another process was first."""
    staging = target.parent / f".{target.name}.{uuid.uuid4().hex}.partial"
    try:
        _fill(staging, bricks, manifest)
        staging.rename(target)
    except OSError as error:
        if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
            raise
        refuse_foreign(target)
        return False
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return True


def _replaced(target: Path, bricks: Mapping[str, Brick], manifest: bytes) -> Suite:
    """Replace a suite file by file; the old one is valid until its manifest is replaced."""
    with _locked(target) as alone:
        if alone:
            for remains in filter(_is_staging, target.iterdir()):  # of a process that was killed
                shutil.rmtree(remains, ignore_errors=True)
        old = Suite.open(target)
        staging = target / f".{uuid.uuid4().hex}.partial"
        moved: list[tuple[Path, Path | None]] = []
        try:
            _fill(staging, bricks, manifest)
            _exchange(staging, target, old, moved)
        except BaseException:
            if (staging / MANIFEST).exists():  # the old one is still valid
                for destination, backup in reversed(moved):
                    if backup is None:
                        destination.unlink(missing_ok=True)
                    else:
                        backup.replace(destination)
            shutil.rmtree(staging, ignore_errors=True)  # not reached if restoring failed: it contains the old bricks
            raise
        shutil.rmtree(staging, ignore_errors=True)
        for key in set(old.keys).difference(bricks):
            with contextlib.suppress(OSError):  # the new suite is complete without the removal
                (target / FOLDER / f"{key}.onnx").unlink()
        return Suite.open(target)


def _exchange(staging: Path, target: Path, old: Suite, moved: list[tuple[Path, Path | None]]) -> None:
    """Move bricks, then the manifest, from one folder to the other.

    Args:
        staging: The new suite.
        target: The existing suite's folder.
        old: The existing suite.
        moved: Receives each file before its replacement, with a copy of the old file, or None.
    """
    folder = target / FOLDER
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise SuiteError(f"{folder} is not the folder of a suite", remedy="move it away, or choose another place")
    folder.mkdir(exist_ok=True)
    # Files of the old suite last: until then it is complete.
    bricks = sorted((staging / FOLDER).iterdir(), key=lambda path: (path.stem in old.keys, path.name))
    incoming = [path for path in bricks if not _same(path, folder / path.name)]
    taken = [path.name for path in incoming if _is_foreign(folder / path.name, old)]
    if taken:
        raise SuiteError(
            f"{len(taken)} file(s) in {folder} do not belong to the suite there, for example {taken[0]}",
            remedy="move them away",
        )
    for number, path in enumerate(incoming):
        destination = folder / path.name
        moved.append(
            (destination, shutil.copyfile(destination, staging / f"{number}.old") if destination.exists() else None)
        )
        path.replace(destination)
    (staging / MANIFEST).replace(target / MANIFEST)


def _fill(folder: Path, bricks: Mapping[str, Brick], manifest: bytes) -> None:
    """Write a suite's files into a new folder."""
    (folder / FOLDER).mkdir(parents=True)
    for key, brick in bricks.items():
        (folder / FOLDER / f"{key}.onnx").write_bytes(brick.model)
    # Write the manifest through to the device, because it makes the folder a suite.
    with (folder / MANIFEST).open("wb") as file:
        file.write(manifest)
        file.flush()
        os.fsync(file.fileno())


def _is_staging(path: Path) -> bool:
    return re.fullmatch(r"\.[0-9a-f]{32}\.partial", path.name) is not None


def _is_foreign(path: Path, old: Suite) -> bool:
    """Return True if something has the name of a brick that the existing suite does not name."""
    return os.path.lexists(path) and (path.stem not in old.keys or path.is_symlink() or not path.is_file())


def _same(path: Path, destination: Path) -> bool:
    """Return True if the same file is already in its place."""
    return destination.is_file() and not destination.is_symlink() and destination.read_bytes() == path.read_bytes()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Let one process at a time replace a folder's contents; yield True if its file system can lock folders."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            locked = False
        yield locked
    finally:
        os.close(descriptor)
