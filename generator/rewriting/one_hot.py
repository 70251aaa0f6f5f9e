"""A product of a matrix with rows that are one-hot: it picks rows of the matrix, and Gather does so without a sum.

Two spellings: ``OneHot(indices) @ W``, and ``Cast(indices == 0..n-1) @ W``.
"""

from __future__ import annotations

import numpy as np

from ...bricks.layer import Layer
from .draft import Draft
from .pattern import Match, View

__all__ = ["apply", "find"]


def find(view: View) -> list[Match]:
    """Every such product of a model."""
    return [match for product in view.live("MatMul", "Gemm") if (match := _of(view, product)) is not None]


def _of(view: View, product: Layer) -> Match | None:
    matrix = view.weight(product, 1)
    if matrix is None or matrix.type is None or len(matrix.type.shape) != 2 or not _plain(view, product):
        return None
    layers = {product.index}
    rows = product.node.input[0]
    while (passed := view.maker(rows, "Cast", "Identity")) is not None:
        layers.add(passed.index)
        rows = passed.node.input[0]
    made = view.maker(rows, "OneHot", "Equal")
    if made is None:
        return None
    layers.add(made.index)
    indices = _one_hot(view, made, matrix.type.shape[0]) if made.op_type == "OneHot" else _equal(view, made)
    if indices is None or view.dtype(indices) not in {"int32", "int64"}:
        return None
    return view.match(layers, product.outputs[0], [indices, matrix.value], form=made.op_type)


def _plain(view: View, product: Layer) -> bool:
    """Whether a Gemm is a product and no more."""
    if product.op_type == "MatMul":
        return True
    alone = len([name for name in product.node.input if name]) == 2
    scaled = view.attribute(product, "alpha") not in {None, 1.0}
    return alone and not scaled and not view.attribute(product, "transA") and not view.attribute(product, "transB")


def _one_hot(view: View, layer: Layer, depth: int) -> str | None:
    values, axis = view.array(layer, 2), view.attribute(layer, "axis")
    if view.number(layer, 1) != depth or values is None or values.tolist() != [0, 1] or axis not in {None, -1}:
        return None
    return str(layer.node.input[0])


def _equal(view: View, layer: Layer) -> str | None:
    """The indices that are compared with 0, 1, 2, ... along the last axis."""
    for slot in (0, 1):
        found = view.array(layer, slot)
        counted = found is not None and found.ndim >= 1 and np.array_equal(found.ravel(), np.arange(found.shape[-1]))
        shape = view.shape(layer.node.input[1 - slot])
        if counted and shape and shape[-1] == 1 and found is not None and found.ndim <= len(shape):
            return str(layer.node.input[1 - slot])
    return None


def apply(draft: Draft, view: View, match: Match) -> None:
    """Pick the rows."""
    indices, matrix = match.reads
    nodes = []
    if match.form == "Equal":
        shape = view.shape(indices)
        assert shape is not None  # noqa: S101  # the match needed it
        target = draft.constant(np.array(shape[:-1], dtype=np.int64), "rows")
        nodes.append(draft.node("Reshape", [indices, target]))
        indices = nodes[-1].output[0]
    nodes.append(draft.node("Gather", [matrix, indices], match.value, axis=0))
    draft.redefine(match.value, nodes)
