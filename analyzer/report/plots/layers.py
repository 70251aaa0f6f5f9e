"""Where the time goes along one model, and which of it lies on the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .figure import BLUE, GREY, ORANGE, RED, new_figure, plain_axes, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Step", "latency_by_layer"]

_NAMED_STEPS = 6
"""How many of the slowest steps are named in the plot."""


@dataclass(frozen=True, slots=True)
class Step:
    """One sequence of a model, as a bar.

    Attributes:
        label: What it is, for example ``Conv+Relu``.
        first: Index of its first layer in the model's order.
        layers: Number of layers that it covers.
        latency_ms: Its latency; None where it was not measured.
        critical: Whether it lies on the critical path.
    """

    label: str
    first: int
    layers: int
    latency_ms: float | None
    critical: bool


def latency_by_layer(steps: Sequence[Step], *, title: str) -> Figure:
    """Latency of every sequence in the model's order; a strip below marks the critical path.

    Args:
        steps: The model's sequences, in order.
        title: Name of the model and what was measured.

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
    end = max((step.first + step.layers for step in steps), default=1)
    strip.set_xlim(-0.5 - end * 0.005, end - 0.5 + end * 0.005)
    return figure


def _draw_bars(axes: Axes, steps: Sequence[Step]) -> None:
    plain_axes(axes, grid="y")
    axes.set_ylabel("latency (ms)")
    slowest = max((step.latency_ms or 0.0 for step in steps), default=0.0)
    for critical, colour, label in ((True, ORANGE, "on the critical path"), (False, BLUE, "beside it")):
        drawn = [step for step in steps if step.critical is critical and step.latency_ms is not None]
        if drawn:
            axes.bar(
                [step.first - 0.5 for step in drawn],
                [step.latency_ms or 0.0 for step in drawn],
                width=[step.layers for step in drawn],
                align="edge",
                color=colour,
                # A white edge separates neighbours, where there is room for one.
                edgecolor="white" if len(steps) <= 120 else colour,
                linewidth=0.4,
                label=label,
            )
    missing = [step for step in steps if step.latency_ms is None]
    if missing:
        centres = [step.first + (step.layers - 1) / 2 for step in missing]
        height = (slowest or 1.0) * 0.02
        axes.plot(centres, [height] * len(missing), "x", color=RED, markersize=6, label="not measured", clip_on=False)
    axes.set_ylim(0, (slowest or 1.0) * 1.22)
    if steps:
        axes.legend(loc="upper right", fontsize=9, frameon=False, ncols=3, bbox_to_anchor=(1.0, 1.12))


def _draw_strip(axes: Axes, steps: Sequence[Step]) -> None:
    axes.broken_barh([(step.first - 0.5, step.layers) for step in steps], (0, 1), color="#ECEFF1")
    axes.broken_barh([(step.first - 0.5, step.layers) for step in steps if step.critical], (0, 1), color=ORANGE)
    axes.set_yticks([0.5], ["critical path"], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(0, 1)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _name_slowest(axes: Axes, steps: Sequence[Step]) -> None:
    """Write the names of the slowest steps above their bars, where no taller bar stands in the label's way."""
    heights = [(step.first + (step.layers - 1) / 2, step.latency_ms, step.label) for step in steps]
    measured = [(centre, height, label) for centre, height, label in heights if height is not None]
    if not measured:
        axes.text(0.5, 0.5, "no layer of this model was measured", transform=axes.transAxes, ha="center", color=GREY)
        return
    end = max(step.first + step.layers for step in steps)
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
