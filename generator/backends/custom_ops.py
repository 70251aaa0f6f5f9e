"""Libraries of operators that are not a runtime's own: named by the user, known by content, loaded in workers only.

A shared library runs code of its own as soon as it is loaded. So only the user names one, on the command line or by
``register_custom_ops``; nothing in a model or a suite can. What is measured with it is measured on another stack, and
a stack knows it by a digest of its content: paths are of one machine, and stay there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...errors import BackendError, UsageError

CUSTOM_OPS = "custom_ops"
"""The option of a stack: digests of the libraries, sorted, ``+`` between them."""

_DIGITS = 32
_DIGEST = re.compile(rf"[0-9a-f]{{{_DIGITS}}}(\+[0-9a-f]{{{_DIGITS}}})*")

_files: dict[str, Path] = {}
"""Digest to file, of what this process was told of."""


def register_custom_ops(*paths: str | Path) -> str:
    """Let the workers of this process load libraries of custom operators.

    The oracle, which executes a model once where shapes are not known otherwise, loads all of them; what is measured
    loads those that its option ``custom_ops`` names.

    Args:
        paths: Shared libraries with ``RegisterCustomOps``, as ONNX Runtime wants them.

    Returns:
        The value of the option.

    Raises:
        UsageError: One of them cannot be read.
    """
    found = {}
    for path in paths:
        try:
            found[_digest(Path(path))] = Path(path).resolve()
        except OSError as error:
            raise UsageError(
                f"the library of custom operators {path} cannot be read: {error.strerror or error}",
                remedy="give the path of a shared library",
            ) from error
    _files.update(found)
    return "+".join(sorted(found))


def asked() -> dict[str, str]:
    """The option for all libraries that this process was told of; empty where there are none."""
    return {CUSTOM_OPS: "+".join(sorted(_files))} if _files else {}


def checked(value: str) -> str:
    """The value of the option, if it is one.

    Raises:
        UsageError: It is something else, such as a path.
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
    """In a worker: take over what the parent was told of, if the files still hold what they held then.

    Raises:
        BackendError: One of them does not.
    """
    for digest, path in files.items():
        try:
            held = _digest(Path(path))
        except OSError as error:
            held = str(error.strerror)
        if held != digest:
            raise BackendError(f"a library of custom operators is no longer what it was ({held} instead of {digest})")
        _files[digest] = Path(path)


def paths_of(options: Mapping[str, str]) -> Iterable[str]:
    """Paths of the libraries that options name, in the order of their digests."""
    return files_of(options).values()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
