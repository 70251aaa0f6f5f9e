"""The benchmark of reproductions: what is counted, and that its page is that of the data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import reproduce

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def test_every_field_is_found_and_made_another() -> None:
    part = {"a": {"b": [1], "c": None}, "d": True, "e": {}}

    assert list(reproduce.leaves(part, ())) == [("a", "b"), ("a", "c"), ("d",), ("e",)]
    for value in (True, False, 1, 1.5, "word", None, [], ["a"], {}):
        assert reproduce._other(value) != value


def test_verdicts_of_all_calls_are_counted_together() -> None:
    calls = [
        {"verdicts": {"SAME": 3, "FASTER": 0, "SLOWER": 1, "UNCLEAR": 0}, "not_measured": 0},
        {"verdicts": {"SAME": 1, "FASTER": 1, "SLOWER": 0, "UNCLEAR": 1}, "not_measured": 1},
    ]

    found = reproduce.shares(calls)

    assert found == pytest.approx(
        {"SAME": 0.5, "FASTER": 0.125, "SLOWER": 0.125, "UNCLEAR": 0.125, "not measured": 0.125}
    )


def test_same_is_within_the_interval() -> None:
    rows = [{"ratio_ci95": (0.99, 1.02)}, {"ratio_ci95": (0.95, 1.04)}, {"ratio_ci95": (1.0, 1.2)}]

    assert [reproduce.same_within(rows, effect) for effect in (0.03, 0.06, 0.2)] == [1, 2, 3]


def test_the_page_is_that_of_the_data() -> None:
    result = json.loads((RESULTS / "reproduce.json").read_text())

    assert (RESULTS / "reproduce.md").read_text() == reproduce.page(result)
    assert sum(result["shares"].values()) == pytest.approx(1)


def test_what_was_altered_was_named() -> None:
    result = json.loads((RESULTS / "reproduce.json").read_text())

    assert result["altered"]["unnamed"] == []
    assert all(one["altered"] == one["named"] > 0 for one in result["altered"]["named"].values())
    assert result["altered_hash"] == {"exit_code": 1, "named": True, "left_behind": 0}
