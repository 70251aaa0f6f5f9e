"""What is known of a method's error, and of which methods nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dlbricks.constructor.uncertainty.calibration import Method, method_error_sd

EXECUTED = Method("onnxruntime", "cpu", "runtime", 1, "model", 1, 1, "float32")


def test_what_was_held_against_models_is_known():
    assert 0 < method_error_sd(EXECUTED) < 0.1


@pytest.mark.parametrize(
    "other",
    [{"backend": "another"}, {"device": "cuda"}, {"cache": "cold"}, {"cache": "64MiB"}, {"dtype": "int8"}],
    ids=str,
)
def test_nothing_is_taken_over_from_another_method(other):
    assert method_error_sd(replace(EXECUTED, **other)) is None


@pytest.mark.parametrize("name", ["granularity", "threads", "batch"])
def test_what_is_more_than_one_is_one_class_of_its_own(name):
    several = replace(EXECUTED, **{name: 4})

    assert several == replace(EXECUTED, **{name: 2}) != EXECUTED
