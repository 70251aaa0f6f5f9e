"""Every brick has a bound by the machine's ceilings: the longer of its arithmetic and its traffic, never clipped."""

from __future__ import annotations

import dataclasses
import json

import pytest
from dlbricks.analyzer.estimation.estimate import estimate
from dlbricks.analyzer.estimation.estimates import Estimates
from dlbricks.analyzer.report.answers.estimates import estimates_answer
from dlbricks.analyzer.report.drawing import draw_estimates
from dlbricks.analyzer.report.tables import Format, render
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.reference import CHAIN, COPY, GEMM, OVERHEAD, STREAM, built_in_key
from dlbricks.bricks.sequence import LayerSequence
from dlbricks.constructor.remedies import Task, TaskKind
from dlbricks.constructor.roofline.ceilings import Ceiling, Ceilings
from dlbricks.constructor.roofline.roofline import memory_ms, roofline
from dlbricks.constructor.roofline.work import Work, work_of
from dlbricks.db import Conditions, Subject, System
from dlbricks.db.samples.rates import Rate
from hypothesis import given
from hypothesis import strategies as st

MIB = 1 << 20
MACHINE = System("Xeon", "x86_64", 2, 2, (("L1d", 48 << 10), ("L2", 2 * MIB), ("L3", 260 * MIB)), 24)
SMALL = System("Core", "x86_64", 2, 2, (("L1d", 48 << 10), ("L2", 1 * MIB), ("L3", 8 * MIB)), 8)

PRODUCT = """
<ir_version: 8, opset_import: ["" : 17]>
product (float[4, 8] x) => (float[4, 16] y) <float[8, 16] w = {VALUES}> {
    a = MatMul(x, w)
    b = Relu(a)
    y = Sigmoid(b)
}
""".replace("VALUES", ", ".join(["0.5"] * 128))
TABLE = """
<ir_version: 8, opset_import: ["" : 17]>
table (int64[3] x) => (float[3, 10] y) <float[200, 10] w = {VALUES}> {
    y = Gather(w, x)
}
""".replace("VALUES", ", ".join(["0.5"] * 2000))


def ceiling(rate: float) -> Ceiling:
    return Ceiling(Rate(rate, rate, (rate, rate)), "@network", "onnxruntime", "stack")


def ceilings(compute: float = 1e9, near: float = 4e9, far: float = 1e9, **changes: object) -> Ceilings:
    """Arithmetic, and bandwidths of working sets up to 1 MiB, and of larger ones."""
    steps = ((MIB, ceiling(near)), (1024 * MIB, ceiling(far)))
    return dataclasses.replace(Ceilings("float32", ceiling(compute), steps), **changes)


def parts_of(graph, granularity: int = 1) -> list[LayerSequence]:
    return list(sequences(graph, granularity))


@pytest.fixture
def product(lab, graph_of):
    return graph_of(lab.source(PRODUCT, "product"))


def test_work_counts_each_value_once(product):
    assert [work_of(product, part) for part in parts_of(product)] == [
        Work(2 * 4 * 8 * 16, 8 * 16 * 4, 4 * 8 * 4, 4 * 16 * 4),
        Work(0, 0, 4 * 16 * 4, 4 * 16 * 4),
        Work(4 * 16, 0, 4 * 16 * 4, 4 * 16 * 4),
    ]


def test_what_stays_inside_a_sequence_moves_nothing(product):
    (whole,) = parts_of(product, 3)

    assert work_of(product, whole) == Work(2 * 4 * 8 * 16 + 4 * 16, 8 * 16 * 4, 4 * 8 * 4, 4 * 16 * 4)


def test_narrow_values_move_fewer_bytes(product):
    (part, *_) = parts_of(product)

    assert work_of(product, part, "bfloat16").bytes * 2 == work_of(product, part).bytes


