"""What ``generate`` answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..tables import Answer, Column
from ..units import percent, quantity, size
from .bindings import bound_lines, control_lines

if TYPE_CHECKING:
    from ....generator.decomposition.generate import GenerateReport

__all__ = ["generate_answer"]


def generate_answer(report: GenerateReport) -> Answer:
    """The answer of ``generate``: one row per model, the suite beside them."""
    suite = None if report.suite is None else str(report.suite.path)
    unique_share = report.unique / report.sequences if report.sequences else 0.0
    decoys = f", and {report.decoys} decoys" if report.decoys else ""
    counts = f"{report.unique} unique of {report.sequences} sequences ({percent(unique_share)})"
    summary = [f"{suite or 'no suite'}: {counts} at G={report.granularity}{decoys}"]
    for row in report.rows:
        summary += [f"{row.name}: {row.error}"] if row.error else []
        summary += [f"{row.name}: {layer.layer} skipped: {layer.reason}" for layer in row.skipped]
        summary += [f"{row.name}: {parts.layer} in bricks apart: {parts.reason}" for parts in row.apart]
        if row.uncounted:
            operators = ", ".join(f"{count} {name}" for name, count in row.uncounted.items())
            summary.append(f"{row.name}: work unknown for {operators}")
    summary += bound_lines((row.name, row.bound) for row in report.rows)
    summary += control_lines((row.name, row.control) for row in report.rows)
    return Answer.of(
        report.records(),
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
