"""What models miss, found in what ONNX Runtime executes; remedies that were really tried. No latency is asserted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.estimation.estimate import estimate
from dlbricks.analyzer.estimation.reading import read_evidence
from dlbricks.analyzer.findings import analyze as analysing
from dlbricks.analyzer.findings import proof as proving
from dlbricks.analyzer.findings.analysed_model import AnalysedModel
from dlbricks.analyzer.findings.analyze import ANALYSES, analyze, shown_once
from dlbricks.analyzer.findings.finding import Analysis, Finding, Remedy
from dlbricks.analyzer.findings.proof import LATE, Proving, Workbench, proof_of
from dlbricks.analyzer.setups import cut_of, evidence_here, set_up
from dlbricks.bricks.suite.suite import Suite
from dlbricks.constructor.choice import Choice, Query
from dlbricks.constructor.construction import construct
from dlbricks.db import Conditions, Store
from dlbricks.db.samples.statistics import MIN_SAMPLES
from dlbricks.generator.backends.registry import get
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decompose import decompose
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.lock import work_clock
from dlbricks.generator.machine.system import probe_system
from dlbricks.generator.measurement import trial
from dlbricks.generator.measurement.run import run
from dlbricks.generator.measurement.trial import Trial
from dlbricks.generator.progress import Stage
from dlbricks.models import ModelSource, find_models
from onnx import numpy_helper

SEEDED = (
    "(float[1,8,32,32] x, int64[4,6] i) => (float[1,8,32,32] y, float[4,6,64] z, float[4,6,64] e)"
    "<float k = {1.4142135}, float one = {1.0}, float half = {0.5}, double two = {2.0},"
    " int64 depth = {64}, float[2] values = {0, 1}>"
    "{n = LRN<size=5, alpha=0.1, beta=0.75, bias=1.0>(x)"
    " c = Cast<to=11>(n) d = Mul(c, two) f = Sin(d) g = Cast<to=1>(f)"
    " y = Relu(g)"
    " h = OneHot(i, depth, values) m = MatMul(h, w)"
    " a = Div(m, k) b = Erf(a) e = Add(b, one) p = Mul(m, e) q = Mul(p, half) z = Relu(q)}"
)
"""An LRN, a part in float64, a product with one-hot rows, and a GELU in whose midst a value is an output."""

CLEAN = (
    "(float[4,64] x) => (float[4,64] y)"
    "<float k = {1.4142135}, float one = {1.0}, float half = {0.5}>"
    "{m = MatMul(x, w) a = Div(m, k) b = Erf(a) e = Add(b, one) p = Mul(m, e) q = Mul(p, half)"
    " t1 = Transpose<perm=[1,0]>(q) t2 = Transpose<perm=[1,0]>(t1) u = Relu(t2) o = Relu(t2) y = Add(u, o)}"
)
"""A GELU that ONNX Runtime fuses, transpositions that it removes, and work done twice that it does once."""

MODELS = {"seeded": SEEDED, "clean": CLEAN}


def write(path: Path, graph: str) -> ModelSource:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> model {graph}')
    generator = np.random.default_rng(0)
    matrix, filters = (generator.normal(size=size).astype(np.float32) for size in ((64, 64), (16, 16, 3, 3)))
    values = {"w": matrix, "v": matrix, "q": filters, "p": filters, "stored": np.rint(10 * filters).astype(np.int8),
              "scale": np.float32(0.1), "one": np.ones(16, np.float32), "zero": np.zeros(16, np.float32)}  # fmt: skip
    odd = {"q31": (31, 16, 3, 3), "p31": (31, 31, 3, 3), "r31": (16, 31, 3, 3)}
    values |= {name: generator.normal(size=size).astype(np.float32) for name, size in odd.items()}
    made = {one.name for one in model.graph.initializer} | {name for node in model.graph.node for name in node.output}
    read = {name for node in model.graph.node for name in node.input} - made
    wanted = ((name, np.asarray(value)) for name, value in values.items() if name in read)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in wanted)
    onnx.save(model, path)
    (source,) = find_models([path])
    return source


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("findings")
    for name, graph in MODELS.items():
        write(made / f"{name}.onnx", graph)
    return made


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    """The models and what is executed of them, measured."""
    sources = find_models([folder / f"{name}.onnx" for name in MODELS])
    suite = generate(sources, granularity=1, graph="runtime", out=folder / "suite").suite
    assert isinstance(suite, Suite)
    with Store.open(str(folder / "test.db")) as opened:
        report = run(suite, store=opened, models=sources, visits=6, processes=1, sessions=1)
        assert not report.failures
        yield opened


@pytest.fixture(scope="module")
def subject_of(folder: Path, store: Store):
    """A model as analyses see it."""

    def made(name: str) -> AnalysedModel:
        sources = find_models([folder / f"{name}.onnx"])
        stack = get("onnxruntime").stack("cpu", {})
        cut = Cut(1).of("runtime", stack)
        (model,) = decompose(sources, cut)
        return AnalysedModel(construct(model, read_evidence(store, [model], Query(), cut)), store)

    return made


def named(name: str) -> Analysis:
    (analysis,) = [one for one in ANALYSES if one.name == name]
    return analysis


def test_a_slow_operator_is_shown_once() -> None:
    slow = replace(finding_with(Remedy("manual", "")), kind="slow_kernel", layers=("a", "b"))
    other = replace(slow, kind="transposes", layers=("a", "b", "c"))
    elsewhere = replace(slow, layers=("a", "d"))

    assert shown_once([slow, elsewhere, other]) == [elsewhere, other]
    assert shown_once([slow, elsewhere]) == [slow, elsewhere]


def test_findings_are_sorted_and_of_one_latency(folder: Path, store: Store) -> None:
    (row,) = analyze(find_models([folder / "seeded.onnx"]), store=store, minimum_share=1e-9).rows
    (none,) = analyze(find_models([folder / "seeded.onnx"]), store=store, minimum_share=2.0).rows

    assert not none.findings
    assert row.complete
    assert row.basis == "measured"
    assert row.cold_start is not None
    assert row.cold_start.runs > 0
    assert row.joint is None  # nothing was proven
    savings = [one.saving_ms for one in row.findings if not one.at_most]
    assert savings == sorted(savings, reverse=True)
    assert row.latency_ms is not None
    assert all(one.saving_ms == pytest.approx(one.share * row.latency_ms) for one in row.findings)
    assert all(one.ci95_ms is None or one.ci95_ms[0] > 0 for one in row.findings)
    assert [one["kind"] for one in row.record()["findings"]] == [one.kind for one in row.findings]


def test_what_is_not_measured_is_said_with_the_command(folder: Path) -> None:
    with Store.open("sqlite://") as empty:
        (row,) = analyze(find_models([folder / "seeded.onnx"]), store=empty).rows

    assert not row.findings
    assert not row.complete
    assert row.latency_ms is None
    assert any(task.graph == "runtime" for task in row.remedies)


# Proofs ---------------------------------------------------------------------------------------------------------------


def finding_with(remedy: Remedy) -> Finding:
    return Finding("planted", "planted", remedy, current_ms=1.0, achievable_ms=0.5, saving_ms=0.5, share=0.5)


def chosen_here() -> Choice:
    """What proofs are run with."""
    stack, system = get("onnxruntime").stack("cpu", {}), probe_system()
    return Choice(system.key, stack.key, system, stack, Conditions(1), 0)


def workbench_of(source: ModelSource, folder: Path, **more: Any) -> Workbench:
    folder.mkdir(exist_ok=True)
    return Workbench(source, chosen_here(), folder, Proving(visits=6, processes=1, **more))


@pytest.fixture
def workbench(folder: Path, store: Store, tmp_path: Path) -> Workbench:
    (source,) = find_models([folder / "seeded.onnx"])
    return workbench_of(source, tmp_path / "work")


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("model", "planted"),
    [
        ("seeded", finding_with(Remedy("threads", "", {"threads": "0"}))),
        ("seeded", finding_with(Remedy("session_option", "", {"denormal_as_zero": "on"}))),
        ("seeded", finding_with(Remedy("session_option", "", {"execution": "parallel", "inter_op": "2"}))),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value.remedy.settings.values()),
)
def test_a_remedy_is_tried_and_keeps_the_outputs(
    folder: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, planted: Finding
) -> None:
    monkeypatch.setattr(trial, "free_cores", lambda: 2)  # whatever else runs beside the tests
    (source,) = find_models([folder / f"{model}.onnx"])

    (tried,) = workbench_of(source, tmp_path).prove([planted])

    assert tried.proof is not None, tried.unproven
    assert tried.proof.largest_error < 1e-3
    assert tried.proof.before_ms > 0
    assert tried.proof.after_ms > 0
    low, high = tried.proof.ci95_ms
    assert low <= tried.proof.saving_ms <= high
    assert (tried.unproven is None) == (low > 0)


def test_when_the_time_is_up_no_analysis_begins_and_nothing_is_tried(folder: Path, store: Store) -> None:
    stages: list[Stage] = []

    (row,) = analyze(
        find_models([folder / "seeded.onnx"]),
        store=store,
        prove=True,
        until=work_clock(),
        progress=lambda step: stages.append(step.stage),
    ).rows

    assert set(row.unasked) >= {f"{one.name}: {LATE}" for one in ANALYSES}
    assert stages == [Stage.ANALYSE] * len(ANALYSES)
    assert not row.findings
    assert set(row.untried) == {*(one.name for one in ANALYSES), "rewrites"}


def test_of_a_remedy_that_was_not_loaded_in_time_nothing_is_said(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proving, "try_out", lambda pairs, **how: trial.try_out(pairs, **how | {"until": work_clock()}))

    (tried,) = workbench.prove([finding_with(Remedy("session_option", "", {"denormal_as_zero": "on"}))])

    assert (tried.proof, tried.unproven) == (None, LATE)


@pytest.mark.parametrize("far", [True, False])
def test_a_model_that_its_bricks_do_not_explain_has_the_trial_of_denormal_numbers_first(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, far: bool
) -> None:
    models = decompose(find_models([folder / "seeded.onnx"]), cut_of(set_up()))
    (entry,) = estimate(models, evidence_here(models, store, set_up()))
    ends = (0.009, 0.011) if far else (0.9, 1.1)
    entry = replace(entry, truth=replace(entry.truth, ratio=ends[0], ratio_ci95=ends))
    order: list[str] = []

    def prove(_bench: Workbench, findings: Sequence[Finding], **_how: Any) -> list[Finding]:
        order.extend(finding.kind for finding in findings)
        return [replace(finding, unproven=LATE) for finding in findings]

    monkeypatch.setattr(Workbench, "prove", prove)
    monkeypatch.setattr(analysing, "rewrite_findings", lambda *_, **__: (order.append("rewrites"), ([], [], True))[1])
    (row,) = analyze([entry], store=store, prove=True).rows

    assert (order.index("denormals") < order.index("rewrites")) == far
    assert {"denormals", "threads"} <= {*row.untried}
    assert f"denormals: {LATE}" in row.unasked


def test_an_analysis_that_breaks_costs_its_own_findings_alone(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysing, "ANALYSES", (Analysis("broken", run=_broken), *ANALYSES))

    (row,) = analyze(find_models([folder / "seeded.onnx"]), store=store, minimum_share=1e-9).rows

    assert row.error is None
    assert not row.complete
    assert [one for one in row.unasked if "broken could not be asked: ValueError" in one and "report this" in one]


def _broken(*_: object) -> NoReturn:
    """No analysis."""
    raise ValueError("no such shape")


def test_what_cannot_be_tried_says_why(workbench: Workbench) -> None:
    reasons = (
        (Remedy("manual", "do it"), ""),
        (Remedy("session_option", "", {"spinning": "sometimes"}), "could not be tried"),
    )
    remedies = [finding_with(remedy) for remedy, _ in reasons]
    for tried, (_, why) in zip(workbench.prove(remedies), reasons, strict=True):
        assert tried.proof is None
        assert tried.unproven is not None
        assert why in tried.unproven


def test_a_remedy_that_loses_in_too_few_visits_gets_its_second_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would count as one for which the time was up, and vanish from what was tried."""
    noise = np.random.default_rng(0).normal(1, 0.01, size=MIN_SAMPLES)
    asked: dict[str, Any] = {}

    def noted(pairs: Sequence[Any], **how: Any) -> list[Trial]:
        asked.update(how)
        return [Trial((10e6 * noise,), (20e6 * noise,), 0.0) for _ in pairs]

    monkeypatch.setattr(proving, "try_out", noted)
    workbench = workbench_of(write(tmp_path / "seeded.onnx", SEEDED), tmp_path / "work")
    workbench.attempt([Finding("planted", "planted", Remedy("threads", "", {"threads": "0"}))])
    few = noise[: MIN_SAMPLES - 1]

    assert asked["settled"](Trial((10e6 * noise,), (20e6 * noise,), 0.0))
    assert not asked["settled"](Trial((10e6 * few,), (20e6 * few,), 0.0))


def test_a_machine_that_drifts_does_not_hide_what_is_saved_and_what_is_alike_saves_nothing() -> None:
    rng = np.random.default_rng(0)
    drift = rng.uniform(1, 2, size=30)  # both meet the same machine
    noise = rng.normal(1, 0.01, size=30)

    proof = proof_of(Trial((10e6 * drift,), (9e6 * drift * noise,), 0.0))
    alike = proof_of(Trial((10e6 * rng.normal(1, 0.05, size=30),), (10e6 * rng.normal(1, 0.05, size=30),), 0.0))

    assert proof.before_ms - proof.after_ms == pytest.approx(proof.saving_ms)
    low, high = proof.ci95_ms
    assert low < 0.1 * proof.before_ms < high
    assert high - low < 0.03 * proof.before_ms
    assert alike.ci95_ms[0] < 0 < alike.ci95_ms[1]
