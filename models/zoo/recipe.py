"""How one architecture is built from ``transformers`` and called, and the kinds of recipe that tables are made of.

``sizes`` holds what differs from the configuration class's own defaults, which are themselves published sizes (those of
``ResNetConfig`` are ResNet-50's). A nested ``{"class": NAME, ...}`` is a configuration of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .entry import ZooEntry

__all__ = ["TEXT", "Input", "Recipe", "answering", "decoder", "encoder", "general", "generator", "translator", "vision"]

Dimension = int | str
Family = Literal["cnn", "transformer", "hybrid", "mlp"]
Cache = Literal["", "filled", "extended", "crossed"]


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a model.

    Attributes:
        name: Argument of the model's ``forward``.
        dtype: ``float32``; ``tokens`` for numbers of the vocabulary; ``mask`` for int64 ones.
        shape: Sizes, or names of dimensions; ``+`` adds two names.
    """

    name: str
    dtype: Literal["float32", "tokens", "mask"]
    shape: tuple[Dimension, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one exported architecture is built and called.

    Attributes:
        entry: Its line in the zoo's list.
        architecture: Class of ``transformers``.
        config: Its configuration class.
        sizes: Arguments of the configuration.
        inputs: Inputs, in order.
        outputs: Fields of the model's output that become graph outputs.
        part: Submodule to export instead of the whole; empty for the whole.
        cache: What a decoder does with keys and values: ``filled``, they are outputs; ``extended``, those of past
            tokens are inputs and outputs too; ``crossed``, those of an encoder-decoder, of its source as well, are
            outputs, and inputs where a dimension counts the past; empty, neither.
        options: Further arguments of ``forward``.
    """

    entry: ZooEntry
    architecture: str
    config: str
    sizes: Mapping[str, Any]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    part: str = ""
    cache: Cache = ""
    options: Mapping[str, Any] = field(default_factory=dict)


TEXT = (
    Input("input_ids", "tokens", ("batch", "sequence_length")),
    Input("attention_mask", "mask", ("batch", "sequence_length")),
)
"""Tokens and a mask of ones."""

_STEP = (
    Input("input_ids", "tokens", ("batch", 1)),
    Input("attention_mask", "mask", ("batch", "past_length+1")),
)
_LANGUAGE = "language modelling"
_TRANSLATION = (*TEXT, Input("decoder_input_ids", "tokens", ("batch", "decoder_length")))


def _entry(name: str, task: str, family: Family, denormals: str, **dims: int) -> ZooEntry:
    return ZooEntry(name, task, family, "export", "zoo", tuple(dims.items()), denormals)


def vision(
    name: str, family: Family, architecture: str, config: str, *, task: str = "image classification",
    image_size: int = 224, outputs: tuple[str, ...] = ("logits",), denormals: str = "", **sizes: Any,
) -> Recipe:  # fmt: skip
    """A model of square images."""
    pixels = Input("pixel_values", "float32", ("batch", 3, "image_size", "image_size"))
    entry = _entry(name, task, family, denormals, image_size=image_size)
    if task == "image classification":
        sizes = {"num_labels": 1000, **sizes}
    return Recipe(entry, architecture, config, sizes, (pixels,), outputs)


def encoder(
    name: str, architecture: str, config: str, *, sequence_length: int = 128,
    outputs: tuple[str, ...] = ("last_hidden_state",), **sizes: Any,
) -> Recipe:  # fmt: skip
    """An encoder of text with a mask."""
    entry = _entry(name, "text encoding", "transformer", "", sequence_length=sequence_length)
    return Recipe(entry, architecture, config, sizes, TEXT, outputs)


def decoder(name: str, architecture: str, config: str, **sizes: Any) -> tuple[Recipe, Recipe, Recipe]:
    """A language model over a whole prompt; and as a loop runs it: prompt into a cache, then one step at a time."""
    whole = _entry(name, _LANGUAGE, "transformer", "", sequence_length=128)
    alone = Recipe(whole, architecture, config, sizes, TEXT, ("logits",), options={"use_cache": False})
    return (alone, *generator(name, architecture, config, **sizes))


def generator(name: str, architecture: str, config: str, **sizes: Any) -> tuple[Recipe, Recipe]:
    """What generates text: a prompt that fills a cache of keys and values, and one step that extends it."""
    prompt = _entry(f"{name}_prompt", f"{_LANGUAGE}, prompt into KV cache", "transformer", "", sequence_length=128)
    step = _entry(f"{name}_step", f"{_LANGUAGE}, one step with KV cache", "transformer", "", past_length=128)
    return (
        Recipe(prompt, architecture, config, sizes, TEXT, ("logits",), cache="filled", options={"use_cache": True}),
        Recipe(step, architecture, config, sizes, _STEP, ("logits",), cache="extended"),
    )


def translator(name: str, architecture: str, config: str, **sizes: Any) -> Recipe:
    """An encoder and a decoder of text."""
    entry = _entry(name, "encoder-decoder", "transformer", "", sequence_length=64, decoder_length=32)
    return Recipe(entry, architecture, config, sizes, _TRANSLATION, ("logits",), options={"use_cache": False})


def answering(
    name: str, task: str, architecture: str, config: str, *source: Input, dims: Mapping[str, int] | None = None,
    **sizes: Any,
) -> tuple[Recipe, Recipe]:  # fmt: skip
    """An encoder-decoder as a loop runs it: the source and the first tokens into caches, then one step at a time."""
    prompt = _entry(
        f"{name}_prompt", f"{task}, prompt into KV cache", "transformer", "", sequence_length=4, **dims or {}
    )
    step = _entry(f"{name}_step", f"{task}, one step with KV cache", "transformer", "", past_length=128, **dims or {})
    first, one = (Input("decoder_input_ids", "tokens", ("batch", length)) for length in ("sequence_length", 1))
    return (
        Recipe(prompt, architecture, config, sizes, (*source, first), ("logits",), cache="crossed"),
        Recipe(step, architecture, config, sizes, (one,), ("logits",), cache="crossed"),
    )


def general(
    name: str, task: str, family: Family, architecture: str, config: str, *inputs: Input,
    outputs: tuple[str, ...] = ("logits",), part: str = "", options: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None, denormals: str = "", **sizes: Any,
) -> Recipe:  # fmt: skip
    """A model with inputs of its own."""
    entry = _entry(name, task, family, denormals, **(dims or {}))
    return Recipe(entry, architecture, config, sizes, inputs, outputs, part=part, options=dict(options or {}))
