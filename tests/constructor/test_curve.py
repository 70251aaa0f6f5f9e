"""Latency against a length: exact where work is linear or quadratic, honest where it is not, silent beyond."""

from __future__ import annotations

import random

import pytest
from dlbricks.constructor.curve import Curve, Point
from dlbricks.constructor.result import Estimate
from dlbricks.constructor.sweep import sizes_of, stem_of, swept
from dlbricks.constructor.token_latency import generation, rate, steps_of
from flat import flat_estimate

LENGTHS = (32, 64, 128, 256, 512)


def curve(*terms: float, scatter: float = 0.0, seed: int = 0) -> Curve:
    chance = random.Random(seed)
    return Curve.through(
        Point(n, sum(one * n**term for term, one in enumerate(terms)) * chance.uniform(1 - scatter, 1 + scatter))
        for n in LENGTHS
    )


@pytest.mark.parametrize("terms", [(40.0,), (0.0, 1.3), (40.0, 1.3), (40.0, 1.3, 2e-3), (0.0, 0.0, 1e-3)])
def test_work_of_any_order_is_read_exactly_between_lengths(terms: tuple[float, ...]) -> None:
    read = curve(*terms).at(300)

    assert read is not None
    assert read.interpolated
    assert read.ms == pytest.approx(sum(one * 300**term for term, one in enumerate(terms)))


def test_a_measured_length_is_what_was_measured() -> None:
    point = Point(64, 74.0, (70.0, 78.0))
    found = Curve.through([Point(32, 50.0), point, Point(128, 138.0)])

    assert found.at(64) == point


def test_two_lengths_are_joined_without_an_interval() -> None:
    read = Curve.through([Point(32, 3.0, (2.9, 3.1)), Point(64, 5.0, (4.9, 5.1))]).at(48)

    assert read == Point(48, pytest.approx(4.0), None, interpolated=True)  # type: ignore[arg-type]


def test_points_that_are_left_out_make_the_interval() -> None:
    exact, rough = curve(40.0, 1.3), curve(40.0, 1.3, scatter=0.05)

    assert [one.length for one in rough.left_out] == [64, 128, 256]
    assert max(abs(one.error) for one in exact.left_out) < 1e-9
    assert exact.error == pytest.approx(0.0, abs=1e-9)
    assert rough.error is not None
    assert rough.error > max(abs(one.error) for one in rough.left_out)


def test_an_interval_stays_within_those_of_the_lengths_around_it() -> None:
    """Of a step that hardly depends on its cache, although the other lengths are read badly."""
    times = {1: 4.0, 128: 4.3, 513: 6.0, 2049: 11.4}
    found = Curve.through(Point(n, ms, (0.95 * ms, 1.05 * ms)) for n, ms in times.items())

    read = found.at(8)

    assert found.error is not None
    assert found.error > 0.3
    assert read is not None
    assert read.ci95_ms is not None
    assert pytest.approx(read.ci95_ms) == (0.95 * 4.0, 1.05 * 4.3)


def test_the_error_between_two_lengths_vanishes_at_both() -> None:
    read = curve(40.0, 1.3, scatter=0.05)
    halves = []
    for length in (257, 270, 362, 500, 511):  # the middle of 256 and 512 along the logarithm is 362
        point = read.at(length)
        assert point is not None
        assert point.ci95_ms is not None
        halves.append((point.ci95_ms[1] - point.ci95_ms[0]) / 2 / point.ms)

    assert halves[2] == pytest.approx(read.error, rel=1e-3)
    assert halves[0] < halves[1] < halves[2] > halves[3] > halves[4]
    assert max(halves[0], halves[4]) < 0.05 * halves[2]


def test_lengths_that_are_close_do_not_widen_the_others() -> None:
    read = Curve.through([Point(1, 10.0), Point(512, 20.0), Point(513, 20.3), Point(2048, 50.0)])

    assert read.error is not None
    assert read.error < 0.3


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    inside = []
    for seed in range(200):
        read = curve(40.0, 1.3, 5e-4, scatter=0.03, seed=seed).at(200)
        assert read is not None
        assert read.ci95_ms is not None
        inside.append(read.ci95_ms[0] <= 40.0 + 1.3 * 200 + 5e-4 * 200**2 <= read.ci95_ms[1])

    assert sum(inside) / len(inside) >= 0.9


def test_what_neighbours_are_uncertain_by_is_part_of_the_interval() -> None:
    points = [Point(n, 10.0 * n, (9.0 * n, 11.0 * n)) for n in LENGTHS]
    read = Curve.through(points).at(100)

    assert read is not None
    assert read.ci95_ms == (pytest.approx(900.0), pytest.approx(1100.0))


# Sweeps: which estimates are one model against one of its sizes ----------------------------------------------------


def estimate(ms: float | None, batch: int | None = None, **dims: int) -> Estimate:
    ends = "".join(f"@{name}={size}" for name, size in dims.items()) + (f"@b{batch}" if batch else "")
    return flat_estimate(f"m{ends}", 1, estimate_ms=ms, dims=dims, batch=batch)


