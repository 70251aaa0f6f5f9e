"""Constants as bytes: a ``TensorProto`` without a name, equal for equal values."""

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
    if name.lower() in ELEMENT_BITS  # not UNDEFINED or types newer than ours
}
_NUMBERS = {name: number for number, name in _NAMES.items()}
_TYPES: dict[tuple[int, tuple[int, ...]], TensorType] = {}


def tensor_type(element: int, shape: Iterable[int]) -> TensorType | None:
    """Return the type for ONNX's element number and a shape; None if the element type has no name here.

    Equal types are one object, because a model has thousands of values and few types.
    """
    key = (element, tuple(shape))
    shared_type = _TYPES.get(key)
    if shared_type is None:
        name = _NAMES.get(element)
        if name is None:
            return None
        if len(_TYPES) >= 65536:  # bound the memory of long-running services
            _TYPES.clear()
        shared_type = _TYPES[key] = TensorType(name, key[1])
    return shared_type


def element_number(dtype: str) -> int:
    """Return ONNX's number of an element type, ``TensorProto.DataType``."""
    number: int = _NUMBERS[dtype]
    return number


def element_name(element: int) -> str:
    """Return the name of an element type by ONNX's number, for messages; unknown numbers get one too."""
    return _NAMES.get(element, f"type {element}") if element else "tensor"


def type_of(tensor: onnx.TensorProto) -> TensorType | None:
    """Return element type and shape of a tensor, without reading its values."""
    return tensor_type(tensor.data_type, tensor.dims)


def tensor_array(tensor: onnx.TensorProto) -> Array:
    """Return the values of a tensor.

    Raises:
        BrokenModel: The values do not fill the shape.
    """
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        raise BrokenModel(
            f"constant {tensor.name!r} does not fill its shape {list(tensor.dims)}", remedy="export the model again"
        ) from error


def encode_tensor(tensor: onnx.TensorProto) -> bytes:
    """Serialise a tensor without its name and documentation, with its values in one field.

    Returns:
        A serialised ``TensorProto`` whose values are in ``raw_data`` (strings in ``string_data``).

    Raises:
        BrokenModel: The values do not fill the shape.
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
    """Return element type and shape of a numpy array."""
    number: int = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return TensorType(_NAMES[number], array.shape)


def decode_constant(data: bytes) -> Array:
    """Return the values of a constant written by ``encode_tensor`` or ``encode_array``."""
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))
