"""Measurements on the user's own inputs."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from dlbricks.analyzer.estimation.estimate import estimate
from dlbricks.bricks.decomposition import Decomposition, Failed
from dlbricks.db import Store
from dlbricks.db.values import runtime_from
from dlbricks.errors import UsageError
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decompose import decompose
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.trial import Contender, Trial, TrialPair, place_of, try_out
from dlbricks.models import ModelSource, find_models
from dlbricks.models.runnable import Runnable

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[4, 8] x) => (float[4, 8] y) '
PLAIN = HEAD + "{ y = Relu(x) }"
GUARDED = HEAD + "<float low = {0.0}, float high = {6.0}> { y = Clip(x, low, high) }"
SIZED = (
    '<ir_version: 8, opset_import: ["" : 17]> g (float[4, 8] x, int64[3] size) => (float[a, b, c] y) '
    "{ y = Reshape(x, size) }"
)
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
    before, after = (
        Contender(Runnable(path, synthetic=False), place)
        for path in (source.path, write(tmp_path / "guarded.onnx", GUARDED))
    )
    small = inputs(tmp_path / "small.npz", x=np.full((4, 8), 2.0, np.float32))
    large = inputs(tmp_path / "large.npz", x=np.full((4, 8), 24.0, np.float32))

    fed = [replace(before, runnable=replace(before.runnable, feeds=of)) for of in ((), (small,), (small, large))]
    tried = try_out([TrialPair(way, after) for way in fed], visits=4, processes=1)

    assert all(isinstance(trial, Trial) and trial.visits == 4 for trial in tried)
    assert [trial.largest_error for trial in tried] == [0.0, 0.0, pytest.approx(0.75)]


def test_latencies_on_own_inputs_are_stored_apart(source: ModelSource, tmp_path: Path):
    data = inputs(tmp_path / "own.npz", x=np.zeros((4, 8), np.float32))
    (own,) = find_models([source.path], data=[data])
    with Store.open(tmp_path / "results.db") as store:
        (row,) = measure([own], store=store, cache="hot", **SHORT).rows
        (known,) = estimate([own], store=store)
        (other,) = estimate([source], store=store)

    assert row.error is None
    assert known.truth.ms == row.latency_ms
    assert other.truth.ms is None


def test_a_failure_names_the_input_whose_made_up_values_may_be_its_cause(tmp_path: Path):
    (source,) = find_models([write(tmp_path / "sized.onnx", SIZED)])
    with Store.open(tmp_path / "results.db") as store:
        (row,) = measure([source], store=store, cache="hot", **SHORT).rows

    assert row.error is not None
    assert "suspect: the values of 'size' are made up; give yours with --value size=N,N,N)" in row.error


def test_a_failure_names_the_given_values_that_may_be_its_cause(tmp_path: Path):
    (source,) = find_models([write(tmp_path / "sized.onnx", SIZED)], values={"size": "2,2,9"})
    with Store.open(tmp_path / "results.db") as store:
        (row,) = measure([source], store=store, cache="hot", **SHORT).rows

    assert "(suspect: --value size=2,2,9)" in str(row.error)


def test_given_values_decide_shapes_and_are_no_suspects(tmp_path: Path):
    path = write(tmp_path / "sized.onnx", SIZED)
    (source,) = find_models([path], values={"size": "2,2,8"})
    with Store.open(tmp_path / "results.db") as store:
        (row,) = measure([source], store=store, cache="hot", **SHORT).rows
    (model,) = decompose([source], Cut(1))

    assert row.error is None
    assert row.record()["invented"] == []
    assert isinstance(model, Decomposition)
    assert [model.own.types[name].shape for name in model.own.outputs] == [(2, 2, 8)]


def test_one_file_need_not_have_every_input(tmp_path: Path):
    path, data = write(tmp_path / "sized.onnx", SIZED), inputs(tmp_path / "own.npz", size=np.array([4, 4, 2]))
    (source,) = find_models([path], data=[data])
    with Store.open(tmp_path / "results.db") as store:
        (row,) = measure([source], store=store, cache="hot", **SHORT).rows

    assert row.error is None


def test_other_values_are_another_model(tmp_path: Path):
    path = write(tmp_path / "sized.onnx", SIZED)
    sources = [find_models([path], values={"size": size})[0] for size in ("2,2,8", "8,2,2")]

    assert len({model.own.key for model in decompose([*sources, *find_models([path])], Cut(1))}) == 3


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"z": np.zeros((4, 8), np.float32)}, r"no model has an input 'z'; there are: x float\[4, 8\]"),
        ({"x": np.zeros((4, 7), np.float32)}, r"'x' is float32\[4, 7\], and the input is float32\[4, 8\]"),
        ({"x": np.zeros((4, 8), np.int64)}, r"'x' is int64\[4, 8\], and the input is float32\[4, 8\]"),
    ],
)
def test_inputs_that_do_not_fit_are_wrong_usage(source: ModelSource, tmp_path: Path, arrays, told: str):
    (own,) = find_models([source.path], data=[inputs(tmp_path / "own.npz", **arrays)])

    with Store.open(tmp_path / "results.db") as store, pytest.raises(UsageError, match=told):
        measure([own], store=store, **SHORT)


@pytest.mark.parametrize(
    ("name", "numbers", "told"),
    [
        ("sise", "1,2,16", r"no model has an input 'sise'; there are: x float\[4, 8\], size int64\[3\]"),
        ("size", "4,8", r"'size' is int64\[3\], which takes 3 numbers with commas between them, and 2 were given"),
        ("size", "1,2,1.5", r"'size' is int64\[3\], and '1.5' is not a whole number of int64"),
        ("size", "1,2,9223372036854775808", "is not a whole number of int64"),
        ("x", ",".join(["1"] * 31 + ["nan"]), "and 'nan' is not a number of float32"),
        ("x", ",".join(["1"] * 31 + ["1e400"]), "and '1e400' is not a number of float32"),
        ("x", "1", r"'x' is float\[4, 8\], which takes 32 numbers.*; give its array with --data FILE.npz"),
    ],
)
def test_values_that_do_not_fit_are_wrong_usage(tmp_path: Path, name: str, numbers: str, told: str):
    (source,) = find_models([write(tmp_path / "sized.onnx", SIZED)], values={name: numbers})

    with Store.open(tmp_path / "results.db") as store, pytest.raises(UsageError, match=told):
        measure([source], store=store, **SHORT)


def test_values_are_checked_before_sizes_are_asked_for(tmp_path: Path):
    path = write(tmp_path / "sized.onnx", SIZED.replace("float[4, 8] x", "float[4, odd] x"))
    wrong, right = (find_models([path], values={"size": numbers})[0] for numbers in ("4,8", "1,2,16"))

    with Store.open(tmp_path / "results.db") as store:
        with pytest.raises(UsageError, match="which takes 3 numbers"):
            measure([wrong], store=store, **SHORT)
        (row,) = measure([right], store=store, **SHORT).rows

    assert "dimension 'odd'" in str(row.error)


def saved(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def promising(elements: int) -> bytes:
    """A file whose array has a hundred bytes of what its header says."""
    stream, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (elements,)})
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(100))
    return stream.getvalue()


OTHER = {
    "an array": (lambda path: np.save(path, np.zeros(3)), "not an npz file"),
    "no array": (lambda path: path.write_bytes(b"no"), "not an npz file"),
    "objects": (lambda path: path.write_bytes(saved(x=np.array([{}], object))), "of numbers or texts"),
    "a promise of 4 TiB": (lambda path: path.write_bytes(promising(1 << 40)), "not an npz file"),
    "nothing": (lambda path: path.write_bytes(saved()), "has no array"),
}


@pytest.mark.parametrize(("write_other", "told"), OTHER.values(), ids=OTHER)
def test_a_file_of_another_kind_is_wrong_usage(source: ModelSource, tmp_path: Path, write_other, told: str):
    data = tmp_path / "own.npy"
    write_other(data)

    (own,) = find_models([source.path], data=[data])

    with Store.open(tmp_path / "results.db") as store, pytest.raises(UsageError) as caught:
        measure([own], store=store, **SHORT)

    assert told in f"{caught.value} {caught.value.remedy}"


def test_a_failure_names_the_sizes_that_nobody_gave(tmp_path: Path):
    text = '<ir_version: 8, opset_import: ["" : 17]> '
    text += "g (float[s27, 4] x) => (float[a, b] y) <int64[2] shape = {3, 16}> { r = Reshape(x, shape) y = Relu(r) }"
    path = write(tmp_path / "fixed.onnx", text)
    said = "suspect: s27=1 assumed, since not given; set with --dim s27=N)"
    with Store.open(tmp_path / "results.db") as store:
        (refused,) = measure(find_models([path]), store=store, cache="hot", **SHORT).rows
        (measured,) = measure(find_models([path], dims={"s27": 12}), store=store, cache="hot", **SHORT).rows
        (given,) = measure(find_models([path], dims={"s27": 5}), store=store, cache="hot", **SHORT).rows
    (executed,) = decompose(find_models([path]), Cut(1, graph="runtime"))

    assert said in str(refused.error)
    assert measured.error is None
    assert str(given.error).endswith("(suspect: --dim s27=5)")
    assert isinstance(executed, Failed)
    assert said in executed.reason


def test_sizes_that_contradict_each_other_are_named_but_not_those_that_a_command_chose(tmp_path: Path):
    text = '<ir_version: 8, opset_import: ["": 17]> '
    text += "g (float[a, 4] x, float[b, 3] z) => (float[a, 3] y) { y = MatMul(x, z) }"
    (source,) = find_models([write(tmp_path / "two.onnx", text)], dims={"a": 3, "b": 5})
    chosen = replace(source, chosen=frozenset({"b"}))

    (given,), (mine,) = (decompose([one], Cut(1, graph="runtime")) for one in (source, chosen))

    assert isinstance(given, Failed)
    assert given.reason.endswith("(suspect: --dim a=3, --dim b=5)")
    assert isinstance(mine, Failed)
    assert mine.reason.endswith("(suspect: --dim a=3)")


def test_a_file_with_other_weights_is_another_model_and_a_copy_is_the_same(tmp_path: Path):
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2] x) => (float[1, 2] y) <float[2, 2] w = {W}> '
    text += "{ y = MatMul(x, w) }"
    numbers = {"one": "{1, 2, 3, 4}", "copy": "{1, 2, 3, 4}", "other": "{5, 6, 7, 8}"}
    paths = [write(tmp_path / f"{name}.onnx", text.replace("{W}", values)) for name, values in numbers.items()]
    with Store.open(tmp_path / "results.db") as store:
        one, copy, other = measure(find_models(paths), store=store, cache="hot", **SHORT).rows
        (alone,) = measure(find_models(paths[2:]), store=store, cache="hot", **SHORT).rows
        known = [entry.truth.ms for entry in estimate(find_models(paths), store=store)]

    measured = [row.measurement for row in (one, copy, other, alone)]
    assert None not in measured
    assert measured[0] is measured[1]
    assert measured[2].key == measured[3].key != measured[0].key
    assert known == [row.latency_ms for row in (one, copy, alone)]


def test_external_weights_are_part_of_a_model_wherever_they_lie(tmp_path: Path):
    keys = {}
    for name, scale in (("one", 1.0), ("copy", 1.0), ("other", 2.0)):
        folder = tmp_path / name
        folder.mkdir()
        model = onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 64] x) => (float[1, 64] y) { y = MatMul(x, w) }'
        )
        weight = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) * scale
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        onnx.save_model(model, folder / "m.onnx", save_as_external_data=True, size_threshold=0, location="w.bin")
        (decomposed,) = decompose(find_models([folder / "m.onnx"]), Cut(1))
        keys[name] = decomposed.own.key

    assert keys["one"] == keys["copy"] != keys["other"]
