"""Figures in README.md and docs/results, and those that intervals go by, are those of the data that is committed."""

from __future__ import annotations

import importlib
import json
import lzma
import math
import re
from pathlib import Path

import calibrate
import pytest
import tables
from dlbricks import estimate, find_models
from dlbricks.db import Store, Subject

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
        ("tokens-*", "tokens", "page"),
        ("gpu/results", "visit_tables", "markdown"),
    ],
)
def test_a_script_still_prints_the_committed_data(data, script, function):
    table = getattr(importlib.import_module(script), function)
    results = [json.loads(path.read_text()) for path in RESULTS.rglob(f"{data}.json")]

    assert results
    for result in results:
        assert re.search(r"^\| ?--", table(result), re.MULTILINE)


def test_the_fastest_bricks_on_a_gpu_are_all_in_the_models_cache_state(tmp_path):
    (tmp_path / "gpu.db").write_bytes(lzma.decompress((RESULTS / "gpu/measurements-1.db.xz").read_bytes()))
    stages = json.loads((RESULTS / "gpu/results.json").read_text())["stages"]
    (stage,) = [one for one in stages if one["stage"] == "float32-graph"]
    (published,) = [row["lower_bound_sequential_ms"] for row in stage["models"] if row["name"] == "squeezenet"]
    with Store.open(tmp_path / "gpu.db", read_only=True) as store:
        place = {"threads": 1, "cache": "model", "dtype": "float32", "stack": stage["stack"]}
        (row,) = estimate(find_models(["squeezenet"]), store=store, granularity=1, **place)
        parts = row.parts.sequences
        stored = store.measurements(subject=Subject.BRICK, keys=[part.key for part in parts], variant=None)
    times = {(one.key, one.stack, one.variant, one.conditions.cache): one.latency_ms for one in stored}

    fastest = [times[part.key, part.fastest_stack, part.fastest_variant, part.cache] for part in parts]

    assert {part.cache for part in parts} == {"8MiB"}
    assert row.bounds.sequential.ms == pytest.approx(published)
    assert math.fsum(fastest) < published < row.sums.sequential_ms  # without and with what choosing the lowest gains
    assert not [key for one in stages for row in one["models"] for key in row if "plans" in key]


def test_the_page_of_results_can_be_read():
    assert len((RESULTS / "README.md").read_text().split()) <= 3200
    assert [path.name for path in RESULTS.rglob("*.md")] == ["README.md"]


def test_what_intervals_go_by_is_calibrated_from_what_is_committed():
    committed = json.loads((RESULTS / "calibration.json").read_text())
    (fits, rows), scatter = calibrate.fits(RESULTS), calibrate.scatter(RESULTS)

    assert committed.keys() == fits.keys()
    for name, fit in fits.items():
        assert fit.pop("validation") == committed[name].pop("validation")
        assert fit.pop("cpu", None) == committed[name].pop("cpu", None)
        assert fit == pytest.approx(committed[name])
    assert rows == json.loads(calibrate.CONSTANTS.read_text()), "run python benchmarks/calibrate.py"
    assert scatter == json.loads(calibrate.SCATTER.read_text()), "run python benchmarks/calibrate.py"
    places = {(*row["method"].items(), row["cpu"]) for row in rows}
    assert len(places) == len(rows) > 0, "one row for each method and processor"
