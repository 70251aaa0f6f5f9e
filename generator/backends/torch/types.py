"""Arrays as tensors and back, and element types of ONNX as those of PyTorch."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from onnx import TensorProto, helper

from ....errors import UnsupportedBrick

__all__ = ["FLOATS", "array_of", "tensor_of", "type_of"]

FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Types that float32 may be computed in, by name."""

_TYPES: dict[int, torch.dtype] = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.DOUBLE: torch.float64,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.FLOAT8E4M3FN: torch.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: torch.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
    TensorProto.BOOL: torch.bool,
    TensorProto.INT4: torch.int8,  # of 4 bits PyTorch knows only packed pairs
    TensorProto.UINT4: torch.uint8,
    TensorProto.INT8: torch.int8,
    TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32,
    TensorProto.INT64: torch.int64,
    TensorProto.UINT8: torch.uint8,
    TensorProto.UINT16: torch.uint16,
    TensorProto.UINT32: torch.uint32,
    TensorProto.UINT64: torch.uint64,
    TensorProto.COMPLEX64: torch.complex64,
    TensorProto.COMPLEX128: torch.complex128,
}
_CARRIERS = {1: np.uint8, 2: np.int16}
"""Types of NumPy's own that carry the bytes of one of ml_dtypes', by size."""


def type_of(number: int, float_type: torch.dtype) -> torch.dtype:
    """PyTorch's type for ONNX's number of one.

    Args:
        number: ``TensorProto.DataType``.
        float_type: What float32 is computed in.

    Raises:
        UnsupportedBrick: There is none.
    """
    found = _TYPES.get(number)
    if found is None:
        raise UnsupportedBrick(f"PyTorch has no tensors of {TensorProto.DataType.Name(number).lower()}")
    return float_type if found is torch.float32 else found


def tensor_of(array: npt.NDArray[Any], float_type: torch.dtype, device: str) -> torch.Tensor:
    """A tensor with the values of an array, on the same memory where type and device allow it.

    Finite values stay finite in a narrower type: masks use the largest number of float32, which has no neighbour in
    others, and infinity times zero is no number.

    Raises:
        UnsupportedBrick: PyTorch has no such type.
    """
    if array.dtype.kind in "OUS":
        raise UnsupportedBrick("PyTorch has no tensors of string")
    declared = type_of(helper.np_dtype_to_tensor_dtype(array.dtype), torch.float32)
    if array.dtype.name in {"int4", "uint4"}:
        array = array.astype(np.int8 if array.dtype.name == "int4" else np.uint8)
    elif array.dtype.kind not in "biufc":
        array = np.ascontiguousarray(array).view(_CARRIERS[array.dtype.itemsize]).reshape(array.shape)
    with warnings.catch_warnings():
        # Weights are read only, and nothing here writes to a tensor.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(array if all(step >= 0 for step in array.strides) else array.copy())
    if tensor.dtype != declared:
        tensor = tensor.view(declared)
    if declared is torch.float32 and float_type is not torch.float32:
        limits = torch.finfo(float_type)
        narrow = torch.where(torch.isfinite(tensor), torch.clamp(tensor, limits.min, limits.max), tensor)
        tensor = narrow.to(float_type)
    return tensor.to(device)


def array_of(tensor: torch.Tensor, number: int) -> npt.NDArray[Any]:
    """A copy of a tensor, in the type that ONNX declares (0: in the tensor's own)."""
    dtype = helper.tensor_dtype_to_np_dtype(number) if number else None
    values = tensor.to(type_of(number, torch.float32)) if number else tensor
    values = values.detach().to("cpu", memory_format=torch.contiguous_format)
    if dtype is None or dtype.kind in "biufc":
        return np.array(values.numpy())
    if dtype.name in {"int4", "uint4"}:
        return np.asarray(values.numpy().astype(dtype))
    carrier = torch.uint8 if dtype.itemsize == 1 else torch.int16
    return np.array(values.contiguous().view(carrier).numpy()).view(dtype)
