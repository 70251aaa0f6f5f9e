"""Iterations are taken with weights as warm as the one before leaves them, where bricks were measured so."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from dlbricks import estimate
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.footprint import level_name
from dlbricks.db import Conditions
from dlbricks.models import find_models
from dlbricks.models.control_flow import CourseChoice

WARM, COLD = "256KiB", "8MiB"


@pytest.fixture
def loop(tmp_path):
    """Three iterations with a weight of 256 KiB, behind a product with one of 8 MiB."""
    text = (
        '<ir_version: 8, opset_import: ["" : 16]> g (float[1,8192] x, int64 trips, float[8192,256] S, float[256,256] W)'
        " => (float[1,256] end, float[3,1,256] all)"
        "{ begun = MatMul(x, S) end, all = Loop(trips, , begun) <body = b (int64 trip, bool go, float[1,256] v)"
        " => (bool on, float[1,256] u, float[1,256] kept) { on = Identity(go) u = MatMul(v, W) kept = Identity(u) }> }"
    )
    model = onnx.parser.parse_model(text)
    for _ in range(2):
        value = model.graph.input.pop()
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(shape, np.float32), value.name))
    onnx.save(model, tmp_path / "loop.onnx")
    (source,) = find_models([tmp_path / "loop.onnx"], control=[CourseChoice("", 3)])
    return source


@pytest.fixture
def shared(loop, graph_of):
    """Bricks whose weights iterations share, and all bricks."""
    parts = sequences(graph_of(loop), 1)
    assert {level_name(part.reuse) for part in parts if part.reuse} == {WARM}
    return sorted({part.key for part in parts if part.reuse}), sorted({part.key for part in parts})


def at(cache):
    return Conditions(threads=1, cache=cache)


def products(answer):
    return [part for part in answer.parts.sequences if part.op_types == ("MatMul",)]


def test_iterations_are_as_warm_as_they_were_measured(lab, loop, shared):
    warm, every = shared
    lab.put(((key, 2.0) for key in every), conditions=at(COLD))
    (cold,) = estimate([loop], store=lab.store)
    lab.put(((key, 0.5) for key in warm), conditions=at(WARM))

    (answer,) = estimate([loop], store=lab.store)

    assert cold.complete
    assert answer.complete
    assert {part.cache for part in cold.parts.sequences} == {COLD}  # what is stored of older suites answers as it did
    assert cold.sums.sequential_ms == pytest.approx(2.0 * len(cold.parts.sequences))
    known = [(part.latency_ms, part.cache) for part in products(answer)]
    assert known == [(2.0, COLD), (2.0, COLD), (0.5, WARM), (0.5, WARM)]
    warmer = sum(part.cache == WARM for part in answer.parts.sequences)
    assert warmer < len(answer.parts.sequences)
    assert answer.sums.sequential_ms == pytest.approx(cold.sums.sequential_ms - warmer * 1.5)
    assert answer.sums.critical_path_ms <= answer.sums.sequential_ms
    assert answer.bounds.sequential.ms <= answer.sums.sequential_ms
    assert answer.latency.ms == pytest.approx(answer.sums.sequential_ms)


def test_what_the_loop_takes_by_itself_is_told(lab, loop, shared, graph_of):
    _, every = shared
    lab.put(((key, 2.0) for key in every), conditions=at(COLD))

    (answer,) = estimate([loop], store=lab.store)

    (framing,) = answer.parts.framing
    assert framing.own_ms == pytest.approx(2.0)
    assert framing.moved_ms == pytest.approx(2.0 * 4)  # three Unsqueeze, one Concat: the means are stacked


@pytest.mark.parametrize("granularity", [2, 3])
def test_a_bound_never_grows_with_the_granularity(lab, loop, graph_of, granularity):
    for length in (1, granularity):
        for part in sequences(graph_of(loop), length):
            lab.put([(part.key, 2.0 * len(part.layers))], conditions=at(COLD))
            if part.reuse:
                lab.put([(part.key, 0.5 * len(part.layers))], conditions=at(WARM))

    (one,) = estimate([loop], store=lab.store)
    (longer,) = estimate([loop], store=lab.store, granularity=granularity)

    assert longer.bounds.sequential.ms <= one.bounds.sequential.ms
    assert longer.bounds.sequential.ms <= longer.sums.sequential_ms


def test_nothing_measured_is_no_cost_of_nothing(lab, loop, shared):
    lab.put([(shared[0][0], 1.0)], conditions=at(COLD))

    (answer,) = estimate([loop], store=lab.store)

    assert answer.parts.framing[0].own_ms is None
    assert answer.parts.framing[0].moved_ms is None


def test_other_cache_states_know_no_iterations(lab, loop, shared):
    warm, every = shared
    lab.put(((key, 2.0) for key in every), conditions=at("hot"))
    lab.put(((key, 0.5) for key in warm), conditions=at(WARM))

    (answer,) = estimate([loop], store=lab.store, cache="hot")

    assert answer.sums.sequential_ms == pytest.approx(2.0 * len(answer.parts.sequences))