def test_in_int8_only_weights_of_products_are_narrow_and_the_rest_is_computed_in_float32(product):
    matmul, relu, sigmoid = parts_of(product)
    (whole,) = parts_of(product, 3)
    flops = 2 * 4 * 8 * 16

    assert work_of(product, matmul, "int8") == Work(flops, 8 * 16, 4 * 8 * 4, 4 * 16 * 4)
    assert work_of(product, relu, "int8") == work_of(product, relu)
    assert work_of(product, sigmoid, "int8") == Work(4 * 16, 0, 4 * 16 * 4, 4 * 16 * 4, 4 * 16)
    assert work_of(product, whole, "int8") == Work(flops + 4 * 16, 8 * 16, 4 * 8 * 4, 4 * 16 * 4, 4 * 16)
    assert work_of(product, whole, "bfloat16").single_flops == work_of(product, whole).single_flops == 0


def test_each_precision_is_bound_by_its_own_rate_of_arithmetic(product):
    parts = parts_of(product)
    known = ceilings(8e9, dtype="int8", single=ceiling(1e6), bandwidths=((MIB, ceiling(1e15)),))

    found = roofline(product, parts, {}, known, state="hot", system=MACHINE)
    without = roofline(product, parts, {}, dataclasses.replace(known, single=None), state="hot", system=MACHINE)

    rows = {row.op_types[0]: row for row in found.layers}
    assert rows["MatMul"].bound_ms == pytest.approx(1024 / 8e9 * 1e3)
    assert rows["Sigmoid"].bound_ms == pytest.approx(64 / 1e6 * 1e3)
    assert {row.op_types[0]: row.bound_ms is None for row in without.layers} == {
        "MatMul": False, "Relu": False, "Sigmoid": True,
    }  # fmt: skip
    assert without.bounds_ms(parts) is None


def test_int8_has_ceilings_of_its_own_and_of_float32(lab, product):
    narrow, source = Conditions(1, dtype="int8"), lab.source(PRODUCT, "product")
    gemm = built_in_key(f"{GEMM}512")
    lab.put(((part.key, 0.5) for part in parts_of(product)), conditions=narrow)
    lab.put([(gemm, 0.5)], subject=Subject.REFERENCE, conditions=narrow)
    lab.put([(built_in_key(f"{STREAM}{MIB}"), 0.26), (built_in_key(OVERHEAD), 0.01)], subject=Subject.REFERENCE)

    (without,) = estimate([source], store=lab.store, dtype="int8")
    lab.put([(gemm, 2.0)], subject=Subject.REFERENCE)
    (answer,) = estimate([source], store=lab.store, dtype="int8")

    assert without.roofline_ms is None
    assert "the rate of arithmetic of this system is not measured with these threads in float32" in (
        without.roofline_reason
    )
    found = answer.roofline.ceilings
    assert found.compute.rate.best == pytest.approx(2 * 512**3 / 0.5e-3)
    assert found.single.rate.best == pytest.approx(2 * 512**3 / 2e-3)
    assert answer.roofline_ms > 0


def test_a_selection_reads_what_it_selects(lab, graph_of):
    graph = graph_of(lab.source(TABLE, "table"))

    (work,) = [work_of(graph, part) for part in parts_of(graph)]

    assert (work.weight_bytes, work.read_bytes, work.written_bytes) == (3 * 10 * 4, 3 * 8, 3 * 10 * 4)


