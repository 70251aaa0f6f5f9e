"""Families of bricks: what one part of a model is at several sizes of a dimension of it.

Two sequences of a model at two sizes are of one family where they stand for the same layers of the model's own graph,
and have the same structure: operators, wiring, roles, element types and ranks, in short all but extents. What they read
and write then differs by the size alone, and so does their attributes' meaning: it is the same layer of the same file.
Of what a runtime put in by itself (layout changes) the layers count that stand before and behind it. Where a runtime
executes something else at another size, fuses other layers or leaves a change of layout out, no sequence there is
alike: the family has no member at that size, and nothing stands in for it.

Where a model has several sequences alike, they are told apart by their order, and are of a family with those of sizes
at which there are as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from ..bricks.graph.executed import ExecutedModel
from ..bricks.graph.graph import ModelGraph
from ..bricks.graph.outline import operator_of
from ..bricks.layer import Operand, Role
from ..bricks.sequence import LayerSequence
from ..bricks.tensor import TensorType

__all__ = ["families"]


def families(
    graph: ModelGraph, parts: Sequence[LayerSequence], executed: ExecutedModel | None = None
) -> tuple[Hashable, ...]:
    """The family of each sequence; no two of a model are of one.

    Args:
        graph: The graph that was cut.
        parts: Its sequences.
        executed: What the graph was made from, where it is one that a runtime executes.
    """
    found = [(_layers_of(graph, part, executed), _structure(graph, part)) for part in parts]
    counts, seen = Counter(found), Counter[Hashable]()
    numbered = []
    for one in found:
        numbered.append((*one, seen[one], counts[one]))
        seen[one] += 1
    return tuple(numbered)


def _layers_of(graph: ModelGraph, part: LayerSequence, executed: ExecutedModel | None) -> Hashable:
    """Names of the model's own layers that a sequence stands for, or stands between."""
    if executed is None:
        return tuple(graph.layers[index].name for index in part.layers)
    own = _origins(executed, part.layers)
    if own:
        return own
    before = {index for value in part.inputs if (index := graph.producer(value)) is not None}
    behind = {index for value in part.outputs for index in graph.consumers(value)}
    return _origins(executed, before), part.inputs if not before else (), _origins(executed, behind)


def _origins(executed: ExecutedModel, layers: Sequence[int] | set[int]) -> tuple[str, ...]:
    indices = frozenset[int]().union(*(executed.origins[index] for index in layers))
    return tuple(executed.source.layers[index].name for index in sorted(indices))


def _structure(graph: ModelGraph, part: LayerSequence) -> Hashable:
    """A sequence without extents."""
    numbers: dict[str, int] = {}
    described = []
    for index in part.layers:
        layer = graph.layers[index]
        reads = tuple(_fed(operand, numbers) for operand in layer.operands)
        writes = tuple(
            (numbers.setdefault(value, len(numbers)), value in part.outputs, _ranked(kind)) if value else None
            for value, kind in zip(layer.outputs, layer.output_types, strict=True)
        )
        described.append((operator_of(layer), reads, writes))
    return tuple(described)


def _fed(operand: Operand, numbers: dict[str, int]) -> Hashable:
    """An input slot. How many values a constant has decides whether they are kept, and so is no difference."""
    if operand.role is Role.ABSENT:
        return None
    number = numbers.setdefault(operand.value, len(numbers)) if operand.role is Role.ACTIVATION else None
    return number, _ranked(operand.type)


def _ranked(kind: TensorType | None) -> tuple[str, int] | None:
    return None if kind is None else (kind.dtype, len(kind.shape))
