"""The pieces of free memory; the kernel gives the smallest to a process first.

After other programs have run, the smallest are single pages from all over the memory, including pages in the list of a
processor. A process that gets them reads its weights more slowly than a process that comes a moment later and gets
whole pieces. In a run, this would slow down the first bricks and models (``benchmarks/pieces.py``).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread

import psutil

from .cores import node_of, physical_cores, pin

_SMALL_ORDERS = 7
"""Sizes of a piece that count as small: 1 to 64 pages. From 256 pages on, networks take twice as long to load on a
virtual machine whose host takes back what its guests have free."""

_NOTICED_BYTES = 64 << 20
"""A network that takes less has its data in caches; fewer bytes in small pieces make no difference either."""

_MOST_BYTES, _MOST_SHARE, _MOST_S = 4 << 30, 0.5, 2.0
"""Most memory to fill: in bytes, as a share of the free memory, and in seconds of reading."""

_FOLDER = Path("/var/tmp")  # noqa: S108  (the file has no name)
"""On a disk, as a rule. A file in memory, as in many a temporary folder, gets no pages when it is read."""

_CHUNK_BYTES = 1 << 20

_LISTED = re.compile(r"cpu: (\d+)\s+count: +(\d+)")

_WITHIN: ContextVar[bool] = ContextVar("within", default=False)


@dataclass(frozen=True, slots=True)
class SmallPieces:
    """Free memory in small pieces, in bytes.

    Attributes:
        listed: In the list of each processor, which a process that runs there gets first.
        common: In pieces of the memory node on which networks run.
    """

    listed: Mapping[int, int]
    common: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.listed.values()) + self.common


def small_pieces(system: Path = Path("/proc")) -> SmallPieces:
    """Return how much of the free memory is in small pieces; nothing if the system does not tell."""
    page, cores = os.sysconf("SC_PAGE_SIZE"), physical_cores()
    try:
        zones, pieces = (system / "zoneinfo").read_text(), (system / "buddyinfo").read_text()
    except OSError:
        return SmallPieces({}, 0)
    listed = dict.fromkeys(cores, 0)
    for processor, pages in _LISTED.findall(zones):
        if int(processor) in listed:
            listed[int(processor)] += page * int(pages)
    node = (node_of(cores[0]) or "node0").removeprefix("node")
    here = [line for line in pieces.splitlines() if line.startswith(f"Node {node},")]
    common = sum(
        (page * int(count)) << order
        for line in here
        for order, count in enumerate(line.partition("zone")[2].split()[1 : 1 + _SMALL_ORDERS])
    )
    return SmallPieces(listed, common)


@contextmanager
def whole_pieces(largest: int) -> Iterator[None]:
    """Keep the small pieces of free memory from the processes that start within this context.

    Pages of a file without content occupy them meanwhile. The kernel may take these pages back whenever it needs some.
    Nothing happens if few pieces are small, if the file cannot be made or read, and within another call's context.

    Args:
        largest: Bytes that the largest network takes; nothing happens for small ones.
    """
    with ExitStack() as held:
        if largest >= _NOTICED_BYTES and not _WITHIN.get() and (small := small_pieces()).total >= _NOTICED_BYTES:
            held.callback(_WITHIN.reset, _WITHIN.set(True))
            with suppress(OSError):
                filling = held.enter_context(TemporaryFile(buffering=0, dir=_FOLDER))
                thread = Thread(target=_fill, args=(filling.fileno(), small))  # its place on processors ends with it
                thread.start()
                thread.join()
        yield


def _fill(descriptor: int, small: SmallPieces) -> None:
    """Read a file without content, on each processor as much as its list has."""
    most = min(_MOST_BYTES, small.total, int(_MOST_SHARE * psutil.virtual_memory().free))
    until, chunk, offset = time.monotonic() + _MOST_S, memoryview(bytearray(_CHUNK_BYTES)), 0
    with suppress(OSError):
        os.truncate(descriptor, max(most, 0))
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead, into larger pieces
        for processor, size in [*small.listed.items(), (next(iter(small.listed), 0), small.common)]:
            pin((processor,))
            end = min(offset + size, most)
            while offset < end and time.monotonic() < until:
                offset += os.preadv(descriptor, [chunk[: end - offset]], offset)
