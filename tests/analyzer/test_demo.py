"""The demo, with fewer models than it shows by itself."""

from __future__ import annotations

import json
from pathlib import Path

import onnx.parser
import pytest
from dlbricks.analyzer.demo import MODELS, demo, demo_answer
from dlbricks.analyzer.report.tables import render
from dlbricks.models.zoo import names


@pytest.mark.slow
def test_the_demo_of_two_models_of_the_zoo(tmp_path: Path) -> None:
    result = demo(tmp_path / "demo", models=["squeezenet", "alexnet"], budget_s=600)

    assert result.complete
    lines = [line for line in render(demo_answer(result)).splitlines() if line.startswith(("squeezenet ", "alexnet "))]
    assert [line.split()[:3] for line in lines] == [["squeezenet", "40", "28"], ["alexnet", "20", "20"]]
    (squeezenet, alexnet) = json.loads(render(demo_answer(result), "json"))["results"]
    assert squeezenet["critical_path_ms"] < squeezenet["sequential_ms"]
    assert alexnet["critical_path_ms"] == pytest.approx(alexnet["sequential_ms"])  # a chain
    assert squeezenet["measured_ms"] > 0


CHAIN = """
<ir_version: 8, opset_import: ["": 17]>
chain (float[1,8,64,64] x) => (float[1,8] y) {
    a = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
    b = Tanh(a)
    c = GlobalAveragePool(b)
    y = Flatten(c)
}
"""


def test_the_demo_ends_with_a_table_and_plots(branches: Path, here: Path) -> None:
    onnx.save(onnx.parser.parse_model(CHAIN), here / "chain.onnx")

    result = demo(here / "demo", models=["branches.onnx", "chain.onnx"], budget_s=600)

    assert result.complete
    assert {path.name for path in result.plots} == {
        "unique.png", "similarity.png", "estimates.png", "layers-branches.png", "layers-chain.png",
    }  # fmt: skip
    assert all(path.stat().st_size > 10_000 for path in result.plots)
    assert result.page is not None
    assert "2 models" in result.page.read_text()
    answer = demo_answer(result)
    header, _, *lines = render(answer, width=200).splitlines()
    assert header.split() == [
        "model", "layers", "unique", "estimate", "ms", "±95%", "sequential", "ms", "critical", "path", "ms",
        "undisturbed", "ms", "measured", "ms", "±95%", "ratio",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines[:2]] == ["branches", "chain"]
    (fork, chain) = json.loads(render(answer, "json"))["results"]
    assert fork["critical_path_ms"] < fork["sequential_ms"]
    assert chain["critical_path_ms"] == pytest.approx(chain["sequential_ms"])
    assert fork["measured_ms"] > 0
    again = demo(here / "demo", models=["branches.onnx", "chain.onnx"], budget_s=600)
    assert (again.measured.measured, again.measured.reused) == (0, result.measured.measured)


def test_the_demo_shows_at_least_six_models_that_need_no_extra() -> None:
    entries = {entry.name: entry for entry in names()}

    assert len(MODELS) >= 6
    assert all(entries[name].extra is None for name in MODELS)
    assert "transformer" in {entries[name].family for name in MODELS}
