"""Operators that move elements, make them of shapes and numbers, or reduce them.

Views, joins and parts; reads and writes by index; reductions over axes, running sums, and choices of the largest.
"""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional

from .arguments import Tensor, TorchCall, operator, register


@operator("Reshape")
def _reshape(call: TorchCall, x: Tensor, target: Tensor | None = None) -> Tensor:
    sizes = call.ints("shape", target) or []
    if not call.flag("allowzero"):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return torch.reshape(x, sizes)


@operator("Flatten")
def _flatten(call: TorchCall, x: Tensor) -> Tensor:
    axis = call.get("axis", 1)
    return torch.reshape(x, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])


@operator("Squeeze")
def _squeeze(call: TorchCall, x: Tensor, axes: Tensor | None = None) -> Tensor:
    axis_numbers = call.ints("axes", axes)
    return torch.squeeze(x) if axis_numbers is None else torch.squeeze(x, axis_numbers)


@operator("Unsqueeze")
def _unsqueeze(call: TorchCall, x: Tensor, axes: Tensor | None = None) -> Tensor:
    axis_numbers = call.ints("axes", axes) or []
    rank = x.ndim + len(axis_numbers)
    for axis in sorted(axis % rank for axis in axis_numbers):
        x = torch.unsqueeze(x, axis)
    return x


register(
    {
        "Concat": lambda call, *parts: torch.cat(parts, call.get("axis", 1)) if len(parts) > 1 else parts[0],
        "NonZero": lambda _, x: torch.t(torch.nonzero(x)),
        "Range": lambda _, start, limit, delta: torch.arange(
            start.item(), limit.item(), delta.item(), dtype=start.dtype, device=start.device
        ),
        # Shapes and sizes are constants: all shapes are static.
        "Shape": lambda call, x: torch.tensor(
            list(x.shape)[call.get("start", 0) : call.get("end")], dtype=torch.int64, device=x.device
        ),
        "Size": lambda _, x: torch.tensor(x.numel(), dtype=torch.int64, device=x.device),
        "Tile": lambda _, x, repeats: torch.tile(x, repeats.tolist()),
        "Transpose": lambda call, x: torch.permute(x, call.get("perm") or list(reversed(range(x.ndim)))),
    }
)


@operator("Expand")
def _expand(_: TorchCall, x: Tensor, target: Tensor) -> Tensor:
    sizes = list(torch.broadcast_shapes(x.shape, target.tolist()))
    return x if sizes == list(x.shape) else torch.broadcast_to(x, sizes)


