"""Producers and readers among the live layers of a model, computed once per graph for splitting and wiring.

The same lookup exists for units: groups of layers that stay together.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...models.subgraphs import captures
from ..layer import Layer, LayerState, Role
from .model_graph import ModelGraph

_FLOWS: weakref.WeakKeyDictionary[ModelGraph, Flow] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Dataflow among live layers or units, by position.

    Positions of layers are from ``ModelGraph.live``, positions of units from their order.

    Attributes:
        position: Layer index to position. All layers of a unit have the unit's position.
        readers: Value to the positions that read it, ascending.
        leaving: Values that leave the live layers: model outputs and inputs of skipped layers. (Folded layers are
            computed before inference and do not count.)
        feeds_next: True if a layer's output is an input of the next layer.
        last_use: The last position that reads an output of a layer; the number of live layers if a value leaves; -1
            without a reader.
        dead_end: True if every output of the layer is unused.
        neighbours: The positions that exchange values with a layer, either way.
        opsets: The opsets of ONNX's own domain that suit a layer (``Layer.valid_opsets``).
        detour: The last position with a path to this layer through skipped layers only; -1 if none.
    """

    position: Mapping[int, int]
    readers: Mapping[str, tuple[int, ...]]
    leaving: frozenset[str]
    feeds_next: tuple[bool, ...]
    last_use: tuple[int, ...]
    dead_end: tuple[bool, ...]
    neighbours: tuple[tuple[int, ...], ...]
    opsets: tuple[tuple[int, int] | None, ...]
    detour: tuple[int, ...]


def common_opsets(ranges: Iterable[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return the opsets, half-open, that suit all layers; None if any opset does."""
    bounds = [opsets for opsets in ranges if opsets is not None]
    return (max(since for since, _ in bounds), min(until for _, until in bounds)) if bounds else None


def is_empty(opsets: tuple[int, int] | None) -> bool:
    """Return True if no opset suits all layers."""
    return opsets is not None and opsets[0] >= opsets[1]


def _reads(layer: Layer) -> list[str]:
    """Return the values computed at run time that a layer reads."""
    values = [operand.value for operand in layer.operands if operand.role is Role.ACTIVATION]
    if layer.state is LayerState.SKIPPED:  # the bodies of a live layer read no activations around them
        values.extend(captures(layer.node))
    return values


def flow_of(graph: ModelGraph) -> Flow:
    """Return the dataflow of a graph, computed on the first call and cached for the graph's lifetime."""
    flow = _FLOWS.get(graph)
    if flow is None:
        flow = _FLOWS[graph] = _compute(graph)
    return flow


def flow_over(graph: ModelGraph, units: Sequence[tuple[int, ...]]) -> Flow:
    """Return the dataflow among units: groups of live layers that stay together.

    Args:
        graph: The model.
        units: Groups that contain every live layer once, in an order so that each reads only earlier ones. One opset
            must suit the layers of a group.
    """
    return _compute(graph, units)


def _compute(graph: ModelGraph, units: Sequence[tuple[int, ...]] | None = None) -> Flow:
    groups = [(index,) for index in graph.live] if units is None else units
    position_of = {index: position for position, group in enumerate(groups) for index in group}
    readers: dict[str, list[int]] = {}
    leaving = set(graph.outputs)
    for position, group in enumerate(groups):
        for value in (value for index in group for value in _reads(graph.layers[index])):
            positions = readers.setdefault(value, [])
            if not positions or positions[-1] != position:
                positions.append(position)
    for layer in graph.layers:
        if layer.state is LayerState.SKIPPED:
            leaving.update(_reads(layer))

    size = len(groups)
    feeds_next, last_use, dead_end, opsets = [], [], [], []
    neighbours: list[list[int]] = [[] for _ in range(size)]
    for position, group in enumerate(groups):
        outputs = [value for index in group for value in graph.layers[index].outputs if value]
        last = max((readers[value][-1] for value in outputs if value in readers), default=-1)
        leaves = any(value in leaving for value in outputs)
        feeds_next.append(any(position + 1 in readers.get(value, ()) for value in outputs))
        last_use.append(size if leaves else last)
        dead_end.append(last < 0 and not leaves)
        opsets.append(common_opsets(graph.layers[index].valid_opsets for index in group))
        for value in outputs:
            for reader in readers.get(value, ()):
                if reader != position:
                    neighbours[position].append(reader)
                    neighbours[reader].append(position)
    return Flow(
        position=position_of,
        readers={value: tuple(positions) for value, positions in readers.items()},
        leaving=frozenset(leaving),
        feeds_next=tuple(feeds_next),
        last_use=tuple(last_use),
        dead_end=tuple(dead_end),
        neighbours=tuple(map(tuple, neighbours)),
        opsets=tuple(opsets),
        detour=_detours(graph, position_of, size),
    )


def _detours(graph: ModelGraph, position_of: Mapping[int, int], size: int) -> tuple[int, ...]:
    """Return for each position the last one with a path to it through skipped layers only."""
    maker_at: dict[str, int] = {}  # value made by a live layer: its position
    through: dict[str, int] = {}  # value made by a skipped layer: last position before it
    detour = [-1] * size
    for layer in graph.layers:
        if layer.state is LayerState.LIVE:
            position = position_of[layer.index]
            detour[position] = max((detour[position], *(through.get(value, -1) for value in _reads(layer))))
            maker_at.update(dict.fromkeys(layer.outputs, position))
        elif layer.state is LayerState.SKIPPED:
            last = max((max(maker_at.get(value, -1), through.get(value, -1)) for value in _reads(layer)), default=-1)
            through.update(dict.fromkeys(layer.outputs, last))
    return tuple(detour)
