"""Ceilings and rooflines as rows and lines of text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...tabular import Field, fields, record_of
from ..estimation.estimates import forms_of, rate_record
from ..shell import why_unbounded
from .shares import whole_ms
from .tables import FORM, MOST, Answer, Line, form_cells, table_lines, unlisted
from .units import counted, duration, milliseconds, percent, quantity, ratio

if TYPE_CHECKING:
    from ...constructor.result import Estimate
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
    best: dict[str, CeilingRow] = {}
    for row in rows:
        rate, best_so_far = row.flops_s or row.bytes_s, best.get(_ceiling(row))
        if rate is None:
            continue
        least = 0.0 if best_so_far is None else (best_so_far.flops_s or best_so_far.bytes_s or rate).best
        if rate.best > least:
            best[_ceiling(row)] = row
    products = [row for row in best.values() if row.flops_s is not None]
    streams = sorted((row for row in best.values() if row.bytes_s is not None), key=lambda row: row.working_set or 0)
    return [*products, *streams]


def _ceiling(row: CeilingRow) -> str:
    return row.dtype if row.flops_s is not None else str(row.level)


def _row(row: CeilingRow) -> dict[str, Any]:
    rate = row.flops_s or row.bytes_s
    return {
        "ceiling": None if rate is None else _ceiling(row),
        **record_of(row, fields("backend stack dtype network working_set level latency_ms")),
        **rate_record("gflops_s", row.flops_s),
        **rate_record("gbytes_s", row.bytes_s),
        "usual": None if rate is None else _interval(rate),
        "error": row.error,
    }


def _interval(rate: Rate) -> str:
    low, high = rate.ci95
    return f"{quantity(low / _GIGA)} … {quantity(high / _GIGA)}"


def roofline_lines(entry: Estimate, *, most: int | None = MOST) -> list[Line]:
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
    whole = whole_ms(entry)
    bounds = [
        Field("bound_ms", "bound ms", "ms"),
        Field("headroom", "headroom", ratio),
        Field("bound_by", "bound by"),
    ]
    if entry.roofline.ms is None:
        bounds = []  # no row has any
    columns = [
        Field("total_ms", "time ms", "ms"),
        Field("total_ms", "share", lambda value: percent(value / whole) if whole else "-", spare=True),
        Field("count", "x"),
        Field("latency_ms", "each ms ±95%", "ms", interval="ci95_ms"),
        Field("flops", "FLOPs", "count", spare=True),
        Field("bytes", "bytes", "bytes", spare=True),
        Field("gflops_s", "GFLOP/s", "count", spare=bool(bounds)),
        Field("gbytes_s", "GB/s", "count", spare=bool(bounds)),
        *bounds,
        FORM,
    ]
    lines: list[Line] = [f"{entry.name}: layers, {_headline(entry)}", *table_lines(rows, columns)]
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
