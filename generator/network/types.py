"""The type of an array, as requests and replies carry it, and narrower ones."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

__all__ = ["array_type", "narrowed_to"]


def array_type(array: npt.NDArray[Any]) -> tuple[str, tuple[int, ...]]:
    """ONNX's name of the element type, in lower case, and the shape."""
    number = helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.TensorProto.DataType.Name(number).lower(), tuple(array.shape)


def narrowed_to(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Numbers in a narrower type; finite ones stay finite, as masks are made of the largest number of float32."""
    limit = np.float32(ml_dtypes.finfo(dtype).max)
    return np.where(np.isfinite(array), np.clip(array, -limit, limit), array).astype(dtype)
