"""Convolutions, and what gathers their columns."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from .call import Call, Tensor
from .registry import operator
from .windows import explicit_pads, padding_list

__all__ = ["convolve"]

_CONVOLUTIONS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
_TRANSPOSED = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


@operator("Conv")
def _conv(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return convolve(call, x, weight, bias)


def convolve(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A convolution with the attributes of a node; padding that differs between the sides is done ahead."""
    rank = _rank(call, x)
    strides = call.get("strides", [1] * rank)
    dilations = call.get("dilations", [1] * rank)
    before, after = explicit_pads(call, x.shape[2:], weight.shape[2:], strides, dilations)
    if before != after:
        x = functional.pad(x, padding_list(before, after))
        before = [0] * rank
    return _CONVOLUTIONS[rank](x, weight, bias, strides, before, dilations, call.get("group", 1))


@operator("ConvTranspose")
def _conv_transpose(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rank = _rank(call, x)
    strides = call.get("strides", [1] * rank)
    dilations = call.get("dilations", [1] * rank)
    extra = call.get("output_padding", [0] * rank)
    before, after = _cropped(call, x.shape[2:], weight.shape[2:], strides, dilations, extra)
    group = call.get("group", 1)
    transposed = _TRANSPOSED[rank]
    if before == after:
        return transposed(x, weight, bias, strides, before, extra, group, dilations)
    if any(more > crop for more, crop in zip(extra, after, strict=True)):
        raise call.refuse("with an output padding beyond what its pads crop")
    whole = transposed(x, weight, bias, strides, [0] * rank, [0] * rank, group, dilations)
    ends = [more - crop for more, crop in zip(extra, after, strict=True)]
    return functional.pad(whole, padding_list([-crop for crop in before], ends))


def _cropped(  # noqa: PLR0917
    call: Call,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    extra: Sequence[int],
) -> tuple[list[int], list[int]]:
    """What a transposed convolution takes off at the beginning and at the end of each axis."""
    rank = len(sizes)
    automatic = call.get("auto_pad", "NOTSET")
    target = call.get("output_shape")
    if target is None and automatic in {"SAME_UPPER", "SAME_LOWER"}:
        target = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    if target is None:
        pads = call.get("pads", [0] * (2 * rank)) if automatic != "VALID" else [0] * (2 * rank)
        return list(pads[:rank]), list(pads[rank:])
    before, after = [], []
    for axis in range(rank):
        full = strides[axis] * (sizes[axis] - 1) + extra[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        total = max(full - target[-rank:][axis], 0)
        small, large = total // 2, total - total // 2
        # The ONNX specification gives the larger half to the end for SAME_UPPER, and to the beginning otherwise.
        begin, end = (small, large) if automatic == "SAME_UPPER" else (large, small)
        before.append(begin)
        after.append(end)
    return before, after


@operator("Col2Im")
def _col2im(call: Call, columns: Tensor, image: Tensor, block: Tensor) -> Tensor:
    size, kernel = image.tolist(), block.tolist()
    rank = len(size)
    if rank != 2:
        raise call.refuse(f"of {rank} axes")
    pads = call.get("pads", [0] * (2 * rank))
    strides, dilations = call.get("strides", [1] * rank), call.get("dilations", [1] * rank)
    before, after = list(pads[:rank]), list(pads[rank:])
    if before == after:
        return functional.fold(columns, size, kernel, dilations, before, strides)
    padded = [sum(parts) for parts in zip(size, before, after, strict=True)]
    whole = functional.fold(columns, padded, kernel, dilations, 0, strides)
    return functional.pad(whole, padding_list([-pad for pad in before], [-pad for pad in after]))


def _rank(call: Call, x: Tensor) -> int:
    rank = x.ndim - 2
    if rank not in _CONVOLUTIONS:
        raise call.refuse(f"of {rank} axes")
    return int(rank)
