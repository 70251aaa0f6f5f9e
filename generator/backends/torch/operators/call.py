"""One node of a network, as the function that computes its operator sees it."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx
import torch

from .....errors import UnsupportedBrick

__all__ = ["Call", "Tensor", "padded"]

Tensor: TypeAlias = torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A node while it is translated.

    Attributes:
        op_type: Its operator.
        opset: Version of the operator set that it follows.
        attributes: Those that it has; text is ``str``.
        wanted: For each output, whether anything may read it.
        constant: For each input, whether no input of the network decides it.
        dtype_of: From ONNX's number of an element type to PyTorch's type; float32 gives the type that is computed in.
        body: Evaluates a subgraph of the node, given values for its inputs; gives the values of its outputs.
    """

    op_type: str
    opset: int
    attributes: Mapping[str, Any]
    wanted: tuple[bool, ...]
    constant: tuple[bool, ...]
    dtype_of: Callable[[int], torch.dtype]
    body: Callable[[onnx.GraphProto, Sequence[Tensor]], list[Tensor]]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """An attribute that is 0 or 1."""
        return bool(self.attributes.get(name, default))

    def ints(self, name: str, value: Tensor | None) -> list[int] | None:
        """Integers that are an attribute at older opsets and an input at newer ones; None where there are none."""
        if value is not None:
            return [int(each) for each in value.reshape(-1).tolist()]
        found = self.attributes.get(name)
        return None if found is None else [int(each) for each in found]

    def has(self, output: int) -> bool:
        """Whether an output is wanted."""
        return output < len(self.wanted) and self.wanted[output]

    def refuse(self, why: str) -> UnsupportedBrick:
        """The error for something that cannot be expressed."""
        return UnsupportedBrick(f"PyTorch has no {self.op_type} {why}")


def padded(inputs: Sequence[Tensor | None], count: int) -> list[Tensor | None]:
    """Optional inputs, with None for those at the end that a node leaves out."""
    return [*inputs, *[None] * (count - len(inputs))]
