"""Analyses on chosen latencies, where what is found depends on them: other ways to run, slow kernels, settings."""

from __future__ import annotations

from dataclasses import replace

import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.findings import analysed_model
from dlbricks.analyzer.findings.analysed_model import cold_start_in, is_depthwise
from dlbricks.analyzer.findings.analyses import runtime_settings, slow_kernels, trials
from dlbricks.analyzer.findings.analyze import analyze
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.layer import Role
from dlbricks.db import Conditions


def other_ways(subject):
    return {found.kind: found for found in trials.ALTERNATIVES.run(subject)}


def test_other_stored_ways_are_found_by_what_differs(bench, subject_of):
    bench.run(ms=10.0, bricks=bench.bricks(1.0))
    bench.run(ms=6.0, conditions=Conditions(2, "hot"))
    bench.run(ms=8.0, conditions=Conditions(4, "hot"))
    bench.run(ms=7.0, conditions=Conditions(1, "hot", "int8"))
    bench.run(bench.torch, ms=12.0)
    bench.run(bench.disabled, ms=9.0)
    bench.run(bench.torch, ms=1.0, conditions=Conditions(4, "hot"))  # differs in two things

    found = other_ways(subject_of())

    assert {kind: (round(one.saving_ms, 1), one.remedy.settings) for kind, one in found.items()} == {
        "threads": (4.0, {"threads": "2"}),
        "precision": (3.0, {"dtype": "int8"}),
        "framework": (-2.0, {"backend": "torch"}),
        "options": (1.0, {"optimization": "disabled"}),
    }
    assert all(one.ci95_ms[0] < one.saving_ms < one.ci95_ms[1] for one in found.values())


def test_a_stack_that_computes_in_tf32_is_another_precision_and_no_framework(bench, subject_of):
    tf32 = (("tf32", "on"),)
    bench.run(ms=10.0, bricks=bench.bricks(1.0))
    bench.run(bench.torch, ms=9.0)
    bench.run(replace(bench.torch, options=tf32), ms=2.0)
    bench.run(replace(bench.plain, options=bench.plain.options + tf32), ms=4.0)
    bench.run(replace(bench.disabled, options=bench.disabled.options + tf32), ms=1.0)  # differs in two things

    found = other_ways(subject_of())

    assert {kind: round(one.saving_ms, 1) for kind, one in found.items()} == {"framework": 1.0, "precision": 6.0}
    assert found["precision"].remedy.settings == {"tf32": "on"}
    assert "in TF32" in found["precision"].title


def test_what_runs_as_it_is_written_is_analysed_where_it_is_not_installed(bench):
    bench.run(bench.torch, ms=10.0, bricks=bench.bricks(1.0))
    bench.run(replace(bench.torch, options=(("mode", "eager"), ("onednn", "off"))), ms=6.0)

    (row,) = analyze([bench.source], store=bench.store, backend="torch", stack=bench.torch.key).rows
    (tried,) = analyze([bench.source], store=bench.store, backend="torch", stack=bench.torch.key, prove=True).rows

    assert row.error is None
    assert {one.kind: round(one.saving_ms, 1) for one in row.findings}["options"] == 4.0
    assert row.joint is None  # nothing was proven
    assert "not the one that is installed" in (tried.error or "")


# Kernels that are slow beside those of their own model ------------------------------------------------------------

POOLED = f"""<ir_version: 9, opset_import: ["": OPSET]>
    g (float[1,8,40,40] x) => (float[1,8,40,40] y) <float[8,8,1,1] w = {{{", ".join(["0.5"] * 64)}}}> {{
        a = Conv(x, w) b = Relu(a) c = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(b) y = Neg(c) }}"""
RECURRENT = """<ir_version: 9, opset_import: ["": 17]>
    g (float[50,1,64] x) => (float[50,1,1,64] y) {
        o = Relu(x) a = Sigmoid(o) b = MatMul(a, w) c = MatMul(b, v) y = GRU<hidden_size=64>(c, g, r) }"""


