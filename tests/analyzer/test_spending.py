"""A budget that did not hold has a reason."""

from __future__ import annotations

from importlib import import_module

import pytest

spending = import_module("dlbricks.analyzer.spending")


@pytest.mark.parametrize(
    ("budget_s", "once_ms", "expected"),
    [
        (None, 10.0, ()),
        (70.0, 900.0, ()),
        (40.0, None, ("75 s of work for a budget of 40 s: measuring took 60 s",)),
        (40.0, 10.0, ("75 s of work for a budget of 40 s: measuring took 60 s",)),
        (40.0, 2300.0, ("75 s of work for a budget of 40 s: measuring took 60 s; one execution of big takes 2.3 s",)),
    ],
)
def test_a_budget_that_did_not_hold_has_a_reason(budget_s, once_ms, expected, monkeypatch):
    times = iter([0.0, 10.0, 50.0, 54.0, 55.0, 75.0])
    monkeypatch.setattr(spending, "work_clock", lambda: next(times))
    spent = spending.Spending()
    for step in ("decomposing", "measuring", "analyses and proofs", "the page", "measuring"):
        spent.on(step)

    assert spent.beyond(budget_s, {"small": 1.0, "big": once_ms, "unknown": None}) == expected
