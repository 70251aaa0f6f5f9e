"""Outputs that are copies of inputs are told, in branches too; other outputs are not."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from dlbricks.analyzer.rewriting.copies import CopiedOutput, copied_outputs, without_outputs
from dlbricks.analyzer.rewriting.rewrite import RewriteGraph

HEAD = (
    '<ir_version: 8, opset_import: ["" : 17]> m (float[4] past, float[4] x, bool first) => (float[4] kept, float[4] y)'
)
RUN = {"past": np.zeros(4, "f"), "x": np.zeros(4, "f"), "first": np.array(False)}
ALWAYS = "{a = Identity(past) kept = Identity(a) y = Add(x, past)}"
BRANCH = "{{kept = If(first) <then_branch = g1 () => (float[4] t) {{t = {}}}, else_branch = g2 () => (float[4] e) {{e = Identity(past)}}> y = Add(x, past)}}"  # noqa: E501


def graph_of(body: str) -> RewriteGraph:
    return RewriteGraph(onnx.parser.parse_model(HEAD + body))


@pytest.mark.parametrize(
    ("body", "branch"),
    [(ALWAYS, ""), (BRANCH.format("Neg(past)"), "else_branch"), (BRANCH.format("Identity(past)"), "")],
)
def test_a_copy_is_found_by_its_branch(body: str, branch: str):
    assert copied_outputs(graph_of(body), RUN) == (CopiedOutput("kept", "past", 16, branch),)


def test_an_output_that_is_computed_is_no_copy():
    assert not copied_outputs(graph_of("{kept = Neg(past) y = Add(x, past)}"), RUN)


def test_the_model_without_a_copy_computes_the_rest():
    graph = graph_of(ALWAYS)

    shorter = without_outputs(graph, frozenset({"kept"}))

    assert shorter is not None
    assert [(value.name) for value in shorter.graph.output] == ["y"]
    assert without_outputs(graph, frozenset({"kept", "y"})) is None
