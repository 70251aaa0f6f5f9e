"""The options of a run as one value."""

from __future__ import annotations

import math

import pytest
from dlbricks.errors import UsageError
from dlbricks.generator.measurement.settings import Settings


@pytest.mark.parametrize(
    ("settings", "copies"),
    [
        (Settings(), 0),
        (Settings(cache="cold"), 1),
        (Settings(options={"execution": "sequential"}), 0),
        (Settings(options={"execution": "parallel"}), 1),
    ],
)
def test_copies_that_would_change_the_latency_are_not_made(settings, copies):
    assert settings.unroll == copies


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", ["budget_s", "item_timeout_s"])
def test_times_are_positive_numbers(name, seconds):
    with pytest.raises(UsageError, match=f"{name} cannot be"):
        Settings(**{name: seconds}).check()


@pytest.mark.parametrize("name", ["visits", "processes", "sessions"])
def test_there_is_one_of_each_at_least(name):
    with pytest.raises(UsageError, match=f"{name} cannot be 0"):
        Settings(**{name: 0}).check()
