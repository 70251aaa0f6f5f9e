"""A call of an operator, as input of a cost formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx

from ...models.subgraphs import attribute_of
from ..encoding import decode_constant
from ..layer import Cost, Operand, TensorType


class UnknownCostError(LookupError):
    """Raised by a formula if the inputs do not determine the work; ``layer_cost`` returns None then."""


@dataclass(frozen=True, slots=True)
class CostedNode:
    """An operator with the types of its inputs and outputs.

    Attributes:
        node: The operator, in canonical or in source form.
        operands: Its inputs by slot.
        outputs: Types of its outputs by slot; None if unknown or unused.
        activation: Work per element of the activation that is fused into it; None if there is none, or it is unknown.
    """

    node: onnx.NodeProto
    operands: tuple[Operand, ...]
    outputs: tuple[TensorType | None, ...]
    activation: Cost | None = None

    def has(self, slot: int) -> bool:
        """Return True if an input is present."""
        return slot < len(self.operands) and self.operands[slot].role != "absent"

    def input(self, slot: int) -> TensorType:
        """Return the type of an input.

        Raises:
            UnknownCostError: It is absent or has an unknown type.
        """
        input_type = self.operands[slot].type if slot < len(self.operands) else None
        if input_type is None:
            raise UnknownCostError(f"input {slot} of {self.node.op_type} has no known type")
        return input_type

    def inputs(self) -> list[TensorType]:
        """Return the types of all present inputs, in slot order."""
        return [self.input(slot) for slot in range(len(self.operands)) if self.has(slot)]

    def output(self, slot: int = 0) -> TensorType:
        """Return the type of an output.

        Raises:
            UnknownCostError: The type is unknown.
        """
        output_type = self.outputs[slot] if slot < len(self.outputs) else None
        if output_type is None:
            raise UnknownCostError(f"output {slot} of {self.node.op_type} has no known type")
        return output_type

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute; text as ``str``."""
        return attribute_of(self.node, name, default)

    def values(self, slot: int) -> list[Any] | None:
        """Return the flattened values of a constant input; None if absent or not constant."""
        data = self.operands[slot].data if slot < len(self.operands) else None
        if data is None:
            return None
        values: list[Any] = decode_constant(data).reshape(-1).tolist()
        return values

    def parameter(self, slot: int, name: str) -> list[Any] | None:
        """Return a parameter that is an input at newer opsets and an attribute at older ones; None if absent.

        Raises:
            UnknownCostError: It is an input computed at run time.
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
        """Return an attribute that the formula requires.

        Raises:
            UnknownCostError: The node does not have the attribute.
        """
        value = self.attribute(name)
        if value is None:
            raise UnknownCostError(f"{self.node.op_type} without {name}")
        return value

    def window(self) -> int:
        """Count the elements of the pooling window, ``Kh Kw ...``, which ends at the input."""
        data = self.input(0).shape
        extents = data[1:-1] if self.attribute("channels_last", 0) else data[2:]
        return math.prod(map(min, self.require("kernel_shape"), extents))


Formula = Callable[[CostedNode], Cost]
"""The work of one call; ``layer_cost`` fills in the byte fields."""
