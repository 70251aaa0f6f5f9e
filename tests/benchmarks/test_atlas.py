"""The atlas of versions: which changes hold when they are repeated."""

from __future__ import annotations

import atlas
import pytest


def changed(ratio: float, *again: float, day: str = "2026-11-02") -> dict[str, object]:
    return {"ratio": ratio, "again": [{"date": day, "ratio": once} for once in again]}


@pytest.mark.parametrize(
    ("row", "held"),
    [
        ({"ratio": 1.2}, None),
        (changed(1.2, 1.19, 1.22), True),
        (changed(1.2, 1.19, 1.05), False),
        (changed(0.5, 0.6), True),
        (changed(0.5, 2.0), False),
    ],
)
def test_a_change_holds_if_each_repetition_shows_half_of_it(row, held):
    assert atlas.holds(row) is held


def test_a_repetition_on_another_processor_counts_for_that_one():
    row = changed(1.2, 1.19)
    row["again"].append({"date": "2026-11-03", "ratio": 1.0, "cpu": "other"})

    assert (atlas.holds(row), atlas.holds(row, "other"), atlas.holds(row, "third")) == (True, False, None)


@pytest.mark.parametrize(("day", "other"), [("2026-11-01", False), ("2026-11-02", True)])
def test_a_repetition_of_the_same_day_is_none_on_another(day, other):
    pair = {"date": "2026-11-01", "rows": [{"ratio": 1.2}, changed(1.2, 1.2, day=day)]}

    assert atlas.on_another_day(pair) is other
