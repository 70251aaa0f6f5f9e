"""Which function computes which operator.

Each is called with the ``Call`` and the node's inputs (None where one is left out), all of them real tensors, and
returns its output, or a tuple of its outputs. It is written in plain PyTorch: what it calls is recorded
(``recorder``). Numbers that it reads from a tensor (a shape, axes) become part of what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Operator", "elementwise", "names", "operator", "registered"]

Operator = Callable[..., Any]

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


def registered(name: str) -> Operator | None:
    """The function of an operator, where its module was imported; None where there is none (see ``table``)."""
    return _OPERATORS.get(name)


def names() -> frozenset[str]:
    """The operators whose modules were imported."""
    return frozenset(_OPERATORS)
