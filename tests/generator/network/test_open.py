"""Decoders of the zoo whose lengths stay open: a loop of prompt and steps computes what the longer prompt does."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from computing import session
from dlbricks.errors import ModelError, ModelNotFound
from dlbricks.generator.network.export import export_model
from dlbricks.generator.network.network import export_open_network
from dlbricks.models.skeleton import mark_weight
from dlbricks.models.source import find_models
from dlbricks.models.zoo import open_structure

INSTALLED = all(find_spec(name) for name in ("torch", "transformers", "onnxscript"))


def test_weights_are_those_of_the_usual_lengths_and_lengths_stay_open() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[1, past_length, 4] x, float[4, 8] w)'
        " => (float[1, past_length, 8] y) { y = MatMul(x, w) }"
    )
    mark_weight(model.graph.input[1])

    written = onnx.load_from_string(export_open_network(model))

    (kept,) = written.graph.input
    assert [dim.dim_param or dim.dim_value for dim in kept.type.tensor_type.shape.dim] == [1, "past_length", 4]
    assert [(tensor.name, list(tensor.dims)) for tensor in written.graph.initializer] == [("w", [4, 8])]


def share_weights(prompt: onnx.ModelProto, step: onnx.ModelProto) -> None:
    """Give a step of T5 the weights of its prompt, where they stand behind those of the encoder.

    Of the ten products of a layer a step lacks two, with what the encoder gave: their results are in its cache.
    """
    known = {tensor.name: tensor for tensor in prompt.graph.initializer}
    own = {tensor.name: tensor for tensor in step.graph.initializer}
    theirs, ours = (
        [node.input[1] for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in weights]
        for model, weights in ((prompt, known), (step, own))
    )
    decoder = [name for place, name in enumerate(theirs[-60:]) if place % 10 not in {5, 6}]
    pairs = dict(zip(ours, decoder, strict=True))
    for name, tensor in own.items():
        twin = known[pairs.get(name, name)] if name in pairs or name in known else None
        if twin is not None and list(twin.dims) == list(tensor.dims):
            tensor.raw_data = twin.raw_data
    assert all(list(known[pairs[name]].dims) == list(own[name].dims) for name in pairs)


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="torch, transformers and onnxscript are not installed")
def test_steps_of_an_encoder_decoder_go_on_from_both_caches_of_its_prompt(tmp_path: Path) -> None:
    models = {}
    for part in ("prompt", "step"):
        (source,) = find_models([f"t5_small_{part}"])
        export_model(source, tmp_path / f"{part}.onnx", opened=True)
        models[part] = onnx.load(tmp_path / f"{part}.onnx")
    share_weights(models["prompt"], models["step"])
    sessions = {part: session(model) for part, model in models.items()}

    def run(part: str, feeds: dict[str, Any]) -> dict[str, Any]:
        names = [value.name for value in sessions[part].get_outputs()]
        return dict(zip(names, sessions[part].run(names, feeds), strict=True))

    random = np.random.default_rng(0)
    source_ids, answer = random.integers(1, 30_000, (1, 21)), random.integers(1, 30_000, (1, 7))
    read = {"input_ids": source_ids, "attention_mask": np.ones((1, 21), np.int64)}
    whole = run("prompt", read | {"decoder_input_ids": answer})
    found = run("prompt", read | {"decoder_input_ids": answer[:, :4]})
    cross = {name: value for name, value in found.items() if name.startswith("cross")}
    for place in (4, 5, 6):
        past = {name.replace("present", "past"): value for name, value in found.items() if name.startswith("present")}
        found = run("step", {"decoder_input_ids": answer[:, place : place + 1], **past, **cross})
        np.testing.assert_allclose(found["logits"][0, -1], whole["logits"][0, place], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="torch, transformers and onnxscript are not installed")
@pytest.mark.parametrize("name", ["distilgpt2", "opt_125m"])
def test_steps_from_the_cache_of_a_prompt_are_the_longer_prompt(name: str, tmp_path: Path) -> None:
    sessions: dict[str, Any] = {}
    for part in ("prompt", "step"):
        (source,) = find_models([f"{name}_{part}"])
        export_model(source, tmp_path / f"{part}.onnx", opened=True)
        sessions[part] = session(tmp_path / f"{part}.onnx")

    def run(part: str, ids: Any, total: int, past: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        feeds = {"input_ids": ids, "attention_mask": np.ones((1, total), np.int64), **past}
        logits, *kept = sessions[part].run(None, feeds)
        names = [value.name.replace("present", "past") for value in sessions[part].get_outputs()[1:]]
        return logits[0], dict(zip(names, kept, strict=True))

    ids = np.random.default_rng(0).integers(0, 40_000, (1, 19))
    whole, _ = run("prompt", ids, 19, {})
    _, past = run("prompt", ids[:, :16], 16, {})
    for length in (16, 17, 18):
        logits, past = run("step", ids[:, length : length + 1], length + 1, past)
        np.testing.assert_allclose(logits[-1], whole[length], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "squeezenet", "resnet18"])
def test_only_decoders_with_a_cache_stay_open(name: str) -> None:
    with pytest.raises(ModelError, match="cannot stay open; those of decoders"):
        open_structure(name)
    with pytest.raises(ModelNotFound):
        open_structure(f"{name}_nosuch")
