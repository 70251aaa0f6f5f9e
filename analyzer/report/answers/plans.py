"""The answer of ``backends plans``: what a vendor's library offers for each brick."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ....generator.backends.cudnn.plans import Plan
from ....generator.planning.library_plans import BrickPlans, PlanReport
from ..tables import Answer, Column
from ..units import counted

__all__ = ["plans_answer"]

_TENSOR_CORE = "TENSOR_CORE"


def plans_answer(report: PlanReport) -> Answer:
    """One result per brick, precision and layout; the table shows a row for all bricks of the same operators."""
    groups: dict[tuple[tuple[str, ...], str, str], list[BrickPlans]] = {}
    for row in report.rows:
        groups.setdefault((row.operators, row.dtype, str(row.layout or "")), []).append(row)
    table = [_together(rows) for _, rows in sorted(groups.items())]
    bricks = {row.key for row in report.rows}
    offered = {row.key for row in report.rows if row.plans}
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    plans = sum(len(row.plans) for row in report.rows)
    failed = sum(row.failed for row in report.rows)
    share = f"{counted(plans, 'plan')} for {len(offered)} of {counted(len(bricks), 'brick')}"
    summary = [f"{report.gpu.name}, {versions}: {share}; nothing was executed"]
    if failed:
        summary.append(f"the library broke on {counted(failed, 'row')}: --json has the reasons")
    return Answer(
        [_result(row) for row in report.rows],
        totals={
            "gpu": report.gpu.name,
            "versions": dict(report.versions),
            "bricks": len(bricks),
            "offered": len(offered),
            "by_operators": table,
        },
        table=table,
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


def _result(row: BrickPlans) -> dict[str, object]:
    return {
        "key": row.key,
        "operators": list(row.operators),
        "dtype": row.dtype,
        "layout": str(row.layout) if row.layout else None,
        "operations": list(row.operations),
        "plans": [_plan(plan) for plan in row.plans],
        "reason": row.reason or None,
        "failed": row.failed,
        "planning_ms": None if row.planning_ns is None else row.planning_ns / 1e6,
    }


def _plan(plan: Plan) -> dict[str, object]:
    return {**asdict(plan), "knobs": dict(plan.knobs), "reason": plan.reason or None}


def _together(rows: Sequence[BrickPlans]) -> Mapping[str, object]:
    """One row for bricks of the same operators in one precision and layout; medians are over those with plans."""
    offered = [row for row in rows if row.plans]
    reasons = Counter(row.reason for row in rows if not row.plans)
    return {
        "operators": list(rows[0].operators),
        "dtype": rows[0].dtype,
        "layout": str(rows[0].layout) if rows[0].layout else None,
        "bricks": len(rows),
        "offered": len(offered),
        "plans": _median([len(row.plans) for row in offered]),
        "engines": _median([len({plan.engine for plan in row.plans}) for row in offered]),
        "tensor_cores": sum(_TENSOR_CORE in row.plans[0].notes for row in offered) if offered else None,
        "reason": next((reason for reason, _ in reasons.most_common(1)), None),
    }


def _median(counts: Sequence[int]) -> float | None:
    return statistics.median(counts) if counts else None


def _whole(value: object) -> str:
    return "" if value is None else f"{value:g}"
