"""Operator schemas, looked up once: since which opset, which attributes, which outputs are optional."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import defs

from .attributes import Value, read_value

__all__ = ["ANY", "CANONICAL_OPSET", "Schema", "find_schema", "versions_around"]

CANONICAL_OPSET = 21
"""The opset of ONNX's own domain that canonical forms are written for. A constant of ours, not the newest that the
installed onnx knows: a brick's key must not depend on a dependency's version."""
ANY = 1 << 31
"""Later than every version of an operator set."""

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

    def reads_as(self, newer: Schema, attributes: Mapping[str, Value]) -> bool:
        """Whether a node of a newer version is one of this by its attributes and numbers of values.

        Args:
            newer: The other version.
            attributes: Of the node; those that came later must be at their defaults.
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
        """Whether an output slot is optional."""
        return slot < len(self.optional_outputs) and self.optional_outputs[slot]


@cache
def versions_around(domain: str, op_type: str, opset: int) -> tuple[int, int]:
    """The opsets at which an operator has the version that it has at one: the first, and the first not.

    That one alone where ONNX does not define the operator.
    """
    changes = _history().get((domain, op_type), ())
    since = max((change for change in changes if change <= opset), default=None)
    if since is None:
        return opset, opset + 1
    return since, min((change for change in changes if change > opset), default=ANY)


@cache
def _history() -> dict[tuple[str, str], tuple[int, ...]]:
    """Opsets in which each operator of ONNX was defined or changed."""
    found: dict[tuple[str, str], list[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    return {name: tuple(sorted(opsets)) for name, opsets in found.items()}


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
