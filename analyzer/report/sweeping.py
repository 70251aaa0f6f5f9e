"""Curves as plots show them, and which estimates are one model against one of its dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...constructor.curve import Curve, Point
from ...constructor.result import Estimate
from ...constructor.sweep import BATCH, swept
from ...tabular import Field
from .plots.sweep import Sweep
from .tables import table_lines
from .units import percent

_DENSE = 60
"""Lengths between the first and the last that a line is drawn through."""


def sweep(curve: Curve, *, title: str, label: str, unit: str, items: Callable[[int], int]) -> Sweep:
    """Return a curve ready to draw.

    Args:
        curve: The curve.
        title: Title of the plot.
        label: Unit of the dimension.
        unit: Unit of the throughput.
        items: Number of these units per execution, by length.
    """
    at = [point.length for point in curve.points]
    lengths = sorted({*at, *(round(length) for length in _spaced(at))})
    found = [point for length in lengths if (point := curve.at(length)) is not None]
    return Sweep(title, label, unit, items, found)


def sweeps_of(estimates: Sequence[Estimate]) -> dict[str, Sweep]:
    """Return the sweeps among estimates (``constructor.sweep``) ready to draw, by name."""
    return {
        f"{model_sweep.stem}-{model_sweep.dimension}": drawn_sweep(model_sweep.record())
        for model_sweep in swept(estimates)
    }


def drawn_sweep(row: Mapping[str, Any]) -> Sweep:
    """Return a sweep ready to draw, from its row (``ModelSweep.record``)."""
    batched, known = row["dimension"] == BATCH, [point for point in row["points"] if point["latency_ms"]]
    return Sweep(
        title=row["name"],
        label=row["dimension"],
        unit="inputs" if batched else "executions",
        items=(lambda size: size) if batched else (lambda _size: 1),
        between=[Point(at["size"], at["latency_ms"], at["ci95_ms"], at["interpolated"]) for at in known],
        bounds=[Point(at["size"], ms) for at in known if (ms := at["lower_bound_ms"])],
        joined=True,
    )


def sweep_lines(estimates: Sequence[Estimate]) -> list[str]:
    """Return a table of latency, throughput and lower bound for each sweep, and the best batch."""
    lines: list[str] = []
    for row in (model_sweep.record() for model_sweep in swept(estimates)):
        unit = "inputs/s" if row["dimension"] == BATCH else "executions/s"
        columns = [
            Field("size", str(row["dimension"])),
            Field("latency_ms", "ms ±95%", "ms", interval="ci95_ms"),
            Field("per_s", unit, lambda value: f"{value:.4g}"),
            Field("lower_bound_ms", "fastest bricks ms", "ms"),
        ]
        if any(point["interpolated"] for point in row["points"]):
            columns.append(Field("how", ""))
        points = [{**point, "how": how_of(point)} for point in row["points"]]
        lines += ["", f"{row['name']} against {row['dimension']}", *table_lines(points, columns)]
        lines += [said] if (said := said_of_batch(row)) else []
    return lines


def said_of_batch(row: Mapping[str, Any]) -> str:
    """Write the best batch of a sweep; empty if it is unknown."""
    best, more = row["best_batch"], row["doubling_gains"]
    gains = "every doubling gains more than 5%" if more is None else f"twice as many gain {percent(more)}"
    return "" if best is None else f"best batch: {best} ({gains})"


def how_of(point: Mapping[str, Any]) -> str:
    """Write the interpolated part of a point of a sweep; empty for a measured point."""
    return f"{percent(point['share'])} interpolated" if point["interpolated"] else ""


def _spaced(at: Sequence[int]) -> list[float]:
    """Lengths between the first and the last, evenly on a logarithmic axis."""
    if len(at) < 2:
        return []
    return [at[0] * (at[-1] / at[0]) ** (step / _DENSE) for step in range(_DENSE + 1)]
