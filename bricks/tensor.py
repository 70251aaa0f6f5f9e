"""The type of a tensor: element type and static shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["ELEMENT_BITS", "TensorType"]

ELEMENT_BITS: dict[str, int] = {
    "bool": 8, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64,
    "uint64": 64, "float16": 16, "bfloat16": 16, "float": 32, "double": 64, "complex64": 64, "complex128": 128,
    "float8e4m3fn": 8, "float8e4m3fnuz": 8, "float8e5m2": 8, "float8e5m2fnuz": 8, "float8e8m0": 8,
    "int4": 4, "uint4": 4, "float4e2m1": 4, "int2": 2, "uint2": 2, "string": 0,
}  # fmt: skip
"""Bits per element by ONNX type name, ``onnx.TensorProto.DataType.Name(t).lower()``; 0 where there is no size."""


@dataclass(frozen=True, slots=True, order=True)
class TensorType:
    """Element type and static shape of one value.

    Attributes:
        dtype: ONNX's own name of the element type in lower case: ``float``, ``int64``, ``bfloat16``.
        shape: Static dimensions; ``()`` is a scalar.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar, 0 when a dimension is 0)."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense buffer; sub-byte types are packed, strings count 0."""
        return (self.elements * ELEMENT_BITS[self.dtype] + 7) // 8
