"""Pointwise operators: one kernel each, which computes in float32; comparisons and logic by CuPy's functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ...device.device import Run
from .call import Call

__all__ = ["POINTWISE"]

_UNARY = {
    "Abs": "fabsf(a)", "Ceil": "ceilf(a)", "Cos": "cosf(a)", "Erf": "erff(a)", "Exp": "expf(a)", "Floor": "floorf(a)",
    "Log": "logf(a)", "Neg": "-a", "Reciprocal": "1.f / a", "Relu": "a < 0.f ? 0.f : a", "Round": "rintf(a)",
    "Sigmoid": "1.f / (1.f + expf(-a))", "Sin": "sinf(a)", "Softplus": "fmaxf(a, 0.f) + log1pf(expf(-fabsf(a)))",
    "Sqrt": "sqrtf(a)", "Tanh": "tanhf(a)", "HardSwish": "a * fminf(fmaxf(a / 6.f + 0.5f, 0.f), 1.f)",
}  # fmt: skip
"""By operator: of ``a``."""
_TUNED = {
    "Elu": ("a < 0.f ? alpha * expm1f(a) : a", 1.0, 0.0),
    "HardSigmoid": ("fminf(fmaxf(alpha * a + beta, 0.f), 1.f)", 0.2, 0.5),
    "LeakyRelu": ("a < 0.f ? alpha * a : a", 0.01, 0.0),
}
"""By operator: of ``a``, ``alpha`` and ``beta``, and the defaults of these."""
_GELU = {
    "none": "0.5f * a * (1.f + erff(a * 0.70710678118654752f))",
    "tanh": "0.5f * a * (1.f + tanhf(0.79788456080286536f * (a + 0.044715f * a * a * a)))",
}
_BINARY = {
    "Add": "a + b", "Div": "a / b", "Max": "a < b ? b : a", "Min": "b < a ? b : a", "Mul": "a * b",
    "PRelu": "a < 0.f ? a * b : a", "Pow": "powf(a, b)", "Sub": "a - b", "Sum": "a + b",
}  # fmt: skip
"""By operator: of ``a`` and ``b``; those of more operands are done two at a time."""
_FUNCTIONS = {
    "And": "logical_and", "Equal": "equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "Less": "less",
    "LessOrEqual": "less_equal", "Not": "logical_not", "Or": "logical_or", "Xor": "logical_xor",
}  # fmt: skip
"""By operator: the function of CuPy that it is."""


_TWO_NUMBERS = "T x, float32 alpha, float32 beta"


def _unary(call: Call) -> Run:
    op_type = call.node.op_type
    if op_type == "Gelu":
        code, alpha, beta = _GELU[call.given.get("approximate", "none")], 0.0, 0.0
    else:
        code, alpha, beta = _TUNED.get(op_type) or (_UNARY[op_type], 0.0, 0.0)
    x, y = call.fraction(), call.y()
    numbers = call.given.get("alpha", alpha), call.given.get("beta", beta)
    kernel = _kernel(code, _TWO_NUMBERS, "float a = (float)x;")

    def run() -> None:
        kernel(x, *numbers, y)

    return run


def _binary(call: Call) -> Run:
    count = len(call.node.input)
    one, *rest = (call.fraction(index) for index in range(count))
    y = call.y()
    kernel = _kernel(_BINARY[call.node.op_type], "T x, T z", "float a = (float)x, b = (float)z;")

    def run() -> None:
        found = one
        for other in rest:
            kernel(found, other, y)
            found = y

    return run if rest else lambda: y.__setitem__(..., one)


def _clip(call: Call) -> Run:
    x, y = call.fraction(), call.y()
    low = float(call.host(1).item()) if call.has(1) else float("-inf")
    high = float(call.host(2).item()) if call.has(2) else float("inf")
    kernel = _kernel("a < alpha ? alpha : a > beta ? beta : a", _TWO_NUMBERS, "float a = (float)x;")

    def run() -> None:
        kernel(x, low, high, y)

    return run


def _function(call: Call) -> Run:
    import cupy

    function: Any = getattr(cupy, _FUNCTIONS[call.node.op_type])
    operands = [call.number(index) for index in range(len(call.node.input))]
    y = call.y()

    def run() -> None:
        function(*operands, out=y)

    return run


POINTWISE: dict[str, Callable[[Call], Run]] = {
    **dict.fromkeys((*_UNARY, *_TUNED, "Gelu"), _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_FUNCTIONS, _function),
    "Clip": _clip,
}
"""By operator: makes what enqueues one execution, in the current stream."""


@cache
def _kernel(code: str, takes: str, begin: str) -> Any:
    import cupy

    return cupy.ElementwiseKernel(takes, "T y", f"{begin} y = (T)({code});", "dlb_pointwise")
