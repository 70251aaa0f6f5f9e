"""The options of a run as one value."""

from __future__ import annotations

import math

import pytest
from dlbricks.db.values import Conditions, Runtime
from dlbricks.errors import UsageError
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from dlbricks.generator.measurement.settings import MeasurementFields, MeasurementSettings, settings_from


@pytest.mark.parametrize(
    ("fields", "copies"),
    [
        ({}, 0),
        ({"cache": "cold"}, 1),
        ({"options": {"execution": "sequential"}}, 0),
        ({"options": {"execution": "parallel"}}, 1),
    ],
)
def test_copies_that_would_change_the_latency_are_not_made(fields, copies):
    assert MeasurementSettings.of(fields).unroll == copies


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", ["budget_s", "item_timeout_s"])
def test_times_are_positive_numbers(name, seconds):
    with pytest.raises(UsageError, match=f"{name} cannot be"):
        MeasurementSettings(**{name: seconds}).check()


@pytest.mark.parametrize("name", ["visits", "processes", "sessions"])
def test_there_is_one_of_each_at_least(name):
    with pytest.raises(UsageError, match=f"{name} cannot be 0"):
        MeasurementSettings(**{name: 0}).check()


def test_every_setting_is_a_keyword_and_recorded():
    fields = {name: value for name, value in MeasurementSettings().record().items() if value is not None}

    assert {*MeasurementSettings().record()} == {*MeasurementFields.__annotations__}
    assert MeasurementSettings.of(fields) == MeasurementSettings()


def test_keywords_and_settings_are_the_same():
    settings = MeasurementSettings(Runtime.of("onnxruntime", options={"execution": "parallel"}), Conditions(2, "model"))

    assert settings_from(None, {}) == MeasurementSettings()
    assert settings_from(None, {"options": None}) == MeasurementSettings()
    assert settings_from(None, {"threads": 2, "options": {"execution": "parallel"}}) == settings
    assert settings_from(settings, {}) is settings
    with pytest.raises(TypeError, match="'thread'"):
        settings_from(None, {"thread": 2})


@pytest.mark.parametrize("call", [run, measure])
def test_settings_and_keywords_together_are_wrong_usage(call, store):
    with pytest.raises(UsageError, match="threads, cache beside them"):
        call("suite", store=store, settings=MeasurementSettings(), threads=2, cache="hot")
    assert not store.runs()


def test_what_is_measured_has_the_settings_that_were_given(small_suite, small_models, store):
    settings = MeasurementSettings.of({"cache": "hot", "visits": 6, "processes": 1, "sessions": 1})

    ran = run(small_suite, store=store, settings=settings)
    measured = measure(small_models, store=store, settings=settings)

    assert (ran.measured, ran.remaining, measured.complete) == (10, 0, True)
    assert {one.conditions for one in store.measurements()} >= {settings.conditions}
    assert run(small_suite, store=store, cache="hot", visits=6).reused == 10
