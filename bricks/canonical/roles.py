"""The role of a constant input: a weight, or a constant that decides shape or work.

Keys contain the values of constants only. A constant of up to 16 elements is a CONSTANT (Pow by 2 costs a sixteenth of
Pow by 0.37, and fusions look at scalars), a larger one a WEIGHT. ``Operator.parameters`` are weights at any size,
since a suite has no weights of models. ``Operator.deciding`` slots are constants at any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import defs

from ..layer import Role
from ..operators import OPERATORS, UNKNOWN, Operator
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
    opsets_by_operator: dict[tuple[str, str], list[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        opsets_by_operator.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    return {name: tuple(sorted(opsets)) for name, opsets in opsets_by_operator.items()}


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


def _row(domain: str, op_type: str) -> Operator:
    return OPERATORS.get((domain, op_type), UNKNOWN)


def is_deciding(domain: str, op_type: str, slot: int) -> bool:
    """Return True if the values of an input decide shape, legality or work of an operator of ONNX's own domain."""
    return not domain and slot in _row(domain, op_type).deciding


def constant_role(domain: str, op_type: str, slot: int, *, known: bool, elements: int) -> Role:
    """Return the role of a constant input.

    Returns:
        ``Role.CONSTANT`` or ``Role.WEIGHT``.
    """
    if not known or slot in _row(domain, op_type).parameters:
        return Role.WEIGHT
    if elements <= CONSTANT_ELEMENTS or is_deciding(domain, op_type, slot):
        return Role.CONSTANT
    return Role.WEIGHT
