"""An estimate beside the ground truth: always a ratio where both are measured, and what disturbed them."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from dlbricks import estimate
from dlbricks.db import Run
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


def test_a_machine_that_was_slow_half_of_the_time(beside):
    answer = beside(BUSY)

    assert answer.truth.ratio == pytest.approx(1)
    assert (answer.truth.paired, answer.disturbed, answer.truth.reason) == (True, True, None)
    assert answer.disturbance == pytest.approx(0.4)
    assert answer.truth.ms == pytest.approx(31 * 1.4)
    assert answer.latency.ms == pytest.approx(31 * 1.4)
    assert answer.latency.undisturbed_ms == pytest.approx(31)
    assert answer.latency.quiet == pytest.approx(0.5)


def test_another_session_gives_a_ratio_that_is_not_paired(lab, fork, graph_of, beside, later):
    beside(BUSY, model_ms=None)
    lab.put_in_turn({graph_of(fork).key: 31.0}, STILL, model=graph_of(fork).key, run=later, begun_s=1e5)

    (answer,) = estimate([fork], store=lab.store)

    assert answer.truth.paired is False
    assert answer.truth.ratio == pytest.approx(1.4)
    assert answer.truth.ratio_ci95[0] < 1 < answer.truth.ratio_ci95[1]  # what the bricks met is part of its interval


def test_what_an_earlier_version_measured_enters_no_estimate(lab, fork, keys_of, beside):
    earlier = beside(protocol=PROTOCOL - 1)

    assert (earlier.truth.ratio, earlier.sums.sequential_ms, earlier.truth.ms) == (None, None, None)
    assert {missing.reason for missing in earlier.parts.missing} == {"not measured"}
    assert all(missing.remedy.kind == "bricks" for missing in earlier.parts.missing)
    lab.put([(keys_of(fork)[0], 1.0)])
    (answer,) = estimate([fork], store=lab.store)
    assert len(answer.parts.missing) == 4
    assert beside().truth.ratio == pytest.approx(1)


def test_a_brick_that_was_measured_again_does_not_part_bricks_and_model(beside, lab, fork, keys_of, later):
    """The pair is that of the run that measured the model; the latest latency is that of the run after it."""
    beside(BUSY)
    lab.put_in_turn({keys_of(fork)[0]: 3.0}, STILL, run=later, begun_s=1e5)
    (answer,) = estimate([fork], store=lab.store)

    assert answer.sums.sequential_ms == pytest.approx(3 + 30 * 1.4)
    assert (answer.truth.paired, answer.truth.ratio) == (True, pytest.approx(1))
    assert answer.latency.ms == pytest.approx(31 * 1.4)