@pytest.mark.parametrize(("add_ms", "found"), [(0.5, ["Add_4"]), (0.015, [])], ids=["far slower", "alike"])
def test_a_kernel_far_slower_than_others_is_found(bench, subject_of, add_ms, found):
    bench.run(ms=4.0, bricks=bench.bricks(1.0, 0.01, 0.02, add_ms))

    slow = list(slow_kernels.SLOW_KERNELS.run(subject_of()))

    assert [layer for one in slow for layer in one.layers] == found
    for one in slow:
        assert "Add" in one.title
        assert one.current_ms == pytest.approx(0.5, rel=0.01)
        assert 0 < one.achievable_ms < 0.1


@pytest.mark.parametrize(("opset", "settings"), [(18, {}), (21, {"opset": "18"})])
def test_an_operator_with_a_faster_kernel_of_an_older_opset_says_so(subject_of, written, measured, opset, settings):
    source = written(POOLED.replace("OPSET", str(opset)))
    measured(source, {"Conv": 0.05, "Relu": 0.01, "AveragePool": 1.0, "Neg": 0.01})

    (found,) = slow_kernels.SLOW_KERNELS.run(subject_of(source))

    assert "AveragePool" in found.title
    assert found.remedy.settings == settings
    assert found.at_most == (not settings), "without a known way, the saving is no prediction"


@pytest.mark.parametrize(("ms", "found"), [(0.8, 0), (3.0, 1)])
def test_a_recurrent_layer_reads_its_weights_in_every_step(subject_of, written, measured, ms, found):
    """Fifty steps of 64 units: by products and bytes once it would take 0.12 ms."""
    source = written(RECURRENT, w=(64, 1024), v=(1024, 64), g=(1, 192, 64), r=(1, 192, 64))
    measured(source, {"Relu": 0.005, "Sigmoid": 0.005, "MatMul": 0.3, "GRU": ms})

    assert len(list(slow_kernels.SLOW_KERNELS.run(subject_of(source)))) == found


def test_operators_never_take_more_than_the_model_and_what_is_not_measured_has_no_sum(bench, subject_of):
    bench.run(ms=3.0, bricks=dict(list(bench.bricks(1.0).items())[:2]))
    subject = subject_of()
    assert subject.spent(subject.nodes) is None
    assert subject.spent([]) is None
    bench.run(ms=3.0, bricks=bench.bricks(1.0))
    subject = subject_of()

    assert subject.spent(subject.nodes).ms == pytest.approx(subject.latency_ms)


HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
QUANTISED = (
    "g (uint8[1,8,6,6] x, uint8[8,1,3,3] w, float s, uint8 z) => (uint8[1,8,4,4] y)"
    " {y = QLinearConv<group=8>(x, s, z, w, s, z, s, z)}"
)


@pytest.mark.parametrize(
    ("layer", "data", "filters", "found"),
    [
        ("Conv<group=8>", "1,8,6,6", "8,1,3,3", True),
        ("Conv<group=8>", "1,8,6,6", "16,1,3,3", True),
        ("Conv<group=4>", "1,8,6,6", "8,2,3,3", False),
        ("Conv<group=4>", "1,8,6,6", "8,2,1,1", False),
        ("Conv", "1,8,6,6", "4,8,3,3", False),
        ("Conv", "1,1,6,6", "4,1,3,3", False),
        ("ConvTranspose", "1,64,6,6", "64,1,2,2", False),
        ("ConvTranspose<group=8>", "1,8,6,6", "8,1,2,2", False),
        ("com.microsoft.NhwcFusedConv<group=8>", "1,6,6,8", "8,3,3,1", True),
        ("com.microsoft.NhwcFusedConv<group=4>", "1,6,6,8", "8,1,1,2", False),
        ("com.microsoft.NhwcFusedConv", "1,6,6,8", "4,1,1,8", False),
        ("QLinearConv", "", "", True),
    ],
)
def test_a_depthwise_convolution_reads_one_channel_of_several(tmp_path, written, layer, data, filters, found):
    text = f"g (float[{data}] x, float[{filters}] w) => (float y) {{y = {layer}(x, w)}}"
    source = written(f"{HEAD} {text if data else QUANTISED}")
    if data:
        model = onnx.load(source.path)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        onnx.save(model, source.path)

    (read,) = build_graph(source.skeleton()).layers

    assert is_depthwise(read) == found


