"""Intervals of composed latencies: what drives all together stays in a sum, and cancels in a difference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dlbricks.constructor.uncertainty.calibration import NORMAL, scatter_of
from dlbricks.constructor.uncertainty.interval import Uncertainty
from dlbricks.db import Block, Subject

from ..conftest import taken

PROCESS_SD = scatter_of(None, 1, Subject.BRICK).process_sd

SESSIONS, VISITS = 4, 6
STILL = np.ones((SESSIONS, VISITS))


def uncertainty_of(bricks, *, blocks: bool = True) -> Uncertainty:
    return Uncertainty([one for one, _ in bricks], {one.id: found for one, found in bricks} if blocks else {})


def half(bricks, weights=None) -> float:
    return uncertainty_of(bricks).half_ns(weights or {one.id: 1.0 for one, _ in bricks})


def test_visits_that_agree_leave_what_other_runs_saw_of_processes():
    low, high = uncertainty_of([taken("a", 5e4 * STILL), taken("b", 7e4 * STILL)]).interval_ns({"a": 3, "b": 1})

    assert (low + high) / 2 == pytest.approx(22e4)
    assert (high - low) / 2 == pytest.approx(NORMAL * PROCESS_SD * 22e4 / math.sqrt(2), rel=1e-4)


@pytest.mark.parametrize("others", [[], ["b"]], ids=["alone", "beside one of two"])
def test_a_single_process_never_narrows(others):
    """It shows nothing of what processes differ by: neither does it average anything out, nor count as agreement."""
    one, blocks = taken("a", 1e5 * STILL)
    lone = (one, [Block(0, number, block.samples) for number, block in enumerate(blocks)])
    beside = [taken(name, 1e5 * STILL) for name in others]

    single, both = half([lone, *beside]), half([taken("a", 1e5 * STILL), *beside])

    assert single == pytest.approx(both * math.sqrt(2), rel=1e-6)


def test_processes_of_different_runs_are_different_processes():
    """Of one run what they share cancels in a difference; of two it does not."""
    together = [taken("a", 1e5 * STILL), taken("b", 1e5 * STILL)]
    apart = [taken("a", 1e5 * STILL), taken("b", 1e5 * STILL, run="later")]
    less = {"a": 1.0, "b": -1.0}

    assert half(together, less) == 0
    assert half(apart, less) == pytest.approx(NORMAL * PROCESS_SD * 1e5, rel=1e-4)


def test_runs_that_share_no_time_have_means_of_their_own():
    """Of twenty runs with two time blocks each, every run has one degree of freedom, and no block counts twice."""
    rng, runs, sd = np.random.default_rng(7), 20, 0.05
    still = [taken(f"{run}", 1e5 * np.ones((2, 3)), run=f"{run}") for run in range(runs)]
    processes, _ = uncertainty_of(still).error_ns({f"{run}": 1.0 for run in range(runs)})
    found = []
    for _ in range(300):
        drawn = [1e5 * np.repeat(rng.normal(1, sd, (2, 1)), 3, axis=1) for _ in range(runs)]
        bricks = [taken(f"{run}", values, run=f"{run}") for run, values in enumerate(drawn)]
        error, degrees = uncertainty_of(bricks).error_ns({brick.id: 1.0 for brick, _ in bricks})
        found.append(error**2 - processes**2)

    assert np.mean(found) == pytest.approx(runs * (1e5 * sd) ** 2 / 2, rel=0.05)
    assert degrees > runs / 2


def test_multiples_of_a_brick_are_as_uncertain_as_the_brick():
    bricks = [taken("a", 1e5 * np.random.default_rng(5).normal(1, 0.05, STILL.shape))]

    assert half(bricks, {"a": 7.0}) == pytest.approx(7 * half(bricks))


def test_a_disturbance_that_all_bricks_met_together_does_not_average_out():
    machine = np.random.default_rng(1).choice([1.0, 1.8], STILL.shape)
    together = [taken(f"{i}", 1e5 * machine) for i in range(100)]
    apart = [taken(f"{i}", 1e5 * machine, run=f"run{i}") for i in range(100)]

    assert half(together) == pytest.approx(100 * half(together[:1]), rel=1e-6)
    assert half(apart) < 0.2 * half(together) + NORMAL * PROCESS_SD * 1e7


def test_a_single_visit_shows_nothing_of_its_error():
    """It may be all of it: an interval that left it out would be the narrowest of all."""
    once = [taken(f"{i}", 1e5 * np.ones((1, 1))) for i in range(100)]

    assert half(once) > 1e7


def test_a_disturbance_cancels_in_a_difference():
    machine = np.random.default_rng(2).choice([1.0, 1.8], STILL.shape)
    bricks = [taken("a", 1e5 * machine), taken("b", 9e4 * machine)]

    assert half(bricks, {"a": 1.0, "b": -1.0}) == pytest.approx(half(bricks[:1]) / 10, rel=1e-3)


def test_noise_of_single_bricks_averages_out():
    rng = np.random.default_rng(3)
    bricks = [taken(f"{i}", 1e5 * rng.normal(1, 0.3, STILL.shape)) for i in range(100)]

    assert half(bricks) < 0.3 * sum(half([brick]) for brick in bricks)


def simulated(bricks: int, disturbance: float, own_sd: float, process_sd: float):
    """200 intervals of sums of bricks of 100 us, relative; what they would be of endless visits is 1."""
    rng = np.random.default_rng(7)
    for _ in range(200):
        slow = rng.random(STILL.shape) < 0.5
        machine = (1 + disturbance * slow) / (1 + disturbance / 2)
        processes = rng.normal(1, process_sd, 2).repeat(2)[:, None]
        made = [taken(f"{i}", 1e5 * machine * processes * rng.normal(1, own_sd, STILL.shape)) for i in range(bricks)]
        low, high = uncertainty_of(made).interval_ns({one.id: 1.0 for one, _ in made})
        yield low / 1e5 / bricks, high / 1e5 / bricks


SCENES = {
    "one brick": (1, 0.0, 0.03, 0.0),
    "own noise": (20, 0.0, 0.03, 0.0),
    "a busy neighbour": (20, 0.8, 0.01, 0.0),
    "processes differ": (20, 0.0, 0.01, PROCESS_SD),
    "all of it": (20, 0.8, 0.03, PROCESS_SD),
}


@pytest.mark.slow
@pytest.mark.sweep(3)
@pytest.mark.parametrize("scene", SCENES)
def test_it_covers_what_it_promises(scene):
    """Nominal 95 %; 200 repetitions have a standard error of 1.5 %. It may well hold more than it promises."""
    found = list(simulated(*SCENES[scene]))

    assert sum(low <= 1 <= high for low, high in found) / len(found) >= 0.9


@pytest.mark.parametrize("visits", [3, 4, 5])
def test_a_single_time_block_covers_what_slowed_all_bricks_together(visits):
    """Nominal 95 %; 200 repetitions have a standard error of 1.5 %."""
    rng, hits = np.random.default_rng(9), 0
    for _ in range(200):
        machine = rng.normal(1, 0.1, (1, visits))
        made = [taken(f"{i}", 1e5 * machine * rng.normal(1, 0.01, machine.shape)) for i in range(20)]
        low, high = uncertainty_of(made).interval_ns({one.id: 1.0 for one, _ in made})
        hits += low <= 20e5 <= high

    assert 180 <= hits <= 199


def test_with_the_error_of_the_method_it_covers_the_model():
    sd = 0.03
    rng, hits, found = np.random.default_rng(8), 0, list(simulated(20, 0.2, 0.01, PROCESS_SD))
    for low, high in found:
        centre, truth = (low + high) / 2, 1 + rng.normal(0, sd)
        hits += abs(centre - truth) <= math.hypot((high - low) / 2, NORMAL * sd * centre)

    assert hits / len(found) >= 0.9


def test_equal_numbers_of_other_sessions_are_not_the_same_moment():
    slow_first = np.linspace(1.5, 0.5, SESSIONS)[:, None] * STILL
    a, blocks = taken("a", 1e5 * slow_first)
    b, others = taken("b", 1e5 * slow_first[::-1])
    later = [Block(block.process, block.round + 2, block.samples) for block in others]

    shared = Uncertainty([a, b], {a.id: blocks, b.id: others}).half_ns({a.id: 1.0, b.id: 1.0})
    apart = Uncertainty([a, b], {a.id: blocks, b.id: later}).half_ns({a.id: 1.0, b.id: 1.0})

    assert apart > 3 * shared


def test_without_blocks_a_measurement_has_its_own_interval():
    bricks = [taken(name, 100 * STILL, ci95_ns=(98.0, 102.0)) for name in "ab"]

    assert uncertainty_of(bricks[:1], blocks=False).interval_ns({"a": 1.0}) == pytest.approx((98.0, 102.0))
    assert uncertainty_of(bricks, blocks=False).half_ns({"a": 1.0, "b": 1.0}) == pytest.approx(math.sqrt(8), rel=1e-5)


def test_undisturbed_is_the_sum_of_undisturbed_bricks():
    bricks = [taken("a", 2e5 * STILL, undisturbed_ns=1e5), taken("b", 3e5 * STILL, undisturbed_ns=2e5)]

    assert uncertainty_of(bricks).undisturbed_ns({"a": 2.0, "b": 1.0}) == pytest.approx(4e5)


def test_an_undisturbed_latency_of_one_process_is_less_sure_by_what_another_would_have_shown():
    one, blocks = taken("a", 1e5 * STILL, undisturbed_ns=1e5)
    alone = [Block(0, number, block.samples) for number, block in enumerate(blocks)]

    assert uncertainty_of([(one, blocks)]).undisturbed_error("a", None)[0] == pytest.approx(0.0)
    error, _ = uncertainty_of([(one, alone)]).undisturbed_error("a", None)
    assert error == pytest.approx(PROCESS_SD / math.sqrt(2))


def test_an_undisturbed_latency_is_as_sure_as_its_low_quantile():
    slow = 1e5 * np.random.default_rng(2).lognormal(0, 0.3, (SESSIONS, VISITS))
    one, blocks = taken("a", slow, undisturbed_ns=float(np.quantile(slow, 0.1)))

    error, degrees = uncertainty_of([(one, blocks)]).undisturbed_error("a", None)

    assert 0 < error < 0.5
    assert degrees == pytest.approx(SESSIONS * VISITS / 3 - 1)
    assert uncertainty_of([(one, blocks)], blocks=False).undisturbed_error("a", None) is None


def test_undisturbed_is_not_known_where_one_brick_is_not():
    bricks = [taken("a", 2e5 * STILL, undisturbed_ns=1e5), taken("b", 3e5 * STILL)]

    assert uncertainty_of(bricks).undisturbed_ns({"a": 2.0, "b": 1.0}) is None


def test_nothing_is_certain():
    assert Uncertainty([], {}).interval_ns({}) == (0.0, 0.0)
