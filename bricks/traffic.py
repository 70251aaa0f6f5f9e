"""How much of its inputs a layer reads."""

from __future__ import annotations

from collections.abc import Iterable

from .layer import Layer, Role

__all__ = ["reads_of", "selects", "weights_read"]

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
