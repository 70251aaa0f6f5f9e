"""Work and traffic of layers: what a layer computes, and the bytes that it reads and writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import onnx

from ..models.subgraphs import attribute_of
from .costs.costed_node import CostedNode
from .layer import Cost, Layer, Operand, Role, TensorType
from .operators import MICROSOFT, OPERATORS, Trait, operator_of


def layer_cost(
    node: onnx.NodeProto, operands: Sequence[Operand], output_types: Sequence[TensorType | None]
) -> Cost | None:
    """Return work and traffic of one execution of a layer.

    Args:
        node: The operator in canonical form; if it has none, in source form.
        operands: Its inputs by slot, with types and the values of constants.
        output_types: Types of its outputs by slot; None if unknown or unused.

    Returns:
        The cost; None for an operator whose work is not known, or with types that its formula cannot use
        (``UnknownCostError`` is a ``LookupError``). A value in several slots counts its bytes once.
    """
    call = CostedNode(node, tuple(operands), tuple(output_types), _activation(node))
    try:
        work = operator_of(node).arithmetic(call)
        return dataclasses.replace(
            work,
            weight_bytes=_bytes(call, constant=True),
            input_bytes=_bytes(call, constant=False),
            output_bytes=sum(
                call.output(slot).nbytes for slot, name in enumerate(node.output) if name and slot < len(output_types)
            ),
        )
    except (LookupError, ValueError, TypeError, ArithmeticError):
        # A node that violates its operator's definition has no cost. Nothing checks operators outside ONNX.
        return None


def _activation(node: onnx.NodeProto) -> Cost | None:
    """Return the work per element of the activation that a node names; None without one, or if it is unknown."""
    name = attribute_of(node, "activation", "")
    row = OPERATORS.get(("", name)) or OPERATORS.get((MICROSOFT, name))
    return None if row is None or row.each is None else row.each[1]


def _bytes(call: CostedNode, *, constant: bool) -> int:
    """Sum the bytes of the distinct constant (weight or constant role) or activation inputs."""
    kinds = ("weight", "constant") if constant else ("activation",)
    sizes: dict[str, int] = {}
    for slot, operand in enumerate(call.operands):
        if operand.role in kinds:
            sizes[operand.value or f"%{slot}"] = call.input(slot).nbytes
    return sum(sizes.values())


# Bytes of weights that layers read.


def selects(layer: Layer, slot: int) -> bool:
    """Return True if a layer reads at most as many bytes of an input as it writes, such as rows of a table."""
    return not slot and not layer.domain and Trait.SELECTS in operator_of(layer.node).traits


def weights_read(layers: Iterable[Layer]) -> int:
    """Sum the bytes of weights that layers read in one execution, each weight once."""
    return sum(reads_of(layers).values())


def reads_of(layers: Iterable[Layer]) -> dict[str, int]:
    """Return the bytes that layers read of each weight in one execution, by name."""
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
