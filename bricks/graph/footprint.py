"""The bytes that one inference touches, which decide how cold a model's weights are at their next use.

A weight is read once per inference, so its reuse distance is the footprint of the whole model. A brick is measured
among others that together touch about as many bytes, in one of nine classes; a model uses the class nearest to its
footprint. A tenth is for larger models that compute little with each weight, and smaller ones for weights that a loop's
iterations share (``reuse``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import replace

from ..layer import Layer, LayerSequence, LayerState, Role
from ..work import reads_of, weights_read
from .activations import plan
from .control import ControlFlow
from .model_graph import ModelGraph

_KIB, _MIB = 1 << 10, 1 << 20

REUSE_LEVELS = tuple(size * _MIB for size in (8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128))
"""Footprint classes in bytes, from a core's caches over the last level to memory (docs/explanation/measuring.md)."""

REPEAT_LEVELS = (256 * _KIB, 512 * _KIB, 1 * _MIB, 2 * _MIB)
"""Smaller classes for data that one inference reads several times: in a core's own caches, or just beyond."""

STREAM_LEVEL = 512 * _MIB
"""The class of models above the largest other class that compute little with each weight, such as steps of decoders.
They run at the pace of memory. A smaller pack holds little beside one copy of their largest weight, and caches keep
part of that little."""

_STREAMED_MACS = 4
"""Multiply-accumulates for each byte of weights, below which memory sets the pace: in four bits there are two."""

MODEL_LEVELS = (*REUSE_LEVELS, STREAM_LEVEL)
"""Classes of whole models that leave a core's own caches."""

CORE_LEVEL = 64 * _KIB
"""The class of models that stay in a core's own caches. Their bricks run alone, as copies in one network.

In a pack the profiler adds more than their duration to most kernels of these models (docs/explanation/measuring.md)."""

_CORE_BYTES = 4 * _MIB
"""Maximum footprint of a model in that class."""

LEVELS = (CORE_LEVEL, *REPEAT_LEVELS, *MODEL_LEVELS)


def footprint(graph: ModelGraph) -> int:
    """Return the bytes that one inference touches: weights that it reads, and the memory of activations.

    The memory is what the runtime plans; of a model's own graph, what it would plan if it executed the graph as it is.
    Each weight counts once, an embedding table only with the rows that are read.
    """
    live = [layer for layer in graph.layers if layer.state is LayerState.LIVE]
    last = {
        operand.value: layer.index
        for layer in live
        for operand in layer.operands
        if operand.type is not None and operand.role is Role.ACTIVATION
    }
    return weights_read(live) + _planned(graph, last)


def level_of(distance: int) -> int:
    """Return the class nearest to a footprint in bytes, by ratio."""
    return _nearest(distance, REUSE_LEVELS)


def repeat_level_of(distance: int) -> int:
    """Return the class nearest to a reuse distance within one inference, including smaller classes."""
    return _nearest(distance, (*REPEAT_LEVELS, *REUSE_LEVELS))


def _nearest(distance: int, levels: tuple[int, ...]) -> int:
    return min(levels, key=lambda level: abs(math.log(max(distance, 1) / level)))


def level_name(level: int) -> str:
    """Return a level as the name of a cache state, ``64MiB``."""
    return f"{level // _KIB}KiB" if level < _MIB else f"{level // _MIB}MiB"


def nearest_levels(name: str) -> list[str]:
    """Return a cache state and its substitutes: for a footprint class the other classes, nearest first.

    Smaller classes are not substitutes for a model's class: their data is as warm as in a loop.
    """
    level = parse_level(name)
    if level is None:
        return [name]
    others = MODEL_LEVELS if level in MODEL_LEVELS else LEVELS
    larger = -1 if level in MODEL_LEVELS else 1  # of two equally near classes of models the larger was theirs before
    nearest = sorted(others, key=lambda other: (abs(math.log2(other / level)), larger * other))
    return [level_name(other) for other in nearest]


def parse_level(name: str) -> int | None:
    """Return the level of a cache state; None if it is not a level."""
    return next((level for level in LEVELS if level_name(level) == name), None)


def is_level(name: str) -> bool:
    """Return True if a cache state is a reuse distance."""
    return parse_level(name) is not None


def has_calls(state: str) -> bool:
    """Return True if bricks in a cache state run alone, each with calls of its own; in packs they have none."""
    return parse_level(state) in (None, CORE_LEVEL)


def _planned(graph: ModelGraph, last: dict[str, int]) -> int:
    """Return the bytes of planned memory, and of the model's inputs and outputs, which are their caller's."""
    given = sum(kind.nbytes for value, kind in graph.inputs.items() if kind is not None and value in last)
    kept = sum(kind.nbytes for value in graph.outputs if (kind := graph.types.get(value)) is not None)
    return plan(graph).extent + given + kept


