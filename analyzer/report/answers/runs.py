"""Answers of ``run``, ``measure`` and the fleet commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from ....constructor.uncertainty.calibration import scatter_of
from ....db import Stack, Subject
from ....generator.measurement.measure import MeasureReport, MeasureRow, measure_records
from ....generator.measurement.run import RunReport, run_records
from ....models.source import file_bytes
from ....tabular import Field, Row
from ...limits import Figure
from ..tables import Answer, dimension_lines, invented_lines, table_lines
from ..units import BUSY, counted, duration, percent, short

if TYPE_CHECKING:
    from ....generator.fleet.planning import QueueReport
    from ....generator.fleet.queue import EndedJob
    from ....generator.fleet.status import FleetStatus
    from ....generator.measurement.execution import ProfileReport
    from ....generator.measurement.pace import RunCosts
    from ....models import ModelSource


Report = TypeVar("Report", bound=RunReport | MeasureReport)


_STEADIER = "quiet the machine, or give it more visits: --again noisy with --visits 96 or a longer --budget"

_LONGER = "quiet the machine, or measure for longer: --visits 96 or --budget"

_WORST_FIRST = {
    "timed-out": "of too few visits",
    "unstable": "unstable (their mean is known to no better than 10%)",
    "noisy": "noisy (2 to 10%)",
}
"""What makes latencies of such a verdict uncertain."""

_UNWATCHED = 0.05
"""Relative difference between profiled passes and others that a run reports."""


def run_answer(*reports: RunReport, budget_s: float | None = None) -> Answer:
    """Return the answer of ``run``: one row per failure; counts as totals.

    Args:
        reports: One per number of threads.
        budget_s: Total time of several reports.
    """
    records = run_records(reports, budget_s if len(reports) > 1 else reports[0].budget_s)
    several, varied = len(reports) > 1, any(report.algorithm_failures for report in reports)
    return Answer(
        records.results,
        totals=records.totals,
        columns=[
            Field("key", "not measured", _brick_or_model),
            *([Field("threads")] if several else []),
            *([Field("variant", "algorithm")] if varied else []),
            Field("reason"),
        ],
        summary=_in_parts(reports, _said),
        table=_summed(records.results),
    )


def _in_parts(reports: Sequence[Report], said: Callable[[Report], list[str]]) -> list[str]:
    """Return lines about each report, under its number of threads if there are several."""
    if len(reports) == 1:
        return said(reports[0])
    lines = []
    for report in reports:
        part = [f"  {line}" for line in said(report)]
        lines += [f"{counted(report.threads, 'thread')}:", *part] if part else []
    return lines


def _said(report: RunReport) -> list[str]:
    """Return lines about the results of a run."""
    skipped = f"{report.reused} skipped (measured before)"
    counts = f"{counted(report.bricks, 'brick')}: {skipped}, {report.failed} failed"
    if report.dry_run:
        summary = [f"{counts}, {_left(report)} to be measured in about {duration(report.forecast_s)}"]
        if report.budget_s is not None and report.forecast_s > report.budget_s:
            summary.append(f"more than --budget ({duration(report.budget_s)}): some would not be measured")
    else:
        parts = f"{duration(report.timed_s)} timed, {duration(report.prepare_s)} loading"
        summary = [f"{counts}, {report.measured} measured in {duration(report.wall_s)} ({parts})"]
    if report.models:
        reused, taken = report.models - report.models_measured, report.models_measured
        done = [
            f"{count} {what}" for count, what in ((reused, "skipped (measured before)"), (taken, "measured")) if count
        ]
        summary.append(f"{counted(report.models, 'whole model')}: {', '.join(done)}")
    summary += _width_lines(report) if report.target else _verdict_lines(report.verdicts, _STEADIER)
    summary += [*_algorithms(report), *_watched(report.costs), *_held(report.costs), *_profiled(report.kernels)]
    if (report.remaining or report.models_remaining or report.algorithms_remaining) and not report.dry_run:
        summary.append(f"{_left(report)} not measured when the budget was spent: the same command continues")
    summary += dimension_lines(report.bound.items())
    if report.dry_run:
        return [*summary, "next: the same command without --dry-run"]
    if report.remaining or not report.measured + report.reused:
        return summary
    return [*summary, "next: dlbricks estimate MODEL, with the models of this suite"]


def _width_lines(report: RunReport) -> list[str]:
    """Return lines about the intervals of models in a run with a target."""
    target, widths = report.target or 0.0, {name: width for name, width in report.widths.items() if width is not None}
    if not report.widths:
        return []  # a forecast
    reached = [width for width in widths.values() if width.half <= target]
    floors = [width.half for width in widths.values() if width.half > target and width.enough]
    lines = [f"{counted(len(reached), 'model')} within \u00b1 {percent(target)}"]
    if floors:
        lines.append(
            f"{counted(len(floors), 'model')} within \u00b1 {percent(max(floors))}, the error of "
            "composing a latency from bricks: no visit reduces it, 'dlbricks measure MODEL' does"
        )
    lines += [f"{name}: not known, since a brick is not measured" for name in report.widths if name not in widths]
    wide = [(name, width.half) for name, width in widths.items() if not width.enough]
    return lines + [
        f"{name}: only \u00b1 {percent(half)}; give it more --visits or a longer --budget" for name, half in wide
    ]


def _summed(failures: Sequence[Row]) -> list[Row]:
    """Return rows of failures. Failures of one algorithm for the same reason share a row: most bricks may have them."""
    alike = Counter((row["threads"], row["variant"], row["reason"]) for row in failures)
    rows: dict[tuple[object, ...], Row] = {}
    for row in failures:
        kind = (row["threads"], row["variant"], row["reason"])
        if row["variant"] and alike[kind] > 1:
            rows[kind] = {**row, "key": counted(alike[kind], "brick")}
        else:
            rows[row["key"], *kind] = row
    return list(rows.values())


def _algorithms(report: RunReport) -> list[str]:
    """Return the counts of the runtime's other algorithms, if any were requested."""
    reused, without = report.algorithms_reused, len(report.algorithm_failures)
    if not (reused or without or report.algorithms or report.algorithms_remaining):
        return []
    failed = sum(failure.kind != "unsupported" for failure in report.algorithm_failures)
    counts = f"other algorithms: {reused} skipped (measured before), {without - failed} not offered, {failed} failed"
    return [counts if report.dry_run else f"{counts}, {report.algorithms} measured"]


