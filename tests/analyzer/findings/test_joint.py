"""What findings give together."""

from __future__ import annotations

import pytest
from dlbricks.analyzer.findings.analyze import AnalyzeReport, ColdStart, ModelFindings
from dlbricks.analyzer.findings.finding import Finding, Proof, Remedy, joint_of
from dlbricks.analyzer.report.answers.findings import analyze_answer
from flat import flat_estimate

LATENCY_MS = 100.0


def saves(ms: float, *layers: str, proof: Proof | None = None, at_most: bool = False) -> Finding:
    return Finding(
        "planted", "planted", layers, ms, 0.0, ms, (ms - 1, ms + 2), ms / LATENCY_MS, (), (), Remedy("manual", ""),
        proof=proof, at_most=at_most,
    )  # fmt: skip


PROOF = Proof(before_ms=200.0, after_ms=190.0, saving_ms=10.0, ci95_ms=(8.0, 12.0), largest_error=0.0)


@pytest.mark.parametrize(
    ("findings", "counted", "saving_ms", "ci95_ms"),
    [
        ([saves(10, "a"), saves(5, "b", "c")], (0, 1), 15, (13, 19)),  # of different layers they add up
        ([saves(10, "a", "b"), saves(7, "b"), saves(3, "c")], (0, 2), 13, (11, 17)),  # of one layer the larger
        ([saves(10, "a", "b"), saves(7, "a"), saves(6, "b")], (1, 2), 13, (11, 17)),  # several that are more
        ([saves(40), saves(30, "a"), saves(5, "b"), saves(20)], (0,), 40, (39, 42)),  # another way to run all
        ([saves(10, "a", proof=PROOF)], (0,), 5, (4, 6)),  # the machine was twice as slow when it was tried
        ([saves(60, "a", at_most=True), saves(10, "a")], (1,), 10, (9, 12)),  # at most is none of it
    ],
)
def test_what_findings_give_together(findings, counted, saving_ms, ci95_ms) -> None:
    joint = joint_of(findings, LATENCY_MS)

    assert joint is not None
    assert joint.findings == counted
    assert joint.saving_ms == pytest.approx(saving_ms)
    assert joint.ci95_ms == pytest.approx(ci95_ms)
    assert joint.share == pytest.approx(saving_ms / LATENCY_MS)


def test_without_findings_or_a_latency_there_is_none() -> None:
    assert joint_of([], LATENCY_MS) is joint_of([saves(1, "a")], None) is None


def test_the_answer_states_what_findings_give_together() -> None:
    start = ColdStart(load_ms=300.0, first_run_ms=100.0, latency_ms=LATENCY_MS)
    found = (saves(10, "a"), saves(5, "b"), saves(50, "c", at_most=True))
    row = ModelFindings(flat_estimate("model", measured_ms=LATENCY_MS, threads=1), findings=found, cold_start=start)

    lines = "\n".join(analyze_answer(AnalyzeReport((row,))).summary)

    assert "together, no layer counted twice: 15.000 ms (13.000 to 19.000), 15%: planted, planted" in lines
    assert "as long as 4 runs" in lines
    assert lines.count("the most that there could be") == 1
    assert row.largest_share == pytest.approx(0.1)
    assert row.record()["joint"]["saving_ms"] == pytest.approx(15)
