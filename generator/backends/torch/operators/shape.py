"""Operators that move elements without computing: views, joins, parts."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from .call import Call, Tensor
from .registry import operator

__all__: list[str] = []


@operator("Reshape")
def _reshape(call: Call, x: Tensor, target: Tensor | None = None) -> Tensor:
    sizes = call.ints("shape", target) or []
    if not call.flag("allowzero"):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return torch.reshape(x, sizes)


@operator("Flatten")
def _flatten(call: Call, x: Tensor) -> Tensor:
    axis = call.get("axis", 1)
    return torch.reshape(x, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])


@operator("Squeeze")
def _squeeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    given = call.ints("axes", axes)
    return torch.squeeze(x) if given is None else torch.squeeze(x, given)


@operator("Unsqueeze")
def _unsqueeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    given = call.ints("axes", axes) or []
    rank = x.ndim + len(given)
    for axis in sorted(axis % rank for axis in given):
        x = torch.unsqueeze(x, axis)
    return x


@operator("Transpose")
def _transpose(call: Call, x: Tensor) -> Tensor:
    return torch.permute(x, call.get("perm") or list(reversed(range(x.ndim))))


@operator("Expand")
def _expand(_: Call, x: Tensor, target: Tensor) -> Tensor:
    sizes = list(torch.broadcast_shapes(x.shape, target.tolist()))
    return x if sizes == list(x.shape) else torch.broadcast_to(x, sizes)


@operator("Tile")
def _tile(_: Call, x: Tensor, repeats: Tensor) -> Tensor:
    return torch.tile(x, repeats.tolist())


@operator("Concat")
def _concat(call: Call, *parts: Tensor) -> Tensor:
    return torch.cat(parts, call.get("axis", 1)) if len(parts) > 1 else parts[0]


@operator("Split")
def _split(call: Call, x: Tensor, sizes: Tensor | None = None) -> Any:
    axis = call.get("axis", 0)
    given = call.ints("split", sizes)
    if given is None:
        count = len(call.wanted)
        each = -(-x.shape[axis] // count)
        given = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    return torch.split_with_sizes(x, given, axis)


@operator("Slice")
def _slice(  # noqa: PLR0917
    call: Call,
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
            place: list[slice] = [slice(None)] * (axis % x.ndim)
            x = x[(*place, slice(chosen.start, chosen.stop, step))]
        else:
            x = torch.index_select(x, axis, torch.tensor(list(chosen), dtype=torch.int64, device=x.device))
    return x


@operator("Pad")
def _pad(
    call: Call, x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    given = call.ints("pads", pads) or call.ints("paddings", None) or [0] * (2 * x.ndim)
    along = [axis % x.ndim for axis in (call.ints("", axes) or range(x.ndim))]
    before, after = [0] * x.ndim, [0] * x.ndim
    for place, axis in enumerate(along):
        before[axis], after[axis] = given[place], given[place + len(along)]
    mode = call.get("mode", "constant")
    if mode == "constant":
        number = call.get("value", 0.0) if value is None else value.item()
        flat = [pad for axis in reversed(range(x.ndim)) for pad in (before[axis], after[axis])]
        if x.is_floating_point():
            return functional.pad(x, flat, value=number)
        return torch.constant_pad_nd(x, flat, number)
    return _pad_with_own(call, x, before, after, mode)


def _pad_with_own(call: Call, x: Tensor, before: list[int], after: list[int], mode: str) -> Tensor:
    """Pad with the tensor's own elements: at once where PyTorch has it, axis by axis otherwise."""
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


@operator("Shape")
def _shape(call: Call, x: Tensor) -> Tensor:
    """A constant: all shapes are static."""
    return torch.tensor(list(x.shape)[call.get("start", 0) : call.get("end")], dtype=torch.int64, device=x.device)


@operator("Size")
def _size(_: Call, x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64, device=x.device)


@operator("DepthToSpace")
def _depth_to_space(call: Call, x: Tensor) -> Tensor:
    block = call.attributes["blocksize"]
    count, channels, height, width = x.shape
    if call.get("mode", "DCR") == "CRD":
        return torch.pixel_shuffle(x, block)
    apart = torch.reshape(x, [count, block, block, channels // block**2, height, width])
    return torch.reshape(
        torch.permute(apart, [0, 3, 4, 1, 5, 2]), [count, channels // block**2, height * block, width * block]
    )


@operator("SpaceToDepth")
def _space_to_depth(call: Call, x: Tensor) -> Tensor:
    block = call.attributes["blocksize"]
    count, channels, height, width = x.shape
    apart = torch.reshape(x, [count, channels, height // block, block, width // block, block])
    return torch.reshape(
        torch.permute(apart, [0, 3, 5, 1, 2, 4]), [count, channels * block**2, height // block, width // block]
    )
