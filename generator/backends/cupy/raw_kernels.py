"""Data movers and poolings. A mover computes nothing: it is one copy by CuPy per piece that is moved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from ...device.device import Run
from ..base import registering
from ..geometry import SlidingWindow, nearest
from .kernel_call import DeviceCall, refused

Make = Callable[[DeviceCall], Run]

MOVERS: dict[str, Make] = {}
"""Functions by operator; each returns a function that enqueues one execution in the current stream."""


_mover = registering(MOVERS)


def _copies(*pairs: tuple[Any, Any]) -> Run:
    """Copy from the first of each pair to the second, one kernel each."""
    import cupy

    def run() -> None:
        for source, target in pairs:
            cupy.copyto(target, source, casting="unsafe")

    return run


@_mover("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")
def _view(call: DeviceCall) -> Run:
    raise refused(call.node, "moves nothing")


@_mover("Transpose")
def _transpose(call: DeviceCall) -> Run:
    x, y = call.x(), call.y()
    turned = x.transpose(call.given.get("perm", list(range(x.ndim))[::-1]))
    if turned.flags.c_contiguous:
        raise refused(call.node, "moves nothing: only dimensions of one element change places")
    return _copies((turned, y))


@_mover("Concat")
def _concat(call: DeviceCall) -> Run:
    y = call.y()
    axis = call.given["axis"] % y.ndim
    parts = [call.x(index) for index in range(len(call.node.input))]
    ends = list(itertools.accumulate(part.shape[axis] for part in parts))
    return _copies(
        *((part, _part(y, axis, end - part.shape[axis], end)) for part, end in zip(parts, ends, strict=True))
    )


@_mover("Split")
def _split(call: DeviceCall) -> Run:
    x = call.x()
    axis = call.given.get("axis", 0) % x.ndim
    count = len(call.node.output)
    size = -(-x.shape[axis] // count)
    sizes = call.numbers(1) if call.has(1) else [size] * (count - 1) + [x.shape[axis] - size * (count - 1)]
    ends = list(itertools.accumulate(sizes))
    return _copies(*((_part(x, axis, ends[index] - sizes[index], ends[index]), call.y(index)) for index in call.wanted))


@_mover("Slice")
def _slice(call: DeviceCall) -> Run:
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
def _pad(call: DeviceCall) -> Run:
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
def _gather(call: DeviceCall) -> Run:
    import cupy

    x, indices, y = call.x(), call.x(1), call.y()
    axis = call.given.get("axis", 0) % x.ndim
    return partial(cupy.take, x, indices, axis=axis, out=y)


@_mover("Expand")
def _expand(call: DeviceCall) -> Run:
    import cupy

    y = call.y()
    return _copies((cupy.broadcast_to(call.x(), y.shape), y))


@_mover("Cast")
def _cast(call: DeviceCall) -> Run:
    return _copies((call.number(), _known(call)))


@_mover("Where")
def _where(call: DeviceCall) -> Run:
    condition, chosen, other, y = call.x(), call.x(1), call.x(2), call.y()
    kernel = _kernel("where")
    return partial(kernel, condition, chosen, other, y)


@_mover("Resize")
def _resize(call: DeviceCall) -> Run:
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
        indices = nearest(x.shape[axis], y.shape[axis], scale, how, rounded)
        if indices is None:
            raise refused(call.node, f"by {how} and {rounded}")
        places.append(call.constant(indices.astype(np.int32)))
    rows, columns = places
    height, width, plane = x.shape[-2], x.shape[-1], math.prod(y.shape[-2:])
    kernel = _kernel("resize")
    return partial(kernel, x, rows, columns, height, width, y.shape[-1], plane, y)


def _part(array: Any, axis: int, begin: int, end: int) -> Any:
    return array[(*[slice(None)] * axis, slice(begin, end))]


def _known(call: DeviceCall) -> Any:
    """Return the output, if CuPy knows its type."""
    import onnx

    if call.given["to"] in {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, *_INTEGERS}:
        output = call.y()
        if output.dtype.kind in "biuf" and (output.dtype.kind == "f") == (call.given["to"] not in _INTEGERS):
            return output
    raise refused(call.node, "to a type that CuPy is not asked to compute in")


_INTEGERS: Sequence[int] = (2, 3, 4, 5, 6, 7, 9, 12, 13)
"""Of ``TensorProto.DataType``: integers of 8 to 64 bits, and bool."""


# Poolings, local response normalization and softmax: kernels of this room, one thread per element of the output.
#
# They are simple, and no library's best. They compute in float32.


_WHOLE = (1, 1, 1, 1, 1, 0, 1)
"""Numbers of an axis of one element, as ``_numbers`` gives them."""

_PARAMETERS = ", ".join(
    f"int64 {name}{axis}" for axis in "hw" for name in ("size", "target", "kernel", "stride", "dilation", "pad", "end")
)
_LOOP = """
    long long plane = i / (targeth * targetw), oy = i / targetw % targeth, ox = i % targetw;
    {begin}
    for (long long a = 0; a < kernelh; ++a) {{
        long long at = oy * strideh - padh + a * dilationh;
        for (long long b = 0; b < kernelw; ++b) {{
            long long to = ox * stridew - padw + b * dilationw;
            bool inside = at >= 0 && at < sizeh && to >= 0 && to < sizew;
            {each}
        }}
    }}
    {end}
