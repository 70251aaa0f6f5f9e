"""Attention that is spelt out: softmax(scale Q K^T + mask) V over several heads (Vaswani et al. 2017, section 3.2).

Queries, keys and values are split into heads by a Reshape and transposed; numbers may scale either side of the product,
or the product itself, and the mask is added. How far the transpositions are spelt out in one or more does not matter.
What repeats keys for several queries, or masks by a choice (Where), is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...bricks.layer import Layer
from .draft import Draft
from .pattern import Match, View

__all__ = ["apply", "find"]

_HEADS_FIRST = (0, 2, 1, 3)
_TRANSPOSED = (0, 2, 3, 1)
"""Heads first, the width of a head before the tokens: a product with it is one with the transposed keys."""

_RANK = len(_HEADS_FIRST)

_LAST_BY_DEFAULT = 13
"""Opset since which Softmax is over the last axis where it does not say."""


@dataclass(frozen=True, slots=True)
class _Split:
    """A value of (batch, tokens, hidden), split into heads.

    Attributes:
        source: The value.
        shape: Batch, tokens, heads, width of a head.
        factor: What it was multiplied by.
    """

    source: str
    shape: tuple[int, ...]
    factor: float


def find(view: View) -> list[Match]:
    """Every attention of a model that is spelt out."""
    return [match for layer in view.live("Softmax") if (match := _around(view, layer)) is not None]


def _around(view: View, softmax: Layer) -> Match | None:
    """The attention that a Softmax is the middle of."""
    core, around = {softmax.index}, set[int]()
    scores = _scores(view, softmax.node.input[0], core) if _over_last(view, softmax) else None
    weighted = _only_reader(view, softmax.outputs[0], "MatMul")
    if scores is None or weighted is None or weighted.node.input[0] != softmax.outputs[0]:
        return None
    product, factor, mask = scores
    query = _split(view, product.node.input[0], _HEADS_FIRST, around)
    key = _split(view, product.node.input[1], _TRANSPOSED, around)
    value = _split(view, weighted.node.input[1], _HEADS_FIRST, around)
    turned = _only_reader(view, weighted.outputs[0], "Transpose")
    merged = None if turned is None else _only_reader(view, turned.outputs[0], "Reshape")
    if query is None or key is None or value is None or turned is None or merged is None:
        return None
    batch, tokens, heads, _ = query.shape
    alike = key.shape[:3] == value.shape[:3] and (key.shape[0], *key.shape[2:]) == (batch, heads, query.shape[3])
    made = (batch, tokens, heads * value.shape[3])
    if not alike or value.factor != 1.0 or _perm(view, turned) != _HEADS_FIRST or view.shape(merged.outputs[0]) != made:
        return None
    core |= {weighted.index, turned.index, merged.index}
    result = merged.outputs[0]
    if view.broken_by(core, result) or not _fits(view, mask, (batch, heads, tokens, key.shape[1])):
        return None  # what reads scores or probabilities needs them anyway
    reads = [query.source, key.source, value.source, *([mask] if mask else [])]
    numbers = {"heads": float(heads), "scale": factor * query.factor * key.factor}
    return view.match(core | around, result, reads, numbers=numbers)


def _over_last(view: View, softmax: Layer) -> bool:
    shape, axis = view.shape(softmax.outputs[0]), view.attribute(softmax, "axis")
    if axis is None:
        axis = -1 if dict(softmax.opsets).get("", 0) >= _LAST_BY_DEFAULT else 1
    return shape is not None and len(shape) == _RANK and axis in {-1, 3} and view.dtype(softmax.outputs[0]) == "float"


def _only_reader(view: View, value: str, operator: str) -> Layer | None:
    readers = view.readers(value)
    return readers[0] if len(readers) == 1 and readers[0].op_type == operator and not readers[0].domain else None


def _scores(view: View, value: str, layers: set[int]) -> tuple[Layer, float, str] | None:
    """The product that a value is, what scales it, and the mask that is added to it (empty for none)."""
    total = view.maker(value, "Add")
    if total is None:
        found = _scaled(view, value, layers)
        return None if found is None else (*found, "")
    for slot in (0, 1):
        members: set[int] = set()
        found = _scaled(view, total.node.input[slot], members)
        if found is not None:
            layers |= members | {total.index}
            return *found, total.node.input[1 - slot]
    return None


def _scaled(view: View, value: str, layers: set[int]) -> tuple[Layer, float] | None:
    """The product that a value is but for a factor, and that."""
    factor = 1.0
    while (scaling := _factor(view, value)) is not None:
        layer, value, one = scaling
        layers.add(layer.index)
        factor *= one
    product = view.maker(value, "MatMul")
    if product is None:
        return None
    layers.add(product.index)
    return product, factor


def _factor(view: View, value: str) -> tuple[Layer, str, float] | None:
    """A layer that multiplies or divides by one number: the layer, what it reads, and what by."""
    layer = view.maker(value, "Mul", "Div")
    if layer is None:
        return None
    for slot in (0, 1) if layer.op_type == "Mul" else (1,):
        number = view.number(layer, slot)
        if number:
            return layer, layer.node.input[1 - slot], number if layer.op_type == "Mul" else 1 / number
    return None


def _split(view: View, value: str, wanted: tuple[int, ...], layers: set[int]) -> _Split | None:
    """What was split into heads and transposed to make a value of four axes; None where it was made otherwise."""
    axes: tuple[int, ...] = (0, 1, 2, 3)
    factor = 1.0
    while True:
        scaling = _factor(view, value)
        turned = view.maker(value, "Transpose")
        if scaling is not None:
            layer, value, one = scaling
            factor *= one
        elif turned is not None:
            layer, value = turned, turned.node.input[0]
            perm = _perm(view, layer)
            if len(perm) != len(axes):
                return None
            axes = tuple(perm[axis] for axis in axes)
        else:
            break
        layers.add(layer.index)
    split = view.maker(value, "Reshape")
    shape = view.shape(value)
    if split is None or shape is None or len(shape) != len(axes) or axes != wanted:
        return None
    batch, tokens, heads, width = shape
    source = str(split.node.input[0])
    if view.shape(source) != (batch, tokens, heads * width):
        return None
    layers.add(split.index)
    return _Split(source, shape, factor)


def _perm(view: View, layer: Layer) -> tuple[int, ...]:
    return tuple(view.attribute(layer, "perm") or ())


def _fits(view: View, mask: str, scores: tuple[int, ...]) -> bool:
    """Whether a mask can be handed to the fused operator; none is as good."""
    if not mask:
        return True
    shape = view.shape(mask)
    if shape is None or len(shape) > len(scores) or view.dtype(mask) != "float":
        return False
    return all(one in {1, size} for one, size in zip(_padded(shape), scores, strict=True))


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (_RANK - len(shape)) + shape


def apply(draft: Draft, view: View, match: Match) -> None:
    """Write it as ONNX Runtime's MultiHeadAttention, which other runtimes do not know."""
    query, key, value, *masks = match.reads
    inputs, before = [query, key, value], []
    for mask in masks:
        shape, queries, keys = (view.shape(one) for one in (mask, query, key))
        assert shape is not None and queries is not None and keys is not None  # noqa: S101, PT018  # as ``find`` saw
        wanted = (*_padded(shape)[:2], queries[1], keys[1])
        if shape != wanted:
            before.append(draft.node("Expand", [mask, draft.constant(np.array(wanted, np.int64), "mask_shape")]))
        inputs += ["", "", before[0].output[0] if before else mask]
    heads, scale = int(match.numbers["heads"]), match.numbers["scale"]
    node = draft.node("MultiHeadAttention", inputs, match.value, domain="com.microsoft", num_heads=heads, scale=scale)
    draft.redefine(match.value, [*before, node])
