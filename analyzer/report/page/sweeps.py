"""Sweeps of models over one dimension: a table and two charts as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....constructor.result import Estimate
from ....constructor.sweep import BATCH, swept
from ..plots.sweep import Sweep
from ..sweeping import drawn_sweep, how_of, said_of_batch
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


@dataclass(frozen=True, slots=True)
class SweepDot:
    """One size: place, label, and true for interpolated bricks."""

    x: float
    y: float
    text: str
    read: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """One quantity against the size, in the coordinates of its picture.

    Attributes:
        title: The quantity.
        label: The dimension.
        columns: Place and label of sizes.
        rows: Place and label of values.
        line: Corners of the line.
        band: Corners of the intervals; empty if none is known.
        bounds: Places of the lower bounds.
        dots: The sizes.
    """

    title: str
    label: str
    columns: Sequence[tuple[float, str]]
    rows: Sequence[tuple[float, str]]
    line: str
    band: str
    bounds: Sequence[tuple[float, float]]
    dots: Sequence[SweepDot]


@dataclass(frozen=True, slots=True)
class Shown:
    """A sweep on the page.

    Attributes:
        name: The model.
        dimension: The dimension that varies.
        unit: Unit of the throughput.
        points: One row per size.
        batch: The best batch in words; empty if it is unknown.
        read: True if bricks of a size are interpolated.
        bounded: True if a lower bound of a size is known.
        charts: Latency and throughput.
    """

    name: str
    dimension: str
    unit: str
    points: Sequence[Mapping[str, Any]]
    batch: str
    read: bool
    bounded: bool
    charts: Sequence[Chart]


def shown_sweeps(estimates: Sequence[Estimate]) -> Iterator[Shown]:
    """Yield the sweeps among estimates (``constructor.sweep``)."""
    for row in (sweep.record() for sweep in swept(estimates)):
        drawn = drawn_sweep(row)
        yield Shown(
            name=clipped(row["name"]),
            dimension=clipped(row["dimension"]),
            unit="inputs/s" if row["dimension"] == BATCH else "executions/s",
            points=[
                {
                    **point,
                    "half_ms": None if point["ci95_ms"] is None else half_of(point["latency_ms"], point["ci95_ms"]),
                    "how": how_of(point),
                }
                for point in row["points"]
            ],
            batch=said_of_batch(row),
            read=any(point["interpolated"] for point in row["points"]),
            bounded=any(point["lower_bound_ms"] is not None for point in row["points"]),
            charts=[_chart(drawn, rate=False), _chart(drawn, rate=True)],
        )


def _chart(sweep: Sweep, *, rate: bool) -> Chart:
    heights = {reading.length: reading.height(rate=rate) for reading in sweep.between}
    ends = {reading.length: found for reading in sweep.between if (found := reading.ends(rate=rate)) is not None}
    bounds = {reading.length: reading.height(rate=rate) for reading in sweep.bounds}
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

    read = {reading.length for reading in sweep.read}
    over = [(size, high) for size, (_, high) in ends.items()]
    under = [(size, low) for size, (low, _) in reversed(ends.items())]
    return Chart(
        title="Throughput" if rate else "Latency",
        label=clipped(sweep.label),
        columns=[(across(size), str(size)) for size in _apart([*heights], octaves)],
        rows=[(up(step * count), f"{step * count:.10g}") for count in range(round(top / step) + 1)],
        line=corners([*heights.items()]),
        band=corners([*over, *under]) if len(ends) > 1 else "",
        bounds=[(across(size), up(value)) for size, value in bounds.items()],
        dots=[
            SweepDot(
                across(size),
                up(value),
                f"{clipped(sweep.label)} {size}: "
                + (f"{value:.4g} {sweep.unit} per second" if rate else f"{milliseconds(value)} ms")
                + ", interpolated" * (size in read),
                size in read,
            )
            for size, value in heights.items()
        ],
    )


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
