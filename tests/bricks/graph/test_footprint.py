"""Footprints and their classes."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.boundary import boundary_variants, half_of
from dlbricks.bricks.graph.footprint import (
    REUSE_LEVELS,
    STREAM_LEVEL,
    class_of,
    footprint,
    is_level,
    level_of,
    parse_level,
)
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.models import find_models
from dlbricks.models.skeleton import Skeleton, mark_weight
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, save


def test_a_footprint_is_all_weights_and_the_memory_of_activations(tmp_path):
    value = helper.make_tensor_value_info
    weight = helper.make_tensor("w", TensorProto.FLOAT, [256, 256], b"\0" * 256 * 256 * 4, raw=True)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),  # not over a, which the Add reads
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [64, 256])], [value("y", TensorProto.FLOAT, [64, 256])], [weight]
    )
    path = tmp_path / "model.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    (source,) = find_models([path])

    assert footprint(build_graph(source.skeleton())) == 256 * 256 * 4 + 4 * 64 * 256 * 4


def test_of_a_table_only_what_is_looked_up_counts(tmp_path):
    value = helper.make_tensor_value_info
    table = helper.make_tensor("table", TensorProto.FLOAT, [1000, 64], bytes(1000 * 64 * 4), raw=True)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [value("ids", TensorProto.INT64, [8])], [value("y", TensorProto.FLOAT, [8, 64])], [table]
    )
    path = tmp_path / "model.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    (source,) = find_models([path])
    whole = build_graph(source.skeleton())
    (part,) = sequences(whole, 1)
    brick = build_brick(whole, part)

    assert footprint(whole) == 8 * 64 * 4 + (8 * 8 + 8 * 64 * 4)  # rows that are read; ids and rows that are written
    assert (brick.weight_bytes, brick.read_bytes) == (1000 * 64 * 4, 8 * 64 * 4)


@pytest.mark.parametrize(("name", "least", "most"), [("squeezenet", 5, 20), ("resnet50", 100, 120)])
def test_footprints_of_real_models_are_a_little_more_than_their_weights(name, least, most):
    (source,) = find_models([name])

    assert least << 20 < footprint(build_graph(source.skeleton())) < most << 20


@given(st.integers(min_value=1, max_value=1 << 40))
def test_the_class_of_a_footprint_is_the_nearest_by_ratio(size):
    level = level_of(size)

    assert level in REUSE_LEVELS
    nearest = min(max(one / size, size / one) for one in REUSE_LEVELS)
    assert max(level / size, size / level) == pytest.approx(nearest)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("rows", "columns", "level"),
    [(1, 4200, STREAM_LEVEL), (15, 4200, STREAM_LEVEL), (16, 4200, 128 * MIB), (1, 4000, 128 * MIB)],
)
def test_a_large_model_that_computes_little_with_each_weight_has_a_class_of_its_own(rows, columns, level):
    """They have 131 MiB, above the largest other class, or 125. Four multiply-accumulates for a byte are 16 rows."""
    value = helper.make_tensor_value_info
    x, w, y = (value(*one) for one in (
        ("x", TensorProto.FLOAT, [rows, 8192]), ("w", TensorProto.FLOAT, [8192, columns]),
        ("y", TensorProto.FLOAT, [rows, columns]),
    ))  # fmt: skip
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x, mark_weight(w)], [y])

    assert class_of(build_graph(Skeleton(helper.make_model(graph)))) == level


# Bricks at a model's own inputs and outputs: which they are --------------------------------------------------------

CACHE = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,{rows},256] past, float[1,1,256] new) => (float[1,{more},256] present, float[1,{more},256] y) {{
  present = Concat<axis=1>(past, new)
  a = Relu(present)
  b = Abs(a)
  y = Neg(b)
}}"""


def graph_of(text: str, path, **weights: np.ndarray) -> ModelGraph:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, path)
    (source,) = find_models([path])
    return build_graph(source.skeleton())


def variants(text: str, path, **weights: np.ndarray) -> dict[str, str]:
    graph = graph_of(text, path, **weights)
    parts = sequences(graph, 1)
    found = boundary_variants(graph, parts)
    return {graph.layers[part.layers[0]].op_type: found.get((part.key, part.layers), "") for part in parts}


def test_what_reads_or_writes_a_cache_stands_at_the_boundary_and_what_is_between_does_not(tmp_path):
    found = variants(CACHE.format(rows=400, more=401), tmp_path / "step.onnx")

    assert found == {"Concat": "given-kept", "Relu": "", "Abs": "", "Neg": "kept"}


def test_a_session_with_open_lengths_writes_its_outputs_to_memory_that_was_just_freed(tmp_path):
    graph = replace(graph_of(CACHE.format(rows=400, more=401), tmp_path / "step.onnx"), opened=True)

    found = boundary_variants(graph, sequences(graph, 1))

    assert {graph.layers[index].op_type: kind for (_, (index,)), kind in found.items()} == {"Concat": "given"}


def test_a_brick_that_reads_large_values_from_inside_as_well_is_none(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1024,512] x) => (float[1] y) { a = Relu(x) b = Add(a, x) y = ReduceMax<keepdims=0>(b) }"""

    assert variants(text, tmp_path / "m.onnx") == {"Relu": "given-kept", "Add": "", "ReduceMax": ""}


@pytest.mark.parametrize(("rows", "variant"), [(128, ""), (16, "kept")])
def test_outputs_that_take_next_to_nothing_of_the_time_are_not_at_the_boundary(tmp_path, rows, variant):
    """The head of a decoder writes 1 MiB for the caller, and reads weights of 128 or 16 MiB."""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[1,{rows}] x) => (float[1,262144] y) {{ y = MatMul(x, w) }}"""

    found = variants(text, tmp_path / "head.onnx", w=np.zeros((rows, 1 << 18), np.float32))

    assert found == {"MatMul": variant}


@pytest.mark.parametrize("name", ["hot", "cold", "model", "5MiB", ""])
def test_other_cache_states_are_no_levels(name):
    assert parse_level(name) is None
    assert not is_level(name)


def test_nothing_has_the_smallest_class():
    assert level_of(0) == REUSE_LEVELS[0]


@pytest.mark.parametrize("rows", [32, 200])
def test_small_inputs_and_outputs_are_no_boundary(tmp_path, rows):
    found = variants(CACHE.format(rows=rows, more=rows + 1), tmp_path / "step.onnx")

    assert not any(found.values())  # 32 rows: each is small; 200: all together are


def test_inputs_and_outputs_live_to_the_end(tmp_path):
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Relu", [before], [after]) for before, after in ("xa", "ab", "bc")]
    shape = [256, 256]
    of_chain = helper.make_graph(nodes, "g", [value("x", 1, shape)], [value("c", 1, shape)])
    of_all = helper.make_graph(nodes, "g", [value("x", 1, shape)], [value(name, 1, shape) for name in "abc"])
    peaks = []
    for number, graph in enumerate((of_chain, of_all)):
        path = tmp_path / f"{number}.onnx"
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
        (source,) = find_models([path])
        peaks.append(footprint(build_graph(source.skeleton())) / (256 * 256 * 4))

    assert peaks == [3, 4]


@given(sizes=st.dictionaries(st.text(min_size=1), st.integers(1, 1 << 40)))
def test_half_of_the_inputs_hold_a_quarter_to_half_of_the_bytes(sizes):
    total, held = sum(sizes.values()), sum(sizes[name] for name in half_of(sizes))

    assert not half_of(sizes) or total <= 4 * held <= 2 * total
    if len(sizes) > 1 and max(sizes.values()) <= total / 2:
        assert half_of(sizes)
