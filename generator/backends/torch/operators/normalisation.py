"""Normalisations, and softmax."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from .call import Call, Tensor
from .registry import operator

__all__: list[str] = []

_SOFTMAX_OF_ONE_AXIS = 13
"""First opset at which softmax is over one axis, not over all from it on."""


@operator("BatchNormalization")
def _batch_norm(call: Call, x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor) -> Tensor:  # noqa: PLR0917
    if call.flag("training_mode") or any(call.wanted[1:]):
        raise call.refuse("in training mode")
    return functional.batch_norm(x, mean, var, scale, shift, False, 0.0, call.get("epsilon", 1e-5))  # noqa: FBT003


@operator("InstanceNormalization")
def _instance_norm(call: Call, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.instance_norm(x, scale, shift, None, None, True, 0.0, call.get("epsilon", 1e-5), True)  # noqa: FBT003


@operator("LayerNormalization")
def _layer_norm(call: Call, x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Any:
    shape = list(x.shape[call.get("axis", -1) :])
    scale = _whole(scale, shape)
    shift = None if shift is None else _whole(shift, shape)
    epsilon = call.get("epsilon", 1e-5)
    if not call.has(1) and not call.has(2):
        return torch.layer_norm(x, shape, scale, shift, epsilon)
    return torch.native_layer_norm(x, shape, scale, shift, epsilon)


@operator("RMSNormalization")
def _rms_norm(call: Call, x: Tensor, scale: Tensor) -> Tensor:
    shape = list(x.shape[call.get("axis", -1) :])
    return torch.rms_norm(x, shape, _whole(scale, shape), call.get("epsilon", 1e-5))


@operator("GroupNormalization")
def _group_norm(call: Call, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Before opset 21, scale and shift are those of groups, not of channels."""
    groups = call.attributes["num_groups"]
    if call.opset < 21:
        each = x.shape[1] // groups
        scale, shift = scale.repeat_interleave(each), shift.repeat_interleave(each)
    return torch.group_norm(x, groups, scale, shift, call.get("epsilon", 1e-5))


@operator("LRN")
def _local_response_norm(call: Call, x: Tensor) -> Tensor:
    size = call.attributes["size"]
    if size % 2 == 0:
        raise call.refuse("over an even number of channels, which PyTorch centres in another way")
    alpha, beta, bias = call.get("alpha", 1e-4), call.get("beta", 0.75), call.get("bias", 1.0)
    if x.dtype in {torch.float32, torch.float64}:
        return functional.local_response_norm(x, size, alpha, beta, bias)
    # PyTorch's own function uses a pool of three axes, which has no kernel for narrow types.
    squares = torch.reshape(torch.square(x), [x.shape[0], 1, x.shape[1], -1])
    means = functional.avg_pool2d(squares, [size, 1], 1, [size // 2, 0])
    return torch.div(x, torch.pow(torch.add(torch.mul(torch.reshape(means, x.shape), alpha), bias), beta))


@operator("LpNormalization")
def _lp_norm(call: Call, x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, call.get("p", 2), call.get("axis", -1), True)  # noqa: FBT003
    return torch.div(x, norm)


@operator("MeanVarianceNormalization")
def _mean_variance_norm(call: Call, x: Tensor) -> Tensor:
    axes = call.get("axes", [0, 2, 3])
    centred = torch.sub(x, torch.mean(x, axes, True))  # noqa: FBT003
    deviation = torch.sqrt(torch.mean(torch.square(centred), axes, True))  # noqa: FBT003
    return torch.div(centred, torch.add(deviation, 1e-9))


@operator("Softmax", "LogSoftmax")
def _softmax(call: Call, x: Tensor) -> Tensor:
    softmax = torch.softmax if call.op_type == "Softmax" else torch.log_softmax
    if call.opset >= _SOFTMAX_OF_ONE_AXIS:
        return softmax(x, call.get("axis", -1))
    axis = call.get("axis", 1) % max(x.ndim, 1)
    if math.prod(x.shape[axis + 1 :]) == 1:
        return softmax(x, axis)
    return softmax(x.reshape([math.prod(x.shape[:axis]), -1]), 1).reshape(x.shape)


@operator("Hardmax")
def _hardmax(call: Call, x: Tensor) -> Tensor:
    if call.opset < _SOFTMAX_OF_ONE_AXIS:
        raise call.refuse(f"of opset {call.opset}")
    axis = call.get("axis", -1)
    first = torch.argmax(x, axis, True)  # noqa: FBT003
    return torch.scatter(torch.zeros_like(x), axis, first, 1.0)


def _whole(value: Tensor, shape: list[int]) -> Tensor:
    """A scale or shift over all elements that are normalised together."""
    return value if list(value.shape) == shape else value.broadcast_to(shape)
