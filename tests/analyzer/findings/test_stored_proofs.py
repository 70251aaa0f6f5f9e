"""What trials showed stays in the database: for the model's file, beside what is predicted anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from dlbricks.analyzer.findings.analyze import analyze
from dlbricks.analyzer.findings.finding import ALL_REMEDIES, LATE, LONGER, MANUAL, UNABLE, Finding, Proof, Remedy
from dlbricks.analyzer.findings.stored_proofs import (
    OTHERS,
    Tried,
    store_improvement,
    store_proofs,
    stored_proofs,
    was_tried,
)
from dlbricks.constructor.choice import Choice
from dlbricks.models import find_models

from ..conftest import HOT, PLAIN, SYSTEM

HERE = Choice(SYSTEM.key, PLAIN.key, SYSTEM, PLAIN, HOT, 0)


def proven(kind: str, share: float, *, joint: float | None = None, latency_ms: float = 10.0, **more: object) -> Finding:
    """A finding that a trial proved, of a model that took so long."""
    saving = share * latency_ms
    whole = None if joint is None else (joint, joint - 0.01, joint + 0.01)
    proof = Proof(5.0, 5.0 * (1 - share), 5.0 * share, (4.9 * share, 5.1 * share), 0.0, "/home/ann/a.onnx", whole)
    action = "threads" if joint is None else "improve"
    numbers = {"current_ms": latency_ms, "achievable_ms": latency_ms - saving, "saving_ms": saving, "share": share}
    made = Finding(kind, kind, Remedy(action, ""), ci95_ms=(0.9 * saving, 1.1 * saving), proof=proof, **numbers)
    return replace(made, **more)


NOISE = proven("branches", 0.02, unproven="tried: saves nothing that can be distinguished from noise")


@pytest.fixture
def analysed(bench):
    """Measure the model of the bench, and return what an analysis without proofs says of a file."""
    bench.run(ms=10.0)

    def of(source=None, **more):
        stored = {"system": SYSTEM.key, "stack": PLAIN.key, "threads": 1}
        return analyze([source or bench.source], store=bench.store, **stored, **more).rows[0]

    return of


def test_what_was_tried_is_shown_without_trying_again(bench, analysed):
    assert analysed().untried == ALL_REMEDIES
    tried = Tried((proven("threads", 0.3), proven("denormals", 0.001), NOISE), ("rewrites",))
    store_proofs(bench.store, bench.source, bench.key, HERE, tried)

    row = analysed()

    assert [finding.kind for finding in row.findings] == ["threads"]
    assert {finding.kind for finding in row.tried} == {"denormals", "branches"}
    assert row.untried == ("rewrites",)
    assert row.findings[0].proof == replace(proven("threads", 0.3).proof, artefact=None)  # a path stays where it is
    assert row.findings[0].proven_share == pytest.approx(0.3)


def test_savings_are_of_the_present_latency(bench, analysed):
    store_proofs(bench.store, bench.source, bench.key, HERE, Tried((proven("threads", 0.3, latency_ms=20.0),)))

    (found,) = analysed().findings

    assert found.saving_ms == pytest.approx(3.0, rel=0.01)
    assert found.current_ms == pytest.approx(10.0, rel=0.01)
    assert found.proven_ms == pytest.approx(3.0, rel=0.01)


def test_proofs_hold_for_the_file_that_was_tried(bench, analysed, tmp_path: Path):
    store_proofs(bench.store, bench.source, bench.key, HERE, Tried((proven("threads", 0.3),)))
    model = onnx.load(bench.source.path)
    model.doc_string = "other bytes, and so perhaps other weights"
    onnx.save(model, tmp_path / "other.onnx")
    (other,) = find_models([tmp_path / "other.onnx"])

    assert analysed().findings
    assert not analysed(other).findings
    assert analysed(other).untried == ALL_REMEDIES


@pytest.mark.parametrize(
    ("unproven", "tried"),
    [
        ("it changes an output by 0.1 of its largest value", True),
        (f"{UNABLE}no core is free", False),
        (LATE, False),
        (MANUAL, False),
    ],
)
def test_what_could_not_be_tried_may_be_tried_another_time(unproven, tried):
    assert was_tried(Finding("threads", "threads", Remedy("threads", ""), unproven=unproven)) == tried


def test_an_idea_without_numbers_comes_back(bench, analysed):
    changed = Finding("threads", "threads", Remedy("threads", ""), unproven="it changes an output")
    store_proofs(bench.store, bench.source, bench.key, HERE, Tried((changed,)))

    row = analysed()

    assert not row.findings
    assert [finding.unproven for finding in row.tried] == [changed.unproven]


def test_what_improve_proves_replaces_what_saves_less_and_nothing_else(bench, analysed):
    def stored() -> Tried:
        found = stored_proofs(bench.store, bench.source, bench.key, HERE)
        assert found is not None
        return found

    analysed()
    better, worse = proven("factor", 0.2, joint=0.2), proven("gather", 0.1, joint=0.1)
    store_improvement(bench.store, bench.source, bench.key, HERE, [worse])
    assert stored().untried == OTHERS
    store_proofs(bench.store, bench.source, bench.key, HERE, Tried((worse, NOISE), ("rewrites", "roofline")))
    store_improvement(bench.store, bench.source, bench.key, HERE, [better])
    assert [finding.kind for finding in stored().findings] == ["factor", "branches"]
    assert stored().untried == ("roofline",)
    store_improvement(bench.store, bench.source, bench.key, HERE, [worse])
    assert [finding.kind for finding in stored().findings] == ["factor", "branches"]


def test_a_search_for_rewrites_without_enough_time_can_be_continued(bench, analysed):
    analysed()
    store_improvement(bench.store, bench.source, bench.key, HERE, [], complete=False)

    assert analysed().untried == (*OTHERS, LONGER)


def test_without_time_what_is_proven_is_shown(bench, analysed):
    store_proofs(bench.store, bench.source, bench.key, HERE, Tried((proven("threads", 0.3),)))

    row = analysed(until=0.0)

    assert [finding.kind for finding in row.findings] == ["threads"]
    assert any(reason.endswith(LATE) for reason in row.unasked)


@pytest.mark.parametrize(
    ("remedy", "code"),
    [
        (Remedy("session_option", "", {"arena": "off"}, "options.enable_cpu_mem_arena = False"), True),
        (Remedy("session_option", "", {"arena": "off"}, "import os; os.remove('model.onnx')"), False),
        (Remedy("improve", "", {}, "dlbricks improve /home/ann/model.onnx -o improved.onnx"), False),
    ],
)
def test_code_to_paste_is_never_that_of_a_database(bench, analysed, remedy, code):
    store_proofs(bench.store, bench.source, bench.key, HERE, Tried((proven("options", 0.3, remedy=remedy),)))

    (found,) = analysed().findings

    assert (found.remedy.code == remedy.code) == code
    assert remedy.action != "improve" or str(bench.source.path) in found.remedy.code
