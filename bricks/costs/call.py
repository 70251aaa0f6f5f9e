"""One call of an operator, as a cost formula sees it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx

from ...models.subgraphs import attribute_of
from ..constants import decode_constant
from ..layer import Cost, Operand, TensorType


class UnknownCostError(LookupError):
    """Raised by a formula whose inputs do not determine the work; ``layer_cost`` turns it into None."""


@dataclass(frozen=True, slots=True)
class CostedNode:
    """An operator with the types of its inputs and outputs.

    Attributes:
        node: The operator, in canonical or in source form.
        operands: Its inputs by slot.
        outputs: Types of its outputs by slot; None where unknown or not wanted.
    """

    node: onnx.NodeProto
    operands: tuple[Operand, ...]
    outputs: tuple[TensorType | None, ...]

    def has(self, slot: int) -> bool:
        """Whether an input slot is given."""
        return slot < len(self.operands) and self.operands[slot].role != "absent"

    def input(self, slot: int) -> TensorType:
        """Type of an input.

        Raises:
            UnknownCostError: It is absent or its type is unknown.
        """
        found = self.operands[slot].type if slot < len(self.operands) else None
        if found is None:
            raise UnknownCostError(f"input {slot} of {self.node.op_type} has no known type")
        return found

    def inputs(self) -> list[TensorType]:
        """Types of all inputs that are given, in slot order."""
        return [self.input(slot) for slot in range(len(self.operands)) if self.has(slot)]

    def output(self, slot: int = 0) -> TensorType:
        """Type of an output.

        Raises:
            UnknownCostError: It is unknown.
        """
        found = self.outputs[slot] if slot < len(self.outputs) else None
        if found is None:
            raise UnknownCostError(f"output {slot} of {self.node.op_type} has no known type")
        return found

    def attribute(self, name: str, default: Any = None) -> Any:
        """Value of an attribute; text as ``str``."""
        return attribute_of(self.node, name, default)

    def values(self, slot: int) -> list[Any] | None:
        """The flattened values of a constant input; None where it is absent or not constant."""
        data = self.operands[slot].data if slot < len(self.operands) else None
        if data is None:
            return None
        values: list[Any] = decode_constant(data).reshape(-1).tolist()
        return values

    def parameter(self, slot: int, name: str) -> list[Any] | None:
        """A parameter that is an input at newer opsets and was an attribute before; None where not given.

        Raises:
            UnknownCostError: It is an input, but computed at run time.
        """
        if self.has(slot):
            values = self.values(slot)
            if values is None:
                raise UnknownCostError(f"{name} of {self.node.op_type} is computed at run time")
            return values
        value = self.attribute(name)
        if value is None:
            return None
        return list(value) if isinstance(value, list | tuple) else [value]

    def require(self, name: str) -> Any:
        """Value of an attribute that the formula cannot do without.

        Raises:
            UnknownCostError: The node does not have it.
        """
        value = self.attribute(name)
        if value is None:
            raise UnknownCostError(f"{self.node.op_type} without {name}")
        return value

    def window(self) -> int:
        """Elements of the pooling window, ``Kh Kw ...``."""
        return math.prod(self.require("kernel_shape"))


Formula = Callable[[CostedNode], Cost]
"""The work of one call; the byte fields stay 0 and are filled by ``layer_cost``."""
