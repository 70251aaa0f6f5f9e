"""Analyses that hold a model against other stored measurements, or its operators against each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dlbricks.analyzer.findings.analyses import quantisation, slow_kernels, trials
from dlbricks.bricks.graph.model_graph import ExecutedModel, Layouts, build_graph
from dlbricks.bricks.reference import GEMM, STREAM
from dlbricks.db import Conditions
from dlbricks.models import find_models


def executed_as_written(subject, layouts: Layouts) -> None:
    """As if the runtime executed each layer as it is, and laid values out so."""
    graph = subject.graph
    origins = tuple(frozenset({layer.index}) for layer in graph.layers)
    subject.model = replace(subject.model, executed=ExecutedModel("m", graph, graph, origins, frozenset(), {}, layouts))


def measured_in(bench, latencies, **settings) -> None:
    """Store the bench's model in several batches; the bricks of its own."""
    for size, latency in latencies.items():
        (source,) = find_models([bench.source.path], batches=[size])
        key = build_graph(source.skeleton()).key
        bench.run(ms=latency, key=key, bricks=bench.bricks(1.0) if size == 1 else None, **settings)


@pytest.mark.parametrize(
    ("latencies", "best", "share", "evidence"),
    [
        ({1: 10.0, 2: 12.0, 4: 16.0, 8: 31.5, 16: 40.0}, "4", 1 - 16 / 4 / 10, "twice as many at once gain 2%"),
        ({1: 10.0, 2: 12.0}, "2", 1 - 12 / 2 / 10, "batches of 4 are not measured"),
    ],
)
def test_the_first_batch_is_found_whose_doubling_gains_little(bench, subject_of, latencies, best, share, evidence):
    measured_in(bench, latencies)

    found = next(iter(trials.BATCH.run(subject_of())))

    assert found.remedy.settings == {"batch": best}
    assert found.share == pytest.approx(share, rel=0.02)
    assert found.ci95_ms[0] < found.saving_ms < found.ci95_ms[1]
    assert found.saving_ms == pytest.approx(found.current_ms - found.achievable_ms)
    assert any(evidence in line for line in found.evidence)


@pytest.mark.parametrize("latencies", [{1: 10.0}, {1: 10.0, 2: 19.5, 4: 20.0}, {1: 10.0, 4: 11.0}])
def test_a_batch_that_suits_the_machine_is_none(bench, subject_of, latencies):
    measured_in(bench, latencies)
    measured_in(bench, {2: 11.0}, conditions=Conditions(4, "hot"))  # other threads are no other batch

    assert not list(trials.BATCH.run(subject_of()))


# Channels that fill no blocks -------------------------------------------------------------------------------------

# Ceilings of the machine ------------------------------------------------------------------------------------------

CEILINGS = {f"{GEMM}512": 2.684, f"{STREAM}{1 << 20}": 1.149}
"""10^11 FLOP/s, and 10^9 bytes/s beside a call of 0.1 ms."""


def test_operators_far_from_both_ceilings_are_found(bench, subject_of):
    bench.run(ms=1.0, bricks=bench.bricks(0.2, 0.009, 0.009, 0.0135), references=CEILINGS)
    subject = subject_of()

    (found,) = slow_kernels.ROOFLINE.run(subject)

    assert not list(slow_kernels.SLOW_KERNELS.run(subject))  # its own rate is all that this model has to show
    assert found.at_most
    assert found.layers == ("Conv_0", "Conv_2")
    assert found.current_ms == pytest.approx(0.4, rel=0.02)
    assert found.achievable_ms == pytest.approx(2 * (2 * 4 * 16 * 16 + 4 * 4 * 9) * 4 / 1e9 * 1e3, rel=0.02)
    assert "40% of the model" in found.title
    assert any("2 x Conv" in line and "by memory" in line for line in found.evidence)


@pytest.mark.parametrize(
    ("latencies", "ceilings", "slow"),
    [
        ((0.012, 0.009, 0.009, 0.0135), CEILINGS, []),
        ((0.03, 0.009, 0.009, 0.0135), CEILINGS, []),
        ((0.012, 0.009, 0.009, 0.5), CEILINGS, [("Add_4",)]),  # slow beside its own model: not shown again
        ((0.2, 0.009, 0.009, 0.0135), None, []),
    ],
)
def test_operators_near_a_ceiling_are_none(bench, subject_of, latencies, ceilings, slow):
    bench.run(ms=2.0, bricks=bench.bricks(*latencies), references=ceilings)
    subject = subject_of()

    assert not list(slow_kernels.ROOFLINE.run(subject))
    assert [found.layers for found in slow_kernels.SLOW_KERNELS.run(subject)] == slow


