"""Sweeps of models over one dimension: a table and two charts as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....constructor.curve import Point
from ....constructor.result import Estimate
from ....constructor.sweep import BATCH, swept
from ....tabular import Row
from ..sweeping import Sweep, drawn_sweep, how_of, said_of_batch
from ..units import half_of, milliseconds
from .payload import clipped

_WIDTH, _HEIGHT = 460.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 22.0, 12.0, 38.0
_TICKS = 4
"""Steps of an axis, about."""

_TALLEST = 2.5
"""Times the highest dot that an axis reaches: the interval of what hardly anything is known of has no end."""

_CLOSE = 0.07
"""Labels nearer than that share of the width would overlap."""


def shown_sweeps(estimates: Sequence[Estimate]) -> Iterator[Row]:
    """Yield the sweeps among estimates (``constructor.sweep``) as the page shows them: a table and two charts."""
    for row in (sweep.record() for sweep in swept(estimates)):
        drawn = drawn_sweep(row)
        yield {
            "name": clipped(row["name"]),
            "dimension": clipped(row["dimension"]),
            "unit": "inputs/s" if row["dimension"] == BATCH else "executions/s",
            "points": [
                {
                    **point,
                    "half_ms": None if point["ci95_ms"] is None else half_of(point["latency_ms"], point["ci95_ms"]),
                    "how": how_of(point),
                }
                for point in row["points"]
            ],
            "batch": said_of_batch(row),
            "read": any(point["interpolated"] for point in row["points"]),
            "bounded": any(point["lower_bound_ms"] is not None for point in row["points"]),
            "charts": [_chart(drawn, rate=False), _chart(drawn, rate=True)],
        }


def _chart(sweep: Sweep, *, rate: bool) -> Row:
    """Return one quantity against the size, in the coordinates of its picture.

    Sizes and values have a place and a label, the line and the band of the intervals have corners, and each size has a
    dot: its place, its label, and whether its bricks are interpolated.
    """
    heights = {point.length: sweep.height(point, rate=rate) for point in sweep.between}
    ends = {point.length: found for point in sweep.between if (found := sweep.ends(point, rate=rate)) is not None}
    bounds = {point.length: sweep.height(point, rate=rate) for point in sweep.bounds}
    highest = max((*heights.values(), *bounds.values()), default=1.0)
    reach = min(_TALLEST * highest, max((high for _, high in ends.values()), default=highest))
    step = _step(max(highest, reach) / _TICKS)
    top = step * math.ceil(max(highest, reach) / step)
    smallest, largest = min(heights, default=1), max(heights, default=1)
    octaves = math.log2(largest / smallest) or 1.0

    def across(size: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(size / smallest) / octaves

    def up(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - min(value, top) / top)

    def corners(some: Sequence[tuple[int, float]]) -> str:
        return " ".join(f"{across(size):.1f},{up(value):.1f}" for size, value in some)

    def dot(point: Point) -> Row:
        value = heights[point.length]
        text = f"{value:.4g} {sweep.unit} per second" if rate else f"{milliseconds(value)} ms"
        text = f"{clipped(sweep.label)} {point.length}: {text}{', interpolated' * point.interpolated}"
        return {"x": across(point.length), "y": up(value), "text": text, "read": point.interpolated}

    over = [(size, high) for size, (_, high) in ends.items()]
    under = [(size, low) for size, (low, _) in reversed(ends.items())]
    return {
        "title": "Throughput" if rate else "Latency",
        "label": clipped(sweep.label),
        "columns": [(across(size), str(size)) for size in _apart([*heights], octaves)],
        "rows": [(up(step * count), f"{step * count:.10g}") for count in range(round(top / step) + 1)],
        "line": corners([*heights.items()]),
        "band": corners([*over, *under]) if len(ends) > 1 else "",
        "bounds": [(across(size), up(value)) for size, value in bounds.items()],
        "dots": [dot(point) for point in sweep.between],
    }


def _apart(sizes: Sequence[int], octaves: float) -> list[int]:
    """Return the sizes with labels that do not overlap; the largest is among them."""
    kept: list[int] = []
    for size in reversed(sizes):
        if not kept or math.log2(kept[-1] / size) / octaves >= _CLOSE:
            kept.append(size)
    return kept[::-1]


def _step(least: float) -> float:
    """Return the next of 1, 2, 2.5 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= 0.999 * least)
