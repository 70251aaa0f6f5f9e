"""Far activations: written long ago, or in memory that nothing has touched for as long."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import onnx.parser
import pytest
from dlbricks.bricks.cutting.fused import fused_sequences
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph import activations
from dlbricks.bricks.graph.activations import cold_memory, plan
from dlbricks.bricks.graph.boundary import Caches, boundary_variants, variants_along_fusions
from dlbricks.bricks.graph.footprint import footprint
from dlbricks.bricks.graph.model_graph import ExecutedModel, Layouts, ModelGraph, build_graph
from dlbricks.models.skeleton import Skeleton
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

MIB = 1 << 20
VALUE = "float[1,4,256,256]"  # 1 MiB


def graph_of(body: str, shape: str = VALUE, out: str = VALUE) -> ModelGraph:
    text = f'<ir_version: 8, opset_import: ["": 18]> g ({shape} x) => ({out} y) {{{body}}}'
    return build_graph(Skeleton(onnx.parser.parse_model(text)))


def far_of(graph: ModelGraph) -> dict[tuple[str, str], int]:
    """By the operator that reads or writes it, and the value: far MiB, where caches hold one and a half."""
    found = cold_memory(graph, 3 * MIB // 2, 0).far
    return {(graph.layers[index].op_type, value): far / MIB for (index, value), far in found.items()}


def test_what_the_layer_before_has_written_is_near_and_a_skip_connection_is_not():
    pool = "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>"
    graph = graph_of(f"a = Sqrt(x) b = {pool}(a) c = {pool}(b) y = Concat<axis=1>(a, c)", out="float[1,8,256,256]")

    found = far_of(graph)

    assert found["Concat", "a"] == 1
    assert ("Concat", "c") not in found
    assert ("AveragePool", "a") not in found


def test_memory_that_was_freed_last_is_near():
    """Two buffers take turns: each result lies where the layer before the last has written."""
    body = "a = Sqrt(x) b = Sqrt(a) c = Sqrt(b) d = Sqrt(c) e = Sqrt(d) y = Sqrt(e)"
    small = "float[1,1,256,256]"  # a quarter

    assert not {value for _, value in far_of(graph_of(body, small, small))} & {"c", "d", "e"}


def test_some_operators_write_over_their_input_unless_another_reads_it():
    alone = far_of(graph_of("a = Sqrt(x) b = Relu(a) c = Sqrt(b) y = Neg(c)"))
    shared = far_of(graph_of("a = Sqrt(x) b = Relu(a) c = Sqrt(b) d = Add(c, a) y = Neg(d)"))

    assert ("Relu", "b") not in alone
    assert shared["Relu", "b"] == 1


def test_a_view_is_the_memory_of_what_it_shows():
    graph = graph_of("a = Sqrt(x) s = Shape(a) b = Reshape(a, s) c = Sqrt(b) d = Sqrt(c) y = Add(a, d)")

    assert far_of(graph)["Add", "a"] == 1
    assert ("Reshape", "b") not in far_of(graph)


@pytest.mark.parametrize(("operator", "variant"), [("Max", "given"), ("MatMul", "")])
def test_a_variant_is_measured_only_where_moving_its_bytes_takes_a_share_of_the_time(operator, variant):
    square = "float[512,512]"
    graph = graph_of(
        f"a = Sqrt(x) b = Sqrt(a) c = Sqrt(b) d = Sqrt(c) e = Sqrt(d) m = {operator}(a, b) y = Concat<axis=0>(m, e)",
        square,
        "float[1024,512]",
    )

    found = boundary_variants(graph, sequences(graph, 1), Caches(3 * MIB // 2, 64 * MIB))

    assert {graph.layers[index].op_type: kind for (_, (index,)), kind in found.items() if index == 5} == (
        {operator: variant} if variant else {}
    )


@pytest.mark.parametrize(
    ("warm_mib", "variant"),
    [(64, "given"), (32, "given"), (16, ""), (2.5, "half-given"), (1.75, "given"), (0, "given")],
)
def test_only_what_the_caches_lost_is_far(warm_mib, variant):
    """The class is 12 MiB; 3 and 2 other MiB were touched since what the Max reads.

    Caches of 32 MiB and more lose nothing of such a pack: it is cold if it is not in the core's own.
    """
    graph = graph_of(
        "k = Sqrt(x) l = Sqrt(k) n = Sqrt(l) o = Sqrt(n) a = Sqrt(o) b = Sqrt(a) c = Sqrt(b)"
        " d = Sqrt(c) m = Max(a, b) y = Concat<axis=0>(m, d, k, l, n, o)",
        "float[512,512]",
        "float[3072,512]",
    )

    found = boundary_variants(graph, sequences(graph, 1), Caches(MIB, int(warm_mib * MIB)))

    assert {kind for (_, (index,)), kind in found.items() if index == 8} == ({variant} if variant else set())


def test_bricks_along_fusions_are_cold_where_the_layers_executed_for_them_are():
    """The model has a Dropout more, which the runtime eliminates."""
    chain = "a = Sqrt(x) b = Sqrt(a) c = Sqrt(b) d = Sqrt(c) e = Sqrt(d)"
    after = graph_of(f"{chain} y = Max(a, e)")
    before = graph_of(f"{chain} f = Dropout(a) y = Max(f, e)")
    origins = (*(frozenset({index}) for index in range(5)), frozenset({6}))
    executed = ExecutedModel("chain", before, after, origins, frozenset({5}), {}, Layouts())
    caches = Caches(3 * MIB // 2, 64 * MIB)

    found = variants_along_fusions(executed, fused_sequences(executed, 1), caches)

    (place,) = [layers for (_, layers), kind in found.items() if "Max" in {before.layers[i].op_type for i in layers}]
    assert place == (5, 6)
    expected = boundary_variants(after, sequences(after, 1), caches)
    assert sorted(found.values()) == sorted(expected.values())
    windows = variants_along_fusions(executed, fused_sequences(executed, 2, overlap=True), caches)
    assert {layers: kind for (_, layers), kind in windows.items() if len(layers) > 1} == {
        (1, 2): "kept", (4, 5, 6): "kept", (5, 6): "kept",
    }  # fmt: skip


def test_what_is_touched_again_and_again_evicts_no_more_than_its_size():
    """Between both uses of ``a`` 8 MiB are read and written, of 2 different ones."""
    chain = " ".join(f"{after} = Sqrt({before})" for before, after in itertools.pairwise("abcde"))
    graph = graph_of(f"a = Sqrt(x) {chain} m = Max(a, e) y = Concat<axis=1>(m, e)", out="float[1,8,256,256]")

    def far(near_bytes: int) -> set[str]:
        found = cold_memory(graph, near_bytes, 0).far
        return {graph.layers[index].op_type for index, value in found if value == "a"}

    assert far(7 * MIB // 4) == {"Sqrt", "Max"}
    assert "Max" not in far(2 * MIB)


def test_a_buffer_is_taken_again_by_results_of_its_shape_alone():
    """ONNX Runtime compares shapes, not sizes: two shapes of one size keep two buffers."""
    turned = "Transpose<perm=[0,2,1,3]>"
    graph = graph_of(f"a = {turned}(x) b = {turned}(a) c = {turned}(b) d = {turned}(c) y = Sqrt(d)")

    planned = plan(graph)

    assert planned.buffers["a"] == planned.buffers["c"] != planned.buffers["b"] == planned.buffers["d"]
    assert planned.extent == 2 * graph.types["a"].nbytes


def test_a_session_with_open_lengths_takes_any_memory_that_is_free():
    """Shapes are not known when it plans. Planned, the buffer of the first shape waits for a third result of it."""
    turned = "Transpose<perm=[0,2,1,3]>"
    graph = graph_of(f"a = Sqrt(x) b = {turned}(a) c = Sqrt(b) d = {turned}(c) y = Sqrt(d)")

    assert plan(graph).extent == 3 * graph.types["a"].nbytes
    assert plan(replace(graph, opened=True)).extent == 2 * graph.types["a"].nbytes


@pytest.mark.parametrize(("passing_mib", "far"), [(0, {"Add"}), (0.5, {"Add"}), (1, set())])
def test_weights_that_pass_once_may_count_apart(passing_mib, far):
    text = f"""<ir_version: 8, opset_import: ["": 18]> g ({VALUE} x) => ({VALUE} y)
    {{ a = Sqrt(x) b = Sqrt(a) c = MatMul(b, w) y = Add(a, c) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 4, 256, 256), np.float32), "w"))
    graph = build_graph(Skeleton(model))

    found = cold_memory(graph, 5 * MIB // 2, 0, int(passing_mib * MIB)).far

    assert {graph.layers[index].op_type for index, value in found if value == "a"} == far


def test_an_operator_that_reads_a_shape_leaves_the_value_where_it_was():
    """A decoder asks its cache for the length, and reads it later."""
    text = f"""<ir_version: 8, opset_import: ["": 18]> g ({VALUE} x) => (int64[4] s, {VALUE} y)
    {{ s = Shape(x) y = Sqrt(x) }}"""
    graph = build_graph(Skeleton(onnx.parser.parse_model(text)))

    found = boundary_variants(graph, sequences(graph, 1))

    assert {graph.layers[index].op_type: kind for (_, (index,)), kind in found.items()} == {"Sqrt": "given-kept"}


def test_an_operator_writes_over_an_input_of_its_own_shape():
    """The shape of the value that it reads, not that of the buffer's first value; one that it reads twice is kept."""
    seen = plan(graph_of("a = Sqrt(x) s = Shape(x) r = Reshape(a, s) m = Relu(r) y = Sqrt(m)"))
    flat = plan(graph_of("a = Sqrt(x) r = Flatten(a) m = Relu(r) y = Sqrt(m)", out="float[1,1048576]"))
    twice = plan(graph_of("a = Sqrt(x) i = Cast<to=7>(a) m = ScatterElements(a, i, a) y = Sqrt(m)"))

    assert seen.buffers["m"] == seen.buffers["r"] == "a"
    assert flat.buffers["m"] == flat.buffers["r"] == "a"
    assert twice.buffers["m"] == "m"


def test_a_footprint_has_the_memory_that_the_runtime_plans():
    """A buffer that is taken again later is occupied in between, although nothing in it is alive."""
    turned = "Transpose<perm=[0,2,1,3]>"
    graph = graph_of(f"a = Sqrt(x) b = {turned}(a) c = Sqrt(b) d = {turned}(c) y = Sqrt(d)")
    size = graph.types["a"].nbytes

    assert plan(graph).extent == 3 * size
    assert footprint(graph) == 5 * size  # input and output, and what is planned


@settings(max_examples=50)
@given(data=st.data())
def test_buffers_that_are_used_at_one_time_lie_apart(draw_model, data):
    graph = build_graph(Skeleton(draw_model(data)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activations, "LARGE_BYTES", 1)
        planned = plan(graph)

    used: dict[str, list[int]] = {}
    for layer in (graph.layers[index] for index in graph.live):
        for value in {*layer.outputs, *(operand.value for operand in layer.operands)} & planned.buffers.keys():
            used.setdefault(planned.buffers[value], []).append(layer.index)
            begin, end = planned.spans[planned.buffers[value]]
            assert end - begin == graph.types[value].nbytes
    for one, other in itertools.combinations(used, 2):
        if max(min(used[one]), min(used[other])) <= min(max(used[one]), max(used[other])):
            assert planned.spans[one][1] <= planned.spans[other][0] or planned.spans[other][1] <= planned.spans[one][0]


@settings(max_examples=50)
@given(data=st.data())
def test_far_bytes_are_part_of_what_a_layer_reads_or_writes(draw_model, data):
    graph = build_graph(Skeleton(draw_model(data)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activations, "LARGE_BYTES", 1)
        found = cold_memory(graph, data.draw(st.integers(0, 256)), 0).far

    for (index, value), far in found.items():
        layer = graph.layers[index]
        assert value in {*layer.outputs, *(operand.value for operand in layer.operands)}
        assert value not in graph.outputs
        if value in graph.inputs:  # from the second reader on
            assert any(operand.value == value for earlier in graph.layers[:index] for operand in earlier.operands)
        assert 0 < far <= graph.types[value].nbytes


@pytest.mark.parametrize(("core_mib", "fresh"), [(0.5, {"Transpose", "Sqrt"}), (1, set())])
def test_memory_that_was_far_is_fresh_for_two_readers_unless_a_core_holds_it(core_mib, fresh):
    turn = "Transpose<perm=[0,1,3,2]>"
    chain = " ".join(f"{after} = Sqrt({before})" for before, after in itertools.pairwise("cdefg"))
    graph = graph_of(
        f"a = Sqrt(x) b = {turn}(a) c = Sqrt(a) i = Sqrt(a) {chain} y = Concat<axis=1>(b, c, d, e, f, g, i)",
        out="float[1,28,256,256]",
    )

    found = cold_memory(graph, 3 * MIB // 2, int(core_mib * MIB)).fresh

    assert {graph.layers[index].op_type for index, value in found if value == "a"} == fresh
    assert len([value for _, value in found if value == "a"]) == len(fresh)
