"""What enters the tables of accuracy, and which models."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

import pytest
from dlbricks.constructor import Estimate
from dlbricks.models.zoo import names

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


def test_models_are_reported_by_half_and_kind(accuracy):
    rows = [
        accuracy._row(one) for one in (found("resnet50", 1.0), found("gpt2@b4", 1.2), Estimate("mine", 1, error="x"))
    ]

    summaries = accuracy.summaries(rows)

    assert {label: row["models"] for label, row in summaries.items()} == {
        "all": 3, "half tune": 2, "half ?": 1, "kind cnn": 1, "kind transformer": 1, "kind ?": 1,
    }  # fmt: skip
    assert summaries["kind transformer"]["inside_interval"] == 0
    assert summaries["kind ?"]["median_error"] is None


def test_models_that_were_added_are_kept_apart(accuracy):
    facts = importlib.import_module("facts")
    one_of_each = {entry["half"]: name for name, entry in facts.entries().items()}
    rows = [accuracy._row(found(name, 1.0)) for name in one_of_each.values()]

    assert {label for label in accuracy.summaries(rows) if label.startswith("half ")} == {
        "half tune", "half held", "half new",
    }  # fmt: skip


@pytest.mark.parametrize("script", ["accuracy", "cost", "repeat"])
def test_halves_can_be_chosen(script, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    shared = importlib.import_module("accuracy").shared
    importlib.import_module(script)
    facts = importlib.import_module("facts")

    options = shared(argparse.ArgumentParser()).parse_args(["--half", "new", "--half", "held"])
    chosen = facts.chosen(options.models, options.half)

    assert {facts.entry(name)["half"] for name in chosen} == {"new", "held"}
    assert facts.chosen(["resnet101@b2", "resnet50", "mine.onnx"], ["held"]) == ["resnet101@b2"]
    assert facts.chosen(["mine.onnx"], []) == ["mine.onnx"]
    assert facts.chosen(None, []) == list(facts.entries())
    assert facts.restriction(options.half) == "-held-new"
    with pytest.raises(SystemExit, match="no model is of the half tune"):
        facts.chosen(["resnet101"], ["tune"])


def test_options_and_caches_stand_in_the_name_and_calibrate_nothing(accuracy, tmp_path):
    facts, calibrate = (importlib.import_module(name) for name in ("facts", "calibrate"))
    plain = {
        "stack": {"backend": "torch"}, "graph": "source", "granularity": 1, "threads": 1, "batch": 1, "neighbour": None,
        "protocol": calibrate.PROTOCOL, "half": None, "given": {}, "cache": "model",
    }  # fmt: skip
    compiled = plain | {"given": dict([accuracy.setting("mode=compile")]), "cache": "hot"}

    names = [facts.accuracy_name(one) for one in (plain, compiled)]
    for name, one in zip(names, (plain, compiled), strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(one))

    assert names == ["accuracy-torch-source-g1-t1-b1", "accuracy-torch-mode=compile-source-g1-t1-b1-hot"]
    assert list(calibrate.accuracies(tmp_path)) == names[:1]
    with pytest.raises(argparse.ArgumentTypeError, match="NAME=VALUE"):
        accuracy.setting("mode")


def test_the_list_is_of_the_zoo_and_its_new_families_are_new(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    facts = importlib.import_module("facts")
    entries = facts.entries()
    known = {entry.name for entry in names()}

    assert set(entries) <= known
    assert {row["half"] for row in entries.values()} == set(facts.HALVES)
    assert {row["kind"] for row in entries.values()} == {"cnn", "transformer", "mlp"}
    families = {
        is_new: {row["family"] for row in entries.values() if (row["half"] == "new") == is_new} - {"-"}
        for is_new in (False, True)
    }
    assert not families[True] & families[False]
    assert sum(row["half"] == "new" for row in entries.values()) >= 15