"""
_VALUE = "(float)x[(plane * sizeh + at) * sizew + to]"
_LARGEST = _LOOP.format(
    begin="float found = __int_as_float(0xff800000);",
    each=f"if (inside) {{ float v = {_VALUE}; if (v > found || v != v) found = v; }}",
    end="y = (T)found;",
)
_AVERAGE = _LOOP.format(
    begin="float sum = 0.f; long long count = 0;",
    each=f"if (inside) sum += {_VALUE}; count += inside || (padded && at < endh && to < endw);",
    end="y = (T)(sum / (float)count);",
)
_RESPONSE = """
    long long at = i / inner % channels;
    long long first = max(at - before, 0LL), last = min(at + after, channels - 1);
    float sum = 0.f;
    for (long long c = first; c <= last; ++c) {
        float v = (float)x[i + (c - at) * inner];
        sum += v * v;
    }
    y = (T)((float)x[i] / powf(bias + alpha * sum, beta));
"""
_NEAREST = """
    long long inside = i % plane;
    y = x[(i / plane * height + rows[inside / across]) * width + columns[inside % across]];
"""
_SOFTMAX = """
    long long start = i / inner * length * inner + i % inner;
    float largest = __int_as_float(0xff800000), sum = 0.f;
    for (long long c = 0; c < length; ++c) largest = fmaxf(largest, (float)x[start + c * inner]);
    for (long long c = 0; c < length; ++c) sum += expf((float)x[start + c * inner] - largest);
    for (long long c = 0; c < length; ++c)
        y[start + c * inner] = (T)(expf((float)x[start + c * inner] - largest) / sum);
"""


def _pool(call: DeviceCall) -> Run:
    if call.wanted != [0]:
        raise refused(call.node, "with indices")
    x, y = call.fraction(), call.y()
    if x.ndim not in {3, 4}:
        raise refused(call.node, f"over {x.ndim - 2} axes")
    along = _numbers(SlidingWindow.of(call.given, x.shape[2:], call.given["kernel_shape"]), x.shape[2:], y.shape[2:])
    high, wide = along if len(along) == 2 else (_WHOLE, *along)
    average = call.node.op_type == "AveragePool"
    padded = bool(call.given.get("count_include_pad", 0))
    kernel = _kernel("average" if average else "largest")
    return partial(kernel, x, *high, *wide, padded, y)


def _numbers(window: SlidingWindow, sizes: Sequence[int], targets: Sequence[int]) -> list[tuple[int, ...]]:
    """Numbers of each axis in the order of ``_PARAMETERS``; the last one is the end of the trailing padding."""
    ends = [size + after for size, after in zip(sizes, window.end, strict=True)]
    parts = (sizes, targets, window.kernel, window.strides, window.dilations, window.begin, ends)
    return list(zip(*parts, strict=True))


def _response(call: DeviceCall) -> Run:
    x, y = call.fraction(), call.y()
    size = call.given["size"]
    before, after = (size - 1) // 2, size // 2
    alpha, beta = call.given.get("alpha", 1e-4) / size, call.given.get("beta", 0.75)
    numbers = (x.shape[1], math.prod(x.shape[2:]), before, after, alpha, beta, call.given.get("bias", 1.0))
    kernel = _kernel("response")
    return partial(kernel, x, *numbers, y)


def _softmax(call: DeviceCall) -> Run:
    x, y = call.fraction(), call.y()
    axis = call.given.get("axis", -1) % x.ndim
    length, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    count = x.size // length
    kernel = _kernel("softmax")
    return partial(kernel, x, length, inner, y, size=count)


POOLINGS: dict[str, Make] = {"AveragePool": _pool, "LRN": _response, "MaxPool": _pool, "Softmax": _softmax}
"""Functions by operator; each returns a function that enqueues one execution in the current stream."""


@cache
def _kernel(name: str) -> Any:
    import cupy

    pool = f"raw T x, {_PARAMETERS}, bool padded"
    response = (
        "raw T x, int64 channels, int64 inner, int64 before, int64 after, float32 alpha, float32 beta, float32 bias"
    )
    takes, gives, code = {
        "average": (pool, "T y", _AVERAGE),
        "largest": (pool, "T y", _LARGEST),
        "response": (response, "T y", _RESPONSE),
        "softmax": ("raw T x, int64 length, int64 inner", "raw T y", _SOFTMAX),
        "resize": (
            "raw T x, raw int32 rows, raw int32 columns, int64 height, int64 width, int64 across, int64 plane",
            "T y",
            _NEAREST,
        ),
        "where": ("bool condition, T one, T other", "T y", "y = condition ? one : other"),
    }[name]
    return cupy.ElementwiseKernel(takes, gives, code, f"dlb_{name}")
