"""Parts of the time of a decoder's execution: weights, cache, head, and computed shapes.

Every brick of an estimate belongs to one part:

* *head*: the last product with weights before the logits;
* *weights*: the other products with weights. A step reads them from memory once for each token;
* *attention*: layers that read the cache, or values made from it, up to the next product with weights. It grows with
  the context;
* *shapes*: layers that depend on sizes of values alone. A session with open lengths computes it in each execution;
* *others*: the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..bricks.graph.model_graph import ModelGraph
from ..bricks.layer import Layer, Role
from ..bricks.operators import Kind, named, operator_of
from .result import Estimate

HEAD, WEIGHTS, ATTENTION, SHAPES, OTHERS = "head", "weights", "attention", "shapes", "others"


@dataclass(frozen=True, slots=True)
class PartTime:
    """A part of an execution.

    Attributes:
        name: ``head``, ``weights``, ``attention``, ``shapes`` or ``others``.
        ms: Sum of its bricks.
        nodes: Number of its nodes.
        weight_bytes: Bytes of their weights.
    """

    name: str
    ms: float
    nodes: int
    weight_bytes: int

    @property
    def gb_per_s(self) -> float | None:
        """Bytes of weights over time; None for a part without either."""
        return self.weight_bytes / self.ms / 1e6 if self.weight_bytes and self.ms else None


def token_parts(entry: Estimate, caches: Collection[str], logits: str) -> tuple[PartTime, ...]:
    """Return the parts of an execution of a decoder; empty if a brick is not measured.

    Args:
        entry: The estimate at one length.
        caches: Inputs of the model with keys and values.
        logits: Output of the model with the scores of tokens.
    """
    decomposition = entry.model.decomposition
    if decomposition is None or any(row.latency_ms is None for row in entry.parts.sequences):
        return ()
    graph = decomposition.graph
    homes = parts_of(graph, caches, logits)
    ms = dict.fromkeys((WEIGHTS, HEAD, ATTENTION, SHAPES, OTHERS), 0.0)
    nodes, weight_bytes = dict.fromkeys(ms, 0), dict.fromkeys(ms, 0)
    for row in entry.parts.sequences:
        home = min((homes[index] for index in row.layers), key=[*ms].index)
        ms[home] += row.latency_ms or 0.0
        nodes[home] += len(row.layers)
        weight_bytes[home] += sum(
            operand.type.nbytes
            for index in row.layers
            for operand in graph.layers[index].operands
            if operand.role is Role.WEIGHT and operand.type is not None
        )
    return tuple(PartTime(name, ms[name], nodes[name], weight_bytes[name] if name in _PRODUCTS else 0) for name in ms)


_PRODUCTS = (WEIGHTS, HEAD)
"""Parts that read all of their weights; of a table a token reads one row."""


def parts_of(graph: ModelGraph, caches: Collection[str], logits: str) -> Mapping[int, str]:
    """Return the part of each live layer of a decoder's graph.

    Args:
        graph: The graph that is cut.
        caches: As for ``token_parts``.
        logits: As for ``token_parts``.
    """
    sizes, cached = set[str](), {*caches}
    homes: dict[int, str] = {}
    for index in graph.live:
        layer = graph.layers[index]
        reads = [operand.value for operand in layer.operands if operand.role is Role.ACTIVATION]
        if layer.op_type in named(Kind.MEASURE) or (reads and sizes.issuperset(reads)):
            homes[index] = SHAPES
            sizes.update(layer.outputs)
        elif _multiplies_weights(layer):
            homes[index] = WEIGHTS
        elif not cached.isdisjoint(reads):
            homes[index] = ATTENTION
            cached.update(layer.outputs)
        else:
            homes[index] = OTHERS
    if (head := _head(graph, homes, logits)) is not None:
        homes[head] = HEAD
    return homes


def _multiplies_weights(layer: Layer) -> bool:
    """Return True for a product with a matrix of weights; fused attention may also read tables of angles."""
    row, names = operator_of(layer.node), list(layer.node.input)
    multiplied = (
        {names[slot] for slot in row.parameters if slot < len(names)} if row.kind & Kind.ATTENTION else {*names}
    )
    return bool(layer.cost and layer.cost.macs) and any(
        operand.role is Role.WEIGHT
        and operand.type is not None
        and len(operand.type.shape) > 1
        and operand.value in multiplied
        for operand in layer.operands
    )


def _head(graph: ModelGraph, homes: Mapping[int, str], logits: str) -> int | None:
    """Return the last product with weights on the way to the logits."""
    pending, seen = [logits], set[str]()
    while pending:
        value = pending.pop(0)
        maker = graph.producer(value)
        if maker is None or value in seen:
            continue
        seen.add(value)
        if homes.get(maker) == WEIGHTS:
            return maker
        pending += [operand.value for operand in graph.layers[maker].operands if operand.role is Role.ACTIVATION]
    return None
