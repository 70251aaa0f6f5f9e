"""Who reads what among the live layers of a model: what splitting and wiring look up, computed once per graph."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from .graph import ModelGraph
from .layer import Layer, LayerState, Role
from .subgraphs import bodies, captures

__all__ = ["Flow", "flow_of", "pins_opset"]

_FLOWS: weakref.WeakKeyDictionary[ModelGraph, Flow] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Dataflow among live layers, by their position in ``ModelGraph.live``.

    Attributes:
        position: Layer index to position.
        readers: Value to the positions that read it, ascending.
        leaving: Values that something else than a live layer needs: model outputs and inputs of skipped layers.
            (Folded layers are computed before inference and need nothing.)
        feeds_next: Whether a layer's output is an input of the next layer.
        last_use: The last position that reads any output of a layer; the number of live layers where a value
            leaves; -1 where nothing reads it.
        dead_end: Whether nothing at all needs an output of the layer.
        neighbours: The positions that a layer exchanges values with, either way.
        pinned: Whether a layer can be written for the opset of its source only (``pins_opset``).
        detour: The last position from which a path through skipped layers only leads to this layer; -1 if none.
    """

    position: Mapping[int, int]
    readers: Mapping[str, tuple[int, ...]]
    leaving: frozenset[str]
    feeds_next: tuple[bool, ...]
    last_use: tuple[int, ...]
    dead_end: tuple[bool, ...]
    neighbours: tuple[tuple[int, ...], ...]
    pinned: tuple[bool | None, ...]
    detour: tuple[int, ...]


def pins_opset(layer: Layer) -> bool | None:
    """Which opset of ONNX's own domain a live layer can be written for.

    Returns:
        True for that of its source alone, where it has no canonical form or a body in source form; False for the
        canonical one; None where it does not care, being of another domain.
    """
    if layer.canonical is None or (layer.domain and next(bodies(layer.node), None) is not None):
        return True
    return None if layer.domain else False


def _reads(layer: Layer) -> list[str]:
    """Values computed at run time that a layer reads."""
    values = [operand.value for operand in layer.operands if operand.role is Role.ACTIVATION]
    if layer.state is LayerState.SKIPPED:  # the bodies of a live layer read no activations around them
        values.extend(captures(layer.node))
    return values


def flow_of(graph: ModelGraph) -> Flow:
    """The dataflow of a graph; computed on the first call and kept as long as the graph lives."""
    flow = _FLOWS.get(graph)
    if flow is None:
        flow = _FLOWS[graph] = _compute(graph)
    return flow


def _compute(graph: ModelGraph) -> Flow:
    readers: dict[str, list[int]] = {}
    leaving = set(graph.outputs)
    for position, index in enumerate(graph.live):
        for value in _reads(graph.layers[index]):
            positions = readers.setdefault(value, [])
            if not positions or positions[-1] != position:
                positions.append(position)
    for layer in graph.layers:
        if layer.state is LayerState.SKIPPED:
            leaving.update(_reads(layer))

    size = len(graph.live)
    feeds_next, last_use, dead_end = [], [], []
    neighbours: list[list[int]] = [[] for _ in range(size)]
    for position, index in enumerate(graph.live):
        outputs = [value for value in graph.layers[index].outputs if value]
        last = max((readers[value][-1] for value in outputs if value in readers), default=-1)
        leaves = any(value in leaving for value in outputs)
        feeds_next.append(any(position + 1 in readers.get(value, ()) for value in outputs))
        last_use.append(size if leaves else last)
        dead_end.append(last < 0 and not leaves)
        for value in outputs:
            for reader in readers.get(value, ()):
                neighbours[position].append(reader)
                neighbours[reader].append(position)
    return Flow(
        position={index: position for position, index in enumerate(graph.live)},
        readers={value: tuple(positions) for value, positions in readers.items()},
        leaving=frozenset(leaving),
        feeds_next=tuple(feeds_next),
        last_use=tuple(last_use),
        dead_end=tuple(dead_end),
        neighbours=tuple(map(tuple, neighbours)),
        pinned=tuple(pins_opset(graph.layers[index]) for index in graph.live),
        detour=_detours(graph),
    )


def _detours(graph: ModelGraph) -> tuple[int, ...]:
    """For each position the last one from which a path through skipped layers only leads to it."""
    position_of = {index: position for position, index in enumerate(graph.live)}
    made: dict[str, int] = {}  # value made by a live layer: its position
    through: dict[str, int] = {}  # value made by a skipped layer: last position it depends on through skipped ones
    detour = [-1] * len(graph.live)
    for layer in graph.layers:
        if layer.state is LayerState.LIVE:
            position = position_of[layer.index]
            detour[position] = max((through.get(value, -1) for value in _reads(layer)), default=-1)
            made.update(dict.fromkeys(layer.outputs, position))
        elif layer.state is LayerState.SKIPPED:
            last = max((max(made.get(value, -1), through.get(value, -1)) for value in _reads(layer)), default=-1)
            through.update(dict.fromkeys(layer.outputs, last))
    return tuple(detour)
