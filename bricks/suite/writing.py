"""Writing a suite: all of it appears at once, and nothing else in its folder is touched."""

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
from typing import Any

from ...errors import SuiteError
from .brick import Brick
from .suite import FOLDER, MANIFEST, SCHEMA, Suite

_NO_LOCKS = {errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""What network file systems answer that cannot lock a folder."""


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
) -> Suite:
    """Write a suite; all of it appears at once, or nothing.

    A new folder is written beside ``path`` and renamed into place. Where a suite stands already, only what a suite
    owns is replaced: first the bricks that are new come in, then the manifest is renamed over the old one, then the
    bricks that only the old one named go. Whatever else lies in the folder is not touched. A brick whose file differs
    from the old one of the same key (another version of dlbricks wrote it) is exchanged just before the manifest: a
    process that is killed between the two leaves a suite that says so when it is read, and that can be written again.

    Args:
        path: The folder. It must not exist, or be empty, or be a suite (which is replaced).
        bricks: The bricks by key.
        granularity: G that they were cut with.
        overlap: As given to ``split``.
        connected: As given to ``split``.
        annotations: Model name to occurrences by brick key. Without it the suite shows nothing of its models but
            the ``distances``.
        levels: Model name to its footprint class, beside ``annotations``.
        graph: Which graphs the bricks were cut from.
        bound_to: Stack and instruction set that executed graphs belong to.
        distances: Levels of reuse distance (``footprint``) to measure each brick at: those of the models that hold
            it, and of their iterations.
        boundary: Variants (``graph.boundary``) to measure bricks in besides, by key.

    Raises:
        SuiteError: Something else stands at ``path`` or has the name of a brick there, or it cannot be written
            (read-only, disk full). What was there before is still there.
    """
    target = Path(path)
    refuse_foreign(target)
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
                **({"boundary": sorted(boundary[key])} if boundary and key in boundary else {}),
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
    if levels is not None:
        manifest["levels"] = dict(sorted(levels.items()))
    data = json.dumps(manifest, indent=1).encode() + b"\n"
    try:
        new = not (target / MANIFEST).exists() and _created(target, bricks, data)
        suite = Suite.open(target) if new else _replaced(target, bricks, data)
        return replace(suite, _written=dict(bricks))
    except OSError as error:
        raise SuiteError(
            f"suite {target} cannot be written: {error.strerror or error}", remedy="choose another place for it"
        ) from error


def refuse_foreign(target: Path) -> None:
    """Make sure that a suite may be written: nothing or a suite stands at ``target``, and its folder can be written.

    Raises:
        SuiteError: Something else stands there, or the folder cannot be written.
    """
    stands = (target / MANIFEST).is_file()
    try:
        existing = target if stands else next(folder for folder in target.absolute().parents if folder.exists())
        places = [existing, target / FOLDER] if stands and (target / FOLDER).exists() else [existing]
        for place in places:
            if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
                raise SuiteError(
                    f"suite {target} cannot be written: {place} is no folder that can be written",
                    remedy="choose another place for it",
                )
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            return
    except OSError as error:
        raise SuiteError(f"suite {target} cannot be written: {error.strerror or error}") from error
    if not (target / MANIFEST).is_file():  # asked again: another writer may have put it there since
        raise SuiteError(f"{target} exists and is not a suite", remedy="give a new folder for the suite")
    Suite.open(target)


def _created(target: Path, bricks: Mapping[str, Brick], manifest: bytes) -> bool:
    """Write a new suite; False where another process was first."""
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
    """Put a suite in the place of another, file by file; until its manifest is there, the old one holds."""
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
            if (staging / MANIFEST).exists():  # so the old one holds
                for place, kept in reversed(moved):
                    if kept is None:
                        place.unlink(missing_ok=True)
                    else:
                        kept.replace(place)
            shutil.rmtree(staging, ignore_errors=True)  # not where putting back failed: it holds the old bricks
            raise
        shutil.rmtree(staging, ignore_errors=True)
        for key in set(old.keys).difference(bricks):
            with contextlib.suppress(OSError):  # the new suite stands; what cannot be removed does not belong to it
                (target / FOLDER / f"{key}.onnx").unlink()
        return Suite.open(target)


def _exchange(staging: Path, target: Path, old: Suite, moved: list[tuple[Path, Path | None]]) -> None:
    """Move bricks, then the manifest, from one folder to the other.

    Args:
        staging: The new suite.
        target: The suite that stands there.
        old: The same, as it was read.
        moved: Takes each file before it is replaced, with a copy of what stood there; None: nothing did.
    """
    folder = target / FOLDER
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise SuiteError(f"{folder} is not the folder of a suite", remedy="move it away, or choose another place")
    folder.mkdir(exist_ok=True)
    # Those that the old suite names last: until then it is whole.
    bricks = sorted((staging / FOLDER).iterdir(), key=lambda path: (path.stem in old.keys, path.name))
    incoming = [path for path in bricks if not _same(path, folder / path.name)]
    taken = [path.name for path in incoming if _is_foreign(folder / path.name, old)]
    if taken:
        raise SuiteError(
            f"{len(taken)} file(s) in {folder} are not of the suite that stands there, such as {taken[0]}",
            remedy="move them away",
        )
    for number, path in enumerate(incoming):
        place = folder / path.name
        moved.append((place, shutil.copyfile(place, staging / f"{number}.old") if place.exists() else None))
        path.replace(place)
    (staging / MANIFEST).replace(target / MANIFEST)


def _fill(folder: Path, bricks: Mapping[str, Brick], manifest: bytes) -> None:
    """Write a suite's files into a new folder."""
    (folder / FOLDER).mkdir(parents=True)
    for key, brick in bricks.items():
        (folder / FOLDER / f"{key}.onnx").write_bytes(brick.model)
    _write_durably(folder / MANIFEST, manifest)


def _is_staging(path: Path) -> bool:
    return re.fullmatch(r"\.[0-9a-f]{32}\.partial", path.name) is not None


def _is_foreign(place: Path, old: Suite) -> bool:
    """Whether something has the name of a brick that the suite which stands there does not name."""
    return os.path.lexists(place) and (place.stem not in old.keys or place.is_symlink() or not place.is_file())


def _same(path: Path, place: Path) -> bool:
    """Whether a file stands in its place already."""
    return place.is_file() and not place.is_symlink() and place.read_bytes() == path.read_bytes()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Let one process at a time replace what a folder holds; returns whether its file system has locks for folders."""
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


def _write_durably(path: Path, data: bytes) -> None:
    """Write the manifest through to the device: it is what makes the folder a suite."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
