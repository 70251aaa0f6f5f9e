"""Ceilings and rooflines as rows, lines of text, and plots."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...tabular import Field
from ..estimation.estimates import forms_of, rate_record
from ..shell import why_unbounded
from .plots.figure import BLUE, GREEN, GREY, ORANGE, RED, new_figure, plain_axes, shorten
from .tables import FORM, MOST, Answer, form_cells, table_lines, unlisted
from .units import counted, duration, milliseconds, percent, quantity, ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ...constructor.result import Estimate
    from ...constructor.roofline import Ceilings, LayerRoof
    from ...db.samples.rates import Rate
    from ...generator.measurement.ceilings import CeilingReport, CeilingRow


_GIGA = 1e9

_RATES = "rates are of the fastest sample, 'usual' is the median"


def ceilings_answer(report: CeilingReport) -> Answer:
    """Return the answer of ``system --ceilings``: one result per runtime, precision and network."""
    rows = [_row(row) for row in report.rows]
    best = [_row(row) for row in _best(report.rows)]
    columns = [
        Field("ceiling"),
        Field("gflops_s", "GFLOP/s", "count"),
        Field("gbytes_s", "GB/s", "count"),
        Field("usual"),
        Field("backend", "reached by"),
        Field("network", "with"),
    ]
    failed = [
        f"{row.backend} {row.dtype}{' ' + row.network if row.network else ''}: {row.error}"
        for row in report.rows
        if row.error
    ]
    return Answer(
        rows,
        totals={
            "system": report.system.key,
            "threads": report.threads,
            "best": [{name: value for name, value in row.items() if name != "usual"} for row in best],
            "runs": list(report.runs),
            "wall_s": report.wall_s,
        },
        summary=[
            *table_lines(best, columns),
            "",
            *failed,
            f"{counted(report.threads, 'thread')}, measured in {duration(report.wall_s)}; {_RATES}",
        ],
    )


def _best(rows: Iterable[CeilingRow]) -> list[CeilingRow]:
    """Return the highest arithmetic rate of each precision, and the highest bandwidth of each level."""
    found: dict[str, CeilingRow] = {}
    for row in rows:
        rate, known = row.flops_s or row.bytes_s, found.get(_ceiling(row))
        if rate is None:
            continue
        least = 0.0 if known is None else (known.flops_s or known.bytes_s or rate).best
        if rate.best > least:
            found[_ceiling(row)] = row
    products = [row for row in found.values() if row.flops_s is not None]
    streams = sorted((row for row in found.values() if row.bytes_s is not None), key=lambda row: row.working_set or 0)
    return [*products, *streams]


def _ceiling(row: CeilingRow) -> str:
    return row.dtype if row.flops_s is not None else str(row.level)


def _row(row: CeilingRow) -> dict[str, Any]:
    rate = row.flops_s or row.bytes_s
    return {
        "ceiling": None if rate is None else _ceiling(row),
        "backend": row.backend,
        "stack": row.stack,
        "dtype": row.dtype,
        "network": row.network,
        "working_set": row.working_set,
        "level": row.level,
        "latency_ms": row.latency_ms,
        **rate_record("gflops_s", row.flops_s),
        **rate_record("gbytes_s", row.bytes_s),
        "usual": None if rate is None else _interval(rate),
        "error": row.error,
    }


def _interval(rate: Rate) -> str:
    low, high = rate.ci95
    return f"{quantity(low / _GIGA)} … {quantity(high / _GIGA)}"


def roofline_lines(entry: Estimate, *, most: int | None = MOST) -> list[str]:
    """Return the bricks of an estimate under the roofline, most time first; ``most`` None: all bricks."""
    if entry.roofline.bricks is None:
        return [f"{entry.name}: no layers, since {entry.error or why_unbounded(entry)}"]
    intervals, forms = {part.key: part.ci95_ms for part in entry.parts.sequences}, forms_of(entry)
    rows = [
        {
            **asdict(row),
            "total_ms": row.total_ms,
            "ci95_ms": intervals.get(row.key),
            "bound_ms": None if row.headroom is not None and row.headroom < 1 else row.bound_ms,
            **form_cells(row.op_types, row.layers, forms.get(row.key)),
        }
        for row in entry.roofline.bricks.layers[:most]
    ]
    whole = sum(row.total_ms or 0.0 for row in entry.roofline.bricks.layers) or 1.0
    bounds = [
        Field("bound_ms", "bound ms", "ms"),
        Field("headroom", "headroom", ratio),
        Field("bound_by", "bound by"),
    ]
    if entry.roofline.ms is None:
        bounds = []  # no row has any
    columns = [
        Field("total_ms", "time ms", "ms"),
        Field("total_ms", "share", lambda value: percent(value / whole), spare=True),
        Field("count", "x"),
        Field("latency_ms", "each ms ±95%", "ms", interval="ci95_ms"),
        Field("flops", "FLOPs", "count", spare=True),
        Field("bytes", "bytes", "bytes", spare=True),
        Field("gflops_s", "GFLOP/s", "count", spare=bool(bounds)),
        Field("gbytes_s", "GB/s", "count", spare=bool(bounds)),
        *bounds,
        FORM,
    ]
    lines = [f"{entry.name}: layers, {_headline(entry)}", *table_lines(rows, columns)]
    lines += unlisted(entry.roofline.bricks.layers, most)
    faster = [row for row in entry.roofline.bricks.layers if row.headroom is not None and row.headroom < 1]
    notes = dict.fromkeys(row.note for row in faster)
    lines += [f"  {sum(row.count for row in faster if row.note == note)} {note}" for note in notes]
    return lines


def _headline(entry: Estimate) -> str:
    if entry.roofline.ms is None:
        return f"no bounds, since {why_unbounded(entry)}"
    headroom = "" if entry.roofline.headroom is None else f", headroom {ratio(entry.roofline.headroom)}"
    return f"roofline {milliseconds(entry.roofline.ms)} ms{headroom}"


def _drawable(row: LayerRoof) -> bool:
    return row.latency_ms is not None and row.latency_ms > 0 and row.bytes > 0


def has_roof(entry: Estimate) -> bool:
    """Return true if ceilings and measured bricks are known."""
    found = entry.roofline.bricks
    return found is not None and found.ceilings.known and any(_drawable(row) for row in found.layers)


def chart(entry: Estimate, *, title: str) -> Figure:
    """Draw the roofline of a model."""
    assert entry.roofline.bricks is not None  # noqa: S101  # ``has_roof``
    bricks = entry.roofline.bricks
    return roofline_chart([row for row in bricks.layers if _drawable(row)], bricks.ceilings, title=title)


# The bricks of a model under the ceilings of its machine.


_COLOURS = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9", "#F0E442")
_LARGEST = 900.0
"""Area of a dot that takes all of the time, in points squared..."""
_CLEAR = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.4}
"""Behind a label: the line of another bandwidth does not strike it through."""
_STAGGER = 3.0
"""How many times further along its line a label stands than the one above."""
_SMALLEST = 9.0
"""...and of one that takes none of it."""


def roofline_chart(rows: Sequence[LayerRoof], ceilings: Ceilings, *, title: str) -> Figure:
    """Draw arithmetic against its intensity on the right, and the bandwidth of bricks without arithmetic on the left.

    Args:
        rows: The bricks, each with bytes and a latency; the area of a dot is the share of their time.
        ceilings: The ceilings, as lines; that of arithmetic is known.
        title: Title of the plot.

    Returns:
        A figure with two axes, both logarithmic.
    """
    figure = new_figure(11, 5.6, title=title)
    moving, computing = figure.subplots(1, 2, width_ratios=(2, 7))
    shares = _shares(rows)
    kinds = sorted(shares, key=lambda kind: -shares[kind])
    colours = dict(zip(kinds, (*_COLOURS, *[GREY] * len(kinds)), strict=False))
    bandwidths = {name: ceiling.rate.best / _GIGA for name, ceiling in ceilings.levels}
    _draw_moving(moving, bandwidths, [row for row in rows if not row.flops])
    _draw_computing(computing, ceilings, bandwidths, [row for row in rows if row.flops])
    whole = sum(row.total_ms or 0.0 for row in rows)
    for axes, x_of in ((moving, _column_of(rows)), (computing, lambda row: row.intensity or 0.0)):
        own = [row for row in rows if bool(row.flops) is (axes is computing)]
        # The largest first, so that no small one is hidden.
        own.sort(key=lambda row: -(row.total_ms or 0.0))
        if own:
            axes.scatter(
                [x_of(row) for row in own],
                [(row.gflops_s if row.flops else row.gbytes_s) or 0.0 for row in own],
                s=[_SMALLEST + (_LARGEST - _SMALLEST) * (row.total_ms or 0.0) / whole for row in own],
                c=[colours[_kind(row)] for row in own],
                alpha=0.85, edgecolors="white", linewidths=0.6, zorder=2,
            )  # fmt: skip
    _draw_legend(figure, shares, colours)
    return figure


def _kind(row: LayerRoof) -> str:
    """Return the operators of a brick, which decide its colour."""
    return "+".join(row.op_types)


def _shares(rows: Sequence[LayerRoof]) -> dict[str, float]:
    """Return the share of the time of each kind of brick."""
    totals: dict[str, float] = {}
    for row in rows:
        totals[_kind(row)] = totals.get(_kind(row), 0.0) + (row.total_ms or 0.0)
    whole = sum(totals.values())
    return {kind: total / whole for kind, total in totals.items()}


def _column_of(rows: Sequence[LayerRoof]) -> Callable[[LayerRoof], float]:
    """Return the place of a brick without arithmetic: a column for each kind."""
    kinds = sorted({_kind(row) for row in rows if not row.flops})
    return lambda row: 0.25 + 0.7 * (kinds.index(_kind(row)) + 0.5) / len(kinds)


def _draw_computing(axes: Axes, ceilings: Ceilings, bandwidths: Mapping[str, float], rows: Sequence[LayerRoof]) -> None:
    """GFLOP/s against FLOPs per byte, under sloping lines of bandwidth and the level line of arithmetic."""
    assert ceilings.compute is not None  # noqa: S101  # the caller's
    most = ceilings.compute.rate.best / _GIGA
    plain_axes(axes, grid="y")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic intensity (FLOP per byte)")
    axes.set_ylabel("GFLOP/s")
    ridges = [most / bandwidth for bandwidth in bandwidths.values()]
    intensities = [row.intensity or 0.0 for row in rows]
    rates = [row.gflops_s or 0.0 for row in rows]
    low = min([0.1, *intensities]) / 1.6
    high = max([*(10 * ridge for ridge in ridges), *intensities, 1.0]) * 1.6
    bottom = min([most / 1e3, *rates]) / 2
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, max([most, *rates]) * 2.2)
    last = list(bandwidths)[-1:]
    places = itertools.count()
    for name, bandwidth in bandwidths.items():
        ridge = most / bandwidth
        axes.plot([low, ridge], [low * bandwidth, most], color="#546E7A", linewidth=1.2, zorder=1)
        # Each begins further along than the one above it: side by side they would overprint.
        begin = max(low, bottom / bandwidth) * (1.0 if name in last else _STAGGER ** next(places))
        _label_slope(axes, name, bandwidth, min(begin, ridge / 2), below=name in last)
    axes.plot([min(ridges, default=low), high], [most] * 2, color="black", linewidth=1.6, zorder=1)
    axes.annotate(
        f"{most:.3g} GFLOP/s", (high, most), xytext=(-4, 4), textcoords="offset points", ha="right", va="bottom",
        fontsize=9,
    )  # fmt: skip


def _label_slope(axes: Axes, name: str, bandwidth: float, begin: float, *, below: bool) -> None:
    """Write name and value of a bandwidth along the begin of its line; for the lowest line, below it."""
    axes.annotate(
        f"{name} {bandwidth:.3g} GB/s", (begin, begin * bandwidth), xytext=(20, -6) if below else (6, 8),
        textcoords="offset points", rotation=45, rotation_mode="anchor", transform_rotates_text=True, ha="left",
        va="top" if below else "bottom", fontsize=8, color="#37474F", bbox=_CLEAR, zorder=1.5,
    )  # fmt: skip


def _draw_moving(axes: Axes, bandwidths: Mapping[str, float], rows: Sequence[LayerRoof]) -> None:
    """Draw the GB/s of bricks without arithmetic, in columns by kind."""
    plain_axes(axes, grid="y")
    axes.set_yscale("log")
    axes.set_ylabel("GB/s")
    axes.set_xlabel("no FLOPs, or not known")
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    values = [*bandwidths.values(), *(row.gbytes_s or 0.0 for row in rows)]
    if values:
        axes.set_ylim(min(values) / 2, max(values) * 2)
    last = list(bandwidths)[-1:]
    for place, (name, bandwidth) in enumerate(bandwidths.items()):
        below = name in last
        axes.axhline(bandwidth, color="#546E7A", linewidth=1.2, zorder=1)
        axes.annotate(
            f"{name} {bandwidth:.3g}", (place % 2, bandwidth), xytext=(-3 if place % 2 else 3, -3 if below else 2),
            textcoords="offset points", ha="right" if place % 2 else "left", va="top" if below else "bottom",
            fontsize=8, color="#37474F", bbox=_CLEAR, zorder=1.5,
        )  # fmt: skip


def _draw_legend(figure: Figure, shares: Mapping[str, float], colours: Mapping[str, str]) -> None:
    """Kinds by their share of the time; grey ones together."""
    from matplotlib.lines import Line2D

    named: dict[str, float] = {}
    for kind, share in shares.items():
        name = "others" if colours[kind] == GREY else kind
        named[name] = named.get(name, 0.0) + share
    order = sorted(named, key=lambda name: -named[name])
    if order:
        figure.legend(
            [Line2D([], [], marker="o", linestyle="", color=colours.get(name, GREY), markersize=7) for name in order],
            [f"{shorten(name, 24)}  {named[name]:.0%}" for name in order],
            loc="outside right upper", fontsize=9, frameon=False, title="share of time (area)", title_fontsize=9,
        )  # fmt: skip
