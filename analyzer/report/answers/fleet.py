"""What the commands of a fleet answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from ..tables import Answer, Column, table_lines
from ..units import counted, duration

if TYPE_CHECKING:
    from ....generator.fleet.planning import QueueReport
    from ....generator.fleet.queue import EndedJob
    from ....generator.fleet.status import FleetStatus

_SAID = {
    "new": "queued", "again": "queued again after a failure", "waiting": "waiting already", "running": "running",
    "complete": "complete",
}  # fmt: skip


def plan_answer(report: QueueReport) -> Answer:
    """The answer of ``fleet plan``: one row per cell."""
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
            Column("node", "node"),
            Column("suite", "suite"),
            Column("stack", "stack"),
            Column("threads", "threads"),
            Column("cache", "cache"),
            Column("dtype", "precision"),
            Column("state", "state"),
        ],
        summary=[f"campaign {report.campaign}, {counted(len(rows), 'cell')}: {verb}{', '.join(parts)}"],
    )


def _counts(report: QueueReport) -> dict[str, int]:
    return {what: report.counts.get(what, 0) for what in _SAID}


def work_answer(done: Sequence[EndedJob]) -> Answer:
    """The answer of ``fleet work``: one row per job that was ended."""
    complete = sum(job.complete for job in done)
    text = (
        f"{counted(len(done), 'job')}: {complete} complete, {len(done) - complete} failed" if done else "nothing to do"
    )
    return Answer(
        [job.record() for job in done],
        totals={"jobs": len(done), "complete": complete},
        columns=[
            Column("label", "job"),
            Column("complete", "complete", lambda complete: "yes" if complete else "no"),
            Column("measured_s", "measured", duration),
            Column("pushed_s", "pushed", duration),
            Column("reason", "because"),
        ],
        summary=[text],
    )


def status_answer(status: FleetStatus) -> Answer:
    """The answer of ``fleet status``: one row per campaign; nodes and failures beside them."""
    nodes = [asdict(node) | {"seen": _moment(node.seen)} for node in status.nodes]
    failures = [asdict(failure) for failure in status.failures]
    columns = [
        Column("node", "node"),
        Column("seen", "last seen"),
        Column("waiting", "waiting"),
        Column("running", "measures"),
        Column("complete", "complete"),
        Column("failed", "failed"),
        Column("forecast_s", "ready in", duration),
    ]
    lines = table_lines(nodes, columns) if nodes else ["no campaign was planned here"]
    if failures:
        heads = [Column("node", "failed on"), Column("cell", "cell"), Column("reason", "reason")]
        lines += ["", *table_lines(failures, heads)]
    return Answer(
        [asdict(campaign) for campaign in status.campaigns],
        totals={"nodes": nodes, "failures": failures},
        columns=[
            Column("campaign", "campaign"),
            Column("cells", "cells"),
            Column("complete", "complete"),
            Column("running", "running"),
            Column("waiting", "waiting"),
            Column("failed", "failed"),
            Column("bricks_measured", "bricks measured"),
            Column("bricks_failed", "impossible"),
            Column("bricks_remaining", "left over"),
            *([Column("models", "models measured")] if any(campaign.models for campaign in status.campaigns) else []),
            Column("forecast_s", "ready in", duration),
        ],
        summary=lines,
    )


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")
