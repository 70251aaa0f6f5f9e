"""The arguments of an operator's function, and the registry of these functions.

Each function gets the ``TorchCall`` and the node's inputs as real tensors; a missing input is None. It returns its
output, or a tuple of outputs. It is plain PyTorch, and its calls are recorded (``GraphRecorder``). Numbers that it
reads from a tensor (a shape, axes) become part of the record. The fed values, which never change, decide branches and
loops.
"""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import onnx
import torch

from .....errors import UnsupportedBrick
from ...base import registering

Tensor: TypeAlias = torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TorchCall:
    """A node while it is translated.

    Attributes:
        op_type: Its operator.
        opset: Version of its operator set.
        attributes: Stated attributes; text is ``str``.
        wanted: For each output, True if anything may read it.
        constant: For each input, True if it depends on no input of the network.
        dtype_of: Maps ONNX's number of an element type to PyTorch's type; float32 maps to the computing type.
        body: Evaluates a subgraph of the node with values for its inputs; returns the values of its outputs.
    """

    op_type: str
    opset: int
    attributes: Mapping[str, Any]
    wanted: tuple[bool, ...]
    constant: tuple[bool, ...]
    dtype_of: Callable[[int], torch.dtype]
    body: Callable[[onnx.GraphProto, Sequence[Tensor]], list[Tensor]]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        return self.attributes.get(name, default)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return an attribute that is 0 or 1."""
        return bool(self.attributes.get(name, default))

    def ints(self, name: str, value: Tensor | None) -> list[int] | None:
        """Return integers that are an attribute at older opsets and an input at newer ones; None if missing."""
        if value is not None:
            return [int(each) for each in value.reshape(-1).tolist()]
        attribute = self.attributes.get(name)
        return None if attribute is None else [int(each) for each in attribute]

    def has(self, output: int) -> bool:
        """Return True if an output is wanted."""
        return output < len(self.wanted) and self.wanted[output]

    def refuse(self, why: str) -> UnsupportedBrick:
        """Return the error for a part that cannot be expressed."""
        return UnsupportedBrick(f"PyTorch has no {self.op_type} {why}")


def padded(inputs: Sequence[Tensor | None], count: int) -> list[Tensor | None]:
    """Return optional inputs, with None for missing ones at the end."""
    return [*inputs, *[None] * (count - len(inputs))]


Operator = Callable[..., Any]

_OPERATORS: dict[str, Operator] = {}


operator = registering(_OPERATORS)
"""Registers a function for operators of ONNX's own domain."""


def register(rows: Mapping[str, Operator]) -> None:
    """Register functions that are one expression each, by operator."""
    _OPERATORS.update(rows)


def elementwise(rows: Mapping[str, Callable[..., Any]]) -> None:
    """Register functions of PyTorch that directly implement operators without attributes."""
    register({name: lambda _, *inputs, function=function: function(*inputs) for name, function in rows.items()})


@cache
def operators() -> Mapping[str, Operator]:
    """ONNX's own operators by name, once every module that registers some was imported."""
    for module in ("elements", "images", "layers", "moves"):
        importlib.import_module(f".{module}", __package__)
    return _OPERATORS


@operator("If")
def _if(call: TorchCall, condition: Tensor) -> Any:
    branch = call.attributes["then_branch" if bool(condition.item()) else "else_branch"]
    return tuple(call.body(branch, ()))


@operator("Loop")
def _loop(call: TorchCall, trips: Tensor | None, condition: Tensor | None, *carried: Tensor) -> Any:
    """As many copies of the body as there are iterations."""
    state, scanned = list(carried), []
    going = condition is None or bool(condition.item())
    device = carried[0].device if carried else None
    step = 0
    while going and (trips is None or step < int(trips.item())):
        number = torch.tensor(step, dtype=torch.int64, device=device)
        again = torch.tensor(going, device=device)
        proceed, *results = call.body(call.attributes["body"], (number, again, *state))
        state, last = results[: len(state)], results[len(state) :]
        scanned.append(last)
        going = bool(proceed.item())
        step += 1
    if not scanned and len(call.wanted) > len(carried):
        raise call.refuse("that never runs but stacks results")
    return (*state, *(torch.stack(parts) for parts in zip(*scanned, strict=True)))
