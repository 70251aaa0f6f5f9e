"""An operator on its way to canonical form: what rules read and change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto

from ..constants import decode_constant, encode_array, encode_tensor, tensor_type_of_array
from ..layer import Role, TensorType

# Attributes as plain values: read from ONNX, written back, and spelled for a key.


Value = Any
"""int, float, bytes, a tuple of one of these, or a protocol message (tensor, graph, type, sparse tensor)."""

_FIELDS: dict[int, str] = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
_LISTS = frozenset(kind for kind, field in _FIELDS.items() if field.endswith("s") and field != "s")


def read_value(attribute: AttributeProto) -> Value:
    """The value of an attribute; lists become tuples.

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
    """A value as JSON: injective, and the same on every machine.

    Floats stay floats (their shortest decimal form is exact, and ``1.0`` is not ``1``); text and messages are
    tagged, so that no two kinds share a spelling.
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
    """Raised by a rule where an operator's meaning cannot be written at the canonical opset."""


class Slot(NamedTuple):
    """One input slot, without a name.

    Attributes:
        role: What the input is.
        type: Its type; None when absent or (inside a body) unknown.
        data: For a constant its value, a nameless serialised ``TensorProto``.
        source: The slot of the source node that it came from; None for a constant made by a rule.
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
        since: The opset that introduced the source's version of it.
        attributes: The source's attributes, its version's defaults filled in.
        slots: The inputs.
        outputs: Types of the wanted outputs by slot; None where not wanted (or, inside a body, unknown).
    """

    op_type: str
    since: int
    attributes: dict[str, Value]
    slots: list[Slot]
    outputs: tuple[TensorType | None, ...]

    def slot(self, index: int) -> Slot:
        """An input slot, absent where the node has fewer inputs."""
        return self.slots[index] if index < len(self.slots) else ABSENT

    def given(self, index: int) -> bool:
        """Whether an input is there."""
        return self.slot(index).role is not Role.ABSENT

    def type(self, index: int) -> TensorType:
        """The type of an input.

        Raises:
            OpsetBound: It is unknown.
        """
        found = self.slot(index).type
        if found is None:
            raise OpsetBound(f"input {index} has no static type")
        return found

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of an input."""
        return self.type(index).shape

    def output(self, index: int = 0) -> TensorType:
        """The type of an output.

        Raises:
            OpsetBound: It is unknown.
        """
        found = self.outputs[index] if index < len(self.outputs) else None
        if found is None:
            raise OpsetBound(f"output {index} has no static type")
        return found

    def array(self, index: int) -> npt.NDArray[Any] | None:
        """The values of an input; None where it is not a constant with known values."""
        data = self.slot(index).data
        return None if data is None else decode_constant(data)

    def integers(self, index: int) -> list[int] | None:
        """The values of an integer input, flattened; None where they are not known."""
        array = self.array(index)
        return None if array is None else [int(value) for value in array.ravel()]

    def put(self, index: int, array: npt.NDArray[Any]) -> None:
        """Make an input a constant."""
        self.place(index, Slot(Role.CONSTANT, tensor_type_of_array(array), encode_array(array)))

    def put_integers(self, index: int, values: list[int] | tuple[int, ...]) -> None:
        """Make an input a constant vector of int64."""
        self.put(index, np.asarray(values, np.int64).reshape(-1))

    def place(self, index: int, slot: Slot) -> None:
        """Put a slot at an index; slots before it that do not exist are absent."""
        while len(self.slots) <= index:
            self.slots.append(ABSENT)
        self.slots[index] = slot

    def drop(self, index: int) -> None:
        """Leave an optional input out."""
        if index < len(self.slots):
            self.slots[index] = ABSENT

    def pop(self, name: str, default: Value = None) -> Value:
        """Take an attribute out."""
        return self.attributes.pop(name, default)

    def fill(self, name: str, value: Value) -> None:
        """Give an attribute a value where it has none."""
        self.attributes.setdefault(name, value)


def resolve_axis(axis: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        ValueError: It is not an axis of that rank.
    """
    if not -rank <= axis < max(rank, 1):
        raise ValueError(f"axis {axis} of rank {rank}")
    return axis + rank if axis < 0 else axis


# The rules by operator: each brings one operator of ONNX's own domain into canonical form.


Rule = Callable[[CanonicalDraft], None]
"""Changes a draft in place; raises ``OpsetBound`` where it cannot, ``ValueError`` where the operator is not legal."""

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
    """The rule of an operator; None where defaults are all there is to do."""
    return _RULES.get(op_type)
