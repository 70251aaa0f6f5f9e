"""Work that is done twice: layers that compute the same of the same (common subexpressions).

Numbered by value (Alpern, Wegman and Zadeck 1988, "Detecting equality of variables in programs"): two layers are one
where operator, attributes and the numbers of what they read agree. Small constants agree by their values; large ones by
their names, or by what they hold, where that is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from ...bricks.layer import Layer, LayerState, Role
from ...bricks.operators import RANDOM
from ...models.subgraphs import may_have_bodies
from .draft import Draft
from .pattern import Match, View

__all__ = ["apply", "find"]

_RANDOM = RANDOM | {"Dropout"}


def find(view: View) -> list[Match]:
    """Every layer that repeats an earlier one; large constants that are not known differ from all others."""
    wanted = _candidates(view)
    held: dict[str, str] = {}

    def spelt(layer: Layer, slot: int) -> str:
        name = layer.operands[slot].value
        if name in wanted and name not in held:
            array = view.content(layer, slot)
            held[name] = name if array is None else f"{array.dtype}{array.shape}{_digest(array.tobytes())}"
        return held.get(name, name)

    return [
        view.match([layer.index], mine, [theirs], twin=theirs)
        for layer, original in _repeated(view, spelt)
        for mine, theirs in zip(layer.outputs, original.outputs, strict=True)
        if mine
    ]


def _candidates(view: View) -> set[str]:
    """Large constants that are worth reading: of layers that were one if those of one type held the same."""
    return {
        operand.value
        for pair in _repeated(view, lambda layer, slot: str(layer.operands[slot].type))
        for layer in pair
        for operand in layer.operands
        if operand.role is Role.WEIGHT
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _repeated(view: View, spelt: Callable[[Layer, int], str]) -> Iterator[tuple[Layer, Layer]]:
    """Layers that repeat another one, with that; large constants are distinguished by how they are spelt."""
    numbers: dict[str, str] = {}
    first: dict[tuple[object, ...], Layer] = {}
    for layer in view.graph.layers:
        if layer.state is not LayerState.LIVE or may_have_bodies(layer.node) or layer.op_type in _RANDOM:
            continue
        reads = []
        for slot, operand in enumerate(layer.operands):
            if operand.role is Role.CONSTANT and operand.data is not None:
                reads.append(_digest(operand.data))
            elif operand.role is Role.WEIGHT:
                reads.append(spelt(layer, slot))
            else:
                reads.append(numbers.get(operand.value, operand.value))
        attributes = tuple(sorted(attribute.SerializeToString() for attribute in layer.node.attribute))
        same = (layer.domain, layer.op_type, attributes, tuple(reads), tuple(map(bool, layer.outputs)))
        original = first.setdefault(same, layer)
        if original is not layer:
            numbers |= {
                mine: numbers.get(theirs, theirs)
                for mine, theirs in zip(layer.outputs, original.outputs, strict=True)
                if mine
            }
            yield layer, original


def apply(draft: Draft, _view: View, match: Match) -> None:
    """Read what is there already."""
    draft.redefine(match.value, [draft.node("Identity", [match.twin], match.value)])
