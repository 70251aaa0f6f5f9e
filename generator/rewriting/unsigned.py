"""Signed quantised values as unsigned ones: the zero point moves by 128, and every number stays what it was.

On x86, ONNX Runtime has its kernels for unsigned bytes. It turns a signed value by itself where that is converted back
once; where several operators read it, or a constant stands beside it, all of them are computed in floating point.
"""

from __future__ import annotations

import numpy as np

from ...bricks.layer import Layer
from ...bricks.operators import DEQUANTIZE, QUANTIZE
from ...errors import ModelError
from .draft import Draft
from .pattern import Array, Match, View

__all__ = ["apply", "find"]

_SHIFT = 128
_ZERO_POINT = 2
_CONSTANT = "constant"

_ALIKE = frozenset({"Add", "Concat", "Mul", "Where"})
"""Operators whose inputs must be of one type; products take signed weights beside unsigned data."""


def find(view: View) -> list[Match]:
    """Every signed value between conversions, and every signed constant that is read beside such values.

    Only those whose zero points are known: one that is computed, or left out, stays as it is.
    """
    found = []
    for layer in view.live(QUANTIZE):
        value = layer.outputs[0]
        readers = view.readers(value)
        if view.dtype(value) != "int8" or view.is_output(value) or not readers:
            continue
        if all(one.op_type == DEQUANTIZE and _is_known(view, one) for one in readers) and _is_known(view, layer):
            found.append(view.match({layer.index, *(one.index for one in readers)}, value, ()))
    constants = (one for one in view.graph.layers if one.op_type == DEQUANTIZE and _is_beside(view, one))
    return [*found, *(view.match({one.index}, one.outputs[0], (), form=_CONSTANT) for one in constants)]


def _is_beside(view: View, layer: Layer) -> bool:
    constant, readers = view.weight(layer, 0), view.readers(layer.outputs[0])
    if not _is_known(view, layer):
        return False
    signed = constant is not None and constant.type is not None and constant.type.dtype == "int8"
    return signed and bool(readers) and all(one.op_type in _ALIKE for one in readers)


def _is_known(view: View, layer: Layer) -> bool:
    return view.array(layer, _ZERO_POINT) is not None


def apply(draft: Draft, view: View, match: Match) -> None:
    """Move the zero points, each by itself since they may differ, and the numbers of a constant.

    Raises:
        ModelError: A zero point or a constant is not known.
    """
    layers = [view.graph.layers[index] for index in match.layers]
    zeros = [found for one in layers if (found := view.array(one, _ZERO_POINT)) is not None]
    if len(zeros) < len(layers):
        raise ModelError(f"a zero point of '{match.value}' is not known")
    for layer, zero in zip(layers, zeros, strict=True):
        node = draft.maker(layer.outputs[0])
        node.input[_ZERO_POINT] = draft.constant(_unsigned(zero), "unsigned_zero")
        if match.form == _CONSTANT:
            held = view.content(layer, 0)
            if held is None:
                raise ModelError(f"what '{match.value}' is made of is not known")
            node.input[0] = draft.constant(_unsigned(held), "unsigned")
    draft.forget_type(match.value)


def _unsigned(signed: Array) -> Array:
    return np.asarray((signed.astype(np.int16) + _SHIFT).astype(np.uint8))
