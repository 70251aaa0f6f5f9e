"""Estimates against measured latencies for many models; latency by layer for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .figure import BLUE, GREEN, GREY, ORANGE, RED, name_rows, new_figure, plain_axes, row_height, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ....constructor.result import Estimate, SequenceLatency


# Estimates against measured latencies, for many models.


_NARROWEST = 0.85, 1.15
_WIDEST = 0.2, 3.0
"""What the axis of ratios shows at least, and of their intervals at most."""


def estimate_beside_measured(models: Sequence[Estimate], *, title: str) -> Figure:
    """Latencies of a zoo on the left, constructed over measured on the right; one row per model."""
    figure = new_figure(11, row_height(len(models)), title=title)
    latency, ratio = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _draw_latencies(latency, models)
    _draw_ratios(ratio, models)
    name_rows(latency, [model.name for model in models])
    ratio.tick_params(axis="y", left=False)
    return figure


def _draw_latencies(axes: Axes, models: Sequence[Estimate]) -> None:
    plain_axes(axes, grid="x")
    axes.set_xlabel("latency (ms)")
    rows = range(len(models))
    for row, model in zip(rows, models, strict=True):
        latencies = (model.sums.sequential_ms, model.sums.critical_path_ms, model.truth.ms, model.latency.ms)
        known_ms = [latency for latency in latencies if latency is not None]
        if len(known_ms) > 1:
            axes.plot([min(known_ms), max(known_ms)], [row, row], color="#CFD8DC", linewidth=3, solid_capstyle="round")
        if model.latency.ci95_ms is not None and model.latency.ms is not None:
            axes.plot(model.latency.ci95_ms, [row, row], color=GREEN, linewidth=1.4)
    series = (
        ("measured", "D", "black", [model.truth.ms for model in models]),
        ("sequential", "o", BLUE, [model.sums.sequential_ms for model in models]),
        ("critical path", "^", ORANGE, [model.sums.critical_path_ms for model in models]),
        ("estimate", "s", GREEN, [model.latency.ms for model in models]),
        ("undisturbed", "|", RED, [model.latency.undisturbed_ms if model.disturbed else None for model in models]),
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
    everything += [bound for model in models if model.latency.ci95_ms is not None for bound in model.latency.ci95_ms]
    _log_where_wide(axes, everything)
    if everything:
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, fontsize=9, frameon=False, borderaxespad=0.2,
            columnspacing=0.8, handletextpad=0.1,
        )  # fmt: skip


def _draw_ratios(axes: Axes, models: Sequence[Estimate]) -> None:
    plain_axes(axes, grid="x")
    axes.set_xlabel("constructed / measured (±10% shaded)")
    axes.axvspan(0.9, 1.1, color="#E8F5E9", zorder=0)
    axes.axvline(1, color=GREY, linewidth=1)
    ends = [_NARROWEST[0], _NARROWEST[1]]
    for row, model in enumerate(models):
        measured_ms, estimate_ms, sums = model.truth.ms, model.latency.ms, model.sums
        if measured_ms is None or estimate_ms is None:
            said = "not measured" if measured_ms is None else "not complete"
            axes.text(1, row, said, ha="center", va="center", fontsize=8, color=GREY)
            continue
        for value, marker, colour in ((sums.critical_path_ms, "^", ORANGE), (sums.sequential_ms, "o", BLUE)):
            if value is not None:
                ends.append(value / measured_ms)
                axes.plot(value / measured_ms, row, marker, color=colour, markersize=4, alpha=0.6)
        ratio = estimate_ms / measured_ms
        colour = RED if model.disturbed else GREEN
        bounds = model.truth.ratio_ci95 or (ratio, ratio)
        ends += [max(bounds[0], _WIDEST[0]), min(bounds[1], _WIDEST[1]), ratio]
        axes.errorbar(
            ratio, row, xerr=[[ratio - bounds[0]], [bounds[1] - ratio]], fmt="s", color=colour, markersize=6,
            markerfacecolor="white" if model.truth.paired is False else colour, elinewidth=1.4, capsize=2.5,
        )  # fmt: skip
        text = f"{ratio:.2f}" + (f"  +{model.disturbance:.0%}" if model.disturbed else "")
        axes.annotate(text, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8, color="#37474F")
    margin = 0.02 * (max(ends) - min(ends))
    axes.set_xlim(min(ends) - margin, max(ends) + margin)
    _explain_ratios(axes, [model for model in models if model.truth.ms is not None and model.latency.ms is not None])


def _explain_ratios(axes: Axes, models: Sequence[Estimate]) -> None:
    """Draw the legend: colours for a quiet or disturbed machine, a hollow square for separate sessions."""
    kinds = (
        ("quiet", GREEN, GREEN, any(not model.disturbed for model in models)),
        ("disturbed, by how much", RED, RED, any(model.disturbed for model in models)),
        ("not paired", GREY, "white", any(model.truth.paired is False for model in models)),
    )
    drawn = [
        axes.plot([], [], "s", color=colour, markerfacecolor=face, label=label)[0]
        for label, colour, face, present in kinds
        if present
    ]
    if drawn:
        axes.legend(
            handles=drawn, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, fontsize=9, frameon=False,
            borderaxespad=0.2, columnspacing=0.8, handletextpad=0.1,
        )  # fmt: skip


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _log_where_wide(axes: Axes, values: Sequence[float]) -> None:
    """Make an axis logarithmic if values differ by more than a factor of ten; else it starts at zero."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = [value for value in values if value > 0]
    if positive and max(positive) > 10 * min(positive):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, max(positive, default=1.0) * 1.08)


