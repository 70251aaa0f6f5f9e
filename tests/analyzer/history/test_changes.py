"""Changes of level: found where they are, in time, and not where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from dlbricks.analyzer.history.changes import FEWEST, confirmed_shifts, level_difference, shifts


def series(seed: int, *levels: tuple[float, int], scatter: float = 0.01) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(level * np.exp(rng.normal(0, scatter))) for level, count in levels for _ in range(count)]


def found(*arguments, **more):
    return [one.at for one in shifts(series(*arguments), **more)]


@pytest.mark.parametrize(
    ("factor", "runs", "near", "share"),
    [
        (1.05, 3, {20}, 0.95),
        (1 / 1.05, 3, {20}, 0.95),
        (1.03, 6, {*range(18, 23)}, 0.9),
        (1 / 1.03, 6, {*range(18, 23)}, 0.9),
    ],
)
def test_a_step_is_found_within_a_few_runs(factor, runs, near, share):
    hits = sum(bool(near & {*found(seed, (1.0, 20), (factor, runs))}) for seed in range(100))

    assert hits >= 100 * share


def test_what_does_not_change_raises_hardly_an_alarm():
    alarms = sum(len(found(seed, (1.0, 100))) for seed in range(100))

    assert alarms <= 10, "in 10,000 runs"


def test_one_slow_run_is_no_change():
    latencies = series(1, (1.0, 40))
    latencies[30] *= 1.5

    assert shifts(latencies) == []
    assert shifts(latencies[:31]) == []


def test_a_change_smaller_than_what_matters_is_none():
    assert found(0, (1.0, 30), (1.03, 30)) == [30]
    assert found(0, (1.0, 30), (1.03, 30), minimum_effect=0.05) == []


def test_an_alarm_that_later_runs_do_not_bear_out_is_withdrawn():
    quiet = series(2, (1.0, 30))
    slow = [*quiet, *series(3, (1.04, 3), scatter=0.003)]
    later = [*slow, *series(4, (1.0, 40), (1.1, 10))]

    assert [one.at for one in confirmed_shifts(slow)] == [one.at for one in shifts(slow)] == [30]
    assert len(shifts(later)) == 2
    (one,) = confirmed_shifts(later)
    assert (one.at, one.begin, one.end) == (73, 0, 83)


def test_what_is_known_of_a_change():
    (one,) = shifts(series(5, (2.0, 25), (2.2, 10)))

    assert (one.begin, one.at, one.end) == (0, 25, 35)
    assert 25 <= one.found < 35
    assert one.at in one.places
    assert one.seen.ci95[0] < 1.1 < one.seen.ci95[1]


def test_two_groups_of_runs():
    seen = level_difference([1.0, 1.01, 0.99], [1.1, 1.11, 1.09])

    assert seen is not None
    assert seen.ratio == pytest.approx(1.1, abs=0.001)
    assert seen.p < 0.001
    assert level_difference([1.0], [1.1, 1.2]) is None


def test_changes_that_follow_each_other_within_three_runs_stand_where_they_were_found() -> None:
    """One alarm before them is withdrawn, since later runs do not bear it out; what is left lies close together."""
    runs = [
        1.003, 1.0, 0.9985, 1.001, 0.9998, 0.9975, 0.9982, 1.0035, 1.0349, 1.035, 1.0336, 1.0241, 1.0274, 1.0253, 1.024,
        1.0252, 1.0237, 0.9765, 0.9784, 0.9745, 0.8914, 0.8877, 0.8891, 0.1851, 0.1853, 0.1854,
    ]  # fmt: skip

    found = confirmed_shifts(runs, minimum_effect=0.03)

    assert [one.at for one in found][-1] == 23
    assert all(abs(one.seen.ratio - 1) >= 0.029 for one in found)


def test_up_and_down_are_alike():
    up = series(3, (1.0, 20), (1.1, 10), (1.0, 20))
    down = [1 / one for one in up]

    assert [one.at for one in shifts(up)] == [one.at for one in shifts(down)] == [20, 30]
    assert shifts(up)[0].seen.ratio == pytest.approx(1 / shifts(down)[0].seen.ratio)


def test_series_of_equal_runs_and_short_ones():
    assert shifts([]) == shifts([1.0]) == shifts([1.0] * 40) == []
    assert shifts([1.0] * (FEWEST - 2) + [2.0]) == []
    assert [one.at for one in shifts([1.0] * 10 + [1.1] * 10)] == [10]
