"""Analyses that hold a model against other stored measurements: chosen latencies, really stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from dlbricks.analyzer.findings.analyses.measured import batch
from dlbricks.analyzer.findings.subject import Subject
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.db import Conditions
from dlbricks.models import find_models

SubjectOf = Callable[..., Subject]


def measured_in(bench: Any, latencies: Mapping[int, float], **settings: Any) -> None:
    """Store the bench's model in several batches; the bricks of its own."""
    for size, latency in latencies.items():
        (source,) = find_models([bench.source.path], batches=[size])
        key = build_graph(source.skeleton()).key
        bench.run(ms=latency, key=key, bricks=bench.bricks(1.0) if size == 1 else None, **settings)


def test_the_first_batch_is_found_whose_doubling_gains_little(bench: Any, subject_of: SubjectOf) -> None:
    measured_in(bench, {1: 10.0, 2: 12.0, 4: 16.0, 8: 31.5, 16: 40.0})

    found = next(iter(batch.ANALYSIS.run(subject_of(bench))))

    assert found.remedy.settings == {"batch": "4"}
    assert found.share == pytest.approx(1 - 16 / 4 / 10, rel=0.02)
    assert found.ci95_ms is not None
    assert found.ci95_ms[0] < found.saving_ms < found.ci95_ms[1]
    assert found.saving_ms == pytest.approx(found.current_ms - found.achievable_ms)
    assert any("twice as many at once gain 2%" in line for line in found.evidence)


def test_where_every_doubling_gains_the_largest_is_named_as_such(bench: Any, subject_of: SubjectOf) -> None:
    measured_in(bench, {1: 10.0, 2: 12.0})

    found = next(iter(batch.ANALYSIS.run(subject_of(bench))))

    assert found.remedy.settings == {"batch": "2"}
    assert "batches of 4 are not measured" in found.evidence


@pytest.mark.parametrize("latencies", [{1: 10.0}, {1: 10.0, 2: 19.5, 4: 20.0}, {1: 10.0, 4: 11.0}])
def test_a_batch_that_suits_the_machine_is_none(
    bench: Any, subject_of: SubjectOf, latencies: Mapping[int, float]
) -> None:
    measured_in(bench, latencies)

    assert not list(batch.ANALYSIS.run(subject_of(bench)))


def test_other_threads_are_no_other_batch(bench: Any, subject_of: SubjectOf) -> None:
    measured_in(bench, {1: 10.0})
    measured_in(bench, {2: 11.0}, conditions=Conditions(4, "hot"))

    assert not list(batch.ANALYSIS.run(subject_of(bench)))
