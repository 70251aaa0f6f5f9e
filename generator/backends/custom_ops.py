"""Libraries of custom operators: named by the user, identified by content, loaded in workers only.

A shared library runs code as soon as it is loaded. Therefore only the user can name one, on the command line or with
``register_custom_ops``; a model or a suite cannot. Measurements with a library belong to another stack. The stack
identifies the library by a digest of its content, since paths differ between machines.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from ...errors import BackendError, UsageError

CUSTOM_OPS = "custom_ops"
"""The option of a stack: digests of the libraries, sorted, ``+`` between them."""

_DIGITS = 32
_DIGEST = re.compile(rf"[0-9a-f]{{{_DIGITS}}}(\+[0-9a-f]{{{_DIGITS}}})*")

_files: dict[str, Path] = {}
"""Registered files by digest."""


def register_custom_ops(*paths: str | Path) -> str:
    """Let the workers of this process load libraries of custom operators.

    The oracle, which executes a model once to find unknown shapes, loads all of them. A measurement loads the libraries
    of its option ``custom_ops``.

    Args:
        paths: Shared libraries with ``RegisterCustomOps``, as ONNX Runtime requires.

    Returns:
        The value of the option.

    Raises:
        UsageError: One of them cannot be read.
    """
    files_by_digest = {}
    for path in paths:
        try:
            files_by_digest[_digest(Path(path))] = Path(path).resolve()
        except OSError as error:
            raise UsageError(
                f"the library of custom operators {path} cannot be read: {error.strerror or error}",
                remedy="give the path of a shared library",
            ) from error
    _files.update(files_by_digest)
    return "+".join(sorted(files_by_digest))


def asked() -> dict[str, str]:
    """Return the option for all registered libraries; empty without any."""
    return {CUSTOM_OPS: "+".join(sorted(_files))} if _files else {}


def checked(value: str) -> str:
    """Return the value of the option if it is valid.

    Raises:
        UsageError: It is invalid, for example a path.
    """
    if _DIGEST.fullmatch(value) is None:
        raise UsageError(
            f"option {CUSTOM_OPS} holds digests of libraries, not {value!r}", remedy="name libraries with --custom-ops"
        )
    return value


def files_of(options: Mapping[str, str]) -> dict[str, str]:
    """Digest to path of the libraries that options name.

    Raises:
        UsageError: This process was not told of one.
    """
    digests = [digest for digest in options.get(CUSTOM_OPS, "").split("+") if digest]
    missing = [digest for digest in digests if digest not in _files]
    if missing:
        raise UsageError(
            f"the library of custom operators with content {missing[0]} was not given",
            remedy="name it with --custom-ops",
        )
    return {digest: str(_files[digest]) for digest in digests}


def adopt(files: Mapping[str, str]) -> None:
    """Register the parent's libraries in a worker, if the files have not changed.

    Raises:
        BackendError: A file has changed.
    """
    for digest, path in files.items():
        try:
            held = _digest(Path(path))
        except OSError as error:
            held = str(error.strerror)
        if held != digest:
            raise BackendError(f"a library of custom operators is no longer what it was ({held} instead of {digest})")
        _files[digest] = Path(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
