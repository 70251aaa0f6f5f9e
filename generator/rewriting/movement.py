"""Operators that only move data: which element goes where, and chains of them with operators on single elements."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from ...bricks.layer import Layer
from ...bricks.operators import VIEWS
from .pattern import ELEMENTWISE, View

__all__ = ["IDLE", "MOVING", "activation", "alone", "element_by_element", "order", "source_of"]

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
        equation = bytes(view.attribute(layer, "equation")).decode()
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
    if view.attribute(layer, "mode") in {None, b"DCR"}:
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
