"""The time of an answer from two curves."""

from __future__ import annotations

import pytest
from dlbricks.constructor.curve import Curve, Point
from dlbricks.constructor.tokens import generation, lengths_between, steps_of

PROMPTS = Curve.through([Point(32, 100.0, (90.0, 110.0)), Point(64, 180.0, (170.0, 190.0))])
STEPS = Curve.through([Point(n, 10.0 + n / 10, (9.0 + n / 10, 11.0 + n / 10)) for n in (32, 64, 128)])


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


def test_one_token_takes_no_step() -> None:
    made = generation(PROMPTS, Curve(()), prompt=64, new=1)

    assert (made.total_ms, made.token_ms, made.tokens_per_s, made.steps) == (180.0, None, None, 0)


def test_what_is_not_known_stays_open() -> None:
    beyond = generation(PROMPTS, STEPS, prompt=64, new=128)
    assert beyond.ttft_ms == 180.0
    assert beyond.token_ms is beyond.total_ms is beyond.tokens_per_s is None

    short = generation(PROMPTS, STEPS, prompt=100, new=2)
    assert short.ttft_ms is short.total_ms is None
    assert short.token_ms == pytest.approx(20.0)


def test_an_interval_that_is_not_known_leaves_that_of_the_sum_open() -> None:
    steps = Curve.through([Point(32, 13.0, (12.0, 14.0)), Point(64, 16.0, (15.0, 17.0))])

    made = generation(PROMPTS, steps, prompt=32, new=3)

    assert made.total_ms == pytest.approx(100.0 + 13.0 + 13.0 + 3 / 32)
    assert made.token_ci95_ms is None


def test_lengths_hold_both_ends_and_double_between() -> None:
    assert lengths_between(32, 512) == (32, 64, 128, 256, 512)
    assert lengths_between(60, 527) == (60, 128, 256, 527)
    assert lengths_between(100, 100) == (100,)
    assert lengths_between(1, 3) == (1, 2, 3)
