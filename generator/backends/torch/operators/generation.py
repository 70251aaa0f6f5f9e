"""Operators that make values out of shapes and numbers."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

from typing import Any

import onnx
import torch
from onnx import numpy_helper

from .call import Call, Tensor
from .registry import operator

__all__ = ["GENERATORS"]

GENERATORS = frozenset({
    "ConstantOfShape", "EyeLike", "Range", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    "Bernoulli",
})  # fmt: skip
"""Their result is made anew by every run, though it depends on shapes and numbers only."""


@operator("ConstantOfShape")
def _constant_of_shape(call: Call, shape: Tensor) -> Tensor:
    value = call.get("value")
    if value is None:
        return torch.zeros(shape.tolist(), dtype=call.dtype_of(onnx.TensorProto.FLOAT), device=shape.device)
    number = numpy_helper.to_array(value).reshape(-1)[0].item()
    return torch.full(shape.tolist(), number, dtype=call.dtype_of(value.data_type), device=shape.device)


@operator("Range")
def _range(_: Call, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype, device=start.device)


@operator("EyeLike")
def _eye_like(call: Call, x: Tensor) -> Tensor:
    dtype = call.dtype_of(call.attributes["dtype"]) if "dtype" in call.attributes else x.dtype
    if not call.get("k", 0):
        return torch.eye(x.shape[0], x.shape[1], dtype=dtype, device=x.device)
    ones = torch.ones(list(x.shape), dtype=dtype, device=x.device)
    offset = call.attributes["k"]
    return torch.triu(torch.tril(ones, offset), offset)


@operator("RandomNormal", "RandomNormalLike")
def _random_normal(call: Call, like: Tensor | None = None) -> Tensor:
    shape, dtype, device = _random_type(call, like)
    noise = torch.randn(shape, dtype=dtype, device=device)
    return torch.add(torch.mul(noise, call.get("scale", 1.0)), call.get("mean", 0.0))


@operator("RandomUniform", "RandomUniformLike")
def _random_uniform(call: Call, like: Tensor | None = None) -> Tensor:
    shape, dtype, device = _random_type(call, like)
    low, high = call.get("low", 0.0), call.get("high", 1.0)
    return torch.add(torch.mul(torch.rand(shape, dtype=dtype, device=device), high - low), low)


@operator("Bernoulli")
def _bernoulli(call: Call, chance: Tensor) -> Tensor:
    drawn = torch.bernoulli(chance)
    return drawn.to(call.dtype_of(call.attributes["dtype"])) if "dtype" in call.attributes else drawn


def _random_type(call: Call, like: Tensor | None) -> tuple[list[int], Any, Any]:
    number = call.get("dtype", onnx.TensorProto.FLOAT)
    if like is None:
        return list(call.attributes["shape"]), call.dtype_of(number), None
    dtype = call.dtype_of(number) if "dtype" in call.attributes else like.dtype
    return list(like.shape), dtype, like.device
