"""A model's fingerprint: the same as long as its content is, whatever its path and times."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from dlbricks.models import ModelSource, find_models
from dlbricks.models.source import fingerprint
from onnx import numpy_helper

TEXT = """
<ir_version: 8, opset_import: ["": 17]>
g (float[N, 2000] x) => (float[N, 2000] y) { y = Add(x, w) }
"""


def write(path: Path, *, external: bool = False, value: float = 0.0) -> Path:
    path.parent.mkdir(exist_ok=True)
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(numpy_helper.from_array(np.full(2000, value, np.float32), "w"))
    if external:
        onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def fingerprint_of(path: object, **options: object) -> str | None:
    (source,) = find_models([path], **options)  # type: ignore[list-item, arg-type]
    return fingerprint(source)


def test_a_file_is_known_by_its_content(tmp_path):
    path = write(tmp_path / "a.onnx")
    known = fingerprint_of(path)
    assert known is not None
    assert len(known) == 64
    os.utime(path, ns=(1, 1))
    moved = Path(shutil.copy(path, tmp_path / "b.onnx"))
    assert fingerprint_of(path) == fingerprint_of(moved) == known
    write(path, value=1.0)
    assert fingerprint_of(path) != known


def test_what_a_model_is_bound_to_is_part_of_it(tmp_path):
    path = write(tmp_path / "a.onnx")
    found = [
        fingerprint_of(path),
        fingerprint_of(path, batches=[2]),
        fingerprint_of(path, dims={"N": 2}),
        fingerprint_of(path, dims={"N": 3}),
        fingerprint(replace(find_models([path])[0], opened=True)),
    ]
    assert len({*found}) == 5


def test_external_data_counts_by_its_size_and_time(tmp_path):
    path = write(tmp_path / "a.onnx", external=True)
    os.utime(tmp_path / "w.bin", ns=(5, 5))
    known = fingerprint_of(path)
    assert known is not None
    os.utime(tmp_path / "w.bin", ns=(6, 6))
    assert fingerprint_of(path) != known
    (tmp_path / "w.bin").unlink()
    assert fingerprint_of(path) is None


@pytest.mark.parametrize("name", ["squeezenet", "bert_base"])
def test_a_zoo_model_is_known_by_its_name(name):
    assert fingerprint_of(name) == fingerprint_of(name)
    assert fingerprint_of(name) != fingerprint_of(name, batches=[2])


def test_what_is_no_model_has_none(tmp_path):
    assert fingerprint_of("nothing_of_that_name") is None
    os.mkfifo(tmp_path / "pipe.onnx")  # which nobody may wait for
    for path in (tmp_path / "pipe.onnx", tmp_path / "gone.onnx"):
        source = ModelSource("model", path, None)
        assert fingerprint(source) is None
