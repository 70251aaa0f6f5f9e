"""Additions before a layer normalisation, written so that ONNX Runtime does not fuse both.

It fuses Add with LayerNormalization to SkipLayerNormalization, whose kernel on CPUs takes several times as long as the
operators that it stands for. Sum of two values is the same function, and no part of the pattern.
"""

from __future__ import annotations

from ...bricks.layer import Layer, Role
from .draft import Draft
from .pattern import Match, View

__all__ = ["apply", "find", "keep_apart"]


def find(view: View) -> list[Match]:
    """Every addition of two values of one shape that a layer normalisation reads."""
    found = []
    for layer in view.live("Add"):
        value = layer.outputs[0]
        normalising = view.readers(value, "LayerNormalization")
        if normalising and _adds(view, layer):
            found.append(view.match({layer.index, *(one.index for one in normalising[:1])}, value, layer.node.input))
    return found


def _adds(view: View, layer: Layer) -> bool:
    """Whether two computed values of one shape are added."""
    shapes = {view.shape(name) for name in (*layer.node.input, layer.outputs[0])}
    return all(one.role is Role.ACTIVATION for one in layer.operands) and len(shapes) == 1 and None not in shapes


def apply(draft: Draft, _view: View, match: Match) -> None:
    """Add by Sum."""
    draft.redefine(match.value, [draft.node("Sum", match.reads, match.value)])


def keep_apart(draft: Draft, view: View, value: str) -> None:
    """The same for a value that a normalisation comes to read."""
    layer = view.maker(value, "Add")
    if layer is not None and _adds(view, layer) and draft.maker(value).op_type == "Add":
        draft.redefine(value, [draft.node("Sum", layer.node.input, value)])
