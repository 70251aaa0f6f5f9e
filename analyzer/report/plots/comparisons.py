"""Sides of a comparison: ratios of latencies with their intervals, and gains, one row per model or brick.

Less certain rows have less ink: hollow if both sides were measured separately, hatched without a ratio or if a gain
may be chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .figure import BLUE, GREEN, GREY, RED, name_rows, new_figure, plain_axes, row_height

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ...comparison.results import Judged


_COLOURS = {"FASTER": GREEN, "SLOWER": RED, "SAME": BLUE, "UNCLEAR": GREY}
_FURTHEST = 8.0
"""Ratios beyond this, either way, leave the plot: an arrow shows where to."""


_WIDEST = 4.0
"""Intervals whose ends are further apart than by this factor do not decide how far the axis reaches."""

_HATCH = "/////"

_STEPS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 8.0)


class Rival(NamedTuple):
    """One row.

    Attributes:
        label: Its name.
        seen: A model or brick on both sides.
        gain_ms: Saving of the base if it were as fast; None if unknown.
    """

    label: str
    seen: Judged
    gain_ms: float | None


def forest(
    rivals: Sequence[Rival], *, minimum_effect: float, base: str, title: str, gain: str, hatched: bool = False
) -> Figure:
    """Draw ratios on the left, on a logarithmic axis, and gains on the right.

    Args:
        rivals: The rows, the first on top.
        minimum_effect: Relative difference that matters; shaded.
        base: Name of the base.
        title: Title of the plot.
        gain: Label of the gains.
        hatched: Hatch gains of an unclear verdict, which may be chance.
    """
    figure = new_figure(11, row_height(len(rivals)) + 0.3, title=title)
    ratios, gains = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _draw_ratios(ratios, rivals, minimum_effect)
    _draw_gains(gains, rivals, hatched=hatched)
    ratios.set_xlabel(f"latency / latency of {base}")
    gains.set_xlabel(f"{gain} (ms)")
    name_rows(ratios, [label for label, _, _ in rivals], width=56)
    gains.tick_params(axis="y", left=False)
    _explain(figure, rivals, hatched=hatched)
    return figure


def _draw_ratios(axes: Axes, rivals: Sequence[Rival], minimum_effect: float) -> None:
    plain_axes(axes, grid="x")
    axes.set_xscale("log")
    axes.axvspan(1 / (1 + minimum_effect), 1 + minimum_effect, color="#E3F2FD", zorder=0)
    axes.axvline(1, color=GREY, linewidth=1)
    reach = 1 + 2 * minimum_effect
    for _, rival, _ in rivals:
        low, high = rival.ratio_ci95 or (1.0, 1.0)
        # One row that nothing is known of would squeeze the others: its ends leave the plot.
        ends = (low, high) if low > 0 and high / low <= _WIDEST else ()
        for value in (rival.ratio, *ends):
            if value is not None:
                reach = max(reach, min(_FURTHEST, max(value, 1 / value if value else _FURTHEST)))
    reach *= 1.05
    for row, (_, rival, _) in enumerate(rivals):
        if rival.ratio is None:
            axes.axhspan(row - 0.3, row + 0.3, facecolor="none", edgecolor=GREY, hatch=_HATCH, linewidth=0)
            continue
        verdict = rival.verdict or "UNCLEAR"
        colour = _COLOURS[verdict]
        if rival.ratio_ci95 is not None:
            low, high = rival.ratio_ci95
            axes.plot([max(low, 1 / reach), min(high, reach)], [row, row], color=colour, linewidth=1.6)
            for beyond, edge, marker in ((low < 1 / reach, 1 / reach, "<"), (high > reach, reach, ">")):
                if beyond:
                    axes.plot(edge, row, marker, color=colour, markersize=5, clip_on=False)
        if not 1 / reach <= rival.ratio <= reach:
            edge, marker = (reach, ">") if rival.ratio > 1 else (1 / reach, "<")
            axes.plot(edge, row, marker, color=colour, markersize=8, clip_on=False)
            continue
        face = "white" if rival.pair.apart else colour
        axes.plot(rival.ratio, row, "o", color=colour, markerfacecolor=face, markersize=6, markeredgewidth=1.6)
    axes.set_xlim(1 / reach, reach)
    _mark(axes, reach)


def _explain(figure: Figure, rivals: Sequence[Rival], *, hatched: bool) -> None:
    """Draw the legend of the marks in the plot."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    compared = [rival for _, rival, _ in rivals if rival.ratio is not None]
    verdicts = {rival.verdict or "UNCLEAR" for rival in compared}
    handles: list[Line2D | Patch] = [
        Line2D([], [], marker="o", color=colour, linestyle="", label=verdict)
        for verdict, colour in _COLOURS.items()
        if verdict in verdicts
    ]
    if any(rival.pair.apart for rival in compared):
        hollow = Line2D([], [], marker="o", color="black", markerfacecolor="white", linestyle="")
        hollow.set_label("hollow: measured apart")
        handles.append(hollow)
    doubtful = hatched and any(gain is not None and rival.verdict == "UNCLEAR" for _, rival, gain in rivals)
    hatches = [*["no ratio"] * (len(compared) < len(rivals)), *["may be chance"] * doubtful]
    if hatches:
        handles.append(Patch(facecolor="white", edgecolor=GREY, hatch=_HATCH, label=", or ".join(hatches)))
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


def _draw_gains(axes: Axes, rivals: Sequence[Rival], *, hatched: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    plain_axes(axes, grid="x")
    axes.axvline(0, color=GREY, linewidth=1)
    gains = [gain_ms for _, _, gain_ms in rivals if gain_ms]
    if not gains:
        any_measured = any(gain_ms is not None for _, _, gain_ms in rivals)
        text = "no brick is faster\non the other side" if any_measured else "no brick is\nmeasured on both"
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=GREY)
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        return
    for row, (_, rival, gain_ms) in enumerate(rivals):
        if gain_ms:
            verdict = rival.verdict or "UNCLEAR"
            colour = _COLOURS[verdict]
            face, hatch = ("white", _HATCH) if hatched and verdict == "UNCLEAR" else (colour, None)
            axes.barh(row, gain_ms, height=0.6, facecolor=face, edgecolor=colour, hatch=hatch)
    axes.set_xlim(1.05 * min(0.0, *gains), 1.05 * max(0.0, *gains))
    axes.xaxis.set_major_locator(MaxNLocator(4))
