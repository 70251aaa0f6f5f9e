"""Cutting a model along a runtime's fusions: bricks of its own layers that no fusion of the runtime reaches beyond.

A brick of a layer alone hides what a runtime does across layers: it fuses Conv, Add and Relu of a model into one
operator, but finds each of them alone in a brick. The bricks made here hold what the runtime fuses whole, and are
plain ONNX with the keys of source bricks, to be measured anywhere. What is learnt from the runtime is only where to
cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..graph.flow import flow_of, flow_over
from ..graph.graph import ModelGraph
from ..graph.reuse import with_reuse
from ..layer import Layer, LayerState, Role
from ..operators import DEQUANTIZE
from ..sequence import LayerSequence
from .split import spans
from .units import Units, units_of
from .wiring import make_sequence

if TYPE_CHECKING:
    from ..graph.executed import ExecutedModel

__all__ = ["copied_layers", "edge_layouts", "fused_sequences", "fused_units"]


def fused_units(executed: ExecutedModel) -> Units:
    """The layers of a model in groups that no operator of the executed graph reaches beyond.

    Layers that share an executed operator, directly or through others, are one unit. A layer that the runtime has
    nothing to do for joins its neighbour: the one that reads its result where that is one, else the one that makes
    what it reads.

    Args:
        executed: What the runtime executes for the model.
    """
    copied = copied_layers(executed)
    wishes = [set(origin) - copied for origin in executed.origins]
    homes = [{index, _readers(executed.source, index)[0]} for index in sorted(copied)]
    return units_of(executed.source, [*wishes, *homes, *_companions(executed)], copied=copied)


def copied_layers(executed: ExecutedModel) -> frozenset[int]:
    """Conversions of quantised values that several layers read, and that the runtime has once for each of them.

    It folds each into the operator that reads it, or executes each: every reader's brick has one of its own.
    """
    source = executed.source
    return frozenset(
        index
        for index in executed.duplicated
        if source.layers[index].op_type == DEQUANTIZE
        and source.layers[index].state is LayerState.LIVE
        and len(_readers(source, index)) > 1
        and {*source.outputs}.isdisjoint(source.layers[index].outputs)
        and all(source.layers[reader].state is LayerState.LIVE for reader in _readers(source, index))
    )


def _readers(graph: ModelGraph, index: int) -> list[int]:
    return sorted({reader for value in graph.layers[index].outputs if value for reader in graph.consumers(value)})


def fused_sequences(
    executed: ExecutedModel, granularity: int, *, overlap: bool = False, connected: bool = False
) -> list[LayerSequence]:
    """Cut a model as ``bricks.cutting.split`` does, with units in place of layers.

    Args:
        executed: What the runtime executes for the model.
        granularity: G, the most units in a sequence.
        overlap: Begin a sequence at every unit, and add every unit alone.
        connected: Accept weakly connected windows of units, not only paths.

    Returns:
        Sequences of ``executed.source``, in the order of their units. Without ``overlap`` every live layer is in
        exactly one, but for copies of those that are in several (``copied_layers``).

    Raises:
        UsageError: ``granularity`` is less than 1.
    """
    graph = executed.source
    units = fused_units(executed).groups
    windows = spans(flow_over(graph, units), granularity, overlap=overlap, connected=connected)
    copied = copied_layers(executed)
    found = []
    for begin, end in windows:
        own = {index for unit in units[begin:end] for index in unit}
        copies = tuple(index for index in sorted(copied - own) if own.intersection(_readers(graph, index)))
        found.append(make_sequence(graph, tuple(sorted({*own, *copies})), copies=copies, copied=copied))
    return with_reuse(graph, found)


def _companions(executed: ExecutedModel) -> Iterator[set[int]]:
    """Each eliminated layer with the neighbour that it is to stay with."""
    graph = executed.source
    for index in sorted(executed.eliminated):
        neighbour = _neighbour(graph, index)
        if neighbour is not None:
            yield {index, neighbour}


def _neighbour(graph: ModelGraph, index: int) -> int | None:
    """The only live reader of a layer's results; else a live layer that makes what it reads, else any reader."""
    flow = flow_of(graph)
    layer = graph.layers[index]
    results = [value for value in layer.outputs if value]
    readers = sorted({graph.live[position] for value in results for position in flow.readers.get(value, ())})
    if len(readers) == 1 and not flow.leaving.intersection(results):
        return readers[0]
    makers = [graph.producer(operand.value) for operand in layer.operands if operand.value]
    live = [maker for maker in makers if maker is not None and maker in flow.position]
    return next(iter((*live, *readers)), None)


