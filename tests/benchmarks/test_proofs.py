"""What findings predict beside what was proven: which predictions count, and what they come to."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
from dlbricks.analyzer.findings.finding import Finding, Proof, Remedy

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

FOUND = Finding("unfused_activation", "GELUs", ("a",), 4.0, 2.0, 2.0, (1.0, 3.0), 0.2, (), (), Remedy("rewrite", ""))
PROOF = Proof(before_ms=20.0, after_ms=15.0, saving_ms=5.0, ci95_ms=(4.0, 6.0), largest_error=0.0)


@pytest.fixture
def proofs(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("proofs")


@pytest.mark.parametrize(
    ("predicted", "proven", "right"),
    [(0.2, 0.25, True), (0.2, 0.3, False), (0.02, 0.035, True), (0.05, 0.0, False), (0.01, -0.005, True)],
)
def test_a_prediction_is_right_within_a_quarter_or_two_percent(proofs, predicted, proven, right):
    assert proofs.is_right(predicted, proven) is right


def test_predictions_stand_beside_what_was_proven_of_the_same_latency(proofs):
    row = proofs._row(replace(FOUND, proof=PROOF))

    assert (row["predicted"], row["proven"], row["right"], row["saves"]) == (0.2, 0.25, True, True)
    assert row["predicted_ci"] == pytest.approx([0.1, 0.3])
    assert row["proven_ci"] == pytest.approx([0.2, 0.3])
    assert row["proven_ms"] == pytest.approx(2.5)  # of 10 ms


def test_bounds_and_ideas_predict_nothing(proofs):
    bound = proofs._row(replace(FOUND, proof=PROOF, at_most=True))
    idea = proofs._row(replace(FOUND, proof=PROOF, share=0.25, saving_ms=2.5))
    untried = proofs._row(
        replace(FOUND, share=math.nan, saving_ms=math.nan, current_ms=math.nan, ci95_ms=None, unproven="no")
    )

    assert bound["predicted"] is None
    assert idea["predicted"] is None
    assert untried["predicted"] is None
    assert (untried["saves"], untried["right"]) == (False, None)


def test_what_saved_nothing_counts_as_well(proofs):
    nothing = replace(PROOF, after_ms=20.0, saving_ms=0.0, ci95_ms=(-1.0, 1.0))
    rows = [proofs._row(replace(FOUND, proof=one)) for one in (PROOF, nothing)]
    models = [{"model": "m", "error": None, "rows": rows}, {"model": "n", "error": "broken", "rows": []}]

    found = proofs.result(models)["summary"]

    assert (found["models"], found["failed"], found["tried"], found["saving"]) == (2, 1, 2, 1)
    assert found["kinds"] == ["unfused_activation"]
    assert (found["right"], found["right_of_saving"], found["right_or_noise"]) == (0.5, 1.0, 0.5)
