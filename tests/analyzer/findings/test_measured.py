"""Analyses that hold a model against other stored measurements, or its operators against each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dlbricks.analyzer.findings.analyses import quantisation, rewrites, slow_kernels, trials
from dlbricks.analyzer.findings.analyses.fusions import unblocked, unblocked_idea
from dlbricks.bricks.graph.graph import ExecutedModel, Layouts, build_graph
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

UNEVEN = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1,16,16,16] x) => (float[1,16,16,16] y) {
        a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, v) d = Relu(c)
        y = Conv<pads=[1,1,1,1]>(d, u) }"""
"""Three convolutions, 16 to 15 to 15 to 16 channels."""
UNEVEN_WEIGHTS = {"w": (15, 16, 3, 3), "v": (15, 15, 3, 3), "u": (16, 15, 3, 3)}


@pytest.mark.parametrize(
    ("change", "padded", "layers"),
    [
        (("", ""), {"a": 0.6, "c": 0.5, "y": 1.1}, ("Conv_0", "Conv_2", "Conv_4")),
        (("[1,16,16,16] y)", "[1,16,16,16] y, float[1,15,16,16] b)"), dict.fromkeys("acy", 0.5), ("Conv_4",)),
        (("d = Relu(c)", "d = Softmax<axis=1>(c)"), dict.fromkeys("acy", 0.5), ("Conv_0",)),
        (("", ""), {}, None),  # nothing padded is measured
    ],
    ids=["all", "others read them", "others see them", "not measured"],
)
def test_channels_are_found_that_are_faster_when_they_are_padded(
    bench, subject_of, written, measured, change, padded, layers
):
    source = written(UNEVEN.replace(*change), **UNEVEN_WEIGHTS)
    measured(source, {"Conv": 1.0, "Relu": 0.1, "Softmax": 0.1})
    if padded:
        measured(source, padded, variant="padded-8")

    found = list(trials.PADDING.run(subject_of(source)))

    assert [one.layers for one in found] == ([] if layers is None else [layers])
    if layers is not None and len(layers) == 3:
        assert found[0].current_ms == pytest.approx(3.0, rel=0.05)
        assert found[0].saving_ms == pytest.approx(0.4 + 0.5 - 0.1, rel=0.1)
        assert found[0].ci95_ms[0] < found[0].saving_ms < found[0].ci95_ms[1]
        assert any("1 of the 3 layers take longer" in line for line in found[0].evidence)


MIXED = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1,17,16,16] x) => (float[1,16,16,16] y) {
        a = Conv<pads=[1,1,1,1]>(x, first) b = Conv<pads=[1,1,1,1], group=15>(a, alone)
        c = Conv<pads=[1,1,1,1]>(b, inner) d = Conv<pads=[2,2,2,2], group=15>(c, wide)
        y = Conv<pads=[1,1,1,1]>(d, last) }"""
"""17 to 15 channels, a depthwise convolution, 15 to 15, another depthwise one, 15 to 16."""
MIXED_WEIGHTS = {
    "first": (15, 17, 3, 3), "alone": (15, 1, 3, 3), "inner": (15, 15, 3, 3), "wide": (15, 1, 5, 5),
    "last": (16, 15, 3, 3),
}  # fmt: skip
PADDED = ("Conv_1", "Conv_2", "Conv_3", "Conv_4")


def test_only_channels_that_the_rewrite_pads_add_work(subject_of, written, measured):
    latencies = {"a": 2.0, "b": 1.0, "c": 4.0, "d": 0.5, "y": 1.0}
    macs = {"b": 15 * 9, "c": 15 * 15 * 9, "d": 15 * 25, "y": 15 * 16 * 9}  # of each of 16 x 16 places
    source = written(MIXED, **MIXED_WEIGHTS)
    measured(source, latencies, noise=0)
    subject = subject_of(source)

    found = unblocked(subject)

    dense = macs["y"] / latencies["y"]  # the first one reads what is not padded, and is slower
    alone = macs["d"] / latencies["d"]
    rise = 16 / 15
    left = rise * (macs["b"] + macs["d"]) / alone + (rise * rise * macs["c"] + rise * macs["y"]) / dense
    assert found.layers == PADDED
    assert found.current_ms == pytest.approx(6.5)
    assert found.saving_ms == pytest.approx(6.5 - left, rel=1e-3)
    executed_as_written(subject, Layouts(flags=frozenset({"group"})))  # blocks are what the runtime says they are
    assert [one.layers for one in unblocked_idea(subject)] == [("Conv_2", "Conv_4")]


def test_without_a_time_there_is_no_rate(subject_of, written, measured):
    source = written(MIXED, **MIXED_WEIGHTS)
    measured(source, {"Conv": 0.0}, noise=0)

    assert unblocked(subject_of(source)) is None
    assert [one.layers for one in unblocked_idea(subject_of(source))] == [PADDED]


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


# Operators that do not run as one ---------------------------------------------------------------------------------

GELU = """<ir_version: 9, opset_import: ["": 20]>
    g (float[1,8,6,6] x) => (OUTPUTS) <float r = {1.4142135}, float one = {1.0}, float half = {0.5}> {
        a = Conv(x, w) into = DepthToSpace<blocksize=1>(a) d = Div(into, r) e = Erf(d) f = Add(e, one)
        m = Mul(half, f) g = Mul(m, into) out = DepthToSpace<blocksize=1>(g) y = Conv(out, w) }"""
"""A GELU between two operators that stand for changes of the layout."""
GELU_MS = {"a": 3.0, "into": 0.5, "d": 1.0, "e": 2.0, "f": 1.0, "m": 1.0, "g": 1.0, "out": 0.25, "y": 3.0}


@pytest.mark.parametrize(
    ("also", "changes", "saving_ms"),
    [
        ("", {"DepthToSpace"}, 1.0 + 1.0 + 1.0 + 1.0 + 0.5 + 0.5),  # equal changes are one brick
        ("", (), 4.0),  # without layouts all but the longest operator goes
        (", float[1,8,6,6] into", {"DepthToSpace"}, 4.0),  # what is read elsewhere is still changed
        (", float[1,8,6,6] out", {"DepthToSpace"}, 4.0),
    ],
)
def test_changes_of_layout_around_an_activation_go_as_well(subject_of, written, measured, also, changes, saving_ms):
    source = written(GELU.replace("OUTPUTS", f"float[1,8,6,6] y{also}"), w=(8, 8, 1, 1))
    measured(source, GELU_MS, noise=0)
    subject = subject_of(source)
    executed_as_written(subject, Layouts(changes=frozenset(changes)))

    (found,) = rewrites.ACTIVATIONS.run(subject)

    assert found.saving_ms == pytest.approx(saving_ms)


PAIRS = (
    '<ir_version: 10, opset_import: ["": 21]> g (float[1,8] x) => (float[1,8] y)'
    "<float s = {0.1}, TYPE z = {0}>"
    "{a = Sigmoid(x) q = QuantizeLinear(a, s, z) b = DequantizeLinear(q, s, z) c = MIDDLE(b)"
    " r = QuantizeLinear(c, s, z) d = DequantizeLinear(r, s, z) y = Tanh(d)}"
)


@pytest.mark.parametrize(
    ("dtype", "middle", "why"),
    [
        ("int8", "Sigmoid", None),
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
    if why is None:
        assert found.remedy.settings["rewrite"] == "unsigned"
    else:
        assert found.remedy.action == "manual"
        assert any(why in line for line in found.evidence)
