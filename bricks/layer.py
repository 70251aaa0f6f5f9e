"""A layer: one operator of a model with its types, shapes and parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import onnx

from ..models.subgraphs import kind_of, plain_domain

# The type of a tensor: element type and static shape.


ELEMENT_BITS: dict[str, int] = {
    "bool": 8, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64,
    "uint64": 64, "float16": 16, "bfloat16": 16, "float": 32, "double": 64, "complex64": 64, "complex128": 128,
    "float8e4m3fn": 8, "float8e4m3fnuz": 8, "float8e5m2": 8, "float8e5m2fnuz": 8, "float8e8m0": 8,
    "int4": 4, "uint4": 4, "float4e2m1": 4, "int2": 2, "uint2": 2, "string": 0,
}  # fmt: skip
"""Bits per element by ONNX type name, ``onnx.TensorProto.DataType.Name(t).lower()``; 0 where there is no size."""


@dataclass(frozen=True, slots=True, order=True)
class TensorType:
    """Element type and static shape of one value.

    Attributes:
        dtype: ONNX's own name of the element type in lower case: ``float``, ``int64``, ``bfloat16``.
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


# Operators of ONNX by what they do, where several stages ask for it.


DEQUANTIZE, QUANTIZE = "DequantizeLinear", "QuantizeLinear"
"""From quantised values to real ones, and back: what stands around an operator of a quantised model (QDQ)."""

RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
"""Their results differ from one inference to the next, whatever they read: nothing may compute them ahead."""

REDUCTIONS = frozenset({
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
})  # fmt: skip
"""Reductions over the axes that their second input names."""

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Their result has the elements that they read, in the same order."""

UNMOVED = VIEWS | {"Dropout"}
"""A runtime may do them without moving anything."""

POINTWISE = frozenset({
    "Abs", "Acos", "Add", "Asin", "Asinh", "Atan", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Dropout", "Elu",
    "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Mean", "Min",
    "Mish", "Mul", "Neg", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu",
})  # fmt: skip
"""Each element of the result comes from those at its place, so that a channel stays a channel."""

PARAMETERISED = frozenset({"Clip", "Dropout"})
"""Of these the further inputs are single numbers, which are not broadcast."""

PRODUCTS = frozenset({"Gemm", "MatMul"})
POOLS = frozenset({"AveragePool", "MaxPool"})
GLOBAL_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool"})
RECURRENT = frozenset({"GRU", "LSTM", "RNN"})


# A sequence: at most G layers, consecutive in the model's order, that form a valid network.


@dataclass(frozen=True, slots=True)
class LayerSequence:
    """One occurrence of a brick in a model.

    Attributes:
        layers: Indices of its layers (``Layer.index``), ascending.
        key: The key of its brick.
        inputs: Source names of the activations it reads from outside, in the order of the brick's inputs.
        weights: Source names of its weights, in the order of the brick's weight inputs.
        outputs: Source names of the values it exposes, in the order of the brick's outputs.
        copies: Those of its layers that other sequences hold too, each for itself: a runtime executes, or folds, one
            for each reader. They are counted in the sequence that has them without being a copy.
        reuse: Footprint class, in bytes, that its weights are found in, since an iteration before has read them
            (``graph.footprint``); 0: that of its model.
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
        """Its layers without copies: each live layer of a model is in one sequence so."""
        return tuple([index for index in self.layers if index not in self.copies]) if self.copies else self.layers


# Work and memory traffic of one execution of a layer.


@dataclass(frozen=True, slots=True)
class Cost:
    """Work by kind and bytes by kind of one execution (after the six counters of Benanza's code, dlperf).

    Attributes:
        macs: Multiply-accumulates.
        additions: Additions and subtractions outside multiply-accumulates.
        multiplications: Multiplications outside multiply-accumulates.
        divisions: Divisions and square roots.
        exponentials: exp, log, tanh, erf, sigmoid and the like, one each.
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
        """The operator, behind its domain and a dot where that is not ONNX's own."""
        return kind_of(self.node)


# How much of its inputs a layer reads.


_SELECTING = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
"""Operators that read of their first input no more than they write."""


def selects(layer: Layer, slot: int) -> bool:
    """Whether a layer reads of an input no more than it writes, as of the table of an embedding."""
    return not slot and not layer.domain and layer.op_type in _SELECTING


def weights_read(layers: Iterable[Layer]) -> int:
    """Bytes of the weights that layers read in one execution, each weight once."""
    return sum(reads_of(layers).values())


def reads_of(layers: Iterable[Layer]) -> dict[str, int]:
    """Bytes that layers read of each of their weights in one execution, by name."""
    read: dict[str, int] = {}
    for layer in layers:
        for slot, operand in enumerate(layer.operands):
            if operand.role is not Role.WEIGHT or operand.type is None:
                continue
            size = operand.type.nbytes
            if selects(layer, slot):
                size = min(size, sum(kind.nbytes for kind in layer.output_types if kind is not None))
            read[operand.value] = max(size, read.get(operand.value, 0))
    return read
