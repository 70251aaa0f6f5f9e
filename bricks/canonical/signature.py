"""What decides a layer's identity, and what canonicalising it gives.

A ``Signature`` is all that decides a layer's identity, free of names: two layers with equal signatures are one
computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import onnx

from ..tensor import TensorType
from .draft import Slot

__all__ = ["Form", "Signature"]


class Signature(NamedTuple):
    """An operator without names.

    Attributes:
        domain: Empty for ONNX's own.
        op_type: The operator.
        opsets: Opset by domain, sorted, of the model (bodies may use several).
        attributes: Serialised ``AttributeProto`` each, sorted by name; bodies are free of names (``bodies.py``).
        slots: The inputs.
        outputs: Types of the wanted outputs by slot; None where not wanted (or, inside a body, unknown).
    """

    domain: str
    op_type: str
    opsets: tuple[tuple[str, int], ...]
    attributes: tuple[bytes, ...]
    slots: tuple[Slot, ...]
    outputs: tuple[TensorType | None, ...]

    @property
    def opset(self) -> int:
        """The opset of the operator's own domain."""
        return dict(self.opsets).get(self.domain, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What canonicalising a signature gives.

    Attributes:
        node: The node without input and output names.
        opsets: Opset by domain that ``node`` is written for.
        slots: The inputs of ``node``.
        key: SHA-256, hexadecimal.
        valid: The opsets of ONNX's own domain at which ``node`` means the same: the first, and the first not; None for
            a node of another domain, which does not care.
        bound: Whether ``node`` is the source's, because its meaning cannot be written at the canonical opset.
        problem: Why the operator cannot be a brick; empty where it can.
    """

    node: onnx.NodeProto
    opsets: tuple[tuple[str, int], ...]
    slots: tuple[Slot, ...]
    key: str
    valid: tuple[int, int] | None = None
    bound: bool = False
    problem: str = ""
