"""Stalls of the scheduler in the visits of a pack."""

import numpy as np
import pytest
from dlbricks.generator.worker.execution.pack import without_stalls
from hypothesis import given
from hypothesis import strategies as st

US = 1e3


def test_a_stall_is_shared_by_all_bricks_of_its_visit():
    times = np.tile([100 * US, 300 * US, 600 * US], (6, 1))
    times[2, 0] += 5000 * US

    even = without_stalls(times)

    assert even.sum(axis=1) == pytest.approx(times.sum(axis=1))
    assert even[2, 2] / even[2, 1] == pytest.approx(2)
    assert even[2, 0] < 0.35 * times[2, 0]
    assert (even[[0, 1, 3, 4, 5]] == times[[0, 1, 3, 4, 5]]).all()


def test_a_machine_that_is_slow_for_a_while_stalls_nothing():
    times = np.tile([100 * US, 300 * US], (6, 1))
    times[3:] *= 2

    assert (without_stalls(times) == times).all()


@given(st.lists(st.lists(st.integers(0, 10**9), min_size=3, max_size=3), min_size=1, max_size=8))
def test_the_sum_of_a_visit_stays(rows):
    times = np.array(rows, dtype=float)

    even = without_stalls(times)

    assert even.sum(axis=1) == pytest.approx(times.sum(axis=1))
    assert (even >= 0).all()
