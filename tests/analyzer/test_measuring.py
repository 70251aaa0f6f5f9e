"""Measuring what a command lacks."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.measuring import MeasuringPlan, Spending
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


@pytest.mark.parametrize(
    ("budget_s", "once_ms", "expected"),
    [
        (None, 10.0, ()),
        (70.0, 900.0, ()),
        (40.0, None, ("75 s of work for a budget of 40 s: measuring took 60 s",)),
        (40.0, 10.0, ("75 s of work for a budget of 40 s: measuring took 60 s",)),
        (40.0, 2300.0, ("75 s of work for a budget of 40 s: measuring took 60 s; one execution of big takes 2.3 s",)),
    ],
)
def test_a_budget_that_did_not_hold_has_a_reason(budget_s, once_ms, expected, monkeypatch):
    measuring = import_module("dlbricks.analyzer.measuring")
    times = iter([0.0, 10.0, 50.0, 54.0, 55.0, 75.0])
    monkeypatch.setattr(measuring, "work_clock", lambda: next(times))
    spent = Spending()
    for step in ("decomposing", "measuring", "analyses and proofs", "the page", "measuring"):
        spent.on(step)

    assert spent.beyond(budget_s, {"small": 1.0, "big": once_ms, "unknown": None}) == expected
