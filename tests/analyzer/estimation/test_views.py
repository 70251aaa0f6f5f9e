"""Bricks that an eager runtime answers with a view."""

from __future__ import annotations

import pytest
from dlbricks.analyzer.estimation.views import ends_in_view


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        (["Transpose"], True),
        (["Conv", "Split"], True),
        (["Transpose", "Unsqueeze", "Squeeze"], True),
        (["Transpose", "MatMul"], False),
        (["Transpose", "Reshape"], False),  # the copy is made inside
        (["Reshape"], False),
        (["Squeeze"], False),
        ([], False),
    ],
)
def test_what_rearranges_last_is_a_view(operators, expected):
    assert ends_in_view(operators) is expected
