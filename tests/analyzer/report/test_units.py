"""Numbers as they are written."""

from __future__ import annotations

import pytest
from dlbricks.analyzer.report.units import quantity, size


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.3268, "0.327"), (3, "3"), (161.4, "161"), (999.6, "1 k"), (4_090_000_000, "4.09 G")],
)
def test_small_rates_keep_their_digits(value, text):
    assert quantity(value) == text


def test_bytes_are_whole():
    assert size(512) == "512 B"
    assert size(97.5 * 2**20) == "97.5 MiB"
