"""Measuring what a command lacks."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.measuring import MeasuringPlan
from dlbricks.analyzer.setups import set_up, settled
from dlbricks.bricks.graph.boundary import Caches
from dlbricks.db import Store
from dlbricks.generator.decomposition import generate
from dlbricks.models import find_models

LARGE = "(float[1,1200,256] x) => (float[1,1200,256] y) {a = Relu(x) b = Sqrt(a) y = Neg(b)}"
"""Its inputs and outputs are beyond a core's caches."""


def test_what_the_database_knows_of_the_caches_decides_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another look may find other ones, and other bricks would be measured cold."""
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {LARGE}'), tmp_path / "m.onnx")
    models = find_models([tmp_path / "m.onnx"])
    known = Caches(1 << 20, 16 << 20)
    monkeypatch.setattr(generate, "caches_here", lambda: known)
    with Store.open(tmp_path / "test.db") as store:
        plan = MeasuringPlan(store, settled(set_up()))
        first, _ = plan.measure(models, tmp_path / "first", {"visits": 2})
        monkeypatch.setattr(generate, "caches_here", lambda: pytest.fail("they are known"))
        second, measured = plan.measure(models, tmp_path / "second", {"visits": 2})

    assert first.suite.caches == second.suite.caches == known
    assert measured.measured == 0
