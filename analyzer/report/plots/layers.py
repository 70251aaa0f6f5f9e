"""The latency of one model: by layer along the model, and by cause from its bricks to the measured latency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from .figure import BLUE, GREEN, GREY, ORANGE, RED, new_figure, plain_axes, row_height, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


_INK = "#37474F"
_BROAD = 0.62
"""Height of a bar; the rest of a row is space."""


@dataclass(frozen=True, slots=True)
class Fall:
    """One row of a waterfall.

    Attributes:
        label: What it is.
        ms: A total, or what a cause adds (negative: takes off); None where it is not known.
        half_ms: Half of its 95 % interval.
        total: Whether it is a total, which stands on zero.
    """

    label: str
    ms: float | None
    half_ms: float = 0.0
    total: bool = False


@dataclass(frozen=True, slots=True)
class _Bar:
    """A row with its place.

    Attributes:
        row: Its number, from the top.
        begin: Where it begins, in ms.
        end: Where it ends.
        fall: The row.
        colour: Of the bar.
        kind: What the colour stands for.
    """

    row: int
    begin: float
    end: float
    fall: Fall
    colour: str
    kind: str


def waterfall(falls: Sequence[Fall], *, title: str) -> Figure:
    """Totals, and between them what each cause adds or takes off; whiskers are 95 % intervals.

    Args:
        falls: The rows, from the top. A cause begins where the row before it ended; a total stands on zero. Those that
            are not known have no row: they are named below.
        title: Name of the model and what was measured.

    Returns:
        A figure with one axes.
    """
    unknown = [fall.label for fall in falls if fall.ms is None]
    falls = [fall for fall in falls if fall.ms is not None]
    figure = new_figure(9.5, row_height(len(falls), each=0.36, least=2.6), title=title)
    axes = figure.subplots()
    plain_axes(axes, grid="x")
    bars = list(_placed(falls))
    _draw_falls(axes, bars)
    _write_values(axes, falls, bars)
    axes.set_yticks(range(len(falls)), [shorten(fall.label, 30) for fall in falls], fontsize=9)
    axes.set_ylim(max(len(falls), 1) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"latency (ms){'; not known: ' if unknown else ''}{', '.join(unknown)}")
    return figure


def _placed(falls: Sequence[Fall]) -> Iterator[_Bar]:
    at = 0.0
    for row, fall in enumerate(falls):
        if fall.ms is None:
            continue
        if fall.total:
            begin, at = 0.0, fall.ms
            colour, kind = BLUE, "total"
        else:
            begin, at = at, at + fall.ms
            colour, kind = (ORANGE, "adds") if fall.ms > 0 else (GREEN, "takes off")
        yield _Bar(row, begin, at, fall, colour, kind)


def _draw_falls(axes: Axes, bars: Sequence[_Bar]) -> None:
    for kind in dict.fromkeys(bar.kind for bar in bars if bar.begin != bar.end):
        drawn = [bar for bar in bars if bar.kind == kind]
        axes.barh(
            [bar.row for bar in drawn],
            [bar.end - bar.begin for bar in drawn],
            left=[bar.begin for bar in drawn],
            height=_BROAD,
            color=drawn[0].colour,
            label=kind,
        )
    for before, after in pairwise(bars):
        axes.plot(
            [before.end, before.end], [before.row - _BROAD / 2, after.row + _BROAD / 2], color=GREY, linewidth=0.8
        )
    sure = [bar for bar in bars if bar.fall.half_ms > 0]
    if sure:
        axes.errorbar(
            [bar.end for bar in sure],
            [bar.row for bar in sure],
            xerr=[bar.fall.half_ms for bar in sure],
            fmt="none",
            ecolor=_INK,
            elinewidth=1.1,
            capsize=2.5,
            label="95 % interval",
        )
    if bars:
        axes.axvline(0.0, color=_INK, linewidth=0.8)
        axes.legend(loc="lower right", fontsize=9, frameon=False, ncols=4, bbox_to_anchor=(1.0, 1.0))


def _write_values(axes: Axes, falls: Sequence[Fall], bars: Sequence[_Bar]) -> None:
    """The numbers in a column of their own, right of the axes."""
    right = max((max(bar.begin, bar.end + bar.fall.half_ms) for bar in bars), default=1.0) or 1.0
    left = min((min(bar.begin, bar.end - bar.fall.half_ms) for bar in bars), default=0.0)
    axes.set_xlim(min(0.0, left * 1.05), right * 1.03)
    for row, fall in enumerate(falls):
        text = "not known" if fall.ms is None else f"{fall.ms:.4g} ms" if fall.total else f"{fall.ms:+.3g} ms"
        if fall.ms == 0 and not fall.total:
            text = "0 ms"
        axes.text(
            1.13,
            row,
            text.replace("-", "\N{MINUS SIGN}"),
            transform=axes.get_yaxis_transform(),  # across: the width of the axes; down: the rows
            ha="right",
            va="center",
            fontsize=9,
            color=GREY if fall.ms is None else _INK,
            fontweight="bold" if fall.total else "normal",
        )
