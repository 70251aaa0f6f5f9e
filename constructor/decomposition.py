"""What follows from the decomposition of a model: its quotient graph, and the graph that is executed beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..bricks.decomposition import Decomposition, alone, footprint_class
from ..bricks.graph.footprint import level_name
from ..bricks.graph.graph import ExecutedModel, ModelGraph
from ..bricks.layer import LayerSequence
from .choice import MODEL, Choice
from .composition import Quotient, contract


@dataclass(frozen=True, slots=True)
class Interventions:
    """The bricks of the graph that is executed: what separates fusion, layout and cache.

    Attributes:
        executed: That graph, mapped to the model's layers; None where it is not known.
        parts: Its sequences.
        level: Name of the level of reuse distance that they are measured at.
        reason: Why it is not known, or its units are not; empty where both are.
        written: The model's own graph, where the runtime executes that as it is written.
        units: Sequences of the model's own layers that the runtime's fusions do not reach beyond, all of them; None
            where nobody asked.
    """

    executed: ExecutedModel | None = None
    parts: tuple[LayerSequence, ...] = ()
    level: str = ""
    reason: str = ""
    written: ModelGraph | None = None
    units: tuple[LayerSequence, ...] | None = None

    @property
    def graph(self) -> ModelGraph | None:
        """The graph that is executed."""
        return self.written if self.executed is None else self.executed.graph


def intervened(executed: ExecutedModel) -> Interventions:
    """The bricks of an executed graph, layer by layer."""
    return Interventions(executed, alone(executed.graph), level_name(footprint_class(executed.graph)))


def as_written(graph: ModelGraph) -> Interventions:
    """The bricks of a model whose own graph is executed operator by operator."""
    return Interventions(parts=alone(graph), level=level_name(footprint_class(graph)), written=graph)


def edges(graph: ModelGraph) -> Iterator[tuple[int, int]]:
    """(producer, consumer) of every value; faster than by way of ``graph.graph``, which may never be needed."""
    for layer in graph.layers:
        for value in layer.outputs:
            for consumer in graph.consumers(value):
                yield layer.index, consumer


def quotient_of(graph: ModelGraph, parts: tuple[LayerSequence, ...]) -> Quotient:
    """What remains of a graph when each part is contracted to one node.

    Raises:
        InvalidSequence: Parts wait for each other.
    """
    places: dict[int, list[int]] = {}  # of a layer that is copied: a layer of each sequence that has it as a copy
    for part in parts:
        for index in part.copies:
            places.setdefault(index, []).append(part.own[0])
    return contract(_apart(edges(graph), places), [part.own for part in parts])


def _apart(pairs: Iterable[tuple[int, int]], places: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Edges where what a copied layer reads goes to every copy; what it makes stays in the sequences that have one."""
    for producer, consumer in pairs:
        if producer not in places:
            yield producer, consumer
            yield from ((producer, place) for place in places.get(consumer, ()))


def state_of(model: Decomposition, choice: Choice | None) -> str:
    """The cache state that a model's bricks are looked up in."""
    if choice is None:
        return ""  # nothing is stored in any
    return model.level if choice.conditions.cache == MODEL else choice.conditions.cache
