"""Operators of several tensors, element by element, with NumPy's broadcasting."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from .call import Call, Tensor
from .registry import elementwise, operator

__all__: list[str] = []

_NUMPY_BROADCASTING = 7
"""First opset at which binary operators broadcast as NumPy does."""


def _register(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @operator(name)
    def binary(call: Call, a: Tensor, b: Tensor) -> Tensor:
        return function(a, _aligned(call, a, b))


def _aligned(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """The second operand, in the place that the attribute ``axis`` of old opsets gives it."""
    axis = call.get("axis")
    if call.opset >= _NUMPY_BROADCASTING or axis is None:
        return b
    start = axis % a.ndim
    return b.reshape([1] * start + list(b.shape) + [1] * (a.ndim - start - b.ndim))


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


for _name, _function in {
    "Add": torch.add,
    "And": torch.logical_and,
    "Div": _quotient,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}.items():
    _register(_name, _function)

elementwise("BitwiseAnd", torch.bitwise_and)
elementwise("BitwiseOr", torch.bitwise_or)
elementwise("BitwiseXor", torch.bitwise_xor)
elementwise("Where", torch.where)


@operator("Pow")
def _pow(call: Call, base: Tensor, exponent: Tensor) -> Tensor:
    """The result has the type of the base; a constant exponent is a number, which has faster kernels."""
    exponent = _aligned(call, base, exponent)
    if call.constant[1] and exponent.numel() == 1 and exponent.ndim <= base.ndim:
        return torch.pow(base, exponent.item()).to(base.dtype)
    return torch.pow(base, exponent).to(base.dtype)


@operator("Mod")
def _mod(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if call.flag("fmod") else torch.remainder(a, b)


@operator("BitShift")
def _bit_shift(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return (torch.bitwise_left_shift if call.get("direction") == "LEFT" else torch.bitwise_right_shift)(a, b)


@operator("Sum")
def _sum(_: Call, *values: Tensor) -> Tensor:
    return reduce(torch.add, values)


@operator("Max")
def _max(_: Call, *values: Tensor) -> Tensor:
    return reduce(torch.maximum, values)


@operator("Min")
def _min(_: Call, *values: Tensor) -> Tensor:
    return reduce(torch.minimum, values)


@operator("Mean")
def _mean(_: Call, *values: Tensor) -> Any:
    return torch.div(reduce(torch.add, values), len(values)) if len(values) > 1 else values[0]
