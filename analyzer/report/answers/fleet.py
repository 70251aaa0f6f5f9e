"""Answers of the fleet commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from ....tabular import Field
from ..tables import Answer, table_lines
from ..units import counted

if TYPE_CHECKING:
    from ....generator.fleet.planning import QueueReport
    from ....generator.fleet.queue import EndedJob
    from ....generator.fleet.status import FleetStatus

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
