"""Figures in README.md and docs/results are those of the data beside them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(TOP / "benchmarks")
    return importlib.import_module("tables")


def test_every_figure_is_that_of_the_data(tables):
    for page in tables.PAGES:
        text = (TOP / page).read_text()
        assert tables.rendered(text, TOP) == text, f"{page}: run python benchmarks/tables.py"
        assert "@@" not in text


def test_what_enters_the_tables_was_visited_in_turn(tables):
    found = tables.accuracies(TOP / "docs" / "results")

    assert found
    for one in found:
        assert all(row["ratio"] is not None or row["reason"] for row in one["models"])
        assert one["summary"]["all"]["models"] == len(one["models"])


def test_a_figure_that_was_changed_by_hand_is_seen(tables):
    (page,) = (page for page in tables.PAGES if page.parent.name == "results")
    text = (TOP / page).read_text()
    figure = next(iter(tables.accuracies(TOP / "docs" / "results")))["summary"]["all"]["median_error"]

    changed = text.replace(f"| {tables.percent(figure)} |", "| 0.1 % |", 1)

    assert changed != text
    assert tables.rendered(changed, TOP) == text


def test_a_block_without_a_table_is_refused(tables, tmp_path):
    with pytest.raises(KeyError, match="nothing"):
        tables.rendered("<!-- nothing -->1 %<!-- /nothing -->", tmp_path)


def test_only_accuracies_of_this_protocol_are_calibrated(monkeypatch):
    monkeypatch.syspath_prepend(TOP / "benchmarks")
    calibrate = importlib.import_module("calibrate")
    results = calibrate.accuracies(calibrate.RESULTS)
    told = json.loads((calibrate.RESULTS / "calibration.json").read_text())

    assert told.keys() == results.keys()
    for name, result in results.items():
        assert calibrate.calibrated(result["models"], result["method_sd"]) == pytest.approx(told[name])


def test_what_estimates_go_by_is_calibrated_from_what_is_committed(monkeypatch):
    monkeypatch.syspath_prepend(TOP / "benchmarks")
    calibrate = importlib.import_module("calibrate")

    rows = calibrate.constants(calibrate.accuracies(calibrate.RESULTS))

    assert rows == json.loads(calibrate.CONSTANTS.read_text()), "run python benchmarks/calibrate.py"
    assert len({tuple(row["method"].items()) for row in rows}) == len(rows) > 0, "one row for each method"
    assert all(not row["source"].endswith("elsewhere") for row in rows)


def test_nothing_is_calibrated_with_models_that_were_added_since(monkeypatch):
    monkeypatch.syspath_prepend(TOP / "benchmarks")
    calibrate = importlib.import_module("calibrate")
    rows = [
        {"name": name, "family": "-", "half": half, "ratio": ratio, "ratio_ci95": (ratio - 0.01, ratio + 0.01)}
        for name, half, ratio in (("a", "tune", 1.02), ("b", "held", 0.97), ("c", "new", 3.0))
    ]

    assert calibrate.calibrated(rows, 0.0) == calibrate.calibrated(rows[:2], 0.0)


def test_models_that_were_added_since_have_a_row_of_their_own(tables, tmp_path):
    found = _accuracy()
    tables_of = _write(tmp_path, {**found, "summary": {**found["summary"], "half new": found["summary"]["all"]}})

    assert [line for line in tables._table(tables_of).splitlines() if "models added since" in line]


def test_figures_of_one_half_are_told_apart_and_make_no_headline(tables, tmp_path):
    whole = _accuracy()
    _write(tmp_path, whole)
    headline = tables._headline(tmp_path)

    _write(tmp_path, {**whole, "half": ["new"]}, "-new")

    assert "accuracy-runtime-g1-t1-b1-new.md" in tables._table(tmp_path)
    assert "half new alone" in tables._table(tmp_path)
    assert tables._headline(tmp_path) == headline


def _accuracy():
    """The committed accuracy of the executed graph at one thread."""
    return json.loads((TOP / "docs" / "results" / "accuracy-runtime-g1-t1-b1.json").read_text())


def _write(folder, result, suffix=""):
    (folder / f"accuracy-runtime-g1-t1-b1{suffix}.json").write_text(json.dumps(result))
    return folder
