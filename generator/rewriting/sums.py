"""Additions before a layer normalisation, written so that ONNX Runtime does not fuse both.

It fuses Add with LayerNormalization to SkipLayerNormalization, whose kernel on CPUs takes several times as long as the
operators that it stands for. Sum of two values is the same function, and no part of the pattern.
"""

from __future__ import annotations

from ...bricks.layer import Role
from .draft import Draft
from .pattern import Match, View

__all__ = ["apply", "find"]


def find(view: View) -> list[Match]:
    """Every addition of two values of one shape that a layer normalisation reads."""
    found = []
    for layer in view.live("Add"):
        value = layer.outputs[0]
        normalising = view.readers(value, "LayerNormalization")
        computed = all(one.role is Role.ACTIVATION for one in layer.operands)
        shapes = {view.shape(name) for name in (*layer.node.input, value)}
        if normalising and computed and len(shapes) == 1 and None not in shapes:
            found.append(view.match({layer.index, *(one.index for one in normalising[:1])}, value, layer.node.input))
    return found


def apply(draft: Draft, _view: View, match: Match) -> None:
    """Add by Sum."""
    draft.redefine(match.value, [draft.node("Sum", match.reads, match.value)])
