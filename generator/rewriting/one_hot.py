"""A product of a matrix with rows that are one-hot: it picks rows of the matrix, and Gather does so without a sum.

Spellings: ``OneHot(indices) @ W``, ``Cast(indices == 0..n-1) @ W``, and constant rows: ``P @ x``, ``x @ P``, or a
convolution of 1 x 1 with P, where each row (column) of P has a single one among zeros.
"""

from __future__ import annotations

import numpy as np

from ...bricks.layer import Layer
from .draft import Draft
from .pattern import Array, Match, View

__all__ = ["apply", "find"]

_AXES = 2
_LARGEST = 1 << 22
"""Most elements of a matrix that is looked into."""


def find(view: View) -> list[Match]:
    """Every such product of a model."""
    products = view.live("MatMul", "Gemm", "Conv")
    return [match for one in products if (match := _of(view, one) or _picks(view, one)) is not None]


def _picks(view: View, product: Layer) -> Match | None:
    """A product with constant one-hot rows, and which element each of them picks."""
    if product.op_type == "Conv":
        filters = _filters(view, product)
        found = _picked(filters) if filters is not None else None
        return _pick(view, product, 0, 1, found)
    if not _plain(view, product):
        return None
    left, right = _matrix(view, product, 0), _matrix(view, product, 1)
    rank = len(view.shape(product.outputs[0]) or ())
    if left is not None:
        return _pick(view, product, 1, rank - 2, _picked(left))
    return _pick(view, product, 0, rank - 1, None if right is None else _picked(right.T))


def _pick(view: View, product: Layer, slot: int, axis: int, picked: list[int] | None) -> Match | None:
    if picked is None:
        return None
    numbers = {str(place): float(one) for place, one in enumerate(picked)}
    source = [product.node.input[slot]]
    return view.match([product.index], product.outputs[0], source, form=f"picks {axis}", numbers=numbers)


def _matrix(view: View, product: Layer, slot: int) -> Array | None:
    """A constant matrix by which something of its rank or more is multiplied."""
    operand, other = view.weight(product, slot), view.shape(product.node.input[1 - slot])
    if operand is None or operand.type is None or len(operand.type.shape) != _AXES or other is None:
        return None
    if len(other) < _AXES or not 1 < operand.type.elements <= _LARGEST:
        return None
    return view.content(product, slot)


def _filters(view: View, layer: Layer) -> Array | None:
    """The filters of a convolution of single pixels without a bias, as a matrix."""
    operand = view.weight(layer, 1)
    shapes = view.shape(layer.node.input[0]), view.shape(layer.outputs[0])
    if operand is None or operand.type is None or None in shapes or len(layer.operands) > 2:
        return None
    shape = operand.type.shape
    pixels = shapes[0][2:] == shapes[1][2:] and all(one == 1 for one in shape[2:])  # type: ignore[index]
    if not pixels or view.attribute(layer, "group") not in {None, 1} or not 1 < operand.type.elements <= _LARGEST:
        return None
    filters = view.content(layer, 1)
    return None if filters is None else filters.reshape(shape[0], -1)


def _picked(matrix: Array) -> list[int] | None:
    """Where each row has its one; None where a row is not one-hot."""
    if np.count_nonzero(matrix[0]) != 1 or not np.array_equal(np.count_nonzero(matrix, axis=1), np.ones(len(matrix))):
        return None
    places = matrix.argmax(axis=1)
    return [int(one) for one in places] if bool((matrix[np.arange(len(matrix)), places] == 1).all()) else None


def _of(view: View, product: Layer) -> Match | None:
    matrix = view.weight(product, 1)
    if (
        product.op_type == "Conv"
        or matrix is None
        or matrix.type is None
        or len(matrix.type.shape) != 2
        or not _plain(view, product)
    ):
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
        found = view.content(layer, slot)
        counted = found is not None and found.ndim >= 1 and np.array_equal(found.ravel(), np.arange(found.shape[-1]))
        shape = view.shape(layer.node.input[1 - slot])
        if counted and shape and shape[-1] == 1 and found is not None and found.ndim <= len(shape):
            return str(layer.node.input[1 - slot])
    return None


def apply(draft: Draft, view: View, match: Match) -> None:
    """Pick the rows."""
    if match.form.startswith("picks"):
        picked = np.array([match.numbers[str(place)] for place in range(len(match.numbers))], dtype=np.int64)
        reads = [*match.reads, draft.constant(picked, "picked")]
        draft.redefine(match.value, [draft.node("Gather", reads, match.value, axis=int(match.form.split()[1]))])
        return
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
