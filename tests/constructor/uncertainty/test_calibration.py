"""Errors of methods are known where they were fitted and held; elsewhere the widest known error stands in."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from dlbricks.constructor.uncertainty.calibration import (
    CALIBRATION,
    Calibration,
    Method,
    fitted_sd,
    method_error,
    scatter_of,
    share_held,
)
from dlbricks.db import Run, Stack, Subject
from hypothesis import given
from hypothesis import strategies as st

EXECUTED = Method("onnxruntime", "cpu", "runtime", 1, "model", 1, 1, "float32")
SHIPPED = json.loads(files("dlbricks.constructor.uncertainty").joinpath("calibration.json").read_text("utf-8"))
CPU = next(row["cpu"] for row in SHIPPED if row["method"] == {name: getattr(EXECUTED, name) for name in row["method"]})


def widest(**alike):
    return max(row["widest"] for row in SHIPPED if row["method"].items() >= alike.items())


def test_an_error_that_held_is_known():
    found = method_error(EXECUTED, CPU)

    assert found.known
    assert 0 < found.sd < widest(backend="onnxruntime", device="cpu", graph="runtime", threads=1)


@pytest.mark.parametrize("row", SHIPPED, ids=lambda row: " ".join(map(str, row["method"].values())))
def test_only_an_error_that_held_on_other_data_is_known(row):
    assert method_error(Method(**row["method"]), row["cpu"]).known is row["holds"]


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        ({"cache": "cold"}, ("backend", "device", "graph", "threads")),
        ({"dtype": "int8"}, ("backend", "device", "graph", "threads")),
        ({"batch": 7}, ("backend", "device", "graph", "threads")),
        ({"granularity": 3}, ("backend", "device", "graph", "threads")),
        ({"threads": 3}, ("backend", "device", "graph")),
        ({"backend": "another"}, ("device",)),
        ({"device": "cuda"}, ("device",)),
        ({"device": "npu"}, ()),
    ],
    ids=str,
)
def test_elsewhere_the_widest_error_of_the_most_similar_methods_stands_in(other, alike):
    method = replace(EXECUTED, **other)

    found = method_error(method, CPU)

    assert not found.known
    assert found.sd == widest(**{name: getattr(method, name) for name in alike})


def test_a_fit_that_does_not_hold_gives_the_widest_error_of_its_own_cpu():
    """If other data judged it: a fit that nothing judged says less than what similar methods missed by."""
    own = [
        Calibration(EXECUTED, "mine", 0.1, 0.2, holds=False, judged=True),
        Calibration(EXECUTED, "unjudged", 0.1, 0.3, holds=False),
        Calibration(EXECUTED, "another", 0.1, 0.9, holds=False),
    ]

    assert method_error(EXECUTED, "mine", own).sd == 0.2
    assert not method_error(EXECUTED, "mine", own).known
    assert method_error(EXECUTED, "unjudged", own).sd == method_error(EXECUTED, "a third", own).sd == 0.9


def test_another_cpu_is_not_calibrated():
    found = method_error(EXECUTED, "another CPU")

    assert not found.known
    assert found.sd == widest(backend="onnxruntime", device="cpu", graph="runtime", threads=1)


def run_with(sd, system="a", method=EXECUTED, minute=0):
    row = Calibration(method, "", sd, sd, holds=True).record()
    return Run(
        str(minute),
        f"2026-11-25T10:{minute:02}:00+00:00",
        "0",
        "system --calibrate",
        None,
        system,
        "s",
        {CALIBRATION: [row]},
    )


def test_a_users_own_fit_on_the_system_goes_first_and_the_latest_counts():
    runs = [
        run_with(0.5),
        run_with(0.02, minute=1),
        run_with(0.3, system="b", minute=2),
        Run("r", "", "0", "run", None, "a", "s"),
    ]

    own = Calibration.of_runs(runs, "a", "my CPU")

    assert method_error(EXECUTED, "my CPU", own).sd == 0.02
    assert method_error(EXECUTED, "my CPU", own).known
    assert not method_error(replace(EXECUTED, threads=4), "my CPU", own).known
    assert method_error(replace(EXECUTED, threads=4), "my CPU", own).sd == max(0.5, widest(graph="runtime"))


@pytest.mark.parametrize(
    "stored",
    ["no list", [None], [{"sd": 0.1}], [{"method": {"backend": "x"}, "sd": 0.1}], [{"method": {}, "sd": "wide"}],
     [{**Calibration(EXECUTED, "", 0.1, 0.1, holds=True).record(), "sd": math.nan}]],
    ids=str,
)  # fmt: skip
def test_other_contents_of_a_foreign_database_are_no_fit(stored):
    run = Run("r", "", "0", "run", None, "a", "s", {CALIBRATION: stored})

    assert Calibration.of_runs([run], "a", CPU) == ()


@given(st.integers(0, 2**32 - 1), st.integers(20, 200), st.floats(0.005, 0.3), st.floats(0.005, 0.3))
def test_a_fit_to_normal_errors_finds_their_deviation(seed, count, sd, sampling):
    rng = np.random.default_rng(seed)
    errors = rng.normal(0, math.hypot(sd, sampling), size=count)
    halves = np.full(count, 1.96 * sampling)

    found = fitted_sd(errors, halves)

    assert share_held(errors, halves, found + 1e-9) >= 0.95
    assert found <= np.abs(errors).max() / 1.95


ROWS = json.loads(files("dlbricks.constructor.uncertainty").joinpath("scatter.json").read_text("utf-8"))
SUBJECTS = st.sampled_from([Subject.BRICK, Subject.MODEL, Subject.REFERENCE])


def rows_of(subject, threads, kind):
    of = "model" if subject is Subject.MODEL else "bricks"
    return {
        (row["backend"], row["device"]): row[kind]["sd"]
        for row in ROWS
        if row["of"] == of and row["threads"] == threads and row[kind] is not None
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
        alike = reported[kind].values() or [row[kind]["sd"] for row in ROWS if row[kind] is not None]
        assert sd == reported[kind].get(place, max(alike))
        assert 0 < sd < 1


def test_every_scatter_has_its_source():
    for row in ROWS:
        for reported in (row["processes"], row["runs"]):
            assert reported is None or (reported["sources"] and reported["models"] >= 10)


@given(st.integers(1, 9), SUBJECTS)
def test_without_a_stack_scatter_is_a_guess(threads, subject):
    assert not scatter_of(None, threads, subject).known
