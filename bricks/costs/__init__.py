"""Work and traffic of a layer, from one small function per operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx

from ...models.subgraphs import plain_domain
from ..layer import Cost, Operand, TensorType
from . import elementwise, fused, linear
from .call import CostedNode, Formula

__all__ = ["FORMULAS", "Cost", "layer_cost"]

FORMULAS: dict[tuple[str, str], Formula] = {
    **linear.ATTENTION_FORMULAS,
    **elementwise.ELEMENTWISE_FORMULAS,
    **fused.FUSED_FORMULAS,
    **linear.LINEAR_FORMULAS,
    **elementwise.MOVEMENT_FORMULAS,
    **elementwise.NORMALIZATION_FORMULAS,
    **linear.POOLING_FORMULAS,
    **fused.QUANTIZATION_FORMULAS,
    **linear.RECURRENT_FORMULAS,
    **elementwise.REDUCTION_FORMULAS,
    **linear.RESAMPLING_FORMULAS,
    **elementwise.SELECTION_FORMULAS,
}
"""Cost function by (domain, operator)."""


def layer_cost(
    node: onnx.NodeProto, operands: Sequence[Operand], output_types: Sequence[TensorType | None]
) -> Cost | None:
    """Return work and traffic of one execution of a layer.

    Args:
        node: The operator in canonical form; if it has none, in source form.
        operands: Its inputs by slot, with types and the values of constants.
        output_types: Types of its outputs by slot; None if unknown or unused.

    Returns:
        The cost; None for an operator without a formula, or with types that its formula cannot use
        (``UnknownCostError`` is a ``LookupError``). A value in several slots counts its bytes once.
    """
    formula = FORMULAS.get((plain_domain(node.domain), node.op_type))
    if formula is None:
        return None
    call = CostedNode(node, tuple(operands), tuple(output_types))
    try:
        work = formula(call)
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


def _bytes(call: CostedNode, *, constant: bool) -> int:
    """Sum the bytes of the distinct constant (weight or constant role) or activation inputs."""
    kinds = ("weight", "constant") if constant else ("activation",)
    sizes: dict[str, int] = {}
    for slot, operand in enumerate(call.operands):
        if operand.role in kinds:
            sizes[operand.value or f"%{slot}"] = call.input(slot).nbytes
    return sum(sizes.values())