# Quantised models that nothing computes in integers ----------------------------------------------------------------

PAIRS = (
    '<ir_version: 10, opset_import: ["": 21]> g (float[1,8] x) => (float[1,8] y)'
    "<float s = {0.1}, TYPE z = {0}>"
    "{a = Sigmoid(x) q = QuantizeLinear(a, s, z) b = DequantizeLinear(q, s, z) c = MIDDLE(b)"
    " r = QuantizeLinear(c, s, z) d = DequantizeLinear(r, s, z) y = Tanh(d)}"
)


@pytest.mark.parametrize(
    ("dtype", "middle", "why"),
    [
        ("int8", "Sigmoid", "its activations are signed"),
        ("uint16", "Sigmoid", "no kernels for activations of uint16"),
        ("uint8", "Erf", "no kernel for a quantised Erf"),
    ],
)
def test_pairs_of_conversions_that_nothing_takes_in_are_found(subject_of, written, measured, dtype, middle, why):
    source = written(PAIRS.replace("TYPE", dtype).replace("MIDDLE", middle))
    operators = ("QuantizeLinear", "DequantizeLinear", "Sigmoid", "Tanh", "Erf")
    measured(source, dict.fromkeys(operators, 1.0))

    (found,) = quantisation.ANALYSIS.run(subject_of(source))

    assert (found.kind, len(found.layers)) == ("unfolded_quantization", 4)
    assert found.saving_ms == pytest.approx(4.0, rel=0.01)  # two pairs; what is between them is not foreseen
    assert found.remedy.action == "manual"
    assert any(why in line for line in found.evidence)


DYNAMIC = (
    '<ir_version: 8, opset_import: ["": 17]> g (float[1,4,8,8] x) => (float[1,4,8,8] y) <int8[4,4,1,1] w = {W}>'
    "{q, s, z = DynamicQuantizeLinear(x) i = ConvInteger(q, w, z) f = Cast<to=1>(i) y = Mul(f, s)}"
).replace("W", ", ".join(["1"] * 16))


def test_convolutions_that_were_quantised_dynamically_are_named_with_the_way_out(subject_of, written, measured):
    source = written(DYNAMIC)
    measured(source, {"DynamicQuantizeLinear": 0.1, "ConvInteger": 5.0, "Cast": 0.1, "Mul": 0.1})

    (found,) = quantisation.DYNAMIC_CONVOLUTIONS.run(subject_of(source))

    assert found.current_ms == pytest.approx(5.0, rel=0.01)
    assert found.saving_ms == pytest.approx(5.0 * (1 - 1 / 2.66), rel=0.01)
    assert "quantize_static" in found.remedy.text
    assert not found.at_most, "the factor was measured: it is a prediction"


def test_unsigned_weights_of_dynamic_convolutions_are_not_slow(subject_of, written, measured):
    source = written(DYNAMIC.replace("int8[4,4,1,1]", "uint8[4,4,1,1]"))
    measured(source, {"DynamicQuantizeLinear": 0.1, "ConvInteger": 5.0, "Cast": 0.1, "Mul": 0.1})

    assert not [*quantisation.DYNAMIC_CONVOLUTIONS.run(subject_of(source))]


NARROW = (
    '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g (float[ROWS,32] x) => (float[ROWS,2] y)'
    "<uint8[2,1,16] w = {W}, float[2] s = {1.0, 1.0}, float[ROWS,2] b>"
    "{a = Relu(x) b = com.microsoft.MatMulNBits<K=32, N=2, bits=4, block_size=32LEVEL>(a, w, s) y = Tanh(b)}"
).replace("W}", ", ".join(["1"] * 32) + "}")


@pytest.mark.parametrize(
    ("rows", "level", "count"), [(1, "", 1), (1, ", accuracy_level=1", 1), (1, ", accuracy_level=4", 0), (64, "", 0)]
)
def test_products_of_four_bits_and_few_rows_are_faster_in_int8(subject_of, written, measured, rows, level, count):
    source = written(NARROW.replace("ROWS", str(rows)).replace("LEVEL", level))
    measured(source, {"Relu": 0.1, "MatMulNBits": 2.0, "Tanh": 0.1})

    found = [*quantisation.ACCURACY_LEVEL.run(subject_of(source))]

    assert len(found) == count
    assert all(one.saving_ms == pytest.approx(1.0, rel=0.01) for one in found)