# Settings that are tried ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "wanted"), [(1, None), (4, "4")])
def test_cores_that_are_idle_are_tried(bench, subject_of, monkeypatch, count, wanted):
    bench.run(ms=3.0, bricks=bench.bricks(1.0))
    monkeypatch.setattr(runtime_settings, "physical_cores", lambda: tuple(range(count)))
    subject = subject_of()

    more = list(runtime_settings.THREADS.ideas(subject))
    together = list(runtime_settings.BRANCHES.ideas(subject))

    assert [one.remedy.settings["threads"] for one in more] == ([] if wanted is None else [wanted])
    assert [one.remedy.settings for one in together] == (
        [] if wanted is None else [{"execution": "parallel", "inter_op": wanted, "threads": "1"}]
    )


def test_branches_save_at_most_what_lies_beside_the_longest_path(bench, subject_of, monkeypatch):
    monkeypatch.setattr(runtime_settings, "physical_cores", lambda: (0, 1))
    bench.run(ms=9.0, bricks=bench.bricks(1.0, 0.5, 0.4, 0.1), conditions=Conditions(2, "hot"))
    bench.run(ms=2.0, bricks=bench.bricks(1.0, 0.5, 0.001, 0.1))

    (found,) = runtime_settings.BRANCHES.run(subject_of(threads=2))

    assert found.at_most
    assert found.saving_ms == pytest.approx(0.4, rel=0.02)
    assert found.remedy.settings == {"execution": "parallel", "inter_op": "2", "threads": "1"}
    assert not list(runtime_settings.BRANCHES.run(subject_of()))  # one thread runs no branches at once
    assert not list(runtime_settings.BRANCHES.ideas(subject_of()))  # and a chain has none


def test_denormals_are_tried(bench, subject_of):
    bench.run(ms=3.0, bricks=bench.bricks(1.0))
    subject = subject_of()

    assert not list(runtime_settings.DENORMALS.run(subject))
    assert [one.remedy.settings for one in runtime_settings.DENORMALS.ideas(subject)] == [{"denormal_as_zero": "on"}]


def test_weights_that_are_denormal_numbers_are_a_reason_to_try(bench, subject_of, monkeypatch):
    bench.run(ms=3.0, bricks=bench.bricks(1.0))
    subject = subject_of()
    (layer, *_) = (layer for layer in subject.graph.layers if any(one.role is Role.WEIGHT for one in layer.operands))
    weight = next(one.value for one in layer.operands if one.role is Role.WEIGHT)
    monkeypatch.setattr(analysed_model, "denormal_weights", lambda _: {weight: 4000})

    (idea,) = runtime_settings.DENORMALS.ideas(subject)

    readers = [one.name for one in subject.graph.layers if weight in {operand.value for operand in one.operands}]
    assert idea.layers == (), "the setting is of the whole model: a search that tries it finds the same"
    assert idea.evidence[-1] == f"weights that are denormal numbers: {', '.join(f'{name} (4,000)' for name in readers)}"


def test_a_cold_start_is_stated_in_runs_of_the_steady_state(bench, subject_of):
    bench.run(ms=4.0, bricks=bench.bricks(0.5))
    bench.run(ms=4.0, conditions=Conditions(2, "hot"), start_ms=(100.0, 20.0))
    bench.run(ms=4.0, conditions=Conditions(1, "cold"), start_ms=(100.0, 20.0))
    assert cold_start_in(subject_of()) is None  # of these conditions it was not timed
    bench.run(ms=4.0, bricks=bench.bricks(0.5), start_ms=(100.0, 20.0))

    start = cold_start_in(subject_of())

    assert (start.load_ms, start.first_run_ms) == (100.0, 20.0)
    assert start.latency_ms == pytest.approx(4.0, rel=0.01)
    assert start.runs == pytest.approx(30, rel=0.01)
    assert start.record()["runs"] == start.runs
