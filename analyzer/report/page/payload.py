"""Data for the page's scripts: bricks and layers of a model as columns.

Names are untrusted text of any length: control characters become escapes, and long names are cut. Each brick has its
key and the UUID of its measurement.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ....constructor.composition import Quotient
from ....constructor.roofline import LayerRoof
from ..section import LayerRow, Section
from ..tables import printable
from ..units import cut, half_of

# A model's sequences as an outline in which a block that repeats stands once, however layers are named.


_LONGEST_BLOCK = 256
"""Sequences of a block at most: comparing every length with every place takes time by the product of both."""


OutlineBlock = tuple[int, int, int, "list[OutlineBlock]"]
"""Part of an outline: position of its first sequence, number of sequences in each repetition, number of repetitions (1
for a single sequence), and the blocks of one repetition (none for a single sequence)."""


def outline(keys: Sequence[Hashable], offset: int = 0) -> list[OutlineBlock]:
    """Fold adjacent repetitions, from left to right, the widest first (O(n * ``_LONGEST``)).

    Args:
        keys: Identity of each sequence.
        offset: Position of the first.

    Returns:
        Blocks that cover all positions, in order.

    Example:
        >>> [(begin, width, count) for begin, width, count, _ in outline("xababababy")]
        [(0, 1, 1), (1, 2, 4), (9, 1, 1)]
    """
    size = len(keys)
    widths = range(1, min(_LONGEST_BLOCK, size // 2) + 1)
    # equal[w][i]: how many positions from i on are the same as those w later.
    equal: dict[int, list[int]] = {}
    for width in widths:
        run = [0] * (size + 1)
        for place in range(size - width - 1, -1, -1):
            run[place] = run[place + 1] + 1 if keys[place] == keys[place + width] else 0
        equal[width] = run
    found: list[OutlineBlock] = []
    place = 0
    while place < size:
        best_width, best_count = 1, 1
        for width in widths:
            count = equal[width][place] // width + 1
            if count > 1 and count * width > best_count * best_width:
                best_width, best_count = width, count
        inside = outline(keys[place : place + best_width], offset + place) if best_width > 1 else []
        found.append((offset + place, best_width, best_count, inside))
        place += best_width * best_count
    return found


# When each sequence of a model would run, if branches ran at once.


def at_once(quotient: Quotient, latencies: Sequence[float]) -> list[tuple[float, int]]:
    """Return the earliest start and the lane of each sequence (O(sequences x lanes)).

    The last end is the critical path. Lanes are filled greedily: they are places in a picture, not cores.

    Args:
        quotient: The sequences as a DAG.
        latencies: One per sequence, not negative, in any unit.

    Returns:
        Start of each sequence, in the given unit, and its lane from 0.
    """
    starts = [0.0] * len(latencies)
    for position in quotient.order:
        before = quotient.predecessors[position]
        starts[position] = max((starts[index] + latencies[index] for index in before), default=0.0)
    lanes = [0] * len(latencies)
    ends: list[float] = []
    place = {position: number for number, position in enumerate(quotient.order)}
    for position in sorted(quotient.order, key=lambda index: (starts[index], place[index])):
        lane = next((lane for lane, end in enumerate(ends) if end <= starts[position]), len(ends))
        end = starts[position] + latencies[position]
        if lane == len(ends):
            ends.append(end)
        else:
            ends[lane] = end
        lanes[position] = lane
    return list(zip(starts, lanes, strict=True))


_LONGEST = 160
"""Characters of a name that the page holds; JSON holds all of it."""

_GIGA = 1e9


def clipped(text: str) -> str:
    """Return a printable name of at most a line or two."""
    return cut(printable(text), _LONGEST)


def data_of(section: Section, rows: Sequence[LayerRow]) -> dict[str, Any]:
    """Return bricks, layers, ceilings, schedule and outline of a model.

    Args:
        section: The model.
        rows: Its layers.
    """
    first: dict[str, LayerRow] = {}
    for row in rows:
        first.setdefault(row.sequence.key, row)
    number = {key: index for index, key in enumerate(first)}
    schedule: list[tuple[float, int]] = []
    latencies = [row.sequence.latency_ms for row in rows]
    known = [ms for ms in latencies if ms is not None]
    if section.quotient is not None and len(known) == len(rows):
        schedule = at_once(section.quotient, [max(0.0, ms) for ms in known])
    return {
        "name": clipped(section.name),
        "bricks": [_brick(row) for row in first.values()],
        "layers": {
            "name": [clipped(row.name) for row in rows],
            "executed": [clipped(row.executed) for row in rows],
            "brick": [number[row.sequence.key] for row in rows],
            "path": [int(row.sequence.on_path) for row in rows],
            "start": [_rounded(start) for start, _ in schedule],
            "lane": [lane for _, lane in schedule],
        },
        "outline": outline([number[row.sequence.key] for row in rows]),
        "roofs": _roofs(section),
    }


def _brick(row: LayerRow) -> dict[str, Any]:
    part, measured, roof = row.sequence, row.measurement, row.roof
    half = None
    if part.latency_ms is not None and part.ci95_ms is not None:
        half = half_of(part.latency_ms, part.ci95_ms)
    return {
        "key": part.key,
        "op": clipped(row.operator),
        "fused": clipped(row.fused),
        "reads": clipped(row.reads),
        "writes": clipped(row.writes),
        "count": row.count,
        "ms": _rounded(part.latency_ms),
        "half": _rounded(half),
        "verdict": part.verdict,
        "lower": _rounded(part.lower_bound_ms),
        "id": None if measured is None else measured.id,
        **_under(roof),
    }


def _under(roof: LayerRoof | None) -> dict[str, Any]:
    """Return the work of a brick, and its roofline if that is a lower bound."""
    if roof is None:
        return {"flops": None, "bytes": None, "bound": None, "headroom": None, "by": None, "note": None}
    holds = roof.headroom is None or roof.headroom >= 1
    return {
        "flops": roof.flops,
        "bytes": roof.bytes,
        "bound": _rounded(roof.bound_ms) if holds else None,
        "headroom": _rounded(roof.headroom) if holds else None,
        "by": roof.bound_by if holds else None,
        "note": roof.note,
    }


def _roofs(section: Section) -> Mapping[str, Any] | None:
    """Return the ceilings, in 10^9 per second; None if they are unknown."""
    found = section.estimate.roofline.bricks
    if found is None or not found.ceilings.known or found.ceilings.compute is None:
        return None
    return {
        "compute": _rounded(found.ceilings.compute.rate.best / _GIGA),
        "levels": [[name, _rounded(ceiling.rate.best / _GIGA)] for name, ceiling in found.ceilings.levels],
    }


def _rounded(value: float | None) -> float | None:
    """Round to six significant digits, more than the precision of any latency; None for infinities."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
