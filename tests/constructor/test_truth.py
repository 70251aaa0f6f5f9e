"""An estimate beside the ground truth: always a ratio where both are measured, and what disturbed them."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from dlbricks import estimate
from dlbricks.db import Run, Subject
from dlbricks.db.values import PROTOCOL

MS = (1.0, 2.0, 4.0, 8.0, 16.0)  # Relu, Sigmoid, Tanh, Exp, Add
STILL = np.ones((4, 6))
BUSY = np.where(np.arange(24).reshape(4, 6) // 3 % 2, 1.8, 1.0)


@pytest.fixture
def beside(lab, fork, keys_of, graph_of):
    """Put bricks of the fork and, unless asked otherwise, itself beside them; estimate it."""

    def put(machine=STILL, *, model_ms: float | None = 31.0, **changes):
        latencies = dict(zip(keys_of(fork), MS, strict=True))
        truth = graph_of(fork).key
        if model_ms is not None:
            latencies[truth] = model_ms
        lab.put_in_turn(latencies, machine, model=truth, **changes)
        (answer,) = estimate([fork], store=lab.store)
        return answer

    return put


@pytest.fixture
def later(lab):
    """Another run; its UUID."""
    id_ = str(uuid.uuid4())
    lab.store.begin_run(Run(id_, "2026-11-25T00:00:00Z", "0", "measure", None, lab.system.key, lab.stack.key))
    return id_


def test_a_quiet_machine(beside):
    answer = beside()

    assert answer.ratio == pytest.approx(1)
    assert answer.ratio_ci95 == pytest.approx((1, 1)), "hot bricks are not calibrated, and nothing scatters"
    assert (answer.paired, answer.disturbed, answer.ratio_reason) == (True, False, None)
    assert answer.disturbance == pytest.approx(0)
    assert answer.undisturbed_ms == answer.measured_undisturbed_ms == pytest.approx(31)
    assert answer.quiet == pytest.approx(1)


def test_a_machine_that_was_slow_half_of_the_time(beside):
    answer = beside(BUSY)

    assert answer.ratio == pytest.approx(1)
    assert (answer.paired, answer.disturbed) == (True, True)
    assert answer.disturbance == pytest.approx(0.4)
    assert answer.measured_ms == pytest.approx(31 * 1.4)
    assert answer.estimate_ms == pytest.approx(31 * 1.4)
    assert answer.undisturbed_ms == pytest.approx(31)
    assert answer.quiet == pytest.approx(0.5)


def test_bricks_alone_show_how_disturbed_they_were(beside):
    answer = beside(BUSY, model_ms=None)

    assert (answer.ratio, answer.paired, answer.measured_ms) == (None, None, None)
    assert (answer.disturbed, answer.undisturbed_ms) == (True, pytest.approx(31))
    assert answer.disturbance == pytest.approx(0.4)
    assert answer.ratio_remedy.kind == "model"


def test_another_session_gives_a_ratio_that_is_not_paired(lab, fork, graph_of, beside, later):
    beside(BUSY, model_ms=None)
    lab.put_in_turn({graph_of(fork).key: 31.0}, STILL, model=graph_of(fork).key, run=later, begun_s=1e5)

    (answer,) = estimate([fork], store=lab.store)

    assert answer.paired is False
    assert answer.ratio == pytest.approx(1.4)
    assert answer.ratio_ci95[0] < 1 < answer.ratio_ci95[1]  # what the bricks met is part of its interval


def test_runs_that_were_disturbed_leave_more_in_doubt(lab, fork, graph_of, beside, later):
    def width(machine) -> float:
        beside(machine, model_ms=None)
        (answer,) = estimate([fork], store=lab.store)
        return answer.ratio_ci95[1] / answer.ratio_ci95[0]

    lab.put_in_turn({graph_of(fork).key: 31.0}, STILL, model=graph_of(fork).key, run=later, begun_s=1e5)

    assert width(STILL) < width(BUSY)


def test_what_an_earlier_version_measured_enters_no_estimate(lab, fork, keys_of, beside):
    earlier = beside(protocol=PROTOCOL - 1)

    assert (earlier.ratio, earlier.sequential_ms, earlier.measured_ms) == (None, None, None)
    assert {missing.reason for missing in earlier.missing} == {
        "measured by an earlier version only, which is never combined with this one"
    }
    assert all(missing.remedy.kind == "bricks" for missing in earlier.missing)
    lab.put([(keys_of(fork)[0], 1.0)])
    (answer,) = estimate([fork], store=lab.store)
    assert len(answer.missing) == 4
    assert beside().ratio == pytest.approx(1)


def test_a_model_of_an_earlier_version_is_no_ground_truth(lab, fork, graph_of, beside):
    beside(model_ms=None)
    lab.put([(graph_of(fork).key, 31.0)], subject=Subject.MODEL, protocol=PROTOCOL - 1)

    (answer,) = estimate([fork], store=lab.store)

    assert (answer.measured_ms, answer.ratio) == (None, None)
    assert answer.ratio_remedy.kind == "model"


def test_a_brick_that_was_measured_again_does_not_part_bricks_and_model(beside, lab, fork, keys_of, later):
    """The pair is that of the run that measured the model; the latest latency is that of the run after it."""
    beside(BUSY)
    lab.put_in_turn({keys_of(fork)[0]: 3.0}, STILL, run=later, begun_s=1e5)
    (answer,) = estimate([fork], store=lab.store)

    assert answer.sequential_ms == pytest.approx(3 + 30 * 1.4)
    assert (answer.paired, answer.ratio) == (True, pytest.approx(1))
    assert answer.estimate_ms == pytest.approx(31 * 1.4)
