"""Two sides or many runs: ratios of latencies with their intervals and gains, and the runs of a model over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from .figure import BLUE, GREEN, GREY, ORANGE, RED, name_rows, new_figure, plain_axes, row_height, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ...comparison.results import Judged
    from ...history.changes import RunPoint
    from ...history.history import Change, ModelHistory, Witness


# Forest plot: ratios of latencies with their intervals, and gains, one row per model or brick.
#
# Less certain rows have less ink: hollow if both sides were measured separately, hatched without a ratio or if a gain
# may be chance.


_COLOURS = {"FASTER": GREEN, "SLOWER": RED, "SAME": BLUE, "UNCLEAR": GREY}
_FURTHEST = 8.0
"""Ratios beyond this, either way, leave the plot: an arrow shows where to."""


_WIDEST = 4.0
"""Intervals whose ends are further apart than by this factor do not decide how far the axis reaches."""

_LONGEST = 5.0
"""Gains beyond so many times the usual one are cut off, and written as figures: one must not squeeze the others."""

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
    name_rows(ratios, [label for label, _, _ in rivals], width=44)
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

    known = [rival for _, rival, _ in rivals if rival.ratio is not None]
    verdicts = {rival.verdict or "UNCLEAR" for rival in known}
    handles: list[Line2D | Patch] = [
        Line2D([], [], marker="o", color=colour, linestyle="", label=verdict)
        for verdict, colour in _COLOURS.items()
        if verdict in verdicts
    ]
    if any(rival.pair.apart for rival in known):
        hollow = Line2D([], [], marker="o", color="black", markerfacecolor="white", linestyle="")
        hollow.set_label("hollow: measured apart")
        handles.append(hollow)
    doubtful = hatched and any(gain is not None and rival.verdict == "UNCLEAR" for _, rival, gain in rivals)
    if len(known) < len(rivals) or doubtful:
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


def _draw_gains(axes: Axes, rivals: Sequence[Rival], *, hatched: bool) -> None:
    plain_axes(axes, grid="x")
    axes.axvline(0, color=GREY, linewidth=1)
    gains = [gain_ms for _, _, gain_ms in rivals if gain_ms]
    if not gains:
        known = any(gain_ms is not None for _, _, gain_ms in rivals)
        text = "no brick is faster\non the other side" if known else "no brick is\nmeasured on both"
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=GREY)
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        return
    reach = _reach(gains)
    for row, (_, rival, gain_ms) in enumerate(rivals):
        if gain_ms:
            verdict, length = rival.verdict or "UNCLEAR", min(max(gain_ms, -reach), reach)
            colour = _COLOURS[verdict]
            face, hatch = ("white", _HATCH) if hatched and verdict == "UNCLEAR" else (colour, None)
            axes.barh(row, length, height=0.6, facecolor=face, edgecolor=colour, hatch=hatch)
            if length != gain_ms:
                _write_cut(axes, row, gain_ms, length, colour)
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


# The runs of a model over time: latencies, levels, changes, versions, and the state of the machine.
#
# Runs have equal distances: nights and weeks without a run would squeeze the others.


_LINES = (ORANGE, BLUE, GREEN, GREY)
_HEIGHTS = (0.92, 0.85, 0.78)
"""Where changes are written: those that follow each other one below the other."""

_LABELS = 8
"""Runs whose time is written below the plot."""


def over_time(row: ModelHistory, *, title: str) -> Figure:
    """Draw latencies above and the machine below, run by run.

    Args:
        row: A model with runs.
        title: Title of the plot.
    """
    figure = new_figure(11, 6.2 if row.machine else 4.2, title=title)
    if row.machine:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.3))
        _draw_machine(below, row.machine)
        lowest = below
    else:
        above = lowest = figure.subplots()
    versions = _versions(row.points)
    _draw_latencies(above, row, versions)
    for axes in {above, lowest}:
        for at, _ in versions:
            axes.axvline(at - 0.5, color=GREY, linestyle="--", linewidth=1.2, zorder=1)
    _write_times(lowest, [point.started[5:16].replace("T", " ") for point in row.points])
    return figure


def _versions(points: Sequence[RunPoint]) -> list[tuple[int, str]]:
    """Index of each run with other versions than the run before, and which."""
    found = []
    for index, (old, new) in enumerate(pairwise(points), 1):
        changed = [f"{name} {version}" for name, version in new.versions.items() if old.versions.get(name) != version]
        found += [(index, ", ".join(changed))] if changed else []
    return found


def _levels(row: ModelHistory, changes: Sequence[tuple[int, Change]]) -> list[tuple[int, int, float]]:
    """Index of the first run of a level, that behind its last, and its latency."""
    if not changes:
        return [(0, row.runs, fmean(point.latency_ms for point in row.points))]
    levels = [(at - change.runs_before, at, change.levels.before_ms) for at, change in changes]
    at, last = changes[-1]
    return [*levels, (at, at + last.runs_after, last.levels.after_ms)]


def _draw_latencies(axes: Axes, row: ModelHistory, versions: Sequence[tuple[int, str]]) -> None:
    plain_axes(axes, grid="y")
    order = {point.run: index for index, point in enumerate(row.points)}
    changes = [(order[change.first.run], change) for change in row.changes]
    latencies_ms = [point.latency_ms for point in row.points]
    axes.plot(range(row.runs), latencies_ms, "o", color=BLUE, markersize=4.5, label="run")
    for number, (begin, end, level) in enumerate(_levels(row, changes)):
        label = "level" if number == 0 else None
        axes.plot([begin - 0.4, end - 0.6], [level, level], color="#37474F", linewidth=1.4, zorder=1, label=label)
    low, high = min(latencies_ms), max(latencies_ms)
    room = max(high - low, 0.02 * high)
    axes.set_ylim(low - 0.25 * room, high + 0.5 * room)
    for number, (at, change) in enumerate(changes):
        colour = _COLOURS[change.verdict]
        axes.plot(
            at, latencies_ms[at], "o", markersize=11, markerfacecolor="none", markeredgecolor=colour,
            markeredgewidth=1.8, linestyle="", fillstyle="none",
        )  # fmt: skip
        text = f"{change.verdict} x {change.levels.difference.ratio:.3f} ({change.cause})"
        _write(axes, at, _HEIGHTS[number % len(_HEIGHTS)], text, colour, hollow=change.cause == "machine")
    for number, (at, text) in enumerate(versions):
        _write(axes, at - 0.5, 0.02 + 0.06 * (number % 2), shorten(text, 48), "#5F6B73")
    axes.set_ylabel(f"ms ({row.basis})")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.12), ncols=2, fontsize=9, frameon=False)


def _write(axes: Axes, at: float, height: float, text: str, colour: str, *, hollow: bool = False) -> None:
    """Write text to the right of a run, or to its left near the end of the plot."""
    low, high = axes.get_xlim()
    left = at > (low + high) / 2
    axes.text(
        at, height, f" {text} ", transform=axes.get_xaxis_transform(), ha="right" if left else "left", va="bottom",
        fontsize=8, color=colour, style="italic" if hollow else "normal",
        bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )  # fmt: skip


def _draw_machine(axes: Axes, machine: Sequence[Witness]) -> None:
    """Each relative to its own middle."""
    plain_axes(axes, grid="y")
    axes.axhline(1, color=GREY, linewidth=1)
    for witness, colour in zip(machine, [*_LINES, *[GREY] * len(machine)], strict=False):
        known = [(place, value) for place, value in enumerate(witness.latencies_us) if value]
        middle = median([value for _, value in known])
        axes.plot(
            [place for place, _ in known], [value / middle for _, value in known], ".-", color=colour, linewidth=1,
            markersize=4, label=witness.name,
        )  # fmt: skip
    axes.set_ylabel("machine / median")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.22), ncols=4, fontsize=8, frameon=False)


def _write_times(axes: Axes, started: Sequence[str]) -> None:
    step = max(1, -(-len(started) // _LABELS))
    places = list(range(0, len(started), step))
    axes.set_xticks(places, [started[place] for place in places], fontsize=8)
    axes.set_xlabel("run (UTC)")
