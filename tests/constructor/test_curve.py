"""Latency against a length: exact where work is linear or quadratic, honest where it is not, silent beyond."""

from __future__ import annotations

import random

import pytest
from dlbricks.constructor.curve import Curve, Point

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


def test_nothing_is_said_beyond_the_measured_lengths() -> None:
    found = curve(40.0, 1.3)

    assert found.at(31) is None
    assert found.at(513) is None
    assert Curve(()).at(1) is None


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
