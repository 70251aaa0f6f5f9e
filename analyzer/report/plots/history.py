"""The runs of a model over time: latencies, levels, changes, versions, and the state of the machine.

Runs have equal distances: nights and weeks without a run would squeeze the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING

from .figure import BLUE, GREEN, GREY, ORANGE, RED, new_figure, plain_axes, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ...history.changes import RunPoint
    from ...history.history import Change, ModelHistory, Witness

_COLOURS = {"SLOWER": RED, "FASTER": GREEN}
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
