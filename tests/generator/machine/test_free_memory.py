"""Small pieces of free memory are kept from programs that are measured."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from dlbricks.generator.machine import free_memory

PAGE = os.sysconf("SC_PAGE_SIZE")

PIECES = """\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal  58507  57281  27597  15412   1339   4274   3627   1575   1137    218   1281
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
Node 1, zone   Normal
  pagesets
    cpu: 1
              count:    10
"""


def test_lists_of_processors_and_pieces_of_up_to_eight_pages_count(tmp_path: Path):
    (tmp_path / "buddyinfo").write_text(PIECES)
    (tmp_path / "zoneinfo").write_text(LISTS)

    small = free_memory.small_pieces(tmp_path)

    assert small.listed == {0: 212451 * PAGE, 1: 52219 * PAGE}
    assert small.common == (58507 + 2 * 57281 + 4 * 27597 + 8 * 15412) * PAGE
    assert small.total == small.common + 264670 * PAGE
    assert free_memory.small_pieces(tmp_path / "none").total == 0


def cached_bytes() -> int:
    """Memory that holds pages of files."""
    words = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return next(int(count) << 10 for name, count, *_ in words if name == "Cached:")


def opened_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.skipif(not Path("/proc/buddyinfo").exists(), reason="Linux tells the sizes of free pieces")
def test_they_are_filled_and_given_back(monkeypatch: pytest.MonkeyPatch):
    size, here = 256 << 20, os.sched_getaffinity(0)
    made = free_memory.SmallPieces({min(here): size // 2, 1 << 20: size}, size // 2)
    monkeypatch.setattr(free_memory, "small_pieces", lambda: made)
    before, files = cached_bytes(), opened_files()

    with free_memory.whole_pieces():
        within = cached_bytes()

    assert within - before > size / 2
    assert cached_bytes() - before < size / 2
    assert opened_files() == files
    assert os.sched_getaffinity(0) == here


@pytest.mark.parametrize("refused", ["few", "no file", "no room"])
def test_without_them_all_goes_on(refused: str, monkeypatch: pytest.MonkeyPatch):
    made = free_memory.SmallPieces({}, 1 << 20 if refused == "few" else 256 << 20)
    monkeypatch.setattr(free_memory, "small_pieces", lambda: made)
    if refused == "no file":
        monkeypatch.setattr("tempfile.tempdir", "/no such folder")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if refused == "no room":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with free_memory.whole_pieces():
            done = True
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert done
