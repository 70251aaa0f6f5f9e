"""Suites and lock files on their way to a node: packed into bytes, and unpacked if their hash is right."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from ...bricks.suite.suite import FOLDER, MANIFEST, Suite, parse_manifest
from ...errors import DlbricksError, MissingBrick, SuiteError, TamperedBrick


def pack_suite(suite: Suite) -> bytes:
    """Return a suite as a compressed archive: its manifest and each brick that the manifest names, checked.

    Raises:
        SuiteError: A brick is missing or differs from the manifest.
    """
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, path in suite_files(suite):
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def suite_files(suite: Suite) -> Iterator[tuple[str, Path]]:
    """Yield the manifest of a suite and its bricks, checked: names within the suite, and files.

    Raises:
        SuiteError: A brick is missing or differs from the manifest.
    """
    _check(suite)
    yield MANIFEST, suite.path / MANIFEST
    for key in suite.keys:
        yield f"{FOLDER}/{key}.onnx", suite.brick_path(key)


def _check(suite: Suite) -> None:
    """Compare every file with the manifest; the run itself compares a brick with its key.

    Raises:
        SuiteError: A file is missing or differs.
    """
    manifest = parse_manifest(suite.path, (suite.path / MANIFEST).read_bytes())
    for entry in manifest.bricks:
        path = suite.brick_path(entry.key)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise MissingBrick(f"suite {suite.path} lacks {path.name}", remedy="generate it again") from error
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise TamperedBrick(f"{path} is not the file that the suite's manifest names", remedy="generate it again")


def fetched_suite(folder: Path, digest: str) -> Path | None:
    """Return a suite that was kept before, if it is the right one and all its files are unchanged."""
    path = folder / digest
    try:
        suite = Suite.open(path)
        _check(suite)
    except (OSError, SuiteError):
        return None
    return path if suite.hash == digest else None


def keep_suite(folder: Path, digest: str, data: bytes) -> Path:
    """Unpack a suite into a folder of its hash; it appears there whole or not at all.

    The manifest is checked against the hash, each file against the manifest.

    Raises:
        SuiteError: It is not the suite of this hash.
    """
    path, aside = folder / digest, folder / f".{uuid.uuid4().hex}"
    (aside / FOLDER).mkdir(parents=True)
    try:
        _unpack(data, aside)
        arrived = Suite.open(aside)
        if arrived.hash != digest:
            raise SuiteError(f"the suite {digest[:12]} of the fleet is another one")
        _check(arrived)
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)
    except (OSError, EOFError, tarfile.TarError, DlbricksError) as error:
        raise SuiteError(f"the suite {digest[:12]} of the fleet cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return path


def _unpack(data: bytes, folder: Path) -> None:
    """Write the plain files of a suite's archive; the archive cannot choose the folder."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for entry in archive:
            name = Path(entry.name)
            brick = name.parent == Path(FOLDER) and name.suffix == ".onnx"
            content = archive.extractfile(entry) if entry.isfile() else None
            if content is None or not (brick or name == Path(MANIFEST)):
                raise SuiteError(f"it holds {entry.name!r}, which is no part of a suite")
            (folder / name).write_bytes(content.read())


def pack_lock(path: Path, digest: str) -> bytes:
    """Return a lock file's bytes.

    Raises:
        SuiteError: The file has changed since its hash was taken.
    """
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise SuiteError(f"lock file {path} was changed while it was read", remedy="plan again")
    return data


def fetched_lock(folder: Path, digest: str) -> Path | None:
    """Return a lock file that was kept before, if it is the right one."""
    path = _lock_place(folder, digest)
    try:
        return path if hashlib.sha256(path.read_bytes()).hexdigest() == digest else None
    except FileNotFoundError:
        return None


def keep_lock(folder: Path, digest: str, data: bytes) -> Path:
    """Write a lock file under a name of its hash.

    Raises:
        SuiteError: It is not the one of this hash.
    """
    if hashlib.sha256(data).hexdigest() != digest:
        raise SuiteError(f"the lock file {digest[:12]} of the fleet is another one")
    path = _lock_place(folder, digest)
    aside = folder / f".{uuid.uuid4().hex}"
    folder.mkdir(parents=True, exist_ok=True)
    aside.write_bytes(data)
    aside.rename(path)
    return path


def _lock_place(folder: Path, digest: str) -> Path:
    """Return a file name as PEP 751 requires."""
    return folder / f"pylock.{digest[:16]}.toml"
