"""Which values an integer operand may hold, so that its operator is legal."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import AttributeProto, NodeProto

from .walk import Walk

__all__ = ["index_bound", "integer_attributes", "legal_values", "operand"]

_INDEX_SLOTS = {
    "Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "Scatter": 1, "ScatterND": 1, "OneHot": 0,
    "GatherBlockQuantized": 1,
}  # fmt: skip
_TABLE_SLOTS = {0: 2, 1: 4, 8: 3}
"""Of EmbedLayerNormalization: slot of the indices to slot of the table that they address."""
_SHAPE_SLOTS = {("Reshape", 1), ("Expand", 1), ("ConstantOfShape", 0), ("Resize", 3)}
_ONES_SLOTS = {("Tile", 1), ("TopK", 1), ("Slice", 4)}


def integer_attributes(node: NodeProto) -> Mapping[str, int]:
    """The integer attributes that a node writes out."""
    return {item.name: item.i for item in node.attribute if item.type == AttributeProto.INT}


def operand(node: NodeProto, slot: int) -> str:
    """The name in one operand slot; empty where the operand is absent."""
    return node.input[slot] if slot < len(node.input) else ""


def index_bound(walk: Walk, node: NodeProto, slot: int) -> int | None:
    """One more than the largest index that this operand may hold everywhere; None where it holds no indices.

    An axis of unknown length allows index 0 alone.
    """
    options = integer_attributes(node)
    if node.op_type == "EmbedLayerNormalization":
        table = _TABLE_SLOTS.get(slot)
        return max(1, walk.extent(node.input[table], 0) or 1) if table is not None else None
    if _INDEX_SLOTS.get(node.op_type) != slot:
        return None
    if node.op_type == "OneHot":
        extents = [int(walk.scalar(node.input[1]) or 1)]
    elif node.op_type in {"GatherND", "ScatterND"}:
        depth, begin = walk.extent(node.input[1], -1) or 1, options.get("batch_dims", 0)
        extents = [walk.extent(node.input[0], axis) or 1 for axis in range(begin, begin + depth)]
    else:
        axis = options.get("gather_axis" if node.op_type == "GatherBlockQuantized" else "axis", 0)
        extents = [walk.extent(node.input[0], axis) or 1]
    return max(1, min(extents))


def legal_values(walk: Walk, node: NodeProto, slot: int) -> tuple[int, ...] | None:
    """Values that make a shape-like operand legal; None where the operand is not shape-like or nothing is known."""
    if (node.op_type, slot) in _SHAPE_SLOTS:
        return walk.shapes.get(node.output[0])
    return (1,) if (node.op_type, slot) in _ONES_SLOTS else None
