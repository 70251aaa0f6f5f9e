"""What users see of a runtime's graph has the names of the model."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
from dlbricks.bricks.decomposition import Decomposition
from dlbricks.generator.backends.reports import own_names
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decompose import decompose
from dlbricks.models import ModelSource, find_models

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '


def source_of(path: Path, text: str) -> ModelSource:
    path.write_bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())
    (source,) = find_models([path])
    return source


@pytest.mark.parametrize("graph", ["runtime", "fused"])
def test_executed_layers_have_the_names_of_the_layers_that_they_came_from(tmp_path: Path, graph: str):
    text = "(float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y, float[1, 3, 8, 8] e) { [tan] y = Tanh(x) e = Erf(y) }"
    source = source_of(tmp_path / "named.onnx", text)

    (model,) = decompose([source], Cut.of(Cut(1), graph))

    assert isinstance(model, Decomposition)
    assert [layer.name for layer in model.graph.layers] == ["tan", "Erf_1"]


def test_a_runtime_that_refuses_a_model_names_its_node(tmp_path: Path):
    text = "(float[1, 4, 2] x, int64[3] target) => (float[a, b, c] y) { [last] y = Reshape(x, target) }"
    source = source_of(tmp_path / "refused.onnx", text)

    (model,) = decompose([source], Cut.of(Cut(1), "runtime"))

    assert not isinstance(model, Decomposition)
    assert "Name:'last'" in model.reason


def test_names_that_begin_with_each_other_are_told_apart():
    graph = onnx.parser.parse_graph(
        "g (float[1] x) => (float[1] y) { [one] y = Relu(x) y1 = Relu(y) [two] y12 = Abs(y) }"
    )

    assert own_names(graph.node, "Name:'~y12', Name:'~y', ~y1 and ~z") == "Name:'two', Name:'one', y1 and ~z"
