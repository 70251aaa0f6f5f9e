"""How the model of a recipe is called: as a module that takes and returns tensors alone, as an exporter wants it.

A decoder is called as a whole, or as a loop runs it: its *prompt* fills a cache of keys and values, which is returned
(``present``), and its *step* takes that of the past and returns it one position longer. The prompt of an
encoder-decoder encodes the source as well and returns a second cache, of the source (``cross``), which all steps read.
"""

# ruff: noqa: TID251 - runs torch, in the process of ``exports``

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .recipe import Recipe

if TYPE_CHECKING:
    import torch

__all__ = ["Call", "call_of"]

_PAST = "past_length"
_SOURCE = "encoder_length"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A model, and what it is called with.

    Attributes:
        module: Takes and returns tensors.
        inputs: Names of its inputs, in order.
        tensors: Inputs of the right types; the exporter looks at nothing else.
        shapes: Of each input: sizes, or names of dimensions.
        outputs: Names of what it returns.
    """

    module: torch.nn.Module
    inputs: Sequence[str]
    tensors: Sequence[torch.Tensor]
    shapes: Sequence[Sequence[int | str]]
    outputs: Sequence[str]


def call_of(model: torch.nn.Module, config: Any, recipe: Recipe, values: Mapping[str, int]) -> Call:
    """How a recipe calls its model.

    Args:
        model: As built.
        config: What it was built from.
        recipe: Says what there is of caches; that of an encoder-decoder is a step where a dimension counts the past.
        values: A value for every dimension, and the batch.
    """
    crossed = recipe.cache == "crossed"
    parts = [f"{layer}.{part}" for layer in range(_layers(config, recipe)) for part in ("key", "value")]
    inputs, shapes = [value.name for value in recipe.inputs], [value.shape for value in recipe.inputs]
    tensors, outputs = _example(recipe, values), [*recipe.outputs, *(f"present.{part}" for part in parts)]
    taken: dict[str, int | str] = {}  # caches that are inputs, and their length
    if recipe.cache == "extended" or (crossed and _PAST in values):
        taken["past"] = _PAST
        if crossed:
            taken["cross"] = _SOURCE if _SOURCE in values else config.max_source_positions
    elif crossed:
        outputs += [f"cross.{part}" for part in parts]
    for cache, length in taken.items():
        inputs += [f"{cache}.{part}" for part in parts]
        shapes += [("batch", "heads", length, "width")] * len(parts)
        tensors += _empty(config, values["batch"], _size(length, values), len(parts))
    return Call(_as_function(model, recipe, len(parts)).eval(), inputs, tensors, shapes, outputs)


def _layers(config: Any, recipe: Recipe) -> int:
    """Layers that have keys and values in a cache."""
    if recipe.cache != "crossed":
        return int(config.num_hidden_layers) if recipe.cache else 0
    return int(getattr(config, "num_decoder_layers", None) or config.decoder_layers)


def _as_function(model: torch.nn.Module, recipe: Recipe, parts: int) -> torch.nn.Module:
    """The model as a module of tensors; behind the recipe's own inputs stand as many parts of each cache."""
    import torch
    from transformers import EncoderDecoderCache
    from transformers.modeling_outputs import BaseModelOutput

    own, crossed = len(recipe.inputs), recipe.cache == "crossed"

    class Function(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            options = dict(zip((value.name for value in recipe.inputs), tensors, strict=False)) | dict(recipe.options)
            starts = range(own, len(tensors), parts or 1)
            past = [_filled(self.model.config, tensors[start : start + parts]) for start in starts]
            if recipe.cache:
                options["use_cache"] = True
            if past:
                options["past_key_values"] = EncoderDecoderCache(*past) if crossed else past[0]
            if past and crossed:
                # Of what the encoder gave nothing is read: its keys and values are in the cache.
                unread = torch.zeros(tensors[0].shape[0], tensors[own + parts].shape[2], self.model.config.d_model)
                options["encoder_outputs"] = BaseModelOutput(last_hidden_state=unread)
            result = self.model(**options)
            found = [result[name] for name in recipe.outputs]
            if crossed:
                both = result.past_key_values
                found += _parts(both.self_attention_cache) + ([] if past else _parts(both.cross_attention_cache))
            elif recipe.cache:
                found += _parts(result.past_key_values)
            return tuple(found)

    return Function()


def _filled(config: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A cache of keys and values, layer by layer."""
    from transformers import DynamicCache

    cache = DynamicCache(config=config)
    for layer, (key, value) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
        cache.update(key, value, layer)
    return cache


def _parts(cache: Any) -> list[torch.Tensor]:
    return [part for layer in cache.layers for part in (layer.keys, layer.values)]


def _example(recipe: Recipe, values: Mapping[str, int]) -> list[torch.Tensor]:
    import torch

    tensors = []
    for value in recipe.inputs:
        shape = [_size(dimension, values) for dimension in value.shape]
        tensors.append(torch.zeros(shape) if value.dtype == "float32" else torch.ones(shape, dtype=torch.int64))
    return tensors


def _size(dimension: int | str, values: Mapping[str, int]) -> int:
    if isinstance(dimension, int):
        return dimension
    return sum(values[part] if part in values else int(part) for part in dimension.split("+"))


def _empty(config: Any, batch: int, length: int, count: int) -> list[torch.Tensor]:
    """Empty keys and values: (batch, heads of the cache, length, width of a head)."""
    import torch

    heads = getattr(config, "decoder_attention_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or getattr(config, "d_kv", None) or config.hidden_size // heads
    shape = (batch, getattr(config, "num_key_value_heads", None) or heads, length, width)
    return [torch.zeros(shape) for _ in range(count)]
