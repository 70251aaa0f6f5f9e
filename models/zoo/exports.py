"""The child process that turns a recipe into a skeleton: it alone, with ``calls``, imports torch and transformers.

Run as ``python -m dlbricks.models.zoo.exports NAME OUT BATCH [DIMENSION=VALUE...]``; a question mark behind a VALUE
says that it is an example, and the dimension stays open. No weight is ever stored: each parameter is one "not a number"
stretched over its shape (a view of four bytes). What the exporter folds out of parameters is then not a number either,
and everything else is a true constant of the architecture: masks, positions, indices. Parameters carry different
payload bits, so that the exporter does not merge equal-looking ones.
"""

# ruff: noqa: TID251 - runs torch, in a process of its own

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from ...errors import ModelError
from ..skeleton import mark_weight
from ..subgraphs import rename
from .calls import call_of
from .recipe import Recipe
from .recipes import RECIPES

if TYPE_CHECKING:
    import torch

__all__ = ["export"]

_OPSET = 18  # the newest that the exporter writes without converting
_IR_VERSION = 10  # the first with metadata on value infos, where the role of a weight stands
_QUIET_NAN = 0x7FC00000


def export(recipe: Recipe, batch: int, dims: Mapping[str, int], opened: Collection[str] = ()) -> onnx.ModelProto:
    """Build the model of a recipe and export its structure.

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
    """A configuration object; an image size of the recipe's dimensions becomes that of the configuration."""
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
    """Replace every learned number by not-a-number, without memory; computed buffers keep their values."""
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


def _open_axes(shapes: Iterable[Sequence[int | str]], opened: Collection[str]) -> dict[str, Any]:
    """Which axes of which input stay open, as the exporter wants it said."""
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
    """Skeleton form of an exported program: parameters become inputs in the order of their use, constants stay."""
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
    """Keep one of the tables (relative positions, masks) that every layer carries again."""
    first: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    renamed: dict[str, str] = {}
    kept = []
    for tensor in graph.initializer:
        name = first.setdefault(
            (tensor.data_type, tuple(tensor.dims), numpy_helper.to_array(tensor).tobytes()), tensor.name
        )
        if name == tensor.name:
            kept.append(tensor)
        else:
            renamed[tensor.name] = name
    for node in graph.node:
        rename(node, renamed)
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _is_learned(array: npt.NDArray[Any]) -> bool:
    """Whether a constant was made from parameters, which are not numbers."""
    return array.dtype.kind == "f" and bool(np.isnan(array.flat[:1]).any() or np.isnan(array).any())


def _strip(model: onnx.ModelProto) -> None:
    """Drop what only the exporter needed: stack traces, module names, documentation."""
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
    except Exception as error:  # models and the exporter raise anything; the parent reads the last line
        cause: BaseException = error
        while cause.__cause__ is not None:  # the exporter wraps what the model said in advice on the exporter
            cause = cause.__cause__
        raise ModelError(f"{type(cause).__name__}: {cause}") from error
    Path(out).write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(sys.argv[1:])
