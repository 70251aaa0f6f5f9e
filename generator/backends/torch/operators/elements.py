"""Operators of one tensor or several, element by element, with NumPy's broadcasting, and products of matrices."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch.nn import functional

from .arguments import Tensor, TorchCall, elementwise, operator, register

_SAME_NAME = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "IsNaN",
    "Log", "MatMul", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh",
    "Where",
)  # fmt: skip
"""PyTorch's name is ONNX's in lower case."""

elementwise(
    {
        **{name: getattr(torch, name.lower()) for name in _SAME_NAME}, "BitwiseAnd": torch.bitwise_and,
        "BitwiseNot": torch.bitwise_not, "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor,
        "CastLike": lambda x, like: x.to(like.dtype), "Det": torch.linalg.det, "HardSwish": functional.hardswish,
        "Identity": lambda x: x, "Max": lambda *values: reduce(torch.maximum, values),
        "Min": lambda *values: reduce(torch.minimum, values), "Mish": functional.mish, "Not": torch.logical_not,
        "Softplus": functional.softplus, "Softsign": functional.softsign,
        "Sum": lambda *values: reduce(torch.add, values),
    }
)  # fmt: skip

register(
    {
        "Cast": lambda call, x: x.to(call.dtype_of(call.attributes["to"])),
        "Celu": lambda call, x: functional.celu(x, call.get("alpha", 1.0)),
        "Einsum": lambda call, *operands: torch.einsum(call.attributes["equation"], *operands),
        "Elu": lambda call, x: functional.elu(x, call.get("alpha", 1.0)),
        "Gelu": lambda call, x: functional.gelu(x, approximate=call.get("approximate", "none")),
        "LeakyRelu": lambda call, x: functional.leaky_relu(x, call.get("alpha", 0.01)),
        "Mod": lambda call, a, b: torch.fmod(a, b) if call.flag("fmod") else torch.remainder(a, b),
        "ThresholdedRelu": lambda call, x: functional.threshold(x, call.get("alpha", 1.0), 0.0),
    }
)

_SELU = (1.67326319217681884765625, 1.05070102214813232421875)
"""ONNX's defaults, which are PyTorch's constants."""


@operator("Selu")
def _selu(call: TorchCall, x: Tensor) -> Tensor:
    alpha, gamma = call.get("alpha", _SELU[0]), call.get("gamma", _SELU[1])
    if math.isclose(alpha, _SELU[0], rel_tol=1e-6) and math.isclose(gamma, _SELU[1], rel_tol=1e-6):
        return torch.selu(x)
    return torch.mul(functional.elu(x, alpha), gamma)


@operator("HardSigmoid")
def _hard_sigmoid(call: TorchCall, x: Tensor) -> Tensor:
    alpha, beta = call.get("alpha", 0.2), call.get("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return functional.hardsigmoid(x)
    return torch.clamp(torch.add(torch.mul(x, alpha), beta), 0.0, 1.0)


@operator("Swish")
def _swish(call: TorchCall, x: Tensor) -> Tensor:
    alpha = call.get("alpha", 1.0)
    return functional.silu(x) if alpha == 1 else torch.mul(x, torch.sigmoid(torch.mul(x, alpha)))


@operator("Shrink")
def _shrink(call: TorchCall, x: Tensor) -> Tensor:
    bias, limit = call.get("bias", 0.0), call.get("lambd", 0.5)
    zero = torch.zeros_like(x)
    return torch.where(
        torch.lt(x, -limit), torch.add(x, bias), torch.where(torch.gt(x, limit), torch.sub(x, bias), zero)
    )


@operator("PRelu")
def _prelu(_: TorchCall, x: Tensor, slope: Tensor) -> Tensor:
    per_channel = x.ndim > 1 and slope.numel() == x.shape[1] and slope.ndim == x.ndim - 1 and slope.shape[0] > 1
    if slope.numel() == 1 or per_channel:
        return torch.prelu(x, slope.reshape(-1))
    return torch.where(torch.lt(x, 0), torch.mul(x, slope), x)


@operator("IsInf")
def _is_inf(call: TorchCall, x: Tensor) -> Tensor:
    negative, positive = call.flag("detect_negative", default=True), call.flag("detect_positive", default=True)
    if negative and positive:
        return torch.isinf(x)
    if not negative and not positive:
        return torch.zeros_like(x, dtype=torch.bool)
    return torch.isposinf(x) if positive else torch.isneginf(x)


@operator("Clip")
def _clip(call: TorchCall, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Constant bounds are numbers, as PyTorch's users write them."""
    if call.opset < 11:
        bounds: list[Any] = [call.get("min"), call.get("max")]
    elif all(call.constant[1:]):
        bounds = [None if bound is None else bound.item() for bound in (low, high)]
    else:
        bounds = [low, high]
    return x if bounds == [None, None] else torch.clamp(x, *bounds)


