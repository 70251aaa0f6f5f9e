"""What tables say beside their rows."""

from __future__ import annotations

import json

import pytest
from dlbricks.analyzer.estimation.estimates import Estimates
from dlbricks.analyzer.report.answers.estimates import estimates_answer
from dlbricks.analyzer.report.answers.runs import run_answer
from dlbricks.analyzer.report.tables import render
from dlbricks.analyzer.report.units import ratio_within
from dlbricks.constructor.result import Coverage, Estimate, SequenceLatency
from dlbricks.db import Conditions, Failure, Subject
from dlbricks.generator.measurement.costs import RunCosts
from dlbricks.generator.measurement.run import RunReport


def _sequence(index: int, latency_ms: float, lowest_ms: float, stack: str, variant: str) -> SequenceLatency:
    return SequenceLatency(
        index, f"key{index}", (index,), (f"n{index}",), ("Conv",), latency_ms=latency_ms, lower_bound_ms=lowest_ms,
        fastest_stack=stack, fastest_variant=variant,
    )  # fmt: skip


def test_explain_shows_what_is_faster_than_the_stack_itself() -> None:
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

    summary = estimates_answer(Estimates((entry,)), explain=True).summary

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
    assert not any("faster than this stack" in line for line in estimates_answer(Estimates((entry,))).summary)


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

    answer = run_answer(report)

    assert answer.results == [{"key": "f" * 64, "reason": "no such kernel", "variant": "winograd", "threads": 1}]
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

    answer = run_answer(report)

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
    without = _beside("n", None, ratio_ci95=None, paired=None, measured_ms=None)

    answer = estimates_answer(Estimates((_beside("m"), without)))

    header, _, first, second = render(answer, width=200).splitlines()

    assert "undisturbed ms  measured ms ±95%  ratio" in header
    assert "3.900" in first
    assert "1.09 [0.93, 1.27]" in first
    assert second.split()[-2:] == ["-", "100%"]
    assert answer.summary == []  # nothing was disturbed
    assert "ratio_within" not in json.loads(render(answer, "json"))["results"][0]


def test_a_machine_that_was_disturbed_is_one_line_whatever_the_number_of_models() -> None:
    disturbed = [_beside(f"m{n}", disturbed=True, disturbance=0.2 + n / 10) for n in range(6)]

    (line,) = estimates_answer(Estimates((_beside("calm"), *disturbed))).summary

    assert line.startswith(
        "disturbed: the machine slowed 6 of 7 models (m5 +70%, m4 +60%, m3 +50%, m2 +40%, and 2 more)"
    )
    assert "undisturbed_ms" in line


def test_what_is_not_calibrated_is_said_once_for_all_models() -> None:
    entries = _beside("a", calibrated=False), _beside("b", calibrated=True), _beside("c", calibrated=False)

    answer = estimates_answer(Estimates(entries))

    (line,) = answer.summary
    assert line.startswith("not calibrated: how far such estimates are off is not known (a, c)")


def test_what_is_not_paired_says_what_to_do() -> None:
    (line,) = estimates_answer(Estimates((_beside("m"), _beside("n", paired=False)))).summary

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

    lines = [line for line in run_answer(report).summary if "profiled passes" in line]

    assert len(lines) == (said is not None)
    assert said is None or said in lines[0]


def test_a_latency_carries_its_interval_and_a_table_fits_its_width() -> None:
    names = ("estimate_ms", "ci95_ms", "measured_ci95_ms", "lower_bound_sequential_ms", "sequential_ms")
    entry = _beside("m", **dict(zip(names, (4.36, (3.0, 5.5), (3.9, 4.1), 4.0, 5.0), strict=True)))

    wide, narrow = (render(estimates_answer(Estimates((entry,))), width=width).splitlines() for width in (200, 90))

    assert "4.360 ± 1.4" in wide[2]
    assert "4.000 ± 0.10" in wide[2]
    assert max(map(len, narrow)) <= 90
    assert "4.360 ± 1.4" in narrow[-1]
    assert not any("undisturbed" in line for line in narrow)


def test_a_bound_above_the_estimate_is_none() -> None:
    entry = _beside("m", lower_bound_sequential_ms=6.0)

    answer = estimates_answer(Estimates((entry,)))

    assert answer.results[0]["lower_bound_sequential_ms"] == 6.0
    assert answer.table is not None
    assert answer.table[0]["lower_bound_sequential_ms"] is None
    assert answer.summary[0].startswith("m: no lower bound, since the cheapest bricks that make it up take 6.000 ms")


def test_only_the_costliest_of_the_critical_path_are_listed() -> None:
    path = tuple(
        SequenceLatency(n, f"k{n}", (n,), (f"n{n}",), ("Conv",), latency_ms=float(n), ci95_ms=(n - 0.5, n + 0.5))
        for n in range(20)
    )  # fmt: skip
    entry = _beside("m", sequences=path, path=path)

    some, every = (estimates_answer(Estimates((entry,)), explain=True, most=most).summary for most in (15, None))

    begin = next(i for i, line in enumerate(some) if "critical path" in line)
    assert some[begin + 1].split() == ["ms", "±95%", "operators", "layer"]
    assert some[begin + 3].split() == ["19.000", "±", "0.50", "Conv", "n19"]
    assert some[begin + 18] == "and 5 more (--all lists them)"
    assert every[-1].split()[-1] == "n0"


def test_a_run_counts_what_is_not_stable_and_shows_measured_models_from_known_ones() -> None:
    report = RunReport(
        run="run", system="system", stack="stack", bricks=282, measured=282, reused=0, failed=0, remaining=0, models=3,
        models_remaining=0, failures=(), algorithms=0, algorithms_reused=0, algorithms_remaining=0,
        algorithm_failures=(), wall_s=1.0, timed_s=0.5, prepare_s=0.1, forecast_s=1.0, budget_s=None, dry_run=False,
        costs=RunCosts(), models_measured=1, verdicts={"stable": 14, "unstable": 258, "noisy": 10},
    )  # fmt: skip

    summary = run_answer(report).summary

    assert "3 whole models: 2 known, 1 measured" in summary
    (line,) = [line for line in summary if line.startswith("of 282 latencies")]
    assert "258 unstable" in line
    assert "10 noisy" in line
    assert "--again noisy" in line
