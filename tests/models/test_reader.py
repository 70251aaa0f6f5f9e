"""Broken and foreign files end in one clear line; large ones cost their structure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.errors import BrokenModel, ModelError, ModelNotFound, UnsupportedModel
from dlbricks.models import reader, wire
from dlbricks.models.runnable import load_skeleton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def small_model(**changes: int) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y]))
    for field, value in changes.items():
        setattr(model, field, value)
    return model


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=80) | st.sampled_from([b"hello\n", b"\x89PNG\r\n\x1a\n", bytes(64), b'{"irVersion": 8}']),
    st.sampled_from([0, 5 << 20]),
)
def test_what_is_no_model_is_one_clear_error(tmp_path: Path, content: bytes, padding: int) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(content + content[:1] * padding)
    with pytest.raises(ModelError) as caught:
        load_skeleton(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_that_was_cut_off_is_broken(tmp_path: Path, data: st.DataObject) -> None:
    """A whole model of the corpus, and one whose last field is a payload of 6 MiB, which is walked over."""
    path = embedded(tmp_path / "x.onnx", 6 << 20)
    if data.draw(st.booleans()):
        path.write_bytes((LIGHT / "light_densenet121.onnx").read_bytes())
    os.truncate(path, data.draw(st.integers(1, path.stat().st_size - 1)))
    with pytest.raises(BrokenModel, match=r"truncated|not ONNX|states no|no graph"):
        load_skeleton(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "dangling.onnx").symlink_to("nowhere")
    (tmp_path / "folder.onnx").mkdir()
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "loop.onnx").symlink_to("loop.onnx")
    (tmp_path / "empty.onnx").touch()
    for name, error, message in (
        ("none.onnx", ModelNotFound, "no such file"),
        ("dangling.onnx", ModelNotFound, "no such file"),
        ("folder.onnx", BrokenModel, "is a folder"),
        ("pipe.onnx", BrokenModel, "not a regular file"),
        ("loop.onnx", BrokenModel, "cannot be read"),
        ("empty.onnx", BrokenModel, "empty.onnx: the file is empty"),
    ):
        with pytest.raises(error, match=message):
            load_skeleton(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(small_model().SerializeToString())
    path.chmod(0)
    with pytest.raises(BrokenModel, match="Permission denied"):
        load_skeleton(path)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda m: m.ClearField("opset_import"), BrokenModel, "states no opset"),
        (lambda m: m.ClearField("ir_version"), BrokenModel, "states no IR version"),
        (lambda m: setattr(m, "ir_version", 999), UnsupportedModel, "IR version 999 is newer"),
        (lambda m: setattr(m.opset_import[0], "version", 999), UnsupportedModel, "opset 999 of domain 'ai.onnx'"),
        (lambda m: setattr(m.opset_import[0], "version", 0), UnsupportedModel, "opset 0"),
        (lambda m: setattr(m.opset_import[0], "version", -3), UnsupportedModel, "opset -3"),
        (lambda m: m.opset_import.add(domain="ai.onnx.ml", version=99), UnsupportedModel, "'ai.onnx.ml' is newer"),
        (lambda m: m.opset_import.add(domain="ai.onnx", version=7), BrokenModel, "imported at opsets"),
        (lambda m: m.ClearField("graph"), BrokenModel, "no graph"),
        (lambda m: m.graph.ClearField("node"), UnsupportedModel, "no operators"),
    ],
)
def test_versions_and_parts(tmp_path: Path, change, error: type[ModelError], message: str) -> None:
    model = small_model()
    change(model)
    path = tmp_path / "x.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(error, match=message) as caught:
        load_skeleton(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("beside", [0, 5 << 20], ids=["parsed", "walked"])
@pytest.mark.parametrize("held", [None, 0, 2000], ids=["none", "empty", "some"])
def test_a_large_constant_without_its_values_is_refused(tmp_path: Path, beside: int, held: int | None) -> None:
    weight = TensorProto(name="w", dims=[2048, 1024], data_type=TensorProto.FLOAT)
    if held is not None:
        weight.raw_data = bytes(held)
    other = numpy_helper.from_array(np.zeros(beside, np.uint8), "other")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2048 - 1024 * (name == "y")]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [other, weight])
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())

    with pytest.raises(BrokenModel, match=r"'w' of shape \[2048, 1024\] takes 8388608 bytes, and the file holds"):
        reader.read_structure(tmp_path / "m.onnx")


def test_opset_implied_before_ir_3(tmp_path: Path) -> None:
    model = small_model(ir_version=2)
    model.ClearField("opset_import")
    path = tmp_path / "x.onnx"
    path.write_bytes(model.SerializeToString())
    assert [(o.domain, o.version) for o in load_skeleton(path).model.opset_import] == [("", 1)]


def rich_model() -> bytes:
    """Everything at once: functions, a subgraph, sparse and external constants, dynamic dimensions."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "l": 1]>
        g (float[batch, "past + 1"] x, bool c) => (float[2] y) {
            z = l.f (x)
            s = Constant <value_ints = [2, 3]> ()
            k = ConstantOfShape <value = float[1] {2}> (s)
            y = If (c) <
                then_branch = a () => (float[2] r) { w = Constant <value_floats = [1.0, 2.0]> () r = Mul (z, w) },
                else_branch = b () => (float[2] q) { q = Neg (z) }>
        }
        <domain: "l", opset_import: ["": 17, "l": 1]> f (a) => (b) { c = l.g (a) b = Relu (c) }
        <domain: "l", opset_import: ["": 16]> g (a) => (b) { k = Constant <value = float[2] {1, 2}> () b = Add (a, k) }
    """)
    tensor = model.graph.initializer.add(name="e", dims=[3], data_type=1, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    values, indices = numpy_helper.from_array(np.float32([5]), "sparse"), numpy_helper.from_array(np.array([1]), "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    return bytes(model.SerializeToString())


SEEDS = [rich_model(), (LIGHT / "light_bvlc_alexnet.onnx").read_bytes()]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 3967), st.integers(0, 255)), max_size=4),
    st.booleans(),
    st.sampled_from([None, 3]),
)
def test_flipped_bytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: bytes,
    flips: list[tuple[int, int]],
    walk: bool,
    batch: int | None,
) -> None:
    data = bytearray(seed)
    for position, value in flips:
        data[position % len(data)] = value
    path = tmp_path / "x.onnx"
    path.write_bytes(data)
    (tmp_path / "w.bin").write_bytes(bytes(12))
    with monkeypatch.context() as patch:
        patch.setattr(reader, "_DIRECT_BYTES", 0 if walk else 1 << 20)
        patch.setattr(wire, "_DESCEND_BYTES", 16)
        message = str(path)
        try:
            load_skeleton(path, batch=batch)
        except ModelError as error:
            assert flips  # the seeds themselves are fine
            message = str(error)
    assert str(path) in message


@pytest.mark.parametrize("name", [b"batch", b"dense", b"Tanh", b"Add"])
def test_names_that_are_no_text(tmp_path: Path, name: bytes) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[batch, 2] x) => (float[batch, 2] y) { dense = Relu (x) y = Tanh (dense) }""").SerializeToString()
    path = tmp_path / "x.onnx"
    path.write_bytes((rich_model() if name == b"Add" else model).replace(name, b"\xff" * len(name)))
    (tmp_path / "w.bin").write_bytes(bytes(12))
    with pytest.raises(BrokenModel, match="not UTF-8"):
        load_skeleton(path)


