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


@pytest.mark.parametrize(
    ("gb_per_s", "expected"),
    [
        (EPYC, 20),
        (XEON, 96),
        ({4: 20}, 128),
        ({4: 40, 8: 11, 12: 10}, 0),
    ],
    ids=["epyc", "xeon", "all warm", "small"],
)
def test_the_largest_class_at_the_pace_of_the_caches(gb_per_s, expected, monkeypatch):
    def ns_per_byte(_: object, size: int) -> float:
        return 1 / gb_per_s[max(mib for mib in gb_per_s if mib * MIB <= size)]

    monkeypatch.setattr(cache_reach, "_ns_per_byte", ns_per_byte)

    assert cache_reach.warm_bytes.__wrapped__() == expected * MIB


def test_this_machine_has_an_answer():
    assert cache_reach.warm_bytes() in {0, *REUSE_LEVELS}
