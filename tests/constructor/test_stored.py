"""Bricks at a model's own inputs and outputs are taken as they were measured there, where they were."""

from __future__ import annotations

import pytest
from dlbricks import estimate
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.boundary import boundary_variants
from dlbricks.constructor.evidence import Table, at_boundary
from dlbricks.constructor.measurements import BrickMeasurements
from lab import changed

STEP = """
<ir_version: 8, opset_import: ["" : 17]>
step (float[1,1024,256] past, float[1,1,256] new) => (float[1,1025,256] present, float[1,1,256] y) {
    present = Concat<axis=1>(past, new)
    a = Abs(present)
    b = Relu(a)
    y = ReduceMean<axes=[1]>(b)
}
"""
LARGE = """
<ir_version: 8, opset_import: ["" : 17]>
large (float[256,128] x, float[1024,512] z) => (float[1] y, float[1] m) {
    a = Relu(x)
    y = ReduceMax<keepdims=0>(a)
    m = ReduceMin<keepdims=0>(z)
}
"""
SMALL = """
<ir_version: 8, opset_import: ["" : 17]>
small (float[256,128] x) => (float[1] y) { a = Relu(x) y = ReduceMax<keepdims=0>(a) }
"""


def latest(lab, source, graph_of, warm, cold):
    """The latency of each sequence, with what was measured inside of models and at their boundary."""
    graph = graph_of(source)
    parts = sequences(graph, 1)
    inside = {part.key: lab.measurement(part.key, warm) for part in parts}
    outside = {part.key: lab.measurement(part.key, cold, variant="given-kept") for part in parts}
    given = {key: changed(brick, variant="given") for key, brick in outside.items()}
    cache = next(iter(outside.values())).conditions.cache
    table = Table([*outside.values(), *given.values()], {}, [], ())
    placed = dict(at_boundary(boundary_variants(graph, parts), cache, table))
    bricks = BrickMeasurements(latest=inside, placed=placed)
    return [(graph.layers[part.layers[0]].op_type, bricks.latency_ns(part) / 1e6) for part in parts]


def test_a_cache_that_comes_from_outside_is_read_as_it_was_measured_there(lab, graph_of):
    found = latest(lab, lab.source(STEP), graph_of, 1.0, 3.0)

    assert found == [("Concat", 3.0), ("Abs", 1.0), ("Relu", 1.0), ("ReduceMean", 1.0)]


def test_a_small_model_takes_nothing_that_was_measured_for_a_large_one(lab, graph_of):
    assert latest(lab, lab.source(LARGE), graph_of, 1.0, 3.0) == [("Relu", 3.0), ("ReduceMax", 1.0), ("ReduceMin", 3.0)]
    assert latest(lab, lab.source(SMALL), graph_of, 1.0, 3.0) == [("Relu", 1.0), ("ReduceMax", 1.0)]


@pytest.mark.parametrize("variant", ["given", "kept", "given-kept"])
def test_it_is_no_way_to_run_a_brick_and_so_no_bound(lab, fork, keys_of, variant):
    keys = keys_of(fork)
    lab.put((key, 2.0) for key in keys)
    lab.put(((key, 1.0) for key in keys), variant=variant)

    (answer,) = estimate([fork], store=lab.store)

    assert answer.sums.sequential_ms == answer.bounds.sequential.ms == 10.0


TWICE = """
<ir_version: 8, opset_import: ["" : 17]>
twice (float[1024,512] x) => (float[1] y) { a = Relu(x) b = Relu(a) y = ReduceMax<keepdims=0>(b) }
"""


def test_a_brick_that_is_inside_as_well_is_taken_as_measured_at_each_position(lab, graph_of):
    assert latest(lab, lab.source(TWICE), graph_of, 1.0, 3.0) == [("Relu", 3.0), ("Relu", 1.0), ("ReduceMax", 1.0)]
