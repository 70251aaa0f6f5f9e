"""Bricks at a model's own inputs and outputs: which they are."""

import onnx
import pytest
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.boundary import boundary_variants
from dlbricks.bricks.graph.graph import ModelGraph, build_graph
from dlbricks.models import find_models

CACHE = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,{rows},256] past, float[1,1,256] new) => (float[1,{more},256] present, float[1,{more},256] y) {{
  present = Concat<axis=1>(past, new)
  a = Relu(present)
  b = Abs(a)
  y = Neg(b)
}}"""


def graph_of(text: str, path) -> ModelGraph:
    onnx.save(onnx.parser.parse_model(text), path)
    (source,) = find_models([path])
    return build_graph(source.skeleton())


def variants(text: str, path) -> dict[str, set[str]]:
    graph = graph_of(text, path)
    parts = sequences(graph, 1)
    found = boundary_variants(graph, parts)
    return {graph.layers[part.layers[0]].op_type: {*found.get(part.key, ())} for part in parts}


def test_what_reads_or_writes_a_cache_stands_at_the_boundary_and_what_is_between_does_not(tmp_path):
    found = variants(CACHE.format(rows=1024, more=1025), tmp_path / "step.onnx")

    assert found == {"Concat": {"given-kept"}, "Relu": set(), "Abs": set(), "Neg": {"kept"}}


@pytest.mark.parametrize("rows", [32, 200])
def test_small_inputs_and_outputs_are_no_boundary(tmp_path, rows):
    found = variants(CACHE.format(rows=rows, more=rows + 1), tmp_path / "step.onnx")

    assert set().union(*found.values()) == set()  # 32 rows: each is small; 200: all together are


def test_a_brick_that_reads_large_values_from_inside_as_well_is_none(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1024,512] x) => (float[1] y) { a = Relu(x) b = Add(a, x) y = ReduceMax<keepdims=0>(b) }"""

    assert variants(text, tmp_path / "m.onnx") == {"Relu": {"given"}, "Add": set(), "ReduceMax": set()}
