"""Pools over windows and over whole images."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from .call import Call, Tensor
from .registry import operator
from .windows import explicit_pads, padding_list

__all__: list[str] = []

_MAX = {1: torch.max_pool1d, 2: torch.max_pool2d, 3: torch.max_pool3d}
_MAX_AND_INDEX = {
    1: functional.max_pool1d_with_indices,
    2: functional.max_pool2d_with_indices,
    3: functional.max_pool3d_with_indices,
}
_AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


@operator("MaxPool")
def _max_pool(call: Call, x: Tensor) -> Any:
    rank = _rank(call, x)
    kernel, strides, dilations, before, after = _window(call, x)
    if before != after or any(2 * pad > size for pad, size in zip(before, kernel, strict=True)):
        if call.has(1):
            raise call.refuse("with indices and padding that differs between the sides")
        lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        x = functional.pad(x, padding_list(before, after), value=lowest)
        before = [0] * rank
    ceiling = call.flag("ceil_mode")
    if not call.has(1):
        return _MAX[rank](x, kernel, strides, before, dilations, ceiling)
    if call.get("storage_order", 0):
        raise call.refuse("with indices in column order")
    values, indices = _MAX_AND_INDEX[rank](x, kernel, strides, before, dilations, ceiling)
    # ONNX counts through the whole tensor, PyTorch through each channel's plane.
    planes = torch.tensor(range(x.shape[0] * x.shape[1]), device=x.device)
    start = planes.reshape([x.shape[0], x.shape[1]] + [1] * rank) * math.prod(x.shape[2:])
    return values, torch.add(indices, start)


@operator("AveragePool")
def _average_pool(call: Call, x: Tensor) -> Tensor:
    rank = _rank(call, x)
    kernel, strides, dilations, before, after = _window(call, x)
    if any(step != 1 for step in dilations):
        raise call.refuse("with dilations")
    include, ceiling = call.flag("count_include_pad"), call.flag("ceil_mode")
    pool = _AVERAGE[rank]
    if before == after and all(2 * pad <= size for pad, size in zip(before, kernel, strict=True)):
        return pool(x, kernel, strides, before, ceiling, include or not any(before))
    padding = padding_list(before, after)
    padded = functional.pad(x, padding)
    averages = pool(padded, kernel, strides, 0, ceiling, False)  # noqa: FBT003
    if include:
        return averages
    # Each average is over the whole window; it is to be over those elements that are no padding.
    inside = functional.pad(torch.ones([1, 1, *x.shape[2:]], dtype=x.dtype, device=x.device), padding)
    return torch.div(averages, pool(inside, kernel, strides, 0, ceiling, False))  # noqa: FBT003


@operator("LpPool")
def _lp_pool(call: Call, x: Tensor) -> Tensor:
    rank = _rank(call, x)
    kernel, strides, dilations, before, after = _window(call, x)
    if any(step != 1 for step in dilations) or rank == 3:
        raise call.refuse("with dilations, or of 3 axes")
    power = call.get("p", 2)
    if any(before) or any(after):
        x = functional.pad(x, padding_list(before, after))
    raised = _AVERAGE[rank](torch.pow(torch.abs(x), power), kernel, strides, 0, call.flag("ceil_mode"))
    return torch.pow(torch.mul(raised, math.prod(kernel)), 1 / power)


@operator("GlobalAveragePool")
def _global_average_pool(_: Call, x: Tensor) -> Tensor:
    if x.ndim == 4:
        return functional.adaptive_avg_pool2d(x, 1)
    return torch.mean(x, list(range(2, x.ndim)), True)  # noqa: FBT003


@operator("GlobalMaxPool")
def _global_max_pool(_: Call, x: Tensor) -> Tensor:
    return torch.amax(x, list(range(2, x.ndim)), True)  # noqa: FBT003


@operator("GlobalLpPool")
def _global_lp_pool(call: Call, x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, call.get("p", 2), list(range(2, x.ndim)), True)  # noqa: FBT003


def _rank(call: Call, x: Tensor) -> int:
    rank = x.ndim - 2
    if rank not in _MAX:
        raise call.refuse(f"of {rank} axes")
    return int(rank)


def _window(call: Call, x: Tensor) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Kernel, strides, dilations, and padding at both sides."""
    kernel = list(call.attributes["kernel_shape"])
    strides = list(call.get("strides", [1] * len(kernel)))
    dilations = list(call.get("dilations", [1] * len(kernel)))
    before, after = explicit_pads(call, x.shape[2:], kernel, strides, dilations)
    return kernel, strides, dilations, before, after
