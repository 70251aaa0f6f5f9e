"""The role of a constant input: a weight, or a constant that decides shape or work.

Keys contain the values of constants only. A constant of up to 16 elements is a CONSTANT (Pow by 2 costs a sixteenth of
Pow by 0.37, and fusions look at scalars), a larger one a WEIGHT. The slots of ``_PARAMETERS`` are weights at any size,
because a suite contains no weights of its models. The slots of ``_DECIDING`` are constants at any size: their values
decide shape, legality or work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import defs

from ..layer import Role
from .draft import Value, read_value

# Operator schemas, looked up once.


CANONICAL_OPSET = 21
"""The opset of ONNX's own domain for canonical forms. It is fixed, so that a brick's key does not depend on the
installed version of onnx."""
ANY = 1 << 31
"""An opset later than every version."""

_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
_VARIADIC = defs.OpSchema.FormalParameterOption.Variadic


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """One version of an operator, as canonical forms use it.

    Attributes:
        since: The opset that introduced this version.
        kinds: Attribute name to ``AttributeProto.AttributeType``.
        defaults: Attribute name to default value, if it has one.
        optional_outputs: For each formal output: True if it may be omitted.
        input_types: For each formal input, the accepted type strings (``tensor(float)``).
        variadic_input: True if the last formal input repeats.
        output_types: As ``input_types``, for the outputs.
    """

    since: int
    kinds: Mapping[str, int]
    defaults: Mapping[str, Value]
    optional_outputs: tuple[bool, ...]
    input_types: tuple[frozenset[str], ...]
    variadic_input: bool
    output_types: tuple[frozenset[str], ...]

    def takes(self, slot: int, dtype: str) -> bool:
        """Return True if an input slot exists and accepts an element type."""
        if slot >= len(self.input_types):
            if not self.variadic_input:
                return False
            slot = len(self.input_types) - 1
        return f"tensor({dtype})" in self.input_types[slot]

    def gives(self, slot: int, dtype: str) -> bool:
        """Return True if an output slot may have an element type (a variadic last output repeats)."""
        slot = min(slot, len(self.output_types) - 1)
        return slot >= 0 and f"tensor({dtype})" in self.output_types[slot]

    def reads_as(self, newer: Schema, attributes: Mapping[str, Value]) -> bool:
        """Return True if a node of a newer version is also valid here by attributes and numbers of values.

        Args:
            newer: The other version.
            attributes: The node's attributes; those added later must be at their defaults.
        """
        added = newer.kinds.keys() - self.kinds.keys()
        return (
            all(name in newer.defaults and attributes.get(name) in (None, newer.defaults[name]) for name in added)
            and self.kinds == {name: kind for name, kind in newer.kinds.items() if name not in added}
            and self.defaults == {name: value for name, value in newer.defaults.items() if name not in added}
            and (self.optional_outputs, len(self.input_types), self.variadic_input)
            == (newer.optional_outputs, len(newer.input_types), newer.variadic_input)
        )

    def may_omit(self, slot: int) -> bool:
        """Return True if an output slot is optional."""
        return slot < len(self.optional_outputs) and self.optional_outputs[slot]


@cache
def versions_around(domain: str, op_type: str, opset: int) -> tuple[int, int]:
    """Return the opsets, half-open, at which an operator has the same version as at the given opset.

    If ONNX does not define the operator, only the given opset.
    """
    changes = _history().get((domain, op_type), ())
    since = max((change for change in changes if change <= opset), default=None)
    if since is None:
        return opset, opset + 1
    return since, min((change for change in changes if change > opset), default=ANY)


@cache
def _history() -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the opsets at which each operator of ONNX was defined or changed."""
    found: dict[tuple[str, str], list[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    return {name: tuple(sorted(opsets)) for name, opsets in found.items()}


@cache
def find_schema(domain: str, op_type: str, opset: int) -> Schema | None:
    """Return the version of an operator at an opset.

    Args:
        domain: Empty for ONNX's own.
        op_type: The operator.
        opset: The opset that the model imports for the domain.

    Returns:
        None if the installed onnx does not know the operator at this opset.
    """
    try:
        schema = defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return None
    return Schema(
        since=schema.since_version,
        kinds={name: int(attribute.type.value) for name, attribute in schema.attributes.items()},  # type: ignore[attr-defined]
        defaults={
            name: read_value(attribute.default_value)
            for name, attribute in schema.attributes.items()
            if attribute.default_value.type != onnx.AttributeProto.UNDEFINED
        },
        optional_outputs=tuple(output.option == _OPTIONAL for output in schema.outputs),
        input_types=tuple(frozenset(parameter.types) for parameter in schema.inputs),
        variadic_input=bool(schema.inputs) and schema.inputs[-1].option == _VARIADIC,
        output_types=tuple(frozenset(parameter.types) for parameter in schema.outputs),
    )


CONSTANT_ELEMENTS = 16
"""Constants of up to this many elements enter the key with their values (docs/contributing/architecture.md)."""

_PARAMETERS: dict[tuple[str, str], frozenset[int]] = {
    ("", op_type): frozenset(slots)
    for op_type, slots in {
        "BatchNormalization": (1, 2, 3, 4),
        "Conv": (1, 2),
        "ConvInteger": (1,),
        "ConvTranspose": (1, 2),
        "DeformConv": (1, 3),
        "DequantizeLinear": (0, 1),
        "GRU": (1, 2, 3, 5),
        "Gemm": (0, 1, 2),
        "GroupNormalization": (1, 2),
        "InstanceNormalization": (1, 2),
        "LSTM": (1, 2, 3, 5, 6, 7),
        "LayerNormalization": (1, 2),
        "MatMul": (0, 1),
        "MatMulInteger": (0, 1),
        "PRelu": (1,),
        "QLinearConv": (1, 3, 4, 6, 8),
        "QLinearMatMul": (0, 1, 3, 4, 6),
        "QuantizeLinear": (1,),
        "RMSNormalization": (1,),
        "RNN": (1, 2, 3, 5),
        "SimplifiedLayerNormalization": (1,),
    }.items()
} | {
    ("com.microsoft", op_type): frozenset(slots)
    for op_type, slots in {
        "Attention": (1, 2),
        "BiasGelu": (1,),
        "DequantizeLinear": (0, 1),
        "DynamicQuantizeLSTM": (1, 2, 3, 7, 8, 10),
        "DynamicQuantizeMatMul": (1, 2, 4),
        "EmbedLayerNormalization": (2, 3, 4, 5, 6),
        "FastGelu": (1,),
        "FusedConv": (1, 2),
        "FusedGemm": (0, 1, 2),
        "FusedMatMul": (0, 1),
        "GatherBlockQuantized": (0, 2),
        "MatMulIntegerToFloat": (1, 2, 3, 6),
        "MatMulNBits": (1, 2),
        "MultiHeadAttention": (3,),
        "NhwcConv": (1, 2),
        "QAttention": (1, 2, 3, 4),
        "QGemm": (1, 3, 4, 6, 7),
        "QLinearAdd": (1, 4, 6),
        "QLinearAveragePool": (1, 3),
        "QLinearConcat": (0,),
        "QLinearConv": (1, 3, 4, 6, 8),
        "QLinearGlobalAveragePool": (1, 3),
        "QLinearLeakyRelu": (1, 3),
        "QLinearMul": (1, 4, 6),
        "QLinearReduceMean": (1, 3),
        "QLinearSigmoid": (1, 3),
        "QLinearSoftmax": (1, 3),
        "QLinearWhere": (2, 5, 7),
        "QuantizeLinear": (1,),
        "SkipGroupNorm": (1, 2),
        "SkipLayerNormalization": (2, 3, 4),
        "SkipSimplifiedLayerNormalization": (2, 3),
        "TransposeMatMul": (0, 1),
    }.items()
}
"""Weights, biases, scales of normalisation and quantisation by (domain, operator). Zero points are excluded, because
runtimes choose kernels by them."""

_PARAMETERS["com.microsoft.nchwc", "Conv"] = _PARAMETERS["", "Conv"]

_DECIDING: dict[str, frozenset[int]] = {
    op_type: frozenset(slots)
    for op_type, slots in {
        "AffineGrid": (1,),
        "Attention": (6,),
        "BlackmanWindow": (0,),
        "CenterCropPad": (1,),
        "Col2Im": (1, 2),
        "Compress": (1,),
        "ConstantOfShape": (0,),
        "CumSum": (1,),
        "DFT": (1, 2),
        "Expand": (1,),
        "GRU": (4,),
        "HammingWindow": (0,),
        "HannWindow": (0,),
        "LSTM": (4,),
        "Loop": (0,),
        "MaxUnpool": (2,),
        "MelWeightMatrix": (0, 1, 2, 3, 4),
        "NonMaxSuppression": (2, 3, 4),
        "OneHot": (1,),
        "Pad": (1, 3),
        "RNN": (4,),
        "Range": (0, 1, 2),
        "ReduceL1": (1,),
        "ReduceL2": (1,),
        "ReduceLogSum": (1,),
        "ReduceLogSumExp": (1,),
        "ReduceMax": (1,),
        "ReduceMean": (1,),
        "ReduceMin": (1,),
        "ReduceProd": (1,),
        "ReduceSum": (1,),
        "ReduceSumSquare": (1,),
        "Reshape": (1,),
        "Resize": (1, 2, 3),
        "ReverseSequence": (1,),
        "STFT": (1, 3),
        "SequenceAt": (1,),
        "Slice": (1, 2, 3, 4),
        "Split": (1,),
        "SplitToSequence": (1,),
        "Squeeze": (1,),
        "Tile": (1, 2),
        "TopK": (1,),
        "Trilu": (1,),
        "Unsqueeze": (1,),
        "Upsample": (1,),
    }.items()
}


def is_deciding(domain: str, op_type: str, slot: int) -> bool:
    """Return True if the values of an input decide shape, legality or work of an operator of ONNX's own domain."""
    return not domain and slot in _DECIDING.get(op_type, ())


def constant_role(domain: str, op_type: str, slot: int, *, known: bool, elements: int) -> Role:
    """Return the role of a constant input.

    Args:
        domain: The operator's domain, empty for ONNX's own.
        op_type: The operator.
        slot: The input slot.
        known: True if the constant's values are known.
        elements: Its number of elements.

    Returns:
        ``Role.CONSTANT`` or ``Role.WEIGHT``.
    """
    if not known or slot in _PARAMETERS.get((domain, op_type), ()):
        return Role.WEIGHT
    if elements <= CONSTANT_ELEMENTS or is_deciding(domain, op_type, slot):
        return Role.CONSTANT
    return Role.WEIGHT
