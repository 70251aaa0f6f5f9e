"""Figures in README.md and docs/results are those of the data beside them."""

from __future__ import annotations

import importlib
import json
import math
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
    committed = json.loads((calibrate.RESULTS / "calibration.json").read_text())

    assert committed.keys() == results.keys()
    for name, result in results.items():
        assert calibrate.calibrated(result["models"], result["method_sd"]) == pytest.approx(committed[name])


def test_what_estimates_go_by_is_calibrated_from_what_is_committed(monkeypatch):
    monkeypatch.syspath_prepend(TOP / "benchmarks")
    calibrate = importlib.import_module("calibrate")

    rows = calibrate.constants(calibrate.accuracies(calibrate.RESULTS))

    assert rows == json.loads(calibrate.CONSTANTS.read_text()), "run python benchmarks/calibrate.py"
    assert len({tuple(row["method"].items()) for row in rows}) == len(rows) > 0, "one row for each method"
    assert all(not row["source"].endswith("elsewhere") for row in rows)


def test_scatter_that_intervals_go_by_is_that_of_what_is_committed(monkeypatch):
    monkeypatch.syspath_prepend(TOP / "benchmarks")
    calibrate = importlib.import_module("calibrate")

    rows = calibrate.scatter(calibrate.RESULTS)

    assert rows == json.loads(calibrate.SCATTER.read_text()), "run python benchmarks/calibrate.py"
    assert len({(row["backend"], row["device"], row["threads"], row["of"]) for row in rows}) == len(rows) > 0


@pytest.fixture
def scattered(monkeypatch, tmp_path):
    """The scatter of invented data: processes by how much the second is slower, and runs likewise."""
    monkeypatch.syspath_prepend(TOP / "benchmarks")
    calibrate = importlib.import_module("calibrate")
    place = {"stack": {"backend": "b"}, "threads": 4}

    def found(processes=(), runs=(), error=0.0):
        rows = [[1.0, error, 4], [1.0, error, 4]]
        models = [{"name": str(n), "bricks": [[2.0 * by, error, 4], [2.0, error, 4]], "model": rows} for n, by in
                  enumerate(processes)]  # fmt: skip
        kept = {**place, "protocol": calibrate.PROTOCOL, "models": models}
        (tmp_path / "scatter-x.json").write_text(json.dumps(kept))
        figures = {
            str(n): [{"estimate_undisturbed": by, "own_undisturbed": 1.0}, {"estimate_undisturbed": 1.0}]
            for n, by in enumerate(runs)
        }
        (tmp_path / "repeat-x.json").write_text(json.dumps({**place, "figures_ms": figures | {"gone": [None, {}]}}))
        return {row["of"]: row for row in calibrate.scatter(tmp_path)}

    return found


def test_scatter_is_the_least_that_holds_95_percent(scattered):
    found = scattered(processes=[1.0] * 18 + [1.05, 2.0], runs=[1.0] * 18 + [1 / 1.1, 3.0])["bricks"]

    assert found["threads"] == 2, "all above one are one class"
    assert found["processes"]["sd"] == pytest.approx(math.log(1.05) / math.sqrt(2) / 1.96, abs=1e-4)
    assert found["runs"]["sd"] == pytest.approx(math.log(1.1) / math.sqrt(2) / 1.96, abs=1e-4)


def test_what_time_blocks_explain_is_not_what_processes_differ_by(scattered):
    known = [scattered(processes=[1.05] * 20, error=error)["bricks"]["processes"]["sd"] for error in (0.0, 0.01, 0.05)]

    assert known[0] > known[1] > known[2] == 0


def test_a_few_models_say_nothing_of_runs(scattered):
    assert scattered(processes=[1.0] * 20, runs=[1.1] * 9)["bricks"]["runs"] is None
    assert scattered(processes=[1.0] * 20, runs=[1.1] * 10)["model"]["runs"] is None, "one of the runs lacks it"


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


def test_figures_of_one_half_are_kept_apart_and_make_no_headline(tables, tmp_path):
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
