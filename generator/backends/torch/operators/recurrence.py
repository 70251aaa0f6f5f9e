"""Recurrent layers, as PyTorch's own."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

from typing import Any

import torch

from .call import Call, Tensor, padded
from .registry import operator

__all__: list[str] = []

_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
"""Where ONNX keeps the gates that PyTorch has in this order (input, forget, cell, output; reset, update, new)."""

_CUDNN_MODES = {"LSTM": 2, "GRU": 3}
"""cuDNN's numbers (``cudnnRNNMode_t``)."""


@operator("LSTM")
def _lstm(call: Call, x: Tensor, w: Tensor, r: Tensor, *rest: Tensor | None) -> Any:
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
def _gru(call: Call, x: Tensor, w: Tensor, r: Tensor, *rest: Tensor | None) -> Any:
    bias, lengths, hidden = padded(rest, 3)
    _check(call, x, lengths)
    if not call.flag("linear_before_reset") and bias is not None:
        raise call.refuse("that resets before the linear part")
    weights = _weights(call, w, r, bias)
    state = _state(call, x, w, hidden)
    two = w.shape[0] == 2
    y, last = torch.gru(x, state, weights, bias is not None, 1, 0.0, False, two, False)  # noqa: FBT003
    return _directions(y, w.shape[0]), last


def _check(call: Call, x: Tensor, lengths: Tensor | None) -> None:
    if call.get("direction", "forward") == "reverse":
        raise call.refuse("in the reverse direction alone")
    if call.get("layout", 0) or call.get("clip") is not None or call.get("activations") is not None:
        raise call.refuse("with a layout, a clip or activations of its own")
    if lengths is not None and any(length != x.shape[0] for length in lengths.tolist()):
        raise call.refuse("with sequences of different lengths")


def _state(call: Call, x: Tensor, w: Tensor, given: Tensor | None) -> Tensor:
    if given is not None:
        return given
    size = call.attributes["hidden_size"]
    return torch.zeros([w.shape[0], x.shape[1], size], dtype=x.dtype, device=x.device)


def _weights(call: Call, w: Tensor, r: Tensor, bias: Tensor | None) -> list[Tensor]:
    """For each direction the weights of inputs and of states, and both biases where there are any."""
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
    """Let weights lie in one piece of memory, as cuDNN wants them; else PyTorch copies them there in every call."""
    with torch._C.DisableTorchFunctionSubclass(), torch._C.DisableTorchFunction():  # noqa: SLF001  # never recorded
        flatten = torch._cudnn_rnn_flatten_weight  # noqa: SLF001  # as torch.nn.LSTM does
        directions = w.shape[0]
        flatten(weights, len(weights) // directions, w.shape[2], mode, size, 0, 1, False, directions == 2)  # noqa: FBT003


def _directions(y: Tensor, count: int) -> Tensor:
    """ONNX has the directions on an axis of their own, before the batch."""
    steps, batch, width = y.shape
    return torch.permute(torch.reshape(y, [steps, batch, count, width // count]), [0, 2, 1, 3])
