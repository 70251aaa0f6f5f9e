"""External data: safe paths only, everything checked, only small tensors read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from dlbricks.errors import BrokenModel, MissingExternalData, ModelError, UnsafePath
from dlbricks.models.external import follow_links, follows_links
from dlbricks.models.runnable import load_skeleton, runnable_file
from dlbricks.models.skeleton import is_weight
from onnx import TensorProto, helper, numpy_helper

SMALL = np.arange(4, dtype=np.float32)
LARGE = np.ones((4, 1000), np.float32)


def external(name: str, dims: list[int], **entries: str) -> TensorProto:
    tensor = TensorProto(name=name, dims=dims, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def write(path: Path, *tensors: TensorProto, in_constant: bool = False) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    if in_constant:
        constant = helper.make_node("Constant", [], ["c"])
        constant.attribute.append(helper.make_attribute("value", tensors[0]))
        branch = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, None)])
        nodes.append(helper.make_node("If", ["x"], ["z"], then_branch=branch, else_branch=branch))
        tensors = ()
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], list(tensors)))
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(SMALL.tobytes() + LARGE.tobytes())
    return path


def test_small_is_read_large_is_not(tmp_path: Path, data: Path) -> None:
    small = external("s", [4], location="weights.bin", offset="0", length="16")
    large = external("l", [4, 1000], location="weights.bin", offset="16", length="16000")
    path = tmp_path / "m.onnx"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1000])
    nodes = [helper.make_node("Mul", ["x", "s"], ["z"]), helper.make_node("MatMul", ["z", "l"], ["y"])]
    path.write_bytes(helper.make_model(helper.make_graph(nodes, "g", [x], [y], [small, large])).SerializeToString())
    skeleton = load_skeleton(path)
    (kept,) = skeleton.model.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(kept), SMALL)
    assert [value.name for value in skeleton.model.graph.input if is_weight(value)] == ["l"]
    assert skeleton.weight_bytes == 16 + 16000
    onnx.checker.check_model(skeleton.model)


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "../weights.bin",
        "a/../../weights.bin",
        "..\\weights.bin",
        "C:\\weights.bin",
        "\\\\host\\share",
        "link.bin",
        "linked/weights.bin",
        "*/_ORT_MEM_ADDR_/*",
        "weights.bin\0",
    ],
)
@pytest.mark.parametrize("where", ["small", "large", "unused", "constant"])
def test_unsafe_path(tmp_path: Path, location: str, where: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(20000))
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    (folder / "linked").symlink_to(tmp_path)
    tensor = external("w", [4] if where == "small" else [4, 1000], location=location)
    path = write(folder / "m.onnx", tensor, in_constant=where == "constant")
    with pytest.raises(UnsafePath, match=r"m\.onnx: external data path"):
        load_skeleton(path)


@pytest.mark.parametrize(
    ("entries", "dims", "error", "message"),
    [
        ({"location": "none.bin"}, [4], MissingExternalData, "'none.bin' is missing"),
        ({"location": "none.bin"}, [4000], MissingExternalData, "'none.bin' is missing"),
        ({"location": "weights.bin"}, [5000], MissingExternalData, "has 16016 bytes, but constant 'w' ends at 20000"),
        ({"location": "weights.bin", "offset": "16004"}, [4], MissingExternalData, "ends at 16020"),
        ({"location": "pointer"}, [400], MissingExternalData, "'pointer' is a pointer of Git LFS"),
        ({"location": "folder"}, [4], MissingExternalData, "not a regular file"),
        ({"location": "pipe"}, [4], MissingExternalData, "not a regular file"),
        ({"location": ""}, [4], BrokenModel, "names no file"),
        ({"location": "weights.bin", "offset": "-4"}, [4], BrokenModel, "offset '-4', not a number"),
        ({"location": "weights.bin", "offset": "9" * 5000}, [4], BrokenModel, "not a number"),
        ({"location": "weights.bin", "length": "8"}, [4], BrokenModel, "needs 16 bytes, but its external data has 8"),
        ({"location": "weights.bin"}, [-4], BrokenModel, "negative dimension"),
    ],
)
def test_broken_reference(
    tmp_path: Path, data: Path, entries: dict[str, str], dims: list[int], error: type[ModelError], message: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pointer").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1600\n")
    path = write(tmp_path / "m.onnx", external("w", dims, **entries))
    with pytest.raises(error, match=message):
        load_skeleton(path)


def test_links_within_the_folder(tmp_path: Path, data: Path) -> None:
    (tmp_path / "inner.bin").symlink_to(data)
    path = write(tmp_path / "m.onnx", external("w", [4], location="inner.bin"))
    assert load_skeleton(path).weight_bytes == 16


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A snapshot in the cache of a hub: a model whose weights are a link to a blob of its repository."""
    repository = tmp_path / "models--ann--small"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "4f2a" / "onnx"
    snapshot.mkdir(parents=True)
    write(repository / "blobs" / "5e1d", external("w", [4], location="model.onnx_data"))
    (repository / "blobs" / "9c3b").write_bytes(SMALL.tobytes())
    (snapshot / "model.onnx").symlink_to("../../../blobs/5e1d")
    (snapshot / "model.onnx_data").symlink_to("../../../blobs/9c3b")
    return snapshot / "model.onnx"


def test_links_to_the_blobs_of_one_repository(hub: Path, tmp_path: Path) -> None:
    assert load_skeleton(hub).weight_bytes == 16
    assert runnable_file(hub, tmp_path / "copies", name="model").path == hub


@pytest.mark.parametrize("where", ["another repository", "below the blobs", "blobs by a link"])
def test_links_elsewhere_in_a_hub_are_refused_unless_all_are_followed(
    hub: Path, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = hub.parents[3] / "blobs"
    if where == "blobs by a link":
        blobs.rename(tmp_path / "elsewhere")
        blobs.symlink_to(tmp_path / "elsewhere")
    else:
        outside = (tmp_path / "models--eve--other" / "blobs" if where == "another repository" else blobs / "more") / "w"
        outside.parent.mkdir(parents=True)
        outside.write_bytes(SMALL.tobytes())
        (hub.parent / "model.onnx_data").unlink()
        (hub.parent / "model.onnx_data").symlink_to(outside)

    with pytest.raises(UnsafePath, match="by a link; copy the file beside the model, or trust the link with --follow"):
        load_skeleton(hub)
    monkeypatch.setenv("DLBRICKS_FOLLOW_LINKS", "")
    follow_links(True)
    assert load_skeleton(hub).weight_bytes == 16
    copy = runnable_file(hub, tmp_path / "copies", name="model").path  # runtimes refuse data outside the folder
    assert copy != hub
    assert (copy.parent / "model.onnx_data").read_bytes() == SMALL.tobytes()
    follow_links(False)
    assert not follows_links()
