"""Which function computes which operator.

Each is called with the ``Call`` and the node's inputs (None where one is left out), all of them real tensors, and
returns its output, or a tuple of its outputs. It is written in plain PyTorch: what it calls is recorded
(``recorder``). Numbers that it reads from a tensor (a shape, axes) become part of what is recorded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

__all__ = ["Operator", "elementwise", "operator", "operators"]

Operator = Callable[..., Any]

_MODULES = (
    "arithmetic", "control", "convolution", "elements", "generation", "indexing", "linear", "normalisation", "pooling",
    "quantisation", "recurrence", "reduction", "resizing", "shape",
)  # fmt: skip
_OPERATORS: dict[str, Operator] = {}


def operator(*names: str) -> Callable[[Operator], Operator]:
    """Register a function for operators of ONNX's own domain."""

    def register(function: Operator) -> Operator:
        for name in names:
            _OPERATORS[name] = function
        return function

    return register


def elementwise(name: str, function: Callable[..., Any]) -> None:
    """Register a function of PyTorch that is an operator as it stands, without attributes."""
    _OPERATORS[name] = lambda _, *inputs: function(*inputs)


@cache
def operators() -> Mapping[str, Operator]:
    """ONNX's own operators by name, once every module that registers some was imported."""
    for module in _MODULES:
        importlib.import_module(f".{module}", __package__)
    return _OPERATORS