# ---------------------------------------------------------------------- memory


def header(size: int) -> tuple[bytes, bytes]:
    """A serialised model whose last field is the payload of a weight of ``size`` bytes, up to that payload.

    Returns:
        The model up to its graph's length (exclusive), and the graph up to the payload.
    """
    model = small_model()
    model.graph.node[0].CopyFrom(helper.make_node("Add", ["x", "w"], ["y"]))
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4]).SerializeToString()
    payload = b"\x4a" + wire._varint(size)
    length = len(tensor) + len(payload) + size
    graph = model.graph.SerializeToString() + b"\x2a" + wire._varint(length) + tensor + payload
    model.ClearField("graph")
    return model.SerializeToString(), graph


def embedded(path: Path, size: int) -> Path:
    """A model with one embedded weight; a hole in the file, so that it costs no disk."""
    model, graph = header(size)
    head = model + b"\x3a" + wire._varint(len(graph) + size) + graph
    path.write_bytes(head)
    os.truncate(path, len(head) + size)
    return path


def external(path: Path, size: int) -> Path:
    """The same model with its weight in a file of its own."""
    model = small_model()
    model.graph.node[0].CopyFrom(helper.make_node("Add", ["x", "w"], ["y"]))
    tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[size // 4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    path.write_bytes(model.SerializeToString())
    (path.parent / "w.bin").touch()
    os.truncate(path.parent / "w.bin", size)
    return path


# VmHWM and not ru_maxrss: the latter survives exec, so that it would report the peak of pytest.
PROBE = """
import json, sys
from pathlib import Path
import onnx
from dlbricks.models.runnable import load_skeleton

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10

before = peak()
skeleton = load_skeleton(Path(sys.argv[1]))
after = peak()
if sys.argv[2] == "control":
    onnx.load(sys.argv[1])
print(json.dumps([after - before, peak() - before, skeleton.weight_bytes, len(skeleton.model.SerializeToString())]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("make", [embedded, external])
def test_weights_are_not_read(tmp_path: Path, make) -> None:
    size = 300 << 20
    path = make(tmp_path / "x.onnx", size)
    command = [sys.executable, "-c", PROBE, str(path), "control" if make is embedded else ""]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, control, weight_bytes, structure = json.loads(answer.stdout)
    assert weight_bytes == size
    assert structure < 1000
    assert peak < 16 << 20
    if make is embedded:
        assert control > size  # what is measured would see the payload


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", "a pointer of Git LFS"),
        (b"<!DOCTYPE html>\n<html><body>Not found</body></html>", "a web page"),
        (b"\xef\xbb\xbf\n<!-- moved -->\n<html></html>", "a web page"),
        (b'{"error": "not found"}', "a text in JSON"),
        (b"\x1c\x00\x00\x00ORTM\x00\x00", "a model in ORT format"),
        (b"\x1c\x00\x00\x00TFL3\x00\x00", "a TensorFlow Lite model"),
        (b"PK\x03\x04\x14\x00", "an archive"),
    ],
)
def test_what_is_often_taken_for_a_model_is_named(tmp_path: Path, head: bytes, told: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(head)

    with pytest.raises(BrokenModel, match=f"not ONNX, but {told}"):
        reader.read_structure(path)
