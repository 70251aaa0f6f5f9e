"""Figures in README.md and docs/results, and those that intervals go by, are those of the data that is committed."""

from __future__ import annotations

import importlib
import json
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
        ("accuracy-*-g*", "accuracy", "report"),  # those without -g are of protocol 1, by the script of then
        ("attribution-*", "attribution", "report"),
        ("curves", "curves", "report"),
        ("frameworks", "frameworks", "report"),
        ("planted", "plants.cost", "report"),
        ("planted-score", "plants.score", "report"),
        ("proofs", "proofs", "text"),
        ("tokens", "tokens", "page"),
        ("gpu/results", "visit_tables", "markdown"),
    ],
)
def test_a_page_that_a_script_writes_is_that_of_its_data(data, script, function):
    write = getattr(importlib.import_module(script), function)
    paths = list(RESULTS.rglob(f"{data}.json"))

    assert paths
    for path in paths:
        if path.stem != "accuracy-granularity":  # a plot
            assert write(json.loads(path.read_text())) == path.with_suffix(".md").read_text(), path


def test_what_intervals_go_by_is_calibrated_from_what_is_committed():
    accuracies = calibrate.accuracies(RESULTS)
    committed = json.loads((RESULTS / "calibration.json").read_text())
    rows, scatter = calibrate.constants(accuracies), calibrate.scatter(RESULTS)

    assert committed.keys() == accuracies.keys()
    for name, result in accuracies.items():
        found = calibrate.validated(name, result)
        assert found.pop("validation") == committed[name].pop("validation")
        assert found == pytest.approx(committed[name])
    assert rows == json.loads(calibrate.CONSTANTS.read_text()), "run python benchmarks/calibrate.py"
    assert scatter == json.loads(calibrate.SCATTER.read_text()), "run python benchmarks/calibrate.py"
    assert len({tuple(row["method"].items()) for row in rows}) == len(rows) > 0, "one row for each method"
