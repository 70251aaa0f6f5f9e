from __future__ import annotations

import math

import numpy as np
import pytest
from dlbricks.constructor.uncertainty.calibration import PROCESS_SD, PROCESS_WEIGHT, model_error_sd
from dlbricks.constructor.uncertainty.interval import NORMAL, Uncertainty, combined, student
from dlbricks.db import Block, Conditions, Measurement, Stop, Subject, Verdict
from dlbricks.db.queries import moments

MOMENTS = tuple((process, round_) for process in range(2) for round_ in range(3))


def measured(key: str, blocks: tuple[float, ...], run: str = "r", median: float | None = None) -> Measurement:
    centre = float(np.median(blocks)) if median is None else median
    return Measurement(
        id=f"id-{key}", run=run, subject=Subject.BRICK, key=key, system="s", stack="t", conditions=Conditions(1),
        unroll=1, median_ns=centre, mean_ns=centre, trimmed_mean_ns=centre, min_ns=centre, p90_ns=centre,
        p99_ns=centre, ci95_ns=(centre - 2.0, centre + 2.0), samples=10, block_medians_ns=blocks,
        verdict=Verdict.STABLE, stop=Stop.CONVERGED,
    )  # fmt: skip


def interval(bricks, occurrences=None, taken=None) -> tuple[float, float]:
    weights = {f"id-{key}": count for key, count in (occurrences or {brick.key: 1 for brick in bricks}).items()}
    return Uncertainty(bricks, taken or {}).interval_ns(weights)


def half(bounds: tuple[float, float]) -> float:
    return (bounds[1] - bounds[0]) / 2


def test_blocks_that_agree_leave_what_other_runs_saw_of_processes():
    """Two processes that agree say little: the expectation stands for three degrees of freedom of five."""
    low, high = interval([measured("a", (5.0,) * 6), measured("b", (7.0,) * 6)], {"a": 3, "b": 1})

    assert (low + high) / 2 == pytest.approx(22.0)
    share = PROCESS_WEIGHT / (PROCESS_WEIGHT + 1)
    expected = student(PROCESS_WEIGHT + 1) * math.sqrt(share / 2) * PROCESS_SD * 22
    assert (high - low) / 2 == pytest.approx(expected, rel=1e-6)


def test_two_processes_that_disagree_widen_it_without_making_it_absurd():
    """By 2 % about their mean: Student's quantile of a single degree of freedom would say 18 %."""
    low, high = interval([measured("a", (98.0,) * 3 + (102.0,) * 3)])

    assert 3 < (high - low) / 2 < 6


def test_multiples_of_a_brick_are_as_uncertain_as_the_brick():
    medians = tuple(np.random.default_rng(5).normal(100, 5, 6))
    one, seven = interval([measured("a", medians)]), interval([measured("a", medians)], {"a": 7})

    assert seven == pytest.approx((7 * one[0], 7 * one[1]))


def test_drift_that_all_bricks_saw_together_does_not_average_out():
    """A machine that was 10 % slower in one round of each process: as much doubt in a hundred bricks as in one."""
    drift = np.array([1.0, 1.0, 1.1] * 2)
    one = half(interval([measured("a", tuple(100 * drift))]))
    together = [measured(f"{i}", tuple(100 * drift)) for i in range(100)]
    apart = [measured(f"{i}", tuple(100 * drift), run=f"{i}") for i in range(100)]

    assert half(interval(together)) == pytest.approx(100 * one)
    assert half(interval(apart)) < 11 * one


def test_drift_cancels_in_a_difference():
    drift = np.array([1.0, 1.02, 1.1] * 2)
    bricks = [measured("a", tuple(100 * drift)), measured("b", tuple(90 * drift))]

    difference = Uncertainty(bricks, {}).half_ns({"id-a": 1.0, "id-b": -1.0})

    assert difference == pytest.approx(half(interval(bricks[:1])) / 10)


def test_noise_of_single_bricks_averages_out():
    rng = np.random.default_rng(3)
    bricks = [measured(f"{i}", tuple(rng.normal(100, 3, 6))) for i in range(400)]

    assert half(interval(bricks)) < 0.6 * sum(half(interval([brick])) for brick in bricks)


def test_what_processes_do_to_single_bricks_is_pooled_over_them():
    """Two halves of a model that happen to cancel in the sum do not hide how far processes differ."""
    rng = np.random.default_rng(4)

    def bricks(own_sd):
        return [
            measured(f"{i}", tuple(100 * rng.normal(1, own_sd, 2).repeat(3) + rng.normal(0, 0.1, 6)))
            for i in range(40)
        ]  # fmt: skip

    calm, wild = bricks(0.0), bricks(0.2)

    assert half(interval(wild)) > 2 * half(interval(calm))
    assert half(interval(wild)) < 0.2 * 40 * 100


SCENES = {
    "one brick": (1, 0.0, 0.0, 0.0, 0.03),
    "own noise": (30, 0.0, 0.0, 0.0, 0.03),
    "rounds drift together": (30, 0.0, 0.0, 0.03, 0.005),
    "processes differ together": (30, PROCESS_SD, 0.0, 0.003, 0.003),
    "processes differ by brick": (30, 0.0, 0.05, 0.003, 0.01),
    "all of it": (30, PROCESS_SD, 0.02, 0.01, 0.03),
}


