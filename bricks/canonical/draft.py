"""An operator on its way to canonical form: what rules read and change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..constants import decode_constant, encode_array, tensor_type_of_array
from ..layer import Role
from ..tensor import TensorType
from .attributes import Value

__all__ = ["ABSENT", "Draft", "OpsetBound", "Slot"]


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
class Draft:
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
