"""A kept decomposition is the one that was made, and is not used for another model, cut or version."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import onnx
import pytest
from dlbricks.bricks.graph.model_graph import ModelGraph
from dlbricks.db.values import Runtime
from dlbricks.generator.decomposition import decomposer, keeping
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decompose import decompose
from dlbricks.generator.decomposition.keeping import kept_decomposition
from dlbricks.models import find_models

ORT = Runtime.of("onnxruntime")
CUTS = [
    Cut(1),
    Cut(4, overlap=True),
    Cut(1, graph="runtime", runtime=ORT),
    Cut(3, connected=True, graph="runtime", runtime=ORT),
    Cut(2, graph="fused", runtime=ORT),
]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path / "cache"))


def plain(value):
    """Return a value with dataclasses as dictionaries; a graph keeps its key under either way to know it."""
    if isinstance(value, ModelGraph):
        value = replace(value, identity=value.key)
    if is_dataclass(value):
        return type(value), {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return type(value), [plain(member) for member in value]
    return {key: plain(member) for key, member in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("cut", CUTS)
def test_what_is_kept_is_what_was_made(cut, small_models):
    sources = [*small_models, *find_models(["squeezenet"])]

    made = decompose(sources, cut)
    kept = [kept_decomposition(source, cut) for source in sources]

    assert [plain(model) for model in kept] == [plain(model) for model in made]
    for model in kept:
        assert model.graph in ({model.own} if model.executed is None else {model.executed.source, model.executed.graph})


def test_another_cut_model_or_version_is_cut_again(small_models, tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(small_models[0].path.read_bytes())
    (source,) = find_models([path])
    decompose([source], Cut(1))
    assert kept_decomposition(source, Cut(1)) is not None

    assert kept_decomposition(source, Cut(2)) is None
    assert kept_decomposition(source, Cut(1, graph="runtime", runtime=ORT)) is None
    model = onnx.load(path)
    model.producer_name = "another"
    onnx.save(model, path)
    assert kept_decomposition(source, Cut(1)) is None
    decompose([source], Cut(1))
    monkeypatch.setattr(keeping, "__version__", "another")
    assert kept_decomposition(source, Cut(1)) is None


def test_a_damaged_entry_is_cut_again(small_models, tmp_path):
    (made,) = decompose(small_models[:1], Cut(1))
    (entry,) = (tmp_path / "cache" / "decompositions").iterdir()
    (file,) = entry.iterdir()
    file.write_bytes(file.read_bytes()[:-9])

    (again,) = decompose(small_models[:1], Cut(1))

    assert plain(again) == plain(made)


def test_what_a_failed_oracle_left_unknown_is_not_kept(small_models, monkeypatch):
    real = decomposer.build_graph

    def build_graph(skeleton, *, oracle):
        oracle.problems.append("the worker died")
        return real(skeleton, oracle=oracle)

    monkeypatch.setattr(decomposer, "build_graph", build_graph)
    decompose(small_models[:1], Cut(1))

    assert kept_decomposition(small_models[0], Cut(1)) is None


def test_the_graph_of_onnx_runtime_is_kept_for_all_numbers_of_threads(small_models):
    """Its graph transformers are not told the number; OpenVINO's plugin is."""
    decompose(small_models[:1], Cut(1, graph="runtime", runtime=ORT, threads=1))

    assert kept_decomposition(small_models[0], Cut(1, graph="runtime", runtime=ORT, threads=2)) is not None
