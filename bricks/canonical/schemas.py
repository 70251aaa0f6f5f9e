"""Operator schemas, looked up once: since which opset, which attributes, which outputs are optional."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import defs

from .attributes import Value, read_value

__all__ = ["CANONICAL_OPSET", "Schema", "find_schema"]

CANONICAL_OPSET = 21
"""The opset of ONNX's own domain that canonical forms are written for. A constant of ours, not the newest that the
installed onnx knows: a brick's key must not depend on a dependency's version."""

_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
_VARIADIC = defs.OpSchema.FormalParameterOption.Variadic


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """What a canonical form needs of one version of an operator.

    Attributes:
        since: The opset that introduced this version.
        kinds: Attribute name to ``AttributeProto.AttributeType``.
        defaults: Attribute name to default value, where there is one.
        optional_outputs: For each formal output, whether it may be left out.
        input_types: For each formal input, the type strings it takes (``tensor(float)``).
        variadic_input: Whether the last formal input repeats.
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
        """Whether an input slot exists and may be a tensor of an element type."""
        if slot >= len(self.input_types):
            if not self.variadic_input:
                return False
            slot = len(self.input_types) - 1
        return f"tensor({dtype})" in self.input_types[slot]

    def gives(self, slot: int, dtype: str) -> bool:
        """Whether an output slot may be a tensor of an element type (a variadic last output repeats)."""
        slot = min(slot, len(self.output_types) - 1)
        return slot >= 0 and f"tensor({dtype})" in self.output_types[slot]

    def may_omit(self, slot: int) -> bool:
        """Whether an output slot is optional."""
        return slot < len(self.optional_outputs) and self.optional_outputs[slot]


@cache
def find_schema(domain: str, op_type: str, opset: int) -> Schema | None:
    """The version of an operator that holds at an opset.

    Args:
        domain: Empty for ONNX's own.
        op_type: The operator.
        opset: The opset that the model imports for the domain.

    Returns:
        None where the installed onnx does not know the operator at that opset.
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