def test_the_longer_side_binds(lab, product):
    parts = parts_of(product)
    bricks = {part.key: lab.measurement(part.key, 1.0) for part in parts}

    found = roofline(product, parts, bricks, ceilings(), state="hot", system=MACHINE)

    rows = {row.op_types[0]: row for row in found.layers}
    matmul, relu = rows["MatMul"], rows["Relu"]
    assert matmul.compute_ms == pytest.approx(1024 / 1e9 * 1e3)
    assert matmul.memory_ms == pytest.approx((512 + 128 + 256) / 4e9 * 1e3)
    assert (matmul.bound_ms, matmul.bound_by) == (matmul.compute_ms, "compute")
    assert matmul.headroom == pytest.approx(1.0 / matmul.bound_ms)
    assert matmul.gflops_s == pytest.approx(1024 / 1e6)
    assert matmul.gbytes_s == pytest.approx(896 / 1e6)
    assert matmul.intensity == pytest.approx(1024 / 896)
    assert (relu.bound_ms, relu.bound_by, relu.gflops_s) == (relu.memory_ms, "memory", 0.0)
    assert sum(found.bounds_ms(parts)) == pytest.approx(sum(row.bound_ms for row in found.layers))


def test_overhead_binds_what_is_shorter_than_it(lab, product):
    parts = parts_of(product)
    bricks = {part.key: lab.measurement(part.key, 1.0, unroll=4) for part in parts}
    known = ceilings(node_ms=0.5, call_ms=2.0)

    hot = roofline(product, parts, bricks, known, state="hot", system=MACHINE)
    rotated = roofline(product, parts, bricks, known, state="8MiB", system=MACHINE)

    assert {row.overhead_ms for row in hot.layers} == {0.5 + 2.0 / 4}
    assert {row.overhead_ms for row in rotated.layers} == {0.5}
    assert {row.bound_by for row in hot.layers} == {"overhead"}
    assert all(row.bound_ms < 0.01 for row in hot.layers)


def test_what_is_faster_than_its_bound_is_reported_and_not_clipped(lab, product):
    parts = parts_of(product)
    bricks = {part.key: lab.measurement(part.key, 1e-6) for part in parts}

    found = roofline(product, parts, bricks, ceilings(), state="hot", system=MACHINE)

    assert all(0 < row.headroom < 0.1 and "faster than its bound" in row.note for row in found.layers)


def test_without_ceilings_there_are_rates_and_no_bounds(lab, product):
    parts = parts_of(product)
    bricks = {part.key: lab.measurement(part.key, 1.0) for part in parts}

    found = roofline(product, parts, bricks, Ceilings("float32"), state="hot", system=MACHINE)

    assert found.bounds_ms(parts) is None
    assert all(row.gbytes_s > 0 and row.bound_ms is row.headroom is row.bound_by is None for row in found.layers)


def test_what_is_not_measured_has_a_bound_and_no_headroom(product):
    found = roofline(product, parts_of(product), {}, ceilings(), state="hot", system=MACHINE)

    assert all(row.bound_ms > 0 and row.headroom is row.gbytes_s is None for row in found.layers)


def test_unknown_work_leaves_the_bound_of_the_bytes(product):
    layers = tuple(dataclasses.replace(layer, cost=None) for layer in product.layers)
    graph = dataclasses.replace(product, layers=layers)

    found = roofline(graph, parts_of(product), {}, ceilings(), state="hot", system=MACHINE)

    assert all(row.flops is row.compute_ms is None and row.bound_ms == row.memory_ms for row in found.layers)
    assert all("not known" in row.note for row in found.layers)


def test_weights_come_from_as_far_as_the_reuse_distance():
    work = Work(0, weight_bytes=1000, read_bytes=500, written_bytes=500)

    assert memory_ms(work, ceilings(), "hot", MACHINE) == pytest.approx(2000 / 4e9 * 1e3)
    assert memory_ms(work, ceilings(), "8MiB", MACHINE) == pytest.approx(1000 / 1e9 * 1e3)
    assert memory_ms(work, ceilings(), "cold", MACHINE) == pytest.approx(2000 / 1e9 * 1e3)


@pytest.mark.parametrize(("system", "evicted"), [(MACHINE, 8 * MIB), (SMALL, 16 * MIB)])
def test_cold_is_as_far_as_the_evictor_reaches(system, evicted):
    steps = ((evicted - 1, ceiling(4e9)), (evicted, ceiling(2e9)), (1024 * MIB, ceiling(1e9)))

    found = memory_ms(Work(0, 1, 1, 1), Ceilings("float32", None, steps), "cold", system)

    assert found == pytest.approx(3 / 2e9 * 1e3)


