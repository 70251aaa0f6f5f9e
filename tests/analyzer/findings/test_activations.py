"""Activation functions that run operator by operator, with chosen latencies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.findings.analyses import activations
from dlbricks.analyzer.findings.subject import Subject
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.executed import ExecutedModel, Layouts
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.models import find_models
from onnx import numpy_helper

MODEL = """
<ir_version: 9, opset_import: ["": 20]>
g (float[1,8,6,6] x) => ({outputs}) <float r = {{1.4142135}}, float one = {{1.0}}, float half = {{0.5}}>
{{
    a = Conv(x, w)
    into = DepthToSpace<blocksize=1>(a)
    d = Div(into, r)
    e = Erf(d)
    f = Add(e, one)
    m = Mul(half, f)
    g = Mul(m, into)
    out = DepthToSpace<blocksize=1>(g)
    y = Conv(out, w)
}}
"""
"""A GELU between two operators that stand for changes of the layout."""

LATENCIES = {"a": 3.0, "into": 0.5, "d": 1.0, "e": 2.0, "f": 1.0, "m": 1.0, "g": 1.0, "out": 0.25, "y": 3.0}


@pytest.fixture
def gelu(bench: Any, subject_of: Callable[..., Subject], tmp_path: Path) -> Callable[..., Subject]:
    def made(outputs: str = "float[1,8,6,6] y", changes: frozenset[str] = frozenset({"DepthToSpace"})) -> Subject:
        model = onnx.parser.parse_model(MODEL.format(outputs=outputs))
        model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8, 1, 1), np.float32), "w"))
        onnx.save(model, tmp_path / "gelu.onnx")
        (source,) = find_models([tmp_path / "gelu.onnx"])
        graph = build_graph(source.skeleton())
        keys = {graph.layers[part.layers[0]].outputs[0]: part.key for part in sequences(graph, 1)}
        bricks: dict[str, float] = {}
        for name, key in keys.items():  # equal layers are one brick
            bricks.setdefault(key, LATENCIES[name])
        total = sum(bricks[key] for key in keys.values())
        bench.run(ms=total, key=graph.key, bricks=bricks, noise=0)
        subject = subject_of(bench, source)
        origins = tuple(frozenset({layer.index}) for layer in graph.layers)
        executed = ExecutedModel("gelu", graph, graph, origins, frozenset(), {}, Layouts(changes=changes))
        subject.model = replace(subject.model, executed=executed)
        return subject

    return made


def test_changes_of_layout_around_it_go_as_well(gelu: Callable[..., Subject]) -> None:
    (found,) = activations.ANALYSIS.run(gelu())

    assert found.saving_ms == pytest.approx(1.0 + 1.0 + 1.0 + 1.0 + 0.5 + 0.5)  # equal changes are one brick


def test_without_layouts_all_but_the_longest_operator_goes(gelu: Callable[..., Subject]) -> None:
    (found,) = activations.ANALYSIS.run(gelu(changes=frozenset()))

    assert found.saving_ms == pytest.approx(4.0)


@pytest.mark.parametrize("also", ["into", "out"])
def test_what_is_read_elsewhere_in_the_other_layout_is_still_changed(also: str, gelu: Callable[..., Subject]) -> None:
    (found,) = activations.ANALYSIS.run(gelu(outputs=f"float[1,8,6,6] y, float[1,8,6,6] {also}"))

    assert found.saving_ms == pytest.approx(4.0)
