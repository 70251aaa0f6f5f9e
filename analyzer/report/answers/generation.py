"""What ``generate`` answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from ..tables import Answer, Column
from ..units import percent, quantity, size
from .bindings import bound_lines, control_lines

if TYPE_CHECKING:
    from ....generator.decomposition.generate import GenerateReport

__all__ = ["generate_answer"]


def generate_answer(report: GenerateReport) -> Answer:
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
        summary += [f"{row.name}: {parts.layer} in bricks apart: {parts.reason}" for parts in row.apart]
        if row.uncounted:
            operators = ", ".join(f"{count} {name}" for name, count in row.uncounted.items())
            summary.append(f"{row.name}: work unknown for {operators}")
    summary += bound_lines((row.name, row.bound) for row in report.rows)
    summary += control_lines((row.name, row.control) for row in report.rows)
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