def test_names_are_told_from_the_sizes_at_their_end():
    entry = estimate(1.0, seq=8, batch=4)

    assert (stem_of(entry), sizes_of(entry)) == ("m", {"seq": 8, "batch": 4})
    (sweep,) = swept([estimate(3.0, seq=16), estimate(2.0, seq=8), estimate(None, seq=32)])
    assert (sweep.stem, sweep.dimension, [*sweep.estimates]) == ("m", "seq", [8, 16])


def test_one_that_varies_in_two_sizes_is_none():
    assert not swept([estimate(1.0, seq=8, batch=1), estimate(2.0, seq=16, batch=2)])


# The time of an answer from two curves -----------------------------------------------------------------------------

PROMPTS = Curve.through([Point(32, 100.0, (90.0, 110.0)), Point(64, 180.0, (170.0, 190.0))])
STEPS = Curve.through([Point(n + 1, 10.0 + n / 10, (9.0 + n / 10, 11.0 + n / 10)) for n in (32, 64, 128)])
"""A step sees its own position, too."""


def test_an_answer_is_its_prompt_and_one_step_for_each_further_token() -> None:
    made = generation(PROMPTS, STEPS, prompt=32, new=4)

    steps = [10.0 + length / 10 for length in (32, 33, 34)]
    assert list(steps_of(32, 4)) == [32, 33, 34]
    assert (made.ttft_ms, made.ttft_ci95_ms, made.ttft_interpolated) == (100.0, (90.0, 110.0), False)
    assert (made.first_ms, made.last_ms) == (pytest.approx(steps[0]), pytest.approx(steps[-1]))
    assert (made.steps, made.steps_interpolated) == (3, 2)
    assert made.token_ms == pytest.approx(sum(steps) / 3)
    assert made.total_ms == pytest.approx(100.0 + sum(steps))
    assert made.tokens_per_s == pytest.approx(3000 / sum(steps))
    assert made.overall_tokens_per_s == pytest.approx(4000 / (100 + sum(steps)))
    assert made.total_ci95_ms is not None
    assert made.total_ci95_ms[0] <= 90.0 + sum(steps) - 3


def test_what_is_not_known_stays_open() -> None:
    beyond = generation(PROMPTS, STEPS, prompt=64, new=128)
    assert beyond.ttft_ms == 180.0
    assert beyond.token_ms is beyond.total_ms is beyond.tokens_per_s is None

    short = generation(PROMPTS, STEPS, prompt=100, new=2)
    assert short.ttft_ms is short.total_ms is None
    assert short.token_ms == pytest.approx(20.0)


def test_an_interval_that_is_not_known_leaves_that_of_the_sum_open() -> None:
    steps = Curve.through([Point(33, 13.0, (12.0, 14.0)), Point(65, 16.0, (15.0, 17.0))])

    made = generation(PROMPTS, steps, prompt=32, new=3)

    assert made.total_ms == pytest.approx(100.0 + 13.0 + 13.0 + 3 / 32)
    assert made.token_ci95_ms is None


def test_several_sequences_at_once_have_their_tokens_together() -> None:
    one, four = (generation(PROMPTS, STEPS, prompt=32, new=4, batch=batch) for batch in (1, 4))

    assert four.token_ms == one.token_ms
    assert four.tokens_per_s == pytest.approx(4 * one.tokens_per_s)
    assert four.overall_tokens_per_s == pytest.approx(4 * one.overall_tokens_per_s)


def test_a_rate_counts_the_tokens_of_a_prompt_and_those_behind_it() -> None:
    steps = [10.0 + length / 10 for length in range(64, 67)]
    prompt, alone, both, deep = (
        rate(PROMPTS, STEPS, **how, batch=2)
        for how in ({"prompt": 64}, {"new": 1, "context": 64}, {"prompt": 64, "new": 3}, {"new": 3, "context": 64})
    )

    assert [entry.test for entry in (prompt, alone, both, deep)] == ["pp64", "tg1 @ d64", "pp64+tg3", "tg3 @ d64"]
    assert (prompt.tokens, prompt.ms, prompt.executions) == (128, 180.0, 1)
    assert prompt.tokens_per_s == pytest.approx(1000 * 128 / 180)
    assert prompt.tokens_per_s_ci95 == pytest.approx((128_000 / 190, 128_000 / 170))
    assert (alone.ms, alone.each_ms) == (steps[0], steps[0])
    assert alone.each_ci95_ms == pytest.approx((steps[0] - 1, steps[0] + 1))
    assert (both.tokens, both.ms) == (2 * 67, pytest.approx(180 + sum(steps)))
    assert (deep.executions, deep.interpolated, deep.each_ms) == (3, 2, pytest.approx(sum(steps) / 3))
    assert rate(PROMPTS, STEPS, new=2).ms is None  # a step behind nothing was not measured
    assert rate(PROMPTS, STEPS, new=2).tokens_per_s is None


def test_nothing_is_said_beyond_the_measured_lengths() -> None:
    found = curve(40.0, 1.3)

    assert found.at(31) is None
    assert found.at(513) is None
    assert Curve(()).at(1) is None
