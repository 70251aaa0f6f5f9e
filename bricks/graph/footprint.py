"""How many bytes one inference touches: what decides how cold a model's weights are when they are read again.

A weight is read once per inference, so that its reuse distance is the footprint of the whole model. A brick is measured
among others that touch about as much together, in one of three classes; a model looks up the class nearest to its own
footprint. What the iterations of a loop share is read again sooner: for that there are smaller classes (``reuse``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import replace

from ..layer import Layer, LayerSequence, LayerState, Role, reads_of, weights_read
from .control import ControlFlow
from .graph import ModelGraph

_KIB, _MIB = 1 << 10, 1 << 20

REUSE_LEVELS = (8 * _MIB, 32 * _MIB, 128 * _MIB)
"""Footprint classes, in bytes: about a core's own caches, the last level, and memory (docs/measuring.md)."""

REPEAT_LEVELS = (256 * _KIB, 512 * _KIB, 1 * _MIB, 2 * _MIB)
"""Smaller classes, for what a model reads several times in one inference: in a core's own caches, or just beyond."""

CORE_LEVEL = 64 * _KIB
"""The class of executed graphs that stay in a core's own caches. Their bricks run alone, several copies in one network.

In a pack the profiler costs most kernels of such a model more than they take (docs/measuring.md)."""

_CORE_BYTES = 4 * _MIB
"""Up to this footprint an executed graph is in that class."""

_LEVELS = (CORE_LEVEL, *REPEAT_LEVELS, *REUSE_LEVELS)


def footprint(graph: ModelGraph) -> int:
    """Bytes of memory that one inference touches: what it reads of weights, and the most of activations alive at once.

    Activations share memory one after the other, as runtimes plan it; weights are touched once each, and of the table
    of an embedding no more than is looked up.
    """
    live = [layer for layer in graph.layers if layer.state is LayerState.LIVE]
    last = {
        operand.value: layer.index
        for layer in live
        for operand in layer.operands
        if operand.type is not None and operand.role is Role.ACTIVATION
    }
    return weights_read(live) + _peak(graph, last)


def level_of(distance: int) -> int:
    """The class nearest to a footprint in bytes, by ratio."""
    return _nearest(distance, REUSE_LEVELS)


def repeat_level_of(distance: int) -> int:
    """The class nearest to the reuse distance of what is read several times in one inference, the smaller included."""
    return _nearest(distance, (*REPEAT_LEVELS, *REUSE_LEVELS))


def _nearest(distance: int, levels: tuple[int, ...]) -> int:
    return min(levels, key=lambda level: abs(math.log(max(distance, 1) / level)))


def level_name(level: int) -> str:
    """How a level is spelt as a cache state, ``64MiB``."""
    return f"{level // _KIB}KiB" if level < _MIB else f"{level // _MIB}MiB"


def nearest_levels(name: str) -> list[str]:
    """A cache state and what may stand for it: of a footprint class the others, the nearest first.

    What was measured in the smaller classes is as warm as one loop has it, and stands for no model's own.
    """
    level = parse_level(name)
    if level is None:
        return [name]
    others = REUSE_LEVELS if level in REUSE_LEVELS else _LEVELS
    return [level_name(other) for other in sorted(others, key=lambda other: abs(math.log(other / level)))]


def parse_level(name: str) -> int | None:
    """The level of a cache state; None for a cache state that is none."""
    return next((level for level in _LEVELS if level_name(level) == name), None)


def is_level(name: str) -> bool:
    """Whether a cache state is a reuse distance."""
    return parse_level(name) is not None


def _peak(graph: ModelGraph, last: dict[str, int]) -> int:
    """Most bytes of activations alive at once, in file order; ``last`` is the last reader of each."""
    alive = {value: kind.nbytes for value, kind in graph.inputs.items() if kind is not None and value in last}
    ending: dict[int, list[str]] = {}
    for value, reader in last.items():
        ending.setdefault(reader, []).append(value)
    live_bytes = peak = sum(alive.values())
    for layer in graph.layers:
        if layer.state is not LayerState.LIVE:
            continue
        for value in layer.outputs:
            kind = graph.types.get(value)
            if value and kind is not None:
                alive[value] = kind.nbytes
                live_bytes += kind.nbytes
        peak = max(peak, live_bytes)
        for value in ending.get(layer.index, ()):
            live_bytes -= alive.pop(value, 0)
    return peak


# How soon a model with loops reads a weight again: what decides how warm iterations find it.
#
# Where a Loop or Scan is written out, its iterations read the same weights. The first finds them as cold as any
# weight, the others as warm as one iteration leaves them. The reuse distance of each read is counted as a footprint
# is (``footprint``): bytes of all weights that were read since the same weight was last read, itself included, and
# the most that one layer in between reads and writes. What comes before the first read is the inference before. Where
# it falls into a smaller footprint class than the model, the brick is measured in that class too, and an estimate
# takes it there. A layer without weights goes where an operator like it has run as short a while before: what it
# needs is the runtime's own code and bookkeeping, which a loop keeps near.
#
# Models with control flow are small, often, and find themselves in one of the smaller classes as a whole. A model
# without is left as it is, even where it is small or its layers share weights, so that its suites are what they were.


