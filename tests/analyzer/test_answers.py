"""What tables say beside their rows."""

from __future__ import annotations

import json

import pytest
from dlbricks.analyzer.answers import estimated, ran
from dlbricks.analyzer.tables import render
from dlbricks.analyzer.units import ratio_within
from dlbricks.constructor.result import Coverage, Estimate, SequenceLatency
from dlbricks.db import Conditions, Failure, Subject
from dlbricks.generator.measurement.costs import RunCosts
from dlbricks.generator.measurement.run import RunReport


def _sequence(index: int, latency_ms: float, lowest_ms: float, stack: str, variant: str) -> SequenceLatency:
    return SequenceLatency(
        index, f"key{index}", (index,), (f"n{index}",), ("Conv",), latency_ms=latency_ms, lower_bound_ms=lowest_ms,
        fastest_stack=stack, fastest_variant=variant,
    )  # fmt: skip


def test_explain_tells_what_is_faster_than_the_stack_itself() -> None:
    own, other = "a" * 64, "b" * 64
    parts = (
        _sequence(0, 2.0, 2.0, own, ""),
        _sequence(1, 3.0, 2.5, own, "extended"),
        _sequence(2, 3.0, 2.5, own, "extended"),
        _sequence(3, 9.0, 4.0, other, ""),
    )
    entry = Estimate(
        name="m", granularity=1, stack=own, sequences=parts, coverage=Coverage(1.0, None), benanza_note="it is faster"
    )

    summary = estimated([entry], explain=True).summary

    begin = summary.index("m: faster than this stack, in the lower bound")
    assert summary[begin + 1].split() == ["5.000", "ms", "less", "in", "1", "sequence:", "stack", "bbbbbbbbbbbb"]
    assert summary[begin + 2].split() == [
        "1.000",
        "ms",
        "less",
        "in",
        "2",
        "sequences:",
        "this",
        "stack,",
        "algorithm",
        "extended",
    ]
    assert "m: it is faster" in summary
    assert not any("faster than this stack" in line for line in estimated([entry]).summary)


def test_a_run_counts_algorithms_by_themselves_and_names_those_that_failed() -> None:
    failure = Failure(
        "id",
        "run",
        Subject.BRICK,
        "f" * 64,
        "system",
        "stack",
        Conditions(1),
        "unsupported",
        "no such kernel",
        "winograd",
    )
    report = RunReport(
        run="run", system="system", stack="stack", bricks=4, measured=4, reused=0, failed=0, remaining=0, models=0,
        models_remaining=0, failures=(), algorithms=5, algorithms_reused=1, algorithms_remaining=1,
        algorithm_failures=(failure,), wall_s=1.0, timed_s=0.5, prepare_s=0.1, forecast_s=1.0, budget_s=1.0,
        dry_run=False, costs=RunCosts(),
    )  # fmt: skip

    answer = ran(report)

    assert answer.results == [{"key": "f" * 64, "reason": "no such kernel", "variant": "winograd"}]
    assert "with other algorithms: 1 known, 1 not offered, 0 failed, 5 measured" in answer.summary
    assert any("0 and 1 with other algorithms left over" in line for line in answer.summary)
    assert not report.complete  # one is left over; the failure alone would be an answer


def test_bricks_that_an_algorithm_is_not_for_are_one_row_of_the_table_per_reason() -> None:
    def failure(key: str, variant: str, reason: str) -> Failure:
        return Failure(
            "id", "run", Subject.BRICK, key, "system", "stack", Conditions(1), "unsupported", reason, variant
        )

    report = RunReport(
        run="run", system="system", stack="stack", bricks=4, measured=1, reused=0, failed=2, remaining=0, models=0,
        models_remaining=0, failures=(("b1", "too large"), ("b2", "too large")), algorithms=1, algorithms_reused=0,
        algorithms_remaining=0, wall_s=1.0, timed_s=0.5, prepare_s=0.1, forecast_s=1.0, budget_s=None, dry_run=False,
        algorithm_failures=(
            failure("b3", "padded-8", "no channels"), failure("b4", "padded-8", "no channels"),
            failure("b3", "padded-16", "no channels"),
        ),
        costs=RunCosts(),
    )  # fmt: skip

    answer = ran(report)

    assert len(answer.results) == 5
    assert [(row["key"], row["variant"]) for row in answer.table] == [
        ("b1", ""), ("b2", ""), ("2 bricks", "padded-8"), ("b3", "padded-16"),
    ]  # fmt: skip


def _beside(name: str, ratio: float | None = 1.09, **changes: object) -> Estimate:
    known = {
        "estimate_ms": 4.36, "measured_ms": 4.0, "ratio": ratio, "ratio_ci95": (0.93, 1.27), "paired": True,
        "disturbed": False, "disturbance": 0.02, "undisturbed_ms": 3.9, "coverage": Coverage(1.0, None),
    }  # fmt: skip
    return Estimate(name=name, granularity=1, **(known | changes))  # type: ignore[arg-type]


def test_a_ratio_is_shown_with_its_interval_beside_the_undisturbed_latency() -> None:
    answer = estimated([_beside("m"), _beside("n", None, ratio_ci95=None, paired=None, measured_ms=None)])

    header, _, first, second = render(answer).splitlines()

    assert "undisturbed ms  measured ms  ratio" in header
    assert "3.900" in first
    assert "1.09 [0.93, 1.27]" in first
    assert second.split()[-2:] == ["-", "100%"]
    assert answer.summary == []  # nothing was disturbed
    assert "ratio_within" not in json.loads(render(answer, "json"))["results"][0]


def test_a_machine_that_was_disturbed_is_one_line_whatever_the_number_of_models() -> None:
    disturbed = [_beside(f"m{n}", disturbed=True, disturbance=0.2 + n / 10) for n in range(6)]

    (line,) = estimated([_beside("calm"), *disturbed]).summary

    assert line.startswith(
        "disturbed: the machine slowed 6 of 7 models (m5 +70%, m4 +60%, m3 +50%, m2 +40%, and 2 more)"
    )
    assert "undisturbed_ms" in line


def test_what_is_not_paired_says_what_to_do() -> None:
    (line,) = estimated([_beside("m"), _beside("n", paired=False)]).summary

    assert line.startswith("not paired: ")
    assert "(n)" in line
    assert "dlbricks run SUITE --with MODEL --again all" in line


def test_an_interval_that_says_nothing_stays_short() -> None:
    assert ratio_within(1.0, (1e-22, 5e21)) == "1.00 [0.00, 5e+21]"
    assert ratio_within(1.0, None) == "1.00"


@pytest.mark.parametrize(("watched_s", "said"), [(1.04, None), (1.11, "11% more"), (0.9, "10% less"), (0.0, None)])
def test_a_run_says_where_profiled_passes_differ_from_others(watched_s: float, said: str | None) -> None:
    report = RunReport(
        run="run", system="system", stack="stack", bricks=4, measured=4, reused=0, failed=0, remaining=0, models=0,
        models_remaining=0, failures=(), algorithms=0, algorithms_reused=0, algorithms_remaining=0,
        algorithm_failures=(), wall_s=1.0, timed_s=0.5, prepare_s=0.1, forecast_s=1.0, budget_s=None, dry_run=False,
        costs=RunCosts(watched_s=watched_s, unwatched_s=1.0),
    )  # fmt: skip

    lines = [line for line in ran(report).summary if "profiled passes" in line]

    assert len(lines) == (said is not None)
    assert said is None or said in lines[0]
