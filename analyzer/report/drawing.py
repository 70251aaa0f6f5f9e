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
from ...generator.decomposition.generate import GenerateReport
from ..comparison.compare import Comparison, ModelComparison
from ..estimation.estimates import Estimates
from ..history.history import History, ModelHistory
from .causes import rows_of
from .page.payload import similarity_matrix
from .plots.comparisons import Rival, forest, over_time
from .plots.estimate_plots import estimate_beside_measured, latency_by_layer, waterfall
from .plots.figure import save
from .roofs import chart, has_roof
from .sweeping import Sweep, similarity_grid, sweeps, sweeps_of, unique_share
from .units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# The similarity of two models (DLBricks, section 2.2).


_MOST_BRICKS = 25
"""Bricks in the comparison of one model: those with the largest difference."""

_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, slots=True)
class Plots:
    """The plots of a result.

    Attributes:
        drawn: Functions that draw the figures, by name.
        main: Name of the plot for a single image file; may be empty if there are several.
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
            UsageError: There is no such plot, no main plot, or nothing to draw.
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
            if not self.main:
                raise UsageError(f"{len(self.drawn)} plots do not fit into {place}", remedy="give --plot a folder")
            return [save(self.figure(), place)]
        if place.suffix and not place.is_dir():
            raise UsageError(f"{place} is not an image file", remedy=f"use {', '.join(_SUFFIXES)}, or a folder")
        place.mkdir(parents=True, exist_ok=True)
        return [save(draw(), place / f"{name}.png") for name, draw in self.drawn.items()]


@singledispatch
def plots(result: object) -> Plots:
    """Return the plots of a result of ``estimate``, ``generate``, ``compare``, ``history`` or ``tokens``.

    Raises:
        UsageError: The result has no plots.

    Example:
        >>> plots(estimate(models, store=store)).figure().savefig("layers.png")  # doctest: +SKIP
    """
    raise UsageError(f"{type(result).__name__} has no plots", remedy="see docs: 'dlbricks COMMAND --plot'")


@plots.register
def estimate_plots(estimates: Estimates, *, explain: bool = False) -> Plots:
    """Return the plots of estimates.

    All models: estimates against measured latencies. Each model: latency by layer, and the roofline if it is known.
    A model at several sizes of a dimension, or of its batch: latency and throughput against the size.

    The main plot is the sweep if all estimates belong to it, else latency by layer for a single model, else the
    estimates.

    Args:
        estimates: The estimates.
        explain: Also the waterfall from the bricks to the model, the main plot of a single model.
    """
    drawable = [entry for entry in estimates if entry.error is None]
    if not drawable:
        return Plots({}, "")
    drawn: dict[str, Callable[[], Figure]] = {"estimates": partial(_beside, drawable)}
    drawn |= {f"layers-{_slug(entry.name)}": partial(_along, entry) for entry in drawable}
    drawn |= {f"roofline-{_slug(entry.name)}": partial(_under, entry) for entry in drawable if has_roof(entry)}
    swept = {f"sweep-{_slug(name)}": found for name, found in sweeps_of(drawable).items()}
    drawn |= {name: partial(sweeps, [found], title=conditions_of(drawable[0])) for name, found in swept.items()}
    main = "estimates" if len(drawable) > 1 else f"layers-{_slug(drawable[0].name)}"
    main = next((name for name, found in swept.items() if len(found.between) == len(drawable)), main)
    if explain:
        causes = {f"waterfall-{_slug(entry.name)}": partial(_between, entry) for entry in drawable if entry.attribution}
        drawn |= causes
        main = next(iter(causes)) if len(drawable) == 1 and causes else main
    return Plots(drawn, main)


@plots.register
def generated_plots(report: GenerateReport) -> Plots:
    """Return the unique share of every model, and the similarity of models if there are several."""
    rows = [row for row in report.rows if row.error is None]
    if not rows:
        return Plots({}, "")
    shares = {row.name: (row.sequences or 0, row.unique or 0) for row in rows}
    if len(rows) > 1:
        shares["all together"] = report.sequences, report.unique
    title = f"Unique sequences at G={report.granularity}"
    drawn: dict[str, Callable[[], Figure]] = {"unique": partial(unique_share, shares, title=title)}
    if len(rows) > 1:
        drawn["similarity"] = partial(_alike, {row.name: row.keys for row in rows}, report.granularity)
    return Plots(drawn, "unique")


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


@plots.register
def history_plots(report: History) -> Plots:
    """Return the runs of every model over time, with versions and changes; the main plot is that of a single series."""
    rows = [row for row in report.rows if row.points]
    named = {f"history-{_slug(f'{row.name}-{report.place_of(row)}')}": row for row in rows}
    drawn = {name: partial(_past, row, report) for name, row in named.items()}
    return Plots(drawn, next(iter(drawn)) if len(drawn) == 1 else "")


def _past(row: ModelHistory, report: History) -> Figure:
    return over_time(row, title=f"{row.name}, {report.place_of(row)}: {counted(row.runs, 'run')}")


def sweep_plots(found: Sequence[Sweep], *, name: str, title: str) -> Plots:
    """Return one plot of latency and throughput against a length.

    Args:
        found: The sweeps; one without a measured length is left out.
        name: Name of the plot.
        title: Title of the plot.
    """
    known = [entry for entry in found if entry.measured]
    return Plots({name: partial(sweeps, known, title=title)}, name) if known else Plots({}, name)


def _rivals(rows: Sequence[ModelComparison], comparison: Comparison) -> Figure:
    several = len({row.name for row in rows}) > 1
    labels = [f"{row.name}: {row.other}" if several and row.other else row.other or row.name for row in rows]
    rivals = [Rival(label, row, row.gain_ms) for label, row in zip(labels, rows, strict=True)]
    base = next((row.base for row in rows if row.base), "")
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
    title = f"Estimates against measured latency, {conditions_of(estimates[0])}"
    return estimate_beside_measured(estimates, title=title)


def _along(entry: Estimate) -> Figure:
    return latency_by_layer(entry.parts.sequences, title=f"{entry.name}, {conditions_of(entry)}")


def _under(entry: Estimate) -> Figure:
    return chart(entry, title=f"{entry.name}: roofline, {entry.model.cutting.graph} graph, {conditions_of(entry)}")


def _between(entry: Estimate) -> Figure:
    graph = f"{entry.model.cutting.graph} graph, {conditions_of(entry)}"
    return waterfall([*rows_of(entry)], title=f"{entry.name}: from bricks to model, {graph}")


def _alike(keys: Mapping[str, frozenset[str]], granularity: int) -> Figure:
    matrix = similarity_matrix([*keys.values()])
    return similarity_grid([*keys], matrix, title=f"Similarity of models (Jaccard), G={granularity}")


def conditions_of(entry: Estimate) -> str:
    """Return the conditions of an estimate, for a title."""
    threads = "" if entry.place.threads is None else f", {counted(entry.place.threads, 'thread')}"
    known = [entry.place.backend, entry.place.device]
    stack = " ".join(name for name in known if name)
    return f"{stack}{threads}, {entry.place.cache or 'nothing measured'}, G={entry.model.cutting.granularity}".lstrip(
        ", "
    )


def _slug(name: str) -> str:
    """Return a model's name as part of a file name."""
    return re.sub(r"[^\w.@-]+", "-", name).strip("-.") or "model"
