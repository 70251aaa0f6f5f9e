"""The decomposition of a model as a value, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..bricks.cutting.windows import KeyedWindow
from ..bricks.cutting.wiring import sequences
from ..bricks.graph.executed import ExecutedModel
from ..bricks.graph.footprint import footprint, level_name
from ..bricks.graph.graph import ModelGraph
from ..bricks.graph.outline import Outline
from ..bricks.graph.reuse import own_level
from ..bricks.sequence import LayerSequence
from ..models import ModelSource
from .choice import MODEL, Choice
from .composition.composition import Quotient, contract

__all__ = [
    "Decomposition",
    "Failed",
    "Interventions",
    "alone",
    "as_written",
    "distance_level",
    "edges",
    "intervened",
    "quotient_of",
    "state_of",
]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """A model as decomposed, now or earlier: graphs that the database kept are outlines (``bricks.graph.outline``).

    Attributes:
        source: The model.
        own: Its own graph; its key is that of ground truth.
        graph: The graph that was cut: its own, or the one that is executed.
        sequences: The sequences to compose it from; overlapping ones where that was asked for.
        units: Layers that no sequence parts, in an order in which sequences hold consecutive ones.
        windows: All windows that may compete for the lower bound; empty where there are none but the sequences.
        level: Name of the level of reuse distance that its bricks are measured at.
        executed: What the runtime executes for it; None where nobody asked.
    """

    source: ModelSource
    own: ModelGraph
    graph: ModelGraph
    sequences: tuple[LayerSequence, ...]
    units: tuple[tuple[int, ...], ...]
    windows: tuple[KeyedWindow, ...]
    level: str
    executed: ExecutedModel | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A model that cannot be decomposed.

    Attributes:
        source: The model.
        reason: Why, in one line.
    """

    source: ModelSource
    reason: str


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
    return Interventions(executed, alone(executed.graph), distance_level(executed.graph))


def as_written(graph: ModelGraph) -> Interventions:
    """The bricks of a model whose own graph is executed operator by operator."""
    return Interventions(parts=alone(graph), level=distance_level(graph), written=graph)


def alone(graph: ModelGraph) -> tuple[LayerSequence, ...]:
    """The sequences of a graph at G = 1; an outline cannot be cut, and has them beside it."""
    return graph.alone if isinstance(graph, Outline) else tuple(sequences(graph, 1))


def edges(graph: ModelGraph) -> Iterator[tuple[int, int]]:
    """(producer, consumer) of every value; faster than by way of ``graph.graph``, which may never be needed."""
    if isinstance(graph, Outline):
        yield from graph.edges
        return
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


def distance_level(graph: ModelGraph) -> str:
    """The level of reuse distance of a graph, as a suite notes it for its bricks (``generator.decomposition``)."""
    size = graph.footprint if isinstance(graph, Outline) else footprint(graph)
    return level_name(own_level(graph.control, size))


def state_of(model: Decomposition, choice: Choice | None) -> str:
    """The cache state that a model's bricks are looked up in."""
    if choice is None:
        return ""  # nothing is stored in any
    return model.level if choice.conditions.cache == MODEL else choice.conditions.cache
