"""What models miss, found in what ONNX Runtime executes; remedies that were really tried. No latency is asserted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.estimation.query import Query
from dlbricks.analyzer.estimation.reading import read_evidence
from dlbricks.analyzer.findings import proof as proving
from dlbricks.analyzer.findings.analyze import ANALYSES, analyze, shown_once
from dlbricks.analyzer.findings.finding import Analysis, Finding, Idea, Remedy
from dlbricks.analyzer.findings.proof import LATE, Proving, Workbench, proof_of
from dlbricks.analyzer.findings.subject import AnalysedModel
from dlbricks.bricks.suite.suite import Suite
from dlbricks.constructor.choice import Choice
from dlbricks.constructor.construction import construct
from dlbricks.db import Conditions, Store
from dlbricks.db.samples.statistics import MIN_SAMPLES
from dlbricks.errors import DlbricksError
from dlbricks.generator.backends.registry import get
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decompose import decompose
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.system import probe_system
from dlbricks.generator.measurement.run import run
from dlbricks.generator.measurement.trial import Trial, TrialPair, try_out
from dlbricks.generator.progress import Stage
from dlbricks.generator.rewriting.pattern import Match, ModelDraft, View
from dlbricks.generator.rewriting.rewrite import REWRITES, matches
from dlbricks.models import ModelSource, find_models
from dlbricks.models.control import CourseChoice as Course
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

LOOKUP = (
    "(int64[n,6] i) => (float[n,6,64] y) <int64 depth = {64}, float[2] values = {0, 1}>"
    "{h = OneHot(i, depth, values) m = MatMul(h, w) y = Relu(m)}"
)

BRANCHED = (
    "(int64[4,6] i, bool c) => (float[4,6,64] y) <int64 depth = {64}, float[2] values = {0, 1}>"
    "{h = OneHot(i, depth, values) m = MatMul(h, w)"
    " y = If(c) <then_branch = t () => (float[4,6,64] p) {p = Relu(m)},"
    " else_branch = e () => (float[4,6,64] q) {q = Abs(m)}>}"
)

TWICE = (
    "(float[32,64] x, float[32,1] r) => (float[32,64] y)"
    "<int64[2] s = {32, 64}>"
    "{a = MatMul(x, w) b = Relu(a) c = MatMul(x, v) d = Relu(c) e = Tanh(d) f = Add(b, e)"
    " g = Abs(r) h = Expand(g, s) i = Mul(f, h)"
    " j = Cast<to=11>(i) k = Cast<to=1>(j) y = Sigmoid(k)}"
)
"""A product that is computed twice, of equal weights under two names; an Expand for an operator that broadcasts; a
conversion there and back, which ONNX Runtime removes."""

ATTENDED = (
    "(float[2,32,64] x, float[2,1,1,32] m) => (float[2,32,64] y)"
    "<int64[4] s = {0, 0, 4, 16}, int64[3] o = {0, 0, 64}, float k = {4.0}>"
    "{xq = MatMul(x, w) xk = MatMul(x, v) xv = Sin(xk)"
    " rq = Reshape(xq, s) q = Transpose<perm=[0,2,1,3]>(rq) rk = Reshape(xk, s) t = Transpose<perm=[0,2,3,1]>(rk)"
    " rv = Reshape(xv, s) u = Transpose<perm=[0,2,1,3]>(rv) a = MatMul(q, t) d = Div(a, k) e = Add(d, m)"
    " p = Softmax<axis=-1>(e) c = MatMul(p, u) f = Transpose<perm=[0,2,1,3]>(c) h = Reshape(f, o) y = Tanh(h)}"
)
"""An attention of four heads."""

CLEAN = (
    "(float[4,64] x) => (float[4,64] y)"
    "<float k = {1.4142135}, float one = {1.0}, float half = {0.5}>"
    "{m = MatMul(x, w) a = Div(m, k) b = Erf(a) e = Add(b, one) p = Mul(m, e) q = Mul(p, half)"
    " t1 = Transpose<perm=[1,0]>(q) t2 = Transpose<perm=[1,0]>(t1) u = Relu(t2) o = Relu(t2) y = Add(u, o)}"
)
"""A GELU that ONNX Runtime fuses, transpositions that it removes, and work done twice that it does once."""

IMAGES = (
    "(float[1,16,32,32] x) => (float[1,16,32,32] y, float[1,16,32,32] c)"
    "{c = Conv<pads=[1,1,1,1]>(x, q) n = BatchNormalization(c, one, zero, zero, one) a = Relu(n)"
    " h = Cast<to=10>(a) b = Cast<to=1>(h)"
    ' e = Einsum<equation="abcd->acdb">(b) s = Sigmoid(e) t = Transpose<perm=[0,3,1,2]>(s)'
    " f = DequantizeLinear(stored, scale) d = Conv<pads=[1,1,1,1]>(t, f)"
    " m = BatchNormalization(d, one, zero, zero, one) g = Relu(m)"
    " i = Conv<pads=[1,1,1,1]>(g, q) j = Relu(i) k = Conv<pads=[1,1,1,1]>(g, p) l = Relu(k) o = Tanh(l) y = Add(j, o)}"
)
"""A convolution that is an output, so that its normalisation runs by itself; a rounding; axes that are moved there and
back; a filter that is computed; and a convolution that is there twice, each fused with what follows."""

PLAIN = (
    "(float[1,16,32,32] x) => (float[1,16,32,32] y)"
    "{c = Conv<pads=[1,1,1,1]>(x, q) n = BatchNormalization(c, one, zero, zero, one) a = Relu(n) s = Sigmoid(a)"
    " d = Conv<pads=[1,1,1,1]>(s, p) m = BatchNormalization(d, one, zero, zero, one) g = Relu(m)"
    " i = Conv<pads=[1,1,1,1]>(g, q) j = Relu(i) o = Tanh(j) y = Add(j, o)}"
)
"""The same without any of that."""

PRODUCT = (
    "(float[32,64] x) => (float[32,64] y) <float k = {0.70710677}, float one = {1.0}, float half = {0.5}>"
    "{m = MatMul(x, w) a = Mul(m, k) b = Erf(a) e = Add(b, one) p = Mul(m, e) q = Mul(p, half) y = Relu(q)}"
)
"""A GELU that ONNX Runtime does not know."""

NORMED = (
    "(float[32,64] x) => (float[32,64] y) <float k = {1e-5}>"
    "{m = MatMul(x, w) a = ReduceMean<axes=[-1]>(m) s = Mul(m, m) b = ReduceMean<axes=[-1]>(s) c = Mul(a, a)"
    " v = Sub(b, c) e = Add(v, k) r = Sqrt(e) d = Sub(m, a) y = Div(d, r)}"
)
"""A layer normalisation that ONNX Runtime does not know."""

SKIPPED = (
    (
        "(float[1,32,64] x) => (float[1,32,64] y) <float[64] g = {1}, float[64] s = {0}>"
        "{m = MatMul(x, w) a = Add(m, x) n = LayerNormalization<axis=-1>(a, g, s) y = Tanh(n)}"
    )
    .replace("{1}", "{" + ", ".join(["1.5"] * 64) + "}")
    .replace("{0}", "{" + ", ".join(["0.5"] * 64) + "}")
)
"""An addition that ONNX Runtime fuses with the layer normalisation behind it."""

UNEVEN = (
    "(float[1,16,32,32] x) => (float[1,16,32,32] y)"
    "{a = Conv<pads=[1,1,1,1]>(x, q31) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, p31) d = Relu(c)"
    " e = Conv<pads=[1,1,1,1]>(d, r31) y = Tanh(e)}"
)
"""Convolutions of 31 channels, which fill no blocks."""

MODELS = {
    "seeded": SEEDED, "twice": TWICE, "attended": ATTENDED, "clean": CLEAN, "images": IMAGES, "plain": PLAIN,
    "product": PRODUCT, "normed": NORMED, "skipped": SKIPPED, "uneven": UNEVEN,
}  # fmt: skip


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
    return tmp_path_factory.mktemp("findings")


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    """The models and what is executed of them, measured."""
    sources = [write(folder / f"{name}.onnx", graph) for name, graph in MODELS.items()]
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


@pytest.mark.parametrize(
    ("model", "name", "operators"),
    [
        ("seeded", "local_response", {"LRN"}),
        ("seeded", "float64", {"Cast", "Mul", "Sin"}),
        ("seeded", "one_hot", {"OneHot", "MatMul"}),
        ("product", "unfused_activation", {"Mul", "Erf", "Add"}),
        ("normed", "unfused_normalisation", {"Add", "Div", "Mul", "ReduceMean", "Sqrt", "Sub"}),
        ("twice", "duplicates", {"MatMul", "Relu"}),
        ("twice", "needless_expansions", {"Expand"}),
        ("attended", "unfused_attention", {"Add", "Div", "MatMul", "Reshape", "Softmax", "Transpose"}),
        ("images", "roundings", {"Cast"}),
        ("images", "transposes", {"Einsum", "Sigmoid", "Transpose"}),
        ("images", "duplicates", {"Conv"}),  # the activation is fused with it
        ("images", "unfolded_constants", {"DequantizeLinear"}),
    ],
)
def test_what_was_planted_is_found(subject_of, model: str, name: str, operators: set[str]) -> None:
    subject = subject_of(model)

    (found,) = named(name).run(subject)

    layers = {layer.name: layer.op_type for layer in subject.graph.layers}
    assert {layers[one] for one in found.layers} == operators
    assert found.current_ms > 0
    assert found.saving_ms == pytest.approx(found.current_ms - found.achievable_ms)
    assert subject.latency_ms is not None
    assert found.share == pytest.approx(found.saving_ms / subject.latency_ms)
    assert found.evidence
    assert found.remedy.action == "rewrite"
    keys = {node.row.key for node in subject.nodes if node.row is not None}
    assert found.keys
    assert set(found.keys) <= keys


def test_a_normalisation_that_is_not_folded_is_found_with_what_prevents_it(subject_of) -> None:
    subject = subject_of("images")

    (found,) = named("broken_fusion").run(subject)

    assert found.layers == ("BatchNormalization_1", "Relu_2")  # and not the second, whose filter is computed
    assert found.saving_ms > 0
    assert "output c" in found.evidence[0]


def test_a_filter_that_is_computed_costs_its_normalisation_too(subject_of) -> None:
    subject = subject_of("images")

    (found,) = named("unfolded_constants").run(subject)

    layer = next(one.index for one in subject.graph.layers if one.op_type == "DequantizeLinear")
    spent = subject.spent(subject.of([layer]))
    assert spent is not None
    assert found.current_ms > spent.ms


NOTHING = {
    "plain": (
        "broken_fusion", "roundings", "conversions", "transposes", "duplicates", "unfolded_constants", "one_hot",
    ),
    "clean": (
        "unfused_activation", "unfused_attention", "transposes", "duplicates", "conversions", "float64", "one_hot",
        "unfolded_constants",
    ),
    "twice": ("conversions",),  # which the runtime removes
    "seeded": ("unfused_activation",),  # a value in its midst is an output
    "skipped": ("slow_fusion",),  # with nothing to compare
}  # fmt: skip


@pytest.mark.parametrize("model", NOTHING)
def test_nothing_is_said_of_what_is_written_well_or_done_by_the_runtime(subject_of, model: str) -> None:
    subject = subject_of(model)

    assert not [name for name in NOTHING[model] if [*named(name).run(subject)]]
    assert model != "plain" or not [name for name in NOTHING[model] if [*named(name).ideas(subject)]]
    assert model != "twice" or matches("casts", subject.graph)


def test_channels_that_fill_no_blocks_are_padded_where_that_lays_out_convolutions(subject_of) -> None:
    (idea,) = named("padding").ideas(subject_of("uneven"))

    assert set(idea.layers) >= {"Conv_2", "Conv_4"}  # the first reads 16 channels
    assert "Conv_0" not in idea.layers
    assert idea.remedy.action == "rewrite"
    for found in named("padding").run(subject_of("uneven")):  # where it would save something
        assert set(found.layers) == set(idea.layers)
        assert found.remedy == idea.remedy
    assert not list(named("padding").ideas(subject_of("plain")))


def test_a_fusion_with_nothing_to_compare_is_tried(subject_of) -> None:
    subject = subject_of("skipped")

    (idea,) = named("slow_fusion").ideas(subject)

    assert idea.layers == ("Add_1", "LayerNormalization_2")
    assert idea.remedy.settings["rewrite"] == "sums"
    assert not list(named("slow_fusion").ideas(subject_of("normed")))


def test_a_slow_operator_is_shown_once() -> None:
    slow = replace(finding_with(Remedy("manual", "")), kind="slow_kernel", layers=("a", "b"))
    other = replace(slow, kind="transposes", layers=("a", "b", "c"))
    elsewhere = replace(slow, layers=("a", "d"))

    assert shown_once([slow, elsewhere, other]) == [elsewhere, other]
    assert shown_once([slow, elsewhere]) == [slow, elsewhere]


def test_why_a_fusion_is_not_made_is_said(subject_of) -> None:
    subject = subject_of("seeded")

    (found,) = named("broken_fusion").run(subject)

    assert any("output e" in line for line in found.evidence)
    assert found.remedy.action == "manual"
    assert found.saving_ms < found.current_ms


def test_findings_are_sorted_and_of_one_latency(folder: Path, store: Store) -> None:
    (row,) = analyze(find_models([folder / "seeded.onnx"]), store=store, minimum_share=1e-9).rows
    (none,) = analyze(find_models([folder / "seeded.onnx"]), store=store, minimum_share=2.0).rows

    assert not none.findings
    assert row.complete
    assert row.basis == "measured"
    assert row.cold_start is not None
    assert row.cold_start.runs > 0
    assert (row.joint is not None) == any(not one.at_most for one in row.findings)  # a busy machine may show none
    if row.joint is not None:
        assert row.record()["joint"]["findings"] == row.joint.findings
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
    return Finding("planted", "planted", (), 1.0, 0.5, 0.5, None, 0.5, (), (), remedy)


def chosen_here() -> Choice:
    """What proofs are run with."""
    stack, system = get("onnxruntime").stack("cpu", {}), probe_system()
    return Choice(system.key, stack.key, system, stack, Conditions(1), 0)


def rewrite(name: str) -> Finding:
    return finding_with(Remedy("rewrite", "", {"rewrite": name}))


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
        *(("seeded", rewrite(name)) for name in ("one_hot", "activations", "local_response", "islands")),
        ("attended", rewrite("attention")),
        ("seeded", finding_with(Remedy("threads", "", {"threads": "0"}))),
        ("seeded", finding_with(Remedy("session_option", "", {"denormal_as_zero": "on"}))),
        ("seeded", finding_with(Remedy("session_option", "", {"execution": "parallel", "inter_op": "2"}))),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value.remedy.settings.values()),
)
def test_a_remedy_is_tried_and_keeps_the_outputs(
    folder: Path, store: Store, tmp_path: Path, model: str, planted: Finding
) -> None:
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
        until=time.monotonic(),
        progress=lambda step: stages.append(step.stage),
    ).rows

    assert set(row.unasked) >= {f"{one.name}: {LATE}" for one in ANALYSES}
    assert stages == [Stage.ANALYSE] * len(ANALYSES)
    assert not row.findings


def test_a_model_with_a_dynamic_dimension_is_tried_as_it_was_bound(tmp_path: Path) -> None:
    write(tmp_path / "dynamic.onnx", LOOKUP)
    (source,) = find_models([tmp_path / "dynamic.onnx"], dims={"n": 3})

    (tried,) = workbench_of(source, tmp_path / "work").prove([rewrite("one_hot")])

    assert tried.proof is not None, tried.unproven
    assert tried.proof.largest_error == 0


@pytest.mark.parametrize(("branch", "operator"), [("then", "Equal"), ("else", "Xor")])
def test_a_remedy_is_tried_along_the_given_course(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, branch: str, operator: str
) -> None:
    write(tmp_path / "branched.onnx", BRANCHED)
    (source,) = find_models([tmp_path / "branched.onnx"], control=[Course("", branch)])
    sides: list[onnx.ModelProto] = []

    def noted(pairs: list[TrialPair], **settings: Any) -> list[Trial | DlbricksError]:
        sides.extend(onnx.load(one.runnable.path) for pair in pairs for one in (pair.before, pair.after))
        return try_out(pairs, **settings)

    monkeypatch.setattr(proving, "try_out", noted)
    (tried,) = workbench_of(source, tmp_path / "work").prove([rewrite("one_hot")])

    assert tried.proof is not None, tried.unproven
    assert tried.proof.largest_error == 0
    for side, one_hot in zip(sides, (True, False), strict=True):
        made = {name: node.op_type for node in side.graph.node for name in node.output}
        (decided,) = (node for node in side.graph.node if node.op_type == "If")
        assert made[decided.input[0]] == operator
        assert ("OneHot" in made.values()) == one_hot
    kept = onnx.load(tmp_path / "work/one_hot/model.onnx")  # what may be handed to the user
    assert operator not in {node.op_type for node in kept.graph.node}


def test_a_rewrite_that_changes_the_outputs_is_not_timed_and_one_that_breaks_costs_its_own_finding_alone(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for apply, why in (
        (_negated, "not timed"),
        (_broken, "it could not be tried: ValueError: no such shape; please report this"),
    ):
        monkeypatch.setitem(REWRITES, "one_hot", replace(REWRITES["one_hot"], apply=apply))

        (tried,) = workbench.prove([rewrite("one_hot")])

        assert tried.proof is None
        assert why in (tried.unproven or "")


def test_an_analysis_that_breaks_costs_its_own_findings_alone(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REWRITES, "one_hot", replace(REWRITES["one_hot"], find=_broken))

    (row,) = analyze(find_models([folder / "seeded.onnx"]), store=store, minimum_share=1e-9).rows

    assert row.error is None
    assert not row.complete
    assert [one for one in row.unasked if "one_hot could not be asked: ValueError" in one and "please report" in one]
    assert "one_hot" not in {one.kind for one in row.findings}


def _broken(*_: object) -> NoReturn:
    """No rewrite."""
    raise ValueError("no such shape")


def _negated(draft: ModelDraft, _view: View, match: Match) -> None:
    """Another product than the one that was there."""
    before = draft.maker(match.value)
    doubled = draft.node("MatMul", list(before.input))
    draft.redefine(match.value, [doubled, draft.node("Neg", [doubled.output[0]], match.value)])


def test_what_cannot_be_tried_says_why(workbench: Workbench) -> None:
    reasons = (
        (Remedy("manual", "do it"), ""),
        (Remedy("rewrite", "", {"rewrite": "casts"}), "nothing to change"),
        (Remedy("session_option", "", {"spinning": "sometimes"}), "could not be tried"),
    )
    remedies = [finding_with(remedy) for remedy, _ in reasons]
    for tried, (_, why) in zip(workbench.prove(remedies), reasons, strict=True):
        assert tried.proof is None
        assert tried.unproven is not None
        assert why in tried.unproven


@pytest.mark.parametrize(("least", "kept"), [(0.01, True), (0.3, False)])
def test_only_what_becomes_a_finding_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: float, kept: bool
) -> None:
    source = write(tmp_path / "seeded.onnx", SEEDED)
    noise = np.random.default_rng(0).normal(1, 0.01, size=30)
    chosen = Trial((10e6 * noise,), (8e6 * noise,), 0.0)  # the noise of this machine decides nothing here
    monkeypatch.setattr(proving, "try_out", lambda pairs, **_: [chosen for _ in pairs])
    written = tmp_path / "written"
    workbench = workbench_of(source, tmp_path / "work", write=written)

    idea = Idea("planted", "planted", Remedy("rewrite", "", {"rewrite": "one_hot"}))
    (tried,) = workbench.attempt([idea], least=least)

    assert tried.proof is not None
    assert (tried.unproven is None) == kept
    assert (tried.proof.artefact is not None) == kept
    assert written.exists() == kept


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
    workbench.attempt([Idea("planted", "planted", Remedy("rewrite", "", {"rewrite": "one_hot"}))])
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
