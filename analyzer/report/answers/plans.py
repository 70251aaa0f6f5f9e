"""The answer of ``backends plans``: what a vendor's library offers for each brick."""

from __future__ import annotations

from ....generator.planning.library_plans import PlanReport
from ..tables import Answer, Column
from ..units import counted

__all__ = ["plans_answer"]


def plans_answer(report: PlanReport) -> Answer:
    """One result per brick, precision and layout; the table shows a row for all bricks of the same operators."""
    bricks = {row.key for row in report.rows}
    offered = {row.key for row in report.rows if row.plans}
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    plans = sum(len(row.plans) for row in report.rows)
    failed = sum(row.failed for row in report.rows)
    share = f"{counted(plans, 'plan')} for {len(offered)} of {counted(len(bricks), 'brick')}"
    summary = [f"{report.gpu.name}, {versions}: {share}; nothing was executed"]
    if failed:
        summary.append(f"the library broke on {counted(failed, 'row')}: --json has the reasons")
    return Answer.of(
        report.records(),
        table=report.by_operators,
        columns=[
            Column("operators", "operators", " ".join),
            Column("dtype", "dtype"),
            Column("layout", "layout"),
            Column("bricks", "bricks"),
            Column("offered", "with plans"),
            Column("plans", "plans", _whole),
            Column("engines", "engines", _whole),
            Column("tensor_cores", "first: Tensor Cores"),
            Column("reason", "why none"),
        ],
        summary=summary,
    )


def _whole(value: object) -> str:
    return "" if value is None else f"{value:g}"
