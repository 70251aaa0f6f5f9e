"""A layer: one operator of a model with its types, shapes and parameters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import onnx

from ..models.names import kind_of, plain_domain
from .cost import Cost
from .tensor import TensorType

__all__ = ["Layer", "LayerState", "Operand", "Role"]


class Role(StrEnum):
    """What an input of a layer is."""

    ACTIVATION = "activation"
    """Computed at run time, from a model input or another layer."""
    WEIGHT = "weight"
    """Constant at inference; its values do not enter any key."""
    CONSTANT = "constant"
    """Constant whose values decide shape, legality or work; they enter the key and the brick."""
    ABSENT = "absent"
    """An optional input that is not given."""


class LayerState(StrEnum):
    """Where a layer of the model ends up; exactly one of the three."""

    LIVE = "live"
    """In a sequence (in exactly one of a non-overlapping split)."""
    FOLDED = "folded"
    """Depends on constants only, or on Shape/Size of static values: costs nothing at inference."""
    SKIPPED = "skipped"
    """Cannot be a brick: an unknown type or shape; ``Layer.reason`` says which."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One input slot of a layer.

    Attributes:
        value: Name of the value in the source model; empty when absent.
        type: Element type and shape; None when absent or unknown.
        role: What the input is.
        data: For ``Role.CONSTANT`` the value, as a serialised ``TensorProto`` without a name; else None.
    """

    value: str
    type: TensorType | None
    role: Role
    data: bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One operator of a model.

    Attributes:
        index: Position in the file's node order, counted over the skeleton's nodes.
        name: The node's name in the source model, or ``<op_type>_<index>`` where it has none.
        node: The source node (source names, source attributes).
        opsets: Opset per domain that ``node`` is written for.
        canonical: The same operator in canonical form, written for ``canonical_opsets``: newest attributes and
            inputs, defaults filled in, everything resolved. Input and output slots keep their order; the names
            of constants that were attributes at the source's opset are ``%<slot>``, with their value in
            ``operands``. None where semantics are bound to the source's opset.
        canonical_opsets: Opset per domain that ``canonical`` is written for.
        valid_opsets: The opsets of ONNX's own domain at which it means the same: the first, and the first not; None
            where it does not care, being of another domain.
        operands: One per input slot of ``canonical`` (of ``node`` where that is None).
        outputs: Names of the output values by slot; empty for one that is not wanted.
        output_types: Their types, None where unknown or not wanted.
        key: SHA-256 of the canonical form, hexadecimal; empty for a layer that is not live.
        cost: Work and traffic of one execution; None where unknown (never zero instead).
        state: Live, folded or skipped.
        reason: Why it was skipped (or how it was folded).
    """

    index: int
    name: str
    node: onnx.NodeProto
    opsets: tuple[tuple[str, int], ...]
    canonical: onnx.NodeProto | None
    canonical_opsets: tuple[tuple[str, int], ...]
    valid_opsets: tuple[int, int] | None
    operands: tuple[Operand, ...]
    outputs: tuple[str, ...]
    output_types: tuple[TensorType | None, ...]
    key: str
    cost: Cost | None
    state: LayerState
    reason: str = ""

    @property
    def op_type(self) -> str:
        """The operator, without its domain."""
        return self.node.op_type

    @property
    def domain(self) -> str:
        """The operator's domain; empty for ONNX's own."""
        return plain_domain(self.node.domain)

    @property
    def kind(self) -> str:
        """The operator, behind its domain and a dot where that is not ONNX's own."""
        return kind_of(self.node)
