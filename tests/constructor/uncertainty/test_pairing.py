"""The ratio of bricks and a model that were visited in turn, whatever disturbed them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from dlbricks.constructor.uncertainty.interval import Uncertainty
from dlbricks.constructor.uncertainty.pairing import FUSION, Paired, paired
from dlbricks.db import Block, Measurement, Subject
from hypothesis import given, settings
from hypothesis import strategies as st
from lab import changed

from ..conftest import taken

SESSIONS, VISITS = 4, 6
SHAPE = SESSIONS, VISITS
Taken = tuple[Measurement, list[Block]]


def ratio(*given: Any) -> Paired:
    """The same where there is one."""
    found = together(*given)
    assert found is not None
    return found


def together(weights: Mapping[int, float], bricks: list[Taken], model: Taken) -> Paired | None:
    """The ratio of some of the bricks, by their places, and the model."""
    everything = [*bricks, model]
    uncertainty = Uncertainty([one for one, _ in everything], {one.id: blocks for one, blocks in everything})
    ids = {bricks[place][0].id: weight for place, weight in weights.items()}
    return paired(ids, model[0], uncertainty.known, uncertainty)


def bursts(rng: np.random.Generator, slow: float) -> np.ndarray:
    """How slow a machine of two states is at each visit; it stays in each for some visits."""
    states = np.empty(SESSIONS * VISITS)
    state = rng.random() < 0.5
    for place in range(states.size):
        state = not state if rng.random() < 0.3 else state
        states[place] = slow if state else 1.0
    return states.reshape(SHAPE)


def zoo(rng: np.random.Generator, slow: float, noise: float, latencies: tuple[float, ...]) -> tuple[list[Taken], Taken]:
    """Bricks, and the model that they are, under one machine that is slow now and then."""
    machine = bursts(rng, slow)
    bricks = [taken(f"{n}", ns * machine * rng.normal(1, noise, SHAPE)) for n, ns in enumerate(latencies)]
    model = taken("model", sum(latencies) * machine * rng.normal(1, noise, SHAPE), subject=Subject.MODEL)
    return bricks, model


@given(seed=st.integers(0, 2**32 - 1), slow=st.floats(1.0, 2.5), count=st.integers(1, 12))
@settings(deadline=None)
def test_a_disturbance_that_both_meet_leaves_the_ratio(seed: int, slow: float, count: int) -> None:
    rng = np.random.default_rng(seed)
    bricks, model = zoo(rng, slow, 0.0, tuple(rng.uniform(1e5, 1e7, count)))

    found = ratio(dict.fromkeys(range(count), 1.0), bricks, model)

    assert found.estimate_ns / found.measured_ns == pytest.approx(1, abs=1e-4)
    assert found.half < 1e-3


def test_the_interval_covers_as_often_where_sessions_have_an_effect_of_their_own() -> None:
    """Each session shifts bricks against the model: by time blocks 83 % of these intervals would contain 1."""
    rng, hits = np.random.default_rng(5), 0
    for _ in range(300):
        shift = np.repeat(np.exp(rng.normal(0, 0.03, (SESSIONS, 1))), VISITS, axis=1)
        bricks = [taken("0", 1e6 * shift * rng.normal(1, 0.01, SHAPE))]
        model = taken("model", 1e6 * rng.normal(1, 0.01, SHAPE), subject=Subject.MODEL)
        found = ratio({0: 1.0}, bricks, model)
        hits += abs(math.log(found.estimate_ns / found.measured_ns)) <= found.half

    assert 0.91 <= hits / 300 <= 0.98


@pytest.mark.parametrize("slow", [1.0, 1.8])
def test_the_ratio_has_no_bias_and_its_interval_covers_what_it_promises(slow: float) -> None:
    """Nominal 95 %; 300 repetitions have a standard error of 1.3 %, of bootstraps over four sessions."""
    rng = np.random.default_rng(11)
    errors, hits = [], 0
    for _ in range(300):
        found = ratio({0: 1.0, 1: 1.0, 2: 1.0}, *zoo(rng, slow, 0.05, (1e6, 2e6, 4e6)))
        error = math.log(found.estimate_ns / found.measured_ns)
        errors.append(error)
        hits += abs(error) <= found.half

    assert abs(float(np.mean(errors))) < 3 * float(np.std(errors)) / math.sqrt(300)
    assert 0.9 <= hits / 300 <= 0.99


def test_multiples_count_as_often_as_they_occur() -> None:
    machine = bursts(np.random.default_rng(1), 1.7)
    bricks = [taken("a", 1e6 * machine), taken("b", 3e6 * machine)]
    model = taken("model", 1e7 * machine, subject=Subject.MODEL)

    found = ratio({0: 4.0, 1: 2.0}, bricks, model)

    assert found.estimate_ns / found.measured_ns == pytest.approx(1)


def test_only_the_sessions_that_both_were_visited_in_count() -> None:
    """A brick of an earlier session of the same run, when the machine was slow, is not what the model met."""
    slow_first = np.ones(SHAPE) * np.array([[2.0], [2.0], [1.0], [1.0]])
    brick = taken("a", 1e6 * slow_first)
    model = taken("model", 1e6 * np.ones((2, VISITS)), subject=Subject.MODEL, first=2, begun_s=200)

    found = ratio({0: 1.0}, [brick], model)

    assert found.estimate_ns == found.measured_ns == pytest.approx(1e6)


def test_a_brick_of_other_sessions_leaves_nothing_to_pair() -> None:
    beside, model = zoo(np.random.default_rng(2), 1.0, 0.01, (1e6,))
    apart = taken("b", 1e6 * np.ones(SHAPE), first=10)

    assert together({0: 1.0, 1: 1.0}, [*beside, apart], model) is None


@pytest.mark.parametrize(("begun_s", "both"), [(0.3, True), (1e5, False)])
def test_equal_numbers_of_two_runs_are_paired_only_where_they_were_at_once(begun_s: float, both: bool) -> None:
    """A run that takes up what an interrupted one left visits both in the same sessions."""
    brick = taken("a", 1e6 * np.ones(SHAPE), run="one")
    model = taken("model", 2e6 * np.ones(SHAPE), subject=Subject.MODEL, run="other", begun_s=begun_s)

    assert (together({0: 1.0}, [brick], model) is not None) is both


def test_what_is_measured_apart_from_any_model_is_a_constant() -> None:
    bricks, model = zoo(np.random.default_rng(3), 1.6, 0.0, (1e6,))
    call = taken("@overhead", 2e5 * np.ones(SHAPE), subject=Subject.REFERENCE, run="older", begun_s=1e6)

    alone, called = ratio({0: 1.0}, bricks, model), ratio({0: 1.0, 1: 1.0}, [*bricks, call], model)

    assert called.estimate_ns == pytest.approx(alone.estimate_ns + 2e5)


def test_without_visits_nothing_is_paired() -> None:
    """Samples of a repetition, or of an earlier version, do not say when they were taken."""
    (brick, blocks), (model, others) = taken("a", np.full(SHAPE, 1e6)), taken("m", np.full(SHAPE, 1e6))
    bare = [[Block(one.process, one.round, one.samples) for one in found] for found in (blocks, others)]

    assert together({0: 1.0}, [(brick, bare[0])], (model, bare[1])) is None
    assert together({}, [], (model, others)) is None


def test_one_visit_shows_nothing_of_how_sure_it_is() -> None:
    brick = taken("a", np.full((1, 1), 1e6))
    model = taken("model", np.full((1, 1), 1e6), subject=Subject.MODEL)

    found = ratio({0: 1.0}, [brick], model)

    assert found.half == math.inf


def test_the_visits_of_a_single_time_block_show_how_sure_it_is() -> None:
    brick = taken("a", np.array([[1.0e6, 1.1e6, 1.2e6]]))
    model = taken("model", np.array([[1.0e6, 1.0e6, 1.0e6]]), subject=Subject.MODEL)

    found = ratio({0: 1.0}, [brick], model)

    assert found.degrees == 2
    assert found.half == pytest.approx(4.303 * 0.1 / math.sqrt(3) / 1.1, rel=0.05)


def test_what_fusion_saves_may_come_from_another_run_and_widens_the_interval():
    rng = np.random.default_rng(3)
    model = taken("model", rng.normal(9e6, 1e4, SHAPE), subject=Subject.MODEL)
    bricks = taken("brick", rng.normal(10e6, 1e4, SHAPE))
    windows = [
        (changed(one, variant=variant), blocks)
        for variant, mean in zip(FUSION, (3e6, 2e6), strict=True)
        for one, blocks in [taken(variant, rng.normal(mean, 2e5, SHAPE), run="another", begun_s=1e6)]
    ]

    alone = together({0: 1.0}, [bricks], model)
    both = together({0: 1.0, 1: -1.0, 2: 1.0}, [bricks, *windows], model)

    assert both.estimate_ns == pytest.approx(alone.estimate_ns - 1e6, rel=0.05)
    assert both.apart > 0 == alone.apart
    assert both.half > alone.half
    other = [(changed(one, variant="basic"), blocks) for one, blocks in windows]
    assert together({0: 1.0, 1: -1.0, 2: 1.0}, [bricks, *other], model) is None, "any other brick must be beside it"
