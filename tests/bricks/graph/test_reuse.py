"""Weights that iterations share: how soon they are read again, and the class that their bricks are measured in."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.control import ControlFlow
from dlbricks.bricks.graph.footprint import (
    CORE_LEVEL,
    MODEL_LEVELS,
    REPEAT_LEVELS,
    REUSE_LEVELS,
    footprint,
    iterates,
    level_name,
    level_of,
    nearest_levels,
    own_level,
    repeat_level_of,
    with_reuse,
)
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.generator.decomposition.generate import generate
from dlbricks.models import ModelSource, find_models
from dlbricks.models.control_flow import CourseChoice
from dlbricks.models.normal import normalise
from dlbricks.models.skeleton import Skeleton
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from speech import generation

LEAST, _, _, MIDDLE = REPEAT_LEVELS
KIB = 1 << 10


def source_of(model: onnx.ModelProto, folder: Path, *choices: CourseChoice) -> ModelSource:
    onnx.save(model, folder / "model.onnx")
    (source,) = find_models([folder / "model.onnx"], control=choices)
    return source


def graph_of(model: onnx.ModelProto, folder: Path, *choices: CourseChoice) -> ModelGraph:
    return build_graph(source_of(model, folder, *choices).skeleton())


def classes(graph: ModelGraph, operator: str) -> list[int]:
    return [part.reuse for part in sequences(graph, 1) if graph.layers[part.layers[0]].op_type == operator]


def weight(name: str, rows: int, columns: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones((rows, columns), np.float32), name)


def stem_and_loop(*, stem: int, width: int, trips: int) -> onnx.ModelProto:
    """A product with a large weight, and a Loop around one with a small weight."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("MatMul", ["x", "w"], ["y"])],
        "body",
        [value("trip", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("x", 1, [1, width])],
        [value("on", TensorProto.BOOL, []), value("y", 1, [1, width])],
    )
    nodes = [
        helper.make_node("MatMul", ["input", "stem"], ["begun"]),
        helper.make_node("Loop", ["trips", "", "begun"], ["end"], name="L", body=body),
    ]
    trip = numpy_helper.from_array(np.array(trips, np.int64), "trips")
    weights = [weight("stem", stem, width), weight("w", width, width), trip]
    graph = helper.make_graph(nodes, "g", [value("input", 1, [1, stem])], [value("end", 1, [1, width])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def test_only_the_first_iteration_of_a_large_model_finds_weights_as_cold_as_the_model(tmp_path: Path) -> None:
    model = stem_and_loop(stem=8 * KIB, width=256, trips=4)  # 8 MiB, and 256 KiB four times

    graph = graph_of(model, tmp_path, CourseChoice("L", 4))

    assert level_of(footprint(graph)) == REUSE_LEVELS[0]
    assert classes(graph, "MatMul") == [0, 0, LEAST, LEAST, LEAST]


def test_a_model_that_is_one_small_loop_is_small_as_a_whole(tmp_path: Path) -> None:
    """The inference before has read its weights before the first iteration: all are as warm as the model."""
    for width, level in ((64, CORE_LEVEL), (256, CORE_LEVEL), (1024, level_of(32 << 20))):
        graph = graph_of(generation(width=width), tmp_path, CourseChoice("", 3))
        assert own_level(graph.control, footprint(graph)) == level
        assert {*classes(graph, "MatMul"), *classes(graph, "Relu")} == {0}


def test_layers_without_weights_go_where_an_operator_like_them_ran_shortly_before(tmp_path: Path) -> None:
    model = stem_and_loop(stem=8 * KIB, width=256, trips=4)
    (loop,) = [node for node in model.graph.node if node.op_type == "Loop"]
    body = loop.attribute[0].g
    body.node[1].output[0] = "moved"
    body.node.append(helper.make_node("Tanh", ["moved"], ["y"]))
    model.graph.node[0].output[0] = "raw"
    model.graph.node.insert(1, helper.make_node("Relu", ["raw"], ["begun"]))

    graph = graph_of(model, tmp_path, CourseChoice("L", 4))

    assert classes(graph, "Relu") == [0]  # once per inference
    assert classes(graph, "Tanh") == [0, LEAST, LEAST, LEAST]


def test_a_weight_that_bodies_convert_is_one_weight(tmp_path: Path) -> None:
    model = stem_and_loop(stem=8 * KIB, width=256, trips=3)
    (loop,) = [node for node in model.graph.node if node.op_type == "Loop"]
    body = loop.attribute[0].g
    body.node[1].input[1] = "wide"
    body.node.insert(1, helper.make_node("Neg", ["w"], ["wide"]))

    assert classes(graph_of(model, tmp_path, CourseChoice("L", 3)), "MatMul") == [0, 0, LEAST, LEAST]


@pytest.mark.parametrize("granularity", [1, 2, 4])
def test_the_largest_weight_of_a_sequence_decides(tmp_path: Path, granularity: int) -> None:
    graph = graph_of(stem_and_loop(stem=8 * KIB, width=256, trips=4), tmp_path, CourseChoice("L", 4))

    parts = sequences(graph, granularity)

    for part in parts:
        large = any("stem" in operand.value for index in part.layers for operand in graph.layers[index].operands)
        assert not (large and part.reuse)


def test_without_iterations_nothing_is_said(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("MatMul", [f"v{n}", "w"], [f"v{n + 1}"]) for n in range(3)]
    shared = helper.make_graph(nodes, "g", [value("v0", 1, [1, 64])], [value("v3", 1, [1, 64])], [weight("w", 64, 64)])
    model = helper.make_model(shared, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)

    assert classes(graph_of(model, tmp_path), "MatMul") == [0, 0, 0]
    assert not iterates([ControlFlow("a", "If", "given", "then", layers=3)])
    assert not iterates([ControlFlow("b", "Loop", "given", "1", layers=2)])
    assert not iterates([ControlFlow("c", "Loop", "unknown", "")])
    assert iterates([ControlFlow("d", "Scan", "resolved", "2", layers=4)])


def test_a_suite_notes_the_classes_of_iterations_beside_that_of_the_model(tmp_path: Path) -> None:
    source = source_of(stem_and_loop(stem=8 * KIB, width=256, trips=4), tmp_path, CourseChoice("L", 4))

    suite = generate([source], granularity=1, out=tmp_path / "suite").suite

    assert suite is not None
    noted = Counter(suite.footprints(key) for key in suite.keys)
    assert noted == {(REUSE_LEVELS[0],): len(suite.keys) - 1, (LEAST, REUSE_LEVELS[0]): 1}


def naive(reads: list[tuple[str, int]]) -> Iterable[int]:
    """Bytes of the different weights that were read since each was last read, in the second of two inferences."""
    twice = 2 * reads
    for place in range(len(reads), len(twice)):
        name = twice[place][0]
        before = max(at for at in range(place) if twice[at][0] == name)
        yield sum(dict(twice[before:place]).values())


@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=12))
def test_a_reuse_distance_is_what_was_read_in_between(names: list[str]) -> None:
    rows = dict(zip("abcd", (64, 300, 1500, 6000), strict=True))
    value = helper.make_tensor_value_info
    numbers = count()
    nodes = [helper.make_node("MatMul", [f"x{name}", name], [f"y{next(numbers)}"], name=name) for name in names]
    graph = helper.make_graph(
        nodes,
        "g",
        [value(f"x{name}", 1, [1, rows[name]]) for name in sorted(set(names))],
        [value(f"y{place}", 1, [1, 256]) for place in range(len(names))],
        [weight(name, rows[name], 256) for name in sorted(set(names))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    plain = build_graph(Skeleton(normalise(model).model))
    looped = dataclasses.replace(plain, control=(ControlFlow("L", "Loop", "given", "2", layers=2),))
    own = own_level(looped.control, footprint(looped))

    found = [part.reuse for part in with_reuse(looped, sequences(plain, 1))]

    read = [(name, rows[name] * 256 * 4) for name in names]
    most = max(4 * (rows[name] + 256) for name in names)  # activations decide next to nothing here
    for part, distance, (name, _) in zip(found, naive(read), read, strict=True):
        if names.count(name) == 1:
            assert part == 0
            continue
        wanted = {repeat_level_of(distance), repeat_level_of(distance + most)}
        assert part in {level if level < own else 0 for level in wanted}


def test_only_small_models_stay_in_a_core() -> None:
    assert own_level((), 4 << 20) == CORE_LEVEL
    assert own_level((), (4 << 20) + 1) == REUSE_LEVELS[0]


def test_what_iterations_found_stands_for_no_model() -> None:
    small = {level_name(level) for level in (CORE_LEVEL, *REPEAT_LEVELS)}

    assert all(small.isdisjoint(nearest_levels(level_name(level))) for level in REUSE_LEVELS)
    assert nearest_levels("16MiB")[:5] == ["16MiB", "20MiB", "12MiB", "24MiB", "28MiB"]
    larger = [level_name(level) for level in MODEL_LEVELS]
    assert nearest_levels("256KiB") == ["256KiB", "512KiB", "64KiB", "1MiB", "2MiB", *larger]
