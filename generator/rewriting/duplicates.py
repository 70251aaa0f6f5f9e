"""Work that is done twice: layers that compute the same of the same (common subexpressions).

Numbered by value (Alpern, Wegman and Zadeck 1988, "Detecting equality of variables in programs"): two layers are one
where operator, attributes and the numbers of what they read agree. Small constants agree by their values; large ones by
their names, or by what they hold, where that is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping

from ...bricks.layer import Layer, LayerState, Operand, Role
from ...models.subgraphs import may_have_bodies
from .draft import Draft
from .pattern import Match, View

__all__ = ["apply", "candidates", "find"]

_RANDOM = frozenset({"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                     "RandomUniformLike"})  # fmt: skip


def find(view: View, digests: Mapping[str, str] | None = None) -> list[Match]:
    """Every layer that repeats an earlier one.

    Args:
        view: The model.
        digests: What large constants hold, by name; those that are not named differ from all others.
    """
    known = digests or {}
    return [
        view.match([layer.index], mine, [theirs], twin=theirs)
        for layer, original in _repeated(view, lambda operand: known.get(operand.value, operand.value))
        for mine, theirs in zip(layer.outputs, original.outputs, strict=True)
        if mine
    ]


def candidates(view: View) -> set[str]:
    """Large constants that are worth reading: of layers that were one if those of one type held the same."""
    return {
        operand.value
        for pair in _repeated(view, lambda operand: str(operand.type))
        for layer in pair
        for operand in layer.operands
        if operand.role is Role.WEIGHT
    }


def _repeated(view: View, spelt: Callable[[Operand], str]) -> Iterator[tuple[Layer, Layer]]:
    """Layers that repeat another one, with that; large constants are told apart by how they are spelt."""
    numbers: dict[str, str] = {}
    first: dict[tuple[object, ...], Layer] = {}
    for layer in view.graph.layers:
        if layer.state is not LayerState.LIVE or may_have_bodies(layer.node) or layer.op_type in _RANDOM:
            continue
        reads = []
        for operand in layer.operands:
            if operand.role is Role.CONSTANT and operand.data is not None:
                reads.append(hashlib.sha256(operand.data).hexdigest())
            elif operand.role is Role.WEIGHT:
                reads.append(spelt(operand))
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
