"""What the measuring commands answer: reports as rows with the documented keys (docs/cli.md), and as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from .bindings import bound_lines, values_of
from .causes import written
from .roofs import roofline_lines, roofline_record
from .standing import COLUMNS, shown, standing
from .tables import Answer, Column
from .units import counted, duration, milliseconds, percent, quantity, short, size

if TYPE_CHECKING:
    from ..constructor.estimate import Estimate
    from ..generator.decomposition.generate import GenerateReport
    from ..generator.measurement.costs import RunCosts
    from ..generator.measurement.data.effect import DataLayer
    from ..generator.measurement.measure import MeasureReport
    from ..generator.measurement.profiling import ProfileReport
    from ..generator.measurement.run import RunReport

__all__ = ["estimated", "generated", "measured", "ran"]

_SAME_SHAPES = 0.5
"""Share of sequences that are measured: below it, the suite may have been generated in other shapes."""

_REASONS = 5
"""Different reasons why bricks are missing that the table lists per model."""

_UNWATCHED = 0.05
"""Relative difference between profiled passes and others that a run tells of."""

_OPERATORS = 12
"""Operators that ``--explain`` lists per model, the most expensive first."""


def generated(report: GenerateReport) -> Answer:
    """The answer of ``generate``: one row per model, the suite beside them."""
    # Keys stand in the suite's manifest; which model has which is what --annotate is for.
    rows = [{name: value for name, value in asdict(row).items() if name != "keys"} for row in report.rows]
    suite = None if report.suite is None else str(report.suite.path)
    unique_share = report.unique / report.sequences if report.sequences else 0.0
    decoys = f", and {report.decoys} decoys" if report.decoys else ""
    counts = f"{report.unique} unique of {report.sequences} sequences ({percent(unique_share)})"
    summary = [f"{suite or 'no suite'}: {counts} at G={report.granularity}{decoys}"]
    for row in report.rows:
        summary += [f"{row.name}: {row.error}"] if row.error else []
        summary += [f"{row.name}: {layer.layer} skipped: {layer.reason}" for layer in row.skipped]
        if row.uncounted:
            operators = ", ".join(f"{count} {name}" for name, count in row.uncounted.items())
            summary.append(f"{row.name}: work unknown for {operators}")
    summary += bound_lines((row.name, row.bound) for row in report.rows)
    return Answer(
        rows,
        totals={
            "suite": suite,
            "hash": None if report.suite is None else report.suite.hash,
            "granularity": report.granularity,
            "layers": report.layers,
            "folded": report.folded,
            "sequences": report.sequences,
            "unique": report.unique,
            "decoys": report.decoys,
            "wall_s": report.wall_s,
        },
        columns=[
            Column("name", "model"),
            Column("layers", "layers"),
            Column("folded", "folded"),
            Column("sequences", "sequences"),
            Column("unique", "unique"),
            Column("macs", "MACs", quantity),
            Column("weight_bytes", "weights", size),
        ],
        summary=summary,
    )


def ran(report: RunReport) -> Answer:
    """The answer of ``run``: one row per failure, what was done beside them."""
    counts = f"{report.bricks} bricks: {report.reused} known, {report.failed} failed"
    if report.dry_run:
        summary = [f"{counts}, {_left(report)} to be measured in about {duration(report.forecast_s)}"]
        if report.budget_s is not None and report.forecast_s > report.budget_s:
            summary.append(f"that is more than the {duration(report.budget_s)} of --budget: some would be left over")
    else:
        parts = f"{duration(report.timed_s)} timed, {duration(report.prepare_s)} loading"
        summary = [f"{counts}, {report.measured} measured in {duration(report.wall_s)} ({parts})"]
    if report.models:
        summary.append(f"{counted(report.models, 'whole model')} known")
    summary += [*_algorithms(report), *_watched(report.costs), *_profiled(report.kernels)]
    if (report.remaining or report.models_remaining or report.algorithms_remaining) and not report.dry_run:
        summary.append(f"{_left(report)} left over when the time was up; the same command goes on with them")
    summary += bound_lines(report.bound.items())
    failures = [{"key": key, "reason": reason, "variant": ""} for key, reason in report.failures]
    failures += [
        {"key": failure.key, "reason": failure.reason, "variant": failure.variant}
        for failure in report.algorithm_failures
    ]
    return Answer(
        failures,
        totals={
            "bricks": report.bricks,
            "measured": report.measured,
            "reused": report.reused,
            "failed": report.failed,
            "remaining": report.remaining,
            "models": report.models,
            "models_remaining": report.models_remaining,
            "algorithms": report.algorithms,
            "algorithms_reused": report.algorithms_reused,
            "algorithms_failed": len(report.algorithm_failures),
            "algorithms_remaining": report.algorithms_remaining,
            "wall_s": report.wall_s,
            "timed_s": report.timed_s,
            "prepare_s": report.prepare_s,
            "forecast_s": report.forecast_s,
            "budget_s": report.budget_s,
            "dry_run": report.dry_run,
            "run": report.run,
            "system": report.system,
            "stack": report.stack,
            "kernels": None if report.kernels is None else asdict(report.kernels),
            "costs": asdict(report.costs),
            "bound": {name: dict(bound) for name, bound in report.bound.items()},
        },
        columns=[
            Column("key", "not measured", _brick_or_model),
            *([Column("variant", "algorithm")] if report.algorithm_failures else []),
            Column("reason", "reason"),
        ],
        summary=summary,
        table=_summed(failures),
    )


def _summed(failures: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Rows of failures, those of an algorithm for one reason as a single row: it may not be for most bricks."""
    alike = Counter((row["variant"], row["reason"]) for row in failures)
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for row in failures:
        kind = (row["variant"], row["reason"])
        if row["variant"] and alike[kind] > 1:
            rows[kind] = {**row, "key": counted(alike[kind], "brick")}
        else:
            rows[row["key"], *kind] = row
    return list(rows.values())


