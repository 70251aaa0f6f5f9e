"""Predictions fill gaps, are marked, and enter nothing but the latency that was asked for."""

from __future__ import annotations

from pathlib import Path

import dlbricks
import pytest
from dlbricks.analyzer.estimation.estimate import estimate
from dlbricks.analyzer.estimation.estimates import estimate_record
from dlbricks.analyzer.estimation.learning import learn
from dlbricks.analyzer.estimation.query import matching
from dlbricks.analyzer.report.answers.estimated import estimates_answer
from dlbricks.constructor.choice import Query
from dlbricks.db import Subject


@pytest.fixture
def halfway(lab, fork, keys_of):
    """A model of which one brick is measured, and the keys of its bricks."""
    keys = list(dict.fromkeys(keys_of(fork)))
    lab.put([(keys[0], 2.0)])
    return fork, keys


def test_what_is_missing_is_predicted_and_marked(lab, halfway):
    source, keys = halfway

    found = estimate([source], store=lab.store, predict=True)

    (entry,) = found
    assert entry.latency.ms > 2.0
    low, high = entry.latency.ci95_ms
    assert low < entry.latency.ms < high
    assert {part.key for part in entry.parts.sequences if part.predicted} == {*keys[1:]}
    assert entry.parts.predicted.bricks == len(keys) - 1
    assert 0 < entry.parts.predicted.share < 1
    assert {brick.key for brick in entry.parts.missing} == {*keys[1:]}
    assert entry.parts.coverage.sequences < 1
    assert estimate_record(entry)["predicted"]["familiar"] is False
    answer = estimates_answer(found)
    assert any("is predicted" in line for line in answer.summary)


def test_what_is_predicted_is_in_no_bound_ratio_sum_or_cause(lab, halfway, graph_of):
    source, _ = halfway
    lab.put([(graph_of(source).key, 5.0)], subject=Subject.MODEL)

    (entry,) = estimate([source], store=lab.store, predict=True)
    (plain,) = estimate([source], store=lab.store)

    assert entry.truth.ms == 5.0
    assert entry.truth.ratio is None
    assert entry.attribution is None
    assert entry.bounds == plain.bounds
    assert entry.sums == plain.sums
    assert entry.roofline.bricks == plain.roofline.bricks
    assert all(part.lower_bound_ms is None for part in entry.parts.sequences if part.predicted)
    assert not entry.complete


def test_what_is_predicted_is_neither_stored_nor_learned_from(lab, halfway):
    source, _ = halfway
    before = lab.store.measurements(variant=None)

    estimate([source], store=lab.store, predict=True)

    assert lab.store.measurements(variant=None) == before
    (choice,) = matching(lab.store, None, Query())
    (own,) = learn(lab.store, choice).own  # the measured brick, whose form is known now
    assert own.latency_ns == 2e6


def test_a_complete_model_is_estimated_as_ever(lab, fork, keys_of):
    lab.put((key, 1.0) for key in dict.fromkeys(keys_of(fork)))

    (asked,) = estimate([fork], store=lab.store, predict=True)
    (plain,) = estimate([fork], store=lab.store)
    assert estimate_record(asked) == estimate_record(plain)


def test_only_three_functions_can_predict():
    """Comparisons, gates, history, findings and proofs read the database, and predictions are not in it.

    ``report`` hands predictions to its caller before it measures, and keeps none.
    """
    root = Path(dlbricks.__file__).parent
    folders = ("analyzer", "cli", "constructor", "db", "generator")
    names = ("estimation.learning import", ".learning import", ".filling import")
    users = {
        path.relative_to(root).as_posix()
        for folder in folders
        for path in (root / folder).rglob("*.py")
        if any(name in path.read_text("utf-8") for name in names)
    }

    assert users == {
        "analyzer/predicting.py",
        "analyzer/reporting.py",
        "analyzer/estimation/estimate.py",
        "analyzer/estimation/learning.py",
    }
