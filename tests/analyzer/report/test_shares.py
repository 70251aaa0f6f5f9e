"""Shares of a model's latency."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dlbricks.analyzer.estimation.estimate import estimate
from dlbricks.analyzer.report.shares import BEYOND, UNMEASURED, operator_times, profile_of, whole_ms
from dlbricks.constructor.result import Estimate, Missing, SequenceLatency
from dlbricks.db.values import PROFILED_CACHE, Identity, Kernel, KernelView, Subject
from flat import changed, flat_estimate
from lab import FORK, Lab, graph_of, keys_of


def _entry(*latencies_ms: float | None, measured_ms: float | None = None, skipped: int = 0) -> Estimate:
    names = ("Conv", "Relu", "Conv", "Gemm")
    parts = tuple(
        SequenceLatency(index, f"key{index}", (index,), (f"n{index}",), (names[index],), latency_ms=ms)
        for index, ms in enumerate(latencies_ms)
    )
    absent = [Missing(part.key, 1, part.names, part.op_types, "x", None) for part in parts if part.latency_ms is None]
    absent += [Missing(None, 1, ("l",), ("Loop",), "cannot be a brick", None)] * skipped
    return flat_estimate(sequences=parts, missing=tuple(absent), measured_ms=measured_ms)


def test_shares_of_a_complete_model_are_of_the_sum_of_its_layers() -> None:
    times = operator_times(_entry(3.0, 1.0, 4.0, measured_ms=20.0))

    assert [(time.name, time.count, time.ms, time.share) for time in times] == [
        ("Conv", 2, 7.0, 7 / 8), ("Relu", 1, 1.0, 1 / 8),
    ]  # fmt: skip


@pytest.mark.parametrize("skipped", [0, 2])
def test_shares_of_an_incomplete_model_are_of_its_measured_latency(skipped: int) -> None:
    entry = _entry(2.0, *([] if skipped else [None]), measured_ms=8.0, skipped=skipped)

    conv, rest = operator_times(entry)

    assert whole_ms(entry) == 8.0
    assert (conv.name, conv.share) == ("Conv", 0.25)
    assert (rest.name, rest.count, rest.ms, rest.share) == (UNMEASURED, skipped or 1, 6.0, 0.75)


def test_without_a_measured_latency_a_part_has_no_share() -> None:
    conv, rest = operator_times(_entry(2.0, None))

    assert (conv.ms, conv.share) == (2.0, None)
    assert (rest.name, rest.count, rest.ms, rest.share) == (UNMEASURED, 1, None, None)


def test_what_is_not_in_the_bricks_of_a_slow_model_is_a_row() -> None:
    entry = changed(_entry(1.0, 1.0, measured_ms=200.0), ratio=0.01, ratio_ci95=(0.009, 0.011))

    *operators, rest = operator_times(entry)

    assert [operator.share for operator in operators] == [1 / 200, 1 / 200]
    assert (rest.name, rest.count, rest.share) == (BEYOND, 0, 198 / 200)


def test_bricks_that_take_far_longer_than_their_model_tell_no_shares() -> None:
    entry = changed(_entry(8.0, 2.0, measured_ms=1.0), ratio=10.0, ratio_ci95=(9.0, 11.0))

    assert [(time.ms, time.share) for time in operator_times(entry)] == [(8.0, None), (2.0, None)]
    assert whole_ms(entry) is None


def test_bricks_longer_than_the_model_leave_no_negative_rest() -> None:
    conv, rest = operator_times(_entry(2.0, measured_ms=1.5, skipped=1))

    assert (conv.share, rest.ms) == (1.0, 0.0)


def _profiled(lab: Lab, *, model_ms: float, wall_ms: float, step_ns: int = 1_000_000) -> Estimate:
    """An estimate of 5 ms, and a profile with two operators of three steps and one step of the clock."""
    source = lab.source(FORK, "fork")
    lab.put([(key, 1.0) for key in keys_of(source)])
    lab.put([(graph_of(source).key, model_ms)], subject=Subject.MODEL)
    times = (("Conv", 1, 3 * step_ns), ("Relu", 4, step_ns))
    kernels = tuple(Kernel("", operator, "CPU", calls, ns) for operator, calls, ns in times)
    conditions = replace(lab.conditions, cache=PROFILED_CACHE)
    identity = Identity(Subject.MODEL, graph_of(source).key, lab.system.key, lab.stack.key, conditions, "")
    lab.store.put_kernels(identity, KernelView(kernels, round(wall_ms * 1e6), 5, "profiler"))
    (entry,) = estimate([source], store=lab.store)
    return entry


def test_a_model_that_its_bricks_do_not_explain_has_the_shares_of_its_own_profile(lab: Lab) -> None:
    times = operator_times(_profiled(lab, model_ms=8.0, wall_ms=9.0))

    assert [(time.name, time.count, time.ms, time.share) for time in times] == [
        ("Conv", 1, 6.0, 0.75), ("Relu", 4, 2.0, 0.25),
    ]  # fmt: skip


@pytest.mark.parametrize(("model_ms", "wall_ms", "step_ns"), [(5.0, 5.0, 10**6), (8.0, 12.0, 10**6), (8.0, 8.0, 0)])
def test_bricks_that_explain_a_model_and_useless_profiles_leave_the_shares_to_bricks(
    lab: Lab, model_ms: float, wall_ms: float, step_ns: int
) -> None:
    entry = _profiled(lab, model_ms=model_ms, wall_ms=wall_ms, step_ns=step_ns)

    assert profile_of(entry) is None
    assert sum(time.ms or 0.0 for time in operator_times(entry)) == pytest.approx(5.0)