def _algorithms(report: RunReport) -> list[str]:
    """What was done with the runtime's other algorithms, if anything."""
    known, without = report.algorithms_reused, len(report.algorithm_failures)
    if not (known or without or report.algorithms or report.algorithms_remaining):
        return []
    failed = sum(failure.kind != "unsupported" for failure in report.algorithm_failures)
    counts = f"with other algorithms: {known} known, {without - failed} not offered, {failed} failed"
    return [counts if report.dry_run else f"{counts}, {report.algorithms} measured"]


def _watched(costs: RunCosts) -> list[str]:
    """Whether packs take longer, or less, while the runtime tells the times of their nodes."""
    if not costs.watched_s or not costs.unwatched_s:
        return []
    change = costs.watched_s / costs.unwatched_s - 1
    if abs(change) <= _UNWATCHED:
        return []
    sign = "more" if change > 0 else "less"
    return [f"profiled passes take {percent(abs(change))} {sign} than others: estimates may be off by as much"]


def _profiled(report: ProfileReport | None) -> list[str]:
    """What the pass that tells kernels did."""
    if report is None:
        return []
    counts = f"kernels: {report.taken} told, {report.known} known, {len(report.failures)} failed"
    return [
        counts,
        *(
            f"  {_brick_or_model(failure.label)}{f' ({failure.variant})' if failure.variant else ''}: {failure.reason}"
            for failure in report.failures
        ),
    ]


def _left(report: RunReport) -> str:
    """The bricks, and the whole models and algorithms if there are any, that are still to be measured."""
    left = [str(report.remaining)]
    if report.models_remaining:
        left.append(counted(report.models_remaining, "whole model"))
    if report.algorithms_remaining:
        left.append(f"{report.algorithms_remaining} with other algorithms")
    return " and ".join(left)


def _brick_or_model(name: str) -> str:
    """A brick's key is shortened, a model's name is not."""
    is_key = len(name) == 64 and all(digit in "0123456789abcdef" for digit in name)
    return short(name) if is_key else name