def iterates(control: Iterable[ControlFlow]) -> bool:
    """Whether a model has iterations that share weights: a Loop or Scan that is written out more than once."""
    return any(flow.layers and flow.op_type != "If" and flow.course not in {"0", "1"} for flow in control)


def own_level(control: Iterable[ControlFlow], size: int, *, executed: bool = False) -> int:
    """The footprint class of a model: ``REPEAT_LEVELS`` only where control flow of it is written out.

    Args:
        control: Its control flow.
        size: Its footprint in bytes.
        executed: Whether it is a graph that a runtime executes. Bricks of other graphs pay for layout changes at their
            edges, which only a pack tells apart.
    """
    if executed and size <= _CORE_BYTES:
        return CORE_LEVEL
    return repeat_level_of(size) if any(flow.layers for flow in control) else level_of(size)


def with_reuse(graph: ModelGraph, parts: Iterable[LayerSequence]) -> list[LayerSequence]:
    """The sequences of a model, each with the class of reuse distance of its weights where that is not the model's.

    The weight of which a sequence reads most decides for all of it.

    Args:
        graph: The graph that was cut.
        parts: Its sequences.
    """
    if not iterates(graph.control):
        return list(parts)
    own, distances = own_level(graph.control, footprint(graph), executed=bool(graph.salt)), _distances(graph)
    found = []
    for part in parts:
        layers = [graph.layers[index] for index in part.layers]
        read = reads_of(layers)
        most = max(read, key=lambda name: (read[name], name), default="")
        first = next((layer.index for layer in layers if not read or most in reads_of([layer])), -1)
        distance = distances.get((first, most))
        level = own if distance is None else repeat_level_of(distance)
        near = level < own and (level in REPEAT_LEVELS or bool(read))
        found.append(replace(part, reuse=level) if near else part)
    return found


def _distances(graph: ModelGraph) -> dict[tuple[int, str], int]:
    """Reuse distance in bytes, by layer and weight, of the weights that several live layers read.

    A layer without weights has an empty name there, for operators that are like it.
    """
    live = [graph.layers[index] for index in graph.live]
    alike = _alike(graph.layers)
    reads: list[dict[Hashable, tuple[str, int]]] = [
        {alike.get(name, name): (name, size) for name, size in reads_of([layer]).items()} or {_look(layer): ("", 0)}
        for layer in live
    ]
    readers = Counter(value for read in reads for value in read)
    moved = 2 * [_moved(layer) for layer in live]
    last: dict[Hashable, tuple[int, int]] = {}
    at = [0] * len(moved)  # bytes of the weights that were last read there
    found: dict[tuple[int, str], int] = {}
    for place in range(len(moved)):  # twice: before the first reads comes the inference before
        layer, read = live[place % len(live)], reads[place % len(live)]
        for value, (name, _) in read.items():
            if value in last:
                before, known = last[value]
                if place >= len(live) and readers[value] > 1:
                    found[layer.index, name] = sum(at[before:place]) + max(moved[before : place + 1])
                at[before] -= known
        for value, (_, size) in read.items():
            at[place] += size
            last[value] = place, size
    return found


def _look(layer: Layer) -> Hashable:
    """What operators are alike by that read no weights: the operator and its types."""
    return layer.kind, tuple(operand.type for operand in layer.operands), layer.output_types


def _moved(layer: Layer) -> int:
    """Bytes of the activations that a layer reads and writes."""
    inputs = {
        operand.value: operand.type.nbytes
        for operand in layer.operands
        if operand.role is Role.ACTIVATION and operand.type
    }
    return sum(inputs.values()) + sum(kind.nbytes for kind in layer.output_types if kind is not None)


def _alike(layers: Iterable[Layer]) -> dict[str, str]:
    """Values that are folded from the same constants in the same way, each with the first of them.

    A body that converts a weight does so in every iteration, and every iteration reads the same.
    """
    first: dict[tuple[object, ...], tuple[str, ...]] = {}
    names: dict[str, str] = {}
    for layer in layers:
        if layer.state is LayerState.FOLDED:
            reads = tuple(names.get(name, name) for name in layer.node.input)
            attributes = tuple(
                sorted(attribute.SerializeToString(deterministic=True) for attribute in layer.node.attribute)
            )
            twin = first.setdefault((layer.kind, reads, attributes), tuple(layer.node.output))
            names |= {own: its for own, its in zip(layer.node.output, twin, strict=False) if own != its}
    return names
