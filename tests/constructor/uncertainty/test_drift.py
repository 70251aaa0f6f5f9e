from __future__ import annotations

import pytest
from dlbricks.constructor.uncertainty.drift import LIMIT, reference_of, why_not_comparable


def test_the_reference_of_a_sum_is_weighted_by_share():
    assert reference_of([(9.0, 100.0), (1.0, 200.0)]) == pytest.approx(110.0)
    assert reference_of([(9.0, 100.0), (1.0, None)]) is None
    assert reference_of([]) is None


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_limit_is_three_per_cent(sign):
    assert LIMIT == 0.03
    assert why_not_comparable(100.0 * (1 + sign * 0.029), 100.0) is None
    assert "3.1%" in why_not_comparable(100.0 * (1 + sign * 0.031), 100.0)


def test_an_unknown_reference_is_said_of_whom():
    assert "beside the bricks" in why_not_comparable(None, 1.0)
    assert "beside the model" in why_not_comparable(1.0, None)
