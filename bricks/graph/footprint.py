"""How many bytes one inference touches: what decides how cold a model's weights are when they are read again.

A weight is read once per inference, so that its reuse distance is the footprint of the whole model. A brick is measured
among others that touch about as much together, in one of three classes; a model looks up the class nearest to its own
footprint. What the iterations of a loop share is read again sooner: for that there are smaller classes (``reuse``).
"""

from __future__ import annotations

import math

from ..layer import LayerState, Role
from ..traffic import weights_read
from .graph import ModelGraph

__all__ = [
    "REPEAT_LEVELS",
    "REUSE_LEVELS",
    "footprint",
    "is_level",
    "level_name",
    "level_of",
    "nearest_levels",
    "parse_level",
    "repeat_level_of",
]

_KIB, _MIB = 1 << 10, 1 << 20

REUSE_LEVELS = (8 * _MIB, 32 * _MIB, 128 * _MIB)
"""Footprint classes, in bytes: about a core's own caches, the last level, and memory (docs/measuring.md)."""

REPEAT_LEVELS = (256 * _KIB, 512 * _KIB, 1 * _MIB, 2 * _MIB)
"""Smaller classes, for what a model reads several times in one inference: in a core's own caches, or just beyond."""

_LEVELS = (*REPEAT_LEVELS, *REUSE_LEVELS)


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
    return _nearest(distance, _LEVELS)


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
    others = _LEVELS if level in REPEAT_LEVELS else REUSE_LEVELS
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
