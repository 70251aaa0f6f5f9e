"""Operators that only move data: which element goes where, and chains of them with operators on single elements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, numpy_helper

from ...bricks.layer import RANDOM, VIEWS, Layer
from ...models.subgraphs import may_have_bodies
from .pattern import ELEMENTWISE, Match, ModelDraft, View

Order = npt.NDArray[np.int64]

_BLOCKS = frozenset({"DepthToSpace", "SpaceToDepth"})

IDLE = VIEWS | _BLOCKS | {"Transpose"}
"""Operators that compute nothing, whatever their attributes are."""

MOVING = _BLOCKS | {"Einsum", "Transpose"}
"""Operators that may put elements into another order."""

_WITH_NUMBER = frozenset({"Add", "Div", "Mul", "Pow", "Sub", "Max", "Min"})
_LARGEST = 1 << 23
"""Most elements whose places are compared."""


def order(view: View, layer: Layer) -> list[int] | None:
    """The order of axes that a Transpose, or an Einsum in its place, puts them into; None for anything else."""
    if layer.op_type == "Einsum":
        equation = view.attribute(layer, "equation")
        found = re.fullmatch(r"\s*([A-Za-z]+)\s*->\s*([A-Za-z]+)\s*", equation)
        if found is None or len(set(found[1])) < len(found[1]) or sorted(found[1]) != sorted(found[2]):
            return None
        return [found[1].index(axis) for axis in found[2]]
    shape = view.shape(layer.outputs[0])
    if layer.op_type != "Transpose" or shape is None:
        return None
    given = view.attribute(layer, "perm")
    return list(given) if given is not None else list(reversed(range(len(shape))))


def source_of(view: View, layer: Layer) -> Order | None:
    """By element of what a layer makes, in memory's order, the element of its first input; None if it does not move."""
    shape = view.shape(layer.node.input[0])
    if shape is None or layer.domain or not 0 < np.prod(shape) <= _LARGEST:
        return None
    places = np.arange(np.prod(shape), dtype=np.int64)
    if layer.op_type in VIEWS:
        return places
    if (axes := order(view, layer)) is not None:
        return places.reshape(shape).transpose(axes).ravel()
    return _blocks(view, layer, places.reshape(shape)) if layer.op_type in _BLOCKS and len(shape) == 4 else None