def measured(report: MeasureReport) -> Answer:
    """The answer of ``measure``: one row per model."""
    examined = any(row.data_effect_ms is not None for row in report.rows)
    data = [Column("data_effect_ms", "data ms", milliseconds), Column("data_ci95_ms", "95 % interval", _interval)]
    return Answer(
        [asdict(row) for row in report.rows],
        totals={
            "run": report.run,
            "system": report.system,
            "stack": report.stack,
            "wall_s": report.wall_s,
            "kernels": None if report.kernels is None else asdict(report.kernels),
        },
        columns=[
            Column("name", "model"),
            Column("latency_ms", "mean ms", milliseconds),
            Column("ci95_ms", "95 % interval", _interval),
            Column("undisturbed_ms", "undisturbed ms", milliseconds),
            Column("p90_ms", "p90 ms", milliseconds),
            Column("p99_ms", "p99 ms", milliseconds),
            Column("load_ms", "load ms", milliseconds),
            Column("first_run_ms", "first run ms", milliseconds),
            Column("verdict", "verdict"),
            *(data if examined else []),
        ],
        summary=[
            *(f"{row.name}: {row.error}" for row in report.rows if row.error),
            *(f"{row.name}: {_data_layers(row.data_layers)}" for row in report.rows if row.data_layers),
            *(f"{row.name}: its values: {row.data_error}" for row in report.rows if row.data_error),
            *_profiled(report.kernels),
            *bound_lines((row.name, row.bound) for row in report.rows),
        ],
    )


def _data_layers(layers: Sequence[DataLayer]) -> str:
    """The layers whose latency depends on their values, by operator."""
    effects: dict[str, list[DataLayer]] = {}
    for layer in layers:
        effects.setdefault(layer.op_type, []).append(layer)
    parts = []
    for op_type, found in effects.items():
        subnormal = max(max(layer.subnormal_in, layer.subnormal_out) for layer in found)
        share = f", up to {percent(subnormal)} subnormal numbers" if subnormal else ""
        total_ms = sum(layer.effect_ms for layer in found)
        parts.append(f"{len(found)} x {op_type} {milliseconds(total_ms)} ms{share}")
    return "its own values cost " + "; ".join(parts)


def _interval(bounds: Sequence[float]) -> str:
    low, high = bounds
    return f"{milliseconds(low)} … {milliseconds(high)}"


def estimated(estimates: Sequence[Estimate], *, explain: bool = False, layers: bool = False) -> Answer:
    """The answer of ``estimate``: one row per model.

    Args:
        estimates: The estimates.
        explain: Add to the rows every sequence (``parts``), the critical path (``path``) and what lies between bricks
            and model (``attribution``); and all of that to the table.
        layers: Add every brick under the machine's ceilings (``roofline``).
    """
    rows = []
    for entry in estimates:
        row = entry.record(explained=explain)
        if explain:
            row |= {"parts": [asdict(part) for part in entry.sequences]}
            row["attribution_reason"] = None if entry.attribution else entry.error or "not every brick is measured"
        if layers:
            row["roofline"] = roofline_record(entry)
        rows.append(row)
    summary = [*(line for entry in estimates for line in _remarks(entry)), *standing(estimates)]
    summary += bound_lines((entry.name, entry.bound) for entry in estimates)
    if explain:
        for entry in estimates:
            if entry.sequences:
                summary += [*([""] if summary else []), *_explained(entry)]
    if layers:
        for entry in estimates:
            summary += [*([""] if summary else []), *roofline_lines(entry)]
    return Answer(
        rows,
        columns=[
            Column("name", "model"),
            Column("layers", "layers"),
            Column("sequences", "sequences"),
            Column("unique", "unique"),
            Column("estimate_ms", "estimate ms", milliseconds),
            Column("sequential_ms", "sequential ms", milliseconds),
            Column("critical_path_ms", "critical path ms", milliseconds),
            Column("lower_bound_sequential_ms", "lower bound ms", milliseconds),
            *COLUMNS,
            Column("coverage.sequences", "coverage", percent),
        ],
        summary=summary,
        table=[shown(entry, row) for entry, row in zip(estimates, rows, strict=True)],
    )


