"""Curves as plots show them, and which estimates are one model against one of its dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...constructor.curve import Curve, Point
from ...constructor.result import Estimate
from ...constructor.sweep import BATCH, swept
from ...tabular import Field
from .plots.figure import BLUE, GREY, name_rows, new_figure, plain_axes, row_height, shorten
from .tables import table_lines
from .units import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_DENSE = 60
"""Lengths between the first and the last that a line is drawn through."""


def sweep(curve: Curve, *, title: str, label: str, unit: str, items: Callable[[int], int]) -> Sweep:
    """Return a curve ready to draw.

    Args:
        curve: The curve.
        title: Title of the plot.
        label: Unit of the dimension.
        unit: Unit of the throughput.
        items: Number of these units per execution, by length.
    """
    at = [point.length for point in curve.points]
    lengths = sorted({*at, *(round(length) for length in _spaced(at))})
    found = [point for length in lengths if (point := curve.at(length)) is not None]
    return Sweep(title, label, unit, items, found)


def sweeps_of(estimates: Sequence[Estimate]) -> dict[str, Sweep]:
    """Return the sweeps among estimates (``constructor.sweep``) ready to draw, by name."""
    return {
        f"{model_sweep.stem}-{model_sweep.dimension}": drawn_sweep(model_sweep.record())
        for model_sweep in swept(estimates)
    }


def drawn_sweep(row: Mapping[str, Any]) -> Sweep:
    """Return a sweep ready to draw, from its row (``ModelSweep.record``)."""
    batched, known = row["dimension"] == BATCH, [point for point in row["points"] if point["latency_ms"]]
    return Sweep(
        title=row["name"],
        label=row["dimension"],
        unit="inputs" if batched else "executions",
        items=(lambda size: size) if batched else (lambda _size: 1),
        between=[Point(at["size"], at["latency_ms"], at["ci95_ms"], at["interpolated"]) for at in known],
        bounds=[Point(at["size"], ms) for at in known if (ms := at["lower_bound_ms"])],
        joined=True,
    )


def sweep_lines(estimates: Sequence[Estimate]) -> list[str]:
    """Return a table of latency, throughput and lower bound for each sweep, and the best batch."""
    lines: list[str] = []
    for row in (model_sweep.record() for model_sweep in swept(estimates)):
        unit = "inputs/s" if row["dimension"] == BATCH else "executions/s"
        columns = [
            Field("size", str(row["dimension"])),
            Field("latency_ms", "ms ±95%", "ms", interval="ci95_ms"),
            Field("per_s", unit, lambda value: f"{value:.4g}"),
            Field("lower_bound_ms", "fastest bricks ms", "ms"),
        ]
        if any(point["interpolated"] for point in row["points"]):
            columns.append(Field("how", ""))
        points = [{**point, "how": how_of(point)} for point in row["points"]]
        lines += ["", f"{row['name']} against {row['dimension']}", *table_lines(points, columns)]
        lines += [said] if (said := said_of_batch(row)) else []
    return lines


def said_of_batch(row: Mapping[str, Any]) -> str:
    """Write the best batch of a sweep; empty if it is unknown."""
    best, more = row["best_batch"], row["doubling_gains"]
    gains = "every doubling gains more than 5%" if more is None else f"twice as many gain {percent(more)}"
    return "" if best is None else f"best batch: {best} ({gains})"


def how_of(point: Mapping[str, Any]) -> str:
    """Write the interpolated part of a point of a sweep; empty for a measured point."""
    return f"{percent(point['share'])} interpolated" if point["interpolated"] else ""


def _spaced(at: Sequence[int]) -> list[float]:
    """Lengths between the first and the last, evenly on a logarithmic axis."""
    if len(at) < 2:
        return []
    return [at[0] * (at[-1] / at[0]) ** (step / _DENSE) for step in range(_DENSE + 1)]


# Latency and throughput against a length.


# How much models repeat themselves and each other: unique-layer share and similarity.


_WRITTEN_CELLS = 16
"""Up to this many models each cell of the grid has its number written into it."""


def unique_share(models: Mapping[str, tuple[int, int]], *, title: str) -> Figure:
    """Sequences per model, and how many of them are unique; one row per model."""
    figure = new_figure(9, row_height(len(models)), title=title)
    axes = figure.subplots()
    plain_axes(axes, grid="x")
    rows = list(range(len(models)))
    axes.barh(rows, [sequences for sequences, _ in models.values()], color="#CFD8DC", height=0.72, label="sequences")
    axes.barh(rows, [unique for _, unique in models.values()], color=BLUE, height=0.72, label="unique")
    longest = max((sequences for sequences, _ in models.values()), default=0) or 1
    for row, (sequences, unique) in enumerate(models.values()):
        if sequences:
            text = f"{unique} of {sequences}  ({100 * unique / sequences:.0f}%)"
            axes.text(sequences + longest * 0.01, row, text, va="center", fontsize=8, color="#37474F")
    name_rows(axes, [*models])
    axes.set_xlim(0, longest * 1.25)
    axes.set_xlabel("sequences")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, fontsize=9, frameon=False, borderaxespad=0.2)
    return figure


def similarity_grid(names: Sequence[str], matrix: Sequence[Sequence[float]], *, title: str) -> Figure:
    """Draw the Jaccard similarity of the brick sets of every two models (DLBricks, Fig. 7).

    Args:
        names: Names of the models.
        matrix: Similarities from 0 to 1, in the order of the names.
        title: Title of the plot.
    """
    count = len(names)
    side = max(4.5, 2.6 + (0.42 if count <= _WRITTEN_CELLS else 0.24) * count)
    figure = new_figure(side + 1.0, side, title=title)
    axes = figure.subplots()
    image = axes.imshow([list(row) for row in matrix], cmap="Blues", vmin=0, vmax=1)
    labels = [shorten(name, 24) for name in names]
    axes.set_xticks(range(count), labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(range(count), labels, fontsize=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if count <= _WRITTEN_CELLS:
        for row, values in enumerate(matrix):
            for column, value in enumerate(values):
                colour = "white" if value > 0.6 else "#37474F"
                number = "1" if value >= 0.995 else f"{value:.2f}".lstrip("0")
                axes.text(column, row, number, ha="center", va="center", fontsize=8, color=colour)
    figure.colorbar(image, ax=axes, shrink=0.7, label="shared bricks / all bricks of both")
    return figure


_TALLEST = 2.5
"""Times the highest dot that an axis reaches: the rate of a latency that may be nothing has no end."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One model against one of its dimensions.

    Attributes:
        title: Title of its column.
        label: Unit of the dimension.
        unit: Unit of the throughput.
        items: Number of these units per execution, by length.
        between: Measured and interpolated lengths, in order.
        bounds: Known lower bounds, in order.
        joined: True if the line only joins the lengths; interpolated ones are rings on it.
    """

    title: str
    label: str
    unit: str
    items: Callable[[int], int]
    between: Sequence[Point]
    bounds: Sequence[Point] = ()
    joined: bool = False

    @property
    def measured(self) -> list[Point]:
        """Measured lengths, in order."""
        return [point for point in self.between if not point.interpolated]

    @property
    def read(self) -> list[Point]:
        """Lengths with interpolated bricks, in order."""
        return [point for point in self.between if point.interpolated and self.joined]

    def height(self, point: Point, *, rate: bool) -> float:
        """Return the latency of a point in ms, or its throughput per second."""
        return 1000.0 * self.items(point.length) / point.ms if rate else point.ms

    def ends(self, point: Point, *, rate: bool) -> tuple[float, float] | None:
        """Return its interval; a rate is at most a thousand times its value, since a latency may be near zero."""
        if point.ci95_ms is None or not rate:
            return point.ci95_ms
        low, high = point.ci95_ms
        items = self.items(point.length)
        return 1000.0 * items / high, 1000.0 * items / max(low, point.ms * 1e-3)


def sweeps(found: Sequence[Sweep], *, title: str) -> Figure:
    """Draw latency above and throughput below, one column per sweep.

    Dots are measured; rings, lines and bands are interpolated.

    Args:
        found: The sweeps, each with at least one length.
        title: Title of the plot.
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
    line = [(point.length, sweep.height(point, rate=rate)) for point in sweep.between]
    axes.plot(*zip(*line, strict=True), color=BLUE, linewidth=1.2, label="_" if sweep.joined else "interpolated")
    known = [(point.length, ends) for point in sweep.between if (ends := sweep.ends(point, rate=rate)) is not None]
    if known:
        lengths, lows, highs = zip(*((length, *bounds) for length, bounds in known), strict=True)
        axes.fill_between(lengths, lows, highs, color=BLUE, alpha=0.15, linewidth=0, label="95% interval")
    if sweep.bounds:
        lowest = [(point.length, sweep.height(point, rate=rate)) for point in sweep.bounds]
        axes.plot(*zip(*lowest, strict=True), "_", color=GREY, markersize=13, markeredgewidth=2, label="fastest bricks")
    for some, filled, label in (sweep.measured, BLUE, "from measured bricks"), (sweep.read, "white", "interpolated"):
        dots = [(point.length, sweep.height(point, rate=rate)) for point in some]
        if dots:
            axes.plot(*zip(*dots, strict=True), "o", color=BLUE, markerfacecolor=filled, markersize=5, label=label)
    highest = max(sweep.height(point, rate=rate) for point in (*sweep.measured, *sweep.read))
    axes.set_ylim(0, min(axes.get_ylim()[1], _TALLEST * highest))
