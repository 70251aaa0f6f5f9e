from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from dlbricks.constructor.interval import draw
from dlbricks.db import Conditions, Measurement, Stop, Subject, Verdict
from hypothesis import given
from hypothesis import strategies as st


def measured(key: str, blocks: tuple[float, ...], run: str = "r", median: float | None = None) -> Measurement:
    centre = float(np.median(blocks)) if median is None else median
    return Measurement(
        id=f"id-{key}", run=run, subject=Subject.BRICK, key=key, system="s", stack="t", conditions=Conditions(1),
        unroll=1, median_ns=centre, mean_ns=centre, trimmed_mean_ns=centre, min_ns=centre, p90_ns=centre,
        p99_ns=centre, ci95_ns=(centre - 2.0, centre + 2.0), samples=10, block_medians_ns=blocks,
        verdict=Verdict.STABLE, stop=Stop.CONVERGED,
    )  # fmt: skip


def test_blocks_that_agree_leave_no_doubt():
    draws = draw([measured("a", (5.0,) * 6), measured("b", (7.0,) * 4)])
    assert draws.interval_ns({"a": 3, "b": 1}) == (22.0, 22.0)


def test_it_is_repeatable_and_does_not_depend_on_the_other_bricks():
    a, b, c = (measured(key, tuple(np.random.default_rng(ord(key)).normal(100, 5, 6))) for key in "abc")
    alone = draw([a]).interval_ns({"a": 2})
    assert draw([c, b, a]).interval_ns({"a": 2}) == alone
    assert not np.array_equal(draw([a], seed=1).values, draw([a]).values)


def test_all_occurrences_of_a_brick_share_its_draw():
    draws = draw([measured("a", (90.0, 100.0, 104.0, 110.0, 97.0, 101.0))])
    low, high = draws.interval_ns({"a": 1})
    assert draws.interval_ns({"a": 10}) == pytest.approx((10 * low, 10 * high))


def test_drift_that_all_bricks_saw_together_does_not_average_out():
    """A machine that was 10 % slower in half of its rounds leaves 10 % of doubt, in a hundred bricks as in one."""
    drift = np.array([1.0, 1.0, 1.0, 1.1, 1.1, 1.1])
    together = [measured(f"{i:064d}", tuple(100.0 * drift)) for i in range(100)]
    low, high = draw(together).interval_ns({m.key: 1 for m in together})
    assert (high - low) / (high + low) * 2 > 0.05
    apart = [dataclasses.replace(m, run=m.key) for m in together]  # each brick in a run of its own
    low, high = draw(apart).interval_ns({m.key: 1 for m in apart})
    assert (high - low) / (high + low) * 2 < 0.03


def test_it_covers_what_it_promises():
    """Blocks of independent noise: a 95 % interval of six blocks holds the truth in most of 300 repetitions."""
    rng = np.random.default_rng(7)
    hits = 0
    for i in range(300):
        low, high = draw([measured(f"{i}", tuple(rng.normal(100, 3, 6)))]).interval_ns({f"{i}": 1})
        hits += low <= 100 <= high
    assert 0.85 <= hits / 300 <= 1.0


def test_a_single_block_stands_for_its_own_interval():
    low, high = draw([measured("a", (100.0,))], draws=20_000).interval_ns({"a": 1})
    assert (low, high) == pytest.approx((98.0, 102.0), abs=0.2)


def test_draws_are_centred_on_the_measured_median():
    low, high = draw([measured("a", (90.0, 100.0, 110.0), median=103.0)]).interval_ns({"a": 1})
    assert (low, high) == pytest.approx((93.0, 113.0))


def test_nothing_is_certain():
    assert draw([]).interval_ns({}) == (0.0, 0.0)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.lists(st.floats(1, 1e6), min_size=1, max_size=7), min_size=1),
    st.data(),
)
def test_bounds_of_the_interval(blocks, data):
    """It lies within the sums of the lowest and of the highest blocks, wherever there is more than one."""
    bricks = [measured(key, tuple(values)) for key, values in blocks.items() if len(values) > 1]
    counts = {brick.key: data.draw(st.integers(1, 5)) for brick in bricks}
    low, high = draw(bricks, draws=50).interval_ns(counts)
    least = sum(counts[brick.key] * min(brick.block_medians_ns) for brick in bricks)
    most = sum(counts[brick.key] * max(brick.block_medians_ns) for brick in bricks)
    assert least * (1 - 1e-9) <= low <= high <= most * (1 + 1e-9)