def _watched(costs: RunCosts) -> list[str]:
    """Return a line if profiling changes the time of packs."""
    if not costs.watched_s or not costs.unwatched_s:
        return []
    change = costs.watched_s / costs.unwatched_s - 1
    if abs(change) <= _UNWATCHED:
        return []
    sign = "more" if change > 0 else "less"
    return [f"profiled passes take {percent(abs(change))} {sign} than others: estimates may be off by as much"]


def _held(costs: RunCosts) -> list[str]:
    """Return a line if the device throttled its clocks in some sessions."""
    if not costs.again and not costs.throttled:
        return []
    again, throttled = counted(costs.again, "session"), counted(costs.throttled, "session")
    return [f"throttled: power or temperature held clocks back; {again} taken again, {throttled} kept all the same"]


def _profiled(report: ProfileReport | None) -> list[str]:
    """Return lines about the profiled pass."""
    if report is None:
        return []
    counts = f"kernels: {report.taken} recorded, {report.known} known, {len(report.failures)} failed"
    return [
        counts,
        *(
            f"  {_brick_or_model(failure.label)}{f' ({failure.variant})' if failure.variant else ''}: {failure.reason}"
            for failure in report.failures
        ),
    ]


def _left(report: RunReport) -> str:
    """Write the number of bricks, models and algorithms that are not measured yet."""
    counts = [str(report.remaining)]
    if report.models_remaining:
        counts.append(counted(report.models_remaining, "whole model"))
    if report.algorithms_remaining:
        counts.append(f"{report.algorithms_remaining} with other algorithms")
    return " and ".join(counts)


def _brick_or_model(name: str) -> str:
    """Shorten the key of a brick; a model's name stays."""
    is_key = len(name) == 64 and all(digit in "0123456789abcdef" for digit in name)
    return short(name) if is_key else name


