"""Normalisations, softmax, recurrent layers, and integers that stand for real numbers.

Integer products are computed in float64, which represents all their sums exactly: PyTorch lacks an integer
convolution, and its integer matrix product is slower.
"""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import math
from typing import Any

import onnx
import torch
from torch.nn import functional

from .arguments import Tensor, TorchCall, operator, padded
from .images import convolve

_SOFTMAX_OF_ONE_AXIS = 13
"""First opset at which softmax is over one axis, not over all from it on."""


@operator("BatchNormalization")
def _batch_norm(call: TorchCall, x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor) -> Tensor:  # noqa: PLR0917
    if call.flag("training_mode") or any(call.wanted[1:]):
        raise call.refuse("in training mode")
    return functional.batch_norm(x, mean, var, scale, shift, False, 0.0, call.get("epsilon", 1e-5))  # noqa: FBT003


@operator("InstanceNormalization")
def _instance_norm(call: TorchCall, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.instance_norm(x, scale, shift, None, None, True, 0.0, call.get("epsilon", 1e-5), True)  # noqa: FBT003


@operator("LayerNormalization")
def _layer_norm(call: TorchCall, x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Any:
    shape = list(x.shape[call.get("axis", -1) :])
    scale = _whole(scale, shape)
    shift = None if shift is None else _whole(shift, shape)
    epsilon = call.get("epsilon", 1e-5)
    if not call.has(1) and not call.has(2):
        return torch.layer_norm(x, shape, scale, shift, epsilon)
    return torch.native_layer_norm(x, shape, scale, shift, epsilon)


@operator("RMSNormalization")
def _rms_norm(call: TorchCall, x: Tensor, scale: Tensor) -> Tensor:
    shape = list(x.shape[call.get("axis", -1) :])
    return torch.rms_norm(x, shape, _whole(scale, shape), call.get("epsilon", 1e-5))


@operator("GroupNormalization")
def _group_norm(call: TorchCall, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute a GroupNormalization; before opset 21, scale and shift belong to groups instead of channels."""
    groups = call.attributes["num_groups"]
    if call.opset < 21:
        each = x.shape[1] // groups
        scale, shift = scale.repeat_interleave(each), shift.repeat_interleave(each)
    return torch.group_norm(x, groups, scale, shift, call.get("epsilon", 1e-5))


@operator("LRN")
def _local_response_norm(call: TorchCall, x: Tensor) -> Tensor:
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
def _lp_norm(call: TorchCall, x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, call.get("p", 2), call.get("axis", -1), True)  # noqa: FBT003
    return torch.div(x, norm)


@operator("MeanVarianceNormalization")
def _mean_variance_norm(call: TorchCall, x: Tensor) -> Tensor:
    axes = call.get("axes", [0, 2, 3])
    centred = torch.sub(x, torch.mean(x, axes, True))  # noqa: FBT003
    deviation = torch.sqrt(torch.mean(torch.square(centred), axes, True))  # noqa: FBT003
    return torch.div(centred, torch.add(deviation, 1e-9))


@operator("Softmax", "LogSoftmax")
def _softmax(call: TorchCall, x: Tensor) -> Tensor:
    softmax = torch.softmax if call.op_type == "Softmax" else torch.log_softmax
    if call.opset >= _SOFTMAX_OF_ONE_AXIS:
        return softmax(x, call.get("axis", -1))
    axis = call.get("axis", 1) % max(x.ndim, 1)
    if math.prod(x.shape[axis + 1 :]) == 1:
        return softmax(x, axis)
    return softmax(x.reshape([math.prod(x.shape[:axis]), -1]), 1).reshape(x.shape)


@operator("Hardmax")
def _hardmax(call: TorchCall, x: Tensor) -> Tensor:
    if call.opset < _SOFTMAX_OF_ONE_AXIS:
        raise call.refuse(f"of opset {call.opset}")
    axis = call.get("axis", -1)
    first = torch.argmax(x, axis, True)  # noqa: FBT003
    return torch.scatter(torch.zeros_like(x), axis, first, 1.0)


def _whole(value: Tensor, shape: list[int]) -> Tensor:
    """Return a scale or shift over all elements that are normalised together."""
    return value if list(value.shape) == shape else value.broadcast_to(shape)


_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
"""ONNX's positions of the gates in PyTorch's order (input, forget, cell, output; reset, update, new)."""

_CUDNN_MODES = {"LSTM": 2, "GRU": 3}
"""cuDNN's numbers (``cudnnRNNMode_t``)."""


@operator("LSTM")
def _lstm(call: TorchCall, x: Tensor, w: Tensor, r: Tensor, *rest: Tensor | None) -> Any:
    bias, lengths, hidden, cell, peepholes = padded(rest, 5)
    _check(call, x, lengths)
    if peepholes is not None or call.flag("input_forget"):
        raise call.refuse("with peepholes or coupled gates")
    states = [_state(call, x, w, state) for state in (hidden, cell)]
    weights = _weights(call, w, r, bias)
    two = w.shape[0] == 2
    y, *last = torch.lstm(x, states, weights, bias is not None, 1, 0.0, False, two, False)  # noqa: FBT003
    return (_directions(y, w.shape[0]), *last)


@operator("GRU")
def _gru(call: TorchCall, x: Tensor, w: Tensor, r: Tensor, *rest: Tensor | None) -> Any:
    bias, lengths, hidden = padded(rest, 3)
    _check(call, x, lengths)
    if not call.flag("linear_before_reset") and bias is not None:
        raise call.refuse("that resets before the linear part")
    weights = _weights(call, w, r, bias)
    state = _state(call, x, w, hidden)
    two = w.shape[0] == 2
    y, last = torch.gru(x, state, weights, bias is not None, 1, 0.0, False, two, False)  # noqa: FBT003
    return _directions(y, w.shape[0]), last


def _check(call: TorchCall, x: Tensor, lengths: Tensor | None) -> None:
    if call.get("direction", "forward") == "reverse":
        raise call.refuse("in the reverse direction alone")
    if call.get("layout", 0) or call.get("clip") is not None or call.get("activations") is not None:
        raise call.refuse("with a layout, a clip or activations of its own")
    if lengths is not None and any(length != x.shape[0] for length in lengths.tolist()):
        raise call.refuse("with sequences of different lengths")


def _state(call: TorchCall, x: Tensor, w: Tensor, initial_state: Tensor | None) -> Tensor:
    if initial_state is not None:
        return initial_state
    size = call.attributes["hidden_size"]
    return torch.zeros([w.shape[0], x.shape[1], size], dtype=x.dtype, device=x.device)


def _weights(call: TorchCall, w: Tensor, r: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Return for each direction the weights of inputs and of states, and both biases if present."""
    size = call.attributes["hidden_size"]
    order = _GATES[call.op_type]

    def sorted_gates(values: Tensor) -> Tensor:
        return torch.cat([torch.narrow(values, 0, size * gate, size) for gate in order])

    weights = []
    for direction in range(w.shape[0]):
        weights += [sorted_gates(w[direction]), sorted_gates(r[direction])]
        if bias is not None:
            weights += [sorted_gates(part) for part in torch.chunk(bias[direction], 2)]
    if w.is_cuda and all(call.constant[1:3]):
        _join(weights, w, size, _CUDNN_MODES[call.op_type])
    return weights


def _join(weights: list[Tensor], w: Tensor, size: int, mode: int) -> None:
    """Move weights to one block of memory for cuDNN; otherwise PyTorch copies them in every call."""
    with torch._C.DisableTorchFunctionSubclass(), torch._C.DisableTorchFunction():  # noqa: SLF001  # never recorded
        flatten = torch._cudnn_rnn_flatten_weight  # noqa: SLF001  # as torch.nn.LSTM does
        directions = w.shape[0]
        flatten(weights, len(weights) // directions, w.shape[2], mode, size, 0, 1, False, directions == 2)  # noqa: FBT003


def _directions(y: Tensor, count: int) -> Tensor:
    """Move the directions to a separate axis before the batch, as ONNX requires."""
    steps, batch, width = y.shape
    return torch.permute(torch.reshape(y, [steps, batch, count, width // count]), [0, 2, 1, 3])


_NARROW = frozenset({
    onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.INT16, onnx.TensorProto.UINT16,
})  # fmt: skip


@operator("QuantizeLinear")
def _quantize(call: TorchCall, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
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
def _dequantize(call: TorchCall, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    scale = _spread(call, scale, x)
    return _dequantized(x, scale, None if zero is None else _spread(call, zero, x))


def _dequantized(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """In float32 at least: the difference of two bytes need not be exact in a narrower type."""
    wide = scale.dtype if scale.dtype == torch.float64 else torch.float32
    values = x.to(wide)
    if zero is not None:
        values = torch.sub(values, zero.to(wide))
    return torch.mul(values, scale.to(wide)).to(scale.dtype)


def _spread(call: TorchCall, value: Tensor, x: Tensor) -> Tensor:
    """Return a scale or zero point in a shape that fits the tensor: one for all, one per slice, or one per block."""
    if value.numel() == 1:
        return value.reshape([])
    axis = call.get("axis", 1) % x.ndim
    if value.ndim == 1:
        return value.reshape([-1 if dimension == axis else 1 for dimension in range(x.ndim)])
    block = call.get("block_size", 0)
    if not block:
        return value
    return torch.narrow(torch.repeat_interleave(value, block, axis), axis, 0, x.shape[axis])


@operator("DynamicQuantizeLinear")
def _dynamic_quantize(_: TorchCall, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
        zero = zero.reshape([-1 if dimension == axis % x.ndim else 1 for dimension in range(x.ndim)])
    return torch.sub(values, zero.to(torch.float64))


@operator("MatMulInteger")
def _matmul_integer(
    _: TorchCall, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    product = torch.matmul(_centred(a, a_zero, axis=-2), _centred(b, b_zero, axis=-1))
    return product.to(torch.int32)


@operator("ConvInteger")
def _conv_integer(
    call: TorchCall, x: Tensor, weight: Tensor, x_zero: Tensor | None = None, weight_zero: Tensor | None = None
) -> Tensor:
    product = convolve(call, _centred(x, x_zero, axis=1), _centred(weight, weight_zero, axis=0))
    return product.to(torch.int32)


@operator("QLinearMatMul")
def _qlinear_matmul(_: TorchCall, *inputs: Tensor) -> Tensor:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    product = torch.matmul(_centred(a, a_zero, axis=-2), _centred(b, b_zero, axis=-1))
    real = torch.mul(product, torch.mul(a_scale.to(torch.float64), b_scale.to(torch.float64)))
    return _quantized(real, y_scale.to(torch.float64), y_zero, y_zero.dtype)


@operator("QLinearConv")
def _qlinear_conv(call: TorchCall, *inputs: Any) -> Tensor:
    x, x_scale, x_zero, weight, weight_scale, weight_zero, y_scale, y_zero, *rest = inputs
    bias = rest[0].to(torch.float64) if rest and rest[0] is not None else None
    product = convolve(call, _centred(x, x_zero, axis=1), _centred(weight, weight_zero, axis=0), bias)
    scale = torch.mul(x_scale.to(torch.float64), weight_scale.to(torch.float64))
    if scale.numel() > 1:
        scale = scale.reshape([-1, *[1] * (x.ndim - 2)])
    return _quantized(torch.mul(product, scale), y_scale.to(torch.float64), y_zero, y_zero.dtype)
