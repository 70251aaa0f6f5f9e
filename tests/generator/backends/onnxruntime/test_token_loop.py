"""The loop of a decoder: its cache makes the tokens that the whole sequence makes."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from computing import settings
from decoders import SIZE, built, merged, one_file
from dlbricks.bricks.decoder import read_decoder
from dlbricks.errors import BackendError, UsageError
from dlbricks.generator.backends.onnxruntime import token_loop
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.network.decoding import DecoderFile
from dlbricks.generator.network.inputs import fill

MODELS = {
    "one file": one_file(2), "merged": merged(2), "builder": built(2), "four bits": built(2, bits=4),
    "one buffer": built(2, shared=True),
}  # fmt: skip


def decoder_file(path: Path, model: onnx.ModelProto) -> DecoderFile:
    """A decoder that draws the token 0 alone."""
    onnx.save(model, path)
    decoder = read_decoder(path, "decoder")
    return DecoderFile(str(path), decoder.inputs, decoder.logits, 1, decoder.shared)


def recomputed(path: Path, tokens: list[int]) -> int:
    """The token that follows others, without a cache."""
    session = ort.InferenceSession(str(path))
    count = len(tokens)
    feeds = {
        "input_ids": np.array([tokens]), "attention_mask": np.ones((1, count), np.int64),
        "position_ids": np.arange(count)[None], "use_cache_branch": np.array([False]),
    }  # fmt: skip
    for value in session.get_inputs():
        if value.name not in feeds:
            feeds[value.name] = np.zeros((1, value.shape[1], 0, SIZE), np.float32)
    feeds = {value.name: feeds[value.name] for value in session.get_inputs()}
    return int(session.run(["logits"], feeds)[0][0, -1].argmax())


@pytest.mark.parametrize("name", [name for name in MODELS if name != "one buffer"])
def test_each_token_is_the_one_that_the_whole_sequence_gives(tmp_path: Path, name: str) -> None:
    path = tmp_path / "decoder.onnx"
    loop = OrtBackend().decoding(decoder_file(path, MODELS[name]), settings())
    loop.begin(batch=1, past=0, first=5, new=4)
    tokens = [0] * 5

    for _ in range(4):
        loop.step()
        (token,) = loop.choose()
        assert token == recomputed(path, tokens)
        tokens.append(token)
    loop.close()

    assert len(set(tokens)) > 1


def test_one_buffer_makes_the_tokens_of_two(tmp_path: Path) -> None:
    found = []
    for name in ("one buffer", "builder"):
        loop = OrtBackend().decoding(decoder_file(tmp_path / f"{name}.onnx", MODELS[name]), settings())
        loop.begin(batch=2, past=0, first=5, new=4)
        found.append([])
        for _ in range(4):
            loop.step()
            found[-1] += loop.choose()
        loop.close()

    assert found[0] == found[1]


def test_a_loop_may_begin_behind_any_context(tmp_path: Path) -> None:
    loop = OrtBackend().decoding(decoder_file(tmp_path / "decoder.onnx", one_file(1)), settings())
    for past in (0, 7):
        loop.begin(batch=3, past=past, first=1, new=2)
        for _ in range(2):
            loop.step()
            assert len(loop.choose()) == 3

    loop.close()


def test_caches_are_freed_at_the_end_of_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[np.ndarray]] = []

    def noted(*where: Any, **how: Any) -> np.ndarray:
        array = fill(*where, **how)
        made.append(weakref.ref(array))
        return array

    monkeypatch.setattr(token_loop, "fill", noted)
    loop = OrtBackend().decoding(decoder_file(tmp_path / "decoder.onnx", one_file(1)), settings())
    loop.begin(batch=1, past=7, first=1, new=1)
    assert made
    assert all(array() is not None for array in made)

    loop.end()

    assert all(array() is None for array in made)
    loop.close()


def test_what_the_runtime_refuses_is_an_error(tmp_path: Path) -> None:
    loop = OrtBackend().decoding(decoder_file(tmp_path / "decoder.onnx", one_file(1)), settings())
    loop.begin(batch=1, past=400, first=1, new=1)  # the table of positions has 256

    with pytest.raises(BackendError, match="idx=400"):
        loop.step()
    with pytest.raises(UsageError, match="in the precision of its file; add --no-loop"):
        OrtBackend().decoding(decoder_file(tmp_path / "decoder.onnx", one_file(1)), settings(dtype="int8"))
