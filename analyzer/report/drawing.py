"""The plots of each result, as matplotlib figures and as files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from pathlib import Path
from typing import TYPE_CHECKING

from ...constructor.result import Estimate
from ...errors import UsageError
from ..comparison.compare import Comparison, ModelComparison
from ..estimation.estimates import Estimates
from .plots.comparisons import Rival, forest
from .plots.estimate_plots import estimate_beside_measured, latency_by_layer
from .plots.figure import save
from .units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MOST_BRICKS = 25
"""Bricks in the comparison of one model: those with the largest difference."""

_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, slots=True)
class Plots:
    """The plots of a result.

    Attributes:
        drawn: Functions that draw the figures, by name.
        main: Name of the plot for a single image file; empty if there is nothing to draw.
    """

    drawn: Mapping[str, Callable[[], Figure]]
    main: str

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the plots."""
        return tuple(self.drawn)

    def figure(self, name: str = "") -> Figure:
        """Draw one plot.

        Args:
            name: One of ``names``; empty: the main plot.

        Raises:
            UsageError: There is no such plot, or nothing to draw.
        """
        try:
            return self.drawn[name or self.main]()
        except KeyError:
            there = ", ".join(self.names) or "none: nothing is known yet"
            raise UsageError(f"there is no plot '{name or self.main}'", remedy=f"plots: {there}") from None

    def write(self, place: Path) -> list[Path]:
        """Write an image file with the main plot, or a folder with all plots.

        Returns:
            The files.

        Raises:
            UsageError: The place is neither a folder nor an image file, or there is nothing to draw.
            OSError: A file cannot be written.
        """
        if not self.drawn:
            raise UsageError("there is nothing to draw", remedy="leave --plot out")
        if place.suffix.lower() in _SUFFIXES and not place.is_dir():
            return [save(self.figure(), place)]
        if place.suffix and not place.is_dir():
            raise UsageError(f"{place} is not an image file", remedy=f"use {', '.join(_SUFFIXES)}, or a folder")
        place.mkdir(parents=True, exist_ok=True)
        return [save(draw(), place / f"{name}.png") for name, draw in self.drawn.items()]


@singledispatch
def plots(result: object) -> Plots:
    """Return the plots of a result of ``estimate`` or ``compare``.

    Raises:
        UsageError: The result has no plots.

    Example:
        >>> plots(estimate(models, store=store)).figure().savefig("layers.png")  # doctest: +SKIP
    """
    raise UsageError(f"{type(result).__name__} has no plots", remedy="estimates and comparisons have some")


@plots.register
def estimate_plots(estimates: Estimates) -> Plots:
    """Return the plots of estimates.

    All models: estimates against measured latencies. Each model: latency by layer. The main plot is the layers of a
    single model, else the estimates.
    """
    drawable = [entry for entry in estimates if entry.error is None]
    if not drawable:
        return Plots({}, "")
    drawn: dict[str, Callable[[], Figure]] = {"estimates": partial(_beside, drawable)}
    drawn |= {f"layers-{_slug(entry.name)}": partial(_along, entry) for entry in drawable}
    main = "estimates" if len(drawable) > 1 else f"layers-{_slug(drawable[0].name)}"
    return Plots(drawn, main)


@plots.register
def comparison_plots(comparison: Comparison) -> Plots:
    """Return the ratios of models with their intervals, and of the bricks of every model."""
    rows = comparison.rows
    if not any(row.ratio is not None or row.layers for row in rows):
        return Plots({}, "")
    drawn: dict[str, Callable[[], Figure]] = {"models": partial(_rivals, rows, comparison)}
    named = {f"bricks-{_slug(row.name)}-{_slug(row.other or '')}": row for row in rows if row.layers}
    drawn |= {name: partial(_brick_rivals, row, comparison) for name, row in named.items()}
    return Plots(drawn, next(iter(named)) if len(rows) == 1 and named else "models")


def _rivals(rows: Sequence[ModelComparison], comparison: Comparison) -> Figure:
    several = len({row.name for row in rows}) > 1
    labels = [f"{row.name}: {row.other}" if several and row.other else row.other or row.name for row in rows]
    rivals = [Rival(label, row, row.gain_ms) for label, row in zip(labels, rows, strict=True)]
    base = comparison.base or "the fastest side"
    title, gain = f"{'Models' if several else rows[0].name} against {base}", "gain by faster bricks"
    return forest(rivals, minimum_effect=comparison.minimum_effect, base=base, title=title, gain=gain)


def _brick_rivals(row: ModelComparison, comparison: Comparison) -> Figure:
    layers = sorted(row.layers, key=lambda layer: -abs(layer.gain_ms))[:_MOST_BRICKS]
    layers.sort(key=lambda layer: -layer.gain_ms)
    bricks = [layer.brick for layer in layers]
    names = [f"{brick.occurrences} x {'+'.join(brick.operators)}  {brick.names[0]}" for brick in bricks]
    rivals = [Rival(f"the model ({row.pair.basis})", row, None)]
    rivals += [Rival(name, layer, layer.gain_ms) for name, layer in zip(names, layers, strict=True)]
    rest = f", {len(layers)} of {len(row.layers)} bricks" if len(layers) < len(row.layers) else ""
    return forest(
        rivals,
        minimum_effect=comparison.minimum_effect,
        base=row.base or "",
        title=f"{row.name}: {row.other} against {row.base}{rest}",
        gain="gain if the base were as fast",
        hatched=True,
    )


def _beside(estimates: Sequence[Estimate]) -> Figure:
    title = f"Estimates against measured latency, {_conditions(estimates[0])}"
    return estimate_beside_measured(estimates, title=title)


def _along(entry: Estimate) -> Figure:
    return latency_by_layer(entry.parts.sequences, title=f"{entry.name}, {_conditions(entry)}")


def _conditions(entry: Estimate) -> str:
    """Return the conditions of an estimate, for a title."""
    threads = "" if entry.place.threads is None else f", {counted(entry.place.threads, 'thread')}"
    stack_names = [entry.place.backend, entry.place.device]
    stack = " ".join(name for name in stack_names if name)
    return f"{stack}{threads}, {entry.place.cache or 'nothing measured'}, G={entry.model.cutting.granularity}".lstrip(
        ", "
    )


def _slug(name: str) -> str:
    """Return a model's name as part of a file name."""
    return re.sub(r"[^\w.@-]+", "-", name).strip("-.") or "model"
