"""What is known of a method's error, and of which methods nothing is."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files

import pytest
from dlbricks.constructor.uncertainty.calibration import Method, method_error_sd, scatter_of
from dlbricks.db import Stack, Subject
from hypothesis import given
from hypothesis import strategies as st

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


ROWS = json.loads(files("dlbricks.constructor.uncertainty").joinpath("scatter.json").read_text("utf-8"))
SUBJECTS = st.sampled_from([Subject.BRICK, Subject.MODEL, Subject.REFERENCE])


def rows_of(subject, threads, kind):
    of = "model" if subject is Subject.MODEL else "bricks"
    return {
        (row["backend"], row["device"]): row[kind]["sd"]
        for row in ROWS
        if row["of"] == of and row["threads"] == min(threads, 2) and row[kind] is not None
    }


@given(
    st.sampled_from(["onnxruntime", "torch", "another"]), st.sampled_from(["cpu", "cuda"]), st.integers(1, 9), SUBJECTS
)
def test_scatter_is_that_of_the_place_or_said_to_be_a_guess_that_is_no_narrower(backend, device, threads, subject):
    found = scatter_of(Stack(backend, device, ()), threads, subject)
    reported = {kind: rows_of(subject, threads, kind) for kind in ("processes", "runs")}
    place = backend, device

    assert found.known is all(place in rows for rows in reported.values())
    for kind, sd in (("processes", found.process_sd), ("runs", found.run_sd)):
        assert sd == reported[kind].get(place, max(reported[kind].values()))
        assert 0 < sd < 1


def test_every_scatter_has_its_source():
    for row in ROWS:
        for reported in (row["processes"], row["runs"]):
            assert reported is None or (reported["sources"] and reported["models"] >= 10)


@given(st.integers(1, 9), SUBJECTS)
def test_without_a_stack_scatter_is_a_guess(threads, subject):
    assert not scatter_of(None, threads, subject).known
