"""Forest plot: ratios of latencies with their intervals, and gains, one row per model or brick.

Less certain rows have less ink: hollow if both sides were measured separately, hatched without a ratio or if a gain may
be chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .figure import BLUE, GREEN, GREY, RED, name_rows, new_figure, plain_axes, row_height

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"FASTER": GREEN, "SLOWER": RED, "SAME": BLUE, "UNCLEAR": GREY}
_FURTHEST = 8.0
"""Ratios beyond this, either way, leave the plot: an arrow shows where to."""


_WIDEST = 4.0
"""Intervals whose ends are further apart than by this factor do not decide how far the axis reaches."""

_LONGEST = 5.0
"""Gains beyond so many times the usual one are cut off, and written as figures: one must not squeeze the others."""

_HATCH = "/////"

_STEPS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 8.0)


@dataclass(frozen=True, slots=True)
class Rival:
    """One row.

    Attributes:
        label: Name of the row.
        ratio: Other latency / base latency; None if it is unknown.
        ci95: Its interval.
        verdict: ``SAME``, ``FASTER``, ``SLOWER`` or ``UNCLEAR``; None without one.
        gain_ms: Saving of the base if it were as fast; None if it is unknown.
        apart: True if both sides were measured in different runs.
        doubtful: True if the gain may be chance.
    """

    label: str
    ratio: float | None
    ci95: tuple[float, float] | None
    verdict: str | None
    gain_ms: float | None = None
    apart: bool = False
    doubtful: bool = False


def forest(rivals: Sequence[Rival], *, minimum_effect: float, base: str, title: str, gain: str) -> Figure:
    """Draw ratios on the left, on a logarithmic axis, and gains on the right.

    Args:
        rivals: The rows, the first on top.
        minimum_effect: Relative difference that matters; shaded.
        base: Name of the base.
        title: Title of the plot.
        gain: Label of the gains.
    """
    figure = new_figure(11, row_height(len(rivals)) + 0.3, title=title)
    ratios, gains = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _draw_ratios(ratios, rivals, minimum_effect)
    _draw_gains(gains, rivals)
    ratios.set_xlabel(f"latency / latency of {base}")
    gains.set_xlabel(f"{gain} (ms)")
    name_rows(ratios, [rival.label for rival in rivals], width=44)
    gains.tick_params(axis="y", left=False)
    _explain(figure, rivals)
    return figure


def _draw_ratios(axes: Axes, rivals: Sequence[Rival], minimum_effect: float) -> None:
    plain_axes(axes, grid="x")
    axes.set_xscale("log")
    axes.axvspan(1 / (1 + minimum_effect), 1 + minimum_effect, color="#E3F2FD", zorder=0)
    axes.axvline(1, color=GREY, linewidth=1)
    reach = 1 + 2 * minimum_effect
    for rival in rivals:
        low, high = rival.ci95 or (1.0, 1.0)
        # One row that nothing is known of would squeeze the others: its ends leave the plot.
        ends = (low, high) if low > 0 and high / low <= _WIDEST else ()
        for value in (rival.ratio, *ends):
            if value is not None:
                reach = max(reach, min(_FURTHEST, max(value, 1 / value if value else _FURTHEST)))
    reach *= 1.05
    for row, rival in enumerate(rivals):
        if rival.ratio is None:
            axes.axhspan(row - 0.3, row + 0.3, facecolor="none", edgecolor=GREY, hatch=_HATCH, linewidth=0)
            continue
        verdict = rival.verdict or "UNCLEAR"
        colour = _COLOURS[verdict]
        if rival.ci95 is not None:
            low, high = rival.ci95
            axes.plot([max(low, 1 / reach), min(high, reach)], [row, row], color=colour, linewidth=1.6)
            for beyond, edge, marker in ((low < 1 / reach, 1 / reach, "<"), (high > reach, reach, ">")):
                if beyond:
                    axes.plot(edge, row, marker, color=colour, markersize=5, clip_on=False)
        if not 1 / reach <= rival.ratio <= reach:
            edge, marker = (reach, ">") if rival.ratio > 1 else (1 / reach, "<")
            axes.plot(edge, row, marker, color=colour, markersize=8, clip_on=False)
            continue
        face = "white" if rival.apart else colour
        axes.plot(rival.ratio, row, "o", color=colour, markerfacecolor=face, markersize=6, markeredgewidth=1.6)
    axes.set_xlim(1 / reach, reach)
    _mark(axes, reach)


def _explain(figure: Figure, rivals: Sequence[Rival]) -> None:
    """Draw the legend of the marks in the plot."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    known = [rival for rival in rivals if rival.ratio is not None]
    verdicts = {rival.verdict or "UNCLEAR" for rival in known}
    handles: list[Line2D | Patch] = [
        Line2D([], [], marker="o", color=colour, linestyle="", label=verdict)
        for verdict, colour in _COLOURS.items()
        if verdict in verdicts
    ]
    if any(rival.apart for rival in known):
        hollow = Line2D([], [], marker="o", color="black", markerfacecolor="white", linestyle="")
        hollow.set_label("hollow: measured apart")
        handles.append(hollow)
    if len(known) < len(rivals) or any(rival.doubtful for rival in rivals):
        label = "no ratio" if len(known) < len(rivals) else "may be chance"
        handles.append(Patch(facecolor="white", edgecolor=GREY, hatch=_HATCH, label=label))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        fontsize=9,
        frameon=False,
        columnspacing=1.2,
        handletextpad=0.4,
    )


def _mark(axes: Axes, reach: float) -> None:
    """Return a few round ratios as ticks."""
    shown = [step for step in _STEPS if step <= reach][-3:]
    axes.set_xticks([1.0, *shown, *(1 / step for step in shown)])
    axes.set_xticklabels(["1", *(f"{step:g}" for step in shown), *(f"1/{step:g}" for step in shown)])
    axes.minorticks_off()


def _draw_gains(axes: Axes, rivals: Sequence[Rival]) -> None:
    plain_axes(axes, grid="x")
    axes.axvline(0, color=GREY, linewidth=1)
    gains = [rival.gain_ms for rival in rivals if rival.gain_ms]
    if not gains:
        known = any(rival.gain_ms is not None for rival in rivals)
        text = "no brick is faster\non the other side" if known else "no brick is\nmeasured on both"
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=GREY)
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        return
    reach = _reach(gains)
    for row, rival in enumerate(rivals):
        if rival.gain_ms:
            colour, length = _COLOURS[rival.verdict or "UNCLEAR"], min(max(rival.gain_ms, -reach), reach)
            face, hatch = ("white", _HATCH) if rival.doubtful else (colour, None)
            axes.barh(row, length, height=0.6, facecolor=face, edgecolor=colour, hatch=hatch)
            if length != rival.gain_ms:
                _write_cut(axes, row, rival.gain_ms, length, colour)
    low, high = max(min(0.0, *gains), -reach), min(max(0.0, *gains), reach)
    axes.set_xlim(1.05 * low, 1.05 * high)


def _reach(gains: Sequence[float]) -> float:
    """Return the length of the axis of gains; a single very long bar is cut."""
    lengths = sorted(map(abs, gains))
    return min(lengths[-1], _LONGEST * lengths[len(lengths) // 2])


def _write_cut(axes: Axes, row: int, gain_ms: float, length: float, colour: str) -> None:
    """Write how long a bar is that was cut off."""
    axes.plot(length, row, "<" if length < 0 else ">", color=colour, markersize=7, clip_on=False)
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    axes.text(length / 2, row, f"{gain_ms:.3g}", ha="center", va="center", fontsize=8, bbox=box)
