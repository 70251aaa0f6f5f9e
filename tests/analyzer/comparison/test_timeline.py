"""What a machine may have done between two measurements."""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections.abc import Iterator

import pytest
from dlbricks.analyzer.comparison.sides import Timeline, latency_ns, visited_in_turn
from dlbricks.constructor.uncertainty.calibration import scatter_of
from dlbricks.db import Conditions, Measurement, Run, Stack, Stop, Store, Subject, System
from dlbricks.db.values import Block, Identity, Visit
from lab import changed, summary_of

SYSTEM = System("Xeon Example", "x86_64", 2, 4, (("L2", 2097152),), 16)
STACK = Stack("onnxruntime", "cpu", (("onnxruntime", "1.31.0"),))
APART = math.sqrt(2) * scatter_of(STACK, 1, Subject.BRICK).run_sd


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("sqlite://") as opened:
        opened.put_system(SYSTEM)
        opened.put_stack(STACK)
        yield opened


@pytest.fixture
def run(store):
    """A measurement of 1 ms in a run of its own."""

    def begun(minute: int = 0, **changes: object) -> Measurement:
        id_ = str(uuid.uuid4())
        started = f"2026-11-21T10:{minute:02}:00+00:00"
        store.begin_run(Run(id_, started, "0", "run", None, SYSTEM.key, STACK.key))
        identity = Identity(Subject.BRICK, uuid.uuid4().hex, SYSTEM.key, STACK.key, Conditions(1))
        made = Measurement(str(uuid.uuid4()), id_, identity, 1, summary_of(1e6), Stop.VISITS)
        return changed(made, **changes)

    return begun


def test_what_one_run_measured_was_visited_in_turn(store, run) -> None:
    one = run(undisturbed_ns=0.8e6, quiet=0.5)

    assert Timeline(store).between(one, changed(one, mean_ns=2e6), ((), ()), in_turn=True) == (0.0, False)


QUIET = {"undisturbed_ns": 0.8e6, "quiet": 0.5}


@pytest.mark.parametrize(
    ("one", "other", "taken", "doubt"),
    [
        (QUIET, {"undisturbed_ns": 0.81e6, "quiet": 0.1, "mean_ns": 1.6e6}, (0.8e6, 0.81e6), ()),
        (QUIET, {"undisturbed_ns": 1e6, "quiet": 0.0, "mean_ns": 1.6e6}, (1e6, 1.6e6), (0.25 / 2, 0.6 / 2)),
        (QUIET, {"undisturbed_ns": 1e6, "quiet": None, "mean_ns": 1.6e6}, (1e6, 1.6e6), (0.25 / 2, 0.6 / 2)),
        ({}, {}, (1e6, 1e6), ()),  # not known to be disturbed
    ],
    ids=["both quiet", "one never quiet", "one not known", "neither known"],
)
def test_two_runs_are_compared_as_they_are_on_a_quiet_machine_or_in_more_doubt(
    store, run, one, other, taken, doubt
) -> None:
    sides = run(**one), run(5, **other)

    apart, undisturbed = Timeline(store).between(*sides, ((), ()), in_turn=False)

    assert tuple(latency_ns(side, undisturbed=undisturbed) for side in sides) == taken
    assert apart == pytest.approx(math.hypot(APART, *doubt))


@pytest.mark.parametrize("slower", [(1.04, 2.0), (1.2, 1.0), (1.0, 3.0)])
def test_what_was_never_quiet_counts_as_quiet_where_probes_say_that_the_machine_was_the_same(
    store, run, slower
) -> None:
    one, other = run(undisturbed_ns=0.8e6, quiet=0.5), run(5, undisturbed_ns=0.81e6, quiet=0.0, mean_ns=1.6e6)
    ours, theirs = (
        [Block(0, 0, ((10**6, 1),) * 9, 0, tuple(Visit(0, 20_000 * c, 30_000 * m) for _ in range(9)))]
        for c, m in ((1.0, 1.0), slower)
    )

    _, undisturbed = Timeline(store).between(one, other, (ours, theirs), in_turn=False)

    assert undisturbed is (slower == (1.04, 2.0))


def test_what_one_run_did_one_after_the_other_is_as_far_apart_as_runs_are(store, run) -> None:
    """The machine drifts within a run as well: nothing says that it stood still."""
    one = run(undisturbed_ns=1e6, quiet=0.5)
    later = dataclasses.replace(one, undisturbed_ns=1.03e6)
    timeline, apart = Timeline(store), ([block(0)], [block(100)])

    distance, _ = timeline.between(one, later, apart, in_turn=visited_in_turn(one, later, *apart))

    assert distance == pytest.approx(APART)
    assert timeline.apart(one, later, in_turn=False) == pytest.approx(APART)


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
        ([block(1), block(100, process=1)], False),
        ([Block(0, 0, ((1_000_000, 1),))], False),
        ([], False),
    ],
    ids=[
        "at once",
        "later",
        "in another process",
        "never at once",
        "at once for a while",
        "when is not known",
        "no samples",
    ],
)
def test_what_one_run_did_one_after_the_other_was_not_visited_in_turn(run, theirs, in_turn) -> None:
    one = run()

    assert visited_in_turn(one, one, [block(0)], theirs) is in_turn
    assert not visited_in_turn(one, run(5), [block(0)], theirs), "of two runs nothing is"


def test_what_runs_of_unknown_stacks_differ_by_is_a_guess_and_called_one(store, run) -> None:
    known, other = run(), run(stack="another")

    assert Timeline(store).known(known)
    assert not Timeline(store).known(known, other)
