"""The decomposition of a model by the kind of graph that is asked for; ``decomposer`` does the cutting.

* ``source``: the model's own graph, as DLBricks has it.
* ``runtime``: the graph that the runtime executes for it, on one stack and instruction set.
* ``fused``: the model's own layers, cut so that no fusion of the runtime is cut through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..bricks.cutting.fused import fused_units
from ..bricks.cutting.windows import KeyedWindow, windows
from ..bricks.cutting.wiring import sequences
from ..bricks.graph.executed import ExecutedModel
from ..bricks.graph.footprint import footprint, level_name, level_of
from ..bricks.graph.graph import ModelGraph
from ..bricks.graph.outline import Outline
from ..bricks.sequence import Sequence as Part
from ..db import Stack
from ..generator.decomposition.decomposer import Cut, Cuttings
from ..generator.machine.cores import physical_cores
from ..models import ModelSource
from .composition.composition import Quotient, contract

__all__ = [
    "Decomposition",
    "Interventions",
    "alone",
    "as_written",
    "cut_of",
    "decomposed",
    "distance_level",
    "edges",
    "intervened",
    "quotient_of",
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
    sequences: tuple[Part, ...]
    units: tuple[tuple[int, ...], ...]
    windows: tuple[KeyedWindow, ...]
    level: str
    executed: ExecutedModel | None


@dataclass(frozen=True, slots=True)
class Interventions:
    """The bricks of the graph that is executed: what tells fusion, layout and cache apart.

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
    parts: tuple[Part, ...] = ()
    level: str = ""
    reason: str = ""
    written: ModelGraph | None = None
    units: tuple[Part, ...] | None = None

    @property
    def graph(self) -> ModelGraph | None:
        """The graph that is executed."""
        return self.written if self.executed is None else self.executed.graph


def cut_of(cut: Cut, graph: str, stack: Stack | None = None, threads: int = 1) -> Cut:
    """A cut of the same width, of another graph.

    Args:
        cut: How wide sequences are.
        graph: Which graph is cut.
        stack: Whose runtime executes it; None where none is asked.
        threads: Its threads.

    Raises:
        UsageError: There is no such graph, or the granularity is less than 1.
    """
    wanted = Cut(cut.granularity, cut.overlap, cut.connected, graph)
    wanted.check()
    if stack is None:
        return wanted
    # Cores decide how many threads can be bound, not which graph is executed: its keys name no threads either.
    threads = min(threads, len(physical_cores()))
    return Cut(
        cut.granularity, cut.overlap, cut.connected, graph, stack.backend, stack.device, stack.options, threads
    )  # fmt: skip


def decomposed(source: ModelSource, cuttings: Cuttings, cut: Cut) -> Decomposition:
    """A model that was cut, with what may compete for its lower bound."""
    units: Iterable[Iterable[int]] = ((index,) for index in cuttings.graph.live)
    if cut.graph == "fused" and cuttings.executed is not None:
        units = fused_units(cuttings.executed).groups
    rivals = cut.granularity > 1 and cut.graph != "fused"  # windows would cut through fusions
    return Decomposition(
        source=source,
        own=cuttings.source,
        graph=cuttings.graph,
        sequences=tuple(cuttings.sequences),
        units=tuple(tuple(unit) for unit in units),
        windows=tuple(windows(cuttings.graph, cut.granularity, connected=cut.connected)) if rivals else (),
        level=distance_level(cuttings.graph),
        executed=cuttings.executed,
    )


def intervened(executed: ExecutedModel) -> Interventions:
    """The bricks of an executed graph, layer by layer."""
    return Interventions(executed, alone(executed.graph), distance_level(executed.graph))


def as_written(graph: ModelGraph) -> Interventions:
    """The bricks of a model whose own graph is executed operator by operator."""
    return Interventions(parts=alone(graph), level=distance_level(graph), written=graph)


def alone(graph: ModelGraph) -> tuple[Part, ...]:
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


def quotient_of(graph: ModelGraph, parts: tuple[Part, ...]) -> Quotient:
    """What remains of a graph when each part is contracted to one node.

    Raises:
        InvalidSequence: Parts wait for each other.
    """
    return contract(edges(graph), [part.layers for part in parts])


def distance_level(graph: ModelGraph) -> str:
    """The level of reuse distance of a graph, as a suite notes it for its bricks (``generator.decomposition``)."""
    return level_name(level_of(graph.footprint if isinstance(graph, Outline) else footprint(graph)))
