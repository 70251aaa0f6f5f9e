"""What layers make of a value and of its sums along some axes, by trying it on numbers.

A value is laid out as a few rows, each with all that a sum runs over. Sums of a row have one column. Constants are
either a single number, or one for each column or row, for which numbers are drawn: what they hold does not matter, and
large ones need not be read.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...bricks.layer import Layer
from .pattern import View

Axes = tuple[int, ...]
Numbers = npt.NDArray[np.float64]

ROWS, _COLUMNS = 8, 16
_SMALLEST = 1e-7
"""Deviation of the smallest row: beside its square no epsilon from 1e-12 on is small."""

_SUMS: Mapping[str, Callable[[Numbers, int], Numbers]] = {
    "GlobalAveragePool": lambda x, _: x.mean(1, keepdims=True),
    "ReduceL2": lambda x, count: np.sqrt(count * (x * x).mean(1, keepdims=True)),
    "ReduceMean": lambda x, _: x.mean(1, keepdims=True),
    "ReduceSum": lambda x, count: count * x.mean(1, keepdims=True),
    "ReduceSumSquare": lambda x, count: count * (x * x).mean(1, keepdims=True),
}
REDUCING = tuple(_SUMS)
"""Operators that sum."""

_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "Div": np.divide,
    "Identity": lambda x: x,
    "Max": np.maximum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Pow": np.power,
    "Reciprocal": np.reciprocal,
    "Relu": lambda x: np.maximum(x, 0.0),
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
}
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
"""Of sums: whether they have an axis where the sum ran is seen by their shapes."""

_MOST = 24
"""Layers that are followed from one value."""


class Sheet:
    """A value and what is made of it alone.

    Args:
        view: The model.
        source: The value.
        axes: What sums run over, ascending.

    Attributes:
        values: Numbers of the source and of what is made of it, by name.
        makers: What made these.
        drawn: Numbers of constants that hold several, by name.
        numbers: All single numbers that were met.
    """

    def __init__(self, view: View, source: str, axes: Axes) -> None:
        shape = view.shape(source)
        assert shape is not None  # noqa: S101  # its sum is known
        self.view, self.axes, self.shape = view, axes, shape
        self._kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        self._count = math.prod(shape[axis] for axis in axes)
        rng = np.random.default_rng(0)
        scales = np.geomspace(_SMALLEST, 3.0, ROWS)[:, None]  # the smallest show what is added to a variance
        first = scales * (rng.normal(size=(ROWS, _COLUMNS)) + rng.uniform(0.5, 1.0, size=(ROWS, 1)))
        self.values: dict[str, Numbers] = {source: first}
        self.makers: dict[str, Layer] = {}
        self.drawn: dict[str, Numbers] = {}
        self.numbers: set[float] = set()
        self._follow(source)

    def _follow(self, source: str) -> None:
        waiting = {reader.index: reader for reader in self.view.readers(source)}
        seen = set[int]()
        while waiting and len(seen) < _MOST:
            layer = waiting.pop(min(waiting))
            seen.add(layer.index)
            with np.errstate(all="ignore"):
                made = self._made(layer)
            if made is None or not np.isfinite(made).all():
                continue
            self.values[layer.outputs[0]], self.makers[layer.outputs[0]] = made, layer
            waiting |= {reader.index: reader for reader in self.view.readers(layer.outputs[0])}

    def _made(self, layer: Layer) -> Numbers | None:
        """What a layer makes of values that are known and of constants; None where that is not known."""
        names = [name for name in layer.node.input if name]
        if layer.domain or not names or len(layer.outputs) != 1:
            return None
        if layer.op_type in _SUMS:
            return self._sum(layer, names[0])
        if layer.op_type in _VIEWS:
            value = self.values.get(names[0])
            small = value is not None and value.shape[1] == 1
            return value if small and self.view.shape(layer.outputs[0]) == self._kept else None
        return self._element(layer, names)

    def _element(self, layer: Layer, names: Sequence[str]) -> Numbers | None:
        """What an operator that treats every element by itself makes."""
        function = _ELEMENTWISE.get(layer.op_type)
        operands = [] if function is None else [self._operand(layer, slot) for slot in range(len(names))]
        known = [operand for operand in operands if operand is not None]
        variadic = layer.op_type == "Max" and len(operands) != 2
        if function is None or len(known) < len(names) or variadic:
            return None
        full = any(operand.ndim and operand.shape[1] > 1 for operand in known)
        for name, operand in zip(names, known, strict=True):
            if full and name in self.values and operand.shape[1] == 1 and self.view.shape(name) != self._kept:
                return None  # it would be broadcast along another axis
        found = np.asarray(function(*known), dtype=np.float64)
        return found if found.ndim else None

    def _sum(self, layer: Layer, name: str) -> Numbers | None:
        value = self.values.get(name)
        if value is None or value.shape[1] == 1 or self.view.shape(name) != self.shape:
            return None
        return _SUMS[layer.op_type](value, self._count) if reduced_axes(self.view, layer) == self.axes else None

    def _operand(self, layer: Layer, slot: int) -> Numbers | None:
        """An input of a layer as rows and columns, or a single number; None where it is neither."""
        name = layer.node.input[slot]
        if name in self.values:
            return self.values[name]
        number = self.view.number(layer, slot)
        if number is not None:
            self.numbers.add(number)
            return np.asarray(number, dtype=np.float64)
        operand = self.view.weight(layer, slot)
        if operand is None or operand.type is None:
            return None
        shape = (*[1] * (len(self.shape) - len(operand.type.shape)), *operand.type.shape)
        along = self.along(shape)
        if along is None:
            return None
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        drawn = rng.uniform(0.5, 2.0, size=(1, _COLUMNS) if along else (ROWS, 1))
        return self.drawn.setdefault(name, drawn)

    def along(self, shape: Collection[int]) -> bool | None:
        """Whether a constant has a number for each column (else for each row); None where neither is so.

        Args:
            shape: Its shape, with ones before it for each axis of the value that it lacks.
        """
        if tuple(shape) == tuple(size if axis in self.axes else 1 for axis, size in enumerate(self.shape)):
            return True
        channels = tuple(size if axis == 1 else 1 for axis, size in enumerate(self.shape))
        return False if tuple(shape) == channels and 1 not in self.axes else None

    def layers(self, value: str, source: str) -> set[int]:
        """The layers that make a value of the source."""
        found, waiting = set[int](), [value]
        while waiting:
            maker = self.makers.get(waiting.pop())
            if maker is not None and maker.index not in found:
                found.add(maker.index)
                waiting += [name for name in maker.node.input if name != source]
        return found


def reduced_axes(view: View, layer: Layer) -> Axes | None:
    """The axes that a sum runs over, or that a Squeeze drops, ascending; None where no constant names them."""
    shape = view.shape(layer.node.input[0])
    if shape is None:
        return None
    if layer.op_type == "GlobalAveragePool":
        return tuple(range(2, len(shape)))
    axes = view.attribute(layer, "axes")
    if axes is None:
        array = view.array(layer, 1)
        axes = None if array is None else array.reshape(-1).tolist()
    return None if not axes else tuple(sorted(axis % len(shape) for axis in axes))
