"""Measurements on the user's own inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from dlbricks.db import Store, Subject
from dlbricks.db.values import runtime_from
from dlbricks.errors import UsageError
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.trial import Contender, Trial, TrialPair, place_of, try_out
from dlbricks.models import ModelSource, find_models
from dlbricks.models.runnable import Runnable

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[4, 8] x) => (float[4, 8] y) '
PLAIN = HEAD + "{ y = Relu(x) }"
GUARDED = HEAD + "<float low = {0.0}, float high = {6.0}> { y = Clip(x, low, high) }"
SHORT = {"visits": 2, "processes": 1, "sessions": 1}


def write(path: Path, text: str) -> Path:
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    (found,) = find_models([write(tmp_path / "plain.onnx", PLAIN)])
    return found


def inputs(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def test_outputs_are_compared_on_every_file_and_the_first_is_timed(source: ModelSource, tmp_path: Path):
    place = place_of(runtime_from({}), 1)
    sides = [
        Contender(Runnable(path, synthetic=False), place)
        for path in (source.path, write(tmp_path / "guarded.onnx", GUARDED))
    ]
    small = inputs(tmp_path / "small.npz", x=np.full((4, 8), 2.0, np.float32))
    large = inputs(tmp_path / "large.npz", x=np.full((4, 8), 24.0, np.float32))

    tried = try_out([TrialPair(*sides, feeds=feeds) for feeds in ((), (small,), (small, large))], visits=4, processes=1)

    assert all(isinstance(trial, Trial) and trial.visits == 4 for trial in tried)
    assert [trial.largest_error for trial in tried] == [0.0, 0.0, pytest.approx(0.75)]


def test_latencies_on_own_inputs_are_stored_apart(source: ModelSource, tmp_path: Path):
    data = inputs(tmp_path / "own.npz", x=np.zeros((4, 8), np.float32))
    with Store.open(tmp_path / "results.db") as store:
        (row,) = measure([source], store=store, data=data, cache="hot", **SHORT).rows
        plain = store.measurements(subject=Subject.MODEL, variant="")
        (stored,) = store.measurements(subject=Subject.MODEL, variant=None)

    assert row.error is None
    assert plain == []
    assert stored.variant.startswith("data:")
    assert row.latency_ms == stored.latency_ns / 1e6


def test_a_failure_names_the_input_whose_made_up_values_may_be_its_cause(tmp_path: Path):
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4, 8] x, int64[3] size) => (float[a, b, c] y) '
    (source,) = find_models([write(tmp_path / "sized.onnx", text + "{ y = Reshape(x, size) }")])
    with Store.open(tmp_path / "results.db") as store:
        (row,) = measure([source], store=store, cache="hot", **SHORT).rows

    assert row.error is not None
    assert "suspect: the values of 'size' are made up; give yours with --data" in row.error


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"z": np.zeros((4, 8), np.float32)}, "has z, and the inputs are x"),
        ({"x": np.zeros((4, 7), np.float32)}, r"'x' is float32\[4, 7\], and the input is float32\[4, 8\]"),
        ({"x": np.zeros((4, 8), np.int64)}, r"'x' is int64\[4, 8\], and the input is float32\[4, 8\]"),
    ],
)
def test_inputs_that_do_not_fit_are_wrong_usage(source: ModelSource, tmp_path: Path, arrays, told: str):
    data = inputs(tmp_path / "own.npz", **arrays)

    with Store.open(tmp_path / "results.db") as store, pytest.raises(UsageError, match=told):
        measure([source], store=store, data=data, **SHORT)


@pytest.mark.parametrize("write_other", [lambda path: np.save(path, np.zeros(3)), lambda path: path.write_bytes(b"no")])
def test_a_file_of_another_kind_is_wrong_usage(source: ModelSource, tmp_path: Path, write_other):
    data = tmp_path / "own.npy"
    write_other(data)

    with Store.open(tmp_path / "results.db") as store, pytest.raises(UsageError, match="not an npz file"):
        measure([source], store=store, data=data, **SHORT)
