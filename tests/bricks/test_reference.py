"""Networks of our own have names, and keys of their content."""

from __future__ import annotations

from dlbricks.bricks.reference import CHAIN, GEMM, OVERHEAD, STREAM, built_in, built_in_key
from dlbricks.db.samples.rates import STREAM_SIZES, ceiling_names


def test_names_that_no_network_has():
    assert [built_in(name) for name in (GEMM, f"{GEMM}x", f"{STREAM}-1", "@ceiling", "gemm-64")] == [None] * 5


def test_networks_of_other_sizes_have_other_keys():
    names = [CHAIN, OVERHEAD, *ceiling_names(STREAM_SIZES)]

    assert len({built_in_key(name) for name in names}) == len(names)