@operator("Split")
def _split(call: TorchCall, x: Tensor, sizes: Tensor | None = None) -> Any:
    axis = call.get("axis", 0)
    part_sizes = call.ints("split", sizes)
    if part_sizes is None:
        count = len(call.wanted)
        each = -(-x.shape[axis] // count)
        part_sizes = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    return torch.split_with_sizes(x, part_sizes, axis)


@operator("Slice")
def _slice(  # noqa: PLR0917
    call: TorchCall,
    x: Tensor,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    begins, stops = call.ints("starts", starts) or [], call.ints("ends", ends) or []
    along = call.ints("axes", axes) or list(range(len(begins)))
    strides = call.ints("steps", steps) or [1] * len(begins)
    for begin, stop, axis, step in zip(begins, stops, along, strides, strict=True):
        size = x.shape[axis]
        chosen = range(size)[begin:stop:step]  # Python's rules for negative and too large bounds are ONNX's
        if chosen == range(size):
            continue
        if step == 1:
            x = torch.narrow(x, axis, min(chosen.start, size), len(chosen))
        elif step > 0:
            leading_slices: list[slice] = [slice(None)] * (axis % x.ndim)
            x = x[(*leading_slices, slice(chosen.start, chosen.stop, step))]
        else:
            x = torch.index_select(x, axis, torch.tensor(list(chosen), dtype=torch.int64, device=x.device))
    return x


@operator("Pad")
def _pad(
    call: TorchCall, x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    widths = call.ints("pads", pads) or call.ints("paddings", None) or [0] * (2 * x.ndim)
    along = [axis % x.ndim for axis in (call.ints("", axes) or range(x.ndim))]
    before, after = [0] * x.ndim, [0] * x.ndim
    for index, axis in enumerate(along):
        before[axis], after[axis] = widths[index], widths[index + len(along)]
    mode = call.get("mode", "constant")
    if mode == "constant":
        number = call.get("value", 0.0) if value is None else value.item()
        flat = [pad for axis in reversed(range(x.ndim)) for pad in (before[axis], after[axis])]
        if x.is_floating_point():
            return functional.pad(x, flat, value=number)
        return torch.constant_pad_nd(x, flat, number)
    return _pad_with_own(call, x, before, after, mode)


def _pad_with_own(call: TorchCall, x: Tensor, before: list[int], after: list[int], mode: str) -> Tensor:
    """Pad with elements of the tensor: with PyTorch's function if it exists, else axis by axis."""
    modes = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    if mode not in modes:
        raise call.refuse(f"of mode {mode}")
    if x.ndim == 4 and not any([*before[:2], *after[:2]]) and min(before + after) >= 0:
        return functional.pad(x, [before[3], after[3], before[2], after[2]], mode=modes[mode])
    for axis, (begin, end) in enumerate(zip(before, after, strict=True)):
        if not begin and not end:
            continue
        order = np.pad(np.arange(x.shape[axis]), (max(begin, 0), max(end, 0)), mode=mode)  # type: ignore[call-overload]
        order = order[max(-begin, 0) : len(order) - max(-end, 0)]
        x = torch.index_select(x, axis, torch.tensor(order, dtype=torch.int64, device=x.device))
    return x


@operator("DepthToSpace")
def _depth_to_space(call: TorchCall, x: Tensor) -> Tensor:
    block = call.attributes["blocksize"]
    count, channels, height, width = x.shape
    if call.get("mode", "DCR") == "CRD":
        return torch.pixel_shuffle(x, block)
    apart = torch.reshape(x, [count, block, block, channels // block**2, height, width])
    return torch.reshape(
        torch.permute(apart, [0, 3, 4, 1, 5, 2]), [count, channels // block**2, height * block, width * block]
    )


@operator("SpaceToDepth")
def _space_to_depth(call: TorchCall, x: Tensor) -> Tensor:
    block = call.attributes["blocksize"]
    count, channels, height, width = x.shape
    apart = torch.reshape(x, [count, channels, height // block, block, width // block, block])
    return torch.reshape(
        torch.permute(apart, [0, 3, 5, 1, 2, 4]), [count, channels * block**2, height // block, width // block]
    )


_SCATTERED = {"mul": "prod", "max": "amax", "min": "amin"}


def _counted(indices: Tensor, size: int) -> Tensor:
    """Return indices counted from the beginning; without negative indices this costs nothing.

    The fed values, which never change, show if an index is negative.
    """
    indices = indices.to(torch.int64)
    if not indices.numel() or indices.min().item() >= 0:
        return indices
    return torch.where(torch.lt(indices, 0), torch.add(indices, size), indices)


@operator("Gather")
def _gather(call: TorchCall, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    if call.constant[1] and indices.ndim == 0:
        return torch.select(x, axis, int(indices.item()))
    small = indices.dtype in {torch.int32, torch.int64}
    indices = indices if small and int(indices.min()) >= 0 else _counted(indices, x.shape[axis])
    if axis == 0 and x.ndim == 2 and indices.ndim:
        return torch.embedding(x, indices)
    chosen = torch.index_select(x, axis, indices.reshape(-1))
    return torch.reshape(chosen, [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


@operator("GatherElements")
def _gather_elements(call: TorchCall, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0)
    return torch.gather(x, axis, _counted(indices, x.shape[axis]))


@operator("GatherND")
def _gather_nd(call: TorchCall, x: Tensor, indices: Tensor) -> Tensor:
    batch = call.get("batch_dims", 0)
    return x[(*_batch_places(x, indices, batch), *torch.unbind(indices.to(torch.int64), -1))]


def _batch_places(x: Tensor, indices: Tensor, batch: int) -> list[Tensor]:
    """For each batch axis its own positions, shaped to go with the indices."""
    rank = indices.ndim - 1
    return [
        torch.tensor(range(x.shape[axis]), device=x.device).reshape([-1 if at == axis else 1 for at in range(rank)])
        for axis in range(batch)
    ]


@operator("ScatterND")
def _scatter_nd(call: TorchCall, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    reduction = call.get("reduction", "none")
    depth = indices.shape[-1]
    if reduction in {"none", "add"}:
        places = torch.unbind(indices.to(torch.int64), -1)
        return torch.index_put(x, places, updates, reduction == "add")
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    for axis, coordinate in enumerate(torch.unbind(indices, -1)):
        flat = torch.add(torch.mul(flat, x.shape[axis]), _counted(coordinate, x.shape[axis]))
    rows = torch.reshape(x, [-1, *x.shape[depth:]])
    changes = torch.reshape(updates, [-1, *x.shape[depth:]])
    places = torch.broadcast_to(flat.reshape([-1, *[1] * (rows.ndim - 1)]), changes.shape)
    result = torch.scatter_reduce(rows, 0, places, changes, _SCATTERED[reduction])
    return torch.reshape(result, x.shape)


@operator("ScatterElements", "Scatter")
def _scatter_elements(call: TorchCall, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = call.get("axis", 0)
    places = _counted(indices, x.shape[axis])
    reduction = call.get("reduction", "none")
    if reduction == "none":
        return torch.scatter(x, axis, places, updates)
    if reduction == "add":
        return torch.scatter_add(x, axis, places, updates)
    return torch.scatter_reduce(x, axis, places, updates, _SCATTERED[reduction])


@operator("OneHot")
def _one_hot(call: TorchCall, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    size = int(depth.reshape(-1)[0].item())
    axis = call.get("axis", -1) % (indices.ndim + 1)
    positions = torch.tensor(range(size), dtype=torch.int64, device=indices.device)
    positions = positions.reshape([-1] + [1] * (indices.ndim - axis))
    hot = torch.eq(torch.unsqueeze(_counted(indices, size), axis), positions)
    return torch.where(hot, torch.select(values, 0, 1), torch.select(values, 0, 0))


@operator("Trilu")
def _trilu(call: TorchCall, x: Tensor, diagonal: Tensor | None = None) -> Tensor:
    offset = 0 if diagonal is None else int(diagonal.item())
    return torch.triu(x, offset) if call.flag("upper", default=True) else torch.tril(x, offset)


@operator("Compress")
def _compress(call: TorchCall, x: Tensor, condition: Tensor) -> Tensor:
    axis = call.get("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    return torch.index_select(x, axis, torch.nonzero(condition).reshape(-1))


@operator("ReverseSequence")
def _reverse_sequence(call: TorchCall, x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse sequences; the fed lengths make the order a constant."""
    batch, time = call.get("batch_axis", 1), call.get("time_axis", 0)
    steps = x.shape[time]
    order: Any = [[*reversed(range(length)), *range(length, steps)] for length in lengths.tolist()]
    places = torch.tensor(order, device=x.device)
    if time < batch:
        places = places.t()
    places = places.reshape([*places.shape, *[1] * (x.ndim - 2)]).expand(x.shape)
    return torch.gather(x, time, places)


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:  # noqa: FBT001
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _norm(order: int) -> Callable[[Tensor, list[int], bool], Tensor]:
    return lambda x, axes, keep: torch.linalg.vector_norm(x, order, axes, keep)


_REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceL1": _norm(1), "ReduceL2": _norm(2),
    "ReduceLogSum": lambda x, axes, keep: torch.log(torch.sum(x, axes, keep)), "ReduceLogSumExp": torch.logsumexp,
    "ReduceMax": torch.amax, "ReduceMean": torch.mean, "ReduceMin": torch.amin, "ReduceProd": _product,
    "ReduceSum": lambda x, axes, keep: torch.sum(x, axes, keep, dtype=x.dtype),
    "ReduceSumSquare": lambda x, axes, keep: torch.sum(torch.square(x), axes, keep, dtype=x.dtype),
}  # fmt: skip
_OF_FLOATS = frozenset({"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean"})
"""PyTorch computes them in floating point only."""


@operator(*_REDUCTIONS)
def _reduce(call: TorchCall, x: Tensor, axes: Tensor | None = None) -> Tensor:
    axis_numbers = call.ints("axes", axes)
    if not axis_numbers and call.flag("noop_with_empty_axes"):
        return x
    chosen = [axis % x.ndim for axis in axis_numbers or range(x.ndim)]
    function = _REDUCTIONS[call.op_type]
    keep = call.flag("keepdims", default=True)
    if call.op_type in _OF_FLOATS and not x.is_floating_point():
        return function(x.to(torch.float64), chosen, keep).to(x.dtype)
    return function(x, chosen, keep)


@operator("ArgMax", "ArgMin")
def _arg(call: TorchCall, x: Tensor) -> Tensor:
    axis = call.get("axis", 0)
    function = torch.argmax if call.op_type == "ArgMax" else torch.argmin
    keep = call.flag("keepdims", default=True)
    if not call.flag("select_last_index"):
        return function(x, axis, keep)
    return torch.sub(x.shape[axis] - 1, function(torch.flip(x, [axis]), axis, keep))


@operator("TopK")
def _top_k(call: TorchCall, x: Tensor, count: Tensor | None = None) -> Any:
    k = int(count.item()) if count is not None else call.attributes["k"]
    largest, in_order = call.flag("largest", default=True), call.flag("sorted", default=True)
    return torch.topk(x, k, call.get("axis", -1), largest, in_order)


@operator("CumSum")
def _cumulative_sum(call: TorchCall, x: Tensor, axis: Tensor) -> Tensor:
    along = int(axis.item()) % x.ndim
    backwards = call.flag("reverse")
    result = torch.flip(x, [along]) if backwards else x
    result = torch.cumsum(result, along, dtype=x.dtype)
    if call.flag("exclusive"):
        first = torch.zeros_like(torch.narrow(result, along, 0, 1))
        result = torch.cat([first, torch.narrow(result, along, 0, x.shape[along] - 1)], along)
    return torch.flip(result, [along]) if backwards else result


GENERATORS = frozenset({
    "ConstantOfShape", "EyeLike", "Range", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    "Bernoulli",
})  # fmt: skip
"""Their result is made anew by every run, though it depends on shapes and numbers only."""


@operator("ConstantOfShape")
def _constant_of_shape(call: TorchCall, shape: Tensor) -> Tensor:
    value = call.get("value")
    if value is None:
        return torch.zeros(shape.tolist(), dtype=call.dtype_of(onnx.TensorProto.FLOAT), device=shape.device)
    number = numpy_helper.to_array(value).reshape(-1)[0].item()
    return torch.full(shape.tolist(), number, dtype=call.dtype_of(value.data_type), device=shape.device)


@operator("EyeLike")
def _eye_like(call: TorchCall, x: Tensor) -> Tensor:
    dtype = call.dtype_of(call.attributes["dtype"]) if "dtype" in call.attributes else x.dtype
    if not call.get("k", 0):
        return torch.eye(x.shape[0], x.shape[1], dtype=dtype, device=x.device)
    ones = torch.ones(list(x.shape), dtype=dtype, device=x.device)
    offset = call.attributes["k"]
    return torch.triu(torch.tril(ones, offset), offset)


@operator("RandomNormal", "RandomNormalLike")
def _random_normal(call: TorchCall, like: Tensor | None = None) -> Tensor:
    shape, dtype, device = _random_type(call, like)
    noise = torch.randn(shape, dtype=dtype, device=device)
    return torch.add(torch.mul(noise, call.get("scale", 1.0)), call.get("mean", 0.0))


@operator("RandomUniform", "RandomUniformLike")
def _random_uniform(call: TorchCall, like: Tensor | None = None) -> Tensor:
    shape, dtype, device = _random_type(call, like)
    low, high = call.get("low", 0.0), call.get("high", 1.0)
    return torch.add(torch.mul(torch.rand(shape, dtype=dtype, device=device), high - low), low)


@operator("Bernoulli")
def _bernoulli(call: TorchCall, chance: Tensor) -> Tensor:
    drawn = torch.bernoulli(chance)
    return drawn.to(call.dtype_of(call.attributes["dtype"])) if "dtype" in call.attributes else drawn


def _random_type(call: TorchCall, like: Tensor | None) -> tuple[list[int], Any, Any]:
    number = call.get("dtype", onnx.TensorProto.FLOAT)
    if like is None:
        return list(call.attributes["shape"]), call.dtype_of(number), None
    dtype = call.dtype_of(number) if "dtype" in call.attributes else like.dtype
    return list(like.shape), dtype, like.device
