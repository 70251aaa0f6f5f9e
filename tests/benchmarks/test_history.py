"""The test of change points: the same series for every detector, and what is counted of them."""

from __future__ import annotations

import json
from pathlib import Path

import history
import numpy as np

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def test_every_detector_gets_the_same_series() -> None:
    one, other = (list(history.noise(1, 2, 30)) for _ in range(2))

    assert np.array_equal(one, other)
    assert not np.array_equal(one, list(history.noise(2, 2, 30)))
    assert len(list(history.noise(1, 2, 30, slow=True))) == 2


def test_an_alarm_is_counted_once_and_only_with_its_median() -> None:
    logs = np.array([0.0, 0.01] * 10 + [0.2, 0.21] * 3)
    spoilt = np.array([0.0, 0.01] * 10 + [0.2, 0.0, 0.01])

    def at_20(part):
        return [20] if part.size > 22 else []

    assert [(at, last) for at, last, _ in history.run_by_run(at_20, logs)] == [(20, 22)]
    assert history.run_by_run(at_20, spoilt) == []


def test_only_steps_in_time_and_in_the_right_direction_count() -> None:
    def sign(logs):
        return np.sign(logs[20:].mean())

    def share(detector):
        return history.found(detector, 0.05, 3, 20, series=20, seed=1)

    assert share(lambda logs: [(20, 22, sign(logs))]) == 1.0
    assert share(lambda logs: [(22, 22, sign(logs))]) == 1.0
    assert share(lambda logs: [(20, 22, -sign(logs))]) == 0.0
    assert share(lambda logs: [(15, 22, sign(logs))]) == 0.0
    assert history.false_alarms(lambda logs: [(3, 5, 1.0)], 100, 10, seed=1) == (100.0, 0.0)


def test_the_page_is_that_of_the_data() -> None:
    result = json.loads((RESULTS / "history.json").read_text())

    assert (RESULTS / "history.md").read_text() == history.page(result)
    assert not result["not_installed"]


def test_our_own_detector_does_what_was_asked_for() -> None:
    ours, *_ = json.loads((RESULTS / "history.json").read_text())["detectors"]

    assert ours["detector"] == "dlbricks"
    assert all(sum(rates) <= history.MOST_FALSE for rates in ours["false_per_1000"].values())
    for size, within, least in history.STEPS:
        assert ours["found"][f"step of {size:.0%} within {within}"]["20"] >= least
