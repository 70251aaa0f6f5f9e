"""Every brick has a bound by the machine's ceilings: the longer of its arithmetic and its traffic, never clipped."""

from __future__ import annotations

import dataclasses
import json

import pytest
from dlbricks.analyzer.estimation.estimate import estimate
from dlbricks.analyzer.estimation.estimates import Estimates
from dlbricks.analyzer.report.answers.estimated import estimates_answer
from dlbricks.analyzer.report.tables import Format, render
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.layer import LayerSequence
from dlbricks.bricks.reference import CHAIN, COPY, GEMM, OVERHEAD, STREAM, built_in_key
from dlbricks.constructor.measurements import BrickMeasurements
from dlbricks.constructor.remedies import Task, TaskKind
from dlbricks.constructor.roofline import INTEGERS as UNKNOWN_RATE
from dlbricks.constructor.roofline import Ceiling, Ceilings, Work, memory_ms, roofline, work_of
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


def rows(graph, known: Ceilings, *, lab=None, ms: float | None = None, state: str = "hot", **changes: object):
    """Its layers by their operators, beside ceilings; what each brick takes where that is given."""
    parts = parts_of(graph)
    latest = {} if ms is None else {part.key: lab.measurement(part.key, ms, **changes) for part in parts}
    found = roofline(graph, parts, BrickMeasurements(latest), known, state=state, system=MACHINE)
    bounds = [row.bound_ms for row in found.layers]
    assert (
        found.bounds_ms(parts) is None if None in bounds else sum(found.bounds_ms(parts)) == pytest.approx(sum(bounds))
    )
    return {row.op_types[0]: row for row in found.layers}


FLOPS = 2 * 4 * 8 * 16
WORK = {
    "float32": [Work(FLOPS, 512, 128, 256), Work(0, 0, 256, 256), Work(64, 0, 256, 256)],
    "bfloat16": [Work(FLOPS, 256, 64, 128), Work(0, 0, 128, 128), Work(64, 0, 128, 128)],
    # Only weights of products are narrow, and the rest is computed in float32.
    "int8": [Work(FLOPS, 128, 128, 256), Work(0, 0, 256, 256), Work(64, 0, 256, 256, 64)],
}
"""Of a product of 4 x 8 and 8 x 16, a Relu and a Sigmoid: each value counts once."""
WHOLE = {"float32": Work(FLOPS + 64, 512, 128, 256), "int8": Work(FLOPS + 64, 128, 128, 256, 64)}
"""What stays inside a sequence moves nothing."""


@pytest.mark.parametrize("dtype", WORK)
def test_work_of_each_layer_and_of_a_sequence(product, dtype):
    assert [work_of(product, part, dtype) for part in parts_of(product)] == WORK[dtype]
    (whole,) = parts_of(product, 3)
    assert work_of(product, whole, dtype) == WHOLE.get(dtype, work_of(product, whole, dtype))


def test_each_precision_is_bound_by_its_own_rate_of_arithmetic(product):
    known = ceilings(8e9, dtype="int8", single=ceiling(1e6), bandwidths=((MIB, ceiling(1e15)),))

    found, without = rows(product, known), rows(product, dataclasses.replace(known, single=None))

    assert found["MatMul"].bound_ms == pytest.approx(1024 / 8e9 * 1e3)
    assert found["Sigmoid"].bound_ms == pytest.approx(64 / 1e6 * 1e3)
    assert {name: row.bound_ms is None for name, row in without.items()} == {
        "MatMul": False, "Relu": False, "Sigmoid": True,
    }  # fmt: skip


def test_int8_has_ceilings_of_its_own_and_of_float32(lab, product):
    narrow, source = Conditions(1, dtype="int8"), lab.source(PRODUCT, "product")
    gemm = built_in_key(f"{GEMM}512")
    lab.put(((part.key, 0.5) for part in parts_of(product)), conditions=narrow)
    lab.put([(gemm, 0.5)], subject=Subject.REFERENCE, conditions=narrow)
    lab.put([(built_in_key(f"{STREAM}{MIB}"), 0.26), (built_in_key(OVERHEAD), 0.01)], subject=Subject.REFERENCE)

    (without,) = estimate([source], store=lab.store, dtype="int8")
    lab.put([(gemm, 2.0)], subject=Subject.REFERENCE)
    (answer,) = estimate([source], store=lab.store, dtype="int8")

    assert without.roofline.ms is None
    assert "the rate of arithmetic of this system is not measured with these threads in float32" in (
        without.roofline.reason
    )
    found = answer.roofline.bricks.ceilings
    assert found.compute.rate.best == pytest.approx(2 * 512**3 / 0.5e-3)
    assert found.single.rate.best == pytest.approx(2 * 512**3 / 2e-3)
    assert answer.roofline.ms > 0


