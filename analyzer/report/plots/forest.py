"""Ratios of latencies with their intervals, and what they are worth: one row per model or brick (a forest plot)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .figure import BLUE, GREEN, GREY, RED, name_rows, new_figure, plain_axes, row_height

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Rival", "forest"]

_COLOURS = {"FASTER": GREEN, "SLOWER": RED, "SAME": BLUE, "UNCLEAR": GREY}
_FURTHEST = 8.0
"""Ratios beyond this, either way, leave the plot: an arrow shows where to."""


_WIDEST = 4.0
"""Intervals whose ends are further apart than by this factor do not decide how far the axis reaches."""

_STEPS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 8.0)


@dataclass(frozen=True, slots=True)
class Rival:
    """One row.

    Attributes:
        label: What is compared.
        ratio: Other latency / base latency; None where it is not known.
        ci95: Its interval.
        verdict: ``SAME``, ``FASTER``, ``SLOWER`` or ``UNCLEAR``; None where there is none.
        gain_ms: What the base would gain if it were as fast; None where there is nothing to tell.
    """

    label: str
    ratio: float | None
    ci95: tuple[float, float] | None
    verdict: str | None
    gain_ms: float | None = None


def forest(rivals: Sequence[Rival], *, minimum_effect: float, base: str, title: str, gain: str) -> Figure:
    """Ratios on the left, on a logarithmic axis; gains on the right.

    Args:
        rivals: The rows, the first on top.
        minimum_effect: Relative difference that matters; shaded.
        base: Name of the base.
        title: What is compared.
        gain: What the gains are of.
    """
    figure = new_figure(11, row_height(len(rivals)) + 0.3, title=title)
    ratios, gains = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _draw_ratios(ratios, rivals, minimum_effect)
    _draw_gains(gains, rivals)
    ratios.set_xlabel(f"latency / latency of {base}")
    gains.set_xlabel(f"{gain} (ms)")
    name_rows(ratios, [rival.label for rival in rivals], width=44)
    gains.tick_params(axis="y", left=False)
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
    drawn = set[str]()
    for row, rival in enumerate(rivals):
        if rival.ratio is None:
            axes.text(1, row, "not known", ha="center", va="center", fontsize=8, color=GREY)
            continue
        verdict = rival.verdict or "UNCLEAR"
        colour = _COLOURS[verdict]
        if rival.ci95 is not None:
            low, high = rival.ci95
            axes.plot([max(low, 1 / reach), min(high, reach)], [row, row], color=colour, linewidth=1.6)
            for beyond, edge, marker in ((low < 1 / reach, 1 / reach, "<"), (high > reach, reach, ">")):
                if beyond:
                    axes.plot(edge, row, marker, color=colour, markersize=5, clip_on=False)
        place = min(max(rival.ratio, 1 / reach), reach)
        label = verdict if verdict not in drawn else None
        drawn.add(verdict)
        axes.plot(place, row, "o", color=colour, markersize=6, label=label)
    axes.set_xlim(1 / reach, reach)
    _mark(axes, reach)
    if drawn:
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        axes.legend(
            [handles[verdict] for verdict in _COLOURS if verdict in handles],
            [verdict for verdict in _COLOURS if verdict in handles],
            loc="lower left",
            bbox_to_anchor=(0, 1.0),
            ncols=4,
            fontsize=9,
            frameon=False,
            borderaxespad=0.2,
        )


def _mark(axes: Axes, reach: float) -> None:
    """Marks at ratios that people think in, few enough to be read."""
    shown = [step for step in _STEPS if step <= reach][-3:]
    axes.set_xticks([1.0, *shown, *(1 / step for step in shown)])
    axes.set_xticklabels(["1", *(f"{step:g}" for step in shown), *(f"1/{step:g}" for step in shown)])
    axes.minorticks_off()


def _draw_gains(axes: Axes, rivals: Sequence[Rival]) -> None:
    plain_axes(axes, grid="x")
    axes.axvline(0, color=GREY, linewidth=1)
    for row, rival in enumerate(rivals):
        if rival.gain_ms is not None:
            colour = _COLOURS[rival.verdict or "UNCLEAR"]
            axes.barh(row, rival.gain_ms, color=colour, height=0.6)
    if all(rival.gain_ms is None for rival in rivals):
        axes.text(0.5, 0.5, "no brick is measured on both", transform=axes.transAxes, ha="center", color=GREY)
        axes.set_xlim(0, 1)
