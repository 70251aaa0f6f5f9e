"""An ONNX operator to be expressed in symbols: its inputs, attributes and types, and the table of translations."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from .....errors import UnsupportedBrick

__all__ = ["MODULES", "Node", "Symbol", "Translation", "Variables", "operator", "translations"]

Symbol = Any
"""A symbol of MXNet, which has no types."""

Array = npt.NDArray[Any]
ValueType = tuple[np.dtype[Any], tuple[int, ...]]

MODULES = ("elementwise", "indexing", "linear", "logic", "normalization", "pooling", "reduction", "shape", "spatial")
"""Modules that hold translations."""

DOMAINS = ("", "ai.onnx")


class Variables:
    """The symbols of values that are bound to arrays: inputs and weights.

    An array that several values share (the weights of copies) is handed to the runtime once.
    """

    def __init__(self) -> None:
        self.bound: dict[str, Array] = {}
        self._derived: dict[tuple[int, str], tuple[Array, Array]] = {}

    def add(self, array: Array) -> Symbol:
        """A new variable bound to an array."""
        import mxnet as mx

        name = f"v{len(self.bound)}"
        self.bound[name] = array
        return mx.sym.var(name)

    def derived(self, array: Array, how: str, make: Callable[[Array], Array]) -> Array:
        """What is made of a weight while the network is loaded; the same array gives the same result."""
        key = (id(array), how)
        if key not in self._derived:
            self._derived[key] = (array, np.ascontiguousarray(make(array)))  # keeps the array, and so its id
        return self._derived[key][1]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator of a network.

    Attributes:
        proto: The operator.
        opset: Version of its domain.
        types: Value to element type and shape, where they are static.
        constants: Value to what is known when the network is loaded: weights and folded values.
        feeds: Value to what is fed: it never changes. MXNet's shapes are static, and where it wants a parameter
            (a shape, axes, bounds) for what ONNX has an input, the input's value is taken.
        used: Values that an operator reads or that the network hands out.
        symbols: Value to symbol, of what was computed or fed; grows.
        variables: Of the network.
    """

    proto: onnx.NodeProto
    opset: int
    types: Mapping[str, ValueType]
    constants: Mapping[str, Array]
    feeds: Mapping[str, Array]
    used: frozenset[str]
    symbols: dict[str, Symbol]
    variables: Variables

    @property
    def sym(self) -> Any:
        """The operators of MXNet."""
        import mxnet as mx

        return mx.sym

    @property
    def op(self) -> str:
        """Its operator."""
        return self.proto.op_type

    def refusal(self, why: str) -> UnsupportedBrick:
        """The error that says what MXNet does not have."""
        return UnsupportedBrick(f"MXNet has no {self.op} {why}".rstrip())

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.proto.input) and self.proto.input[index] != ""

    @property
    def count(self) -> int:
        """Number of its inputs."""
        return len(self.proto.input)

    def symbol(self, index: int = 0) -> Symbol:
        """An input."""
        name = self.proto.input[index]
        if name not in self.symbols:
            self.symbols[name] = self.variables.add(self.constants[name])
        return self.symbols[name]

    def constant(self, index: int) -> Array | None:
        """An input whose value is known when the network is loaded; None where it is computed or fed."""
        return self.constants.get(self.proto.input[index]) if self.has(index) else None

    def bind(self, array: Array) -> Symbol:
        """A variable for an array that is no value of the network."""
        return self.variables.add(array)

    def own(self, index: int) -> Symbol:
        """An input that must be a variable of this operator alone: a state, as MXNet calls it."""
        found = self.known(index, "as a state")
        return self.variables.add(found)

    def known(self, index: int, what: str = "") -> Array:
        """The value of an input that MXNet takes as a parameter.

        Raises:
            UnsupportedBrick: It is computed.
        """
        name = self.proto.input[index]
        found = self.constants.get(name, self.feeds.get(name))
        if found is None:
            raise self.refusal(f"with a computed input {index} {what}".rstrip())
        return found

    def integers(self, attribute: str, index: int) -> tuple[int, ...] | None:
        """Integers that older opsets give as an attribute and newer ones as an input; None where neither has them."""
        found = self.attribute(attribute)
        if found is None and self.has(index):
            found = self.known(index).ravel().tolist()
        return None if found is None else tuple(int(value) for value in found)

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute; text is decoded."""
        for attribute in self.proto.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of an input."""
        return self._type(self.proto.input[index])[1]

    def dtype(self, index: int = 0) -> np.dtype[Any]:
        """Element type of an input."""
        return self._type(self.proto.input[index])[0]

    def rank(self, index: int = 0) -> int:
        """Number of dimensions of an input."""
        return len(self.shape(index))

    def axis(self, value: int, index: int = 0) -> int:
        """An axis of an input, counted from the front."""
        return value % max(self.rank(index), 1)

    def result(self, index: int = 0) -> tuple[int, ...]:
        """Shape of an output."""
        return self._type(self.proto.output[index])[1]

    def wants(self, index: int) -> bool:
        """Whether an output is used."""
        return index < len(self.proto.output) and self.proto.output[index] in self.used

    def numpy(self, name: str, *inputs: Any, **parameters: Any) -> Symbol:
        """One of the operators that MXNet names after NumPy's: they know truth values and scalars."""
        import mxnet as mx

        converted = [value.as_np_ndarray() if isinstance(value, mx.sym.Symbol) else value for value in inputs]
        return getattr(mx.sym.np, name)(*converted, **parameters).as_nd_ndarray()

    def padded(self, symbol: Symbol, width: Sequence[tuple[int, int]], mode: str, filler: float = 0.0) -> Symbol:
        """More elements at the edges; so many before and behind, for each dimension."""
        from mxnet.symbol.numpy import _internal as operators  # the public function drops the filler

        value = {"constant_value": filler} if mode == "constant" else {}
        return operators.pad(symbol.as_np_ndarray(), pad_width=tuple(width), mode=mode, **value).as_nd_ndarray()

    def reshaped(self, symbol: Symbol, shape: Sequence[int]) -> Symbol:
        """The same elements in another shape."""
        if not shape:
            return self.numpy("reshape", symbol, ())
        if 0 in shape:
            raise self.refusal("of an empty tensor")
        return self.sym.reshape(symbol, shape=tuple(shape))

    def _type(self, name: str) -> ValueType:
        if name in self.constants:
            array = self.constants[name]
            return array.dtype, array.shape
        if name not in self.types:
            raise self.refusal("of a shape that is not static")
        return self.types[name]


Translation = Callable[[Node], Symbol | list[Symbol]]
"""Expresses an operator: one symbol, or one for each output."""

_TRANSLATIONS: dict[str, Translation] = {}


def operator(*names: str) -> Callable[[Translation], Translation]:
    """Register the translation of ONNX operators."""

    def register(translate: Translation) -> Translation:
        for name in names:
            _TRANSLATIONS[name] = translate
        return translate

    return register


def translations() -> Mapping[str, Translation]:
    """ONNX operator to what expresses it."""
    for module in MODULES:
        importlib.import_module(f".{module}", __package__)
    return _TRANSLATIONS
