"""Curves as plots show them, and which estimates are one model against one of its dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...constructor.curve import Curve
from ...constructor.result import Estimate
from ...constructor.sweep import BATCH, ModelSweep, swept
from ..findings.analyses.measured.batch import optimal
from .plots import Reading, Sweep
from .tables import Column, table_lines
from .units import milliseconds, percent

__all__ = ["sweep", "sweep_lines", "sweep_rows", "sweeps_of"]

_DENSE = 60
"""Lengths between the first and the last that a line is drawn through."""


def sweep(curve: Curve, *, title: str, label: str, unit: str, items: Callable[[int], int]) -> Sweep:
    """A curve as it is drawn.

    Args:
        curve: The curve.
        title: What it is of.
        label: What the dimension counts.
        unit: What throughput counts.
        items: How many of these one execution makes or takes, by length.
    """
    at = [point.length for point in curve.points]
    lengths = sorted({*at, *(round(length) for length in _spaced(at))})
    found = [one for length in lengths if (one := curve.at(length)) is not None]
    made = [Reading(one.length, one.ms, one.ci95_ms, items(one.length)) for one in found]
    return Sweep(title, label, unit, [one for one in made if one.length in at], made)


def sweeps_of(estimates: Sequence[Estimate]) -> dict[str, Sweep]:
    """A sweep as it is drawn for each that there is (``constructor.sweep``), by name."""
    found = {}
    for one in swept(estimates):
        batched = one.dimension == BATCH
        bounds = [(size, entry.lower_bound_ms) for size, entry in one.estimates.items()]
        drawn = sweep(
            one.curve,
            title=one.stem,
            label=one.dimension,
            unit="inputs" if batched else "executions",
            items=(lambda size: size) if batched else (lambda _: 1),
        )
        found[f"{one.stem}-{one.dimension}"] = replace(
            drawn, bounds=[Reading(size, ms, None, size if batched else 1) for size, ms in bounds if ms]
        )
    return found


def sweep_lines(estimates: Sequence[Estimate]) -> list[str]:
    """Latency, throughput and lower bound against what varies, as a table of each sweep, and the best batch."""
    lines: list[str] = []
    for row in sweep_rows(estimates):
        unit = "inputs/s" if row["dimension"] == BATCH else "executions/s"
        columns = [
            Column("size", str(row["dimension"])),
            Column("latency_ms", "ms ±95%", milliseconds, bounds="ci95_ms"),
            Column("per_s", unit, lambda value: f"{value:.4g}"),
            Column("lower_bound_ms", "lower bound ms", milliseconds),
        ]
        if any(point["interpolated"] for point in row["points"]):
            columns.append(Column("how", ""))
        points = [{**point, "how": "interpolated" if point["interpolated"] else ""} for point in row["points"]]
        lines += ["", f"{row['name']} against {row['dimension']}", *table_lines(points, columns)]
        if (best := row["best_batch"]) is not None:
            more = row["doubling_gains"]
            gains = "every doubling gains more than 5 %" if more is None else f"twice as many gain {percent(more)}"
            lines.append(f"best batch: {best} ({gains})")
    return lines


def sweep_rows(estimates: Sequence[Estimate]) -> list[dict[str, Any]]:
    """The same as JSON has it."""
    rows = []
    for one in swept(estimates):
        batched = one.dimension == BATCH
        points = [
            {
                "size": size,
                "latency_ms": entry.estimate_ms,
                "ci95_ms": entry.ci95_ms,
                "per_s": 1000.0 * (size if batched else 1) / entry.estimate_ms if entry.estimate_ms else None,
                "lower_bound_ms": entry.lower_bound_ms,
                "interpolated": entry.interpolated is not None,
            }
            for size, entry in one.estimates.items()
        ]
        best, gains = _best_batch(one) if batched else (None, None)
        rows.append({"name": one.stem, "dimension": one.dimension, "points": points, "best_batch": best,
                     "doubling_gains": gains})  # fmt: skip
    return rows


def _best_batch(one: ModelSweep) -> tuple[int | None, float | None]:
    """The optimal batch (``findings.analyses.measured.batch``) of those that double, and what its doubling gains.

    None where no batch is twice another; the gain is None where the largest is the best.
    """
    latencies = {point.length: point.ms for point in one.curve.points}
    doubling = [min(latencies, default=1)]
    while 2 * doubling[-1] in latencies:
        doubling.append(2 * doubling[-1])
    if len(doubling) < 2:
        return None, None
    best = optimal({batch: latencies[batch] for batch in doubling})
    gain = 2 * latencies[best] / latencies[2 * best] - 1 if 2 * best in doubling else None
    return best, gain


def _spaced(at: Sequence[int]) -> list[float]:
    """Lengths between the first and the last, evenly on a logarithmic axis."""
    if len(at) < 2:
        return []
    return [at[0] * (at[-1] / at[0]) ** (step / _DENSE) for step in range(_DENSE + 1)]
