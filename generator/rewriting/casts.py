"""Conversions of element types that undo each other: without any loss on the way, or with no more than rounding."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

from onnx import NodeProto

from .draft import Draft
from .movement import IDLE, alone
from .pattern import Match, View

__all__ = ["apply", "find", "find_rounding"]

_HOLDS = {
    "float16": {"float", "double"},
    "bfloat16": {"float", "double"},
    "float": {"double"},
    "int8": {"int16", "int32", "int64", "float16", "bfloat16", "float", "double"},
    "uint8": {"int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float", "double"},
    "int16": {"int32", "int64", "float", "double"},
    "int32": {"int64", "double"},
    "bool": {"int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float", "double"},
}
"""By element type, the types that hold each of its values."""

_NARROWER = {"float": {"float16", "bfloat16"}, "double": {"float", "float16", "bfloat16"}}
"""By floating-point type, those that round its values."""


def find(view: View) -> list[Match]:
    """Pairs of conversions: to a type that holds all values, and back; data may be moved in between."""
    return _pairs(view, lambda before, between: between in _HOLDS.get(before, ()))


def find_rounding(view: View) -> list[Match]:
    """Pairs of conversions between floating-point types that round: to a narrower one, and back."""
    return _pairs(view, lambda before, between: between in _NARROWER.get(before, ()))


def _pairs(view: View, fits: Callable[[str, str], bool]) -> list[Match]:
    found = []
    for last in view.live("Cast"):
        layers, middle = [last.index], last.node.input[0]
        kept = not alone(view, middle)
        while (moved := view.maker(middle, *IDLE)) is not None:
            layers += [] if kept else [moved.index]
            middle = moved.node.input[0]
            kept = kept or not alone(view, middle)
        first = view.maker(middle, "Cast")
        if first is None:
            continue
        source = first.node.input[0]
        before, between, after = (view.dtype(name) for name in (source, middle, last.outputs[0]))
        if before is None or between is None or before != after or not fits(before, between):
            continue
        layers += [] if kept else [first.index]
        found.append(view.match(layers, last.outputs[0], [source, middle]))
    return found


def apply(draft: Draft, view: View, match: Match) -> None:
    """Hand on what was there before both, moved as it is in between."""
    source, before = match.reads
    moves, value = list[NodeProto](), view.graph.layers[match.layers[-1]].node.input[0]
    while value != before:
        moves.append(view.graph.layers[_maker(view, value)].node)
        value = moves[-1].input[0]
    made, current = list[NodeProto](), source
    for node in reversed(moves):
        copy = deepcopy(node)
        copy.name = draft.fresh(f"rewritten_{node.op_type}")
        copy.input[0], copy.output[0] = current, draft.fresh("unconverted")
        current = copy.output[0]
        made.append(copy)
    draft.redefine(match.value, [*made, draft.node("Identity", [current], match.value)])


def _maker(view: View, value: str) -> int:
    index = view.graph.producer(value)
    assert index is not None  # noqa: S101  # the match came this way
    return index