def test_a_selection_reads_what_it_selects(lab, graph_of):
    graph = graph_of(lab.source(TABLE, "table"))

    (work,) = [work_of(graph, part) for part in parts_of(graph)]

    assert (work.weight_bytes, work.read_bytes, work.written_bytes) == (3 * 10 * 4, 3 * 8, 3 * 10 * 4)


def test_the_longer_side_binds(lab, product):
    found = rows(product, ceilings(), lab=lab, ms=1.0)

    matmul, relu = found["MatMul"], found["Relu"]
    assert matmul.compute_ms == pytest.approx(1024 / 1e9 * 1e3)
    assert matmul.memory_ms == pytest.approx((512 + 128 + 256) / 4e9 * 1e3)
    assert (matmul.bound_ms, matmul.bound_by) == (matmul.compute_ms, "compute")
    assert matmul.headroom == pytest.approx(1.0 / matmul.bound_ms)
    assert matmul.gflops_s == pytest.approx(1024 / 1e6)
    assert matmul.gbytes_s == pytest.approx(896 / 1e6)
    assert matmul.intensity == pytest.approx(1024 / 896)
    assert (relu.bound_ms, relu.bound_by, relu.gflops_s) == (relu.memory_ms, "memory", 0.0)


@pytest.mark.parametrize(("state", "overhead_ms"), [("hot", 0.5 + 2.0 / 4), ("8MiB", 0.5)])
def test_overhead_binds_what_is_shorter_than_it(lab, product, state, overhead_ms):
    found = rows(product, ceilings(node_ms=0.5, call_ms=2.0), lab=lab, ms=1.0, state=state, unroll=4).values()

    assert {row.overhead_ms for row in found} == {overhead_ms}
    assert {row.bound_by for row in found} == {"overhead"}
    assert all(row.bound_ms < 0.01 for row in found)


