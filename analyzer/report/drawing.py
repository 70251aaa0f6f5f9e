"""Which plots a report or a list of estimates gives, and where they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UsageError
from .causes import rows_of
from .plots.accuracy import estimate_beside_measured
from .plots.figure import save
from .plots.forest import Rival, forest
from .plots.history import over_time
from .plots.layers import latency_by_layer, waterfall
from .plots.sweep import ModelShare, Sweep, similarity_grid, sweeps, unique_share
from .roofs import chart, has_roof
from .sweeping import sweeps_of
from .units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ...constructor.result import Estimate
    from ...generator.decomposition.generate import GenerateReport
    from ..comparison.compare import Comparison, ModelComparison
    from ..history.result import History, ModelHistory


# How much models share: the similarity of each pair (DLBricks, section 2.2).


def jaccard(one: AbstractSet[str], other: AbstractSet[str]) -> float:
    """Shared share of two sets of keys, ``|A & B| / |A | B|``; two empty sets are equal, 1.

    Args:
        one: Unique layer or brick keys of a model.
        other: Those of another.
    """
    union = len(one | other)
    return len(one & other) / union if union else 1.0


def similarity_matrix(models: Sequence[Iterable[str]]) -> list[list[float]]:
    """Jaccard similarity of every pair of models; symmetric, with 1 on the diagonal.

    Args:
        models: Layer or brick keys of each; repetitions do not count.
    """
    unique = [frozenset(keys) for keys in models]
    return [[jaccard(one, other) for other in unique] for one in unique]


_MOST_BRICKS = 25
"""Bricks that a comparison of one model shows, those that differ most."""

_SUFFIXES = (".png", ".svg", ".pdf")


def draw_estimates(estimates: Sequence[Estimate], place: Path, *, explain: bool = False) -> list[Path]:
    """Estimates beside measured latencies, and of every model the latency by layer and, where known, the roofline.

    A model at several sizes of one dimension, or of its batch, also gets latency and throughput against that.

    Args:
        estimates: The estimates.
        place: A folder for all plots; or one image file, which gets the latency by layer of a single model, that
            against the dimension where there is nothing else, and estimates beside measured of several models.
        explain: Also what lies between the bricks of every model and its latency; an image file of a single model
            gets that.

    Returns:
        The files written.

    Raises:
        UsageError: The place is neither a folder nor an image file, or there is nothing to draw.
        OSError: A file cannot be written.
    """
    drawable = [entry for entry in estimates if entry.error is None]
    if not drawable:
        raise UsageError("there is nothing to draw", remedy="leave --plot out")
    plots: dict[str, Callable[[], Figure]] = {"estimates": lambda: _beside(drawable)}
    plots |= {f"layers-{_slug(entry.name)}": partial(_along, entry) for entry in drawable}
    plots |= {f"roofline-{_slug(entry.name)}": partial(_under, entry) for entry in drawable if has_roof(entry)}
    swept = {f"sweep-{_slug(name)}": one for name, one in sweeps_of(drawable).items()}
    plots |= {name: partial(sweeps, [one], title=conditions_of(drawable[0])) for name, one in swept.items()}
    alone = "estimates" if len(drawable) > 1 else f"layers-{_slug(drawable[0].name)}"
    alone = next((name for name, one in swept.items() if len(one.between) == len(drawable)), alone)
    if explain:
        causes = {f"waterfall-{_slug(entry.name)}": partial(_between, entry) for entry in drawable if entry.attribution}
        plots |= causes
        alone = next(iter(causes)) if len(drawable) == 1 and causes else alone
    return _draw(plots, place, alone=alone)


def draw_generated(report: GenerateReport, place: Path) -> list[Path]:
    """Unique share of every model, and the similarity of models where there are several.

    Args:
        report: What was generated.
        place: A folder for both plots; or one image file, which gets the unique share.

    Returns:
        The files written.

    Raises:
        UsageError: The place is neither a folder nor an image file, or there is nothing to draw.
        OSError: A file cannot be written.
    """
    rows = [row for row in report.rows if row.error is None]
    if not rows:
        raise UsageError("there is nothing to draw", remedy="leave --plot out")
    shares = [ModelShare(row.name, row.sequences or 0, row.unique or 0) for row in rows]
    if len(rows) > 1:
        shares.append(ModelShare("all together", report.sequences, report.unique))
    title = f"Unique sequences at G={report.granularity}"
    plots: dict[str, Callable[[], Figure]] = {"unique": lambda: unique_share(shares, title=title)}
    if len(rows) > 1:
        plots["similarity"] = lambda: _alike({row.name: row.keys for row in rows}, report.granularity)
    return _draw(plots, place, alone="unique")


def draw_comparison(comparison: Comparison, place: Path) -> list[Path]:
    """Ratios of models with their intervals, and of the bricks of every model.

    Args:
        comparison: The comparison.
        place: A folder for all plots; or one image file, which gets the models, or the bricks of a single one.

    Returns:
        The files written.

    Raises:
        UsageError: The place is neither a folder nor an image file, or there is nothing to draw.
        OSError: A file cannot be written.
    """
    rows = comparison.rows
    if not any(row.ratio is not None or row.layers for row in rows):
        raise UsageError("there is nothing to draw", remedy="leave --plot out")
    plots: dict[str, Callable[[], Figure]] = {"models": lambda: _rivals(rows, comparison)}
    named = {f"bricks-{_slug(row.name)}-{_slug(row.other or '')}": row for row in rows if row.layers}
    plots |= {name: partial(_brick_rivals, row, comparison) for name, row in named.items()}
    alone = next(iter(named)) if len(rows) == 1 and named else "models"
    return _draw(plots, place, alone=alone)


def draw_history(report: History, place: Path) -> list[Path]:
    """The runs of every model over time, with versions and changes.

    Args:
        report: The history.
        place: A folder for all plots; or one image file, for a single series.

    Returns:
        The files written.

    Raises:
        UsageError: The place is neither a folder nor an image file, several series are for one file, or there is none.
        OSError: A file cannot be written.
    """
    rows = [row for row in report.rows if row.points]
    if not rows:
        raise UsageError("there is nothing to draw", remedy="leave --plot out")
    named = {_slug(f"{row.name}-{report.place_of(row)}"): row for row in rows}
    if len(rows) > 1 and place.suffix and not place.is_dir():
        raise UsageError(f"{len(rows)} series do not fit into {place}", remedy="give --plot a folder")
    plots = {f"history-{name}": partial(_past, row, report) for name, row in named.items()}
    return _draw(plots, place, alone=next(iter(plots)))


def _past(row: ModelHistory, report: History) -> Figure:
    return over_time(row, title=f"{row.name}, {report.place_of(row)}: {counted(row.runs, 'run')}")


def draw_sweeps(found: Sequence[Sweep], place: Path, *, name: str, title: str) -> list[Path]:
    """Latency and throughput against a length.

    Args:
        found: What was swept; without a measured length it is left out.
        place: A folder, or one image file.
        name: What the plot is called in a folder.
        title: What was measured.

    Returns:
        The files written; none where nothing is known.

    Raises:
        UsageError: The place is neither a folder nor an image file.
        OSError: A file cannot be written.
    """
    known = [one for one in found if one.measured]
    return _draw({name: lambda: sweeps(known, title=title)}, place, alone=name) if known else []


def _rivals(rows: Sequence[ModelComparison], comparison: Comparison) -> Figure:
    several = len({row.name for row in rows}) > 1
    rivals = [
        Rival(
            f"{row.name}: {row.other}" if several and row.other else row.other or row.name,
            row.ratio,
            row.ratio_ci95,
            row.verdict,
            row.gain_ms,
            apart=row.pair.apart,
        )
        for row in rows
    ]
    base = next((row.base for row in rows if row.base), "")
    title = f"{'Models' if several else rows[0].name}, beside {base}"
    return forest(
        rivals, minimum_effect=comparison.minimum_effect, base=base, title=title, gain="gain by faster bricks"
    )


def _brick_rivals(row: ModelComparison, comparison: Comparison) -> Figure:
    layers = sorted(row.layers, key=lambda layer: -abs(layer.gain_ms))[:_MOST_BRICKS]
    layers.sort(key=lambda layer: -layer.gain_ms)
    rivals = [Rival(f"the model ({row.pair.basis})", row.ratio, row.ratio_ci95, row.verdict, apart=row.pair.apart)]
    rivals += [
        Rival(
            f"{layer.brick.occurrences} x {'+'.join(layer.brick.operators)}  {layer.brick.names[0]}",
            layer.ratio,
            layer.ratio_ci95,
            layer.verdict,
            layer.gain_ms,
            apart=layer.pair.apart,
            doubtful=str(layer.verdict) == "UNCLEAR",
        )
        for layer in layers
    ]
    rest = f", {len(layers)} of {len(row.layers)} bricks" if len(layers) < len(row.layers) else ""
    title = f"{row.name}: {row.other} beside {row.base}{rest}"
    base = row.base or ""
    gain = "gain if the base were as fast"
    return forest(rivals, minimum_effect=comparison.minimum_effect, base=base, title=title, gain=gain)


def _draw(plots: Mapping[str, Callable[[], Figure]], place: Path, *, alone: str) -> list[Path]:
    if place.suffix.lower() in _SUFFIXES and not place.is_dir():
        return [save(plots[alone](), place)]
    if place.suffix and not place.is_dir():
        raise UsageError(
            f"{place} is no image file that can be drawn", remedy=f"use {', '.join(_SUFFIXES)}, or a folder"
        )
    place.mkdir(parents=True, exist_ok=True)
    return [save(figure(), place / f"{name}.png") for name, figure in plots.items()]


def _beside(estimates: Sequence[Estimate]) -> Figure:
    title = f"Estimates beside measured latency, {conditions_of(estimates[0])}"
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
    """Under what a model was measured, for a title."""
    threads = "" if entry.place.threads is None else f", {counted(entry.place.threads, 'thread')}"
    known = [entry.place.backend, entry.place.device]
    stack = " ".join(name for name in known if name)
    return f"{stack}{threads}, {entry.place.cache or 'nothing measured'}, G={entry.model.cutting.granularity}".lstrip(
        ", "
    )


def _slug(name: str) -> str:
    """A model's name as part of a file name."""
    return re.sub(r"[^\w.@-]+", "-", name).strip("-.") or "model"
