"""From the sum of a model's bricks to its measured latency, cause by cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from .figure import BLUE, GREEN, GREY, ORANGE, new_figure, plain_axes, row_height, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Fall", "waterfall"]

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
    _draw_bars(axes, bars)
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


def _draw_bars(axes: Axes, bars: Sequence[_Bar]) -> None:
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