def test_what_is_not_known_stays_open_and_what_is_faster_than_its_bound_is_not_clipped(lab, product):
    faster = rows(product, ceilings(), lab=lab, ms=1e-6).values()
    nothing = rows(product, ceilings(), lab=lab, ms=-1e-5, state="8MiB").values()  # it took no time
    no_ceilings = rows(product, Ceilings("float32"), lab=lab, ms=1.0).values()
    not_measured = rows(product, ceilings()).values()
    layers = tuple(dataclasses.replace(layer, cost=None) for layer in product.layers)
    no_cost = rows(dataclasses.replace(product, layers=layers), ceilings()).values()

    assert all(0 < row.headroom < 0.1 and "faster than its bound" in row.note for row in faster)
    assert all(row.gflops_s is row.gbytes_s is row.headroom is row.note is None for row in nothing)
    assert all(row.bound_ms > 0 for row in (*nothing, *not_measured))
    assert all(row.gbytes_s > 0 and row.bound_ms is row.headroom is row.bound_by is None for row in no_ceilings)
    assert all(row.headroom is row.gbytes_s is None for row in not_measured)
    assert all(row.flops is row.compute_ms is None and row.bound_ms == row.memory_ms for row in no_cost)
    assert all("not known" in row.note for row in no_cost)


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

    found = answer.roofline.bricks.ceilings
    assert found.compute.rate.best == pytest.approx(2 * 512**3 / 2e-3)
    assert found.bandwidths[0][1].rate.best == pytest.approx(MIB // 12 * 12 / 0.25e-3)
    assert found.bandwidths[1][1].rate.best == pytest.approx(64 * MIB / 40e-3)
    assert found.node_ms == pytest.approx(0.001)
    assert [name for name, _ in found.levels] == ["L2", "memory"]
    # Relu, Sigmoid, Tanh, Exp of 128 bytes in and out; Add reads two.
    assert answer.roofline.ms == pytest.approx((4 * 256 + 384) / found.bandwidths[0][1].rate.best * 1e3)
    assert answer.roofline.critical_path_ms == pytest.approx((3 * 256 + 384) / found.bandwidths[0][1].rate.best * 1e3)
    assert answer.roofline.headroom == pytest.approx(2.5 / answer.roofline.ms)
    assert answer.roofline.reason is None


def test_the_bandwidth_of_what_is_nearer_is_never_less(lab, fork, keys_of):
    lab.put((key, 0.5) for key in keys_of(fork))
    hot = Conditions(1)
    slow_near = {f"{GEMM}512": 2.0, f"{STREAM}{MIB}": 1.01, f"{COPY}{4 * MIB}": 0.51, OVERHEAD: 0.01}
    lab.put(((built_in_key(name), ms) for name, ms in slow_near.items()), subject=Subject.REFERENCE, conditions=hot)

    (answer,) = estimate([fork], store=lab.store)

    near, far = (one.rate.best for _, one in answer.roofline.bricks.ceilings.bandwidths)
    assert near == far == pytest.approx(4 * MIB / 0.5e-3)


@pytest.mark.parametrize("threads", [2, None])
def test_missing_ceilings_are_named_with_what_measures_them(lab, fork, keys_of, threads):
    lab.put((key, 0.5) for key in keys_of(fork))
    if threads is not None:  # those of other threads do not count
        put_ceilings(lab, threads=threads)

    (answer,) = estimate([fork], store=lab.store)

    assert answer.roofline.ms is answer.roofline.headroom is None
    assert answer.roofline.remedy == Task(TaskKind.CEILINGS, database=str(lab.store.place), threads=1)
    assert all(row.gbytes_s is not None for row in answer.roofline.bricks.layers)


def test_layers_are_reported_in_json_and_in_the_table(lab, chain, keys_of):
    keys = keys_of(chain)
    lab.put(zip(keys[:2], (0.5, 0.25), strict=True))
    put_ceilings(lab)
    (answer,) = estimate([chain], store=lab.store)

    (plain,) = json.loads(render(estimates_answer(Estimates((answer,))), Format.JSON))["results"]
    (reported,) = json.loads(render(estimates_answer(Estimates((answer,)), layers=True), Format.JSON))["results"]
    table = render(estimates_answer(Estimates((answer,)), layers=True))

    assert "roofline" not in plain
    assert plain["roofline_ms"] == answer.roofline.ms
    rows = reported["roofline"]["layers"]
    assert [(row["op_types"], row["count"], row["latency_ms"]) for row in rows] == [
        (["Relu"], 2, 0.5),
        (["Sigmoid"], 2, 0.25),
    ]
    assert {"key", "flops", "bytes", "gflops_s", "gbytes_s", "bound_ms", "headroom", "bound_by"} <= rows[0].keys()
    assert reported["roofline"]["compute"]["backend"] == "onnxruntime"
    assert table.index("Relu") < table.index("Sigmoid")
    assert "headroom" in table


def test_a_view_has_no_bound_but_what_a_node_costs(lab, graph_of):
    text = """
<ir_version: 8, opset_import: ["" : 17]>
view (float[4, 8] x) => (float[8, 4] y) { a = Transpose<perm = [1, 0]>(x) y = Identity(a) }
"""
    graph = graph_of(lab.source(text, "view"))

    found = rows(graph, ceilings(node_ms=0.1), lab=lab, ms=1.0, state="8MiB")

    assert found["Transpose"].bound_ms > 0
    identity = found["Identity"]
    assert (identity.bound_ms, identity.headroom, identity.bound_by) == (0.0, None, "overhead")
    assert identity.bytes == 256


def test_nothing_stored_has_no_roofline(lab, fork):
    (answer,) = estimate([fork], store=lab.store)

    assert answer.roofline.bricks is None
    assert "nothing is stored" in answer.roofline.reason
    assert "nothing is stored" in render(estimates_answer(Estimates((answer,)), layers=True))


def test_in_place_the_larger_side_is_the_working_set():
    work = Work(0, weight_bytes=0, read_bytes=MIB, written_bytes=MIB)

    assert memory_ms(work, ceilings(), "hot", MACHINE) == pytest.approx(2 * MIB / 4e9 * 1e3)


INTEGERS = """
<ir_version: 8, opset_import: ["" : 17]>
integers (uint8[4, 8] x) => (float[4, 16] y) <int8[8, 16] w = {VALUES}> {
    a = MatMulInteger(x, w)
    y = Cast<to=1>(a)
}
""".replace("VALUES", ", ".join(["1"] * 128))


def test_a_product_of_integers_has_no_bound(lab, graph_of, keys_of):
    source = lab.source(INTEGERS, "integers")
    found = rows(graph_of(source), ceilings(1.0), lab=lab, ms=1.0)["MatMulInteger"]

    assert found.flops >= FLOPS
    assert (found.bound_ms, found.bound_by, found.headroom) == (None, None, None)
    assert found.note == UNKNOWN_RATE

    lab.put((key, 0.5) for key in keys_of(source))
    put_ceilings(lab)
    whole = estimate([source], store=lab.store).rows[0].roofline
    assert (whole.ms, whole.reason, whole.remedy) == (None, UNKNOWN_RATE, None), "another ceiling would not help"


def test_a_roofline_above_the_measured_latency_is_none(lab, fork, keys_of):
    lab.put((key, 0.5) for key in keys_of(fork))
    put_ceilings(lab)
    bound = estimate([fork], store=lab.store).rows[0].roofline.ms
    lab.put([(build_graph(fork.skeleton()).key, bound / 2)], subject=Subject.MODEL)

    (answer,) = estimate([fork], store=lab.store)

    assert answer.roofline.ms is answer.roofline.headroom is None
    assert "above the latency" in answer.roofline.reason
    assert answer.roofline.bricks is not None
