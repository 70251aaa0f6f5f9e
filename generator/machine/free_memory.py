"""The pieces of free memory, of which the kernel hands out the smallest first.

After other programs have run, the smallest are single pages from all over the memory, also those that wait in the list
of a processor. The program that gets them reads its weights more slowly than one that comes a moment later and gets
whole pieces. Of the bricks and models of a run this would slow down whatever comes first (``benchmarks/pieces.py``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import psutil

from .cores import allowed, pin

_SMALL_ORDERS = 4
"""Sizes of a piece that count as small: 1, 2, 4 and 8 pages."""

_NOTICED_BYTES = 64 << 20
"""Less in small pieces makes no difference to a model that memory slows down."""

_MOST_BYTES, _MOST_SHARE = 4 << 30, 0.25
"""Most to fill, in bytes and as a share of the available memory."""

_CHUNK_BYTES = 1 << 20

_LISTED = re.compile(r"cpu: (\d+)\s+count: +(\d+)")


@dataclass(frozen=True, slots=True)
class SmallPieces:
    """Free memory in small pieces, in bytes.

    Attributes:
        listed: In the list of each processor, which whatever runs there gets first.
        common: In pieces that are common to all.
    """

    listed: Mapping[int, int]
    common: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.listed.values()) + self.common


def small_pieces(system: Path = Path("/proc")) -> SmallPieces:
    """Return how much of the free memory is in small pieces; nothing where the system does not tell."""
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        zones, pieces = (system / "zoneinfo").read_text(), (system / "buddyinfo").read_text()
    except OSError:
        return SmallPieces({}, 0)
    listed: dict[int, int] = {}
    for processor, pages in _LISTED.findall(zones):
        listed[int(processor)] = listed.get(int(processor), 0) + page * int(pages)
    common = sum(
        (page * int(count)) << order
        for line in pieces.splitlines()
        for order, count in enumerate(line.partition("zone")[2].split()[1 : 1 + _SMALL_ORDERS])
    )
    return SmallPieces(listed, common)


@contextmanager
def whole_pieces() -> Iterator[None]:
    """Keep the small pieces of free memory from the programs that start within this context.

    They hold pages of an empty file meanwhile. These pages were free, and the kernel takes them back at once where it
    has no others. Nothing happens where few pieces are small, or where no temporary file can be made.
    """
    small = small_pieces()
    if small.total < _NOTICED_BYTES:
        yield
        return
    try:
        filling = TemporaryFile(buffering=0)  # noqa: SIM115  (closed below, whatever happens inside)
    except OSError:
        yield
        return
    with filling:
        _fill(filling.fileno(), small, min(_MOST_BYTES, int(_MOST_SHARE * psutil.virtual_memory().available)))
        yield


def _fill(descriptor: int, small: SmallPieces, most: int) -> None:
    """Read a file without content, on each processor as much as its list has: no disk is used."""
    try:
        os.truncate(descriptor, min(small.total, most))
    except OSError:
        return  # beyond a limit on the size of files
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead, into larger pieces
    before, chunk, offset = allowed(), bytearray(_CHUNK_BYTES), 0
    try:
        for processor in sorted(before & small.listed.keys()):
            if pin((processor,)):
                offset = _read(descriptor, chunk, offset, small.listed[processor])
    finally:
        pin(tuple(before))
    _read(descriptor, chunk, offset, small.common)


def _read(descriptor: int, chunk: bytearray, offset: int, size: int) -> int:
    """Read so many bytes from a place of a file; return the place behind them."""
    for begin in range(offset, offset + size, len(chunk)):
        os.preadv(descriptor, [chunk], begin)
    return offset + size
