"""What a worker does to its own process before it touches anything untrusted."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

__all__ = ["confine", "take_streams"]

_PR_SET_PDEATHSIG = 1


def confine() -> None:
    """Leave Ctrl-C to the parent, write no core files, and die with the parent's thread that started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def take_streams() -> Iterator[tuple[IO[str], IO[str]]]:
    """The protocol's streams, moved off descriptors 0 and 1.

    Afterwards descriptor 0 is empty and descriptor 1 is standard error: a library that prints, from Python or from
    C++, cannot break a reply.
    """
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    with os.fdopen(requests, encoding="utf-8") as source, os.fdopen(replies, "w", encoding="utf-8") as sink:
        yield source, sink