def repeated(scene, early, repetitions=200):
    """Intervals of sums of bricks of 100 ns, relative; their truth is 1. Bricks that converged stopped at 4 blocks."""
    bricks, process_sd, brick_sd, round_sd, own_sd = scene
    rng = np.random.default_rng(7)
    blocks = [4 if index < early * bricks else 6 for index in range(bricks)]
    for _ in range(repetitions):
        machine = rng.normal(1, process_sd, 2).repeat(3) + rng.normal(0, round_sd, 6)
        placed = rng.normal(0, brick_sd, (bricks, 2)).repeat(3, axis=1)
        own = rng.normal(0, own_sd, (bricks, 6))
        made = [measured(f"{i}", tuple(100 * (machine + placed[i] + own[i]))[: blocks[i]]) for i in range(bricks)]
        low, high = interval(made)
        yield low / 100 / bricks, high / 100 / bricks


@pytest.mark.sweep(6)
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("early", [0.0, 0.5, 1.0], ids=["full", "half early", "early"])
def test_it_covers_what_it_promises(scene, early):
    """Nominal 95 %; 200 repetitions have a standard error of 1.5 %. It may well hold more than it promises."""
    found = list(repeated(SCENES[scene], early))

    assert sum(low <= 1 <= high for low, high in found) / len(found) >= 0.92
    bricks, process_sd, brick_sd, round_sd, own_sd = SCENES[scene]
    spread = math.hypot(process_sd / math.sqrt(2), round_sd / 2, math.hypot(brick_sd, own_sd / 2) / math.sqrt(bricks))
    assert np.median([high - low for low, high in found]) / 2 < 5 * math.hypot(spread, PROCESS_SD / math.sqrt(2))


@pytest.mark.parametrize("process_sd", [0.0, PROCESS_SD, 2 * PROCESS_SD])
def test_with_the_error_of_the_method_it_covers_the_model(process_sd):
    """What an estimate promises, also where processes differ twice as much as they do elsewhere."""
    sd = model_error_sd("runtime", "model")
    rng, hits, found = np.random.default_rng(8), 0, list(repeated((30, process_sd, 0.02, 0.003, 0.01), 0.5))
    for low, high in found:
        centre, truth = (low + high) / 2, 1 + rng.normal(0, sd)
        hits += abs(centre - truth) <= math.hypot((high - low) / 2, NORMAL * sd * centre)

    assert 0.9 <= hits / len(found) <= 0.995


@pytest.mark.parametrize(("degrees", "quantile"), [(3, 3.182), (4, 2.776), (10, 2.228), (1e9, 1.960)])
def test_quantiles_of_student(degrees, quantile):
    assert student(degrees) == pytest.approx(quantile, rel=0.01)


def test_equal_numbers_of_blocks_are_not_equal_moments():
    """Of two chunks of one run: what each saw in its own rounds is not added as if it was one round."""
    slow_first, slow_last = (110.0, 100.0, 90.0) * 2, (90.0, 100.0, 110.0) * 2
    bricks = [measured("a", slow_first), measured("b", slow_last)]
    later = tuple((process, round_ + 3) for process, round_ in MOMENTS)
    calm = half(interval([measured("a", (100.0,) * 6), measured("b", (100.0,) * 6)]))

    assert half(interval(bricks, taken={"id-a": MOMENTS, "id-b": MOMENTS})) == pytest.approx(calm)
    assert half(interval(bricks, taken={"id-a": MOMENTS, "id-b": later})) > 3 * calm


def test_moments_are_those_of_the_stored_blocks(lab):
    taken = ((0, 1), (0, 4), (3, 0))
    measurement = lab.measurement("a" * 64, 1.0)
    lab.store.add([(measurement, [Block(process, round_, ((1000, 1),)) for process, round_ in taken])])

    with lab.store.reading() as connection:
        assert moments(connection, [measurement.id, "none"]) == {measurement.id: taken}


def test_a_brick_that_one_process_never_saw_adds_no_disagreement():
    bricks = [measured("a", (100.0,) * 6), measured("b", (50.0,) * 3)]
    whole = [bricks[0], measured("b", (50.0,) * 6)]

    taken = {"id-a": MOMENTS, "id-b": MOMENTS[:3]}
    assert half(interval(bricks, taken=taken)) == pytest.approx(half(interval(whole)), rel=0.1)


def test_a_single_block_stands_for_its_own_interval():
    assert interval([measured("a", (100.0,))]) == pytest.approx((98.0, 102.0))
    assert half(interval([measured("a", (100.0,)), measured("b", (100.0,))])) == pytest.approx(math.sqrt(8))


def test_it_is_around_the_measured_median():
    low, high = interval([measured("a", (90.0, 100.0, 110.0), median=103.0)])

    assert (low + high) / 2 == pytest.approx(103.0)


def test_combinations_of_combinations():
    assert combined((2, {"a": 1.0, "b": 1.0}), (-1, {"b": 3.0})) == {"a": 2.0, "b": -1.0}
    assert combined() == {}


def test_nothing_is_certain():
    assert Uncertainty([], {}).interval_ns({}) == (0.0, 0.0)


def test_a_difference_keeps_its_own_interval_whatever_others_of_its_run_are():
    """Relative to themselves, differences near 0 differ by anything: the doubt about one says nothing of another."""
    near_zero = [measured(f"{n}", (0.01, -0.02, 0.03, -0.01, 0.02, -0.03)) for n in range(8)]
    large = measured("large", (28.0, 28.2, 27.9, 28.1, 28.0, 28.0))
    every = [*near_zero, large]

    alone = Uncertainty(every, {}, differences={one.id for one in every})

    assert alone.half_ns({large.id: 1.0}) == pytest.approx(2.0)  # that of its ci95_ns