def measure_answer(*reports: MeasureReport) -> Answer:
    """Return the answer of ``measure``: one row per model and number of threads."""
    records = measure_records(reports)
    alone = any(row.alone is not None for report in reports for row in report.rows)
    own = [
        Field("p50_ms", "p50 ms", "ms"),
        Field("p95_ms", "p95 ms", "ms"),
        Field("p99_ms", "p99 ms", "ms"),
        Field("memory_peak_mb", "peak MB", _megabytes),
        Field("memory_steady_mb", "steady MB", _megabytes),
        Field("memory_weights_mb", "weights MB", _megabytes, spare=True),
        Field("memory_steady_without_arena_mb", "without arena", _megabytes, spare=True),
    ]
    return Answer(
        records.results,
        totals=records.totals,
        columns=[
            Field("name", "model"),
            Field("latency_ms", "mean ms ±95%", "ms", interval="ci95_ms"),
            Field("undisturbed_ms", "undisturbed ms", "ms"),
            Field("load_ms", "load ms", "ms"),
            Field("first_run_ms", "first run ms", "ms", spare=True),
            *(own if alone else ()),
            Field("verdict"),
        ],
        summary=_in_parts(reports, _remarks),
    )


def _megabytes(value: float) -> str:
    return f"{value:.4g}"


def measured_figures(reports: Sequence[MeasureReport], sources: Sequence[ModelSource]) -> dict[str, dict[str, Figure]]:
    """Return the figures of measured models that limits can name, by model."""
    sizes = {source.name: file_bytes(source) for source in sources if source.problem is None}
    return {
        row.name: _figures(row, sizes.get(row.name.partition("@t")[0])) for report in reports for row in report.rows
    }


def _figures(row: MeasureRow, size: int | None) -> dict[str, Figure]:
    return {
        "latency": Figure.scattering(row.latency_ms, row.ci95_ms),
        **{f"p{percent}": Figure.percentile(row.alone, percent / 100) for percent in (50, 90, 95, 99)},
        "load": Figure(row.load_ms),
        "first-run": Figure(row.first_run_ms),
        "memory": Figure.of_bytes(None if row.alone is None else row.alone.peak_bytes),
        "size": Figure.of_bytes(size),
    }


def _remarks(report: MeasureReport) -> list[str]:
    return [
        *(f"{row.name}: {row.error}" for row in report.rows if row.error),
        *(f"{row.name}: not run alone: {row.alone_error}" for row in report.rows if row.alone_error),
        *_too_few(report),
        *_verdict_lines(Counter(row.verdict for row in report.rows if row.verdict), _LONGER),
        *_held(report.costs),
        *_profiled(report.kernels),
        *_interval_lines(report),
        *_busy_lines(report),
        *dimension_lines((row.name, row.bound) for row in report.rows),
        *invented_lines((row.name, row.invented) for row in report.rows if not row.error),
        *([_NEXT] if any(row.error is None for row in report.rows) else []),
    ]


def _too_few(report: MeasureReport) -> Iterator[str]:
    """Yield a line for each model whose single executions are too few for a percentile."""
    for row in report.rows:
        lacking = [percent for percent in (50, 95, 99) if row.alone and row.alone.quantile_ms(percent / 100) is None]
        if row.alone is not None and lacking:
            told = ", ".join(f"p{percent}" for percent in lacking)
            yield f"{row.name}: no {told}: {row.alone.too_few}"


_NEXT = "next: dlbricks report MODEL, with the same options, shows where the time goes and what to change"


def _interval_lines(report: MeasureReport) -> list[str]:
    """Return a line about the meaning of the intervals: another run scatters more than they say."""
    row = next((row for row in report.rows if row.error is None), None)
    if row is None:
        return []
    stack = Stack(row.runtime.backend, row.runtime.device, ())
    sd = scatter_of(stack, row.threads, Subject.MODEL).run_sd
    other = f"means of other runs scatter by another {100 * sd:.1f}% (sd), and more on a busy machine"
    return [f"\u00b195% is for the mean of this run; {other}. 'dlbricks history' compares runs with that"]


