"""Conversions of element types that undo each other without any loss on the way."""

from __future__ import annotations

from .draft import Draft
from .pattern import Match, View

__all__ = ["apply", "find"]

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


def find(view: View) -> list[Match]:
    """Pairs of conversions: to a type that holds all values, and back."""
    found = []
    for second in view.live("Cast"):
        middle = second.node.input[0]
        first = view.maker(middle, "Cast")
        if first is None:
            continue
        source = first.node.input[0]
        before, between, after = (view.dtype(name) for name in (source, middle, second.outputs[0]))
        if before is None or before != after or between not in _HOLDS.get(before, ()):
            continue
        shared = len(view.readers(middle)) > 1 or view.is_output(middle)
        members = [second.index] if shared else [first.index, second.index]
        found.append(view.match(members, second.outputs[0], [source]))
    return found


def apply(draft: Draft, _view: View, match: Match) -> None:
    """Hand on what was there before both."""
    draft.redefine(match.value, [draft.node("Identity", list(match.reads), match.value)])
