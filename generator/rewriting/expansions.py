"""Values that are repeated along an axis for operators that would repeat them by themselves, by broadcasting."""

from __future__ import annotations

import numpy as np

from ...bricks.layer import Layer
from .draft import Draft
from .pattern import Match, View

__all__ = ["apply", "find"]

_BROADCASTING = frozenset(
    {"Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Or",
     "Pow", "Sub", "Sum", "Where", "Xor"}
)  # fmt: skip


def find(view: View) -> list[Match]:
    """Every Expand whose readers all broadcast, and come to the same shape without it."""
    found = []
    for layer in view.live("Expand"):
        source, value = layer.node.input[0], layer.outputs[0]
        readers = view.readers(value)
        if not view.is_output(value) and readers and all(_same_without(view, one, value, source) for one in readers):
            found.append(view.match([layer.index], value, [source]))
    return found


def _same_without(view: View, reader: Layer, value: str, source: str) -> bool:
    """Whether a reader makes the same shape of what was not repeated."""
    if reader.op_type not in _BROADCASTING or reader.domain:
        return False
    shapes = [view.shape(source if name == value else name) for name in reader.node.input if name]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return False
    return np.broadcast_shapes(*known) == view.shape(reader.outputs[0])


def apply(draft: Draft, _view: View, match: Match) -> None:
    """Hand on what is not repeated."""
    draft.redefine(match.value, [draft.node("Identity", list(match.reads), match.value)])
    stale = [one for one in draft.model.graph.value_info if one.name == match.value]
    for one in stale:
        draft.model.graph.value_info.remove(one)  # its shape is another one now
