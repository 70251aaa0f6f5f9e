"""Attributes as plain values: read from ONNX, written back, and spelled for a key."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import AttributeProto

from ..constants import encode_tensor

__all__ = ["Value", "read_value", "spell_value", "write_attribute"]

Value = Any
"""int, float, bytes, a tuple of one of these, or a protocol message (tensor, graph, type, sparse tensor)."""

_FIELDS: dict[int, str] = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
_LISTS = frozenset(kind for kind, field in _FIELDS.items() if field.endswith("s") and field != "s")


def read_value(attribute: AttributeProto) -> Value:
    """The value of an attribute; lists become tuples.

    Raises:
        ValueError: The attribute has no type (it refers to a function's parameter, or is malformed).
    """
    kind = attribute.type
    field = _FIELDS.get(kind)
    if field is None:
        raise ValueError(f"attribute {attribute.name!r} has no type")
    value = getattr(attribute, field)
    return tuple(value) if kind in _LISTS else value


def write_attribute(node: onnx.NodeProto, name: str, value: Value, kind: int) -> None:
    """Add an attribute with a name, a value and a type to a node."""
    node.attribute.add(name=name, type=kind, **{_FIELDS[kind]: value})


def spell_value(value: Value) -> object:
    """A value as JSON: injective, and the same on every machine.

    Floats stay floats (their shortest decimal form is exact, and ``1.0`` is not ``1``); text and messages are
    tagged, so that no two kinds share a spelling.
    """
    if isinstance(value, int | float):
        return value
    if isinstance(value, tuple):
        return [spell_value(item) for item in value]
    if isinstance(value, bytes):
        return {"s": value.decode("latin-1")}
    if isinstance(value, onnx.TensorProto):
        return {"t": encode_tensor(value).hex()}
    return {"p": value.SerializeToString(deterministic=True).hex()}
