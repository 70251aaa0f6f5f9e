"""Alarms measured again: two interpreters of this environment, one of which executes everything twenty times."""

from __future__ import annotations

import dataclasses
import json

import onnx
import pytest
from dlbricks.analyzer.comparison.gate import alternate
from dlbricks.analyzer.history import confirm as confirming
from dlbricks.analyzer.history.confirm import confirm
from dlbricks.analyzer.history.history import History, ModelHistory, Standing, history
from dlbricks.analyzer.report.answers.comparison import history_answer
from dlbricks.analyzer.report.tables import render
from dlbricks.errors import MachineBusy, UsageError
from dlbricks.generator.machine.lock import LOCK_DIR_VARIABLE, LOCK_WAIT_VARIABLE, machine_lock
from dlbricks.generator.machine.system import probe_system
from dlbricks.models.control_flow import CourseChoice
from speech import speech_detector

from .conftest import Nights

SLOW = """
import sys
import onnxruntime
once = onnxruntime.InferenceSession.run_with_iobinding
def often(self, *given):
    for _ in range(20):
        once(self, *given)
onnxruntime.InferenceSession.run_with_iobinding = often
"""


def at(row: ModelHistory, system: str) -> ModelHistory:
    """The series, as if made on a system."""
    return dataclasses.replace(row, track=dataclasses.replace(row.track, system=system))


@pytest.fixture
def alarmed(nights: Nights) -> History:
    """A model whose runs became twice as slow with a version, as if on this machine."""
    for _ in range(20):
        nights.run()
    for _ in range(5):
        nights.run(2.0, version="1.31.0")
    found = history([nights.source], store=nights.store)
    (row,) = found.rows
    assert len(found.alarms) == 1
    return dataclasses.replace(found, rows=(at(row, probe_system().key),))


@pytest.mark.slow
def test_a_real_difference_is_confirmed(nights, alarmed, pythons):
    old, new = pythons("old"), pythons("new", SLOW)

    found = confirm(alarmed, [nights.source], old=old, new=new)

    (change,) = found.rows[0].changes
    made = change.confirmation
    assert made.standing is Standing.CONFIRMED, made
    seen = made.levels.difference
    assert seen.ratio > 1.5
    assert seen.ci95[0] < seen.ratio < seen.ci95[1]
    assert set(made.old) == set(made.new) == {"onnxruntime"}
    assert len(found.alarms) == 1
    assert "confirmed: " in render(history_answer(found))
    assert json.dumps(found.to_json())


@pytest.mark.slow
def test_a_model_is_measured_along_the_given_course(nights, alarmed, pythons, tmp_path, monkeypatch):
    path, sides = tmp_path / "branched.onnx", []
    onnx.save(speech_detector(), path)
    branched = dataclasses.replace(nights.source, path=path, zoo=None, control=(CourseChoice("If_0", "else"),))

    def noted(pair, *given, **settings):
        sides.extend(onnx.load(side.runnable.path) for side in (pair.before, pair.after))
        return alternate(pair, *given, **settings)

    monkeypatch.setattr(confirming, "alternate", noted)
    found = confirm(alarmed, [branched], old=pythons("old"), new=pythons("new"))

    assert found.rows[0].changes[0].confirmation.levels.before_ms > 0
    for side in sides:
        (decided,) = (node for node in side.graph.node if node.op_type == "If")
        (before,) = (node for node in side.graph.node if decided.input[0] in node.output)
        assert before.op_type == "Xor"
    assert len(sides) == 2


def test_an_environment_that_does_not_run_leaves_it_unclear(nights, alarmed, pythons):
    broken = pythons("new", "raise SystemExit('no such runtime')")

    found = confirm(alarmed, [nights.source], old=pythons("old"), new=broken)

    (change,) = found.rows[0].changes
    assert change.confirmation.standing is Standing.UNCLEAR
    assert "no such runtime" in change.confirmation.reason
    assert found.alarms == (change,)


def test_two_environments_are_asked_for(nights, alarmed, pythons, tmp_path):
    old = pythons("old")

    with pytest.raises(UsageError, match="are one environment"):
        confirm(alarmed, [nights.source], old=old, new=old)
    with pytest.raises(UsageError, match="neither a lock file nor an interpreter"):
        confirm(alarmed, [nights.source], old=old, new=tmp_path / "nothing")
    with pytest.raises(UsageError, match="no lock file"):
        confirm(alarmed, [nights.source], old=old, new=tmp_path / "nothing.toml")


def test_the_command_takes_both(nights, alarmed, pythons, cli):
    """The runs are of another system: nothing is measured, and the alarm stands."""
    path = nights.store.place.path

    done = cli("history", nights.source.path, "--db", path, "--confirm", pythons("old"), pythons("new"), "--json")

    (row,) = done.json["results"]
    assert done.code == 0
    assert row["changes"][0]["confirmation"] is None


def test_the_other_way_round_is_not_it(nights, alarmed, pythons):
    found = confirm(alarmed, [nights.source], old=pythons("old", SLOW), new=pythons("new"))

    (change,) = found.rows[0].changes
    assert change.confirmation.standing is Standing.REFUTED
    assert "FASTER" in change.confirmation.reason
    assert found.alarms == ()


def test_a_machine_that_measures_already_is_an_error(nights, alarmed, pythons, tmp_path, monkeypatch):
    monkeypatch.setenv(LOCK_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setenv(LOCK_WAIT_VARIABLE, "0")

    with machine_lock(), pytest.raises(MachineBusy, match="is measuring"):
        confirm(alarmed, [nights.source], old=pythons("old"), new=pythons("new"))


def test_alarms_of_another_machine_stay_as_they_are(nights, alarmed, pythons):
    (row,) = alarmed.rows
    away = dataclasses.replace(alarmed, rows=(at(row, "another"),))

    assert confirm(away, [nights.source], old=pythons("old"), new=pythons("new")) == away