def edge_layouts(executed: ExecutedModel, sequences: Sequence[LayerSequence]) -> list[float]:
    """Of the layout changes at the edges of each brick, the part that the model itself has at the same edges.

    A runtime that runs a brick in a layout of its own changes the layout of everything that the brick reads and
    writes. A model does so where its own edges of that layout are, and nowhere between two operators of it. With
    ``full`` the latency of a brick, ``inner`` that of the same brick without the changes at its edges (measurement
    variant ``inner``) and ``share`` what is returned, the model spends on the sequence::

        full - (1 - share) * (full - inner)

    so that these sums hold the model's own layout changes at edges; those inside a sequence are in ``inner`` as well.
    A sum with a value from outside is fused in ``inner``, as in the model, and not in ``full``: with the edge that the
    value crosses goes what that costs. A brick without an ``inner`` measurement has no layout changes at its edges:
    its ``inner`` is ``full``.

    An edge counts with the bytes that cross it. A value of the model that is brought into the layout once, for
    several sequences, counts in each of them for its part; one that is brought out of it counts where it is made.

    Args:
        executed: What the runtime executes for the model.
        sequences: Of ``executed.source``, without overlap: as ``fused_sequences`` makes them, or ``bricks.sequences``.

    Returns:
        For each sequence a number from 0 to 1; 0 where the model runs none of its operators in another layout (its
        brick may all the same).
    """
    several = {index for sequence in sequences for index in sequence.copies}
    home = {index: number for number, one in enumerate(sequences) for index in one.layers if index not in several}
    homes = [frozenset(home[index] for index in origin if index in home) for origin in executed.origins]
    edges = _Edges(executed, homes)
    shares = []
    for number in range(len(sequences)):
        pairs = [*edges.entering(number), *edges.leaving(number)]
        total = sum(size for size, _ in pairs)
        shares.append(sum(size * part for size, part in pairs) / total if total else 0.0)
    return shares


class _Edges:
    """Where values cross between sequences in the executed graph, and in which layout."""

    def __init__(self, executed: ExecutedModel, homes: Sequence[frozenset[int]]) -> None:
        self._graph = executed.graph
        self._is_own = executed.layouts.is_own
        self._homes = homes
        self._changes = {
            layer.index
            for layer, origin in zip(executed.graph.layers, executed.origins, strict=True)
            if executed.layouts.is_change(layer, origin)
        }
        self._members: defaultdict[int, list[Layer]] = defaultdict(list)
        for layer, places in zip(executed.graph.layers, homes, strict=True):
            for place in places if layer.index not in self._changes and self._is_own(layer) else ():
                self._members[place].append(layer)

    def entering(self, number: int) -> Iterator[tuple[int, float]]:
        """(bytes, part that the model changes the layout of) of what a sequence reads in a layout of its own."""
        read = {value: None for layer in self._members[number] for value in _activations(layer)}
        for value in read:
            maker = self._graph.producer(value)
            if maker is None or (number in self._homes[maker] and maker not in self._changes):
                continue
            if maker in self._changes:
                origin = next(iter(_activations(self._graph.layers[maker])), "")
                behind = self._graph.producer(origin)
                if behind is None or number not in self._homes[behind]:
                    sharers = self._readers_of([value])
                    yield self._bytes(value), 1.0 / max(1, len(sharers))
            elif self._is_own(self._graph.layers[maker]):
                yield self._bytes(value), 0.0

    def leaving(self, number: int) -> Iterator[tuple[int, float]]:
        """The same of what it writes."""
        for value in (value for layer in self._members[number] for value in layer.outputs if value):
            readers = self._graph.consumers(value)
            changed = [
                result
                for reader in readers
                if reader in self._changes
                for result in self._graph.layers[reader].outputs
                if result
            ]
            if not self._leaves([value, *changed], number):
                continue
            yield self._bytes(value), 1.0 if self._leaves(changed, number) else 0.0

    def _leaves(self, values: Sequence[str], number: int) -> bool:
        """Whether another sequence or the caller reads one of the values, which layout changes do not count as."""
        outputs = not {*self._graph.outputs}.isdisjoint(values)
        return outputs or bool(self._readers_of(values) - {number})

    def _readers_of(self, values: Iterable[str]) -> set[int]:
        readers = {reader for value in values for reader in self._graph.consumers(value)} - self._changes
        return {place for reader in readers for place in self._homes[reader]}

    def _bytes(self, value: str) -> int:
        known = self._graph.types.get(value)
        return known.nbytes if known is not None else 0


def _activations(layer: Layer) -> Iterator[str]:
    return (operand.value for operand in layer.operands if operand.role is Role.ACTIVATION)
