"""Conversions of quantised values that nothing computes with, on chosen latencies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.findings.analyses.precision import quantisation
from dlbricks.analyzer.findings.finding import Finding
from dlbricks.analyzer.findings.subject import Subject
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.models import find_models

SubjectOf = Callable[..., Subject]

PAIRS = (
    '<ir_version: 10, opset_import: ["": 21]> g (float[1,8] x) => (float[1,8] y)'
    "<float s = {0.1}, TYPE z = {0}>"
    "{a = Sigmoid(x) q = QuantizeLinear(a, s, z) b = DequantizeLinear(q, s, z) c = MIDDLE(b)"
    " r = QuantizeLinear(c, s, z) d = DequantizeLinear(r, s, z) y = Tanh(d)}"
)


@pytest.fixture
def findings(bench: Any, subject_of: SubjectOf, tmp_path: Path) -> Callable[..., list[Finding]]:
    """What is found where every operator is executed as the file has it, each in one millisecond."""

    def find(dtype: str, middle: str) -> list[Finding]:
        path = tmp_path / f"{dtype}-{middle}.onnx"
        onnx.save(onnx.parser.parse_model(PAIRS.replace("TYPE", dtype).replace("MIDDLE", middle)), path)
        (source,) = find_models([path])
        graph = build_graph(source.skeleton())
        bench.run(ms=7.0, key=graph.key, bricks={part.key: 1.0 for part in sequences(graph, 1)})
        return list(quantisation.ANALYSIS.run(subject_of(bench, source)))

    return find


def test_signed_values_are_to_be_unsigned(findings: Callable[..., list[Finding]]) -> None:
    (found,) = findings("int8", "Sigmoid")

    assert found.kind == "unfolded_quantization"
    assert found.remedy.settings["rewrite"] == "unsigned"
    assert found.saving_ms == pytest.approx(4.0, rel=0.01)  # two pairs; what is between them is not foreseen


@pytest.mark.parametrize(
    ("dtype", "middle", "why"),
    [("uint16", "Sigmoid", "no kernels for activations of uint16"), ("uint8", "Erf", "no kernel for a quantised Erf")],
)
def test_why_nothing_takes_a_pair_in_is_said(
    findings: Callable[..., list[Finding]], dtype: str, middle: str, why: str
) -> None:
    (found,) = findings(dtype, middle)

    assert found.remedy.action == "manual"
    assert found.saving_ms == pytest.approx(4.0, rel=0.01)
    assert any(why in line for line in found.evidence)
    assert len(found.layers) == 4


def test_a_model_without_conversions_has_none(bench: Any, subject_of: SubjectOf) -> None:
    bench.run(ms=10.0, bricks=bench.bricks(1.0))

    assert not list(quantisation.ANALYSIS.run(subject_of(bench)))
