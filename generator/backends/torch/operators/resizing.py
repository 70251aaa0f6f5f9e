"""Images of other sizes: PyTorch's interpolation where it means the same, an own one by constant indices elsewhere.

Coordinates follow the ONNX specification of Resize.
"""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from .call import Call, Tensor, padded
from .registry import operator

__all__: list[str] = []

_NEAREST: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@operator("Upsample")
def _upsample(call: Call, x: Tensor, scales: Tensor | None = None) -> Tensor:
    factors = [float(scale) for scale in (call.attributes["scales"] if scales is None else scales.tolist())]
    sizes = [math.floor(size * factor) for size, factor in zip(x.shape, factors, strict=True)]
    mode = {"bilinear": "linear"}.get(call.get("mode", "nearest"), call.get("mode", "nearest"))
    return _resized(call, x, sizes, factors, mode, "asymmetric", "floor")


@operator("Resize")
def _resize(call: Call, x: Tensor, *rest: Tensor | None) -> Tensor:
    if call.opset < 11:
        return _upsample(call, x, *rest)
    _, scales, sizes = padded(rest, 3)
    if call.flag("antialias") or call.flag("exclude_outside"):
        raise call.refuse("that leaves out or smooths")
    axes = [axis % x.ndim for axis in call.get("axes") or range(x.ndim)]
    target, factors = list(x.shape), [1.0] * x.ndim
    if sizes is not None and sizes.numel():
        if call.get("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise call.refuse("that keeps the aspect ratio")
        for axis, size in zip(axes, sizes.tolist(), strict=True):
            target[axis], factors[axis] = int(size), size / x.shape[axis]
    elif scales is not None:
        for axis, factor in zip(axes, scales.tolist(), strict=True):
            target[axis], factors[axis] = math.floor(x.shape[axis] * factor), float(factor)
    transformation = call.get("coordinate_transformation_mode", "half_pixel")
    nearest = call.get("nearest_mode", "round_prefer_floor")
    return _resized(call, x, target, factors, call.get("mode", "nearest"), transformation, nearest)


def _resized(  # noqa: PLR0917
    call: Call, x: Tensor, sizes: list[int], factors: list[float], mode: str, transformation: str, nearest: str
) -> Tensor:
    exact = all(size == old * factor for size, old, factor in zip(sizes, x.shape, factors, strict=True))
    images = 3 <= x.ndim <= 5 and sizes[:2] == list(x.shape[:2]) and exact and x.is_floating_point()
    if images and mode == "nearest" and (transformation, nearest) == ("asymmetric", "floor"):
        return functional.interpolate(x, sizes[2:], mode="nearest")
    centred = transformation == "half_pixel" or (transformation == "pytorch_half_pixel" and min(sizes[2:]) > 1)
    if images and x.ndim == 4 and mode == "linear" and (centred or transformation == "align_corners"):
        return functional.interpolate(x, sizes[2:], mode="bilinear", align_corners=not centred)
    if images and x.ndim == 4 and mode == "cubic" and centred and call.get("cubic_coeff_a", -0.75) == -0.75:
        return functional.interpolate(x, sizes[2:], mode="bicubic", align_corners=False)
    for axis, (size, factor) in enumerate(zip(sizes, factors, strict=True)):
        old = x.shape[axis]
        if size == old and factor == 1:
            continue
        at = _coordinates(call, old, size, factor, transformation)
        if mode == "nearest":
            places = np.clip(_NEAREST[nearest](at), 0, old - 1).astype(np.int64)
            x = torch.index_select(x, axis, torch.tensor(places, device=x.device))
        else:
            weights = torch.tensor(_weights(call, at, old, mode), dtype=x.dtype, device=x.device)
            x = torch.movedim(torch.matmul(torch.movedim(x, axis, -1), weights), -1, axis)
    return x


def _coordinates(call: Call, old: int, size: int, factor: float, transformation: str) -> npt.NDArray[np.float64]:
    """Where in the old image each new element lies."""
    at = np.arange(size, dtype=np.float64)
    if transformation == "asymmetric":
        return at / factor
    if transformation == "align_corners":
        return at * (old - 1) / (size - 1) if size > 1 else at * 0
    if transformation == "pytorch_half_pixel" and size == 1:
        return at * 0
    if transformation == "half_pixel_symmetric":
        adjustment = size / (factor * old)
        return old / 2 * (1 - adjustment) + (at + 0.5) / factor - 0.5
    if transformation in {"half_pixel", "pytorch_half_pixel"}:
        return (at + 0.5) / factor - 0.5
    raise call.refuse(f"with coordinates of {transformation}")


def _weights(call: Call, at: npt.NDArray[np.float64], old: int, mode: str) -> npt.NDArray[np.float64]:
    """Weight of each old element in each new one; beyond the edges lies the edge."""
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


@operator("GridSample")
def _grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    modes = {"linear": "bilinear", "cubic": "bicubic"}
    mode = call.get("mode", "linear")
    return functional.grid_sample(
        x,
        grid,
        mode=modes.get(mode, mode),
        padding_mode=call.get("padding_mode", "zeros"),
        align_corners=call.flag("align_corners"),
    )


@operator("AffineGrid")
def _affine_grid(call: Call, theta: Tensor, size: Tensor) -> Tensor:
    return functional.affine_grid(theta, size.tolist(), align_corners=call.flag("align_corners"))
