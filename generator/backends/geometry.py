"""The elements that a sliding window or a resized axis reads, as ONNX defines them (https://onnx.ai/onnx/operators).

Windows belong to convolutions and pools. Resized axes serve runtimes without Resize or without all of its modes: they
read elements by constant indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ...bricks.canonical.spatial import same_pads


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """A window that slides over the spatial axes; one number per axis.

    Attributes:
        kernel: Its size.
        strides: Its steps.
        dilations: Distances of its elements.
        begin: Padding in front of the data.
        end: Padding behind it.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @classmethod
    def of(cls, attributes: Mapping[str, Any], sizes: Sequence[int], kernel: Sequence[int]) -> Self:
        """Return the window of an operator, with automatic padding resolved.

        Args:
            attributes: Attributes of the operator; text is ``str``.
            sizes: Of the spatial axes of its input.
            kernel: Size of the window.
        """
        count = len(kernel)
        strides, dilations = (tuple(attributes.get(name) or (1,) * count) for name in ("strides", "dilations"))
        pads = tuple(attributes.get("pads") or (0,) * (2 * count))
        automatic = attributes.get("auto_pad", "NOTSET")
        if automatic == "VALID":
            pads = (0,) * (2 * count)
        elif automatic in {"SAME_UPPER", "SAME_LOWER"}:
            pads = same_pads(sizes, kernel, strides, dilations, upper=automatic == "SAME_UPPER")
        return cls(tuple(kernel), strides, dilations, pads[:count], pads[count:])


_Places = npt.NDArray[np.float64]

_ROUNDED: dict[str, Callable[[_Places], _Places]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def coordinates(size: int, target: int, scale: float, how: str) -> _Places | None:
    """Return the source coordinate of each element of a resized axis.

    Returns:
        Coordinates; None for an unknown mode.
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
