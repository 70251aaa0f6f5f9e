"""Latency and throughput against a length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .figure import BLUE, GREY, new_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Reading", "Sweep", "sweeps"]

_TALLEST = 2.5
"""Times the highest dot that an axis reaches: the rate of a latency that may be nothing has no end."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A latency at one length.

    Attributes:
        length: The length.
        ms: Latency.
        ci95_ms: Its interval; None where it is not known.
        items: What one execution makes or takes, for throughput.
    """

    length: int
    ms: float
    ci95_ms: tuple[float, float] | None
    items: int

    @property
    def per_s(self) -> float:
        """Throughput."""
        return 1000.0 * self.items / self.ms


@dataclass(frozen=True, slots=True)
class Sweep:
    """One model against one of its dimensions.

    Attributes:
        title: What it is.
        label: What the dimension counts.
        unit: What throughput counts.
        measured: Where it was measured, in order.
        between: What is read between, the measured lengths among it, in order.
        bounds: The lower bound where it is known, in order.
        read: Lengths of which bricks were read between others; in order, and among ``between``.
        joined: ``between`` holds nothing else: the line only joins them.
    """

    title: str
    label: str
    unit: str
    measured: Sequence[Reading]
    between: Sequence[Reading]
    bounds: Sequence[Reading] = ()
    read: Sequence[Reading] = ()
    joined: bool = False


def sweeps(found: Sequence[Sweep], *, title: str) -> Figure:
    """Latency above and throughput below, one column per sweep; dots are measured, rings, lines and bands interpolated.

    Args:
        found: The sweeps, each with at least one length.
        title: What was measured.
    """
    figure = new_figure(5.2 * len(found), 6.4, title=title)
    for column, sweep in zip(figure.subplots(2, len(found), sharex="col", squeeze=False).T, found, strict=True):
        _draw(column[0], sweep, rate=False)
        _draw(column[1], sweep, rate=True)
        column[0].set_title(sweep.title, fontsize=10, loc="left")
        column[0].set_ylabel("latency (ms)")
        column[1].set_ylabel(f"{sweep.unit} per second")
        column[1].set_xlabel(sweep.label)
        column[0].legend(fontsize=9, frameon=False)
    return figure


def _draw(axes: Axes, sweep: Sweep, *, rate: bool) -> None:
    from matplotlib.ticker import NullLocator

    plain_axes(axes, grid="y")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    between = sweep.between
    axes.plot([one.length for one in between], [_height(one, rate=rate) for one in between], color=BLUE, linewidth=1.2,
              label="_" if sweep.joined else "interpolated")  # fmt: skip
    known = [(one.length, _bounds(one, one.ci95_ms, rate=rate)) for one in between if one.ci95_ms is not None]
    if known:
        lengths, lows, highs = zip(*((length, *bounds) for length, bounds in known), strict=True)
        axes.fill_between(lengths, lows, highs, color=BLUE, alpha=0.15, linewidth=0, label="95 % interval")
    if sweep.bounds:
        lowest = [(one.length, _height(one, rate=rate)) for one in sweep.bounds]
        axes.plot(*zip(*lowest, strict=True), "_", color=GREY, markersize=13, markeredgewidth=1.6, label="lower bound")
    for some, filled, label in (sweep.measured, BLUE, "from measured bricks"), (sweep.read, "white", "interpolated"):
        dots = [(one.length, _height(one, rate=rate)) for one in some]
        if dots:
            axes.plot(*zip(*dots, strict=True), "o", color=BLUE, markerfacecolor=filled, markersize=5, label=label)
    highest = max(_height(one, rate=rate) for one in (*sweep.measured, *sweep.read))
    axes.set_ylim(0, min(axes.get_ylim()[1], _TALLEST * highest))


def _height(one: Reading, *, rate: bool) -> float:
    return one.per_s if rate else one.ms


def _bounds(one: Reading, ci95_ms: tuple[float, float], *, rate: bool) -> tuple[float, float]:
    low, high = ci95_ms
    if not rate:
        return low, high
    return 1000.0 * one.items / high, 1000.0 * one.items / max(low, one.ms * 1e-3)
