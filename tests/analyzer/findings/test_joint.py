"""What findings give together."""

from __future__ import annotations

import pytest
from dlbricks.analyzer.findings.analyze import AnalyzeReport, ModelFindings
from dlbricks.analyzer.findings.cold_start import ColdStart
from dlbricks.analyzer.findings.finding import Finding, Proof, Remedy
from dlbricks.analyzer.findings.joint import joint_of
from dlbricks.analyzer.report.answers.findings import analyze_answer

LATENCY_MS = 100.0


def saves(ms: float, *layers: str, proof: Proof | None = None, at_most: bool = False) -> Finding:
    return Finding(
        "planted", "planted", layers, ms, 0.0, ms, (ms - 1, ms + 2), ms / LATENCY_MS, (), (), Remedy("manual", ""),
        proof=proof, at_most=at_most,
    )  # fmt: skip


def test_findings_of_different_layers_add_up() -> None:
    joint = joint_of([saves(10, "a"), saves(5, "b", "c")], LATENCY_MS)

    assert joint is not None
    assert joint.saving_ms == pytest.approx(15)
    assert joint.ci95_ms == pytest.approx((13, 19))
    assert joint.share == pytest.approx(0.15)
    assert joint.findings == (0, 1)


def test_of_findings_of_one_layer_the_larger_counts() -> None:
    joint = joint_of([saves(10, "a", "b"), saves(7, "b"), saves(3, "c")], LATENCY_MS)

    assert joint is not None
    assert joint.findings == (0, 2)


def test_several_that_are_more_than_the_one_that_they_overlap_count() -> None:
    joint = joint_of([saves(10, "a", "b"), saves(7, "a"), saves(6, "b")], LATENCY_MS)

    assert joint is not None
    assert joint.saving_ms == pytest.approx(13)


def test_another_way_to_run_the_model_excludes_all_else() -> None:
    joint = joint_of([saves(40), saves(30, "a"), saves(5, "b"), saves(20)], LATENCY_MS)

    assert joint is not None
    assert joint.findings == (0,)


def test_what_was_proven_stands_in_for_what_was_predicted() -> None:
    proof = Proof(before_ms=200.0, after_ms=190.0, saving_ms=10.0, ci95_ms=(8.0, 12.0), largest_error=0.0)

    joint = joint_of([saves(10, "a", proof=proof)], LATENCY_MS)

    assert joint is not None
    assert joint.saving_ms == pytest.approx(5)  # of a machine that was twice as slow when it was tried
    assert joint.ci95_ms == pytest.approx((4, 6))


def test_what_could_be_saved_at_most_is_none_of_it() -> None:
    joint = joint_of([saves(60, "a", at_most=True), saves(10, "a")], LATENCY_MS)

    assert joint is not None
    assert joint.findings == (1,)


@pytest.mark.parametrize(("findings", "latency_ms"), [([], LATENCY_MS), ([saves(1, "a")], None)])
def test_without_findings_or_a_latency_there_is_none(findings: list[Finding], latency_ms: float | None) -> None:
    assert joint_of(findings, latency_ms) is None


def test_the_answer_states_what_findings_give_together() -> None:
    start = ColdStart(load_ms=300.0, first_run_ms=100.0, latency_ms=LATENCY_MS)
    found = (saves(10, "a"), saves(5, "b"), saves(50, "c", at_most=True))
    row = ModelFindings("model", LATENCY_MS, basis="measured", threads=1, findings=found, cold_start=start)

    lines = "\n".join(analyze_answer(AnalyzeReport((row,))).summary)

    assert "together, no layer counted twice: 15.000 ms (13.000 to 19.000), 15%: planted, planted" in lines
    assert "as long as 4 runs" in lines
    assert lines.count("the most that there could be") == 1
    assert row.largest_share == pytest.approx(0.1)
    assert row.record()["joint"]["saving_ms"] == pytest.approx(15)
