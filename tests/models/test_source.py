"""Arguments to models: files, folders, patterns, zoo names; one bad argument never costs the others."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from dlbricks.errors import ModelNotFound
from dlbricks.models import ModelSource, find_models
from onnx import TensorProto, helper


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of models, which is also the working folder."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    data = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [x]))
    data.graph.output[0].name = "y"
    names = ["b/model.onnx", "a/model.onnx", "a/x/model.onnx", "c/net.onnx", "resnet50.onnx", "c/UPPER.ONNX"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data.SerializeToString())
    (tmp_path / "c" / "notes.txt").write_text("no model")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(sources: list[ModelSource]) -> list[str]:
    return [source.name for source in sources]


def test_a_folder(zoo: Path) -> None:
    sources = find_models([zoo])
    assert names(sources) == ["resnet50", "a/model", "x/model", "b/model", "UPPER", "net"]
    assert [source.path and source.path.relative_to(zoo).as_posix() for source in sources] == [
        "resnet50.onnx", "a/model.onnx", "a/x/model.onnx", "b/model.onnx", "c/UPPER.ONNX", "c/net.onnx",
    ]  # fmt: skip
    assert all(source.skeleton().model.graph.node for source in sources)


def test_order_is_kept_and_duplicates_are_dropped(zoo: Path) -> None:
    (zoo / "link.onnx").symlink_to("c/net.onnx")
    sources = find_models(["c/net.onnx", "./c/../c/net.onnx", "c", zoo / "link.onnx", "alexnet", "alexnet", "b"])
    assert names(sources) == ["net", "UPPER", "alexnet", "model"]


def test_shortest_unique_names(zoo: Path) -> None:
    assert names(find_models(["a/model.onnx"])) == ["model"]
    assert names(find_models(["a/model.onnx", "b/model.onnx"])) == ["a/model", "b/model"]
    # A file may not take the name of a zoo model that is there too.
    assert names(find_models(["resnet50", "resnet50.onnx"])) == ["resnet50", f"{zoo.name}/resnet50"]
    assert names(find_models(["./resnet50.onnx"])) == ["resnet50"]
    (zoo / "c" / "net").write_bytes(b"x")
    both = names(find_models(["c/net.onnx", "c/net"]))
    assert len(set(both)) == 2


def test_zoo_names_win_over_paths(zoo: Path) -> None:
    (zoo / "alexnet").mkdir()
    assert find_models(["alexnet"])[0].zoo == "alexnet"
    assert isinstance(find_models(["./alexnet"])[0].problem, ModelNotFound)
    assert isinstance(find_models([Path("alexnet")])[0].problem, ModelNotFound)


def test_patterns(zoo: Path) -> None:
    assert names(find_models(["*/model.onnx"])) == ["a/model", "b/model"]
    assert names(find_models([f"{zoo}/**/model.onnx"])) == ["a/model", "x/model", "b/model"]
    assert names(find_models(["c/*"])) == ["UPPER", "net"]
    assert names(find_models(["[ab]"])) == ["a/model", "x/model", "b/model"]
    (zoo / "odd[1].onnx").write_bytes((zoo / "c/net.onnx").read_bytes())
    assert names(find_models(["odd[1].onnx"])) == ["odd[1]"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nothing.onnx", "no file, folder, pattern or zoo name matches 'nothing.onnx'"),
        ("", "argument is empty"),
        ("resnet5", "did you mean resnet50"),
        ("empty", r"no \*.onnx file in folder 'empty'"),
        ("*.none", "pattern '\\*.none' finds no model: it matches nothing"),
        ("c/*.txt", "none of its 1 matches"),
        ("empt*", "none of its 1 matches"),
        ("a\0b", "matches 'a.b'"),
    ],
)
def test_an_argument_that_matches_nothing(zoo: Path, argument: str, message: str, tmp_path: Path) -> None:
    bad, good = find_models([argument, "c/net.onnx"], batches=[1, 2])[:2]
    assert bad.name == argument
    for attempt in (bad.skeleton, bad.skeleton, lambda: bad.runnable(tmp_path)):
        with pytest.raises(ModelNotFound, match=message):
            attempt()
    assert good.name == "net@b1"
    assert good.skeleton().bound == {"batch": 1}


def test_batches_and_dimensions(zoo: Path) -> None:
    sources = find_models(["c/net.onnx", "a/model.onnx"], batches=[1, 8, 1], dims={"seq": 4})
    assert names(sources) == ["net@b1", "net@b8", "model@b1", "model@b8"]
    assert [source.skeleton().bound for source in sources[:2]] == [{"batch": 1}, {"batch": 8}]
    assert sources[0].dims == (("seq", 4),)
    assert names(find_models(["c/net.onnx"], batches=[8])) == ["net"]
    assert find_models(["c/net.onnx"], batches=[8])[0].batch == 8


def test_zoo_models() -> None:
    (source,) = find_models(["alexnet"], batches=[2])
    assert source.path is None
    skeleton = source.skeleton()
    assert skeleton.path is None
    assert skeleton.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2


def test_sources_travel_between_processes(zoo: Path) -> None:
    sources = find_models(["c/net.onnx", "nothing", "alexnet"])
    for before, after in zip(sources, pickle.loads(pickle.dumps(sources)), strict=True):
        assert (before.name, before.path, before.zoo, str(before.problem)) == (
            after.name, after.path, after.zoo, str(after.problem),
        )  # fmt: skip
