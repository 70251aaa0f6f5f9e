"""``predict`` answers from what is shipped and stored, measures what decides, and stores measurements alone."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import onnx
import pytest
from dlbricks.analyzer.predicting import first_answer, predict, predictions_answer
from dlbricks.analyzer.report.units import INTERRUPTED
from dlbricks.constructor.predictor import prior_systems
from dlbricks.constructor.result import Latency
from dlbricks.db import Store
from dlbricks.errors import MachineBusy, UsageError
from dlbricks.generator.progress import Stage
from dlbricks.models import find_models

MODEL = "squeezenet"
UNKNOWN = find_models([MODEL], batches=[3])
"""A size whose bricks do not ship with the package."""


@pytest.fixture
def familiar(monkeypatch):
    """Let this machine count as one whose bricks ship with the package."""
    monkeypatch.setattr("dlbricks.analyzer.setups.probe_system", lambda: prior_systems()[0])


@pytest.mark.usefixtures("familiar")
def test_without_measuring_nothing_is_stored(tmp_path):
    with Store.open(tmp_path / "new.db") as store:
        found = predict(find_models([MODEL]), store=store, measure=False)

        (entry,) = found.rows
        assert entry.latency.ms > 0
        (line,) = first_answer(found.rows)
        assert line.startswith("first answer: squeezenet ")
        assert [*first_answer([replace(entry, latency=Latency())])] == []
        assert entry.parts.predicted.share == pytest.approx(1.0)
        assert found.measured == frozenset()
        assert store.measurements(variant=None) == []
        (row,) = found.to_json()["results"]
        assert row["ci95_ms"][0] < row["predicted_ms"] < row["ci95_ms"][1]
        assert row["shares"] == {"measured": 0.0, "stored": 0.0, "predicted": pytest.approx(1.0)}


def test_what_decides_is_measured_stored_and_known_the_next_time(tmp_path):
    with Store.open(tmp_path / "new.db") as store:
        first = predict(UNKNOWN, store=store, target=1e-6, budget_s=300.0)

        assert first.measured
        stored = {one.key for one in store.measurements(variant="")}
        assert first.measured <= stored
        again = predict(UNKNOWN, store=store, measure=False)
        (row,) = again.to_json()["results"]
        assert row["shares"]["stored"] > 0
        assert again.rows[0].latency.ms > 0


@pytest.mark.usefixtures("familiar")
def test_beside_another_measuring_process_there_is_a_prediction_all_the_same(tmp_path, monkeypatch):
    def busy():
        raise MachineBusy("another dlbricks process is measuring")

    monkeypatch.setattr("dlbricks.generator.measurement.execution.machine_lock", busy)
    with Store.open(tmp_path / "new.db") as store:
        found = predict(find_models([MODEL]), store=store, target=1e-6, budget_s=300.0)

    assert found.complete
    assert found.measured == frozenset()
    assert any("another dlbricks process" in line for line in predictions_answer(found).summary)


@pytest.mark.usefixtures("familiar")
def test_an_interrupted_prediction_is_from_what_is_known(tmp_path):
    def interrupt(progress):
        if progress.stage is Stage.SAMPLE:
            raise KeyboardInterrupt

    with Store.open(tmp_path / "new.db") as store:
        found = predict(find_models([MODEL]), store=store, target=1e-6, budget_s=300.0, progress=interrupt)

    assert isinstance(found.interrupted, KeyboardInterrupt)
    assert (found.complete, found.measured) == (True, frozenset())
    assert predictions_answer(found).summary[-1] == INTERRUPTED


@pytest.mark.usefixtures("familiar")
def test_where_preparing_took_the_budget_nothing_is_measured_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("dlbricks.analyzer.predicting.work_clock", itertools.count(step=10).__next__)
    with Store.open(tmp_path / "new.db") as store:
        found = predict(find_models([MODEL]), store=store, target=1e-6, budget_s=15.0)

    assert found.complete
    assert found.measured == frozenset()
    assert any("preparing the models took 10 s of 15 s" in line for line in predictions_answer(found).summary)


def test_below_the_error_of_the_method_some_bricks_suffice_and_the_answer_says_what_narrows_it(tmp_path):
    with Store.open(tmp_path / "new.db") as store:
        found = predict(UNKNOWN, store=store, target=0.01, budget_s=300.0)

    (entry,) = found.rows
    assert 0 < len(found.measured) < entry.parts.unique
    (row,) = found.to_json()["results"]
    assert row["half"] > row["by_method"] > 0.01
    assert "'dlbricks measure MODEL'" in " ".join(predictions_answer(found).summary)


def test_a_target_that_is_reached_measures_nothing(tmp_path):
    with Store.open(tmp_path / "new.db") as store:
        found = predict(find_models([MODEL]), store=store, target=1e6)

    assert found.measured == frozenset()


def test_a_model_with_a_layer_that_cannot_be_a_brick_is_not_measured_in_vain(tmp_path, here):
    text = """<ir_version: 8, opset_import: ["" : 17]>
        outer (float[64,64] x, int64 count) => (float[64,64] z) {
            y = Softmax(x)
            z = Loop(count, , x) <body = b (int64 i, bool c, float[64,64] s) => (bool d, float[64,64] t) {
                d = Identity(c) t = MatMul(s, y) }> }"""
    onnx.save(onnx.parser.parse_model(text), here / "outer.onnx")

    with Store.open(tmp_path / "new.db") as store:
        found = predict(find_models(["outer.onnx"]), store=store, target=1e-6)

    assert found.measured == frozenset()
    told = " ".join(predictions_answer(found).summary)
    assert "its body reads 'y'" in told
    assert "'dlbricks measure MODEL'" in told


def test_a_target_or_budget_that_is_none_is_refused(tmp_path):
    with Store.open(tmp_path / "new.db") as store, pytest.raises(UsageError, match="positive"):
        predict([], store=store, target=0.0)


def test_an_unfamiliar_machine_without_measurements_gives_no_latency(tmp_path, monkeypatch):
    strange = replace(prior_systems()[0], cpu="a processor of next year")
    monkeypatch.setattr("dlbricks.analyzer.setups.probe_system", lambda: strange)
    with Store.open(tmp_path / "new.db") as store:
        (entry,) = predict(find_models([MODEL]), store=store, measure=False).rows

    assert entry.latency.ms is None
    assert re.match(r"it is between \S+ and \S+ ms, a factor of", entry.parts.prediction_reason)


def test_without_a_readable_model_the_errors_are_the_answer(cli):
    done = cli("predict", "missing.onnx", "--json")

    (broken,) = json.loads(done.out)["results"]
    assert broken["error"]


@pytest.mark.usefixtures("familiar")
def test_the_command_answers_in_json_and_leaves_no_empty_database(cli, here):
    done = cli("predict", MODEL, "missing.onnx", "--no-measure", "--json")

    found, broken = json.loads(done.out)["results"]
    assert found["predicted"]["bricks"] == found["unique"]
    assert found["predicted"]["narrowing"][0]["share"] > 0
    assert broken["error"]
    assert broken["predicted_ms"] is None
    assert not (here / "dlbricks.db").exists()
