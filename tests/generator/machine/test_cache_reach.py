"""What caches hold, from the pace at which memory is read again."""

from __future__ import annotations

import pytest
from dlbricks.bricks.graph.footprint import REUSE_LEVELS
from dlbricks.generator.machine import cache_reach

MIB = 1 << 20
EPYC = {4: 55, 8: 56, 16: 50, 24: 25, 32: 21, 64: 20, 128: 19}
"""GB/s from so many MiB on, as measured on a virtual machine with 32 MiB of last-level cache."""
XEON = {4: 24, 8: 23, 16: 23, 32: 22, 64: 21, 80: 21, 128: 9}
"""The same with 480 MiB, the cache of its whole socket."""


ONCE = {4: 50, 64: 45, 96: 23}
"""How fast 4 MiB are read on the EPYC after so many others passed."""


@pytest.mark.parametrize(
    ("gb_per_s", "after", "expected"),
    [
        (EPYC, ONCE, (20, 64)),
        (XEON, XEON, (96, 96)),
        (EPYC, EPYC, (20, 20)),
        ({4: 20}, {4: 20}, (128, 128)),
        ({4: 40, 8: 11, 12: 10}, {4: 10}, (0, 0)),
    ],
    ids=["epyc", "xeon", "everything alike", "all warm", "small"],
)
def test_the_largest_classes_at_the_pace_of_the_caches(gb_per_s, after, expected, monkeypatch):
    def pace(known: dict[int, int], size: int) -> float:
        return 1 / known[max(mib for mib in known if mib * MIB <= size)]

    monkeypatch.setattr(cache_reach, "_again_ns", lambda parts: pace(gb_per_s, parts.nbytes))
    monkeypatch.setattr(cache_reach, "_after_ns", lambda _, __, count: pace(after, 4 * MIB * count))

    assert cache_reach.last_level.__wrapped__() == tuple(mib * MIB for mib in expected)


def test_this_machine_has_an_answer():
    several, once = cache_reach.last_level()

    assert {several, once} <= {0, *REUSE_LEVELS}
    assert several <= once
