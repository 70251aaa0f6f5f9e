"""Operators of one tensor, element by element: functions, activations, conversions."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from .call import Call, Tensor
from .registry import elementwise, operator

__all__: list[str] = []

for _name, _function in {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": functional.hardswish,
    "Identity": lambda x: x,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": functional.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}.items():
    elementwise(_name, _function)

_SELU = (1.67326319217681884765625, 1.05070102214813232421875)
"""ONNX's defaults, which are PyTorch's constants."""


@operator("LeakyRelu")
def _leaky_relu(call: Call, x: Tensor) -> Tensor:
    return functional.leaky_relu(x, call.get("alpha", 0.01))


@operator("Elu")
def _elu(call: Call, x: Tensor) -> Tensor:
    return functional.elu(x, call.get("alpha", 1.0))


@operator("Celu")
def _celu(call: Call, x: Tensor) -> Tensor:
    return functional.celu(x, call.get("alpha", 1.0))


@operator("Selu")
def _selu(call: Call, x: Tensor) -> Tensor:
    alpha, gamma = call.get("alpha", _SELU[0]), call.get("gamma", _SELU[1])
    if math.isclose(alpha, _SELU[0], rel_tol=1e-6) and math.isclose(gamma, _SELU[1], rel_tol=1e-6):
        return torch.selu(x)
    return torch.mul(functional.elu(x, alpha), gamma)


@operator("Gelu")
def _gelu(call: Call, x: Tensor) -> Tensor:
    return functional.gelu(x, approximate=call.get("approximate", "none"))


@operator("HardSigmoid")
def _hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    alpha, beta = call.get("alpha", 0.2), call.get("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return functional.hardsigmoid(x)
    return torch.clamp(torch.add(torch.mul(x, alpha), beta), 0.0, 1.0)


@operator("Swish")
def _swish(call: Call, x: Tensor) -> Tensor:
    alpha = call.get("alpha", 1.0)
    return functional.silu(x) if alpha == 1 else torch.mul(x, torch.sigmoid(torch.mul(x, alpha)))


@operator("ThresholdedRelu")
def _thresholded_relu(call: Call, x: Tensor) -> Tensor:
    return functional.threshold(x, call.get("alpha", 1.0), 0.0)


@operator("Shrink")
def _shrink(call: Call, x: Tensor) -> Tensor:
    bias, limit = call.get("bias", 0.0), call.get("lambd", 0.5)
    zero = torch.zeros_like(x)
    return torch.where(
        torch.lt(x, -limit), torch.add(x, bias), torch.where(torch.gt(x, limit), torch.sub(x, bias), zero)
    )


@operator("PRelu")
def _prelu(_: Call, x: Tensor, slope: Tensor) -> Tensor:
    per_channel = x.ndim > 1 and slope.numel() == x.shape[1] and slope.ndim == x.ndim - 1 and slope.shape[0] > 1
    if slope.numel() == 1 or per_channel:
        return torch.prelu(x, slope.reshape(-1))
    return torch.where(torch.lt(x, 0), torch.mul(x, slope), x)


@operator("IsInf")
def _is_inf(call: Call, x: Tensor) -> Tensor:
    negative, positive = call.flag("detect_negative", default=True), call.flag("detect_positive", default=True)
    if negative and positive:
        return torch.isinf(x)
    if not negative and not positive:
        return torch.zeros_like(x, dtype=torch.bool)
    return torch.isposinf(x) if positive else torch.isneginf(x)


@operator("Clip")
def _clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Constant bounds are numbers, as PyTorch's users write them."""
    if call.opset < 11:
        bounds: list[Any] = [call.get("min"), call.get("max")]
    elif all(call.constant[1:]):
        bounds = [None if bound is None else bound.item() for bound in (low, high)]
    else:
        bounds = [low, high]
    return x if bounds == [None, None] else torch.clamp(x, *bounds)


@operator("Cast")
def _cast(call: Call, x: Tensor) -> Tensor:
    return x.to(call.dtype_of(call.attributes["to"]))


@operator("CastLike")
def _cast_like(_: Call, x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype)


@operator("Dropout")
def _dropout(call: Call, x: Tensor, _ratio: Tensor | None = None, training: Tensor | None = None) -> Any:
    """Nothing is dropped outside training."""
    if training is not None and bool(training.item()):
        raise call.refuse("in training mode")
    return (x, torch.ones_like(x, dtype=torch.bool)) if call.has(1) else x
