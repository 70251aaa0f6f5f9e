"""The fingerprint of a model: it shows, without reading the model, that it is the one that was read before."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError
from .reader import EXTERNAL_MARK, external_locations
from .source import ModelSource

__all__ = ["FileContent", "FileState", "fingerprint", "read_content"]

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileState:
    """By what a file is known not to have changed since it was read.

    Attributes:
        size: Bytes.
        mtime_ns: When it was last written, nanoseconds since 1970.
    """

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileState | None:
        """The state of a file; None where there is none."""
        try:
            status = path.stat()
        except (OSError, ValueError):
            return None
        return cls(status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


@dataclass(frozen=True, slots=True)
class FileContent:
    """What is in a model file.

    Attributes:
        sha256: Of all its bytes, hexadecimal.
        external: Files of external data that it names, relative to its folder.
    """

    sha256: str
    external: tuple[str, ...] = ()


def read_content(path: Path) -> FileContent | None:
    """Read a whole model file for its content; None where it cannot be read."""
    digest, marked, end = hashlib.sha256(), False, b""
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                marked = marked or EXTERNAL_MARK in end + chunk
                end = chunk[-len(EXTERNAL_MARK) :]
        return FileContent(digest.hexdigest(), external_locations(path) if marked else ())
    except (OSError, ModelError):
        return None


def fingerprint(source: ModelSource, content_of: Callable[[Path, FileState], FileContent | None]) -> str | None:
    """What a model is made of, in short: the bytes of its file, the state of its external data, what it is bound to.

    Args:
        source: The model.
        content_of: What is in a file that has this state; None where that is not known.

    Returns:
        A SHA-256, hexadecimal; None for a model that cannot be read.
    """
    parts: list[object] | None = None
    if source.problem is None and source.path is not None:
        parts = _of_file(source.path, content_of)
    elif source.problem is None and source.zoo is not None:
        from .zoo import fingerprint as of_zoo  # its imports are not needed for files

        try:
            parts = [of_zoo(source.zoo, dict(source.dims))]
        except ModelError:
            parts = None
    if parts is None:
        return None
    control = [[[one.node, one.course, one.how] for one in source.control]] if source.control else []
    text = json.dumps([parts, source.batch, sorted(source.dims), *control])
    return hashlib.sha256(text.encode()).hexdigest()


def _of_file(path: Path, content_of: Callable[[Path, FileState], FileContent | None]) -> list[object] | None:
    state = FileState.of(path)
    content = content_of(path, state) if state is not None else None
    if content is None:
        return None
    parts: list[object] = ["file", content.sha256]
    for location in content.external:
        data = FileState.of(path.parent / location)
        if data is None:
            return None
        parts.append([location, data.size, data.mtime_ns])
    return parts
