"""The demo, with fewer models than it shows by itself."""

from __future__ import annotations

import json
from pathlib import Path

import onnx.parser
import pytest
from dlbricks.analyzer.demo import demo, demo_answer
from dlbricks.analyzer.report.tables import render

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
        "estimates.png", "layers-branches.png", "layers-chain.png",
    }  # fmt: skip
    assert all(path.stat().st_size > 10_000 for path in result.plots)
    assert result.page is not None
    assert "2 models" in result.page.read_text()
    answer = demo_answer(result)
    header, _, *lines = render(answer, width=200).splitlines()
    assert header.split() == [
        "model", "layers", "unique", "estimate", "ms", "±95%", "sequential", "ms", "critical", "path", "ms",
        "undisturbed", "estimate", "ms", "measured", "ms", "±95%", "ratio",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines[:2]] == ["branches", "chain"]
    (fork, chain) = json.loads(render(answer, "json"))["results"]
    assert fork["critical_path_ms"] < fork["sequential_ms"]
    assert chain["critical_path_ms"] == pytest.approx(chain["sequential_ms"])
    assert fork["measured_ms"] > 0
