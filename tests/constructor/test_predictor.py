"""Predicted latencies are positive, their intervals hold the centre, and what is measured narrows them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dlbricks.bricks.features import EXTENTS, Features
from dlbricks.constructor.predictor import (
    NOW,
    VARIANTS,
    Belief,
    Example,
    Forest,
    Gap,
    Machine,
    Origin,
    PlacedBrick,
    calibration,
    prior,
)
from dlbricks.constructor.uncertainty.calibration import NORMAL
from hypothesis import given, settings
from hypothesis import strategies as st

MACHINE = Machine(compute=80.0, near=20.0, far=10.0, threads=1)
ORIGIN = Origin("system", "onnxruntime", "cpu", 1, "float32")


def made(operator: str, size: int, level: int = 0, variant: str = "") -> PlacedBrick:
    extents = (2, 1, size, 32, *[size] * EXTENTS)
    return PlacedBrick(Features(operator, 100 * size, 4 * size, 8 * size, 4 * size, extents), level, variant)


def example(operator: str, size: int) -> Example:
    brick = made(operator, size)
    slower = 3.0 if operator == "B" else 1.0
    return Example(brick, MACHINE, slower * MACHINE.floor_ns(brick), ORIGIN)


EXAMPLES = [example(operator, size) for operator in "AB" for size in range(100, 20_000, 700)]


@pytest.fixture(scope="module")
def forest() -> Forest:
    return Forest.fitted(EXAMPLES)


SIZES = st.lists(st.integers(1, 100_000), min_size=1, max_size=6, unique=True)


def believed(forest: Forest, operators: str, sizes: list[int], *, familiar: bool = True) -> Belief:
    bricks = [made(operator, size) for operator in operators for size in sizes]
    return Belief(forest.guess(bricks, MACHINE), calibration(), familiar=familiar)


def test_what_was_learned_is_remembered(forest):
    guess = forest.guess([one.brick for one in EXAMPLES], MACHINE)

    assert np.exp(guess.log_ns) == pytest.approx([one.latency_ns for one in EXAMPLES], rel=1e-4)


def test_the_order_of_bricks_does_not_matter(forest):
    shuffled = [*EXAMPLES]
    random.Random(3).shuffle(shuffled)
    bricks = [made("A", 555), made("B", 77_777, 8 << 20, "kept")]

    again = Forest.fitted(shuffled).guess(bricks, MACHINE)

    assert again.log_ns == pytest.approx(forest.guess(bricks, MACHINE).log_ns)


def test_a_forest_is_read_as_it_was_written(forest, tmp_path: Path):
    forest.save(tmp_path / "forest.npz")
    bricks = [made("A", 1234)]

    read = Forest.load(tmp_path / "forest.npz")

    assert read.operators == forest.operators
    assert read.guess(bricks, MACHINE).log_ns == pytest.approx(forest.guess(bricks, MACHINE).log_ns, abs=0)


@settings(deadline=None, max_examples=30)
@given(sizes=SIZES, known_ns=st.floats(0, 1e9))
def test_a_total_exceeds_its_known_part_and_has_an_interval(forest, sizes, known_ns):
    belief = believed(forest, "AC", sizes)

    total = belief.total(Gap(dict.fromkeys(range(2 * len(sizes)), 2.0), known_ns))

    assert total.half > 0
    assert total.ns > known_ns


@settings(deadline=None, max_examples=30)
@given(sizes=SIZES, factor=st.floats(0.2, 5.0))
def test_a_measured_brick_narrows_all_and_corrects_its_like(forest, sizes, factor):
    belief = believed(forest, "AB", sizes)
    before, centre = belief.variances, belief.log_ns

    belief.learn(0, factor * float(belief.latencies_ns[0]))

    assert (belief.variances <= before + 1e-12).all()
    moved = (belief.log_ns - centre) * math.copysign(1.0, math.log(factor))
    assert (moved >= -1e-12).all()  # towards it
    assert moved[0] >= moved[len(sizes) :].max()  # bricks of other operators less
    assert moved[len(sizes) :] == pytest.approx(moved[-1])  # by the factor of the run


@settings(deadline=None, max_examples=30)
@given(shift=st.floats(-0.1, 0.1), familiar=st.booleans())
def test_bricks_of_a_run_move_together_and_those_of_another_run_half_as_much(forest, shift, familiar):
    sizes = [*range(100, 20_000, 700)]
    bricks = [made(operator, size) for operator in "AB" for size in sizes] * 2
    runs = [NOW] * (2 * len(sizes)) + ["yesterday"] * (2 * len(sizes))
    belief = Belief(forest.guess(bricks, MACHINE), calibration(), familiar=familiar, runs=runs)
    centre = belief.log_ns
    one, other = len(sizes), 3 * len(sizes)  # bricks of B, in both runs

    for place in range(len(sizes)):  # all of A, now
        belief.learn(place, math.exp(shift) * float(np.exp(centre[place])))

    moved = belief.log_ns - centre
    assert abs(shift) / 4 <= abs(moved[one]) + 1e-9 <= 1.01 * abs(shift) + 1e-6  # smaller bricks move a little more
    assert abs(moved[other]) <= abs(moved[one]) + 1e-9
    if familiar:
        assert moved[other] == pytest.approx(moved[one] / 2, abs=1e-9)


def test_a_total_of_known_bricks_has_the_scatter_of_days(forest):
    bricks = [one.brick for one in EXAMPLES for _ in range(20)]
    belief = Belief(forest.guess(bricks, MACHINE), calibration(), familiar=True)
    counts = dict.fromkeys(range(len(bricks)), 1.0)

    same = Belief(forest.guess(bricks, MACHINE),
                  replace(calibration(), day=0.0), familiar=True)  # fmt: skip

    whole, without = belief.total(Gap(counts)), same.total(Gap(counts))
    assert whole.half == pytest.approx(math.hypot(without.half, NORMAL * calibration().day), rel=0.02)


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 100_000), min_size=3, max_size=6, unique=True))
def test_the_order_of_measurements_does_not_matter(forest, sizes):
    one, other = believed(forest, "A", sizes), believed(forest, "A", sizes)

    for place in (0, 1, 2):
        one.learn(place, 1e5 * (place + 1))
    for place in (2, 0, 1):
        other.learn(place, 1e5 * (place + 1))

    assert one.log_ns == pytest.approx(other.log_ns, rel=1e-6)
    assert one.variances == pytest.approx(other.variances, abs=1e-6)


def test_no_bricks_are_predicted_as_none(forest):
    assert len(Belief(forest.guess([], MACHINE), calibration(), familiar=False).latencies_ns) == 0


@pytest.mark.parametrize("familiar", [True, False])
def test_a_measured_brick_determines_bricks_with_equal_features(forest, familiar):
    belief = Belief(forest.guess([made("A", 500)] * 2, MACHINE), calibration(), familiar=familiar)

    belief.learn(0, 3 * float(belief.latencies_ns[0]))

    assert belief.latencies_ns[1] == pytest.approx(belief.latencies_ns[0])
    assert math.sqrt(belief.variances[1]) <= 1.01 * calibration().measured


@given(size=st.integers(1, 10**9))
def test_threads_never_slow_physics_and_split_only_large_work(size):
    double = replace(MACHINE, compute=160.0, near=40.0, far=20.0, threads=2)

    one, two = MACHINE.floor_ns(made("A", size)), double.floor_ns(made("A", size))

    assert one / 2 <= two <= one * (1 + 1e-12)
    assert (two == pytest.approx(one)) == (one <= 8500)


@given(size=st.integers(1, 10**9), variant=st.sampled_from(VARIANTS))
def test_cold_memory_never_makes_physics_faster_and_is_part_of_what_is_moved(size, variant):
    warm, cold = made("A", size), made("A", size, variant=variant)

    assert MACHINE.floor_ns(warm) <= MACHINE.floor_ns(cold)
    assert sum(cold.cold_bytes) <= cold.features.read_bytes + cold.features.written_bytes
    assert bool(sum(cold.cold_bytes)) == bool(variant)


def test_where_memory_is_cold_the_same_brick_is_slower_and_what_one_place_teaches_corrects_the_other(forest):
    both = [made("A", 5000), made("A", 5000, variant="given-kept")]
    cold = [
        Example(made("A", size, variant="given-kept"), MACHINE, 1e3 * size, ORIGIN) for size in range(100, 20_000, 700)
    ]
    belief = Belief(Forest.fitted([*EXAMPLES, *cold]).guess(both, MACHINE), calibration(), familiar=True)
    before = belief.latencies_ns

    belief.learn(0, 2 * float(before[0]))

    assert before[1] > 10 * before[0]
    assert belief.latencies_ns[1] > 1.5 * before[1]


def test_the_more_bricks_of_a_model_are_measured_the_narrower_is_its_interval(forest):
    belief = believed(forest, "A", [500])

    halves = [belief.total(Gap({0: 1.0}, measured=count)).half for count in (0, 2, 5, 100)]

    assert halves == sorted(halves, reverse=True)
    assert halves[0] > halves[-1]


def test_what_is_unlike_all_that_was_learned_is_less_certain(forest):
    known = believed(forest, "A", [500]).total(Gap({0: 1.0}))
    unseen = believed(forest, "C", [500]).total(Gap({0: 1.0}))
    elsewhere = believed(forest, "A", [500], familiar=False).total(Gap({0: 1.0}))

    assert unseen.half > known.half
    assert elsewhere.half > known.half


def test_what_narrows_most_per_second_is_chosen_until_the_target_or_the_end_of_time(forest):
    belief = believed(forest, "AC", [500, 5000])
    gaps = [Gap(dict.fromkeys(range(4), 1.0))]
    costs = np.array([0.1, 0.1, 0.1, 0.1])

    assert belief.choose(gaps, costs, 100.0, 10.0) == []
    assert belief.choose(gaps, costs, 1e-9, 0.05) == []
    chosen = belief.choose(gaps, costs, 1e-9, 0.25)
    assert len(chosen) == 2
    assert chosen[0] == 3  # of an operator that was never seen, the larger
    costs[3] = 1e6
    assert 3 not in belief.choose(gaps, costs, 1e-9, 10.0)


@settings(deadline=None, max_examples=30)
@given(method=st.floats(0.05, 1.0), scatter=st.floats(0.0, 0.05))
def test_the_choice_ends_where_bricks_narrow_the_whole_by_almost_nothing(forest, method, scatter):
    belief = believed(forest, "A", [*range(100, 20_000, 400)])
    costs = np.ones(50)
    counts = dict.fromkeys(range(50), 1.0)

    chosen = belief.choose([Gap(counts, method=method, scatter=scatter)], costs, 1e-9, 1e9)

    for place in chosen:
        belief.learn(place, float(belief.latencies_ns[place]))
    known_ns = float(belief.latencies_ns[chosen].sum())
    left = belief.total(Gap({place: 1.0 for place in counts if place not in chosen}, known_ns, len(chosen)))
    share = known_ns / left.ns
    assert math.hypot(left.half, method, scatter * share) <= 1.15 * math.hypot(method, scatter * share, 0.04)
    assert len(belief.choose([Gap(counts, method=10.0)], costs, 1e-9, 1e9)) == 0
    assert len(chosen) < 50


def test_only_bricks_of_wide_models_are_chosen(forest):
    belief = believed(forest, "A", [500, 5000, 50, 5])
    narrow, wide = Gap({0: 1.0, 2: 1.0}, 1e9), Gap({1: 1.0, 3: 1.0})

    chosen = belief.choose([narrow, wide], np.ones(4), 0.02, 1e9)

    assert chosen
    assert {*chosen} <= {1, 3}


def test_to_choose_changes_nothing_that_is_believed(forest):
    belief = believed(forest, "A", [500, 5000])
    before = belief.variances, belief.log_ns

    assert belief.choose([Gap({0: 1.0, 1: 1.0})], np.array([1.0, 1.0]), 1e-9, 10.0)

    assert (np.array([belief.variances, belief.log_ns]) == before).all()


def test_the_prior_is_of_measured_systems_and_small():
    examples = prior()

    assert len(examples) > 5000
    assert all(one.latency_ns > 0 and len(one.brick.features.extents) == EXTENTS + 4 for one in examples)
    assert {one.origin.threads for one in examples} == {1, 2}
    assert {one.brick.variant for one in examples} == {*VARIANTS}
