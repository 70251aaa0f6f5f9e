"""Poolings, local response normalization and softmax: kernels of this room, one thread per element of the output.

They are simple, and no library's best. They compute in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...device.device import Run
from .call import Call, refused

__all__ = ["POOLINGS", "Window", "windows"]


@dataclass(frozen=True, slots=True)
class Window:
    """What a pooling does along one axis.

    Attributes:
        size: Elements of the input.
        target: Elements of the output.
        kernel: Elements of the window.
        stride: From one window to the next.
        dilation: From one element of the window to the next.
        before: Elements that are padded ahead.
        after: Elements that are padded behind.
    """

    size: int
    target: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0


_WHOLE = Window(1, 1, 1)

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
_SOFTMAX = """
    long long start = i / inner * length * inner + i % inner;
    float largest = __int_as_float(0xff800000), sum = 0.f;
    for (long long c = 0; c < length; ++c) largest = fmaxf(largest, (float)x[start + c * inner]);
    for (long long c = 0; c < length; ++c) sum += expf((float)x[start + c * inner] - largest);
    for (long long c = 0; c < length; ++c)
        y[start + c * inner] = (T)(expf((float)x[start + c * inner] - largest) / sum);
"""


def windows(given: Mapping[str, Any], shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[Window, ...]:
    """What a pooling does along each of its axes (https://onnx.ai/onnx/operators/onnx__AveragePool.html).

    Args:
        given: Attributes of the operator.
        shape: Of the axes of the input that it pools over.
        target: Likewise, of the output.
    """
    axes = len(shape)
    kernel = given["kernel_shape"]
    stride, dilation = given.get("strides", [1] * axes), given.get("dilations", [1] * axes)
    pads = list(given.get("pads", [0] * (2 * axes)))
    automatic = given.get("auto_pad", "NOTSET")
    if automatic != "NOTSET":
        pads = [0] * (2 * axes)
    if automatic in {"SAME_UPPER", "SAME_LOWER"}:
        for axis in range(axes):
            reach = (target[axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1
            missing = max(reach - shape[axis], 0)
            less, more = missing // 2, missing - missing // 2
            pads[axis], pads[axes + axis] = (less, more) if automatic == "SAME_UPPER" else (more, less)
    return tuple(
        Window(shape[axis], target[axis], kernel[axis], stride[axis], dilation[axis], pads[axis], pads[axes + axis])
        for axis in range(axes)
    )


def _pool(call: Call) -> Run:
    if call.wanted != [0]:
        raise refused(call.node, "with indices")
    x, y = call.fraction(), call.y()
    if x.ndim not in {3, 4}:
        raise refused(call.node, f"over {x.ndim - 2} axes")
    along = windows(call.given, x.shape[2:], y.shape[2:])
    high, wide = along if len(along) == 2 else (_WHOLE, *along)
    numbers = [number for each in (high, wide) for number in _numbers(each)]
    average = call.node.op_type == "AveragePool"
    padded = bool(call.given.get("count_include_pad", 0))
    kernel = _kernel("average" if average else "largest")

    def run() -> None:
        kernel(x, *numbers, padded, y)

    return run


def _numbers(each: Window) -> tuple[int, ...]:
    end = each.size + each.after
    return each.size, each.target, each.kernel, each.stride, each.dilation, each.before, end


def _response(call: Call) -> Run:
    x, y = call.fraction(), call.y()
    size = call.given["size"]
    before, after = (size - 1) // 2, size // 2
    alpha, beta = call.given.get("alpha", 1e-4) / size, call.given.get("beta", 0.75)
    numbers = (x.shape[1], math.prod(x.shape[2:]), before, after, alpha, beta, call.given.get("bias", 1.0))
    kernel = _kernel("response")

    def run() -> None:
        kernel(x, *numbers, y)

    return run


def _softmax(call: Call) -> Run:
    x, y = call.fraction(), call.y()
    axis = call.given.get("axis", -1) % x.ndim
    length, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    count = x.size // length
    kernel = _kernel("softmax")

    def run() -> None:
        kernel(x, length, inner, y, size=count)

    return run


POOLINGS: dict[str, Callable[[Call], Run]] = {
    "AveragePool": _pool,
    "LRN": _response,
    "MaxPool": _pool,
    "Softmax": _softmax,
}
"""By operator: makes what enqueues one execution, in the current stream."""


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
    }[name]
    return cupy.ElementwiseKernel(takes, gives, code, f"dlb_{name}")
