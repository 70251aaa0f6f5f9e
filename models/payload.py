"""The payload of a tensor: which fields hold values, and how many bytes a type and shape make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

import onnx
from onnx import TensorProto, numpy_helper

from ..errors import BrokenModel

__all__ = ["PAYLOAD_FIELDS", "count_elements", "payload_bytes", "raw_tensor"]

PAYLOAD_FIELDS = (
    "raw_data",
    "float_data",
    "int32_data",
    "int64_data",
    "double_data",
    "uint64_data",
    "string_data",
)
"""The fields of a ``TensorProto`` that hold its values."""

_BITS_BY_NAME = {
    "FLOAT": 32, "UINT8": 8, "INT8": 8, "UINT16": 16, "INT16": 16, "INT32": 32, "INT64": 64, "STRING": 0, "BOOL": 8,
    "FLOAT16": 16, "DOUBLE": 64, "UINT32": 32, "UINT64": 64, "COMPLEX64": 64, "COMPLEX128": 128, "BFLOAT16": 16,
    "FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8,
    "UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6,
}  # fmt: skip
_BITS: dict[int, int] = {
    number: _BITS_BY_NAME[name] for name, number in TensorProto.DataType.items() if name in _BITS_BY_NAME
}


def count_elements(dims: Sequence[int]) -> int:
    """Number of elements of a static shape (1 for a scalar).

    Raises:
        BrokenModel: A dimension is negative.
    """
    elements = math.prod(dims)
    if elements < 0 or (elements == 0 and min(dims) < 0):
        raise BrokenModel(f"a constant has a negative dimension: {list(dims)}")
    return elements


def payload_bytes(dtype: int, elements: int) -> int:
    """Bytes of a dense buffer; types below a byte are packed, strings count 0.

    Raises:
        BrokenModel: ``dtype`` is not an element type that this onnx knows.
    """
    try:
        return (elements * _BITS[dtype] + 7) // 8
    except KeyError as error:
        raise BrokenModel(f"a constant has the unknown element type {dtype}") from error


def raw_tensor(tensor: TensorProto, name: str) -> TensorProto:
    """A small tensor in one form: values in ``raw_data`` (strings in ``string_data``), under a given name.

    The tensor itself, not a copy, where it has that form already (nearly always, and there are thousands).

    Raises:
        BrokenModel: The values do not fill the shape.
    """
    dtype = tensor.data_type
    elements = count_elements(tensor.dims)
    if dtype == TensorProto.STRING:
        found, wanted = len(tensor.string_data), elements
    else:
        wanted = payload_bytes(dtype, elements)
        raw = tensor.raw_data
        if not raw and wanted:
            raw = _pack(tensor, name)
            tensor = TensorProto(dims=tensor.dims, data_type=dtype, name=name, raw_data=raw)
        found = len(raw)
    if found != wanted:
        raise BrokenModel(
            f"constant '{name}' of shape {list(tensor.dims)} should hold {wanted} "
            f"{'strings' if dtype == TensorProto.STRING else 'bytes'}, but holds {found}"
        )
    if tensor.name != name:
        copy = deepcopy(tensor)
        copy.name = name
        return copy
    return tensor


def _pack(tensor: TensorProto, name: str) -> bytes:
    if tensor.data_location == TensorProto.EXTERNAL:  # what names a file was resolved when it was read
        raise BrokenModel(f"constant '{name}' has external data, but names no file")
    try:
        return numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, NotImplementedError) as error:
        dtype = onnx.TensorProto.DataType.Name(tensor.data_type) if tensor.data_type in _BITS else tensor.data_type
        raise BrokenModel(f"the values of constant '{name}' ({dtype}, shape {list(tensor.dims)}) are broken") from error
