"""An operator during canonicalisation: the value that rules read and change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto

from ..encoding import decode_constant, encode_array, encode_tensor, tensor_type_of_array
from ..layer import Role, TensorType

# Attributes as plain values.


Value = Any
"""int, float, bytes, a tuple of these, or a protocol message (tensor, graph, type, sparse tensor)."""

_FIELDS: dict[int, str] = {
    AttributeProto.FLOAT: "f", AttributeProto.INT: "i", AttributeProto.STRING: "s", AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g", AttributeProto.SPARSE_TENSOR: "sparse_tensor", AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats", AttributeProto.INTS: "ints", AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors", AttributeProto.GRAPHS: "graphs", AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}  # fmt: skip
_LISTS = frozenset(kind for kind, field in _FIELDS.items() if field.endswith("s") and field != "s")


def read_value(attribute: AttributeProto) -> Value:
    """Return the value of an attribute; lists become tuples.

    Raises:
        ValueError: The attribute has no type (it refers to a function's parameter, or is malformed).
    """
    kind = attribute.type
    field = _FIELDS.get(kind)
    if field is None:
        raise ValueError(f"attribute {attribute.name!r} has no type")
    value = getattr(attribute, field)
    return tuple(value) if kind in _LISTS else value


def write_attribute(node: onnx.NodeProto, name: str, value: Value, kind: int) -> None:
    """Add an attribute with a name, a value and a type to a node."""
    node.attribute.add(name=name, type=kind, **{_FIELDS[kind]: value})


def spell_value(value: Value) -> object:
    """Convert a value to JSON, injectively and equally on every machine.

    Floats stay floats: their shortest decimal form is exact, and ``1.0`` is not ``1``. Text and messages are tagged, so
    that different kinds never have the same spelling.
    """
    if isinstance(value, int | float):
        return value
    if isinstance(value, tuple):
        return [spell_value(item) for item in value]
    if isinstance(value, bytes):
        return {"s": value.decode("latin-1")}
    if isinstance(value, onnx.TensorProto):
        return {"t": encode_tensor(value).hex()}
    return {"p": value.SerializeToString(deterministic=True).hex()}


class OpsetBound(Exception):
    """Raised by a rule if the canonical opset cannot express an operator's meaning."""


class Slot(NamedTuple):
    """One input slot, without a name.

    Attributes:
        role: The role of the input.
        type: Its type; None if absent or (inside a body) unknown.
        data: The value of a constant, a serialised ``TensorProto`` without a name.
        source: The source node's slot; None for a constant made by a rule.
    """

    role: Role
    type: TensorType | None = None
    data: bytes | None = None
    source: int | None = None


ABSENT = Slot(Role.ABSENT)


@dataclass(slots=True)
class CanonicalDraft:
    """An operator that rules bring into canonical form, in place.

    Attributes:
        op_type: The operator; a rule may rename it (Upsample is a Resize).
        since: The opset that introduced the source's version.
        attributes: The source's attributes, with the defaults of its version filled in.
        slots: The inputs.
        outputs: Types of the used outputs by slot; None if unused (or, inside a body, unknown).
    """

    op_type: str
    since: int
    attributes: dict[str, Value]
    slots: list[Slot]
    outputs: tuple[TensorType | None, ...]

    def slot(self, index: int) -> Slot:
        """Return an input slot; absent if the node has fewer inputs."""
        return self.slots[index] if index < len(self.slots) else ABSENT

    def given(self, index: int) -> bool:
        """Return True if an input is present."""
        return self.slot(index).role is not Role.ABSENT

    def type(self, index: int) -> TensorType:
        """Return the type of an input.

        Raises:
            OpsetBound: The type is unknown.
        """
        input_type = self.slot(index).type
        if input_type is None:
            raise OpsetBound(f"input {index} has no static type")
        return input_type

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of an input."""
        return self.type(index).shape

    def output(self, index: int = 0) -> TensorType:
        """Return the type of an output.

        Raises:
            OpsetBound: The type is unknown.
        """
        output_type = self.outputs[index] if index < len(self.outputs) else None
        if output_type is None:
            raise OpsetBound(f"output {index} has no static type")
        return output_type

    def array(self, index: int) -> npt.NDArray[Any] | None:
        """Return the values of an input; None unless it is a constant with known values."""
        data = self.slot(index).data
        return None if data is None else decode_constant(data)

    @property
    def rank(self) -> int:
        """Number of dimensions of the first input."""
        return len(self.shape(0))

    def integers(self, index: int) -> list[int] | None:
        """Return the values of an integer input, flattened; None if unknown."""
        array = self.array(index)
        return None if array is None else [int(value) for value in array.ravel()]

    def put(self, index: int, array: npt.NDArray[Any]) -> None:
        """Make an input a constant."""
        self.place(index, Slot(Role.CONSTANT, tensor_type_of_array(array), encode_array(array)))

    def put_integers(self, index: int, values: list[int] | tuple[int, ...]) -> None:
        """Make an input a constant vector of int64."""
        self.put(index, np.asarray(values, np.int64).reshape(-1))

    def place(self, index: int, slot: Slot) -> None:
        """Put a slot at an index; missing slots before it become absent."""
        while len(self.slots) <= index:
            self.slots.append(ABSENT)
        self.slots[index] = slot

    def drop(self, index: int) -> None:
        """Make an optional input absent."""
        if index < len(self.slots):
            self.slots[index] = ABSENT

    def pop(self, name: str, default: Value = None) -> Value:
        """Remove an attribute and return it."""
        return self.attributes.pop(name, default)

    def fill(self, name: str, value: Value) -> None:
        """Set an attribute that is missing."""
        self.attributes.setdefault(name, value)


def resolve_axis(axis: int, rank: int) -> int:
    """Return an axis counted from the front.

    Raises:
        ValueError: The rank does not include this axis.
    """
    if not -rank <= axis < max(rank, 1):
        raise ValueError(f"axis {axis} of rank {rank}")
    return axis + rank if axis < 0 else axis


# Rules by operator, for ONNX's own domain.


Rule = Callable[[CanonicalDraft], None]
"""Changes a draft in place; raises ``OpsetBound`` if it cannot, ``ValueError`` if the operator is illegal."""

_RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of one or more operators."""

    def register(function: Rule) -> Rule:
        for op_type in op_types:
            if op_type in _RULES:
                raise ValueError(f"{op_type} has two rules")
            _RULES[op_type] = function
        return function

    return register


def find_rule(op_type: str) -> Rule | None:
    """Return the rule of an operator; None if filling in defaults is enough."""
    return _RULES.get(op_type)
