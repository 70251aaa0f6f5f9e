"""From models to the page in one call."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from dlbricks.analyzer.findings.analyze import analyze
from dlbricks.analyzer.findings.finding import ALL_REMEDIES, LONGER, REWRITES
from dlbricks.analyzer.findings.improve import improve
from dlbricks.analyzer.findings.stored_proofs import OTHERS
from dlbricks.analyzer.measuring import MeasuringPlan
from dlbricks.analyzer.report.answers.findings import analyze_answer
from dlbricks.analyzer.report.answers.summary import report_answer
from dlbricks.analyzer.report.units import BUSY
from dlbricks.analyzer.reporting import report
from dlbricks.analyzer.setups import Setup, set_up
from dlbricks.constructor.result import Estimate
from dlbricks.db import Store
from dlbricks.errors import UsageError
from dlbricks.generator.backends.registry import get
from dlbricks.generator.machine.lock import machine_lock, patience, work_clock
from dlbricks.generator.progress import Progress, Stage
from dlbricks.models import find_models

from .conftest import Bench

OTHER = """
<ir_version: 8, opset_import: ["": 17]>
other (float[1,8,64,64] x) => (float[1,8] y) {
    a = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
    b = Tanh(a)
    c = GlobalAveragePool(b)
    y = Flatten(c)
}
"""


@pytest.mark.slow
def test_from_nothing_to_the_page_and_again_without_measuring(branches: Path, here: Path) -> None:
    models = find_models([branches])
    with Store.open(here / "dlbricks.db") as store:
        first = report(models, store=store, out=here / "a.html", budget_s=16, alone=True)
        again = report(models, store=store, out=here / "b.html", budget_s=8)
        stored = report(models, store=store, out=here / "c.html", measure=False, setup=Setup())

    assert first.complete
    assert first.generated is not None
    assert first.measured is not None
    assert first.measured.models_measured == 1
    assert again.generated is None
    assert again.measured is None
    for made in (again, stored):
        assert made.sections[0].estimate.truth.ms == first.sections[0].estimate.truth.ms
        assert made.sections[0].estimate.truth.paired
    assert [path.suffix for path in here.glob("?.html")] == [".html"] * 3
    (row,) = first.to_json()["results"]
    assert row["memory_peak_mb"] >= row["memory_steady_mb"] > row["memory_weights_mb"]
    assert "<dt>Memory</dt>" in (here / "a.html").read_text()
    assert "<dt>Memory</dt>" not in (here / "b.html").read_text()
    assert any(line.startswith("  Memory, the runtime included") for line in report_answer(first).summary)
    assert not [*here.glob("suite*")]


@pytest.mark.slow
def test_the_visits_of_an_interrupted_report_are_its_answer_and_are_continued(branches: Path, here: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage is Stage.SAMPLE and progress.done > 0.7 * progress.total:
            raise KeyboardInterrupt

    models = find_models([branches])
    with Store.open(here / "dlbricks.db") as store:
        some = report(models, store=store, visits=10, prove=False, progress=interrupt)
        assert isinstance(some.interrupted, KeyboardInterrupt)
        assert store.measurements(variant=None) == []  # they are no result yet
        whole = report(models, store=store, visits=10, prove=False)
        run_before, run_after, *_ = store.runs()

    estimate = some.sections[0].estimate
    assert estimate.truth.measurement is not None
    assert estimate.truth.measurement.run == run_before.id
    assert (estimate.complete, estimate.parts.missing) == (True, ())
    truth = whole.sections[0].estimate.truth.measurement
    assert truth is not None
    assert (truth.run, truth.id) == (run_after.id, estimate.truth.measurement.id)
    assert truth.summary.samples == 10


@pytest.mark.slow
def test_beside_another_measuring_process_a_report_shows_what_is_stored(branches: Path, here: Path) -> None:
    (here / "other.onnx").write_bytes(onnx.parser.parse_model(OTHER).SerializeToString())
    with Store.open(here / "dlbricks.db") as store:
        known = report(find_models([branches]), store=store, visits=10, prove=False).sections[0]
        with machine_lock(), patience(0.0):
            busy = report(find_models([branches, here / "other.onnx"]), store=store, budget_s=30, alone=True)
            stored = report(find_models([branches]), store=store, budget_s=30)

    first, second = busy.sections
    assert first.estimate.truth.ms == known.estimate.truth.ms
    assert (second.estimate.truth.ms, second.estimate.complete, busy.complete) == (None, False, False)
    assert busy.unasked[0].startswith("nothing is measured: another dlbricks process")
    assert stored.sections[0].findings is not None
    assert any(reason.startswith("no remedy was tried: another dlbricks process") for reason in stored.unasked)


@pytest.mark.slow
def test_what_was_tried_stays_in_the_database(branches: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, begun = find_models([branches]), list[Sequence[Estimate]]()
    with Store.open(here / "dlbricks.db") as store:
        untried = report(models, store=store, visits=10, prove=False, first=begun.append).sections[0]
        tried = report(models, store=store, first=begun.append).sections[0]
    monkeypatch.setenv("DLBRICKS_CACHE", str(here / "another"))
    with Store.open(here / "dlbricks.db", read_only=True) as store:
        stored = report(models, store=store, measure=False).sections[0]
        (row,) = analyze(models, store=store).rows

    assert row.findings == tried.findings, "an analysis shows what a report has proven"
    assert row.untried == tried.untried
    ((guessed,),) = begun  # before anything was measured, and not again
    assert guessed.parts.predicted or guessed.parts.prediction_reason
    assert stored.truth == tried.truth == untried.truth
    assert stored.findings == tried.findings
    assert tried.findings is not None
    assert untried.untried == ALL_REMEDIES


GUARDED = """<ir_version: 8, opset_import: ["": 17]>
g (float[256,64] x, bool c) => (float[256,64] y) {
    a = MatMul(x, u) b = MatMul(a, v)
    y = If(c) <then_branch = one () => (float[256,64] p) { p = Tanh(b) },
               else_branch = two () => (float[256,64] q) { q = Erf(b) }>
}"""


@pytest.mark.slow
def test_what_is_proven_of_a_model_with_layers_of_unknown_time_is_shown(here: Path) -> None:
    model = onnx.parser.parse_model(GUARDED)
    for name, shape in (("u", (64, 4096)), ("v", (4096, 64))):
        weights = np.random.default_rng(0).standard_normal(shape, np.float32) / np.float32(64)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    onnx.save(model, here / "guarded.onnx")
    (source,) = find_models([here / "guarded.onnx"])
    with Store.open(here / "dlbricks.db") as store:
        improved = improve(source, budget_s=30, settings=False, store=store)
        (section,) = report([source], store=store, budget_s=5, prove=False).sections
        (tried,) = report([source], store=store, budget_s=60).sections

    assert improved.changes
    assert not section.estimate.complete
    assert section.findings is not None
    assert any(finding.proof is not None for finding in section.findings)
    assert not {*tried.untried} & {*ALL_REMEDIES, *OTHERS}, "what needs no time of single layers was tried"


@pytest.mark.slow
def test_another_model_is_measured_and_the_first_is_not_again(branches: Path, here: Path) -> None:
    onnx.save(onnx.parser.parse_model(OTHER), here / "other.onnx")
    with Store.open(here / "dlbricks.db") as store:
        report(find_models([branches]), store=store, budget_s=6)
        both = report(find_models([branches, here / "other.onnx"]), store=store, out=here / "r.html", budget_s=6)

    assert both.complete
    assert both.generated is not None
    assert [row.name for row in both.generated.rows] == ["other"]
    assert "2 models" in (here / "r.html").read_text()


def test_a_model_runs_alone_only_where_something_is_measured(branches: Path) -> None:
    with Store.open("sqlite://") as store, pytest.raises(UsageError, match="runs alone"):
        report(find_models([branches]), store=store, measure=False, alone=True)


def test_without_measuring_what_is_missing_is_said(branches: Path, here: Path) -> None:
    with Store.open("sqlite://") as store:
        made = report(
            find_models([branches]), store=store, out=here / "r.html", measure=False, setup=set_up(graph="source")
        )

    assert not made.complete
    assert made.sections[0].estimate.truth.ms is None
    page = (here / "r.html").read_text()
    assert "Nothing of this model is measured yet" in page
    assert "are not measured. Totals need every sequence and are therefore missing." in page


def test_where_the_time_goes_is_of_the_whole_model(bench: Bench, tmp_path: Path) -> None:
    first, *_ = bench.counts
    bench.run(ms=10.0, bricks={first: 1.0})
    stored = Setup(backend="onnxruntime", threads=1, cache="hot", graph="source")

    made = report([bench.source], store=bench.store, out=tmp_path / "r.html", measure=False, setup=stored)

    page = (tmp_path / "r.html").read_text()
    known = bench.counts[first]
    assert not made.complete
    text = " ".join(page.split())
    rest = f"{1 - known / made.sections[0].estimate.truth.ms:.0%}"
    assert f"{known} of its 6 layers are measured; the others take {rest} of the time." in text
    assert f'<bdi>not measured</bdi></td><td class="n">{6 - known}</td>' in page
    (short,) = [line for line in report_answer(made).summary if "Where the time goes" in line]
    assert short.endswith(f"{6 - known} layers not measured {rest}.")
    assert "of the time of its layers goes into" not in page
    assert "Half of it" not in page


def test_what_measured_means_beside_other_programs_is_said_and_one_share_of_quiet_visits(
    bench: Bench, tmp_path: Path
) -> None:
    stored, pages = Setup(backend="onnxruntime", threads=1, cache="hot", graph="source"), []
    for undisturbed in (None, 0.9):  # a run without probes, then one in which half of the visits were quiet
        bench.run(ms=10.0, bricks=bench.bricks(1.0), undisturbed=undisturbed)
        made = report([bench.source], store=bench.store, out=tmp_path / "r.html", measure=False, setup=stored)
        pages.append(" ".join(html.unescape((tmp_path / "r.html").read_text()).split()))
    findings = analyze([made.sections[0].estimate], store=bench.store)

    quiet, busy = pages
    assert BUSY not in quiet
    assert busy.count(f"ms</strong> ({BUSY})") == 1
    assert "beside other programs; undisturbed 9.00 ms" in busy
    assert busy.count("visits were undisturbed") == 1
    assert "50% of the model's visits were undisturbed" in busy
    summary = report_answer(made).summary
    assert any("10.0" in line and "measured beside other programs" in line for line in summary)
    assert f"measured_ms (branches): {BUSY}" in summary
    assert any(BUSY in line for line in analyze_answer(findings).summary)


@pytest.mark.parametrize(
    ("untried", "change", "told"),
    [
        ((), "no saving is proven or predicted.", "nothing"),
        (ALL_REMEDIES, "not known before anything is tried.", "every remedy; run: dlbricks analyze "),
        ((REWRITES,), "no saving is proven or predicted so far.", f"{REWRITES}; run: dlbricks improve "),
        ((LONGER,), "no saving is proven or predicted so far.", f"{LONGER}; run: dlbricks improve "),
        (("denormals",), "no saving is proven or predicted so far.", "denormals; run: dlbricks analyze "),
    ],
)
def test_a_report_says_what_is_left_to_try(bench: Bench, untried: tuple[str, ...], change: str, told: str) -> None:
    bench.run(ms=10.0, bricks=bench.bricks(1.0))
    stored = Setup(backend="onnxruntime", threads=1, cache="hot", graph="source")
    made = report([bench.source], store=bench.store, measure=False, setup=stored)

    analysed = replace(made.sections[0], findings=(), untried=untried)
    summary = report_answer(replace(made, sections=(analysed,))).summary

    (left,) = [line for line in summary if isinstance(line, str) and "Not tried" in line]
    assert left.startswith(f"  Not tried: {told}")
    assert f"  What to change: {change}" in summary


def test_what_nobody_asked_for_is_picked_and_said() -> None:
    setup = set_up(threads=2)

    assert (setup.graph, setup.backend, setup.cache, setup.threads) == ("runtime", "onnxruntime", "model", 2)
    assert "--graph runtime" in setup.picked
    assert not any(word.startswith("--threads") for word in setup.picked)


@pytest.mark.slow
def test_what_a_setup_leaves_open_is_picked_where_something_is_measured(branches: Path) -> None:
    with Store.open("sqlite://") as store:
        made = report(find_models([branches]), store=store, setup=Setup(cache="hot"), visits=3, prove=False)

    assert made.complete
    assert (made.setup.graph, made.setup.backend, made.setup.device, made.setup.threads) == (
        "runtime", "onnxruntime", "cpu", 1,
    )  # fmt: skip
    assert made.sections[0].estimate.place.cache == "hot"
    assert "--threads 1" in made.setup.picked
    assert not any(word.startswith("--cache") for word in made.setup.picked)


@pytest.mark.skipif(not get("openvino").probe().ok, reason="OpenVINO is not installed")
def test_what_a_runtime_fuses_is_picked_where_it_reports_no_more() -> None:
    assert set_up(backend="openvino").graph == "fused"
    assert set_up(backend="openvino", dtype="bfloat16").graph == "source"
    assert set_up(backend="openvino", graph="source").graph == "source"


def test_a_graph_that_the_runtime_does_not_report_is_not_picked() -> None:
    assert set_up(options={"execution": "parallel", "inter_op": "2"}).cache == "hot"
    with pytest.raises(UsageError, match="no backend 'nothing'"):
        set_up(backend="nothing")


@pytest.mark.parametrize(("budget_s", "work_s"), [(60.0, 57.5), (10.0, 9.5)])
def test_work_ends_early_enough_for_the_page(
    budget_s: float, work_s: float, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[float]()

    def measured(_: object, plan: MeasuringPlan, *__: object, **___: object) -> SimpleNamespace:
        given.append(plan.until - work_clock())
        return SimpleNamespace(estimates=[], interrupted=None, refused=None, generated=None, report=None)

    monkeypatch.setattr(import_module("dlbricks.analyzer.reporting"), "_measured", measured)
    with Store.open(here / "dlbricks.db") as store:
        report([], store=store, budget_s=budget_s)

    assert work_s - 2.0 < given[0] <= work_s
