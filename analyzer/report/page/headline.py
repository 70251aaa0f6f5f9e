"""The first sentence of a model: how long it takes, and where that goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..section import LayerRow, Section
from ..units import half_of

__all__ = ["Headline", "Operator", "headline", "operators"]


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator's part of a model.

    Attributes:
        name: The operator.
        ms: Of all its layers that are measured.
        share: Of all bricks that are measured, 0 to 1.
        count: How many layers that is; those that are not measured are left out.
    """

    name: str
    ms: float
    share: float
    count: int


@dataclass(frozen=True, slots=True)
class Headline:
    """How long a model takes, and where that goes.

    Attributes:
        ms: Its latency: as measured, else as estimated, else the sum of what is measured of it; None where nothing is.
        half_ms: Half of its interval; None where that is not known.
        basis: ``measured``, ``estimated`` or ``known``: which of the three.
        first: The operator that takes most; None where nothing is measured.
        layer: The layer that takes most; likewise.
        layer_share: Its share of all bricks.
        fewest: How many layers it takes to make up half of the time.
        layers: How many there are.
        timed: How many of them are measured: where not all are, where the time goes is not known.
    """

    ms: float | None
    half_ms: float | None
    basis: str
    first: Operator | None
    layer: LayerRow | None
    layer_share: float
    fewest: int
    layers: int
    timed: int

    @property
    def whole(self) -> bool:
        """Whether every layer is measured."""
        return self.timed == self.layers


def operators(rows: Sequence[LayerRow]) -> list[Operator]:
    """Time by operator, the most first."""
    totals: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for row in rows:
        if row.sequence.latency_ms is not None:
            counts[row.operator] = counts.get(row.operator, 0) + 1
            totals.setdefault(row.operator, []).append(row.sequence.latency_ms)
    sums = {name: math.fsum(values) for name, values in totals.items()}
    whole = math.fsum(sums.values())
    found = [Operator(name, ms, ms / whole if whole > 0 else 0.0, counts[name]) for name, ms in sums.items()]
    return sorted(found, key=lambda one: -one.ms)


def headline(section: Section, rows: Sequence[LayerRow]) -> Headline:
    """What the first sentence says of a model."""
    entry = section.estimate
    ms, bounds, basis = entry.known_ms, None, "known"
    if entry.measured_ms is not None:
        ms, bounds, basis = entry.measured_ms, entry.measured_ci95_ms, "measured"
    elif entry.estimate_ms is not None:
        ms, bounds, basis = entry.estimate_ms, entry.ci95_ms, "estimated"
    timed = sorted(
        ((row.sequence.latency_ms, row) for row in rows if row.sequence.latency_ms is not None), key=lambda one: -one[0]
    )
    ranked = operators(rows)
    whole = math.fsum(one for one, _ in timed)
    fewest, reached = 0, 0.0
    while fewest < len(timed) and reached < whole / 2:
        reached += timed[fewest][0]
        fewest += 1
    return Headline(
        ms=ms if timed or basis == "measured" else None,
        half_ms=None if bounds is None or ms is None else half_of(ms, bounds),
        basis=basis,
        first=ranked[0] if ranked else None,
        layer=timed[0][1] if timed else None,
        layer_share=timed[0][0] / whole if whole > 0 else 0.0,
        fewest=fewest,
        layers=len(rows),
        timed=len(timed),
    )
