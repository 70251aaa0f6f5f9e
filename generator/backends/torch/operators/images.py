"""Convolutions, pools and images of other sizes.

PyTorch's interpolation changes sizes if its meaning is the same; else constant indices do. Coordinates follow the ONNX
specification of Resize.
"""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from ...geometry import SlidingWindow, coordinates, nearest
from .arguments import Tensor, TorchCall, operator, padded, register


def padding_list(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Return the padding for ``torch.nn.functional.pad``: the last axis first."""
    return [pad for pair in reversed(list(zip(before, after, strict=True))) for pad in pair]


_CONVOLUTIONS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
_TRANSPOSED = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


@operator("Conv")
def convolve(call: TorchCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute a convolution with the attributes of a node; asymmetric padding is done first."""
    rank = _rank(call, x)
    window = SlidingWindow.of(call.attributes, x.shape[2:], weight.shape[2:])
    before = window.begin
    if before != window.end:
        x = functional.pad(x, padding_list(before, window.end))
        before = (0,) * rank
    return _CONVOLUTIONS[rank](x, weight, bias, window.strides, before, window.dilations, call.get("group", 1))


@operator("ConvTranspose")
def _conv_transpose(call: TorchCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
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
    call: TorchCall,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    extra: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Return the elements that a transposed convolution removes at the beginning and the end of each axis."""
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
def _col2im(call: TorchCall, columns: Tensor, image: Tensor, block: Tensor) -> Tensor:
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


def _rank(call: TorchCall, x: Tensor) -> int:
    rank = x.ndim - 2
    if rank not in _CONVOLUTIONS:
        raise call.refuse(f"of {rank} axes")
    return int(rank)


_MAX = {1: torch.max_pool1d, 2: torch.max_pool2d, 3: torch.max_pool3d}
_MAX_AND_INDEX = {
    1: functional.max_pool1d_with_indices,
    2: functional.max_pool2d_with_indices,
    3: functional.max_pool3d_with_indices,
}
_AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


@operator("MaxPool")
def _max_pool(call: TorchCall, x: Tensor) -> Any:
    rank = _rank(call, x)
    window = _window(call, x)
    kernel, strides, dilations, before = window.kernel, window.strides, window.dilations, window.begin
    if before != window.end or any(2 * pad > size for pad, size in zip(before, kernel, strict=True)):
        if call.has(1):
            raise call.refuse("with indices and padding that differs between the sides")
        lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        x = functional.pad(x, padding_list(before, window.end), value=lowest)
        before = (0,) * rank
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
def _average_pool(call: TorchCall, x: Tensor) -> Tensor:
    rank = _rank(call, x)
    window = _window(call, x)
    kernel, strides, before, after = window.kernel, window.strides, window.begin, window.end
    if any(step != 1 for step in window.dilations):
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
def _lp_pool(call: TorchCall, x: Tensor) -> Tensor:
    rank = _rank(call, x)
    window = _window(call, x)
    if any(step != 1 for step in window.dilations) or rank == 3:
        raise call.refuse("with dilations, or of 3 axes")
    power = call.get("p", 2)
    if any(window.begin) or any(window.end):
        x = functional.pad(x, padding_list(window.begin, window.end))
    raised = _AVERAGE[rank](torch.pow(torch.abs(x), power), window.kernel, window.strides, 0, call.flag("ceil_mode"))
    return torch.pow(torch.mul(raised, math.prod(window.kernel)), 1 / power)


@operator("GlobalAveragePool")
def _global_average_pool(_: TorchCall, x: Tensor) -> Tensor:
    if x.ndim == 4:
        return functional.adaptive_avg_pool2d(x, 1)
    return torch.mean(x, list(range(2, x.ndim)), True)  # noqa: FBT003


def _window(call: TorchCall, x: Tensor) -> SlidingWindow:
    return SlidingWindow.of(call.attributes, x.shape[2:], call.attributes["kernel_shape"])


@operator("Upsample")
def _upsample(call: TorchCall, x: Tensor, scales: Tensor | None = None) -> Tensor:
    factors = [float(scale) for scale in (call.attributes["scales"] if scales is None else scales.tolist())]
    sizes = [math.floor(size * factor) for size, factor in zip(x.shape, factors, strict=True)]
    mode = {"bilinear": "linear"}.get(call.get("mode", "nearest"), call.get("mode", "nearest"))
    return _resized(call, x, [*zip(sizes, factors, strict=True)], mode, ("asymmetric", "floor"))


@operator("Resize")
def _resize(call: TorchCall, x: Tensor, *rest: Tensor | None) -> Tensor:
    if call.opset < 11:
        return _upsample(call, x, *rest)
    _, scales, sizes = padded(rest, 3)
    if call.flag("antialias") or call.flag("exclude_outside"):
        raise call.refuse("that leaves out or smooths")
    axes = [axis % x.ndim for axis in call.get("axes") or range(x.ndim)]
    target: list[tuple[int, float]] = [(size, 1.0) for size in x.shape]
    if sizes is not None and sizes.numel():
        if call.get("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise call.refuse("that keeps the aspect ratio")
        for axis, size in zip(axes, sizes.tolist(), strict=True):
            target[axis] = int(size), size / x.shape[axis]
    elif scales is not None:
        for axis, factor in zip(axes, scales.tolist(), strict=True):
            target[axis] = math.floor(x.shape[axis] * factor), float(factor)
    transformation = call.get("coordinate_transformation_mode", "half_pixel")
    rounded = call.get("nearest_mode", "round_prefer_floor")
    return _resized(call, x, target, call.get("mode", "nearest"), (transformation, rounded))


def _resized(call: TorchCall, x: Tensor, target: list[tuple[int, float]], mode: str, how: tuple[str, str]) -> Tensor:
    """Resize an image.

    Args:
        call: The node.
        x: The image.
        target: New size and factor of each axis.
        mode: Interpolation mode.
        how: Transformation of coordinates, and rounding to the nearest one.
    """
    transformation, rounded = how
    sizes = [size for size, _ in target]
    exact = all(size == old * factor for (size, factor), old in zip(target, x.shape, strict=True))
    images = 3 <= x.ndim <= 5 and sizes[:2] == list(x.shape[:2]) and exact and x.is_floating_point()
    if images and mode == "nearest" and (transformation, rounded) == ("asymmetric", "floor"):
        return functional.interpolate(x, sizes[2:], mode="nearest")
    centred = transformation == "half_pixel" or (transformation == "pytorch_half_pixel" and min(sizes[2:]) > 1)
    if images and x.ndim == 4 and mode == "linear" and (centred or transformation == "align_corners"):
        return functional.interpolate(x, sizes[2:], mode="bilinear", align_corners=not centred)
    if images and x.ndim == 4 and mode == "cubic" and centred and call.get("cubic_coeff_a", -0.75) == -0.75:
        return functional.interpolate(x, sizes[2:], mode="bicubic", align_corners=False)
    for axis, (size, factor) in enumerate(target):
        old = x.shape[axis]
        if size == old and factor == 1:
            continue
        among = (old, size, factor, transformation)
        positions: npt.NDArray[Any] | None = nearest(*among, rounded) if mode == "nearest" else coordinates(*among)
        if positions is None:
            raise call.refuse(f"with coordinates of {transformation}")
        if mode == "nearest":
            x = torch.index_select(x, axis, torch.tensor(positions, device=x.device))
        else:
            weights = torch.tensor(_weights(call, positions, old, mode), dtype=x.dtype, device=x.device)
            x = torch.movedim(torch.matmul(torch.movedim(x, axis, -1), weights), -1, axis)
    return x


def _weights(call: TorchCall, at: npt.NDArray[np.float64], old: int, mode: str) -> npt.NDArray[np.float64]:
    """Return the weight of each old element in each new one; the edge continues beyond the image."""
    weights = np.zeros((old, len(at)))
    base = np.floor(at).astype(int)
    rest = at - base
    if mode == "linear":
        parts: list[tuple[int, Any]] = [(0, 1 - rest), (1, rest)]
    elif mode == "cubic":
        a = call.get("cubic_coeff_a", -0.75)

        def near(d: Any) -> Any:
            return ((a + 2) * d - (a + 3)) * d * d + 1

        def far(d: Any) -> Any:
            return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

        parts = [(-1, far(rest + 1)), (0, near(rest)), (1, near(1 - rest)), (2, far(2 - rest))]
    else:
        raise call.refuse(f"of mode {mode}")
    for step, share in parts:
        np.add.at(weights, (np.clip(base + step, 0, old - 1), np.arange(len(at))), share)
    return weights


_SAMPLING = {"linear": "bilinear", "cubic": "bicubic"}
"""PyTorch's names of modes that it calls something else."""

register(
    {
        "AffineGrid": lambda call, theta, size: functional.affine_grid(
            theta, size.tolist(), align_corners=call.flag("align_corners")
        ),
        "GlobalLpPool": lambda call, x: torch.linalg.vector_norm(
            x, call.get("p", 2), list(range(2, x.ndim)), keepdim=True
        ),
        "GlobalMaxPool": lambda _, x: torch.amax(x, list(range(2, x.ndim)), keepdim=True),
        "GridSample": lambda call, x, grid: functional.grid_sample(
            x,
            grid,
            mode=_SAMPLING.get(call.get("mode", "linear"), call.get("mode", "linear")),
            padding_mode=call.get("padding_mode", "zeros"),
            align_corners=call.flag("align_corners"),
        ),
    }
)
