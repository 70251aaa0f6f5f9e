"""Figures in README.md and docs/results, and those that intervals go by, are those of the data that is committed."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import calibrate
import pytest
import tables

TOP = Path(__file__).resolve().parents[2]
RESULTS = TOP / "docs" / "results"


def test_every_figure_is_that_of_the_data():
    for page in tables.PAGES:
        text = (TOP / page).read_text()
        assert tables.rendered(text, TOP) == text, f"{page}: run python benchmarks/tables.py"


@pytest.mark.parametrize(
    ("data", "script", "function"),
    [
        ("accuracy-*", "accuracy", "report"),
        ("tokens", "tokens", "page"),
        ("gpu/results", "visit_tables", "markdown"),
    ],
)
def test_a_script_still_prints_the_committed_data(data, script, function):
    table = getattr(importlib.import_module(script), function)
    results = [json.loads(path.read_text()) for path in RESULTS.rglob(f"{data}.json")]

    assert results
    for result in results:
        assert re.search(r"^\| ?--", table(result), re.MULTILINE)


def test_the_page_of_results_can_be_read():
    assert len((RESULTS / "README.md").read_text().split()) <= 3200
    assert [path.name for path in RESULTS.rglob("*.md")] == ["README.md"]


def test_what_intervals_go_by_is_calibrated_from_what_is_committed():
    accuracies = calibrate.accuracies(RESULTS)
    committed = json.loads((RESULTS / "calibration.json").read_text())
    rows, scatter = [*calibrate.constants(accuracies), *calibrate.on_gpu(RESULTS)], calibrate.scatter(RESULTS)

    assert committed.keys() == accuracies.keys()
    for name, result in accuracies.items():
        found = calibrate.validated(name, result)
        assert found.pop("validation") == committed[name].pop("validation")
        assert found == pytest.approx(committed[name])
    assert rows == json.loads(calibrate.CONSTANTS.read_text()), "run python benchmarks/calibrate.py"
    assert scatter == json.loads(calibrate.SCATTER.read_text()), "run python benchmarks/calibrate.py"
    assert len({tuple(row["method"].items()) for row in rows}) == len(rows) > 0, "one row for each method"