def _busy_lines(report: MeasureReport) -> list[str]:
    """Return a line about the latencies that were measured beside other programs."""
    busy = [row.name for row in report.rows if row.measurement is not None and row.measurement.busy]
    return [f"{', '.join(busy)}: {BUSY}"] if busy else []


def _verdict_lines(verdicts: Mapping[str, int], remedy: str) -> list[str]:
    """Count unstable latencies and name the remedy; nothing if all are stable.

    Args:
        verdicts: Number of measurements by verdict.
        remedy: How to measure them better.
    """
    doubtful = [f"{verdicts[name]} {text}" for name, text in _WORST_FIRST.items() if verdicts.get(name)]
    if not doubtful:
        return []
    return [f"of {sum(verdicts.values())} latencies {', '.join(doubtful)}: {remedy}"]


# Answers of the fleet commands.


_SAID = {
    "new": "queued", "again": "queued again after a failure", "waiting": "waiting already", "running": "running",
    "complete": "complete",
}  # fmt: skip


def plan_answer(report: QueueReport) -> Answer:
    """Return the answer of ``fleet plan``: one row per cell."""
    rows = [
        {"key": cell.key, **cell.record(), "options": dict(cell.stack.runtime.options), "state": what}
        for cell, what in report.cells
    ]
    parts = [f"{report.counts[what]} {said}" for what, said in _SAID.items() if report.counts.get(what)]
    verb = "would be: " if report.dry_run else ""
    return Answer(
        rows,
        totals={"campaign": report.campaign, "blobs": report.blobs, "dry_run": report.dry_run, **_counts(report)},
        columns=[
            *map(Field, ("node", "suite", "stack", "threads", "cache")),
            Field("dtype", "precision"),
            Field("state"),
        ],
        summary=[f"campaign {report.campaign}, {counted(len(rows), 'cell')}: {verb}{', '.join(parts)}"],
    )


def _counts(report: QueueReport) -> dict[str, int]:
    return {what: report.counts.get(what, 0) for what in _SAID}


def work_answer(done: Sequence[EndedJob]) -> Answer:
    """Return the answer of ``fleet work``: one row per finished job."""
    complete = sum(job.complete for job in done)
    text = (
        f"{counted(len(done), 'job')}: {complete} complete, {len(done) - complete} failed" if done else "nothing to do"
    )
    return Answer(
        [job.record() for job in done],
        totals={"jobs": len(done), "complete": complete},
        columns=[
            Field("label", "job"),
            Field("complete", "complete", "yes"),
            Field("measured_s", "measured", "s"),
            Field("pushed_s", "pushed", "s"),
            Field("reason", "because"),
        ],
        summary=[text],
    )


def status_answer(status: FleetStatus) -> Answer:
    """Return the answer of ``fleet status``: one row per campaign; nodes and failures as totals."""
    nodes = [asdict(node) | {"seen": _moment(node.seen)} for node in status.nodes]
    failures = [asdict(failure) for failure in status.failures]
    columns = [
        Field("node"),
        Field("seen", "last seen"),
        Field("waiting"),
        Field("running", "measures"),
        Field("complete"),
        Field("failed"),
        Field("forecast_s", "ready in", "s"),
    ]
    lines = table_lines(nodes, columns) if nodes else ["no campaign was planned here"]
    if failures:
        heads = [Field("node", "failed on"), Field("cell"), Field("reason")]
        lines += ["", *table_lines(failures, heads)]
    return Answer(
        [asdict(campaign) for campaign in status.campaigns],
        totals={"nodes": nodes, "failures": failures},
        columns=[
            *map(Field, ("campaign", "cells", "complete", "running", "waiting", "failed")),
            Field("bricks_measured", "bricks measured"),
            Field("bricks_failed", "impossible"),
            Field("bricks_remaining", "left over"),
            *([Field("models", "models measured")] if any(campaign.models for campaign in status.campaigns) else []),
            Field("forecast_s", "ready in", "s"),
        ],
        summary=lines,
    )


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")
