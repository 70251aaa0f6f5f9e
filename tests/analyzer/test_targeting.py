"""``run --target`` visits the bricks that decide, and stops at the target or at the error of the method."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from dlbricks.analyzer.predicting import VISITS
from dlbricks.analyzer.report.answers.runs import run_answer
from dlbricks.analyzer.targeting import run_to
from dlbricks.db import Store, Subject
from dlbricks.errors import UsageError
from dlbricks.generator.decomposition.generate import generate
from dlbricks.models import find_models

MODEL = "squeezenet"
QUICK = {"processes": 1, "sessions": 1}


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    place = tmp_path_factory.mktemp("target") / "suite"
    return generate(find_models([MODEL]), granularity=1, graph="runtime", out=place, annotate=True).suite


def _visits(store: Store) -> dict[str, int]:
    return {one.key: one.summary.samples for one in store.measurements(subject=Subject.BRICK)}


def test_a_wide_target_takes_the_fewest_visits_of_all_bricks(suite, tmp_path):
    with Store.open(tmp_path / "m.db") as store:
        report = run_to(suite, 100.0, store=store, **QUICK)

        assert dict.fromkeys(suite.keys, VISITS).items() <= _visits(store).items()
        assert len(store.runs()) == 1
    assert report.measured >= len(suite.keys)
    (width,) = report.widths.values()
    assert 0 < width.floor <= width.half <= 100.0
    assert width.enough
    assert any("1 model within" in line for line in run_answer(report).summary)
    assert report.to_json()["widths"][MODEL]["enough"] is True


def test_only_bricks_that_decide_get_more_visits(suite, tmp_path):
    with Store.open(tmp_path / "m.db") as store:
        report = run_to(suite, 1e-9, store=store, visits=12, **QUICK)

        visits = _visits(store)
        latencies = {one.key: one.latency_ns for one in store.measurements(subject=Subject.BRICK)}
    counts = suite.annotations[MODEL]
    whole = sum(count * latencies[key] for key, count in counts.items())
    decided = {key for key, taken in visits.items() if key in counts and taken == 12}
    assert {*visits.values()} <= {VISITS, 12}
    assert report.widths[MODEL].enough or decided
    # A share may pass the limit between the rounds: none of a fifth of it, and all of five times of it.
    assert all(counts[key] * latencies[key] / whole > 0.0002 for key in decided)
    if decided:
        assert decided >= {key for key, count in counts.items() if count * latencies[key] / whole > 0.005}
    lines = run_answer(report).summary
    assert any("no visit reduces it" in line or "give it more --visits" in line for line in lines)


def test_a_target_needs_models_that_are_composed_from_bricks(suite, tmp_path):
    plain = generate(find_models([MODEL]), granularity=1, graph="runtime", out=tmp_path / "plain").suite
    with Store.open(tmp_path / "m.db") as store:
        with pytest.raises(UsageError, match="--annotate"):
            run_to(plain, 0.05, store=store)
        with pytest.raises(UsageError, match="dlbricks measure"):
            run_to(suite, 0.05, store=store, models=find_models([MODEL]))
        with pytest.raises(UsageError, match="positive"):
            run_to(suite, 0.0, store=store)
        assert store.runs() == []


def test_a_model_with_an_unmeasured_brick_is_not_known(suite, tmp_path):
    with Store.open(tmp_path / "m.db") as store:
        report = run_to(replace(suite, keys=suite.keys[1:2]), 100.0, store=store, **QUICK)

    assert report.widths == {MODEL: None}
    assert report.to_json()["widths"] == {MODEL: None}
    assert f"{MODEL}: not known, since a brick is not measured" in run_answer(report).summary


def test_a_forecast_measures_nothing(suite, tmp_path):
    with Store.open(tmp_path / "m.db") as store:
        report = run_to(suite, 0.05, store=store, dry_run=True)

        assert report.dry_run
        assert report.widths == {}
        assert not any("within" in line for line in run_answer(report).summary)
        assert store.measurements(variant=None) == []


def test_the_command_takes_a_share_and_answers_for_each_model(cli, suite, tmp_path):
    quick = ("--processes", 1, "--sessions", 1, "--db", tmp_path / "m.db", "--json", "-q")

    assert "write 5%" in cli("run", suite.path, "--target", "5", *quick).err
    done = cli("run", suite.path, "--target", "99%", *quick)

    assert done.code == 0
    answer = json.loads(done.out)
    assert answer["target"] == 0.99
    assert {*answer["widths"]} == {MODEL}
    assert answer["widths"][MODEL]["enough"] == (answer["widths"][MODEL]["half"] <= 0.99)
