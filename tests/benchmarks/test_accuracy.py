"""What enters the tables of accuracy."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from dlbricks.constructor import Estimate

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def accuracy(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("accuracy")


def found(name, ratio, *, paired=True):
    return Estimate(
        name, 1, measured_ms=10.0, estimate_ms=10 * ratio, ratio=ratio, ratio_ci95=(ratio - 0.05, ratio + 0.05),
        paired=paired, measured_undisturbed_ms=8.0, undisturbed_ms=8.0,
    )  # fmt: skip


def test_only_what_was_visited_in_turn_has_a_ratio(accuracy):
    rows = [accuracy._row(one) for one in (found("resnet50", 1.02), found("vgg19", 3.0, paired=False))]

    (summary, *_) = accuracy.summaries(rows).values()

    assert rows[1]["ratio"] is rows[1]["ratio_ci95"] is None
    assert rows[1]["reason"] == "bricks and model were not visited in turn"
    assert (summary["models"], summary["with_ratio"]) == (2, 0.5)
    assert (summary["worst_model"], summary["median_error"]) == ("resnet50", pytest.approx(0.02))
    assert summary["slowdown"] == pytest.approx(1.25)


def test_models_are_told_by_half_and_kind(accuracy):
    rows = [
        accuracy._row(one) for one in (found("resnet50", 1.0), found("gpt2@b4", 1.2), Estimate("mine", 1, error="x"))
    ]

    summaries = accuracy.summaries(rows)

    assert {label: row["models"] for label, row in summaries.items()} == {
        "all": 3, "half tune": 2, "half ?": 1, "kind cnn": 1, "kind transformer": 1, "kind ?": 1,
    }  # fmt: skip
    assert summaries["kind transformer"]["inside_interval"] == 0
    assert summaries["kind ?"]["median_error"] is None
