"""Curves as plots show them, and which estimates are one model against one of its dimensions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from ...constructor.curve import Curve, Point
from ...constructor.result import Estimate
from .plots import Reading, Sweep

__all__ = ["sweep", "sweeps_of"]

_DENSE = 60
"""Lengths between the first and the last that a line is drawn through."""

_BATCH = "batch"


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
    """A sweep for each model that is estimated at several sizes of one dimension, or of its batch, by name.

    Estimates that differ in more than one of them are no sweep, and one that is not complete is left out.
    """
    groups: dict[str, list[Estimate]] = defaultdict(list)
    for entry in estimates:
        if entry.estimate_ms is not None:
            groups[_stem(entry)].append(entry)
    found = {}
    for stem, group in groups.items():
        sizes = [_sizes(entry) for entry in group]
        varied = [name for name in sizes[0] if len({one.get(name) for one in sizes}) > 1]
        if len(varied) != 1:
            continue
        (name,) = varied
        points = [
            Point(size, entry.estimate_ms, entry.ci95_ms)
            for entry, one in zip(group, sizes, strict=True)
            if (size := one.get(name)) and entry.estimate_ms is not None
        ]
        batched = name == _BATCH
        found[f"{stem}-{name}"] = sweep(
            Curve.through(points),
            title=stem,
            label=name,
            unit="inputs" if batched else "executions",
            items=(lambda size: size) if batched else (lambda _: 1),
        )
    return found


def _sizes(entry: Estimate) -> dict[str, int]:
    return {**entry.dims, **({} if entry.batch is None else {_BATCH: entry.batch})}


def _stem(entry: Estimate) -> str:
    """The model's name without the sizes at its end."""
    name = entry.name
    for ending in (*(f"@{dim}={size}" for dim, size in entry.dims.items()), f"@b{entry.batch}"):
        name = name.replace(ending, "")
    return name


def _spaced(at: Sequence[int]) -> list[float]:
    """Lengths between the first and the last, evenly on a logarithmic axis."""
    if len(at) < 2:
        return []
    return [at[0] * (at[-1] / at[0]) ** (step / _DENSE) for step in range(_DENSE + 1)]
