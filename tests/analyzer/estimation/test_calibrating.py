"""A user's own runs calibrate the estimates on their system, and later runs judge the fit."""

from __future__ import annotations

import dataclasses
import math

import pytest
from dlbricks import estimate
from dlbricks.analyzer.estimation.calibrating import FEWEST, calibrate
from dlbricks.analyzer.report.answers.estimated import estimates_answer
from dlbricks.analyzer.report.answers.resources import calibration_answer
from dlbricks.analyzer.report.tables import render
from dlbricks.constructor.uncertainty.calibration import NORMAL
from dlbricks.db import Run
from dlbricks.errors import UsageError
from lab import CHAIN, graph_of, keys_of

QUIET = [[1.0] * 6] * 4
"""Visits of four sessions: without scatter, only the error of the method is left."""


def begun(lab, day):
    """A run of this day, which takes what is put next."""
    lab.run = f"run-{day}"
    lab.store.begin_run(Run(lab.run, f"2026-11-{day}T00:00:00+00:00", "0", "run", None, lab.system.key, lab.stack.key))


def measured(lab, ratios, first=3):
    """Models whose estimates are off by chosen ratios, and their bricks."""
    sources = []
    for number, ratio in enumerate(ratios, start=first):
        source = lab.source(CHAIN.replace("2, 3", f"2, {number}"), f"m{number}")
        keys = keys_of(source)
        model = graph_of(source).key
        lab.put_in_turn(dict.fromkeys(keys, 1.0) | {model: len(keys) / ratio}, QUIET, model=model)
        sources.append(source)
    return sources


def ratios_of(sd, count=FEWEST):
    return [math.exp((-1) ** number * NORMAL * sd) for number in range(count)]


def only(report):
    (row,) = report.rows
    return row


def test_a_fit_is_stored_and_estimates_go_by_it(lab):
    begun(lab, 10)
    sources = measured(lab, ratios_of(0.2))
    before = estimate(sources, store=lab.store)
    assert all(row.truth.paired and not row.latency.calibrated for row in before)

    report = calibrate(sources, store=lab.store)

    assert report.complete
    assert only(report).sd == pytest.approx(0.2, rel=0.1)
    after = estimate(sources, store=lab.store)
    assert all(row.latency.calibrated and row.latency.method.sd == only(report).sd for row in after)
    assert all(row.truth.ratio_ci95[0] < 1.001 and row.truth.ratio_ci95[1] > 0.999 for row in after)
    assert not any("not calibrated for" in line for line in render_lines(sources, lab))


def render_lines(sources, lab):
    return render(estimates_answer(estimate(sources, store=lab.store)), width=300).splitlines()


def test_another_number_of_threads_stays_uncalibrated(lab):
    begun(lab, 10)
    calibrate(measured(lab, ratios_of(0.2)), store=lab.store)
    lab.conditions = dataclasses.replace(lab.conditions, threads=2)

    (row,) = estimate(measured(lab, [1.0], first=40), store=lab.store, threads=2)

    assert row.latency.calibrated is False
    assert row.latency.method.sd > 0.19


def test_models_of_later_runs_judge_the_fit(lab):
    begun(lab, 10)
    calibrate(measured(lab, ratios_of(0.02)), store=lab.store)
    lab.run = "later"
    lab.store.begin_run(Run("later", "2999-01-01T00:00:00+00:00", "0", "run", None, lab.system.key, lab.stack.key))
    sources = measured(lab, [*ratios_of(0.3, 4), *[1.0] * 6], first=40)

    found = only(calibrate(sources, store=lab.store))

    assert (found.later_models, found.later_held) == (10, 0.6)
    assert found.earlier_sd == pytest.approx(0.02, rel=0.5)
    assert found.sd > 0.25, "the new fit contains what the earlier one missed"


def test_too_few_models_are_not_fitted(lab):
    begun(lab, 10)

    report = calibrate(measured(lab, ratios_of(0.2, FEWEST - 1)), store=lab.store)

    assert not report.complete
    assert (only(report).sd, report.run) == (None, None)
    assert f"{FEWEST} models are needed" in render(calibration_answer(report))


def test_models_without_measurements_are_refused(lab):
    with pytest.raises(UsageError, match="measured together with its bricks"):
        calibrate([lab.source(CHAIN)], store=lab.store)


def test_the_command_fits_and_says_so(lab, cli):
    begun(lab, 10)
    sources = measured(lab, ratios_of(0.2))
    files = [str(source.path) for source in sources]

    (row,) = cli("system", "--calibrate", *files, "--db", lab.folder / "lab.db", "--json").json["results"]

    assert (row["graph"], row["models"], row["reason"]) == ("source", FEWEST, None)
    assert row["half_width"] == pytest.approx(NORMAL * row["sd"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["m.onnx"], "MODEL means nothing without --calibrate"),
        (["--graph", "runtime", "--ceilings"], "--graph means nothing without --calibrate"),
        (["--threads", "2"], "--threads means nothing without --ceilings or --calibrate"),
        (["--calibrate"], "--calibrate needs the models that were measured"),
        (["--calibrate", "--ceilings", "m.onnx"], "different questions"),
    ],
)
def test_options_that_the_answer_does_not_use_are_refused(words, said, cli):
    done = cli("system", *words)

    assert done.code == 2
    assert said in done.err
