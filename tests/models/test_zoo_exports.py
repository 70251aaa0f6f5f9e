"""Architectures exported from transformers: the table, the cache, and what is said where the extra is missing."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
from dlbricks.errors import ModelError
from dlbricks.models.skeleton import is_weight
from dlbricks.models.zoo import catalog as kept
from dlbricks.models.zoo import names, open_structure, structure
from dlbricks.models.zoo.recipes import RECIPES

INSTALLED = all(find_spec(name) for name in ("torch", "transformers", "onnxscript"))
needs_extra = pytest.mark.skipif(not INSTALLED, reason="torch, transformers and onnxscript are not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path))
    return tmp_path / "zoo"


def test_the_table_covers_every_kind_of_model() -> None:
    exports = [entry for entry in names() if entry.origin == "export"]
    assert len(exports) >= 30
    assert all(entry.extra == "zoo" for entry in exports)
    assert {entry.task for entry in exports} >= {
        "image classification", "object detection", "segmentation", "text encoding", "language modelling",
        "language modelling, prompt into KV cache", "language modelling, one step with KV cache", "encoder-decoder",
        "speech",
    }  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_name_their_dimensions(name: str) -> None:
    recipe = RECIPES[name]
    used = {
        part
        for value in recipe.inputs
        for dimension in value.shape
        if isinstance(dimension, str)
        for part in dimension.split("+")
        if not part.isdigit()
    }
    cached = {"past_length", "encoder_length"} if recipe.cache in {"extended", "crossed"} else set()
    assert used | (cached & {*dict(recipe.entry.dims)}) == {"batch", *dict(recipe.entry.dims)}


@pytest.mark.skipif(INSTALLED, reason="the zoo extra is installed")
def test_a_missing_extra_is_named_with_its_remedy() -> None:
    with pytest.raises(ModelError, match=r"'resnet18' .* not installed; pip install 'dlbricks\[zoo\]'"):
        structure("resnet18")


def test_a_digest_is_of_all_that_decides_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_versions", lambda: ("1.0",))
    recipe = next(iter(RECIPES.values()))

    assert kept.digest(recipe, 1, {}) == kept.digest(recipe, 1, {}) != kept.digest(recipe, 2, {})


@needs_extra
@pytest.mark.slow
def test_exports_are_kept_and_repaired(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skeleton = structure("resnet18", batch=2, dims={"image_size": 96})
    onnx.checker.check_model(skeleton.model, full_check=True)
    graph = skeleton.model.graph
    weights = [value for value in graph.input if is_weight(value)]
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in graph.input]
    assert shapes[0] == [2, 3, 96, 96]
    # 11.69 M parameters of ResNet-18; batch normalisation is folded into the convolutions.
    assert sum(math.prod(shape) for shape in shapes[1:]) / 1e6 == pytest.approx(11.69, rel=0.01)
    assert len(weights) == len(graph.input) - 1
    assert not any(holder.metadata_props or holder.doc_string for holder in graph.node)
    (file,) = cache.iterdir()
    assert file.stat().st_size < 100_000  # structure alone

    monkeypatch.setattr(sys, "executable", "/nonexistent")
    assert structure("resnet18", batch=2, dims={"image_size": 96}).model == skeleton.model  # no second export
    with pytest.raises(ModelError, match="cannot keep zoo model 'resnet18'"):
        structure("resnet18", batch=3)

    monkeypatch.undo()
    monkeypatch.setenv("DLBRICKS_CACHE", str(cache.parent))
    file.write_bytes(b"\xff" * 100)
    assert structure("resnet18", batch=2, dims={"image_size": 96}).model == skeleton.model
    assert [path.name for path in cache.iterdir()] == [file.name]


@needs_extra
@pytest.mark.slow
def test_a_step_takes_and_returns_its_cache() -> None:
    skeleton = structure("distilgpt2_step", dims={"past_length": 16})
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*skeleton.model.graph.input, *skeleton.model.graph.output)
    }
    assert shapes["input_ids"] == [1, 1]
    assert shapes["attention_mask"] == [1, 17]
    assert shapes["past.5.value"] == [1, 12, 16, 64]
    assert shapes["present.5.value"] == [1, 12, 17, 64]
    assert skeleton.bound == {"batch": 1, "past_length": 16}


@needs_extra
@pytest.mark.slow
def test_a_prompt_returns_its_cache_and_may_keep_its_length_open() -> None:
    bound = structure("distilgpt2_prompt", dims={"sequence_length": 16}).model.graph
    opened = open_structure("distilgpt2_prompt").graph

    assert [value.name for value in bound.output] == [value.name for value in opened.output]
    for graph, length in ((bound, 16), (opened, "sequence_length")):
        shapes = {
            value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*graph.input, *graph.output)
        }
        assert shapes["attention_mask"] == [1, length]
        assert shapes["logits"] == [1, length, 50257]
        assert shapes["present.5.key"] == [1, 12, length, 64]


@needs_extra
@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers", "heads", "encoded"), [("t5_small", 6, 8, 64), ("whisper_tiny", 4, 6, 1500)])
def test_an_encoder_decoder_keeps_what_it_read_beside_what_it_said(
    name: str, layers: int, heads: int, encoded: int
) -> None:
    def shapes(values) -> dict[str, list[int]]:
        return {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}

    prompt = structure(f"{name}_prompt", dims={"sequence_length": 3}).model.graph
    step = structure(f"{name}_step", dims={"past_length": 16}).model.graph
    filled = shapes(prompt.output)
    read = shapes(value for value in step.input if not is_weight(value))
    last = f"{layers - 1}.value"

    assert filled["logits"][:2] == [1, 3]
    assert (filled[f"present.{last}"], filled[f"cross.{last}"]) == ([1, heads, 3, 64], [1, heads, encoded, 64])
    assert (read[f"past.{last}"], read[f"cross.{last}"]) == ([1, heads, 16, 64], [1, heads, encoded, 64])
    assert shapes(step.output)[f"present.{last}"] == [1, heads, 17, 64]
    assert len(read) == 1 + 4 * layers  # the token and the two caches; nothing of the encoder


@needs_extra
@pytest.mark.slow
def test_a_failing_export_says_why_in_one_line(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"'clip_text' cannot be exported at sequence_length=99: .*77") as raised:
        structure("clip_text", dims={"sequence_length": 99})
    assert "\n" not in str(raised.value)
    assert not list(cache.iterdir())
