"""The type of an array, as requests and replies carry it."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx
from onnx import helper

__all__ = ["array_type"]


def array_type(array: npt.NDArray[Any]) -> tuple[str, tuple[int, ...]]:
    """ONNX's name of the element type, in lower case, and the shape."""
    number = helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.TensorProto.DataType.Name(number).lower(), tuple(array.shape)
