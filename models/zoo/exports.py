"""The child process that exports a recipe as a skeleton; only this module imports torch and transformers.

Run as ``python -m dlbricks.models.zoo.exports NAME OUT BATCH [DIMENSION=VALUE...]``; a question mark behind a VALUE
marks an example of an open dimension. Weights are never stored: each parameter is one "not a number" stretched over its
shape (a view of four bytes). Values that the exporter folds from parameters are then NaN too. All others are true
constants of the architecture: masks, positions, indices. Parameters have different payload bits, so that the exporter
does not merge them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from ...errors import ModelError
from ..skeleton import mark_weight
from ..subgraphs import rename
from .recipes import RECIPES, Recipe

if TYPE_CHECKING:
    import torch


# ruff: noqa: TID251 - runs torch, in the process of ``exports``


# The call of a recipe's model: exporters require a module that takes and returns tensors only.
#
# A decoder is called as a whole, or as in a loop. Its *prompt* returns a new cache of keys and values (``present``);
# its *step* takes the past cache and returns it one position longer. The prompt of an encoder-decoder also encodes the
# source and returns a second cache, of the source (``cross``), which all steps read.


_PAST = "past_length"
_SOURCE = "encoder_length"


@dataclass(frozen=True, slots=True, eq=False)
class ExportCall:
    """A model and the arguments of its call.

    Attributes:
        module: A module that takes and returns tensors.
        inputs: Names of its inputs, in order.
        tensors: Inputs of the right types; the exporter ignores their values.
        shapes: Shape of each input: sizes, or names of dimensions.
        outputs: Names of its outputs.
    """

    module: torch.nn.Module
    inputs: Sequence[str]
    tensors: Sequence[torch.Tensor]
    shapes: Sequence[Sequence[int | str]]
    outputs: Sequence[str]


def call_of(model: torch.nn.Module, config: Any, recipe: Recipe, values: Mapping[str, int]) -> ExportCall:
    """Return the call of a recipe's model.

    Args:
        model: The built model.
        config: Its configuration.
        recipe: The recipe with its caches; for an encoder-decoder it is a step if a dimension counts the past.
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
    return ExportCall(_as_function(model, recipe, len(parts)).eval(), inputs, tensors, shapes, outputs)


def _layers(config: Any, recipe: Recipe) -> int:
    """Return the number of layers with keys and values in a cache."""
    if recipe.cache != "crossed":
        return int(config.num_hidden_layers) if recipe.cache else 0
    return int(getattr(config, "num_decoder_layers", None) or config.decoder_layers)


