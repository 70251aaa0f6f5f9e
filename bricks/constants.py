"""Constants as bytes: a nameless ``TensorProto`` that is equal wherever its values are equal."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from ..errors import BrokenModel
from .layer import ELEMENT_BITS, TensorType

Array = npt.NDArray[np.generic]

_NAMES = {
    number: name.lower()
    for name, number in onnx.TensorProto.DataType.items()
    if name.lower() in ELEMENT_BITS  # UNDEFINED, and types newer than ours, have no name here
}
_NUMBERS = {name: number for number, name in _NAMES.items()}
_TYPES: dict[tuple[int, tuple[int, ...]], TensorType] = {}


def tensor_type(element: int, shape: Iterable[int]) -> TensorType | None:
    """The type with ONNX's element number and a shape; None for an element type that has no name.

    Equal types are one object (a model has thousands of values and a handful of types).
    """
    key = (element, tuple(shape))
    known = _TYPES.get(key)
    if known is None:
        name = _NAMES.get(element)
        if name is None:
            return None
        if len(_TYPES) >= 65536:  # a service that reads models for months must not grow
            _TYPES.clear()
        known = _TYPES[key] = TensorType(name, key[1])
    return known


def element_number(dtype: str) -> int:
    """ONNX's number of an element type, ``TensorProto.DataType``."""
    number: int = _NUMBERS[dtype]
    return number


def element_name(element: int) -> str:
    """The name of an element type by ONNX's number, for messages: any number has one."""
    return _NAMES.get(element, f"type {element}") if element else "tensor"


def type_of(tensor: onnx.TensorProto) -> TensorType | None:
    """Element type and shape of a tensor, without reading its values."""
    return tensor_type(tensor.data_type, tensor.dims)


def tensor_array(tensor: onnx.TensorProto) -> Array:
    """The values of a tensor.

    Raises:
        BrokenModel: They do not fill its shape.
    """
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        raise BrokenModel(
            f"constant {tensor.name!r} does not fill its shape {list(tensor.dims)}", remedy="export the model again"
        ) from error


def encode_tensor(tensor: onnx.TensorProto) -> bytes:
    """Serialise a tensor without its name, documentation and choice of field.

    Args:
        tensor: A dense tensor that holds its own values.

    Returns:
        A serialised ``TensorProto`` whose values are in ``raw_data`` (strings in ``string_data``).

    Raises:
        BrokenModel: Its values do not fill its shape.
    """
    if tensor.HasField("raw_data") or tensor.data_type == onnx.TensorProto.STRING:
        plain = onnx.TensorProto(dims=tensor.dims, data_type=tensor.data_type)
        if tensor.data_type == onnx.TensorProto.STRING:
            plain.string_data.extend(tensor.string_data)
        else:
            plain.raw_data = tensor.raw_data
        data: bytes = plain.SerializeToString(deterministic=True)
        return data
    return encode_array(tensor_array(tensor))


def encode_array(array: Array) -> bytes:
    """Serialise a numpy array as a nameless ``TensorProto``."""
    tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))
    data: bytes = tensor.SerializeToString(deterministic=True)
    return data


def tensor_type_of_array(array: Array) -> TensorType:
    """Element type and shape of a numpy array."""
    number: int = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return TensorType(_NAMES[number], array.shape)


def decode_constant(data: bytes) -> Array:
    """The values of a constant that ``encode_tensor`` or ``encode_array`` wrote."""
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))
