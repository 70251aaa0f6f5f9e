"""Local response normalisation by a convolution and square roots in place of sums and powers element by element.

y = x / d^beta with d = k + alpha / size sum, where the sum is that of x^2 over ``size`` neighbouring channels
(Krizhevsky, Sutskever and Hinton 2012, "ImageNet classification with deep convolutional neural networks", as ONNX has
it). d is a convolution of 1 x 1 whose weights are alpha / size along a band and 0 elsewhere: that multiplies by many
zeros, at the rate of a matrix product. For beta = 3/4 the power is sqrt(d) sqrt(sqrt(d)), for 1/2 sqrt(d).
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
    """Squares, their weighted sum over neighbouring channels, and square roots."""
    (source,) = match.reads
    shape = view.shape(source)
    assert shape is not None  # noqa: S101  # the match needed it
    channels, size = shape[1], int(match.numbers["size"])
    apart = np.abs(np.subtract.outer(np.arange(channels), np.arange(channels)))
    band = np.where(apart <= size // 2, match.numbers["alpha"] / size, 0.0).astype(np.float32)
    weights = draft.constant(band.reshape(channels, channels, 1, 1), "lrn_band")
    bias = draft.constant(np.full(channels, match.numbers["bias"], dtype=np.float32), "lrn_bias")
    square = draft.node("Mul", [source, source])
    divisor = draft.node("Conv", [square.output[0], weights, bias], kernel_shape=[1, 1])
    nodes = [square, divisor, draft.node("Sqrt", [divisor.output[0]])]
    root = nodes[-1].output[0]
    if np.isclose(match.numbers["beta"], 0.75):
        nodes.append(draft.node("Sqrt", [root]))
        nodes.append(draft.node("Mul", [root, nodes[-1].output[0]]))
    draft.redefine(match.value, [*nodes, draft.node("Div", [source, nodes[-1].output[0]], match.value)])
