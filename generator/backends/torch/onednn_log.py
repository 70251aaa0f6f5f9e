"""What oneDNN says that it executes: lines on the standard output of the process.

::

    onednn_verbose,v1,<ms since 1970>,primitive,exec,cpu,convolution,jit:avx512_core,…,<ms>
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Log", "Primitive", "primitives_of", "recorded"]

_STDOUT = 1
_NS_PER_MS = 1_000_000
_LINE = ("onednn_verbose", "v1")
_EXECUTION = ("primitive", "exec")
_FEWEST = 9
"""Fields of a line about an execution, its descriptors and its time included."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """One execution of a primitive.

    Attributes:
        name: The kind and what implements it, such as ``convolution jit:avx512_core``.
        start_ns: When it began, on the clock that was asked for.
        time_ns: How long it took.
    """

    name: str
    start_ns: int
    time_ns: int


@dataclass(slots=True)
class Log:
    """What was said; complete once ``recorded`` has ended."""

    text: str = ""


@contextmanager
def recorded(onednn: Any) -> Iterator[Log]:
    """Let oneDNN speak, and take down what the process writes to its standard output meanwhile.

    Args:
        onednn: ``torch.backends.mkldnn``; where PyTorch is built without oneDNN nothing is said.
    """
    log = Log()
    if not onednn.is_available():
        yield log
        return
    library = ctypes.CDLL(None)
    with tempfile.TemporaryFile() as file:
        library.fflush(None)
        kept = os.dup(_STDOUT)
        os.dup2(file.fileno(), _STDOUT)
        try:
            with onednn.verbose(onednn.VERBOSE_ON):
                yield log
        finally:
            library.fflush(None)
            os.dup2(kept, _STDOUT)
            os.close(kept)
        file.seek(0)
        log.text = file.read().decode(errors="replace")


def primitives_of(text: str, begin_ns: int) -> list[Primitive]:
    """The executions that a log lists, in order; those without a time of day are left out.

    Args:
        text: The log.
        begin_ns: Nanoseconds since 1970 that count as 0.
    """
    found = []
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) < _FEWEST or tuple(fields[:2]) != _LINE or tuple(fields[3:5]) != _EXECUTION:
            continue
        start_ms, kind, implementation, took_ms = fields[2], fields[6], fields[7], fields[-1]
        try:
            start_ns, time_ns = float(start_ms) * _NS_PER_MS, float(took_ms) * _NS_PER_MS
        except ValueError:
            continue
        found.append(Primitive(f"{kind} {implementation}", round(start_ns) - begin_ns, round(time_ns)))
    return found
