"""Work: what one execution of a sequence computes and moves."""

from __future__ import annotations

from dataclasses import dataclass

from ...bricks.graph.graph import ModelGraph
from ...bricks.layer import Layer, Role
from ...bricks.operators import PRODUCTS
from ...bricks.sequence import LayerSequence
from ...bricks.tensor import TensorType
from ...bricks.traffic import selects

__all__ = ["Work", "work_of"]

_NARROWER = {"float16": 2, "bfloat16": 2}
"""How many times narrower than float32 a value is in other precisions."""

_INT8 = "int8"
"""The precision in which only products with constant weights are computed, and only their weights are narrow."""

_NARROWER_WEIGHTS = 4


@dataclass(frozen=True, slots=True)
class Work:
    """What one execution of a sequence computes and moves.

    Attributes:
        flops: As ``Cost.flops``; None where that of a layer is not known.
        weight_bytes: Weights that it reads.
        read_bytes: Activations that it reads from outside.
        written_bytes: Activations that it exposes.
        single_flops: Of ``flops`` those that are computed in float32 although the precision is another.
    """

    flops: int | None
    weight_bytes: int
    read_bytes: int
    written_bytes: int
    single_flops: int = 0

    @property
    def bytes(self) -> int:
        """All bytes, each once."""
        return self.weight_bytes + self.read_bytes + self.written_bytes

    @property
    def working_set(self) -> int:
        """The least memory that it takes: a runtime may write results in the place of what they are made of."""
        return self.weight_bytes + max(self.read_bytes, self.written_bytes)


def work_of(graph: ModelGraph, part: LayerSequence, dtype: str = "float32") -> Work:
    """What a sequence computes and moves.

    An operator that selects reads of what it selects from no more than it writes. Values of type float count as wide
    as the precision that they are computed in; in int8, that is the weights of matrix products.
    """
    layers = [graph.layers[index] for index in part.layers]
    flops: int | None = 0
    single_flops = 0
    for layer in layers:
        flops = None if flops is None or layer.cost is None else flops + layer.cost.flops
        if layer.cost is not None and dtype == _INT8 and not _quantised(layer):
            single_flops += layer.cost.flops
    reads: dict[str, int] = {}
    weights = set[str]()
    for layer in layers:
        for slot, operand in enumerate(layer.operands):
            if operand.type is not None and operand.role in {Role.ACTIVATION, Role.WEIGHT}:
                moved = _moved(layer, slot, operand.type, dtype)
                reads[operand.value] = max(moved, reads.get(operand.value, 0))
                if operand.role is Role.WEIGHT:
                    weights.add(operand.value)
    made = {value for layer in layers for value in layer.outputs}
    types = {value: kind for layer in layers for value, kind in zip(layer.outputs, layer.output_types, strict=True)}
    written = sum(_nbytes(kind, dtype) for value in part.outputs if (kind := types.get(value)) is not None)
    read = sum(size for value, size in reads.items() if value not in made and value not in weights)
    return Work(flops, sum(reads[value] for value in weights), read, written, single_flops)


def _moved(layer: Layer, slot: int, kind: TensorType, dtype: str) -> int:
    """Bytes that a layer reads of an input."""
    size = _nbytes(kind, dtype)
    if slot == 1 and dtype == _INT8 and _quantised(layer):
        return size // _NARROWER_WEIGHTS
    if not selects(layer, slot):
        return size
    return min(size, sum(_nbytes(made, dtype) for made in layer.output_types if made is not None))


def _quantised(layer: Layer) -> bool:
    """Whether a layer is a product with constant weights of type float: all that is computed in int8."""
    if layer.domain or layer.op_type not in PRODUCTS or len(layer.operands) < 2:
        return False
    second = layer.operands[1]
    return second.role is Role.WEIGHT and second.type is not None and second.type.dtype == "float"


def _nbytes(kind: TensorType, dtype: str) -> int:
    return kind.nbytes // _NARROWER.get(dtype, 1) if kind.dtype == "float" else kind.nbytes
