"""What is said of dynamic dimensions."""

from __future__ import annotations

from dlbricks.analyzer.estimation.estimates import Estimates
from dlbricks.analyzer.report.answers.bindings import bound_lines
from dlbricks.analyzer.report.answers.estimates import estimates_answer
from dlbricks.constructor.result import Coverage, Estimate, Missing


def test_models_that_are_bound_alike_share_a_line_and_static_ones_have_none() -> None:
    models = [(f"m{n}", {"batch": 1, "past": 127}) for n in range(6)]

    lines = bound_lines([*models, ("static", {}), ("other", {"batch": 4})])

    assert lines == ["bound: batch=1 past=127 (m0, m1, m2, m3, and 2 more)", "bound: batch=4 (other)"]


def test_only_some_of_many_bindings_are_listed() -> None:
    lines = bound_lines((f"m{n}", {"batch": n + 1}) for n in range(9))

    assert len(lines) == 6
    assert lines[-1] == "and 4 more bindings (--json lists all)"


def test_an_estimate_without_bricks_says_what_it_was_bound_to() -> None:
    missing = Missing("k", 3, ("a",), ("Conv",), "not measured", None)
    entry = Estimate(
        name="m", granularity=1, missing=(missing,), coverage=Coverage(0.2, None), bound={"batch": 1, "past": 127}
    )  # fmt: skip

    summary = estimates_answer(Estimates((entry,))).summary

    assert "  or in other shapes: bound to batch=1 past=127; give the --batch and --dim of the suite" in summary
    assert summary[-1] == "bound: batch=1 past=127 (m)"