def _as_function(model: torch.nn.Module, recipe: Recipe, parts: int) -> torch.nn.Module:
    """Return the model as a module of tensors; the parts of each cache follow the recipe's own inputs."""
    import torch
    from transformers import EncoderDecoderCache
    from transformers.modeling_outputs import BaseModelOutput

    begin, crossed = len(recipe.inputs), recipe.cache == "crossed"

    class Function(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            options = dict(zip((value.name for value in recipe.inputs), tensors, strict=False)) | dict(recipe.options)
            starts = range(begin, len(tensors), parts or 1)
            past = [_filled(self.model.config, tensors[start : start + parts]) for start in starts]
            if recipe.cache:
                options["use_cache"] = True
            if past:
                options["past_key_values"] = EncoderDecoderCache(*past) if crossed else past[0]
            if past and crossed:
                # The encoder's output is not read: its keys and values are in the cache.
                unread = torch.zeros(tensors[0].shape[0], tensors[begin + parts].shape[2], self.model.config.d_model)
                options["encoder_outputs"] = BaseModelOutput(last_hidden_state=unread)
            result = self.model(**options)
            outputs = [result[name] for name in recipe.outputs]
            if crossed:
                both = result.past_key_values
                outputs += _parts(both.self_attention_cache) + ([] if past else _parts(both.cross_attention_cache))
            elif recipe.cache:
                outputs += _parts(result.past_key_values)
            return tuple(outputs)

    return Function()


def _filled(config: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Return a cache of keys and values, layer by layer."""
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
    """Return empty keys and values: (batch, heads of the cache, length, width of a head)."""
    import torch

    heads = getattr(config, "decoder_attention_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or getattr(config, "d_kv", None) or config.hidden_size // heads
    shape = (batch, getattr(config, "num_key_value_heads", None) or heads, length, width)
    return [torch.zeros(shape) for _ in range(count)]


_OPSET = 18  # the newest that the exporter writes without converting
_IR_VERSION = 10  # the first with metadata on value infos, for the role of a weight
_QUIET_NAN = 0x7FC00000


def export(recipe: Recipe, batch: int, dims: Mapping[str, int], opened: Collection[str] = ()) -> onnx.ModelProto:
    """Build the model of a recipe and export its structure.

    Args:
        recipe: The recipe.
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
    if recipe.part:
        model = model.get_submodule(recipe.part)
    _forget(model)
    call = call_of(model, config, recipe, {"batch": batch, **dims})
    program = torch.onnx.export(
        call.module, tuple(call.tensors), input_names=call.inputs, output_names=call.outputs, dynamo=True,
        opset_version=_OPSET, verbose=False, dynamic_shapes=_open_axes(call.shapes, opened) if opened else None,
    )  # fmt: skip
    skeleton = _skeleton(program)
    onnx.checker.check_model(skeleton, full_check=True)
    return skeleton


def _configuration(name: str, sizes: Mapping[str, Any], dims: Mapping[str, int]) -> Any:
    """Return a configuration object with the recipe's image size."""
    import transformers

    arguments = {
        key: _configuration(value["class"], {k: v for k, v in value.items() if k != "class"}, {})
        if isinstance(value, Mapping) and "class" in value
        else value
        for key, value in sizes.items()
    }
    config = getattr(transformers, name)(attn_implementation="eager", **arguments)
    size = dims.get("image_size")
    if size is not None and "image_size" in vars(config):
        config.image_size = [size, size] if isinstance(config.image_size, (list, tuple)) else size
    return config


def _forget(model: torch.nn.Module) -> None:
    """Replace every learned number by NaN, without memory; computed buffers keep their values."""
    import torch

    for module in model.modules():
        if torch.nn.utils.parametrize.is_parametrized(module):
            for name in list(module.parametrizations):
                torch.nn.utils.parametrize.remove_parametrizations(module, name)
    learned: list[torch.Tensor] = list(model.parameters())
    for module in model.modules():
        if "BatchNorm" in type(module).__name__:
            learned += [buffer for buffer in module.buffers(recurse=False) if buffer.is_floating_point()]
    for index, tensor in enumerate(learned):
        tensor.requires_grad_(requires_grad=False)
        unknown = torch.tensor(_QUIET_NAN + 1 + index, dtype=torch.int32).view(torch.float32)
        tensor.data = unknown.to(tensor.dtype).expand(tensor.shape)


def _open_axes(shapes: Iterable[Sequence[int | str]], opened: Collection[str]) -> dict[str, tuple[dict[int, Any], ...]]:
    """Return the open axes of each input, in the exporter's form."""
    import torch

    sizes = {name: torch.export.Dim(name, min=2) for name in opened}
    axes = []
    for shape in shapes:
        named = {axis: str(size).split("+") for axis, size in enumerate(shape)}
        axes.append(
            {
                axis: sum((int(part) for part in more), start=sizes[name])
                for axis, (name, *more) in named.items()
                if name in sizes
            }
        )
    return {"tensors": tuple(axes)}


def _skeleton(program: Any) -> onnx.ModelProto:
    """Return the skeleton form of an exported program: parameters become inputs in the order of their use."""
    graph = program.model.graph
    used = {value: None for node in graph for value in node.inputs if value is not None}
    constants = [value for value in used if value.name in graph.initializers]
    learned = {value: None for value in constants if _is_learned(value.const_value.numpy())}
    graph.initializers.clear()
    graph.initializers.update({value.name: value for value in constants if value not in learned})
    graph.inputs[:] = [value for value in graph.inputs if value in used]
    public = len(graph.inputs)
    graph.inputs.extend(learned)
    for value in learned:
        value.const_value = None
    model: onnx.ModelProto = program.model_proto
    model.ir_version = _IR_VERSION
    _strip(model)
    _merge_equal_constants(model.graph)
    for info in model.graph.input[public:]:
        mark_weight(info)
    return model


def _merge_equal_constants(graph: onnx.GraphProto) -> None:
    """Keep one of equal tables (relative positions, masks) that every layer repeats."""
    first: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    renamed: dict[str, str] = {}
    distinct_tensors = []
    for tensor in graph.initializer:
        name = first.setdefault(
            (tensor.data_type, tuple(tensor.dims), numpy_helper.to_array(tensor).tobytes()), tensor.name
        )
        if name == tensor.name:
            distinct_tensors.append(tensor)
        else:
            renamed[tensor.name] = name
    for node in graph.node:
        rename(node, renamed)
    del graph.initializer[:]
    graph.initializer.extend(distinct_tensors)


def _is_learned(array: npt.NDArray[Any]) -> bool:
    """Return True if a constant was computed from parameters, which are NaN."""
    return array.dtype.kind == "f" and bool(np.isnan(array.flat[:1]).any() or np.isnan(array).any())


def _strip(model: onnx.ModelProto) -> None:
    """Drop information of the exporter only: stack traces, module names, documentation."""
    for holder in (
        model,
        model.graph,
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.input,
        *model.graph.output,
    ):
        holder.ClearField("doc_string")
        holder.ClearField("metadata_props")


def main(arguments: list[str]) -> None:
    """Export one recipe to a file; arguments as in the module's docstring."""
    name, out, batch, *dims = arguments
    chosen = {key: int(value.rstrip("?")) for key, value in (item.split("=") for item in dims)}
    opened = [item.split("=")[0] for item in dims if item.endswith("?")]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = export(RECIPES[name], int(batch), chosen, opened)
    except Exception as error:  # models and the exporter raise any error; the parent reads the last line
        cause: BaseException = error
        while cause.__cause__ is not None:  # the exporter wraps the model's error
            cause = cause.__cause__
        raise ModelError(f"{type(cause).__name__}: {cause}") from error
    Path(out).write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(sys.argv[1:])
