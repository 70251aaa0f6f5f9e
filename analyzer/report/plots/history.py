"""The runs of a model over time: latencies with their levels and changes, versions, and what the machine did meanwhile.

Runs stand at equal distances, whatever the time between them: nights and weeks without a run would squeeze the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from .figure import BLUE, GREEN, GREY, ORANGE, RED, new_figure, plain_axes, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"SLOWER": RED, "FASTER": GREEN}
_LINES = (ORANGE, BLUE, GREEN, GREY)
_HEIGHTS = (0.92, 0.85, 0.78)
"""Where changes are written: those that follow each other one below the other."""

_LABELS = 8
"""Runs whose time is written below the plot."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A change of level.

    Attributes:
        at: Index of the first run at the new level.
        verdict: ``SLOWER`` or ``FASTER``.
        text: What is written beside it.
        hollow: Whether the machine moved, and no version.
    """

    at: int
    verdict: str
    text: str
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Past:
    """The runs of one series.

    Attributes:
        started: When each began.
        latencies_ms: Of each.
        levels: Index of the first run of a level, that behind its last, and its latency.
        marks: Changes.
        versions: Index of the first run with another version, and which.
        machine: Name of each probe or network of our own, and its latency in each run; None where not measured.
    """

    started: Sequence[str]
    latencies_ms: Sequence[float]
    levels: Sequence[tuple[int, int, float]] = ()
    marks: Sequence[Mark] = ()
    versions: Sequence[tuple[int, str]] = ()
    machine: Sequence[tuple[str, Sequence[float | None]]] = ()


def over_time(past: Past, *, title: str, ylabel: str) -> Figure:
    """Latencies above, the machine below, run by run.

    Args:
        past: The runs.
        title: What they are of.
        ylabel: What the latencies are.
    """
    figure = new_figure(11, 6.2 if past.machine else 4.2, title=title)
    if past.machine:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.3))
        _draw_machine(below, past)
        lowest = below
    else:
        above = lowest = figure.subplots()
    _draw_latencies(above, past, ylabel)
    for axes in {above, lowest}:
        for at, _ in past.versions:
            axes.axvline(at - 0.5, color=GREY, linestyle="--", linewidth=1.2, zorder=1)
    _write_times(lowest, past.started)
    return figure


def _draw_latencies(axes: Axes, past: Past, ylabel: str) -> None:
    plain_axes(axes, grid="y")
    axes.plot(range(len(past.latencies_ms)), past.latencies_ms, "o", color=BLUE, markersize=4.5, label="run")
    for number, (begin, end, level) in enumerate(past.levels):
        label = "level" if number == 0 else None
        axes.plot([begin - 0.4, end - 0.6], [level, level], color="#37474F", linewidth=1.4, zorder=1, label=label)
    low, high = min(past.latencies_ms), max(past.latencies_ms)
    room = max(high - low, 0.02 * high)
    axes.set_ylim(low - 0.25 * room, high + 0.5 * room)
    for number, mark in enumerate(past.marks):
        colour = _COLOURS.get(mark.verdict, GREY)
        axes.plot(
            mark.at, past.latencies_ms[mark.at], "o", markersize=11, markerfacecolor="none", markeredgecolor=colour,
            markeredgewidth=1.8, linestyle="", fillstyle="none",
        )  # fmt: skip
        _write(axes, mark.at, _HEIGHTS[number % len(_HEIGHTS)], mark.text, colour, hollow=mark.hollow)
    for number, (at, text) in enumerate(past.versions):
        _write(axes, at - 0.5, 0.02 + 0.06 * (number % 2), shorten(text, 48), "#5F6B73")
    axes.set_ylabel(ylabel)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.12), ncols=2, fontsize=9, frameon=False)


def _write(axes: Axes, at: float, height: float, text: str, colour: str, *, hollow: bool = False) -> None:
    """Text beside a run; to its left where the plot would end."""
    low, high = axes.get_xlim()
    left = at > (low + high) / 2
    axes.text(
        at, height, f" {text} ", transform=axes.get_xaxis_transform(), ha="right" if left else "left", va="bottom",
        fontsize=8, color=colour, style="italic" if hollow else "normal",
        bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
    )  # fmt: skip


def _draw_machine(axes: Axes, past: Past) -> None:
    """Each relative to its own middle."""
    plain_axes(axes, grid="y")
    axes.axhline(1, color=GREY, linewidth=1)
    for (name, values), colour in zip(past.machine, [*_LINES, *[GREY] * len(past.machine)], strict=False):
        known = [(place, value) for place, value in enumerate(values) if value]
        middle = median([value for _, value in known])
        axes.plot(
            [place for place, _ in known], [value / middle for _, value in known], ".-", color=colour, linewidth=1,
            markersize=4, label=name,
        )  # fmt: skip
    axes.set_ylabel("machine / median")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.22), ncols=4, fontsize=8, frameon=False)


def _write_times(axes: Axes, started: Sequence[str]) -> None:
    step = max(1, -(-len(started) // _LABELS))
    places = list(range(0, len(started), step))
    axes.set_xticks(places, [started[place] for place in places], fontsize=8)
    axes.set_xlabel("run (UTC)")
