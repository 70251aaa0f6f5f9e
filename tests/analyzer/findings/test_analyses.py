"""Analyses on chosen latencies, where what is found depends on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from dlbricks.analyzer.findings.analyses import branches, slow_kernels
from dlbricks.analyzer.findings.analyses.measured import alternatives
from dlbricks.analyzer.findings.analyses.settings import denormals, huge_pages, threads
from dlbricks.analyzer.findings.analyze import analyze
from dlbricks.analyzer.findings.finding import Finding
from dlbricks.analyzer.findings.subject import Subject
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.db import Conditions
from dlbricks.models import find_models
from onnx import numpy_helper

SubjectOf = Callable[[Any], Subject]


def by_operator(bench: Any, latencies: dict[str, float]) -> dict[str, float]:
    """A latency for each brick of the bench, by its operator."""
    operators = ("Conv", "Relu", "Sigmoid", "Add")  # in the model's order
    return bench.bricks(*(latencies[name] for name in operators))  # type: ignore[no-any-return]


def found_by(analysis: Any, subject: Subject) -> dict[str, Finding]:
    return {found.kind: found for found in analysis.ANALYSIS.run(subject)}


def test_other_stored_ways_are_found_by_what_differs(bench: Any, subject_of: SubjectOf) -> None:
    bench.run(ms=10.0, bricks=bench.bricks(1.0))
    bench.run(ms=6.0, conditions=Conditions(2, "hot"))
    bench.run(ms=8.0, conditions=Conditions(4, "hot"))
    bench.run(ms=7.0, conditions=Conditions(1, "hot", "int8"))
    bench.run(bench.torch, ms=12.0)
    bench.run(bench.disabled, ms=9.0)
    bench.run(bench.torch, ms=1.0, conditions=Conditions(4, "hot"))  # differs in two things

    found = found_by(alternatives, subject_of(bench))

    assert {kind: round(one.saving_ms, 1) for kind, one in found.items()} == {
        "threads": 4.0,
        "precision": 3.0,
        "framework": -2.0,
        "options": 1.0,
    }
    assert found["threads"].remedy.settings == {"threads": "2"}
    assert found["precision"].remedy.settings == {"dtype": "int8"}
    assert found["framework"].remedy.settings == {"backend": "torch"}
    assert found["options"].remedy.settings == {"optimization": "disabled"}
    for one in found.values():
        assert one.ci95_ms is not None
        assert one.ci95_ms[0] < one.saving_ms < one.ci95_ms[1]


def test_a_stack_that_computes_in_tf32_is_another_precision_and_no_framework(bench: Any, subject_of: SubjectOf) -> None:
    tf32 = (("tf32", "on"),)
    bench.run(ms=10.0, bricks=bench.bricks(1.0))
    bench.run(bench.torch, ms=9.0)
    bench.run(replace(bench.torch, options=tf32), ms=2.0)
    bench.run(replace(bench.plain, options=bench.plain.options + tf32), ms=4.0)
    bench.run(replace(bench.disabled, options=bench.disabled.options + tf32), ms=1.0)  # differs in two things

    found = found_by(alternatives, subject_of(bench))

    assert {kind: round(one.saving_ms, 1) for kind, one in found.items()} == {"framework": 1.0, "precision": 6.0}
    assert found["precision"].remedy.settings == {"tf32": "on"}
    assert "in TF32" in found["precision"].title


@pytest.mark.parametrize("here", ["on", "off"])
def test_stacks_with_and_without_huge_pages_are_held_against_each_other(
    bench: Any, subject_of: SubjectOf, here: str
) -> None:
    """A stack without does not name the option."""
    huge = replace(bench.plain, options=(*bench.plain.options, ("huge_pages", "on")))
    stacks = {"off": bench.plain, "on": huge}
    bench.run(stacks.pop(here), ms=10.0, bricks=bench.bricks(1.0))
    ((there, other),) = stacks.items()
    bench.run(other, ms=8.0)

    found = found_by(alternatives, subject_of(bench))

    assert found["options"].remedy.settings == {"huge_pages": there}
    assert found["options"].saving_ms == pytest.approx(2.0, rel=0.01)
    assert ("GLIBC_TUNABLES" in found["options"].remedy.code) == (there == "on")


def test_what_runs_as_it_is_written_is_analysed_where_it_is_not_installed(bench: Any) -> None:
    bench.run(bench.torch, ms=10.0, bricks=bench.bricks(1.0))
    bench.run(replace(bench.torch, options=(("mode", "eager"), ("onednn", "off"))), ms=6.0)

    (row,) = analyze([bench.source], store=bench.store, backend="torch", stack=bench.torch.key).rows
    (tried,) = analyze([bench.source], store=bench.store, backend="torch", stack=bench.torch.key, prove=True).rows

    assert row.error is None
    assert {one.kind: round(one.saving_ms, 1) for one in row.findings}["options"] == 4.0
    assert row.joint is not None
    assert row.record()["joint"]["findings"] == row.joint.findings
    assert "not the one that is installed" in (tried.error or "")


def test_a_kernel_far_slower_than_others_is_found(bench: Any, subject_of: SubjectOf) -> None:
    bench.run(ms=4.0, bricks=by_operator(bench, {"Conv": 1.0, "Relu": 0.01, "Sigmoid": 0.02, "Add": 0.5}))

    (found,) = slow_kernels.ANALYSIS.run(subject_of(bench))

    assert "Add" in found.title
    assert found.layers == ("Add_4",)
    assert found.current_ms == pytest.approx(0.5, rel=0.01)
    assert 0 < found.achievable_ms < 0.1


@pytest.mark.parametrize(("opset", "settings"), [(18, {}), (21, {"opset": "18"})])
def test_an_operator_with_a_faster_kernel_of_an_older_opset_says_so(
    bench: Any, tmp_path: Path, subject_of: SubjectOf, opset: int, settings: dict[str, str]
) -> None:
    text = f"""<ir_version: 9, opset_import: ["": {opset}]>
        g (float[1,8,40,40] x) => (float[1,8,40,40] y) <float[8,8,1,1] w = {{{", ".join(["0.5"] * 64)}}}> {{
            a = Conv(x, w) b = Relu(a) c = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(b) y = Neg(c) }}"""
    (tmp_path / "pooled.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    (source,) = find_models([tmp_path / "pooled.onnx"])
    latencies = {"Conv": 0.05, "Relu": 0.01, "AveragePool": 1.0, "Neg": 0.01}
    graph = build_graph(source.skeleton())
    bench.run(
        ms=2.0,
        key=graph.key,
        bricks={part.key: latencies[graph.layers[part.layers[0]].op_type] for part in sequences(graph, 1)},
    )

    (found,) = slow_kernels.ANALYSIS.run(subject_of(bench, source))

    assert "AveragePool" in found.title
    assert found.remedy.settings == settings


@pytest.mark.parametrize(("ms", "found"), [(0.8, 0), (3.0, 1)])
def test_a_recurrent_layer_reads_its_weights_in_every_step(
    bench: Any, tmp_path: Path, subject_of: SubjectOf, ms: float, found: int
) -> None:
    """Fifty steps of 64 units: by products and bytes once it would take 0.12 ms."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (float[50,1,64] x) => (float[50,1,1,64] y) {
            o = Relu(x) a = Sigmoid(o) b = MatMul(a, w) c = MatMul(b, v) y = GRU<hidden_size=64>(c, g, r) }""")
    for name, shape in (("w", (64, 1024)), ("v", (1024, 64)), ("g", (1, 192, 64)), ("r", (1, 192, 64))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    onnx.save(model, tmp_path / "recurrent.onnx")
    (source,) = find_models([tmp_path / "recurrent.onnx"])
    latencies = {"Relu": 0.005, "Sigmoid": 0.005, "MatMul": 0.3, "GRU": ms}
    graph = build_graph(source.skeleton())
    bench.run(
        ms=ms + 0.61,
        key=graph.key,
        bricks={part.key: latencies[graph.layers[part.layers[0]].op_type] for part in sequences(graph, 1)},
    )

    assert len(list(slow_kernels.ANALYSIS.run(subject_of(bench, source)))) == found


def test_kernels_that_are_alike_are_none(bench: Any, subject_of: SubjectOf) -> None:
    bench.run(ms=4.0, bricks=by_operator(bench, {"Conv": 1.0, "Relu": 0.01, "Sigmoid": 0.02, "Add": 0.015}))

    assert not list(slow_kernels.ANALYSIS.run(subject_of(bench)))


def test_operators_never_take_more_than_the_model(bench: Any, subject_of: SubjectOf) -> None:
    bench.run(ms=3.0, bricks=bench.bricks(1.0))

    subject = subject_of(bench)

    spent = subject.spent(subject.nodes)
    assert spent is not None
    assert spent.ms == pytest.approx(subject.latency_ms)


def test_what_is_not_measured_has_no_sum(bench: Any, subject_of: SubjectOf) -> None:
    bench.run(ms=3.0, bricks=dict(list(bench.bricks(1.0).items())[:2]))

    subject = subject_of(bench)

    assert subject.spent(subject.nodes) is None
    assert subject.spent([]) is None


@pytest.mark.parametrize(("count", "wanted"), [(1, None), (4, "4")])
def test_cores_that_are_idle_are_tried(
    bench: Any, subject_of: SubjectOf, monkeypatch: pytest.MonkeyPatch, count: int, wanted: str | None
) -> None:
    bench.run(ms=3.0, bricks=bench.bricks(1.0))
    for module in (threads, branches):
        monkeypatch.setattr(module, "physical_cores", lambda: tuple(range(count)))
    subject = subject_of(bench)

    more = list(threads.ANALYSIS.ideas(subject))
    together = list(branches.ANALYSIS.ideas(subject))

    assert [one.remedy.settings["threads"] for one in more] == ([] if wanted is None else [wanted])
    assert [one.remedy.settings for one in together] == (
        [] if wanted is None else [{"execution": "parallel", "inter_op": wanted, "threads": "1"}]
    )


def test_a_chain_has_no_branches_to_run_at_once(
    bench: Any, subject_of: SubjectOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches, "physical_cores", lambda: (0, 1))
    bench.run(ms=3.0, bricks=by_operator(bench, {"Conv": 1.0, "Relu": 0.5, "Sigmoid": 0.001, "Add": 0.1}))

    assert not list(branches.ANALYSIS.ideas(subject_of(bench)))


def test_branches_save_at_most_what_lies_beside_the_longest_path(bench: Any, subject_of: SubjectOf) -> None:
    two = Conditions(2, "hot")
    bench.run(ms=9.0, bricks=by_operator(bench, {"Conv": 1.0, "Relu": 0.5, "Sigmoid": 0.4, "Add": 0.1}), conditions=two)

    (found,) = branches.ANALYSIS.run(subject_of(bench, threads=2))

    assert found.at_most
    assert found.saving_ms == pytest.approx(0.4, rel=0.02)
    assert found.remedy.settings == {"execution": "parallel", "inter_op": "2", "threads": "1"}


def test_one_thread_runs_no_branches_at_once(bench: Any, subject_of: SubjectOf) -> None:
    bench.run(ms=2.0, bricks=by_operator(bench, {"Conv": 1.0, "Relu": 0.5, "Sigmoid": 0.4, "Add": 0.1}))

    assert not list(branches.ANALYSIS.run(subject_of(bench)))


def test_denormals_are_tried_where_nothing_is_stored(bench: Any, subject_of: SubjectOf) -> None:
    bench.run(ms=3.0, bricks=bench.bricks(1.0))
    subject = subject_of(bench)

    assert not list(denormals.ANALYSIS.run(subject))
    assert [one.remedy.settings for one in denormals.ANALYSIS.ideas(subject)] == [{"denormal_as_zero": "on"}]


@pytest.mark.parametrize(
    ("reason", "least", "tried"), [("", 1, True), ("it is 'never'", 1, False), ("", 1 << 40, False)]
)
def test_huge_pages_are_tried_under_many_weights_where_the_system_has_them(
    bench: Any, subject_of: SubjectOf, monkeypatch: pytest.MonkeyPatch, reason: str, least: int, tried: bool
) -> None:
    monkeypatch.setattr(huge_pages, "why_no_huge_pages", lambda: reason)
    monkeypatch.setattr(huge_pages, "_LEAST", least)
    bench.run(ms=3.0, bricks=bench.bricks(1.0))

    found = [one.remedy.settings for one in huge_pages.ANALYSIS.ideas(subject_of(bench))]

    assert found == ([{"huge_pages": "on"}] if tried else [])
