"""Small pieces of free memory are kept from the processes that are measured."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import IO, Any

import pytest
from dlbricks.generator.machine import free_memory
from dlbricks.generator.machine.free_memory import SmallPieces, small_pieces, whole_pieces

PAGE, MIB = os.sysconf("SC_PAGE_SIZE"), 1 << 20

PIECES = """\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal  58507  57281  27597  15412   1339   4274   3627   1575   1137    218   1281
Node 1, zone   Normal      7      7      7      7      7      7      7      7      7      7      7
"""
LISTS = """\
Node 0, zone   Normal
  pages free     3774311
  pagesets
    cpu: 0
              count:    212451
              high:     212546
    cpu: 1
              count:    52209
              high:     52671
    cpu: 2
              count:    9
Node 1, zone   Normal
  pagesets
    cpu: 1
              count:    10
"""


def test_lists_of_cores_and_pieces_of_up_to_64_pages_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "buddyinfo").write_text(PIECES)
    (tmp_path / "zoneinfo").write_text(LISTS)
    monkeypatch.setattr(free_memory, "physical_cores", lambda: (0, 1))  # networks run on these, of one node
    monkeypatch.setattr(free_memory, "node_of", lambda _: "node0")

    small = small_pieces(tmp_path)

    assert small.listed == {0: 212451 * PAGE, 1: 52219 * PAGE}
    assert small.common == (58507 + 2 * 57281 + 4 * 27597 + 8 * 15412 + 16 * 1339 + 32 * 4274 + 64 * 3627) * PAGE
    assert small.total == small.common + 264670 * PAGE
    assert small_pieces(tmp_path / "none").total == 0


class Filling:
    """The file that fills pieces, while it is open."""

    def __init__(self) -> None:
        self.file: IO[bytes] | None = None

    def made(self, **options: Any) -> IO[bytes]:
        self.file = TemporaryFile(**options)  # noqa: SIM115  (closed by the context under test)
        return self.file

    def resident(self) -> int:
        """Return how many of its bytes are in memory; no other file counts, nor what other programs do."""
        assert self.file is not None
        page, count = bytearray(PAGE), 0
        for offset in range(0, os.fstat(self.file.fileno()).st_size, PAGE):
            with suppress(BlockingIOError):
                count += os.preadv(self.file.fileno(), [page], offset, os.RWF_NOWAIT)
        return count


@pytest.fixture
def filling(monkeypatch: pytest.MonkeyPatch) -> Filling:
    """A watched file on a machine with 96 MiB in small pieces, a part of a megabyte in the list of one processor."""
    core, made = min(os.sched_getaffinity(0)), Filling()
    small = SmallPieces({core: 32 * MIB + 3 * PAGE, core + 4096: 300 << 10}, 64 * MIB)
    monkeypatch.setattr(free_memory, "small_pieces", lambda: small)
    monkeypatch.setattr(free_memory, "TemporaryFile", made.made)
    return made


def with_free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(free_memory.psutil, "virtual_memory", lambda: SimpleNamespace(free=size))


def test_pages_of_a_file_occupy_them_and_are_given_back(filling: Filling, monkeypatch: pytest.MonkeyPatch):
    with_free(monkeypatch, 1 << 40)
    before = os.sched_getaffinity(0)

    with whole_pieces(64 * MIB):
        within = filling.resident()
        with whole_pieces(64 * MIB):  # as of a run within the command that measures
            assert filling.resident() == within
    if not within:
        pytest.skip("the temporary folder is in memory: its files have no pages")

    assert within == 96 * MIB + 3 * PAGE + (300 << 10)
    assert filling.file is not None
    assert filling.file.closed
    assert os.sched_getaffinity(0) == before


def test_no_more_than_half_of_the_free_memory(filling: Filling, monkeypatch: pytest.MonkeyPatch):
    with_free(monkeypatch, 120 * MIB)  # most of it in small pieces

    with whole_pieces(64 * MIB):
        assert filling.resident() in {0, 60 * MIB}


@contextmanager
def refusing(reason: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that lets nothing be filled."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if reason == "no file":
        monkeypatch.setattr(free_memory, "_FOLDER", Path("/no such folder"))
    if reason == "few pieces":
        monkeypatch.setattr(free_memory, "small_pieces", lambda: SmallPieces({}, MIB))
    if reason == "no room":
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("reason", ["no file", "few pieces", "no room", "small"])
def test_without_them_all_goes_on(reason: str, filling: Filling, monkeypatch: pytest.MonkeyPatch):
    with_free(monkeypatch, 1 << 40)
    reached = False
    with refusing(reason, monkeypatch), whole_pieces(MIB if reason == "small" else 64 * MIB):
        reached = True
        assert filling.file is None or not filling.resident()

    assert reached
