"""Local response normalisation by an average over channels and square roots in place of a power.

y = x / (k + alpha mean)^beta, where mean is that of x^2 over ``size`` neighbouring channels (Krizhevsky, Sutskever and
Hinton 2012, "ImageNet classification with deep convolutional neural networks"; ONNX divides alpha by the size). A power
is computed element by element with pow(); for beta = 3/4 it is sqrt(d) sqrt(sqrt(d)), for 1/2 sqrt(d).
"""

from __future__ import annotations

import numpy as np

from .draft import Draft
from .pattern import Match, View

__all__ = ["apply", "find"]

_ROOTS = (0.5, 0.75)


def find(view: View) -> list[Match]:
    """Every such layer on images of float32 whose power is made of square roots."""
    found = []
    for layer in view.live("LRN"):
        shape, size = view.shape(layer.outputs[0]), view.attribute(layer, "size")
        beta = _given(view.attribute(layer, "beta"), 0.75)
        fits = shape is not None and len(shape) == 4 and size % 2 and any(np.isclose(beta, root) for root in _ROOTS)
        if not fits or view.dtype(layer.outputs[0]) != "float":
            continue
        numbers = {
            "alpha": _given(view.attribute(layer, "alpha"), 1e-4),
            "beta": beta,
            "bias": _given(view.attribute(layer, "bias"), 1.0),
            "size": float(size),
        }
        found.append(view.match([layer.index], layer.outputs[0], [layer.node.input[0]], numbers=numbers))
    return found


def _given(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def apply(draft: Draft, view: View, match: Match) -> None:
    """Squares, their average over neighbouring channels, and square roots."""
    (source,) = match.reads
    shape = view.shape(source)
    assert shape is not None  # noqa: S101  # the match needed it
    batch, channels, height, width = shape
    size = int(match.numbers["size"])
    nodes = [draft.node("Mul", [source, source])]

    def then(operator: str, *more: str, **attributes: object) -> str:
        nodes.append(draft.node(operator, [nodes[-1].output[0], *more], **attributes))
        return str(nodes[-1].output[0])

    def number(value: float, stem: str) -> str:
        return draft.constant(np.array(value, dtype=np.float32), stem)

    def target(*sizes: int) -> str:
        return draft.constant(np.array(sizes, dtype=np.int64), "lrn_shape")

    then("Reshape", target(batch, 1, channels, height * width))
    reach = (size - 1) // 2
    then("AveragePool", kernel_shape=[size, 1], pads=[reach, 0, reach, 0], count_include_pad=1)
    then("Reshape", target(batch, channels, height, width))
    then("Mul", number(match.numbers["alpha"], "lrn_alpha"))
    then("Add", number(match.numbers["bias"], "lrn_bias"))
    root = then("Sqrt")
    if np.isclose(match.numbers["beta"], 0.75):
        then("Sqrt")
        root = then("Mul", root)
    nodes.append(draft.node("Div", [source, root], match.value))
    draft.redefine(match.value, nodes)
