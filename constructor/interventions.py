"""The quotient graph of a decomposed model, and the bricks of its executed graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..bricks.decomposition import Decomposition, alone
from ..bricks.graph.footprint import class_of, level_name
from ..bricks.graph.model_graph import ExecutedModel, ModelGraph
from ..bricks.layer import LayerSequence
from .choice import MODEL, Choice
from .composition import Quotient, contract


@dataclass(frozen=True, slots=True)
class Interventions:
    """The bricks of the executed graph, for the effects of fusion, layout and cache.

    Attributes:
        executed: The executed graph, mapped to the model's layers; None if unknown.
        parts: Its sequences.
        level: Level of reuse distance of their measurements.
        reason: Reason for an unknown graph or unknown units, else empty.
        written: The model's own graph, if the runtime executes it unchanged.
        units: All sequences of the model's own layers that no fusion crosses; None if not requested.
    """

    executed: ExecutedModel | None = None
    parts: tuple[LayerSequence, ...] = ()
    level: str = ""
    reason: str = ""
    written: ModelGraph | None = None
    units: tuple[LayerSequence, ...] | None = None

    @property
    def graph(self) -> ModelGraph | None:
        """The executed graph."""
        return self.written if self.executed is None else self.executed.graph


def intervened(executed: ExecutedModel) -> Interventions:
    """Return the bricks of an executed graph, layer by layer."""
    return Interventions(executed, alone(executed.graph), level_name(class_of(executed.graph)))


def intervened_in(model: Decomposition) -> Interventions:
    """Return the bricks of a model's executed graph; the model's own sequences, if they are its single layers."""
    assert model.executed is not None  # noqa: S101  # the caller has checked it
    if model.graph is model.executed.graph and all(len(part.own) == 1 for part in model.sequences):
        return Interventions(model.executed, model.sequences, model.level)
    return intervened(model.executed)


def as_written(graph: ModelGraph) -> Interventions:
    """Return the bricks of a model that the runtime executes unchanged."""
    return Interventions(parts=alone(graph), level=level_name(class_of(graph)), written=graph)


def quotient_of(graph: ModelGraph, parts: tuple[LayerSequence, ...]) -> Quotient:
    """Contract each part of a graph to one node.

    Raises:
        InvalidSequence: The contraction has a cycle.
    """
    places: dict[int, list[int]] = {}  # copied layer -> one layer of each sequence with a copy
    for part in parts:
        for index in part.copies:
            places.setdefault(index, []).append(part.own[0])
    return contract(_apart(graph.graph.edges(), places), [part.own for part in parts])


def _apart(pairs: Iterable[tuple[int, int]], places: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Yield the edges, with the inputs of a copied layer connected to every copy."""
    for producer, consumer in pairs:
        if producer not in places:
            yield producer, consumer
            yield from ((producer, copy) for copy in places.get(consumer, ()))


def state_of(model: Decomposition, choice: Choice | None) -> str:
    """Return the cache state for the lookup of a model's bricks."""
    if choice is None:
        return ""  # nothing is stored
    return model.level if choice.conditions.cache == MODEL else choice.conditions.cache
