"""A brick as cuDNN sees it: tensors, and operations of its graph API between them.

Independent of the library, so that what a translation means can be computed and compared without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Derivation", "Operation", "OperationGraph", "Role", "Tensor"]


class Role(StrEnum):
    """What a tensor is to the graph."""

    INPUT = "input"
    WEIGHT = "weight"
    SCALAR = "scalar"
    """A number that is passed by value."""
    VIRTUAL = "virtual"
    """Written and read inside the graph; a fused plan keeps it out of memory."""
    OUTPUT = "output"


class Derivation(StrEnum):
    """How a weight follows from values of the network; once, ahead of all executions."""

    NONE = ""
    SCALE = "scale"
    """Of a batch normalization's scale, mean and variance: what its input is multiplied by."""
    SHIFT = "shift"
    """Of a batch normalization's scale, mean, variance and bias: what is then added."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of an operation graph.

    Attributes:
        shape: Its dimensions as cuDNN wants them: at least three, of images at least four.
        role: What it is to the graph.
        order: Dimensions from the slowest to the fastest, as the network holds the value; empty: as they stand.
        relaid: Whether it is laid out anew for the library, with its dimensions as they stand.
        sources: Values of the network that it is read from; the first one, reshaped, unless ``derivation`` says more.
        derivation: How it follows from the sources.
        value: Of a scalar; of a derived weight the epsilon.
        image: Whether its second dimension is that of channels, which may as well be the fastest in memory.
    """

    shape: tuple[int, ...]
    role: Role
    order: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    derivation: Derivation = Derivation.NONE
    value: float | None = None
    image: bool = False
    relaid: bool = False

    def strides(self, *, channels_last: bool = False) -> tuple[int, ...]:
        """Distance in elements between neighbours along each dimension.

        Args:
            channels_last: Whether an image has its channels fastest in memory.
        """
        order = tuple(range(len(self.shape))) if self.relaid else self.order or tuple(range(len(self.shape)))
        if channels_last and self.image and not self.order:
            order = (0, *range(2, len(self.shape)), 1)
        found = [1] * len(self.shape)
        step = 1
        for dimension in reversed(order):
            found[dimension] = step
            step *= self.shape[dimension]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of cuDNN's graph API.

    Attributes:
        kind: Name of the frontend's method: ``conv_fprop``, ``matmul``, ``add``, ``relu``, ``reduction``, ...
        inputs: Parameter of the method to name of a tensor.
        output: Name of the tensor that it writes.
        settings: Other parameters: numbers, lists of integers, and names of modes.
    """

    kind: str
    inputs: Mapping[str, str]
    output: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperationGraph:
    """A brick.

    Attributes:
        tensors: By name, in the order in which operations mention them.
        operations: In an order in which they can be executed.
        outputs: Values of the network to names of tensors.
    """

    tensors: Mapping[str, Tensor]
    operations: tuple[Operation, ...]
    outputs: Mapping[str, str]

    def of(self, *roles: Role) -> Iterator[tuple[str, Tensor]]:
        """Tensors of some roles."""
        return ((name, tensor) for name, tensor in self.tensors.items() if tensor.role in roles)