# Reuse distances of weights in loops.
#
# The iterations of an expanded Loop or Scan read the same weights. The first finds them as cold as any weight, the
# others as warm as one iteration leaves them. The reuse distance of a read is counted like a footprint: the bytes of
# all weights read since the last read of the same weight, itself included, and the maximum that one layer in between
# reads and writes. Before the first read of an inference is the previous inference. If the distance is in a smaller
# class than the model's, the brick is measured in that class too, and an estimate uses it. A layer without weights is
# classified by the last execution of an equal operator, because a loop keeps the runtime's code and data in the caches.
#
# Small models with control flow may be in a smaller class as a whole. Models without control flow are not, even if
# they are small or share weights, so that their suites stay unchanged.


def iterates(control: Iterable[ControlFlow]) -> bool:
    """Return True if iterations share weights: a Loop or Scan is expanded more than once."""
    return any(flow.layers and flow.op_type != "If" and flow.course not in {"0", "1"} for flow in control)


def class_of(graph: ModelGraph) -> int:
    """Return the footprint class, in bytes, that bricks of a model are measured in."""
    size, live = footprint(graph), [graph.layers[index] for index in graph.live]
    macs = sum(layer.cost.macs for layer in live if layer.cost is not None)
    if streams(size, macs, weights_read(live)) and not any(flow.layers for flow in graph.control):
        return STREAM_LEVEL
    return own_level(graph.control, size)


def streams(footprint_bytes: int, macs: int, weight_bytes: int) -> bool:
    """Return True if a model reads its weights from memory, and computes so little with them that this is its pace."""
    return footprint_bytes > REUSE_LEVELS[-1] and macs < _STREAMED_MACS * weight_bytes


def own_level(control: Iterable[ControlFlow], size: int) -> int:
    """Return the footprint class of a model; ``REPEAT_LEVELS`` are used only with expanded control flow."""
    if size <= _CORE_BYTES:
        return CORE_LEVEL
    return repeat_level_of(size) if any(flow.layers for flow in control) else level_of(size)


def with_reuse(graph: ModelGraph, parts: Iterable[LayerSequence]) -> list[LayerSequence]:
    """Return a model's sequences, each with the reuse class of its weights if this differs from the model's.

    The weight with the most bytes read decides for the sequence.
    """
    if not iterates(graph.control):
        return list(parts)
    model_level, distances = class_of(graph), _distances(graph)
    sequences = []
    for part in parts:
        layers = [graph.layers[index] for index in part.layers]
        read = reads_of(layers)
        most = max(read, key=lambda name: (read[name], name), default="")
        first = next((layer.index for layer in layers if not read or most in reads_of([layer])), -1)
        distance = distances.get((first, most))
        level = model_level if distance is None else repeat_level_of(distance)
        near = level < model_level and (level in REPEAT_LEVELS or bool(read))
        sequences.append(replace(part, reuse=level) if near else part)
    return sequences


def _distances(graph: ModelGraph) -> dict[tuple[int, str], int]:
    """Return the reuse distance in bytes, by layer and weight, of weights that several live layers read.

    For a layer without weights the name is empty, and equal operators are compared.
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
    at = [0] * len(moved)  # bytes of the weights with their last read there
    distances: dict[tuple[int, str], int] = {}
    for position in range(len(moved)):  # twice, since an inference follows another
        layer, read = live[position % len(live)], reads[position % len(live)]
        for value, (name, _) in read.items():
            if value in last:
                before, earlier_size = last[value]
                if position >= len(live) and readers[value] > 1:
                    distances[layer.index, name] = sum(at[before:position]) + max(moved[before : position + 1])
                at[before] -= earlier_size
        for value, (_, size) in read.items():
            at[position] += size
            last[value] = position, size
    return distances


def _look(layer: Layer) -> Hashable:
    """Return the operator and its types, to compare operators without weights."""
    return layer.kind, tuple(operand.type for operand in layer.operands), layer.output_types


def _moved(layer: Layer) -> int:
    """Return the bytes of the activations that a layer reads and writes."""
    inputs = {
        operand.value: operand.type.nbytes
        for operand in layer.operands
        if operand.role is Role.ACTIVATION and operand.type
    }
    return sum(inputs.values()) + sum(kind.nbytes for kind in layer.output_types if kind is not None)


def _alike(layers: Iterable[Layer]) -> dict[str, str]:
    """Return values that are folded from the same constants in the same way, each with the first of them.

    A body that converts a weight does this in every iteration, with equal results.
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
            names |= {output: its for output, its in zip(layer.node.output, twin, strict=False) if output != its}
    return names
