"""The demo, with fewer models than it shows by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dlbricks.analyzer.demo import MODELS, demo, demonstrated
from dlbricks.analyzer.tables import render
from dlbricks.models.zoo import names


@pytest.mark.slow
def test_the_demo_ends_with_a_table_and_plots(tmp_path: Path) -> None:
    result = demo(tmp_path / "demo", models=["squeezenet", "alexnet"], budget_s=60)

    assert result.complete
    assert {path.name for path in result.plots} == {
        "unique.png", "similarity.png", "estimates.png", "layers-squeezenet.png", "layers-alexnet.png",
    }  # fmt: skip
    assert all(path.stat().st_size > 10_000 for path in result.plots)
    answer = demonstrated(result)
    header, _, *lines = render(answer).splitlines()
    assert header.split() == [
        "model", "layers", "unique", "estimate", "ms", "sequential", "ms", "critical", "path", "ms", "measured", "ms",
        "ratio",
    ]  # fmt: skip
    executed = [line.split()[:3] for line in lines[:2]]
    assert executed == [["squeezenet", "40", "28"], ["alexnet", "20", "20"]]
    (squeezenet, alexnet) = json.loads(render(answer, "json"))["results"]
    assert squeezenet["critical_path_ms"] < squeezenet["sequential_ms"]
    assert alexnet["critical_path_ms"] == pytest.approx(alexnet["sequential_ms"])  # a chain
    assert squeezenet["measured_ms"] > 0
    again = demo(tmp_path / "demo", models=["squeezenet", "alexnet"], budget_s=600)
    assert (again.measured.measured, again.measured.reused) == (0, result.measured.measured)


def test_the_demo_shows_at_least_six_models_that_need_no_extra() -> None:
    entries = {entry.name: entry for entry in names()}

    assert len(MODELS) >= 6
    assert all(entries[name].extra is None for name in MODELS)
    assert "transformer" in {entries[name].family for name in MODELS}
