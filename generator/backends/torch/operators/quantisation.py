"""Integers that stand for real numbers, and products of them.

Integer products are computed in float64, which holds every sum of them that ONNX can mean exactly: PyTorch has no
integer convolution, and its integer matrix product is slower.
"""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

from typing import Any

import onnx
import torch

from .call import Call, Tensor
from .convolution import convolve
from .registry import operator

__all__: list[str] = []

_NARROW = frozenset({
    onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.INT16, onnx.TensorProto.UINT16,
})  # fmt: skip


@operator("QuantizeLinear")
def _quantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    number = call.get("output_dtype", 0)
    dtype = zero.dtype if zero is not None else call.dtype_of(number) if number else torch.uint8
    if call.get("output_dtype") in _NARROW or dtype not in {torch.int8, torch.uint8, torch.int32}:
        raise call.refuse(f"to {dtype}")
    scale = _spread(call, scale, x)
    zero = None if zero is None else _spread(call, zero, x)
    return _quantized(x, scale, zero, dtype)


def _quantized(x: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
    scaled = torch.round(torch.div(x, scale))
    if zero is not None:
        scaled = torch.add(scaled, zero.to(scaled.dtype))
    limits = torch.iinfo(dtype)
    return torch.clamp(scaled, limits.min, limits.max).to(dtype)


@operator("DequantizeLinear")
def _dequantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    scale = _spread(call, scale, x)
    return _dequantized(x, scale, None if zero is None else _spread(call, zero, x))


def _dequantized(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """In float32 at least: the difference of two bytes need not be exact in a narrower type."""
    wide = scale.dtype if scale.dtype == torch.float64 else torch.float32
    values = x.to(wide)
    if zero is not None:
        values = torch.sub(values, zero.to(wide))
    return torch.mul(values, scale.to(wide)).to(scale.dtype)


def _spread(call: Call, value: Tensor, x: Tensor) -> Tensor:
    """A scale or zero point, in the shape that goes with the tensor: one for all, one per slice, or one per block."""
    if value.numel() == 1:
        return value.reshape([])
    axis = call.get("axis", 1) % x.ndim
    if value.ndim == 1:
        return value.reshape([-1 if place == axis else 1 for place in range(x.ndim)])
    block = call.get("block_size", 0)
    if not block:
        return value
    return torch.narrow(torch.repeat_interleave(value, block, axis), axis, 0, x.shape[axis])


@operator("DynamicQuantizeLinear")
def _dynamic_quantize(_: Call, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low = torch.clamp(torch.amin(x), max=0.0)
    high = torch.clamp(torch.amax(x), min=0.0)
    scale = torch.div(torch.sub(high, low), 255.0)
    zero = torch.clamp(torch.round(torch.div(torch.neg(low), scale)), 0, 255)
    quantized = torch.clamp(torch.add(torch.round(torch.div(x, scale)), zero), 0, 255)
    return quantized.to(torch.uint8), scale, zero.to(torch.uint8)


def _centred(x: Tensor, zero: Tensor | None, *, axis: int) -> Tensor:
    """Exact differences from the zero point, which may be one per row or channel."""
    values = x.to(torch.float64)
    if zero is None:
        return values
    if zero.numel() > 1 and zero.ndim == 1:
        zero = zero.reshape([-1 if place == axis % x.ndim else 1 for place in range(x.ndim)])
    return torch.sub(values, zero.to(torch.float64))


@operator("MatMulInteger")
def _matmul_integer(
    _: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    product = torch.matmul(_centred(a, a_zero, axis=-2), _centred(b, b_zero, axis=-1))
    return product.to(torch.int32)


@operator("ConvInteger")
def _conv_integer(
    call: Call, x: Tensor, weight: Tensor, x_zero: Tensor | None = None, weight_zero: Tensor | None = None
) -> Tensor:
    product = convolve(call, _centred(x, x_zero, axis=1), _centred(weight, weight_zero, axis=0))
    return product.to(torch.int32)


@operator("QLinearMatMul")
def _qlinear_matmul(_: Call, *inputs: Tensor) -> Tensor:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    product = torch.matmul(_centred(a, a_zero, axis=-2), _centred(b, b_zero, axis=-1))
    real = torch.mul(product, torch.mul(a_scale.to(torch.float64), b_scale.to(torch.float64)))
    return _quantized(real, y_scale.to(torch.float64), y_zero, y_zero.dtype)


@operator("QLinearConv")
def _qlinear_conv(call: Call, *inputs: Any) -> Tensor:
    x, x_scale, x_zero, weight, weight_scale, weight_zero, y_scale, y_zero, *rest = inputs
    bias = rest[0].to(torch.float64) if rest and rest[0] is not None else None
    product = convolve(call, _centred(x, x_zero, axis=1), _centred(weight, weight_zero, axis=0), bias)
    scale = torch.mul(x_scale.to(torch.float64), weight_scale.to(torch.float64))
    if scale.numel() > 1:
        scale = scale.reshape([-1, *[1] * (x.ndim - 2)])
    return _quantized(torch.mul(product, scale), y_scale.to(torch.float64), y_zero, y_zero.dtype)