def _remarks(entry: Estimate) -> list[str]:
    if entry.error is not None:
        return [f"{entry.name}: {entry.error}"]
    lines = []
    if entry.missing:
        count = sum(missing.count for missing in entry.missing)
        known = any(part.latency_ms is not None for part in entry.sequences)
        rest = f"; the rest takes {milliseconds(entry.known_ms)} ms" if known and entry.known_ms is not None else ""
        lines.append(f"{entry.name}: {counted(count, 'sequence')} not measured{rest}")
        reasons = dict.fromkeys((missing.reason, missing.command) for missing in entry.missing)
        for reason, command in list(reasons)[:_REASONS]:
            lines.append(f"  {reason}" + (f": {command}" if command else ""))
        if len(reasons) > _REASONS:
            lines.append(f"  and {len(reasons) - _REASONS} more reasons (--json lists all)")
        if entry.bound and entry.coverage is not None and entry.coverage.sequences < _SAME_SHAPES:
            lines.append(
                f"  or in other shapes: bound to {values_of(entry.bound)}; give the --batch and --dim of the suite"
            )
    elif entry.measured_ms is not None and entry.ratio is None:
        lines.append(f"{entry.name}: no ratio, since {entry.ratio_reason}")
    if entry.benanza_note is not None:
        lines.append(f"{entry.name}: {entry.benanza_note}")
    return lines


def _explained(entry: Estimate) -> list[str]:
    """What lies between bricks and model, where the time goes by operator, and the critical path, layer by layer."""
    totals: dict[str, float] = {}
    for part in entry.sequences:
        if part.latency_ms is not None:
            name = "+".join(part.op_types)
            totals[name] = totals.get(name, 0.0) + part.latency_ms
    whole = sum(totals.values()) or 1.0
    lines = [*written(entry), *_rivals(entry)]
    if totals:
        known = ", of what is measured" if entry.missing else ""
        lines.append(f"{entry.name}: time by operator{known}")
        lines += [
            f"  {milliseconds(total):>12} ms  {percent(total / whole):>4}  {name}"
            for name, total in sorted(totals.items(), key=lambda item: -item[1])[:_OPERATORS]
        ]
    if entry.missing:
        lines += [f"{entry.name}: time not known", *_unknown(entry)]
    if entry.path:
        lines.append(f"{entry.name}: critical path, {len(entry.path)} of {counted(len(entry.sequences), 'sequence')}")
        lines += [
            f"  {_latency(part.latency_ms)}  {'+'.join(part.op_types)}  {', '.join(part.names)}" for part in entry.path
        ]
    return lines


def _rivals(entry: Estimate) -> list[str]:
    """What is faster than this stack in the way that it chooses, by stack and algorithm."""
    won: dict[tuple[str, str], list[float]] = {}
    for part in entry.sequences:
        if part.lower_bound_ms is None or part.fastest_stack is None:
            continue
        place = part.fastest_stack, part.fastest_variant or ""
        if place != (entry.stack, ""):
            gain = (part.latency_ms - part.lower_bound_ms) if part.latency_ms is not None else 0.0
            won.setdefault(place, []).append(gain)
    if not won:
        return []
    lines = [f"{entry.name}: faster than this stack, in the lower bound"]
    for (stack, variant), gains in sorted(won.items(), key=lambda item: -sum(item[1])):
        where = "this stack" if stack == entry.stack else f"stack {short(stack)}"
        how = f", algorithm {variant}" if variant else ""
        lines.append(f"  {milliseconds(sum(gains)):>12} ms less in {counted(len(gains), 'sequence')}: {where}{how}")
    return lines


def _unknown(entry: Estimate) -> list[str]:
    """What an estimate misses, by operator and reason."""
    counts: dict[tuple[str, str], int] = {}
    for missing in entry.missing:
        name = "+".join(missing.op_types), missing.reason
        counts[name] = counts.get(name, 0) + missing.count
    lines = [f"  {count:>4} x {name}: {reason}" for (name, reason), count in counts.items()]
    rest = len(lines) - _OPERATORS
    return [*lines[:_OPERATORS], *([f"  and {rest} more (--json lists all)"] if rest > 0 else [])]


def _latency(value: float | None) -> str:
    return f"{milliseconds(value):>12} ms" if value is not None else f"{'not measured':>15}"
