"""The bricks of a model under the ceilings of its machine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .figure import BLUE, GREEN, GREY, ORANGE, RED, new_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9", "#F0E442")
_LARGEST = 900.0
"""Area of a dot that takes all of the time, in points squared..."""
_CLEAR = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.4}
"""Behind a label: the line of another bandwidth does not strike it through."""
_STAGGER = 3.0
"""How many times further along its line a label stands than the one above."""
_SMALLEST = 9.0
"""...and of one that takes none of it."""


@dataclass(frozen=True, slots=True)
class RooflineDot:
    """One brick of a model.

    Attributes:
        kind: Its operators, which decide the colour.
        flops: Arithmetic of one execution; 0 for copies and comparisons.
        bytes: Bytes of one execution; positive.
        latency_ms: Latency of one execution; positive.
        share: Share of the model's time, 0 to 1.
    """

    kind: str
    flops: float
    bytes: float
    latency_ms: float
    share: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    @property
    def gflops_s(self) -> float:
        """10^9 FLOP/s."""
        return self.flops / self.latency_ms / 1e6

    @property
    def gbytes_s(self) -> float:
        """10^9 bytes/s."""
        return self.bytes / self.latency_ms / 1e6


@dataclass(frozen=True, slots=True)
class Roof:
    """The ceilings.

    Attributes:
        gflops_s: Rate of arithmetic.
        gbytes_s: Bandwidth by the name of a level, the nearest first.
    """

    gflops_s: float
    gbytes_s: Mapping[str, float]


def roofline_chart(dots: Sequence[RooflineDot], roof: Roof, *, title: str) -> Figure:
    """Draw arithmetic against its intensity on the right, and the bandwidth of bricks without arithmetic on the left.

    Args:
        dots: One per brick, each with bytes and time.
        roof: The ceilings, as lines.
        title: Title of the plot.

    Returns:
        A figure with two axes, both logarithmic.
    """
    figure = new_figure(11, 5.6, title=title)
    moving, computing = figure.subplots(1, 2, width_ratios=(2, 7))
    colours = _colours(dots)
    _draw_computing(computing, [dot for dot in dots if dot.flops > 0], roof, colours)
    _draw_moving(moving, [dot for dot in dots if not dot.flops], roof, colours)
    _draw_legend(figure, dots, colours)
    return figure


def _colours(dots: Sequence[RooflineDot]) -> dict[str, str]:
    """Return the colour of each kind; kinds with little time are grey."""
    shares: dict[str, float] = {}
    for dot in dots:
        shares[dot.kind] = shares.get(dot.kind, 0.0) + dot.share
    ordered = sorted(shares, key=lambda kind: -shares[kind])
    own = len(_COLOURS)
    return {kind: _COLOURS[place] if place < own else GREY for place, kind in enumerate(ordered)}


def _draw_computing(axes: Axes, dots: Sequence[RooflineDot], roof: Roof, colours: Mapping[str, str]) -> None:
    """GFLOP/s against FLOPs per byte, under sloping lines of bandwidth and the level line of arithmetic."""
    plain_axes(axes, grid="y")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic intensity (FLOP per byte)")
    axes.set_ylabel("GFLOP/s")
    ridges = [roof.gflops_s / bandwidth for bandwidth in roof.gbytes_s.values()]
    low = min([0.1, *(dot.intensity for dot in dots)]) / 1.6
    high = max([*(10 * ridge for ridge in ridges), *(dot.intensity for dot in dots), 1.0]) * 1.6
    bottom = min([roof.gflops_s / 1e3, *(dot.gflops_s for dot in dots)]) / 2
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, max([roof.gflops_s, *(dot.gflops_s for dot in dots)]) * 2.2)
    last = list(roof.gbytes_s)[-1:]
    places = itertools.count()
    for name, bandwidth in roof.gbytes_s.items():
        ridge = roof.gflops_s / bandwidth
        axes.plot([low, ridge], [low * bandwidth, roof.gflops_s], color="#546E7A", linewidth=1.2, zorder=1)
        # Each begins further along than the one above it: side by side they would overprint.
        begin = max(low, bottom / bandwidth) * (1.0 if name in last else _STAGGER ** next(places))
        _label_slope(axes, name, bandwidth, min(begin, ridge / 2), below=name in last)
    axes.plot([min(ridges, default=low), high], [roof.gflops_s] * 2, color="black", linewidth=1.6, zorder=1)
    axes.annotate(
        f"{roof.gflops_s:.3g} GFLOP/s", (high, roof.gflops_s), xytext=(-4, 4), textcoords="offset points", ha="right",
        va="bottom", fontsize=9,
    )  # fmt: skip
    _scatter(axes, [dot.intensity for dot in dots], [dot.gflops_s for dot in dots], dots, colours)


def _label_slope(axes: Axes, name: str, bandwidth: float, begin: float, *, below: bool) -> None:
    """Write name and value of a bandwidth along the begin of its line; for the lowest line, below it."""
    axes.annotate(
        f"{name} {bandwidth:.3g} GB/s", (begin, begin * bandwidth), xytext=(20, -6) if below else (6, 8),
        textcoords="offset points", rotation=45, rotation_mode="anchor", transform_rotates_text=True, ha="left",
        va="top" if below else "bottom", fontsize=8, color="#37474F", bbox=_CLEAR, zorder=1.5,
    )  # fmt: skip


def _draw_moving(axes: Axes, dots: Sequence[RooflineDot], roof: Roof, colours: Mapping[str, str]) -> None:
    """Draw the GB/s of bricks without arithmetic, in columns by kind."""
    plain_axes(axes, grid="y")
    axes.set_yscale("log")
    axes.set_ylabel("GB/s")
    axes.set_xlabel("no FLOPs, or not known")
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    values = [*roof.gbytes_s.values(), *(dot.gbytes_s for dot in dots)]
    if values:
        axes.set_ylim(min(values) / 2, max(values) * 2)
    last = list(roof.gbytes_s)[-1:]
    for place, (name, bandwidth) in enumerate(roof.gbytes_s.items()):
        below = name in last
        axes.axhline(bandwidth, color="#546E7A", linewidth=1.2, zorder=1)
        axes.annotate(
            f"{name} {bandwidth:.3g}", (place % 2, bandwidth), xytext=(-3 if place % 2 else 3, -3 if below else 2),
            textcoords="offset points", ha="right" if place % 2 else "left", va="top" if below else "bottom",
            fontsize=8, color="#37474F", bbox=_CLEAR, zorder=1.5,
        )  # fmt: skip
    kinds = sorted({dot.kind for dot in dots})
    places = [0.25 + 0.7 * (kinds.index(dot.kind) + 0.5) / len(kinds) for dot in dots]
    _scatter(axes, places, [dot.gbytes_s for dot in dots], dots, colours)


def _scatter(
    axes: Axes, x: Sequence[float], y: Sequence[float], dots: Sequence[RooflineDot], colours: Mapping[str, str]
) -> None:
    # The largest first, so that no small one is hidden.
    order = sorted(range(len(dots)), key=lambda place: -dots[place].share)
    if order:
        axes.scatter(
            [x[place] for place in order],
            [y[place] for place in order],
            s=[_SMALLEST + (_LARGEST - _SMALLEST) * dots[place].share for place in order],
            c=[colours[dots[place].kind] for place in order],
            alpha=0.85,
            edgecolors="white",
            linewidths=0.6,
            zorder=2,
        )


def _draw_legend(figure: Figure, dots: Sequence[RooflineDot], colours: Mapping[str, str]) -> None:
    """Kinds by their share of the time; grey ones together."""
    from matplotlib.lines import Line2D

    from .figure import shorten

    shares: dict[str, float] = {}
    for dot in dots:
        name = "others" if colours[dot.kind] == GREY else dot.kind
        shares[name] = shares.get(name, 0.0) + dot.share
    entries = [
        Line2D([], [], marker="o", linestyle="", color=colours.get(name, GREY), markersize=7)
        for name in shares
    ]  # fmt: skip
    order = sorted(range(len(entries)), key=lambda place: -list(shares.values())[place])
    names = list(shares)
    if entries:
        figure.legend(
            [entries[place] for place in order],
            [f"{shorten(names[place], 24)}  {shares[names[place]]:.0%}" for place in order],
            loc="outside right upper",
            fontsize=9,
            frameon=False,
            title="share of time (area)",
            title_fontsize=9,
        )
