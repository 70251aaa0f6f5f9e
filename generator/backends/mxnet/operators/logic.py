"""Comparisons, truth values, and the choice between two tensors."""

from __future__ import annotations

import math
from typing import Any

from .node import Node, Symbol, operator

__all__: list[str] = []

_COMPARISONS = {
    "Equal": "equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "Less": "less",
    "LessOrEqual": "less_equal",
}  # fmt: skip
_CONNECTIVES = {"And": "multiply", "Or": "add", "Xor": "not_equal"}
"""The same on truth values; MXNet's own connectives do not repeat any."""


@operator(*_COMPARISONS, *_CONNECTIVES)
def _pair(node: Node) -> Symbol:
    name = {**_COMPARISONS, **_CONNECTIVES}[node.op]
    return node.numpy(name, node.symbol(0), node.symbol(1))


@operator("Not")
def _not(node: Node) -> Symbol:
    return node.numpy("logical_not", node.symbol())


@operator("Where")
def _where(node: Node) -> Symbol:
    return node.numpy("where", node.symbol(0), _choice(node, 1, 2), _choice(node, 2, 1))


def _choice(node: Node, index: int, other: int) -> Any:
    """A constant of one element as a parameter, unless both are."""
    array = node.constant(index)
    alone = array is not None and array.size == 1 and array.ndim <= max(node.rank(0), node.rank(other))
    if array is None or not alone or not math.isfinite(array.item()) or node.constant(other) is not None:
        return node.symbol(index)
    return float(array.item()) if array.dtype.kind == "f" else node.symbol(index)