def _blocks(view: View, layer: Layer, places: Order) -> Order:
    """What DepthToSpace and SpaceToDepth make of an image."""
    size = view.attribute(layer, "blocksize")
    batch, channels, height, width = places.shape
    if layer.op_type == "SpaceToDepth":
        blocks = places.reshape(batch, channels, height // size, size, width // size, size)
        return blocks.transpose(0, 3, 5, 1, 2, 4).ravel()
    if view.attribute(layer, "mode") in {None, "DCR"}:
        return places.reshape(batch, size, size, -1, height, width).transpose(0, 3, 4, 1, 5, 2).ravel()
    return places.reshape(batch, -1, size, size, height, width).transpose(0, 1, 4, 2, 5, 3).ravel()


def alone(view: View, value: str) -> bool:
    """Whether one layer reads a value, and nobody else."""
    return len(view.readers(value)) == 1 and not view.is_output(value)


def element_by_element(view: View, value: str) -> Layer | None:
    """The layer that makes a value of one computed value, each element by itself."""
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


def activation(view: View, layer: Layer) -> str:
    """The one input that is computed."""
    if layer.op_type in _WITH_NUMBER:
        return next(str(name) for slot, name in enumerate(layer.node.input) if view.number(layer, slot) is None)
    return str(layer.node.input[0])


# Data that is moved there and back: orders of elements that undo each other, or are two where one would do.
#
# What a chain of Transpose, Reshape, Einsum, DepthToSpace and SpaceToDepth does is found by where each element goes, so
# that it does not matter how it is spelt: heads that are split and joined, windows, and channels that are shuffled are
# found as a pair of transpositions is. Operators on single elements may stand anywhere between.


_LONGEST = 24
"""Most operators of one chain."""


@dataclass(frozen=True, slots=True)
class _ChainLink:
    """One layer of a chain, which ends with the last.

    Attributes:
        layer: It.
        source: What it reads.
        kept: Whether others read what it makes, or what is made of that within the chain: then it stays.
    """

    layer: Layer
    source: str
    kept: bool


def find_transposes(view: View) -> list[Match]:
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


def _chain(view: View, last: Layer) -> list[_ChainLink]:
    """The layers before one that moves data, backwards, as far as they only move it or work on single elements."""
    steps = [_ChainLink(last, str(last.node.input[0]), kept=False)]
    while len(steps) < _LONGEST:
        value = steps[-1].source
        kept = steps[-1].kept or not alone(view, value)
        layer = view.maker(value, *MOVING, *VIEWS)
        if layer is None and not kept:  # what others read is not computed twice
            layer = element_by_element(view, value)
        if layer is None:
            break
        steps.append(_ChainLink(layer, activation(view, layer), kept))
    return steps


def _cancelling(view: View, last: Layer) -> Match | None:
    """The longest chain that ends with a layer and leaves every element where it was."""
    steps = _chain(view, last)
    places = source_of(view, last) if any(link.layer.op_type in MOVING for link in steps[1:]) else None
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


def apply_transposes(draft: ModelDraft, view: View, match: Match) -> None:
    """Read what was before the first move, and move once or not at all."""
    (source,) = match.reads
    if match.form == "fuse":
        perm = [int(match.numbers[str(place)]) for place in range(len(match.numbers))]
        draft.redefine(match.value, [draft.node("Transpose", [source], match.value, perm=perm)])
        return
    between = [view.graph.layers[index] for index in match.layers]
    between = [layer for layer in between if layer.op_type not in MOVING | VIEWS]
    draft.redefine(match.value, _unmoved(draft, view, between, source, match.value))


def _unmoved(draft: ModelDraft, view: View, between: Sequence[Layer], source: str, value: str) -> list[NodeProto]:
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


# Parts of a model that compute in float64 between others that do not.


_WIDE = "double"
_TYPED = RANDOM | {"ConstantOfShape", "EyeLike", "OneHot", "Range", "SequenceEmpty"}
"""Operators that say their type in a way of their own."""


def find_islands(view: View) -> list[Match]:
    """Connected layers that read or write float64; none that reach an input or an output of the model."""
    found, seen = [], set[int]()
    for index in view.graph.live:
        layer = view.graph.layers[index]
        if index in seen or not _wide(view, layer):
            continue
        members = _connected(view, index)
        seen |= members
        layers = [view.graph.layers[member] for member in sorted(members)]
        ends = [name for layer in layers for name in layer.outputs if name and view.dtype(name) != _WIDE]
        if all(layer.op_type in IDLE | {"Cast"} for layer in layers):
            continue  # conversions there and back, which are no part that computes in anything
        hard = any(may_have_bodies(layer.node) or layer.op_type in _TYPED or layer.domain for layer in layers)
        if hard or not ends or any(view.is_output(name) for layer in layers for name in _wide_values(view, layer)):
            continue
        if any(name in view.graph.inputs for layer in layers for name in _wide_values(view, layer)):
            continue
        sources = [name for layer in layers for name in layer.node.input if name and view.dtype(name) != _WIDE]
        found.append(view.match(members, ends[-1], dict.fromkeys(sources)))
    return found


def _wide_values(view: View, layer: Layer) -> Iterator[str]:
    for name in (*layer.node.input, *layer.outputs):
        if name and view.dtype(name) == _WIDE:
            yield name


def _wide(view: View, layer: Layer) -> bool:
    return any(True for _ in _wide_values(view, layer))


def _connected(view: View, start: int) -> set[int]:
    """Layers that hand float64 to each other."""
    members, pending = {start}, [start]
    while pending:
        layer = view.graph.layers[pending.pop()]
        for name in _wide_values(view, layer):
            maker = view.graph.producer(name)
            for index in (*view.graph.consumers(name), *(() if maker is None else (maker,))):
                if index not in members and view.graph.layers[index].state == "live":
                    members.add(index)
                    pending.append(index)
    return members


def apply_islands(draft: ModelDraft, view: View, match: Match) -> None:
    """Convert to float32 where float64 is asked for, and read the constants in float32."""
    narrow: dict[str, str] = {}
    for index in match.layers:
        node = draft.maker(next(name for name in view.graph.layers[index].outputs if name))
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.DOUBLE:
                attribute.i = onnx.TensorProto.FLOAT
        for slot, name in enumerate(node.input):
            tensor = draft.initializer(name) if name else None
            if tensor is None or tensor.data_type != onnx.TensorProto.DOUBLE:
                continue
            if name not in narrow:
                narrow[name] = draft.constant(numpy_helper.to_array(tensor).astype(np.float32), "narrow")
            node.input[slot] = narrow[name]
    stale = {name for index in match.layers for name in view.graph.layers[index].outputs}
    for value in draft.model.graph.value_info:
        if value.name in stale and value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT


# Conversions of element types that undo each other: without any loss on the way, or with no more than rounding.


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


def find_casts(view: View) -> list[Match]:
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


def apply_casts(draft: ModelDraft, view: View, match: Match) -> None:
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
