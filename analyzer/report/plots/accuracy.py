"""Estimates beside ground truth, for a zoo of models and against the granularity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING

from .figure import BLUE, GREEN, GREY, ORANGE, RED, name_rows, new_figure, plain_axes, row_height

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NARROWEST = 0.85, 1.15
_WIDEST = 0.2, 3.0
"""What the axis of ratios shows at least, and of their intervals at most."""


@dataclass(frozen=True, slots=True)
class ModelLatency:
    """One model's latencies in milliseconds; None where something was not measured.

    Attributes:
        name: Name of the model.
        sequential_ms: Sum over all sequences.
        critical_path_ms: Sum along the critical path.
        measured_ms: Ground truth.
        ci95_ms: Interval of the prediction, if known.
        estimate_ms: The prediction, where it is not the sequential sum.
        ratio_ci95: Interval of prediction / measured.
        undisturbed_ms: The prediction for a quiet machine.
        disturbance: How much slower the visits were than quiet ones, where the machine was disturbed; else None.
        paired: Whether bricks and model were visited in turn.
    """

    name: str
    sequential_ms: float | None
    critical_path_ms: float | None
    measured_ms: float | None
    ci95_ms: tuple[float, float] | None = None
    estimate_ms: float | None = None
    ratio_ci95: tuple[float, float] | None = None
    undisturbed_ms: float | None = None
    disturbance: float | None = None
    paired: bool = True

    @property
    def predicted_ms(self) -> float | None:
        """What the model is said to take."""
        return self.sequential_ms if self.estimate_ms is None else self.estimate_ms


@dataclass(frozen=True, slots=True)
class GranularityPoint:
    """What one granularity gives over a zoo.

    Attributes:
        granularity: Most layers per sequence.
        ratios: Constructed over measured latency, one per model.
        speedup: Sum of the models' latencies over the sum of the unique bricks' latencies.
    """

    granularity: int
    ratios: tuple[float, ...]
    speedup: float | None


def estimate_beside_measured(models: Sequence[ModelLatency], *, title: str) -> Figure:
    """Latencies of a zoo on the left, constructed over measured on the right; one row per model."""
    figure = new_figure(11, row_height(len(models)), title=title)
    latency, ratio = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _draw_latencies(latency, models)
    _draw_ratios(ratio, models)
    name_rows(latency, [model.name for model in models])
    ratio.tick_params(axis="y", left=False)
    return figure


def _draw_latencies(axes: Axes, models: Sequence[ModelLatency]) -> None:
    plain_axes(axes, grid="x")
    axes.set_xlabel("latency (ms)")
    rows = range(len(models))
    for row, model in zip(rows, models, strict=True):
        latencies = (model.sequential_ms, model.critical_path_ms, model.measured_ms, model.estimate_ms)
        known = [latency for latency in latencies if latency is not None]
        if len(known) > 1:
            axes.plot([min(known), max(known)], [row, row], color="#CFD8DC", linewidth=3, solid_capstyle="round")
        if model.ci95_ms is not None and model.predicted_ms is not None:
            axes.plot(model.ci95_ms, [row, row], color=BLUE if model.estimate_ms is None else GREEN, linewidth=1.4)
    series = (
        ("measured", "D", "black", [model.measured_ms for model in models]),
        ("sequential", "o", BLUE, [model.sequential_ms for model in models]),
        ("critical path", "^", ORANGE, [model.critical_path_ms for model in models]),
        ("estimate", "s", GREEN, [model.estimate_ms for model in models]),
        ("undisturbed", "|", RED, [model.undisturbed_ms if model.disturbance else None for model in models]),
    )
    everything: list[float] = []
    for label, marker, colour, values in series:
        points = [(value, row) for row, value in zip(rows, values, strict=True) if value is not None]
        everything += [value for value, _ in points]
        if points:  # the legend names what is drawn
            size = 13 if marker == "|" else 6
            axes.plot(
                *_columns(points), marker, color=colour, markersize=size, markeredgewidth=2, alpha=0.9, label=label
            )
    everything += [bound for model in models if model.ci95_ms is not None for bound in model.ci95_ms]
    _log_where_wide(axes, everything)
    if everything:
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, fontsize=9, frameon=False, borderaxespad=0.2,
            columnspacing=0.8, handletextpad=0.1,
        )  # fmt: skip


def _draw_ratios(axes: Axes, models: Sequence[ModelLatency]) -> None:
    plain_axes(axes, grid="x")
    axes.set_xlabel("constructed / measured (±10 % shaded)")
    axes.axvspan(0.9, 1.1, color="#E8F5E9", zorder=0)
    axes.axvline(1, color=GREY, linewidth=1)
    ends = [_NARROWEST[0], _NARROWEST[1]]
    for row, model in enumerate(models):
        if model.measured_ms is None or model.predicted_ms is None:
            said = "not measured" if model.measured_ms is None else "not complete"
            axes.text(1, row, said, ha="center", va="center", fontsize=8, color=GREY)
            continue
        for value, marker, colour in ((model.critical_path_ms, "^", ORANGE), (model.sequential_ms, "o", BLUE)):
            if value is not None and model.estimate_ms is not None:
                ends.append(value / model.measured_ms)
                axes.plot(value / model.measured_ms, row, marker, color=colour, markersize=4, alpha=0.6)
        ratio = model.predicted_ms / model.measured_ms
        colour = RED if model.disturbance else GREEN
        bounds = model.ratio_ci95 or (ratio, ratio)
        ends += [max(bounds[0], _WIDEST[0]), min(bounds[1], _WIDEST[1]), ratio]
        axes.errorbar(
            ratio, row, xerr=[[ratio - bounds[0]], [bounds[1] - ratio]], fmt="s", color=colour, markersize=6,
            markerfacecolor=colour if model.paired else "white", elinewidth=1.4, capsize=2.5,
        )  # fmt: skip
        text = f"{ratio:.2f}" + (f"  +{model.disturbance:.0%}" if model.disturbance else "")
        axes.annotate(text, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8, color="#37474F")
    margin = 0.02 * (max(ends) - min(ends))
    axes.set_xlim(min(ends) - margin, max(ends) + margin)
    _explain_ratios(
        axes, [model for model in models if model.measured_ms is not None and model.predicted_ms is not None]
    )


def _explain_ratios(axes: Axes, models: Sequence[ModelLatency]) -> None:
    """A legend of what is drawn: colours for what the machine did, a hollow square for two sessions."""
    kinds = (
        ("quiet", GREEN, GREEN, any(not model.disturbance for model in models)),
        ("disturbed, by how much", RED, RED, any(model.disturbance for model in models)),
        ("not paired", GREY, "white", any(not model.paired for model in models)),
    )
    drawn = [
        axes.plot([], [], "s", color=colour, markerfacecolor=face, label=label)[0]
        for label, colour, face, found in kinds
        if found
    ]
    if drawn:
        axes.legend(
            handles=drawn, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, fontsize=9, frameon=False,
            borderaxespad=0.2, columnspacing=0.8, handletextpad=0.1,
        )  # fmt: skip


def accuracy_against_granularity(points: Sequence[GranularityPoint], *, title: str) -> Figure:
    """Constructed over measured latency, and the benchmarking speed-up, against the granularity (DLBricks 11, 12)."""
    figure = new_figure(10, 4.2, title=title)
    accuracy, speedup = figure.subplots(1, 2)
    steps = [point.granularity for point in points]
    plain_axes(accuracy, grid="y")
    accuracy.axhspan(0.9, 1.1, color="#E8F5E9", zorder=0)
    accuracy.axhline(1, color=GREY, linewidth=1)
    known = [point for point in points if point.ratios]
    for point in known:
        accuracy.plot([point.granularity] * len(point.ratios), point.ratios, "o", color=GREY, markersize=3.5, alpha=0.7)
    centres = [(geometric_mean(point.ratios), point.granularity) for point in known]
    accuracy.plot([g for _, g in centres], [r for r, _ in centres], "o-", color=BLUE, label="geometric mean")
    accuracy.set_ylabel("constructed / measured")
    accuracy.set_title("Accuracy: one dot per model, ±10 % shaded", fontsize=10, loc="left")
    accuracy.legend(fontsize=9, frameon=False)

    plain_axes(speedup, grid="y")
    fast = [(point.granularity, point.speedup) for point in points if point.speedup is not None]
    speedup.plot(*_columns(fast), "o-", color=ORANGE)
    for granularity, value in fast:
        speedup.annotate(
            f"{value:.1f}", (granularity, value), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8
        )
    speedup.set_ylim(0, max((value for _, value in fast), default=1.0) * 1.18)
    speedup.set_ylabel("Σ models / Σ unique bricks")
    speedup.set_title("Benchmarking speed-up", fontsize=10, loc="left")
    for axes in (accuracy, speedup):
        axes.set_xlabel("granularity G (layers per sequence)")
        axes.set_xticks(steps)
    return figure


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _log_where_wide(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis where values differ by more than a factor of ten, else one that starts at zero."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = [value for value in values if value > 0]
    if positive and max(positive) > 10 * min(positive):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, max(positive, default=1.0) * 1.08)
