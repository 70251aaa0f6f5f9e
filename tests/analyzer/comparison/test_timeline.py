"""What a machine may have done between two measurements."""

from __future__ import annotations

import dataclasses
import math
import uuid

import pytest
from dlbricks.analyzer.comparison.timeline import Timeline, visited_in_turn
from dlbricks.constructor.uncertainty.calibration import RUN_SD
from dlbricks.db import Measurement, Run
from dlbricks.db.values import Block, Visit

APART = math.hypot(RUN_SD, RUN_SD)


@pytest.fixture
def run(lab):
    """A measurement of 1 ms in a run of its own."""

    def store(minute: int = 0, **changes: object) -> Measurement:
        id_ = str(uuid.uuid4())
        started = f"2026-11-21T10:{minute:02}:00+00:00"
        lab.store.begin_run(Run(id_, started, "0", "run", None, lab.system.key, lab.stack.key))
        return lab.measurement(uuid.uuid4().hex, 1.0, **{"run": id_, **changes})

    return store


def test_what_one_run_measured_was_visited_in_turn(lab, run) -> None:
    one = run(undisturbed_ns=0.8e6, quiet=0.5)

    standing = Timeline(lab.store).between(one, dataclasses.replace(one, mean_ns=2e6), in_turn=True)

    assert (standing.base_ns, standing.other_ns, standing.apart) == (1e6, 2e6, 0.0)


def test_two_runs_are_compared_as_they_are_on_a_quiet_machine(lab, run) -> None:
    one, other = run(undisturbed_ns=0.8e6, quiet=0.5), run(5, undisturbed_ns=0.81e6, quiet=0.1, mean_ns=1.6e6)

    standing = Timeline(lab.store).between(one, other, in_turn=False)

    assert (standing.base_ns, standing.other_ns) == (0.8e6, 0.81e6)
    assert standing.apart == pytest.approx(APART)


@pytest.mark.parametrize("quiet", [0.0, None])
def test_a_run_that_was_never_quiet_is_compared_by_its_mean_and_in_more_doubt(lab, run, quiet) -> None:
    one, other = run(undisturbed_ns=0.8e6, quiet=0.5), run(5, undisturbed_ns=1e6, quiet=quiet, mean_ns=1.6e6)

    standing = Timeline(lab.store).between(one, other, in_turn=False)

    assert (standing.base_ns, standing.other_ns) == (1e6, 1.6e6)
    assert standing.apart == pytest.approx(math.hypot(APART, 0.25 / 2, 0.6 / 2))


def test_what_is_not_known_to_be_disturbed_is_as_far_apart_as_runs_are(lab, run) -> None:
    assert Timeline(lab.store).between(run(), run(5), in_turn=False).apart == pytest.approx(APART)


def test_it_knows_when_runs_began(lab, run) -> None:
    one, other = run(1), run(5)
    timeline = Timeline(lab.store)

    assert timeline.started(one) < timeline.started(other)


def block(begun_s: float, *, process: int = 0) -> Block:
    visits = tuple(Visit(round(1e6 * (begun_s + second)), 1, 1) for second in range(3))
    return Block(process, 0, ((1_000_000, 1),) * 3, 0, visits)


@pytest.mark.parametrize(
    ("theirs", "in_turn"),
    [
        ([block(1)], True),
        ([block(100)], False),
        ([block(1, process=1)], False),
        ([block(100), block(1, process=1)], False),
        ([Block(0, 0, ((1_000_000, 1),))], True),
        ([], True),
    ],
    ids=["at once", "later", "in another process", "never at once", "when is not known", "no samples"],
)
def test_what_one_run_did_one_after_the_other_was_not_visited_in_turn(run, theirs, in_turn) -> None:
    one = run()

    assert visited_in_turn(one, one, [block(0)], theirs) is in_turn
    assert not visited_in_turn(one, run(5), [block(0)], theirs), "of two runs nothing is"
