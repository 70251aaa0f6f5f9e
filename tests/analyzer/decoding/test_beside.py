"""Times of a decoder's loop."""

from __future__ import annotations

import pytest
from dlbricks.analyzer.decoding.beside import LoopTime


def test_a_step_in_which_memory_grows_does_not_make_a_visit_longer() -> None:
    grown = LoopTime.of([(2_000_000, 30_000_000, 2_200_000), (2_400_000, 2_400_000, 2_400_000)])

    assert grown.ms == pytest.approx(2.3)
    assert grown.ci95_ms is not None
    assert grown.ci95_ms[1] - grown.ms == pytest.approx(12.706 * 0.1, rel=1e-3)  # Student's t of one degree of freedom
    assert (grown.visits, grown.tokens) == (2, 6)


def test_one_visit_has_no_interval() -> None:
    assert LoopTime.of([(5_000_000,)]) == LoopTime(1, 5.0, None, 1)
