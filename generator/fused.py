"""Cutting a model along a runtime's fusions: bricks of its own layers that no fusion of the runtime reaches beyond.

A brick of a layer alone hides what a runtime does across layers: it fuses Conv, Add and Relu of a model into one
operator, but finds each of them alone in a brick. The bricks made here hold what the runtime fuses whole, and are
plain ONNX with the keys of source bricks, to be measured anywhere. What is learnt from the runtime is only where to
cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..bricks.flow import flow_of, flow_over
from ..bricks.graph import ModelGraph
from ..bricks.sequence import Sequence
from ..bricks.split import spans
from ..bricks.units import Units, units_of
from ..bricks.wiring import make_sequence

if TYPE_CHECKING:
    from .executed import ExecutedModel

__all__ = ["fused_sequences", "fused_units"]


def fused_units(executed: ExecutedModel) -> Units:
    """The layers of a model in groups that no operator of the executed graph reaches beyond.

    Layers that share an executed operator, directly or through others, are one unit. A layer that the runtime has
    nothing to do for joins its neighbour: the one that reads its result where that is one, else the one that makes
    what it reads.

    Args:
        executed: What the runtime executes for the model.
    """
    wishes = [set(origin) for origin in executed.origins]
    return units_of(executed.source, [*wishes, *_companions(executed)])


def fused_sequences(
    executed: ExecutedModel, granularity: int, *, overlap: bool = False, connected: bool = False
) -> list[Sequence]:
    """Cut a model as ``bricks.split`` does, with units in place of layers.

    Args:
        executed: What the runtime executes for the model.
        granularity: G, the most units in a sequence.
        overlap: Begin a sequence at every unit, and add every unit alone.
        connected: Accept weakly connected windows of units, not only paths.

    Returns:
        Sequences of ``executed.source``, in the order of their units. Without ``overlap`` every live layer is in
        exactly one.

    Raises:
        UsageError: ``granularity`` is less than 1.
    """
    graph = executed.source
    units = fused_units(executed).groups
    windows = spans(flow_over(graph, units), granularity, overlap=overlap, connected=connected)
    return [
        make_sequence(graph, tuple(sorted(index for unit in units[begin:end] for index in unit)))
        for begin, end in windows
    ]


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
