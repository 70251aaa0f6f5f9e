"""Shape arithmetic: the value of an operator on small constants.

Only exact operators are supported: integers, booleans, and the correctly rounded float operations of shape
computations. Values, and keys that contain them, are therefore equal on every machine and with every numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from ...models.subgraphs import attributes_of
from ..encoding import Array

EVALUATED_ELEMENTS = 1024
"""Integers and booleans of up to this many elements are evaluated (docs/contributing/architecture.md)."""
EVALUATED_FLOATS = 16
"""Floats of up to this many elements are evaluated, such as scales and lengths of shapes."""

Inputs = Sequence[Array | None]
Attributes = Mapping[str, Any]
Operation = Callable[[Inputs, Attributes], Array | Sequence[Array]]


class Unevaluated(Exception):
    """Raised if an operator cannot be evaluated: not in the table, too large, or illegal."""


def evaluate(node: onnx.NodeProto, inputs: Inputs) -> list[Array]:
    """Compute a node of ONNX's own domain on constant inputs.

    Args:
        node: The operator, at any opset (attributes that later became inputs are read in both forms).
        inputs: One array per input slot, None if absent.

    Returns:
        One array per output.

    Raises:
        Unevaluated: The operator is not exact shape arithmetic, its result would be too large, or its inputs are
            illegal. The caller treats the result as a weight.
    """
    operation = _OPERATIONS.get(node.op_type)
    if operation is None:
        raise Unevaluated(node.op_type)
    attributes = attributes_of(node)
    try:
        with np.errstate(all="raise"):
            result = operation(inputs, attributes)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Unevaluated(f"{node.op_type}: {error}") from error
    arrays = [np.asarray(result)] if isinstance(result, np.ndarray | np.generic) else list(result)
    for array in arrays:
        if array.dtype.kind not in "biuf" or array.size > (
            EVALUATED_FLOATS if array.dtype.kind == "f" else EVALUATED_ELEMENTS
        ):
            raise Unevaluated(f"{node.op_type}: {array.dtype} of {array.size} elements")
    return arrays


def _given(inputs: Inputs, slot: int) -> Array:
    array = inputs[slot]
    if array is None:
        raise Unevaluated(f"input {slot} is absent")
    return array


def _optional(inputs: Inputs, slot: int) -> Array | None:
    return inputs[slot] if slot < len(inputs) else None


def _bounded(elements: int) -> None:
    """Refuse a result that would be too large before memory is allocated."""
    if elements > EVALUATED_ELEMENTS:
        raise Unevaluated(f"{elements} elements")


def _broadcast(function: Callable[..., Any]) -> Operation:
    def apply(inputs: Inputs, attributes: Attributes) -> Array:
        if "broadcast" in attributes or "axis" in attributes:  # before opset 7: not numpy's rule
            raise Unevaluated("legacy broadcast")
        arrays = [_given(inputs, slot) for slot in range(len(inputs))]
        _bounded(math.prod(np.broadcast_shapes(*(array.shape for array in arrays))))
        return np.asarray(function(*arrays))

    return apply


def _fold(function: Callable[[Array, Array], Array]) -> Operation:
    def reduce(*arrays: Array) -> Array:
        result = arrays[0]
        for array in arrays[1:]:
            result = function(result, array)
        return result

    return _broadcast(reduce)


def _unary(function: Callable[[Array], Any]) -> Operation:
    return lambda inputs, _: np.asarray(function(_given(inputs, 0)))


def _divide(dividend: npt.NDArray[Any], divisor: npt.NDArray[Any]) -> Array:
    if dividend.dtype.kind == "f":
        return np.asarray(dividend / divisor, dividend.dtype)
    quotient = np.floor_divide(np.abs(dividend), np.abs(divisor))  # ONNX truncates towards zero
    return np.asarray(np.where((dividend < 0) != (divisor < 0), -quotient, quotient), dividend.dtype)


def _power(base: npt.NDArray[Any], exponent: npt.NDArray[Any]) -> Array:
    if base.dtype.kind == "f" or exponent.dtype.kind == "f" or bool((exponent < 0).any()):
        raise Unevaluated("power of floats is not exact")
    return np.asarray(base**exponent, base.dtype)


def _modulo(inputs: Inputs, attributes: Attributes) -> Array:
    function = np.fmod if attributes.get("fmod", 0) else np.mod
    return _broadcast(function)(inputs, {})  # type: ignore[return-value]


def _cast(inputs: Inputs, attributes: Attributes) -> Array:
    target = onnx.helper.tensor_dtype_to_np_dtype(int(attributes["to"]))
    if target.kind not in "biuf":
        raise Unevaluated(f"cast to {target}")
    return _given(inputs, 0).astype(target)


def _axes(inputs: Inputs, attributes: Attributes, rank: int) -> list[int] | None:
    """Return non-negative axes from input 1 or, at older opsets, from the attribute."""
    axes_input = _optional(inputs, 1)
    axes = axes_input.ravel().tolist() if axes_input is not None else attributes.get("axes")
    if axes is None:
        return None
    if any(not -rank <= axis < rank for axis in axes):
        raise Unevaluated(f"axes {axes} of rank {rank}")
    return [int(axis) % rank for axis in axes]


def _squeeze(inputs: Inputs, attributes: Attributes) -> Array:
    data = _given(inputs, 0)
    axes = _axes(inputs, attributes, data.ndim)
    return np.squeeze(data, None if axes is None else tuple(axes))


def _unsqueeze(inputs: Inputs, attributes: Attributes) -> Array:
    data = _given(inputs, 0)
    count = len(attributes["axes"]) if "axes" in attributes else _given(inputs, 1).size
    axes = _axes(inputs, attributes, data.ndim + count)
    return np.expand_dims(data, tuple(axes or ()))


def _reshape(inputs: Inputs, attributes: Attributes) -> Array:
    data = _given(inputs, 0)
    target = attributes["shape"] if "shape" in attributes else _given(inputs, 1).tolist()
    keep = not attributes.get("allowzero", 0)
    return data.reshape([data.shape[i] if d == 0 and keep else d for i, d in enumerate(target)])


def _flatten(inputs: Inputs, attributes: Attributes) -> Array:
    data = _given(inputs, 0)
    axis = attributes.get("axis", 1)
    axis = axis + data.ndim if axis < 0 else axis
    return data.reshape(math.prod(data.shape[:axis]), -1)


def _gather(inputs: Inputs, attributes: Attributes) -> Array:
    data, indices = _given(inputs, 0), _given(inputs, 1)
    axis = attributes.get("axis", 0)
    _bounded(indices.size * data.size // max(1, data.shape[axis]))
    return np.take(data, indices.astype(np.int64), axis)


def _slice(inputs: Inputs, attributes: Attributes) -> Array:
    data = _given(inputs, 0)
    if "starts" in attributes:
        starts, ends, steps = attributes["starts"], attributes["ends"], None
        axes = attributes.get("axes")
    else:
        starts, ends = _given(inputs, 1).tolist(), _given(inputs, 2).tolist()
        axes_input, steps_input = _optional(inputs, 3), _optional(inputs, 4)
        axes = None if axes_input is None else axes_input.tolist()
        steps = None if steps_input is None else steps_input.tolist()
    selection = [slice(None)] * data.ndim
    for axis, start, end, step in zip(
        axes or range(len(starts)), starts, ends, steps or [1] * len(starts), strict=True
    ):
        # ONNX's end before the beginning is any number below -rank; Python's is None.
        before = step < 0 and end < -data.shape[axis]
        selection[axis] = slice(start, None if before else end, step)
    return data[tuple(selection)]


def _split(inputs: Inputs, attributes: Attributes) -> Sequence[Array]:
    data = _given(inputs, 0)
    axis = attributes.get("axis", 0)
    lengths_input = _optional(inputs, 1)
    lengths = lengths_input.tolist() if lengths_input is not None else attributes.get("split")
    if lengths is None:
        raise Unevaluated("split into equal parts")  # the number of parts is the number of outputs
    return np.split(data, np.cumsum(lengths)[:-1].tolist(), axis)


def _concat(inputs: Inputs, attributes: Attributes) -> Array:
    arrays = [_given(inputs, slot) for slot in range(len(inputs))]
    _bounded(sum(array.size for array in arrays))
    return np.concatenate(arrays, attributes.get("axis", 1))


def _expand(inputs: Inputs, _: Attributes) -> Array:
    data = _given(inputs, 0)
    shape = np.broadcast_shapes(data.shape, tuple(_given(inputs, 1).tolist()))
    _bounded(math.prod(shape))
    return np.broadcast_to(data, shape)


def _tile(inputs: Inputs, _: Attributes) -> Array:
    data, repeats = _given(inputs, 0), _given(inputs, 1).tolist()
    if len(inputs) != 2 or len(repeats) != data.ndim:
        raise Unevaluated("repeats")
    if not all(repeats):
        # NumPy repeats axis by axis, and would first make whatever the others ask for.
        return np.empty([size * times for size, times in zip(data.shape, repeats, strict=True)], data.dtype)
    _bounded(data.size * math.prod(repeats))
    return np.tile(data, repeats)


def _range(inputs: Inputs, _: Attributes) -> Array:
    start, limit, delta = (_given(inputs, slot).reshape(()) for slot in range(3))
    if start.dtype.kind not in "iu":
        raise Unevaluated("range of floats is not exact")
    steps = range(int(start), int(limit), int(delta))
    _bounded(len(steps))
    return np.asarray(steps, start.dtype)


def _constant(_: Inputs, attributes: Attributes) -> Array:
    ((name, value),) = attributes.items()
    match name:
        case "value":
            _bounded(math.prod(value.dims))
            return numpy_helper.to_array(value)
        case "value_int" | "value_ints":
            return np.asarray(value, np.int64)
        case "value_float" | "value_floats":
            return np.asarray(value, np.float32)
        case _:
            raise Unevaluated(name)


def _constant_of_shape(inputs: Inputs, attributes: Attributes) -> Array:
    shape = _given(inputs, 0).tolist()
    _bounded(math.prod(shape))
    value = numpy_helper.to_array(attributes["value"]) if "value" in attributes else np.zeros(1, np.float32)
    return np.full(shape, value.ravel()[0], value.dtype)


def _reduce(function: Callable[..., Any]) -> Operation:
    def apply(inputs: Inputs, attributes: Attributes) -> Array:
        data = _given(inputs, 0)
        if data.dtype.kind == "f":
            raise Unevaluated("reduction of floats is not exact")
        axes = _axes(inputs, attributes, data.ndim)
        if not axes and attributes.get("noop_with_empty_axes", 0):
            return data
        keepdims = bool(attributes.get("keepdims", 1))
        return np.asarray(function(data, axis=tuple(axes) if axes else None, keepdims=keepdims), data.dtype)

    return apply


def _transpose(inputs: Inputs, attributes: Attributes) -> Array:
    return np.transpose(_given(inputs, 0), attributes.get("perm"))


def _non_zero(inputs: Inputs, _: Attributes) -> Array:
    return np.asarray(np.nonzero(np.atleast_1d(_given(inputs, 0))), np.int64)


_OPERATIONS: dict[str, Operation] = {
    "Abs": _unary(np.abs), "Add": _broadcast(np.add), "And": _broadcast(np.logical_and), "Cast": _cast,
    "Ceil": _unary(np.ceil), "Concat": _concat, "Constant": _constant, "ConstantOfShape": _constant_of_shape,
    "Div": _broadcast(_divide), "Equal": _broadcast(np.equal), "Expand": _expand, "Flatten": _flatten,
    "Floor": _unary(np.floor), "Gather": _gather, "Greater": _broadcast(np.greater),
    "GreaterOrEqual": _broadcast(np.greater_equal), "Identity": _unary(np.asarray), "Less": _broadcast(np.less),
    "LessOrEqual": _broadcast(np.less_equal), "Max": _fold(np.maximum), "Min": _fold(np.minimum), "Mod": _modulo,
    "Mul": _broadcast(np.multiply), "Neg": _unary(np.negative), "NonZero": _non_zero, "Not": _unary(np.logical_not),
    "Or": _broadcast(np.logical_or), "Pow": _broadcast(_power), "Range": _range, "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min), "ReduceProd": _reduce(np.prod), "ReduceSum": _reduce(np.sum), "Reshape": _reshape,
    "Round": _unary(np.round), "Sign": _unary(np.sign), "Slice": _slice, "Split": _split, "Sqrt": _unary(np.sqrt),
    "Squeeze": _squeeze, "Sub": _broadcast(np.subtract), "Tile": _tile, "Transpose": _transpose,
    "Unsqueeze": _unsqueeze, "Where": _broadcast(np.where), "Xor": _broadcast(np.logical_xor),
}  # fmt: skip
