"""What findings give together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dlbricks.analyzer.findings.analyze import AnalyzeReport, ColdStart, ModelFindings
from dlbricks.analyzer.findings.finding import Finding, Proof, Remedy, joint_of, with_tried_interval
from dlbricks.analyzer.report.answers.findings import analyze_answer
from flat import flat_estimate

LATENCY_MS = 100.0


def saves(ms: float, *layers: str, proof: Proof | None = None, at_most: bool = False) -> Finding:
    return Finding(
        "planted", "planted", Remedy("manual", ""), layers=layers, current_ms=ms, achievable_ms=0.0, saving_ms=ms,
        ci95_ms=(ms - 1, ms + 2), share=ms / LATENCY_MS, proof=proof, at_most=at_most,
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "at_most", "kept"), [("options", False, True), ("slow_kernel", False, False),
                                                       ("slow_kernel", True, True)])  # fmt: skip
def test_only_predictions_of_tried_kinds_and_bounds_have_an_interval(kind, at_most, kept) -> None:
    predicted = replace(saves(20, "a", at_most=at_most), kind=kind)

    found = with_tried_interval(predicted)

    assert found.ci95_ms == (predicted.ci95_ms if kept else None)
    assert found.saving_ms == predicted.saving_ms


PROOF = Proof(before_ms=200.0, after_ms=190.0, saving_ms=10.0, ci95_ms=(8.0, 12.0), largest_error=0.0)
REWRITE = replace(PROOF, together=(0.2, 0.18, 0.22))


@pytest.mark.parametrize(
    ("findings", "counted", "saving_ms", "ci95_ms"),
    [
        ([saves(10, "a", proof=PROOF)], (0,), 5, (4, 6)),  # the machine was twice as slow when it was tried
        ([saves(9, "a", proof=PROOF), saves(60, "b")], (0,), 5, (4, 6)),  # what is predicted does not count
        ([saves(1), saves(10, "a", proof=REWRITE), saves(7, "a", proof=REWRITE)], (1, 2), 20, (18, 22)),
        ([saves(10, "a", proof=REWRITE), saves(30, proof=replace(PROOF, saving_ms=60.0))], (1,), 30, (4, 6)),
    ],
)
def test_what_proven_findings_give_together(findings, counted, saving_ms, ci95_ms) -> None:
    joint = joint_of(findings, LATENCY_MS)

    assert joint is not None
    assert joint.findings == counted
    assert joint.saving_ms == pytest.approx(saving_ms)
    assert joint.ci95_ms == pytest.approx(ci95_ms)
    assert joint.share == pytest.approx(saving_ms / LATENCY_MS)


def test_without_findings_or_a_latency_there_is_none() -> None:
    assert joint_of([], LATENCY_MS) is joint_of([saves(1, "a", proof=PROOF)], None) is None
    assert joint_of([saves(1, "a")], LATENCY_MS) is None


def test_the_answer_states_what_findings_give_together() -> None:
    start = ColdStart(load_ms=300.0, first_run_ms=100.0, latency_ms=LATENCY_MS)
    found = (saves(10, "a", proof=REWRITE), saves(5, "b", proof=REWRITE), saves(50, "c", at_most=True))
    row = ModelFindings(flat_estimate("model", measured_ms=LATENCY_MS, threads=1), findings=found, cold_start=start)

    lines = "\n".join(analyze_answer(AnalyzeReport((row,))).summary)

    assert lines.startswith("model: all proven rewrites together save 20.0 ms (18.0 to 22.0), 20%: planted, planted")
    assert "4.0 inferences" in lines
    assert lines.count("the most that there could be") == 1
    assert row.largest_share == pytest.approx(0.05)
    assert row.record()["joint"]["saving_ms"] == pytest.approx(20)
