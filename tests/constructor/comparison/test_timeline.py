"""What references of a database tell of the machine between two measurements."""

from __future__ import annotations

import dataclasses
import math
import uuid

import pytest
from dlbricks.constructor.comparison.timeline import Drift, Timeline
from dlbricks.constructor.stored import built_in_key
from dlbricks.constructor.uncertainty.calibration import RUN_SD
from dlbricks.db import Measurement, Run, Stack, Subject, System
from dlbricks.generator.network.reference import REFERENCE

OTHER = Stack("openvino", "cpu", (("openvino", "2026.4"),))


@pytest.fixture
def run(lab):
    """Store a run of a stack with its reference; give a measurement that was taken in it."""
    lab.store.put_stack(OTHER)

    def store(minute: int, reference_us: float, stack: Stack = lab.stack, **changes: object) -> Measurement:
        id_ = str(uuid.uuid4())
        started = f"2026-11-21T10:{minute:02}:00+00:00"
        lab.store.begin_run(Run(id_, started, "0", "run", None, lab.system.key, stack.key))
        of_run = {"run": id_, "stack": stack.key, "reference_ns": reference_us * 1e3, **changes}
        lab.put([(built_in_key(REFERENCE), reference_us / 1e3)], subject=Subject.REFERENCE, **of_run)
        return lab.measurement(uuid.uuid4().hex, 1.0, **of_run)

    return store


def between(lab, base: Measurement, other: Measurement) -> Drift:
    return Timeline(lab.store).between(base, other)


def test_nothing_came_between_what_one_run_took(lab, run) -> None:
    one = run(0, 100)

    assert between(lab, one, dataclasses.replace(one, key="other", reference_ns=150e3)) == Drift()


def test_references_of_one_stack_are_compared(lab, run) -> None:
    drift = between(lab, run(0, 100), run(5, 102))

    assert drift.bias == pytest.approx(math.log(1.02))
    assert (drift.sd, drift.reason) == (0, None)


def test_a_machine_that_changed_allows_no_verdict(lab, run) -> None:
    drift = between(lab, run(0, 100), run(5, 110))

    assert drift.reason is not None
    assert "the machine changed by 10.0% between both" in drift.reason
    assert "100.0 us and 110.0 us" in drift.reason


def test_without_references_nothing_is_known_of_one_stack(lab, run) -> None:
    drift = between(lab, run(0, 100), dataclasses.replace(run(5, 100), reference_ns=None))

    assert drift.reason is not None
    assert "no reference network was timed" in drift.reason


def test_references_of_two_stacks_are_never_compared_with_each_other(lab, run) -> None:
    drift = between(lab, run(0, 100), run(5, 300, OTHER))

    assert (drift.bias, drift.reason) == (0, None)
    assert drift.sd == pytest.approx(math.sqrt(2) * RUN_SD)


def test_a_stack_that_was_measured_before_and_after_tells_of_the_time_between(lab, run) -> None:
    base, other, again = run(0, 100), run(5, 300, OTHER), run(9, 101)

    for one in (base, again):
        assert between(lab, one, other) == Drift(bias=pytest.approx(math.log(1.01)))


def test_it_tells_too_that_the_machine_changed(lab, run) -> None:
    base, other = run(0, 100), run(5, 300, OTHER)
    run(9, 120)

    reason = between(lab, base, other).reason

    assert reason is not None
    assert "changed by 20.0% while both were measured" in reason


def test_runs_that_end_before_the_other_side_tell_nothing(lab, run) -> None:
    base = run(0, 100)
    run(2, 100)

    assert between(lab, base, run(5, 300, OTHER)).sd > 0


def test_the_scatter_of_references_counts_beside_what_is_expected(lab, run) -> None:
    """A machine that is seen to jump by tens of percent leaves wider intervals."""
    base, third = run(0, 100), dataclasses.replace(OTHER, device="cuda")
    lab.store.put_stack(third)
    lone = run(9, 50, third)
    calm = between(lab, base, lone).sd
    for minute in range(1, 8):
        run(minute, 300 * (1.3 if minute % 2 else 1), OTHER)

    assert Timeline(lab.store).between(base, lone).sd > 2 * calm


def test_two_systems_are_always_apart(lab, run) -> None:
    system = System("Other CPU", "x86_64", 4, 8, (), 32)
    lab.store.put_system(system)
    base, other = run(0, 100), run(5, 100, system=system.key)

    assert between(lab, base, other).sd > 0


@pytest.mark.parametrize("conditions", [{"threads": 2}, {"cache": "cold"}, {"dtype": "bfloat16"}])
def test_references_under_other_conditions_are_not_those_of_one_place(lab, run, conditions) -> None:
    changed = dataclasses.replace(lab.conditions, **conditions)

    assert between(lab, run(0, 100), run(5, 140, conditions=changed)).reason is None
