"""What loading and the first run cost, as it is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dlbricks.analyzer.findings.cold_start import cold_start_in
from dlbricks.analyzer.findings.subject import Subject
from dlbricks.db import Conditions

SubjectOf = Callable[[Any], Subject]


def test_a_cold_start_is_stated_in_runs_of_the_steady_state(bench: Any, subject_of: SubjectOf) -> None:
    bench.run(ms=4.0, bricks=bench.bricks(0.5), start_ms=(100.0, 20.0))

    start = cold_start_in(subject_of(bench))

    assert start is not None
    assert (start.load_ms, start.first_run_ms) == (100.0, 20.0)
    assert start.latency_ms == pytest.approx(4.0, rel=0.01)
    assert start.runs == pytest.approx(30, rel=0.01)
    assert start.record()["runs"] == start.runs


@pytest.mark.parametrize("conditions", [Conditions(2, "hot"), Conditions(1, "cold"), None])
def test_what_was_not_timed_is_not_shown(bench: Any, subject_of: SubjectOf, conditions: Conditions | None) -> None:
    bench.run(bricks=bench.bricks(0.5))
    bench.run(ms=4.0, conditions=conditions or Conditions(1, "hot"), start_ms=conditions and (100.0, 20.0))

    assert cold_start_in(subject_of(bench)) is None
