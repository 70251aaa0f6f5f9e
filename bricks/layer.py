"""A layer: one operator of a model with its types, shapes and parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import onnx

from ..models.subgraphs import kind_of, plain_domain

# Types of tensors.


ELEMENT_BITS: dict[str, int] = {
    "bool": 8, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64,
    "uint64": 64, "float16": 16, "bfloat16": 16, "float": 32, "double": 64, "complex64": 64, "complex128": 128,
    "float8e4m3fn": 8, "float8e4m3fnuz": 8, "float8e5m2": 8, "float8e5m2fnuz": 8, "float8e8m0": 8,
    "int4": 4, "uint4": 4, "float4e2m1": 4, "int2": 2, "uint2": 2, "string": 0,
}  # fmt: skip
"""Bits per element by ONNX type name, ``onnx.TensorProto.DataType.Name(t).lower()``; 0 for text."""


@dataclass(frozen=True, slots=True, order=True)
class TensorType:
    """Element type and static shape of one value.

    Attributes:
        dtype: ONNX's name of the element type in lower case: ``float``, ``int64``, ``bfloat16``.
        shape: Static dimensions; ``()`` is a scalar.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar, 0 when a dimension is 0)."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense buffer; sub-byte types are packed, strings count 0."""
        return (self.elements * ELEMENT_BITS[self.dtype] + 7) // 8


# Sequences: at most G consecutive layers that form a valid network.


@dataclass(frozen=True, slots=True)
class LayerSequence:
    """One occurrence of a brick in a model.

    Attributes:
        layers: Indices of its layers (``Layer.index``), ascending.
        key: The key of its brick.
        inputs: Source names of the activations that it reads from outside, in the order of the brick's inputs.
        weights: Source names of its weights, in the order of the brick's weight inputs.
        outputs: Source names of the values that it exposes, in the order of the brick's outputs.
        copies: Layers in it that a runtime executes or folds once per reader: other sequences contain them too. Each is
            counted in the sequence that contains it but does not list it here.
        reuse: Footprint class, in bytes, of its weights, if an earlier iteration has read them (``graph.footprint``); 0
            for the class of the model.
    """

    layers: tuple[int, ...]
    key: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    copies: tuple[int, ...] = ()
    reuse: int = 0

    @property
    def own(self) -> tuple[int, ...]:
        """Its layers without copies: each live layer of a model is in exactly one sequence."""
        return tuple([index for index in self.layers if index not in self.copies]) if self.copies else self.layers


@dataclass(frozen=True, slots=True)
class Cutting:
    """How models are cut into sequences.

    Attributes:
        granularity: G, the maximum number of layers in a sequence; for a fused cut, of units.
        overlap: Sequences begin at every layer (stride 1), which gives compositions a choice.
        connected: Accept weakly connected sequences as well as paths.
        graph: The graph that is cut. ``source``: the model unchanged. ``runtime``: the graph that a runtime executes
            for it; the bricks belong to that runtime and this machine. ``fused``: the model, cut along the fusions of
            a runtime.
    """

    granularity: int
    overlap: bool = False
    connected: bool = False
    graph: str = "source"


# Work and memory traffic of one execution of a layer.


@dataclass(frozen=True, slots=True)
class Cost:
    """Work by kind and bytes by kind of one execution (after the six counters of dlperf, the code of Benanza).

    Attributes:
        macs: Multiply-accumulates.
        additions: Additions and subtractions outside multiply-accumulates.
        multiplications: Multiplications outside multiply-accumulates.
        divisions: Divisions and square roots.
        exponentials: exp, log, tanh, erf, sigmoid and similar functions, one each.
        comparisons: Comparisons, minima, maxima, selections.
        weight_bytes: Bytes of the constant inputs.
        input_bytes: Bytes of the activation inputs.
        output_bytes: Bytes of the outputs.
    """

    macs: int = 0
    additions: int = 0
    multiplications: int = 0
    divisions: int = 0
    exponentials: int = 0
    comparisons: int = 0
    weight_bytes: int = 0
    input_bytes: int = 0
    output_bytes: int = 0

    @property
    def flops(self) -> int:
        """``2 macs + additions + multiplications + divisions + exponentials`` (comparisons are not counted)."""
        return 2 * self.macs + self.additions + self.multiplications + self.divisions + self.exponentials

    @property
    def activation_bytes(self) -> int:
        """Bytes of activation inputs and outputs."""
        return self.input_bytes + self.output_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def __rmul__(self, times: int) -> Cost:
        return Cost(*(times * getattr(self, name) for name in self.__slots__))


class Role(StrEnum):
    """The role of a layer's input."""

    ACTIVATION = "activation"
    """Computed at run time, from a model input or another layer."""
    WEIGHT = "weight"
    """Constant at inference; its values do not enter keys."""
    CONSTANT = "constant"
    """Constant that decides shape, legality or work; its values enter key and brick."""
    ABSENT = "absent"
    """Optional input without a value."""


class LayerState(StrEnum):
    """The state of a layer after decomposition."""

    LIVE = "live"
    """In a sequence (in exactly one of a non-overlapping split)."""
    FOLDED = "folded"
    """Depends on constants only, or on Shape/Size of static values; takes no time at inference."""
    SKIPPED = "skipped"
    """Cannot be a brick: unknown type or shape; ``Layer.reason`` names it."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One input slot of a layer.

    Attributes:
        value: Name of the value in the source model; empty when absent.
        type: Element type and shape; None when absent or unknown.
        role: The role of the input.
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
        name: The node's name in the source model; ``<op_type>_<index>`` for a node without a name.
        node: The source node (source names, source attributes).
        opsets: Opset per domain of ``node``.
        canonical: The same operator in canonical form, written for ``canonical_opsets``: newest attributes and inputs,
            defaults filled in, references resolved. Input and output slots keep their order. Constants that were
            attributes at the source's opset are named ``%<slot>``, with their value in ``operands``. None if the
            semantics exist only at the source's opset.
        canonical_opsets: Opset per domain of ``canonical``.
        valid_opsets: The opsets of ONNX's own domain with the same meaning, half-open; None for another domain.
        operands: One per input slot of ``canonical``, or of ``node`` without a canonical form.
        outputs: Names of the output values by slot; empty for an unused output.
        output_types: Types of the outputs; None if unknown or unused.
        key: SHA-256 of the canonical form, hexadecimal; empty unless the layer is live.
        cost: Work and traffic of one execution; None if unknown.
        state: Live, folded or skipped.
        reason: Why it was skipped or folded.
    """

    index: int
    name: str
    node: onnx.NodeProto
    opsets: tuple[tuple[str, int], ...]
    operands: tuple[Operand, ...]
    outputs: tuple[str, ...]
    output_types: tuple[TensorType | None, ...]
    state: LayerState
    reason: str = ""
    canonical: onnx.NodeProto | None = None
    canonical_opsets: tuple[tuple[str, int], ...] = ()
    valid_opsets: tuple[int, int] | None = None
    key: str = ""
    cost: Cost | None = None

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
        """The operator; outside ONNX's own domain with the domain and a dot before it."""
        return kind_of(self.node)