# The latency of one model, layer by layer.


_NAMED_STEPS = 6
"""How many of the slowest steps are named in the plot."""


def latency_by_layer(steps: Sequence[SequenceLatency], *, title: str) -> Figure:
    """Draw the latency of every sequence in the model's order; a strip below marks the critical path.

    Args:
        steps: The model's sequences, in order.
        title: Title of the plot.

    Returns:
        A figure with two axes that share the layer index: latencies above, the critical path below.
    """
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(11, 4.6, title=title)
    bars, strip = figure.subplots(2, 1, sharex=True, height_ratios=(14, 1))
    _draw_bars(bars, steps)
    _draw_strip(strip, steps)
    _name_slowest(bars, steps)
    strip.set_xlabel("layer, in the model's order")
    strip.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    end = _end(steps)
    strip.set_xlim(-0.5 - end * 0.005, end - 0.5 + end * 0.005)
    return figure


def _width(step: SequenceLatency) -> int:
    """Layers from the first to the last of a sequence."""
    return step.layers[-1] - step.layers[0] + 1


def _centre(step: SequenceLatency) -> float:
    return (step.layers[0] + step.layers[-1]) / 2


def _end(steps: Sequence[SequenceLatency]) -> int:
    return max((step.layers[-1] + 1 for step in steps), default=1)


def _draw_bars(axes: Axes, steps: Sequence[SequenceLatency]) -> None:
    plain_axes(axes, grid="y")
    axes.set_ylabel("latency (ms)")
    slowest = max((step.latency_ms or 0.0 for step in steps), default=0.0)
    for critical, colour, label in ((True, ORANGE, "on the critical path"), (False, BLUE, "elsewhere")):
        drawn = [step for step in steps if step.on_path is critical and step.latency_ms is not None]
        if drawn:
            axes.bar(
                [step.layers[0] - 0.5 for step in drawn],
                [step.latency_ms or 0.0 for step in drawn],
                width=[_width(step) for step in drawn],
                align="edge",
                color=colour,
                # A white edge separates neighbours, where there is room for one.
                edgecolor="white" if len(steps) <= 120 else colour,
                linewidth=0.4,
                label=label,
            )
    missing = [step for step in steps if step.latency_ms is None]
    if missing:
        centres = [_centre(step) for step in missing]
        height = (slowest or 1.0) * 0.02
        axes.plot(centres, [height] * len(missing), "x", color=RED, markersize=6, label="not measured", clip_on=False)
    axes.set_ylim(0, (slowest or 1.0) * 1.22)
    if steps:
        axes.legend(loc="upper right", fontsize=9, frameon=False, ncols=3, bbox_to_anchor=(1.0, 1.12))


def _draw_strip(axes: Axes, steps: Sequence[SequenceLatency]) -> None:
    axes.broken_barh([(step.layers[0] - 0.5, _width(step)) for step in steps], (0, 1), color="#ECEFF1")
    axes.broken_barh([(step.layers[0] - 0.5, _width(step)) for step in steps if step.on_path], (0, 1), color=ORANGE)
    axes.set_yticks([0.5], ["critical path"], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(0, 1)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _name_slowest(axes: Axes, steps: Sequence[SequenceLatency]) -> None:
    """Write the names of the slowest steps above their bars, unless a taller bar covers the label."""
    heights = [(_centre(step), step.latency_ms, "+".join(step.op_types)) for step in steps]
    measured = [(centre, height, label) for centre, height, label in heights if height is not None]
    if not measured:
        axes.text(0.5, 0.5, "no layer of this model was measured", transform=axes.transAxes, ha="center", color=GREY)
        return
    end = _end(steps)
    tallest = max(height for _, height, _ in measured)
    named: list[float] = []
    for centre, height, label in sorted(measured, key=lambda bar: -bar[1]):
        if len(named) == _NAMED_STEPS or height < tallest * 0.1:
            break
        crowded = any(abs(centre - other) < end * 0.13 for other in named)
        hidden = any(0 < abs(centre - other) < end * 0.065 and taller > height for other, taller, _ in measured)
        if crowded or hidden:
            continue
        named.append(centre)
        # Near either end a centred label would leave the axes.
        outer = end > 2
        side = "left" if outer and centre < end * 0.05 else "right" if outer and centre > end * 0.95 else "center"
        axes.annotate(
            f"{shorten(label, 22)}\n{height:.3g} ms",
            (centre, height),
            xytext=(0, 3),
            textcoords="offset points",
            ha=side,
            va="bottom",
            fontsize=8,
            color="#37474F",
        )
