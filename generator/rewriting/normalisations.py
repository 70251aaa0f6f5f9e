"""Layer normalisation that is spelt out: (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon), then scale and shift.

Over the last axis (Ba, Kiros and Hinton 2016, "Layer Normalization").
"""

from __future__ import annotations

import numpy as np
from onnx import helper

from ...bricks.constants import element_number
from ...bricks.layer import Layer
from .draft import Draft
from .pattern import Match, View

__all__ = ["apply", "find"]

_OPSET = 17
"""ONNX has the operator since; ONNX Runtime takes it in any opset."""


def find(view: View) -> list[Match]:
    """Every layer normalisation of a model that is spelt out."""
    return [match for layer in view.live("Div", "Mul") if (match := _from_quotient(view, layer)) is not None]


def _from_quotient(view: View, quotient: Layer) -> Match | None:
    """The normalisation whose division by the deviation this layer is."""
    if len(quotient.node.input) != 2:
        return None
    first, second = quotient.node.input
    for numerator, divisor in ((first, second), (second, first)) if quotient.op_type == "Mul" else ((first, second),):
        layers = {quotient.index}
        spread = view.maker(divisor, "Sqrt")
        if quotient.op_type == "Mul":
            inverse = view.maker(divisor, "Reciprocal", "Div")
            if inverse is None or (inverse.op_type == "Div" and view.number(inverse, 0) != 1.0):
                continue
            layers.add(inverse.index)
            spread = view.maker(inverse.node.input[-1], "Sqrt")
        if spread is None:
            continue
        layers.add(spread.index)
        source = _centred(view, numerator, layers)
        epsilon = None if source is None else _variance(view, spread.node.input[0], source, layers)
        if source is not None and epsilon is not None:
            return _scaled(view, quotient.outputs[0], source, layers, epsilon)
    return None


def _centred(view: View, value: str, layers: set[int]) -> str | None:
    """What ``value`` is without its mean; None where it is no such difference."""
    difference = view.maker(value, "Sub")
    if difference is None:
        return None
    source, mean = difference.node.input[:2]
    mean_layer = view.maker(mean, "ReduceMean")
    if mean_layer is None or mean_layer.node.input[0] != source or not _over_last(view, mean_layer):
        return None
    layers |= {difference.index, mean_layer.index}
    return str(source)


def _variance(view: View, value: str, source: str, layers: set[int]) -> float | None:
    """The epsilon of a sum of it and the variance of ``source``."""
    total = view.maker(value, "Add")
    if total is None:
        return None
    for slot in (0, 1):
        epsilon, mean = view.number(total, slot), view.maker(total.node.input[1 - slot], "ReduceMean")
        if epsilon is None or mean is None or not _over_last(view, mean):
            continue
        square = view.maker(mean.node.input[0], "Pow", "Mul")
        if square is None:
            continue
        names = square.node.input
        doubled = view.number(square, 1) == 2.0 if square.op_type == "Pow" else names[0] == names[1]
        members: set[int] = set()
        if doubled and _centred(view, names[0], members) == source:
            layers |= {total.index, mean.index, square.index} | members
            return epsilon
    return None


def _over_last(view: View, mean: Layer) -> bool:
    before, after = view.shape(mean.node.input[0]), view.shape(mean.outputs[0])
    return bool(before) and before is not None and after == (*before[:-1], 1)


def _scaled(view: View, value: str, source: str, layers: set[int], epsilon: float) -> Match | None:
    """With the scale and the shift that follow, where these are weights of one axis."""
    shape = view.shape(source)
    assert shape is not None  # noqa: S101  # its mean is known
    reads, wanted = [source], shape[-1:]
    for operator in ("Mul", "Add"):
        readers = view.readers(value)
        following = readers[0] if len(readers) == 1 and not view.is_output(value) else None
        if following is None or following.op_type != operator or following.domain:
            break
        slot = 1 if following.node.input[0] == value else 0
        operand = view.weight(following, slot)
        if operand is None or operand.type is None or operand.type.shape != wanted:
            break
        reads.append(operand.value)
        layers.add(following.index)
        value = following.outputs[0]
    return view.match(layers, value, reads, numbers={"epsilon": epsilon})


def apply(draft: Draft, view: View, match: Match) -> None:
    """Write it as one LayerNormalization over the last axis."""
    reads = list(match.reads)
    if len(reads) == 1:
        shape, dtype = view.shape(reads[0]), view.dtype(reads[0])
        assert shape is not None and dtype is not None  # noqa: S101, PT018  # the match needed both
        kind = helper.tensor_dtype_to_np_dtype(element_number(dtype))
        reads.append(draft.constant(np.ones(shape[-1:], dtype=kind), "unit_scale"))
    node = draft.node("LayerNormalization", reads, match.value, axis=-1, epsilon=match.numbers["epsilon"])
    draft.redefine(match.value, [node])