def test_in_place_the_larger_side_is_the_working_set():
    work = Work(0, weight_bytes=0, read_bytes=MIB, written_bytes=MIB)

    assert memory_ms(work, ceilings(), "hot", MACHINE) == pytest.approx(2 * MIB / 4e9 * 1e3)


work_values = st.integers(1, 1 << 34)


@given(work_values, work_values, work_values, st.sampled_from(["hot", "cold", "8MiB", "128MiB"]))
def test_more_bytes_and_farther_ones_never_take_less(weights, read, written, state):
    known = ceilings()
    bound = memory_ms(Work(0, weights, read, written), known, state, MACHINE)

    assert bound >= memory_ms(Work(0, weights, read, written), known, "hot", MACHINE)
    assert memory_ms(Work(0, weights + 1, read, written), known, state, MACHINE) >= bound
    assert memory_ms(Work(0, weights, read, written + 1), known, state, MACHINE) >= bound
    assert memory_ms(Work(0, weights, read, written), ceilings(near=8e9), state, MACHINE) <= bound


def put_ceilings(lab, *, threads: int = 1) -> None:
    hot = Conditions(threads)
    rates = {f"{GEMM}512": 2.0, f"{STREAM}{MIB}": 0.26, f"{COPY}{64 * MIB}": 40.01, OVERHEAD: 0.01, CHAIN: 0.021}
    lab.put(((built_in_key(name), ms) for name, ms in rates.items()), subject=Subject.REFERENCE, conditions=hot)


