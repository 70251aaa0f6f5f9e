"""What ``estimate`` answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...shell import with_command
from ..causes import written
from ..elsewhere import advised_for
from ..forms import form_cells, form_columns
from ..roofs import roofline_lines
from ..sweeping import sweep_lines
from ..tables import MOST, Answer, Column, table_lines, unlisted
from ..units import counted, milliseconds, percent, short
from .bindings import bound_lines, control_lines, values_of
from .truth import COLUMNS, above_estimate, caveats, table_row

if TYPE_CHECKING:
    from ....constructor.result import Estimate, Interpolation, SequenceLatency
    from ...estimation.estimates import Estimates

__all__ = ["estimates_answer"]

_SAME_SHAPES = 0.5
"""Share of sequences that are measured: below it, the suite may have been generated in other shapes."""

_REASONS = 5
"""Different reasons why bricks are missing that the table lists per model."""

_OPERATORS = 12
"""Operators that ``--explain`` lists per model, the most expensive first."""


def estimates_answer(
    estimates: Estimates, *, explain: bool = False, layers: bool = False, most: int | None = MOST
) -> Answer:
    """The answer of ``estimate``: one row per model.

    Args:
        estimates: The estimates.
        explain: As for ``Estimates.records``, and all of that below the table.
        layers: Likewise.
        most: Layers that the table lists; None: all.
    """
    records = estimates.records(explain=explain, layers=layers)
    summary = [*(line for entry in estimates for line in _remarks(entry)), *caveats(estimates.rows)]
    summary += bound_lines((entry.name, entry.bound) for entry in estimates)
    summary += sweep_lines(estimates.rows)
    summary += control_lines(((one.name, one.control) for one in estimates), [one.framing for one in estimates])
    if explain:
        for entry in estimates:
            if entry.sequences:
                summary += [*([""] if summary else []), *_explained(entry, most)]
    if layers:
        for entry in estimates:
            summary += [*([""] if summary else []), *roofline_lines(entry, most=most)]
    return Answer.of(
        records,
        columns=[
            Column("name", "model"),
            Column("layers", "layers", spare=True),
            Column("sequences", "sequences", spare=True),
            Column("unique", "unique"),
            Column("estimate_ms", "estimate ms ±95%", milliseconds, bounds="ci95_ms"),
            Column("sequential_ms", "sequential ms", milliseconds),
            Column("critical_path_ms", "critical path ms", milliseconds, spare=True),
            Column(
                "lower_bound_sequential_ms", "lower bound ms", milliseconds, bounds="lower_bound_sequential_ci95_ms"
            ),
            *COLUMNS,
            Column("coverage.sequences", "coverage", percent),
        ],
        summary=summary,
        table=[table_row(entry, row) for entry, row in zip(estimates, records.results, strict=True)],
    )


def _remarks(entry: Estimate) -> list[str]:
    if entry.error is not None:
        return [f"{entry.name}: {entry.error}"]
    lines = []
    if entry.interpolated is not None:
        lines.append(_read_between(entry, entry.interpolated))
    elif entry.missing:
        if entry.interpolation_reason is not None:
            lines.append(f"{entry.name}: not interpolated, since {entry.interpolation_reason}; nothing is extrapolated")
        count = sum(missing.count for missing in entry.missing)
        known = any(part.latency_ms is not None for part in entry.sequences)
        rest = f"; the rest takes {milliseconds(entry.known_ms)} ms" if known and entry.known_ms is not None else ""
        lines.append(f"{entry.name}: {counted(count, 'sequence')} not measured{rest}")
        reasons = dict.fromkeys((missing.reason, missing.remedy) for missing in entry.missing)
        for reason, remedy in list(reasons)[:_REASONS]:
            lines.append(f"  {reason}" + (f": {advised_for(entry, remedy)}" if remedy else ""))
        if len(reasons) > _REASONS:
            lines.append(f"  and {len(reasons) - _REASONS} more reasons (--json lists all)")
        if (entry.dims or entry.batch) and entry.interpolation_reason is None:
            lines.append("  or read it between sizes that are measured: --interpolate")
        if entry.bound and entry.coverage is not None and entry.coverage.sequences < _SAME_SHAPES:
            lines.append(
                f"  or in other shapes: bound to {values_of(entry.bound)}; give the --batch and --dim of the suite"
            )
    elif entry.measured_ms is not None and entry.ratio is None:
        lines.append(f"{entry.name}: no ratio, since {with_command(entry.ratio_reason, entry)}")
    if entry.benanza_note is not None:
        lines.append(f"{entry.name}: {entry.benanza_note}")
    elif above_estimate(entry):
        lines.append(
            f"{entry.name}: no lower bound, since the cheapest bricks that make it up take "
            f"{milliseconds(entry.lower_bound_sequential_ms or 0.0)} ms: more than the model is estimated to, "
            "which does not pay all that its bricks pay"
        )
    return lines


def _read_between(entry: Estimate, found: Interpolation) -> str:
    """How an interpolated estimate came about, and how far it can be trusted."""
    low, high = found.between
    text = (
        f"{entry.name}: {percent(found.share)} of it is interpolated between {found.dimension}={low} and {high}, "
        f"{found.bricks} of {counted(entry.unique or 0, 'brick')}"
    )
    if found.error is None:
        return f"{text}; nothing says how good that is, which takes at least three sizes"
    if not found.left_out:
        return text
    worst = max(abs(one.error) for one in found.left_out)
    return (
        f"{text}, on curves through {counted(len(found.measured), 'size')}; their sum at a size that is left out is "
        f"read from the others within {worst:.1%}, hence ± {found.error:.1%} of that part"
    )


def _explained(entry: Estimate, most: int | None) -> list[str]:
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
        lines.append(
            f"{entry.name}: critical path, {len(entry.path)} of {counted(len(entry.sequences), 'sequence')}, "
            "most time first"
        )
        costly = sorted(entry.path, key=lambda part: -(part.latency_ms or 0.0))
        lines += [*_path(costly[:most]), *unlisted(costly, most)]
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


def _path(parts: Sequence[SequenceLatency]) -> list[str]:
    """Sequences, one per row."""
    rows = [
        {"latency_ms": part.latency_ms, "ci95_ms": part.ci95_ms, **form_cells(part.op_types, part.names, part.form)}
        for part in parts
    ]
    columns = [Column("latency_ms", "ms ±95%", milliseconds, bounds="ci95_ms"), *form_columns(rows)]
    return table_lines(rows, columns)
