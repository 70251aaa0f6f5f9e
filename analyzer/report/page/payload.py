"""What the page's scripts draw from: a model's bricks and layers as columns of plain data.

Names are untrusted text of any length: control characters are written as escapes, and what is long is cut. Whatever is
shown can be found again: each brick has its key and the UUID of its measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ....constructor.roofline.roofline import LayerRoof
from ..section import LayerRow, Section
from ..tables import printable
from ..units import half_of
from .blocks import Block, outline
from .schedule import at_once

__all__ = ["clipped", "data_of"]

_LONGEST = 160
"""Characters of a name that the page holds; JSON holds all of it."""

_GIGA = 1e9


def clipped(text: str) -> str:
    """A name that may be shown: printable, and not longer than a line or two."""
    name = printable(text)
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def data_of(section: Section, rows: Sequence[LayerRow]) -> dict[str, Any]:
    """A model's bricks, layers, ceilings, schedule and outline.

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
    known = [one for one in latencies if one is not None]
    if section.quotient is not None and len(known) == len(rows):
        schedule = at_once(section.quotient, [max(0.0, one) for one in known])
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
        "outline": _nested(outline([number[row.sequence.key] for row in rows])),
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
    """A brick's work, and its bound where it has one that holds."""
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
    """The ceilings, in 10^9 per second; None where they are not known."""
    found = section.estimate.roofline
    if found is None or not found.ceilings.known or found.ceilings.compute is None:
        return None
    return {
        "compute": _rounded(found.ceilings.compute.rate.best / _GIGA),
        "levels": [[name, _rounded(one.rate.best / _GIGA)] for name, one in found.ceilings.levels],
    }


def _nested(blocks: Sequence[Block]) -> list[Any]:
    return [[one.begin, one.width, one.count, _nested(one.inside)] for one in blocks]


def _rounded(value: float | None) -> float | None:
    """Six significant digits: more than any latency is known to; what is not finite says nothing."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
