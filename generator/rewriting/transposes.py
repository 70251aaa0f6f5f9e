"""Data that is moved there and back: orders of elements that undo each other, or are two where one would do.

What a chain of Transpose, Reshape, Einsum, DepthToSpace and SpaceToDepth does is found by where each element goes, so
that it does not matter how it is spelt: heads that are split and joined, windows, and channels that are shuffled are
found as a pair of transpositions is. Operators on single elements may stand anywhere between.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from ...bricks.layer import Layer
from ...bricks.operators import VIEWS
from .draft import Draft
from .movement import MOVING, activation, alone, element_by_element, order, source_of
from .pattern import Match, View

__all__ = ["apply", "find"]

_LONGEST = 24
"""Most operators of one chain."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One layer of a chain, which ends with the last.

    Attributes:
        layer: It.
        source: What it reads.
        kept: Whether others read what it makes, or what is made of that within the chain: then it stays.
    """

    layer: Layer
    source: str
    kept: bool


def find(view: View) -> list[Match]:
    """Chains of moves: ``cancel`` where nothing is moved in the end, ``fuse`` where one Transpose would do for two."""
    found: list[Match] = []
    taken = set[int]()
    for last in reversed(list(view.live(*MOVING))):
        if last.index in taken:
            continue
        match = _cancelling(view, last) or _fusing(view, last, taken)
        if match is not None:
            taken |= set(match.layers)
            found.append(match)
    return found[::-1]


def _chain(view: View, last: Layer) -> list[_Step]:
    """The layers before one that moves data, backwards, as far as they only move it or work on single elements."""
    steps = [_Step(last, str(last.node.input[0]), kept=False)]
    while len(steps) < _LONGEST:
        value = steps[-1].source
        kept = steps[-1].kept or not alone(view, value)
        layer = view.maker(value, *MOVING, *VIEWS)
        if layer is None and not kept:  # what others read is not computed twice
            layer = element_by_element(view, value)
        if layer is None:
            break
        steps.append(_Step(layer, activation(view, layer), kept))
    return steps


def _cancelling(view: View, last: Layer) -> Match | None:
    """The longest chain that ends with a layer and leaves every element where it was."""
    steps = _chain(view, last)
    places = source_of(view, last) if any(one.layer.op_type in MOVING for one in steps[1:]) else None
    if places is None:
        return None
    still, best = np.arange(places.size), 0
    for number, step in enumerate(steps[1:], start=2):
        operator = step.layer.op_type
        if operator in MOVING:
            before = source_of(view, step.layer)
            if before is None:
                break
            places = before[places]
        behind = operator in VIEWS and best == number - 1
        if (operator in MOVING or behind) and np.array_equal(places, still):
            best = number
    if not best:
        return None
    # Where others read what was moved, that stays.
    members = [step.layer.index for step in steps[:best] if not step.kept]
    return view.match(members, last.outputs[0], [steps[best - 1].source], form="cancel")


def _fusing(view: View, last: Layer, taken: set[int]) -> Match | None:
    first = view.maker(last.node.input[0], "Transpose", "Einsum")
    if first is None or first.index in taken:
        return None
    before, after = order(view, first), order(view, last)
    if before is None or after is None:
        return None
    members = [last.index, first.index] if alone(view, first.outputs[0]) else [last.index]
    numbers = {str(place): float(before[axis]) for place, axis in enumerate(after)}
    return view.match(members, last.outputs[0], [first.node.input[0]], form="fuse", numbers=numbers)


def apply(draft: Draft, view: View, match: Match) -> None:
    """Read what was before the first move, and move once or not at all."""
    (source,) = match.reads
    if match.form == "fuse":
        perm = [int(match.numbers[str(place)]) for place in range(len(match.numbers))]
        draft.redefine(match.value, [draft.node("Transpose", [source], match.value, perm=perm)])
        return
    between = [view.graph.layers[index] for index in match.layers]
    between = [layer for layer in between if layer.op_type not in MOVING | VIEWS]
    draft.redefine(match.value, _unmoved(draft, view, between, source, match.value))


def _unmoved(draft: Draft, view: View, between: Sequence[Layer], source: str, value: str) -> list[NodeProto]:
    """The operators in between, on what is not moved, and the shape that is wanted."""
    made, current = list[NodeProto](), source
    for layer in between:
        copy = deepcopy(layer.node)
        copy.name = draft.fresh(f"rewritten_{layer.op_type}")
        before = activation(view, layer)
        for slot, name in enumerate(copy.input):
            if name == before:
                copy.input[slot] = current
        current = draft.fresh("unmoved")
        copy.output[0] = current
        made.append(copy)
    shape = view.shape(value)
    assert shape is not None  # noqa: S101  # its chain was found by shapes
    target = draft.constant(np.array(shape, dtype=np.int64), "shape")
    return [*made, draft.node("Reshape", [current, target], value)]
