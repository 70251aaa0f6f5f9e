"""Operators that move data and compute nothing: each is one copy by CuPy per piece that is moved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...device.device import Run
from .call import Call, refused

__all__ = ["MOVERS", "nearest"]

MOVERS: dict[str, Callable[[Call], Run]] = {}
"""By operator: makes what enqueues one execution, in the current stream."""

_ROUNDED: dict[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _mover(*op_types: str) -> Callable[[Callable[[Call], Run]], Callable[[Call], Run]]:
    def register(make: Callable[[Call], Run]) -> Callable[[Call], Run]:
        MOVERS.update(dict.fromkeys(op_types, make))
        return make

    return register


def _copies(*pairs: tuple[Any, Any]) -> Run:
    """Copies from the first of each pair to the second, one kernel each."""
    import cupy

    def run() -> None:
        for source, target in pairs:
            cupy.copyto(target, source, casting="unsafe")

    return run


@_mover("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")
def _view(call: Call) -> Run:
    raise refused(call.node, "moves nothing")


@_mover("Transpose")
def _transpose(call: Call) -> Run:
    x, y = call.x(), call.y()
    turned = x.transpose(call.given.get("perm", list(range(x.ndim))[::-1]))
    if turned.flags.c_contiguous:
        raise refused(call.node, "moves nothing: only dimensions of one element change places")
    return _copies((turned, y))


@_mover("Concat")
def _concat(call: Call) -> Run:
    y = call.y()
    axis = call.given["axis"] % y.ndim
    parts = [call.x(index) for index in range(len(call.node.input))]
    ends = list(itertools.accumulate(part.shape[axis] for part in parts))
    return _copies(
        *((part, _part(y, axis, end - part.shape[axis], end)) for part, end in zip(parts, ends, strict=True))
    )


@_mover("Split")
def _split(call: Call) -> Run:
    x = call.x()
    axis = call.given.get("axis", 0) % x.ndim
    count = len(call.node.output)
    size = -(-x.shape[axis] // count)
    sizes = call.numbers(1) if call.has(1) else [size] * (count - 1) + [x.shape[axis] - size * (count - 1)]
    ends = list(itertools.accumulate(sizes))
    return _copies(*((_part(x, axis, ends[index] - sizes[index], ends[index]), call.y(index)) for index in call.wanted))


@_mover("Slice")
def _slice(call: Call) -> Run:
    x = call.x()
    starts, ends = call.numbers(1), call.numbers(2)
    axes = call.numbers(3) if call.has(3) else list(range(len(starts)))
    steps = call.numbers(4) if call.has(4) else [1] * len(starts)
    chosen = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = x.shape[axis]
        # ONNX clamps both ends; below the first element is before it for a negative step, where Python counts anew.
        last = None if step < 0 and end < -size else end
        chosen[axis] = slice(start, last, step)
    return _copies((x[tuple(chosen)], call.y()))


@_mover("Pad")
def _pad(call: Call) -> Run:
    if call.given.get("mode", "constant") != "constant":
        raise refused(call.node, f"by {call.given['mode']}")
    x, y = call.x(), call.y()
    pads = call.numbers(1)
    axes = call.numbers(3) if call.has(3) else list(range(x.ndim))
    if min(pads) < 0:
        raise refused(call.node, "that takes away")
    inner = [slice(None)] * x.ndim
    for axis, before in zip(axes, pads[: len(axes)], strict=True):
        inner[axis] = slice(before, before + x.shape[axis])
    inside = y[tuple(inner)]
    value = call.x(2).reshape(()) if call.has(2) else None

    def run() -> None:
        y[...] = 0 if value is None else value
        inside[...] = x

    return run


@_mover("Gather")
def _gather(call: Call) -> Run:
    import cupy

    x, indices, y = call.x(), call.x(1), call.y()
    axis = call.given.get("axis", 0) % x.ndim

    def run() -> None:
        cupy.take(x, indices, axis=axis, out=y)

    return run


@_mover("Expand")
def _expand(call: Call) -> Run:
    import cupy

    y = call.y()
    return _copies((cupy.broadcast_to(call.x(), y.shape), y))


@_mover("Cast")
def _cast(call: Call) -> Run:
    return _copies((call.number(), _known(call)))


@_mover("Where")
def _where(call: Call) -> Run:
    condition, one, other, y = call.x(), call.x(1), call.x(2), call.y()
    kernel = _chosen()

    def run() -> None:
        kernel(condition, one, other, y)

    return run


@_mover("Resize")
def _resize(call: Call) -> Run:
    if call.given.get("mode", "nearest") != "nearest":
        raise refused(call.node, f"by {call.given['mode']} interpolation")
    if call.given.get("axes") or call.given.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise refused(call.node, "of chosen axes")
    x, y = call.x(), call.y()
    if x.ndim < 3 or x.shape[:-2] != y.shape[:-2]:
        raise refused(call.node, "of other dimensions than the last two")
    scales = [float(each) for each in call.host(2).reshape(-1)] if call.has(2) and call.host(2).size else None
    how = call.given.get("coordinate_transformation_mode", "half_pixel")
    rounded = call.given.get("nearest_mode", "round_prefer_floor")
    places = []
    for axis in (-2, -1):
        scale = scales[axis] if scales else y.shape[axis] / x.shape[axis]
        found = nearest(x.shape[axis], y.shape[axis], scale, how, rounded)
        if found is None:
            raise refused(call.node, f"by {how} and {rounded}")
        places.append(call.constant(found))
    rows, columns = places
    height, width, plane = x.shape[-2], x.shape[-1], math.prod(y.shape[-2:])
    kernel = _picked()

    def run() -> None:
        kernel(x, rows, columns, height, width, y.shape[-1], plane, y)

    return run


def nearest(size: int, target: int, scale: float, how: str, rounded: str) -> npt.NDArray[np.int32] | None:
    """Per element of a resized axis the element that it is taken from (https://onnx.ai/onnx/operators/onnx__Resize.html).

    Args:
        size: Of the axis.
        target: Of the axis when it is resized.
        scale: Between both.
        how: ``coordinate_transformation_mode``.
        rounded: ``nearest_mode``.

    Returns:
        Indices; None for a mode that is not known.
    """
    at = np.arange(target, dtype=np.float64)
    places = {
        "asymmetric": at / scale,
        "half_pixel": (at + 0.5) / scale - 0.5,
        "pytorch_half_pixel": (at + 0.5) / scale - 0.5 if target > 1 else at * 0,
        "align_corners": at * (size - 1) / (target - 1) if target > 1 else at * 0,
    }
    if how not in places or rounded not in _ROUNDED:
        return None
    return np.clip(_ROUNDED[rounded](places[how]), 0, size - 1).astype(np.int32)


def _part(array: Any, axis: int, begin: int, end: int) -> Any:
    return array[(*[slice(None)] * axis, slice(begin, end))]


def _known(call: Call) -> Any:
    """The output, of a type that CuPy knows as what it is."""
    import onnx

    if call.given["to"] in {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, *_INTEGERS}:
        found = call.y()
        if found.dtype.kind in "biuf" and (found.dtype.kind == "f") == (call.given["to"] not in _INTEGERS):
            return found
    raise refused(call.node, "to a type that CuPy is not asked to compute in")


_INTEGERS: Sequence[int] = (2, 3, 4, 5, 6, 7, 9, 12, 13)
"""Of ``TensorProto.DataType``: integers of 8 to 64 bits, and bool."""


@cache
def _chosen() -> Any:
    import cupy

    return cupy.ElementwiseKernel("bool condition, T one, T other", "T y", "y = condition ? one : other", "dlb_where")


@cache
def _picked() -> Any:
    import cupy

    return cupy.ElementwiseKernel(
        "raw T x, raw int32 rows, raw int32 columns, int64 height, int64 width, int64 across, int64 plane",
        "T y",
        """
        long long inside = i % plane;
        y = x[(i / plane * height + rows[inside / across]) * width + columns[inside % across]];
        """,
        "dlb_resize",
    )