@operator("Dropout")
def _dropout(call: TorchCall, x: Tensor, _ratio: Tensor | None = None, training: Tensor | None = None) -> Any:
    """Nothing is dropped outside training."""
    if training is not None and bool(training.item()):
        raise call.refuse("in training mode")
    return (x, torch.ones_like(x, dtype=torch.bool)) if call.has(1) else x


_NUMPY_BROADCASTING = 7
"""First opset at which binary operators broadcast as NumPy does."""


def _aligned(call: TorchCall, a: Tensor, b: Tensor) -> Tensor:
    """Return the second operand, aligned by the attribute ``axis`` of old opsets."""
    axis = call.get("axis")
    if call.opset >= _NUMPY_BROADCASTING or axis is None:
        return b
    start = axis % a.ndim
    return b.reshape([1] * start + list(b.shape) + [1] * (a.ndim - start - b.ndim))


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add, "And": torch.logical_and, "Div": _quotient, "Equal": torch.eq, "Greater": torch.gt,
    "GreaterOrEqual": torch.ge, "Less": torch.lt, "LessOrEqual": torch.le, "Mul": torch.mul, "Or": torch.logical_or,
    "Sub": torch.sub, "Xor": torch.logical_xor,
}  # fmt: skip


@operator(*_BINARY)
def _binary(call: TorchCall, a: Tensor, b: Tensor) -> Tensor:
    return _BINARY[call.op_type](a, _aligned(call, a, b))


@operator("Pow")
def _pow(call: TorchCall, base: Tensor, exponent: Tensor) -> Tensor:
    """Compute a power in the type of the base; a constant exponent becomes a number, which has faster kernels."""
    exponent = _aligned(call, base, exponent)
    if call.constant[1] and exponent.numel() == 1 and exponent.ndim <= base.ndim:
        return torch.pow(base, exponent.item()).to(base.dtype)
    return torch.pow(base, exponent).to(base.dtype)


@operator("BitShift")
def _bit_shift(call: TorchCall, a: Tensor, b: Tensor) -> Tensor:
    return (torch.bitwise_left_shift if call.get("direction") == "LEFT" else torch.bitwise_right_shift)(a, b)


@operator("Mean")
def _mean(_: TorchCall, *values: Tensor) -> Any:
    return torch.div(reduce(torch.add, values), len(values)) if len(values) > 1 else values[0]


@operator("Gemm")
def _gemm(call: TorchCall, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """Compute a linear layer if the Gemm is one; else ``alpha * A B + beta * C``."""
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    if not a.is_floating_point():
        alpha, beta = int(alpha), int(beta)
    if call.flag("transA"):
        a = torch.t(a)
    plain = alpha == 1 and (c is None or (beta == 1 and c.ndim == 1))
    if call.flag("transB") and plain and (c is None or c.shape[0] == b.shape[0]):
        return functional.linear(a, b, c)
    if call.flag("transB"):
        b = torch.t(b)
    if c is None:
        product = torch.mm(a, b)
        return product if alpha == 1 else torch.mul(product, alpha)
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)
