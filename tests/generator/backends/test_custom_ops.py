"""Custom operators: the user names a library, workers load it, and nothing else does."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import onnx.parser
import pytest
from dlbricks.db import Store
from dlbricks.errors import BackendError, UsageError
from dlbricks.generator.backends import custom_ops
from dlbricks.generator.backends.custom_ops import CUSTOM_OPS, adopt, files_of, register_custom_ops
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.decomposition.observation import observe
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from dlbricks.models import ModelSource, find_models
from dlbricks.models.control_flow import CourseChoice, How
from working import start

GRAPH = (
    '<ir_version: 9, opset_import: ["": 18, "ai.onnx.contrib": 1]>'
    "g (float[8, 8] x) => (float[8, 8] y)"
    "{r = Relu(x) n, p = ai.onnx.contrib.NegPos(r) y = Add(n, p)}"
)


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_ops, "_files", {})


@pytest.fixture
def library() -> Path:
    extensions = pytest.importorskip("onnxruntime_extensions")
    return Path(extensions.get_library_path())


@pytest.fixture
def model(tmp_path: Path) -> ModelSource:
    parsed = onnx.parser.parse_model(GRAPH)
    # A model may say what it likes.
    parsed.metadata_props.add(key="custom_ops", value=str(tmp_path / "own.so"))
    parsed.metadata_props.add(key="ort_config", value='{"session_options": {"custom_ops": "own.so"}}')
    onnx.save(parsed, tmp_path / "model.onnx")
    return find_models([tmp_path / "model.onnx"])[0]


def test_without_a_library_its_operators_are_skipped_by_name(model: ModelSource, tmp_path: Path) -> None:
    (row,) = generate([model], granularity=1, out=tmp_path / "suite").rows

    assert any("unknown operator ai.onnx.contrib:NegPos" in one.reason for one in row.skipped)
    with Store.open(tmp_path / "a.db") as store:
        (found,) = measure([model], store=store, visits=2, processes=1, sessions=1, options={"pinning": "off"}).rows
    assert "NegPos" in str(found.error)


@pytest.mark.parametrize("jobs", [1, 2])
def test_with_a_library_shapes_are_observed(model: ModelSource, library: Path, tmp_path: Path, jobs: int) -> None:
    register_custom_ops(library)
    again = tmp_path / "again.onnx"
    assert model.path is not None
    shutil.copyfile(model.path, again)

    made = generate([model, *find_models([again])], granularity=1, out=tmp_path / "suite", jobs=jobs)

    assert [row.skipped for row in made.rows] == [(), ()]
    assert [row.sequences for row in made.rows] == [3, 3]


def test_with_a_library_courses_are_observed(library: Path, tmp_path: Path) -> None:
    text = (
        '<ir_version: 9, opset_import: ["": 18, "ai.onnx.contrib": 1]>'
        "g (float[2] x, int64 n) => (float[2] y) <int64 three = {3}>"
        "{r = Relu(x) p, m = ai.onnx.contrib.NegPos(r) some = Add(p, m) none = Sub(n, n) trips = Add(none, three)"
        ' y = Loop(trips, "", some) <body = b (int64 i, bool go, float[2] v) => (bool d, float[2] u)'
        " {d = Identity(go) u = Neg(v)}>}"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "loop.onnx")
    (looping,) = find_models([tmp_path / "loop.onnx"])
    (without,) = observe([looping])
    assert "NegPos" in str(without.problem)
    register_custom_ops(library)
    (seen,) = observe([looping])
    assert seen.problem is None
    assert seen.control == (CourseChoice("y", 3, How.OBSERVED),)


def test_bricks_and_models_are_measured_on_a_stack_of_the_library(
    model: ModelSource, library: Path, tmp_path: Path
) -> None:
    options = {CUSTOM_OPS: register_custom_ops(library), "pinning": "off"}
    made = generate([model], granularity=1, out=tmp_path / "suite")
    assert made.suite is not None

    with Store.open(tmp_path / "a.db") as store:
        done = run(made.suite, store=store, models=[model], visits=2, processes=1, sessions=1, options=options)
        stack = store.stacks()[done.stack]

    assert (done.measured, done.failed) == (3, 0)
    assert dict(stack.options)[CUSTOM_OPS] == options[CUSTOM_OPS]
    assert str(library.parent) not in repr(stack)


def test_a_stack_without_libraries_is_what_it_was() -> None:
    assert CUSTOM_OPS not in OrtBackend().resolve("cpu", {})
    assert CUSTOM_OPS not in OrtBackend().resolve("cpu", {CUSTOM_OPS: ""})


def test_one_file_is_one_library_wherever_it_lies(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"one")
    (tmp_path / "b.so").write_bytes(b"one")
    (tmp_path / "c.so").write_bytes(b"other")

    first, second, both = (
        register_custom_ops(*(tmp_path / name for name in names)) for names in (["a.so"], ["b.so"], ["a.so", "c.so"])
    )

    assert first == second
    assert first in both.split("+")
    assert files_of({CUSTOM_OPS: both}).keys() == set(both.split("+"))


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        register_custom_ops(tmp_path / "nothing.so")
    with pytest.raises(UsageError, match="--custom-ops"):
        OrtBackend().resolve("cpu", {CUSTOM_OPS: "/tmp/own.so"})
    with pytest.raises(UsageError, match="was not given"):
        start("onnxruntime", {CUSTOM_OPS: "0" * 32})


def test_a_worker_loads_nothing_that_has_changed_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "own.so"
    path.write_bytes(b"as it was")
    options = {CUSTOM_OPS: register_custom_ops(path), "pinning": "off"}
    adopt(files_of(options))
    path.write_bytes(b"as it is")

    with pytest.raises(BackendError, match="no longer what it was"):
        start("onnxruntime", options)


def test_a_file_that_is_no_library_is_a_clear_error(model: ModelSource, tmp_path: Path) -> None:
    path = tmp_path / "own.so"
    path.write_bytes(b"no shared library")
    options = {CUSTOM_OPS: register_custom_ops(path), "pinning": "off"}

    with Store.open(tmp_path / "a.db") as store:
        (found,) = measure([model], store=store, visits=2, processes=1, sessions=1, options=options).rows

    assert found.error is not None
    assert "own.so" in found.error or "ONNX Runtime" in found.error