def test_an_estimate_reports_its_roofline(lab, fork, keys_of):
    lab.put((key, 0.5) for key in keys_of(fork))
    put_ceilings(lab)

    (answer,) = estimate([fork], store=lab.store)

    found = answer.roofline.ceilings
    assert found.compute.rate.best == pytest.approx(2 * 512**3 / 2e-3)
    assert found.bandwidths[0][1].rate.best == pytest.approx(MIB // 12 * 12 / 0.25e-3)
    assert found.bandwidths[1][1].rate.best == pytest.approx(64 * MIB / 40e-3)
    assert found.node_ms == pytest.approx(0.001)
    assert [name for name, _ in found.levels] == ["L2", "memory"]
    # Relu, Sigmoid, Tanh, Exp of 128 bytes in and out; Add reads two.
    assert answer.roofline_ms == pytest.approx((4 * 256 + 384) / found.bandwidths[0][1].rate.best * 1e3)
    assert answer.roofline_critical_path_ms == pytest.approx((3 * 256 + 384) / found.bandwidths[0][1].rate.best * 1e3)
    assert answer.roofline_headroom == pytest.approx(2.5 / answer.roofline_ms)
    assert answer.roofline_reason is None


def test_the_bandwidth_of_what_is_nearer_is_never_less(lab, fork, keys_of):
    lab.put((key, 0.5) for key in keys_of(fork))
    hot = Conditions(1)
    slow_near = {f"{GEMM}512": 2.0, f"{STREAM}{MIB}": 1.01, f"{COPY}{4 * MIB}": 0.51, OVERHEAD: 0.01}
    lab.put(((built_in_key(name), ms) for name, ms in slow_near.items()), subject=Subject.REFERENCE, conditions=hot)

    (answer,) = estimate([fork], store=lab.store)

    near, far = (one.rate.best for _, one in answer.roofline.ceilings.bandwidths)
    assert near == far == pytest.approx(4 * MIB / 0.5e-3)


@pytest.mark.parametrize("threads", [2, None])
def test_missing_ceilings_are_named_with_what_measures_them(lab, fork, keys_of, threads):
    lab.put((key, 0.5) for key in keys_of(fork))
    if threads is not None:  # those of other threads do not count
        put_ceilings(lab, threads=threads)

    (answer,) = estimate([fork], store=lab.store)

    assert answer.roofline_ms is answer.roofline_headroom is None
    assert answer.roofline_remedy == Task(TaskKind.CEILINGS, database=str(lab.store.place), threads=1)
    assert all(row.gbytes_s is not None for row in answer.roofline.layers)


def test_nothing_stored_has_no_roofline(lab, fork):
    (answer,) = estimate([fork], store=lab.store)

    assert answer.roofline is None
    assert "nothing is stored" in answer.roofline_reason
    assert "nothing is stored" in render(estimates_answer(Estimates((answer,)), layers=True))


def test_layers_are_reported_in_json_and_in_the_table(lab, chain, keys_of):
    keys = keys_of(chain)
    lab.put(zip(keys[:2], (0.5, 0.25), strict=True))
    put_ceilings(lab)
    (answer,) = estimate([chain], store=lab.store)

    (plain,) = json.loads(render(estimates_answer(Estimates((answer,))), Format.JSON))["results"]
    (reported,) = json.loads(render(estimates_answer(Estimates((answer,)), layers=True), Format.JSON))["results"]
    table = render(estimates_answer(Estimates((answer,)), layers=True))

    assert "roofline" not in plain
    assert plain["roofline_ms"] == answer.roofline_ms
    rows = reported["roofline"]["layers"]
    assert [(row["op_types"], row["count"], row["latency_ms"]) for row in rows] == [
        (["Relu"], 2, 0.5),
        (["Sigmoid"], 2, 0.25),
    ]
    assert {"key", "flops", "bytes", "gflops_s", "gbytes_s", "bound_ms", "headroom", "bound_by"} <= rows[0].keys()
    assert reported["roofline"]["compute"]["backend"] == "onnxruntime"
    assert table.index("Relu") < table.index("Sigmoid")
    assert "headroom" in table


def test_the_roofline_is_drawn_where_ceilings_are_known(lab, chain, keys_of, tmp_path):
    lab.put((key, 0.5) for key in keys_of(chain)[:2])
    (without,) = estimate([chain], store=lab.store)
    put_ceilings(lab)
    (answer,) = estimate([chain], store=lab.store)

    assert "roofline-chain.png" not in {path.name for path in draw_estimates([without], tmp_path / "before")}
    assert "roofline-chain.png" in {path.name for path in draw_estimates([answer], tmp_path / "after")}


def test_a_view_has_no_bound_but_what_a_node_costs(lab, graph_of):
    text = """
<ir_version: 8, opset_import: ["" : 17]>
view (float[4, 8] x) => (float[8, 4] y) {
    a = Transpose<perm = [1, 0]>(x)
    y = Identity(a)
}
"""
    graph = graph_of(lab.source(text, "view"))
    parts = parts_of(graph)
    bricks = {part.key: lab.measurement(part.key, 1.0) for part in parts}

    found = roofline(graph, parts, bricks, ceilings(node_ms=0.1), state="8MiB", system=MACHINE)

    rows = {row.op_types[0]: row for row in found.layers}
    assert rows["Transpose"].bound_ms > 0
    identity = rows["Identity"]
    assert (identity.bound_ms, identity.headroom, identity.bound_by) == (0.0, None, "overhead")
    assert identity.bytes == 256


def test_no_rate_is_reported_of_what_took_no_time(lab, product):
    parts = parts_of(product)
    bricks = {part.key: lab.measurement(part.key, -1e-5) for part in parts}

    found = roofline(product, parts, bricks, ceilings(), state="8MiB", system=MACHINE)

    assert all(row.gflops_s is row.gbytes_s is row.headroom is row.note is None for row in found.layers)
    assert all(row.bound_ms > 0 for row in found.layers)
