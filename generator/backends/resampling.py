"""Which elements a resized axis is made of, as ONNX defines it (https://onnx.ai/onnx/operators/onnx__Resize.html).

For runtimes that have no such operator, or not for every mode: they read elements by constant indices.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_Places = npt.NDArray[np.float64]

_ROUNDED: dict[str, Callable[[_Places], _Places]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def coordinates(size: int, target: int, scale: float, how: str) -> _Places | None:
    """Where in the axis each element of the resized one lies.

    Args:
        size: Of the axis.
        target: Of the axis when it is resized.
        scale: Between both.
        how: ``coordinate_transformation_mode``.

    Returns:
        Places; None for a mode that is not known.
    """
    at = np.arange(target, dtype=np.float64)
    if how == "asymmetric":
        return at / scale
    if how == "align_corners":
        return at * (size - 1) / (target - 1) if target > 1 else at * 0
    if how == "pytorch_half_pixel" and target == 1:
        return at * 0
    if how == "half_pixel_symmetric":
        adjustment = target / (scale * size)
        return size / 2 * (1 - adjustment) + (at + 0.5) / scale - 0.5
    if how in {"half_pixel", "pytorch_half_pixel"}:
        return (at + 0.5) / scale - 0.5
    return None


def nearest(size: int, target: int, scale: float, how: str, rounded: str) -> npt.NDArray[np.int64] | None:
    """Per element of a resized axis the element that it is taken from.

    Args:
        size: Of the axis.
        target: Of the axis when it is resized.
        scale: Between both.
        how: ``coordinate_transformation_mode``.
        rounded: ``nearest_mode``.

    Returns:
        Indices; None for a mode that is not known.
    """
    places = coordinates(size, target, scale, how)
    if places is None or rounded not in _ROUNDED:
        return None
    return np.clip(_ROUNDED[rounded](places), 0, size - 1).astype(np.int64)
