"""The child process that exports encoder-decoders with their caches: for these what ``exports`` is for all others.

Run as ``python -m dlbricks.models.zoo.crossed``, with the same arguments. A *prompt* encodes the source, takes the
first tokens of the answer, and returns two caches of keys and values: of these tokens (``present``), and of the source
(``cross``), which all later steps read. A *step* takes one token and both, and returns the first one position longer.

It uses the parts of ``exports`` as they are: what stands in that file is part of the name under which every export is
kept, so that a change there has all of them made anew.
"""

# ruff: noqa: TID251 - runs torch, in a process of its own, with what ``exports`` keeps to itself

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import onnx

from . import exports
from .exports import _CACHED, _OPSET, _configuration, _example, _forget, _open_axes, _skeleton
from .recipes import Recipe

if TYPE_CHECKING:
    import torch

__all__ = ["export"]

_PAST = "past_length"
_SOURCE = "encoder_length"


def export(recipe: Recipe, batch: int, dims: Mapping[str, int], opened: Collection[str] = ()) -> onnx.ModelProto:
    """Build an encoder-decoder and export its prompt, or, with a length of the past among the dimensions, its step.

    Args:
        recipe: What to build.
        batch: Inputs per execution.
        dims: A value for every dimension of the recipe.
        opened: Dimensions that stay open under their names; their values are examples.

    Returns:
        Skeleton-form ONNX.
    """
    import torch
    import transformers
    from transformers.initialization import no_init_weights

    config = _configuration(recipe.config, recipe.sizes, dims)
    with no_init_weights():
        model = getattr(transformers, recipe.architecture)(config)
    model.tie_weights()
    _forget(model)
    layers = getattr(config, "num_decoder_layers", None) or config.decoder_layers
    parts = [f"{layer}.{part}" for layer in range(layers) for part in _CACHED]
    names, shapes = [value.name for value in recipe.inputs], [value.shape for value in recipe.inputs]
    tensors = _example(recipe, {"batch": batch, **dims})
    outputs = [*recipe.outputs, *(f"present.{part}" for part in parts)]
    if _PAST in dims:
        source = dims.get(_SOURCE) or config.max_source_positions
        names += [f"{cache}.{part}" for cache in ("past", "cross") for part in parts]
        tensors += [_cache(config, batch, length) for length in (dims[_PAST], source) for _ in parts]
        lengths = (_PAST, _SOURCE if _SOURCE in dims else source)
        shapes += [("batch", "heads", length, "width") for length in lengths for _ in parts]
        call = _step(model, len(parts))
    else:
        outputs += [f"cross.{part}" for part in parts]
        call = _prompt(model, names)
    program = torch.onnx.export(
        call.eval(), tuple(tensors), input_names=names, output_names=outputs, dynamo=True, opset_version=_OPSET,
        verbose=False, dynamic_shapes=_open_axes(shapes, opened) if opened else None,
    )  # fmt: skip
    skeleton = _skeleton(program)
    onnx.checker.check_model(skeleton, full_check=True)
    return skeleton


def _cache(config: Any, batch: int, length: int) -> torch.Tensor:
    """Empty keys or values of one layer: (batch, heads, length, width of a head)."""
    import torch

    heads = getattr(config, "decoder_attention_heads", None) or config.num_heads
    return torch.zeros(batch, heads, length, getattr(config, "d_kv", None) or config.d_model // heads)


def _parts(cache: Any) -> list[torch.Tensor]:
    return [part for layer in cache.layers for part in (layer.keys, layer.values)]


def _prompt(model: torch.nn.Module, names: list[str]) -> torch.nn.Module:
    import torch

    class Prompt(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = self.model(**dict(zip(names, tensors, strict=True)), use_cache=True)
            both = found.past_key_values
            return (found.logits, *_parts(both.self_attention_cache), *_parts(both.cross_attention_cache))

    return Prompt()


def _step(model: torch.nn.Module, parts: int) -> torch.nn.Module:
    import torch
    from transformers import DynamicCache, EncoderDecoderCache
    from transformers.modeling_outputs import BaseModelOutput

    class Step(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            (token, *caches), filled = tensors, []
            for cached in (caches[:parts], caches[parts:]):
                cache = DynamicCache(config=self.model.config)
                for layer in range(parts // 2):
                    cache.update(cached[2 * layer], cached[2 * layer + 1], layer)
                filled.append(cache)
            past = EncoderDecoderCache(*filled)
            # Of what the encoder gave nothing is read: its keys and values are in the cache.
            unread = torch.zeros(token.shape[0], caches[parts].shape[2], self.model.config.d_model)
            encoded = BaseModelOutput(last_hidden_state=unread)
            found = self.model(decoder_input_ids=token, encoder_outputs=encoded, past_key_values=past, use_cache=True)
            return (found.logits, *_parts(found.past_key_values.self_attention_cache))

    return Step()


if __name__ == "__main__":
    exports.export = export
    exports.main(sys.argv[1:])
