"""Transpositions that undo each other, or are two where one would do, also around operators on single elements."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import NodeProto

from ...bricks.layer import Layer
from .draft import Draft
from .pattern import ELEMENTWISE, Match, View

__all__ = ["apply", "find"]

_WITH_NUMBER = frozenset({"Add", "Div", "Mul", "Pow", "Sub", "Max", "Min"})
_LONGEST = 8
"""Most operators between two transpositions."""


def find(view: View) -> list[Match]:
    """Pairs of transpositions: ``cancel`` where the second undoes the first, ``fuse`` where one would do for both."""
    found: list[Match] = []
    for second in view.live("Transpose"):
        between: list[Layer] = []
        value = second.node.input[0]
        while len(between) < _LONGEST and (layer := _element_by_element(view, value)) is not None:
            if view.readers(value) != [between[-1] if between else second] or view.is_output(value):
                break  # somebody else wants it transposed
            between.append(layer)
            value = _activation(view, layer)
        first = view.maker(value, "Transpose")
        if first is None:
            continue
        if between and (len(view.readers(value)) > 1 or view.is_output(value)):
            continue
        combined = [_order(view, first)[axis] for axis in _order(view, second)]
        if combined == sorted(combined):
            form = "cancel"
        elif between:
            continue
        else:
            form = "fuse"
        # Where others read the first, it stays: the second alone is gone.
        members = [second.index, *(layer.index for layer in between)]
        members += [] if _shared(view, first) else [first.index]
        numbers = {str(place): float(axis) for place, axis in enumerate(combined)}
        found.append(view.match(members, second.outputs[0], [first.node.input[0], value], form=form, numbers=numbers))
    return found


def _shared(view: View, first: Layer) -> bool:
    return len(view.readers(first.outputs[0])) > 1 or view.is_output(first.outputs[0])


def _order(view: View, layer: Layer) -> list[int]:
    given = view.attribute(layer, "perm")
    shape = view.shape(layer.outputs[0])
    assert shape is not None  # noqa: S101  # the layer is live
    return list(given) if given is not None else list(reversed(range(len(shape))))


def _element_by_element(view: View, value: str) -> Layer | None:
    layer = view.maker(value, *ELEMENTWISE, *_WITH_NUMBER, "Cast")
    if layer is None:
        return None
    if layer.op_type in ELEMENTWISE | {"Cast"}:
        return layer
    numbers = [view.number(layer, slot) for slot in range(len(layer.node.input))]
    scalars = [operand.type is not None and operand.type.elements == 1 for operand in layer.operands[: len(numbers)]]
    fits = sum(number is None for number in numbers) == 1
    fits = fits and all(small for number, small in zip(numbers, scalars, strict=True) if number is not None)
    return layer if fits else None


def _activation(view: View, layer: Layer) -> str:
    """The one input that is computed."""
    if layer.op_type in ELEMENTWISE | {"Cast"}:
        return str(layer.node.input[0])
    return next(str(name) for slot, name in enumerate(layer.node.input) if view.number(layer, slot) is None)


def apply(draft: Draft, view: View, match: Match) -> None:
    """Read what was before the first transposition, and transpose once or not at all."""
    source, transposed = match.reads
    chain = [view.graph.layers[index] for index in match.layers]
    between = [layer.node for layer in chain if layer.op_type != "Transpose"]
    if match.form == "fuse":
        order = [int(match.numbers[str(place)]) for place in range(len(match.numbers))]
        draft.redefine(match.value, [draft.node("Transpose", [source], match.value, perm=order)])
        return
    draft.redefine(match.value, _without(draft, between, source, transposed, match.value))


def _without(draft: Draft, between: Sequence[NodeProto], source: str, transposed: str, value: str) -> list[NodeProto]:
    """The operators in between, on what is not transposed."""
    made, current, before = [], source, transposed
    for number, node in enumerate(between):
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = draft.fresh(f"rewritten_{node.op_type}")
        last = number == len(between) - 1
        target = value if last else draft.fresh("untransposed")
        for slot, name in enumerate(copy.input):
            if name == before:
                copy.input[slot] = current
        before, current = node.output[0], target
        copy.output[0] = target
        made.append(copy)
    return made or [draft.node("Identity", [source], value)]
