"""Robust statistics of blocks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dlbricks.db.values import Block, Verdict
from dlbricks.generator.statistics import block_values, median_interval, summarise, trimmed_mean
from hypothesis import given, settings
from hypothesis import strategies as st


def _block(process: int, round_: int, values: list[int], loops: int = 1) -> Block:
    return Block(process, round_, tuple((value * loops, loops) for value in values))


def test_times_are_of_one_execution():
    block = Block(0, 0, ((6000, 3), (8000, 4)))

    assert block_values([block], unroll=2)[0].tolist() == [1000.0, 1000.0]


def test_statistics_of_known_samples():
    summary = summarise([_block(0, 0, [1, 2, 3, 4, 5]), _block(1, 0, [6, 7, 8, 9, 100])], unroll=1)

    assert summary.median_ns == 5.5
    assert summary.mean_ns == 14.5
    assert summary.trimmed_mean_ns == 5.5  # 3 .. 8
    assert summary.min_ns == 1
    assert summary.samples == 10
    assert summary.block_medians_ns == (3.0, 8.0)
    assert summary.p90_ns == pytest.approx(np.quantile([*range(1, 10), 100], 0.9))


def test_no_samples_are_no_statistics():
    with pytest.raises(ValueError, match="without samples"):
        summarise([Block(0, 0, ())], unroll=1)


def test_an_outlier_does_not_move_the_trimmed_mean():
    assert trimmed_mean(np.asarray([1.0, 2.0, 2.0, 2.0, 1e9])) == 2.0


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 1000), min_size=1, max_size=8), min_size=2, max_size=4),
)
def test_the_interval_is_the_bootstrap_over_blocks(values):
    """Against the definition: all n^n ordered resamples, their pooled medians, and the widened percentiles."""
    arrays = [np.asarray(entry, dtype=float) for entry in values]
    count = len(arrays)
    medians = sorted(
        float(np.median(np.concatenate([arrays[index] for index in chosen])))
        for chosen in itertools.product(range(count), repeat=count)
    )
    quantile = {2: 12.706, 3: 4.303, 4: 3.182}[count] * math.sqrt(count / (count - 1))
    tail = 0.5 * math.erfc(quantile / math.sqrt(2))
    expected_low = medians[max(0, math.ceil(round(tail * len(medians), 9)) - 1)]
    expected_high = medians[max(0, math.ceil(round((1 - tail) * len(medians), 9)) - 1)]

    assert median_interval(arrays) == (expected_low, expected_high)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=20), min_size=1, max_size=9))
def test_the_interval_lies_within_the_samples(values):
    arrays = [np.asarray(entry, dtype=float) for entry in values]

    low, high = median_interval(arrays)

    assert min(map(min, values)) <= low <= high <= max(map(max, values))


def test_the_interval_is_repeatable():
    arrays = [np.random.default_rng(seed).normal(100, 5, 40) for seed in range(8)]

    assert median_interval(arrays) == median_interval(arrays)


def test_the_interval_covers_the_true_median_where_blocks_differ():
    """Six blocks with shifts of their own, as processes and rounds have; nominal coverage is 95 %."""
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(300):
        blocks = [generator.normal(100 + generator.normal(0, 3), 1, 15) for _ in range(6)]
        low, high = median_interval(blocks)
        covered += low <= 100 <= high

    assert covered / 300 > 0.9


def test_one_block_has_the_interval_of_its_order_statistics():
    low, high = median_interval([np.arange(1.0, 101.0)])

    assert (low, high) == (40.0, 61.0)


def test_verdicts():
    quiet = [_block(process, round_, [1000, 1001] * 5) for process in range(2) for round_ in range(3)]
    noisy = [_block(process, 0, [1000 + 50 * process] * 10) for process in range(2)]
    unstable = [_block(process, 0, [1000 + 500 * process] * 10) for process in range(2)]

    assert summarise(quiet, 1).verdict is Verdict.STABLE
    assert summarise(noisy, 1).verdict is Verdict.NOISY
    assert summarise(unstable, 1).verdict is Verdict.UNSTABLE
    assert summarise([_block(0, 0, [1000] * 9)], 1).verdict is Verdict.TIMED_OUT


def test_many_samples_are_done_piecewise():
    """Ranks of all resamples at once would take gigabytes here."""
    arrays = [np.random.default_rng(seed).normal(100, 5, 20_000) for seed in range(6)]

    low, high = median_interval(arrays)

    assert 99.5 < low < high < 100.5
