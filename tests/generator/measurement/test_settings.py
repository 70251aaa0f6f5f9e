"""The options of a run as one value."""

from __future__ import annotations

import math

import pytest
from dlbricks.errors import UsageError
from dlbricks.generator.measurement.settings import MeasurementSettings


@pytest.mark.parametrize(
    ("settings", "copies"),
    [
        (MeasurementSettings(), 0),
        (MeasurementSettings(cache="cold"), 1),
        (MeasurementSettings(options={"execution": "sequential"}), 0),
        (MeasurementSettings(options={"execution": "parallel"}), 1),
    ],
)
def test_copies_that_would_change_the_latency_are_not_made(settings, copies):
    assert settings.unroll == copies


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", ["budget_s", "item_timeout_s"])
def test_times_are_positive_numbers(name, seconds):
    with pytest.raises(UsageError, match=f"{name} cannot be"):
        MeasurementSettings(**{name: seconds}).check()


@pytest.mark.parametrize("name", ["visits", "processes", "sessions"])
def test_there_is_one_of_each_at_least(name):
    with pytest.raises(UsageError, match=f"{name} cannot be 0"):
        MeasurementSettings(**{name: 0}).check()
