from __future__ import annotations

import math

import numpy as np
import pytest
from dlbricks.constructor.interval import Uncertainty
from dlbricks.db import Block, Conditions, Measurement, Stop, Subject, Verdict
from dlbricks.db.queries import moments
from dlbricks.generator.statistics import doubt, median_interval

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
    counts = occurrences or {brick.key: 1 for brick in bricks}
    return Uncertainty(bricks, taken or {}).interval_ns(counts)


def half(bounds: tuple[float, float]) -> float:
    return (bounds[1] - bounds[0]) / 2


def test_blocks_that_agree_leave_no_doubt():
    bricks = [measured("a", (5.0,) * 6), measured("b", (7.0,) * 4)]

    assert interval(bricks, {"a": 3, "b": 1}) == pytest.approx((22.0, 22.0))


@pytest.mark.parametrize("blocks", [2, 4, 5, 6])
def test_a_model_of_one_brick_is_as_uncertain_as_the_brick(blocks):
    medians = tuple(np.random.default_rng(blocks).normal(100, 5, blocks))
    own = median_interval([np.array([median]) for median in medians], MOMENTS[:blocks])

    assert interval([measured("a", medians)]) == pytest.approx(own)
    assert interval([measured("a", medians)], {"a": 7}) == pytest.approx((7 * own[0], 7 * own[1]))


def test_drift_that_all_bricks_saw_together_does_not_average_out():
    """A machine that was 10 % slower in one round of each process: as much doubt in a hundred bricks as in one."""
    drift = np.array([1.0, 1.0, 1.1] * 2)
    one = half(interval([measured("a", tuple(100 * drift))]))
    together = [measured(f"{i}", tuple(100 * drift)) for i in range(100)]
    apart = [measured(f"{i}", tuple(100 * drift), run=f"{i}") for i in range(100)]

    assert half(interval(together)) == pytest.approx(100 * one)
    assert half(interval(apart)) == pytest.approx(10 * one)


def test_noise_of_single_bricks_averages_out():
    rng = np.random.default_rng(3)
    bricks = [measured(f"{i}", tuple(rng.normal(100, 3, 6))) for i in range(400)]

    assert half(interval(bricks)) < 0.2 * sum(half(interval([brick])) for brick in bricks)


SCENES = {
    "one brick": (1, 0.0, 0.0, 0.03),
    "own noise": (30, 0.0, 0.0, 0.03),
    "rounds drift together": (30, 0.0, 0.03, 0.005),
    "processes differ together": (30, 0.02, 0.003, 0.003),
    "all of it": (30, 0.01, 0.01, 0.03),
}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("early", [0.0, 0.5, 1.0], ids=["full", "half early", "early"])
def test_it_covers_what_it_promises(scene, early):
    """Nominal 95 %; 600 repetitions have a standard error of 0.9 %. Bricks that converged early stopped at 4 blocks."""
    bricks, process_sd, round_sd, own_sd = SCENES[scene]
    rng = np.random.default_rng(7)
    blocks = [4 if index < early * bricks else 6 for index in range(bricks)]
    hits, halves = 0, []
    for _ in range(600):
        machine = rng.normal(1, process_sd, 2).repeat(3) + rng.normal(0, round_sd, 6)
        own = rng.normal(0, own_sd, (bricks, 6))
        made = [measured(f"{i}", tuple(100 * (machine + own[i]))[: blocks[i]]) for i in range(bricks)]
        low, high = interval(made)
        hits += low <= 100 * bricks <= high
        halves.append((high - low) / 2 / bricks)

    assert 0.9 <= hits / 600 <= 0.995
    spread = 100 * math.hypot(process_sd / math.sqrt(2), round_sd / 2, own_sd / 2 / math.sqrt(bricks))
    assert np.median(halves) < 10 * spread


def test_equal_numbers_of_blocks_are_not_equal_moments():
    """Of two chunks of one run: what each saw in its own rounds is not added as if it was one round."""
    slow_first, slow_last = (102.0, 100.0, 98.0) * 2, (98.0, 100.0, 102.0) * 2
    bricks = [measured("a", slow_first), measured("b", slow_last)]
    later = tuple((process, round_ + 3) for process, round_ in MOMENTS)

    assert half(interval(bricks, taken={"id-a": MOMENTS, "id-b": MOMENTS})) == pytest.approx(0.0, abs=1e-9)
    assert half(interval(bricks, taken={"id-a": MOMENTS, "id-b": later})) == pytest.approx(
        math.sqrt(2) * half(interval(bricks[:1]))
    )


def test_moments_are_those_of_the_stored_blocks(lab):
    taken = ((0, 1), (0, 4), (3, 0))
    measurement = lab.measurement("a" * 64, 1.0)
    lab.store.add([(measurement, [Block(process, round_, ((1000, 1),)) for process, round_ in taken])])

    with lab.store.reading() as connection:
        assert moments(connection, [measurement.id, "none"]) == {measurement.id: taken}


def test_a_part_that_one_process_never_saw_adds_no_disagreement():
    whole, partial = dict.fromkeys(MOMENTS, 100.0), dict.fromkeys(MOMENTS[:3], 50.0)

    assert doubt([whole, partial]).half_width == pytest.approx(0.0)


def test_a_single_block_stands_for_its_own_interval():
    assert interval([measured("a", (100.0,))]) == pytest.approx((98.0, 102.0))
    assert half(interval([measured("a", (100.0,)), measured("b", (100.0,))])) == pytest.approx(math.sqrt(8))


def test_it_is_around_the_measured_median():
    low, high = interval([measured("a", (90.0, 100.0, 110.0), median=103.0)])

    assert (low + high) / 2 == pytest.approx(103.0)


def test_nothing_is_certain():
    assert Uncertainty([], {}).interval_ns({}) == (0.0, 0.0)
