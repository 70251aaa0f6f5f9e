"""What tables say beside their rows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dlbricks.analyzer.estimation.estimate import estimate
from dlbricks.analyzer.estimation.estimates import Estimates
from dlbricks.analyzer.report.answers.estimated import estimates_answer
from dlbricks.analyzer.report.answers.runs import run_answer
from dlbricks.analyzer.report.tables import render
from dlbricks.constructor.curve import Interpolation
from dlbricks.constructor.result import Coverage, Estimate, SequenceLatency
from dlbricks.constructor.uncertainty.calibration import Method, MethodError
from dlbricks.db import Conditions, Failure, Measurement, Stop, Subject
from dlbricks.db.values import Circumstances, Identity
from dlbricks.generator.measurement.execution import RunOutcome
from dlbricks.generator.measurement.pace import RunCosts
from dlbricks.generator.measurement.run import RunReport
from dlbricks.generator.measurement.selection import Chosen, Selection, Sources
from dlbricks.generator.measurement.settings import MeasurementSettings, Order
from flat import changed, flat_estimate
from lab import Lab, summary_of


def _sequence(index: int, latency_ms: float, lowest_ms: float, stack: str, variant: str) -> SequenceLatency:
    return SequenceLatency(
        index, f"key{index}", (index,), (f"n{index}",), ("Conv",), latency_ms=latency_ms, lower_bound_ms=lowest_ms,
        fastest_stack=stack, fastest_variant=variant,
    )  # fmt: skip


def _measured(count: int) -> tuple[Measurement, ...]:
    identity = Identity(Subject.BRICK, "key", "system", "stack", Conditions(1))
    return (Measurement("id", "run", identity, 1, summary_of(1e6), Stop.VISITS),) * count


def _report(
    bricks: Selection,
    algorithms: Selection | None = None,
    budget_s: float | None = None,
    costs: RunCosts | None = None,
) -> RunReport:
    chosen = Chosen(Selection(), Sources(), bricks, algorithms or Selection())
    settings = MeasurementSettings(budget_s=budget_s)
    where = Circumstances("system", "stack", Conditions(1))
    return RunReport(RunOutcome(settings, Order("run"), "run", where, chosen, 1.0, None, costs or RunCosts(), 1.0))


def _failure(key: str, variant: str, reason: str) -> Failure:
    identity = Identity(Subject.BRICK, key, "system", "stack", Conditions(1), variant)
    return Failure("id", "run", identity, "unsupported", reason)


def test_explain_shows_what_is_faster_than_the_stack_itself() -> None:
    own, other = "a" * 64, "b" * 64
    parts = (
        _sequence(0, 2.0, 2.0, own, ""),
        _sequence(1, 3.0, 2.5, own, "extended"),
        _sequence(2, 3.0, 2.5, own, "extended"),
        _sequence(3, 9.0, 4.0, other, ""),
    )
    entry = flat_estimate(
        name="m", granularity=1, stack=own, sequences=parts, coverage=Coverage(1.0, None), benanza_note="it is faster"
    )

    summary = estimates_answer(Estimates((entry,)), explain=True).summary

    begin = summary.index("m: faster than this stack, of the fastest known bricks")
    assert [" ".join(line.split()) for line in summary[begin + 1 : begin + 3]] == [
        "5.00 ms less in 1 sequence: stack bbbbbbbbbbbb",
        "1.00 ms less in 2 sequences: this stack, algorithm extended",
    ]
    assert "m: it is faster" in summary
    assert not any("faster than this stack" in line for line in estimates_answer(Estimates((entry,))).summary)


def test_a_run_counts_algorithms_by_themselves_and_names_those_that_failed() -> None:
    failure = _failure("f" * 64, "winograd", "no such kernel")
    pending = (failure.identity,) * 7
    algorithms = Selection(pending, _measured(1), measured=_measured(5), refused=(failure,), settled=6)
    report = _report(Selection(measured=_measured(4)), algorithms, budget_s=1.0)

    answer = run_answer(report)

    assert answer.results == [{"key": "f" * 64, "reason": "no such kernel", "variant": "winograd", "threads": 1}]
    assert "other algorithms: 1 skipped (measured before), 1 not offered, 0 failed, 5 measured" in answer.summary
    assert any(
        "0 and 1 with other algorithms not measured when the budget was spent" in line for line in answer.summary
    )
    assert not report.complete  # one is left over; the failure alone would be an answer


def test_bricks_that_an_algorithm_is_not_for_are_one_row_of_the_table_per_reason() -> None:
    padded = [("b3", "padded-8"), ("b4", "padded-8"), ("b3", "padded-16")]
    large = tuple(_failure(key, "", "too large") for key in ("b1", "b2"))
    algorithms = Selection(measured=_measured(1), failed=tuple(_failure(*pair, "no channels") for pair in padded))
    report = _report(Selection(measured=_measured(1), failed=large), algorithms)

    answer = run_answer(report)

    assert len(answer.results) == 5
    assert [(row["key"], row["variant"]) for row in answer.table] == [
        ("b1", ""), ("b2", ""), ("2 bricks", "padded-8"), ("b3", "padded-16"),
    ]  # fmt: skip


@pytest.mark.parametrize(("watched_s", "said"), [(1.04, None), (1.11, "11% more"), (0.9, "10% less"), (0.0, None)])
def test_a_run_says_where_profiled_passes_differ_from_others(watched_s: float, said: str | None) -> None:
    costs = RunCosts(watched_s=watched_s, unwatched_s=1.0)
    summary = run_answer(_report(Selection(measured=_measured(4)), costs=costs)).summary

    lines = [line for line in summary if "profiled passes" in line]

    assert len(lines) == (said is not None)
    assert said is None or said in lines[0]


@pytest.mark.parametrize(("batches", "best"), [((1, 2), 2), ((1, 2, 4), 4), ((1, 2, 8), None)])
def test_the_best_batch_is_not_told_where_doublings_end_before_the_largest(batches: tuple[int, ...], best: int | None):
    known = [flat_estimate(f"a@b{n}", 1, estimate_ms=10.0 * n**0.5, batch=n) for n in batches]

    (row,) = Estimates(tuple(known)).to_json()["sweeps"]

    assert row["best_batch"] == best


def test_a_sweep_names_what_is_interpolated_and_shows_no_bound_above_its_estimate() -> None:
    bounds = {1: 9.0, 2: 21.0, 4: None}
    known = [
        flat_estimate(f"a@b{n}", 1, estimate_ms=10.0 * n, batch=n, lower_bound_sequential_ms=bounds[n]) for n in bounds
    ]
    read = Interpolation("batch", (1, 4), (1, 4, 8), bricks=3, share=0.75, error=0.1, left_out=())
    between = Estimates((known[0], changed(known[1], interpolated=read), known[2]))

    (row,) = Estimates(tuple(known)).to_json()["sweeps"]
    (other,) = between.to_json()["sweeps"]
    summary = render(estimates_answer(between)).splitlines()

    assert [point["lower_bound_ms"] for point in row["points"]] == [9.0, None, None]
    assert [point["per_s"] for point in row["points"]] == [100.0, 100.0, 100.0]
    assert row["best_batch"] == 1  # twice as many gain nothing
    assert other["points"][1]["share"] == 0.75
    assert other["best_batch"] is None  # of what is measured, no batch is twice another
    assert "a against batch" in summary
    assert any("75% interpolated" in line for line in summary)


def test_layers_that_cannot_be_bricks_are_told_by_their_first_cause(lab: Lab) -> None:
    chain = "".join(f"s{n} = SequenceInsert(s{n - 1}, x) " for n in range(1, 9))
    source = lab.source(
        f"""<ir_version: 8, opset_import: ["": 17]>
        m (float[4,8] x) => (int64 y) {{ r = Relu(x) s0 = SequenceConstruct(r) {chain} y = SequenceLength(s8) }}"""
    )

    summary = estimates_answer(estimate([source], store=lab.store), explain=True).summary

    assert sum("is a sequence" in line for line in summary) == 2, "in the short answer and in the long one"
    assert summary.count("  and 9 layers that cannot be bricks because of these") == 2


def _beside(name: str, ratio: float | None = 1.09, **changes: object) -> Estimate:
    known: dict[str, Any] = {
        "estimate_ms": 4.36, "measured_ms": 4.0, "ratio": ratio, "ratio_ci95": (0.93, 1.27), "paired": True,
        "disturbance": 0.02, "undisturbed_ms": 3.9, "coverage": Coverage(1.0, None),
    }  # fmt: skip
    return flat_estimate(name=name, granularity=1, **(known | changes))


def _by(sd: float, *, known: bool) -> dict[str, Any]:
    """An estimate composed by a method of such an error."""
    method = Method("onnxruntime", "cpu", "runtime", 1, "model", 1, 1, "float32")
    return {"latency.method": MethodError(method, sd, known=known)}


def test_a_ratio_is_shown_with_its_interval_beside_the_undisturbed_latency() -> None:
    without = _beside("n", None, ratio_ci95=None, paired=None, measured_ms=None)

    answer = estimates_answer(Estimates((_beside("m"), without)))

    header, _, first, second = render(answer, width=200).splitlines()

    assert "undisturbed estimate ms  measured ms ±95%  ratio" in header
    assert "3.90" in first
    assert "1.09 [0.93, 1.27]" in first
    assert second.split()[-2:] == ["-", "100%"]
    assert answer.summary == []  # nothing was disturbed
    assert "ratio_within" not in json.loads(render(answer, "json"))["results"][0]


@pytest.mark.parametrize(
    ("entries", "begins", "holds"),
    [
        ([{}, *({"disturbance": 0.2 + n / 10} for n in range(6))],
         "disturbed: the machine slowed 6 of 7 models (m6 +70%, m5 +60%, m4 +50%, m3 +40%, and 2 more)",
         "undisturbed_ms"),
        ([_by(0.03, known=False), _by(0.5, known=True), _by(0.07, known=False)],
         "not calibrated for this CPU, number of threads and graph (m0, m2): ",
         "error of similar estimates, 7% (sd); to calibrate, measure ten models"),
        ([{}, {"paired": False}], "not paired: ", "dlbricks run SUITE --with MODEL --again all"),
    ],
    ids=["disturbed", "not calibrated", "not paired"],
)  # fmt: skip
def test_what_is_true_of_several_models_is_one_line(entries, begins: str, holds: str) -> None:
    rows = tuple(_beside(f"m{number}", **more) for number, more in enumerate(entries))

    (line,) = estimates_answer(Estimates(rows)).summary

    assert line.startswith(begins)
    assert holds in line
    assert begins != "not paired: " or "(m1)" in line


def test_a_latency_carries_its_interval_and_a_table_fits_its_width() -> None:
    names = ("estimate_ms", "ci95_ms", "measured_ci95_ms", "lower_bound_sequential_ms", "sequential_ms")
    entry = _beside("m", **dict(zip(names, (4.36, (3.0, 5.5), (3.9, 4.1), 4.0, 5.0), strict=True)))

    wide, narrow = (render(estimates_answer(Estimates((entry,))), width=width).splitlines() for width in (200, 90))

    assert "4.36 ± 1.36" in wide[2]
    assert "4.00 ± 0.10" in wide[2]
    assert max(map(len, narrow)) <= 90
    (told,) = (number for number, line in enumerate(narrow) if "Not shown, since the terminal is narrow: " in line)
    assert "undisturbed estimate ms" in " ".join(narrow[told:])
    assert "4.36 ± 1.36" in narrow[told - 1]


def test_only_the_costliest_of_the_critical_path_are_listed() -> None:
    path = tuple(
        SequenceLatency(n, f"k{n}", (n,), (f"n{n}",), ("Conv",), latency_ms=float(n), ci95_ms=(n - 0.5, n + 0.5))
        for n in range(20)
    )  # fmt: skip
    entry = _beside("m", sequences=path, path=path)

    some, every = (
        render(estimates_answer(Estimates((entry,)), explain=True, most=most)).splitlines() for most in (15, None)
    )

    begin = next(i for i, line in enumerate(some) if "m: critical path" in line)
    assert some[begin + 1].split() == ["ms", "±95%", "operators", "layer"]
    assert some[begin + 3].split() == ["19.0", "±", "0.5", "Conv", "n19"]
    assert some[begin + 18] == "and 5 more (--all lists them)"
    assert every[-1].split()[-1] == "n0"


# What is said of dynamic dimensions --------------------------------------------------------------------------------


def test_a_bound_above_the_estimate_is_none() -> None:
    entry = _beside("m", lower_bound_sequential_ms=6.0)

    answer = estimates_answer(Estimates((entry,)))

    assert answer.results[0]["lower_bound_sequential_ms"] == 6.0
    assert answer.table is not None
    assert answer.table[0]["lower_bound_sequential_ms"] is None
    assert answer.summary[0].startswith("m: the sum of its fastest known bricks is 6.00 ms, above the estimate")
    close = _beside("m", ci95_ms=(4.2, 6.5), lower_bound_sequential_ms=6.0, lower_bound_sequential_ci95_ms=(5.8, 6.2))
    assert estimates_answer(Estimates((close,))).summary == [], "a difference within the interval has no cause"


@pytest.mark.parametrize(
    ("ratio", "ends", "words"),
    [(0.01, (0.009, 0.011), "may be slow, for example by denormal numbers. To try that: dlbricks analyze m --prove"),
     (2.0, (1.7, 2.3), "do not rely on its shares by layer"), (0.6, (0.5, 0.7), "")],
)  # fmt: skip
def test_an_estimate_far_from_its_model_is_told_in_words(ratio: float, ends: tuple[float, float], words: str) -> None:
    entry = _beside("m", ratio, ratio_ci95=ends, measured_ms=227.0, estimate_ms=227 * ratio)

    text = "\n".join(estimates_answer(Estimates((entry,))).summary)

    assert words in text
    assert ("m: measured 227 ms" in text) == bool(words), "0.7 is not far: no error of composing is excluded"
