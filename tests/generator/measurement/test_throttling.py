"""Sessions in which a device held its clocks back. The CPU stands in for a GPU, and reports what one would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest
from dlbricks.analyzer.report.answers.runs import measure_answer, run_answer
from dlbricks.db.values import Subject
from dlbricks.generator.measurement import scheduler
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run

PROTOCOL = {"cache": "hot", "visits": 12, "processes": 2, "sessions": 2}
COUNTED = {"power_held_ns": 10**18, "thermal_held_ns": 0}

Throttled = Callable[..., list[str]]


@pytest.fixture
def throttled(monkeypatch) -> Throttled:
    """Says in which sessions, as they follow each other, clocks were held back, and by what it shows."""

    def sessions(held: str, sign: str = "reason") -> list[str]:
        asked: list[str] = []
        signs = {"reason": {"held_back": ["idle", "power cap"]}, "time": {"held_back": [], **COUNTED}}

        def state_of(device: str) -> dict[str, object]:
            asked.append(device)
            session, is_end = divmod(len(asked) - 2, 2)  # the first is asked whether it reports anything
            shown = len(asked) > 1 and is_end and held[session : session + 1] == "x"
            return signs[sign] if shown else {"held_back": ["idle"], **dict.fromkeys(COUNTED, 0)}

        monkeypatch.setattr(scheduler, "state_of", state_of)
        return asked

    return sessions


def blocks(store) -> set[tuple[tuple[int, int, int], ...]]:
    """Process, round and samples of the blocks of all that was measured."""
    return {
        tuple((block.process, block.round, len(block.samples)) for block in store.blocks(one.id))
        for one in store.measurements(variant=None)
    }


USUAL = {((0, 0, 3), (0, 1, 3), (1, 0, 3), (1, 1, 3))}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("cache", ["hot", "model"])
@pytest.mark.parametrize("sign", ["reason", "time"])
def test_a_session_that_was_throttled_is_taken_again(small_suite, small_models, store, throttled, cache, sign):
    throttled("-x-x-", sign)

    report = run(small_suite, store=store, models=small_models, **{**PROTOCOL, "cache": cache})

    assert (report.measured, report.models, report.complete) == (10, 1, True)
    assert blocks(store) == USUAL
    assert (report.costs.again, report.costs.throttled) == (2, 0)
    (stored,) = store.runs()
    assert (stored.after["sessions_again"], stored.after["sessions_throttled"]) == (2, 0)


def test_a_device_that_stays_throttled_costs_two_sessions_and_what_it_took_is_kept(small_suite, store, throttled):
    throttled("x" * 99)

    report = run(small_suite, store=store, **PROTOCOL)

    assert (report.measured, report.complete) == (10, True)
    assert blocks(store) == USUAL
    assert (report.costs.again, report.costs.throttled) == (2, 4)
    answer = run_answer(report)
    assert "throttled: power or temperature held clocks back; 2 sessions taken again, 4 sessions kept all the same" in (
        answer.summary
    )
    assert answer.totals["costs"] == asdict(report.costs)


def test_a_whole_model_is_measured_again_and_it_is_said(small_models, store, throttled):
    throttled("x")

    report = measure(small_models, store=store, visits=10, processes=1, sessions=1)

    (row,) = report.rows
    assert row.error is None
    (kept,) = store.measurements(subject=Subject.MODEL)
    assert kept.summary.samples == 10
    assert any("1 session taken again, 0 sessions kept" in line for line in measure_answer(report).summary)
    assert any(
        "is for the mean of this run; means of other runs" in str(line) for line in measure_answer(report).summary
    )


@pytest.mark.slow
def test_what_runs_alone_ends_as_well(small_suite, store, throttled, faulty):
    """A brick that ruins the worker for others is measured by itself, and once at least in a throttled session."""
    faulty({"Sqrt": "run:later"})
    throttled("x" * 99)

    report = run(small_suite, store=store, backend="faulty", **{**PROTOCOL, "processes": 1})

    assert (report.measured + report.failed, report.remaining) == (10, 0)
    assert report.failed <= 1
    assert any(process for found in blocks(store) for process, _, _ in found)  # of a worker that another one followed
    assert report.costs.again == 2
    assert report.costs.throttled >= 2


def test_on_the_cpu_nothing_is_asked_and_nothing_recorded(small_suite, store, monkeypatch):
    asked, state_of = [], scheduler.state_of
    monkeypatch.setattr(scheduler, "state_of", lambda device: asked.append(device) or state_of(device))

    report = run(small_suite, store=store, cache="hot", visits=10, processes=1, sessions=2)

    assert asked == ["cpu"]  # whether it reports anything
    (stored,) = store.runs()
    assert not [name for name in stored.after if name.startswith("sessions_")]
    assert not any("throttled" in line for line in run_answer(report).summary)


def test_after_one_that_was_not_throttled_sessions_are_taken_again_as_before(small_suite, store, throttled):
    throttled("xxx-xxx-")  # the third and the seventh are kept

    report = run(small_suite, store=store, **PROTOCOL)

    assert blocks(store) == USUAL
    assert (report.costs.again, report.costs.throttled) == (4, 2)


def test_with_little_time_what_was_taken_is_kept(small_suite, store, throttled):
    throttled("x" * 99)

    report = run(small_suite, store=store, budget_s=20.0, **{**PROTOCOL, "processes": 1})

    assert (report.measured, report.remaining) == (10, 0)
    assert report.costs.again <= 2
    assert report.costs.throttled > 0
