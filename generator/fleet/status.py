"""What a fleet has done, what is left, what failed, and when it may be ready."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from statistics import fmean
from typing import Any

from ...errors import StoreError
from .cell import Cell
from .server import Connection, transaction

_STATES = {"todo": "waiting", "doing": "running", "succeeded": "complete", "failed": "failed"}

_QUERY = """
SELECT j.id, j.status::text AS status, j.args, j.queue_name AS node, o.counts, o.reason, o.waited_s, o.measured_s,
    CASE WHEN j.status = 'doing' THEN extract(epoch FROM now() - (
        SELECT max(e.at) FROM procrastinate_events e WHERE e.job_id = j.id AND e.type = 'started'
        AND e.at BETWEEN '2000-01-01' AND now()))::float8
    END AS running_s
FROM procrastinate_jobs j
LEFT JOIN LATERAL (SELECT * FROM outcome WHERE outcome.job = j.id ORDER BY attempt DESC LIMIT 1) o ON true
ORDER BY j.id
"""


@dataclass(frozen=True, slots=True)
class CellFailure:
    """A cell that could not be measured.

    Attributes:
        campaign: Its campaign.
        node: Its node.
        cell: What it is.
        reason: Why.
    """

    campaign: str
    node: str
    cell: str
    reason: str


@dataclass(frozen=True, slots=True)
class CampaignStatus:
    """How far a campaign is.

    Attributes:
        campaign: Its name.
        cells: All of them.
        waiting: In a queue.
        running: In the hands of a node.
        complete: Measured, and on the server.
        failed: Ended with a reason; planning again puts them back.
        bricks: Of cells that ended: bricks that were to be measured.
        bricks_measured: Of these, those that were.
        bricks_failed: Those that the runtime could not execute.
        bricks_remaining: Those for which the time did not suffice.
        models: Whole models that were measured.
        models_remaining: Those for which the time did not suffice.
        forecast_s: Until its last cell ends, by how long others took; None where none has ended that tells.
    """

    campaign: str
    cells: int
    waiting: int
    running: int
    complete: int
    failed: int
    bricks: int
    bricks_measured: int
    bricks_failed: int
    bricks_remaining: int
    models: int
    models_remaining: int
    forecast_s: float | None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node does.

    Attributes:
        node: Its name.
        seen: When its worker last asked for a job; None: never.
        waiting: Jobs in its queue.
        running: What it measures.
        running_s: For how long.
        complete: Jobs that it completed.
        failed: Jobs that failed.
        forecast_s: Until its queue is empty; None where nothing tells.
    """

    node: str
    seen: datetime | None
    waiting: int
    running: str | None
    running_s: float | None
    complete: int
    failed: int
    forecast_s: float | None


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """All of it."""

    campaigns: tuple[CampaignStatus, ...]
    nodes: tuple[NodeStatus, ...]
    failures: tuple[CellFailure, ...]


def fleet_status(url: str, *, campaign: str | None = None) -> FleetStatus:
    """How far a fleet is.

    Args:
        url: Of the PostgreSQL database.
        campaign: Only this one; forecasts know of the others, which wait in the same queues.

    Raises:
        UsageError: It is no PostgreSQL database, or the extra ``fleet`` is not installed.
        StoreError: It holds no fleet, or cannot be reached.
    """
    with transaction(url) as connection:
        jobs, foreign = _read(connection.execute(_QUERY))
        seen = _seen(connection)
    left = _left(jobs)
    nodes = sorted({job.cell.node for job in jobs} | set(seen))
    campaigns = dict.fromkeys(job.cell.campaign for job in jobs)
    chosen = [name for name in campaigns if campaign in {None, name}]
    return FleetStatus(
        tuple(_campaign(name, jobs, left) for name in chosen),
        tuple(_node(name, [job for job in jobs if job.cell.node == name], left, seen.get(name)) for name in nodes),
        tuple(
            CellFailure(job.cell.campaign, job.cell.node, job.cell.label, job.reason)
            for job in jobs
            if job.state == "failed" and job.cell.campaign in chosen
        )
        + tuple(failure for failure in foreign if campaign in {None, failure.campaign}),
    )


@dataclass(frozen=True, slots=True)
class _JobState:
    cell: Cell
    state: str
    counts: Mapping[str, Any]
    reason: str
    took_s: float | None
    running_s: float | None

    @staticmethod
    def of(row: Mapping[str, Any]) -> _JobState:
        """A node wrote its counts and times: what makes no sense counts as not known.

        Raises:
            StoreError: It is a job of another version.
        """
        counts, parts = row["counts"], [row["waited_s"], row["measured_s"]]
        known = all(part is not None and isfinite(part) and part >= 0 for part in parts)
        return _JobState(
            cell=Cell.of(row["args"]),
            state=_state(row),
            counts=counts if isinstance(counts, dict) else {},
            reason=row["reason"] or row["status"],
            took_s=sum(parts) if known else None,
            running_s=row["running_s"],
        )


def _state(row: Mapping[str, Any]) -> str:
    return _STATES.get(row["status"], "failed")


def _read(rows: Iterable[Mapping[str, Any]]) -> tuple[list[_JobState], list[CellFailure]]:
    """The jobs, and those of another version that are not complete."""
    jobs, foreign = [], []
    for row in rows:
        try:
            jobs.append(_JobState.of(row))
        except StoreError as error:
            if _state(row) != "complete":
                campaign = str(row["args"].get("campaign", ""))
                foreign.append(CellFailure(campaign, row["node"], f"job {row['id']}", str(error)))
    return jobs, foreign


def _seen(connection: Connection) -> dict[str, datetime | None]:
    """When each node was last heard of; None where the time that it noted is none of the past."""
    query = "SELECT name, CASE WHEN seen BETWEEN '2000-01-01' AND now() THEN seen END AS seen FROM node"
    return {row["name"]: row["seen"] for row in connection.execute(query)}


def _left(jobs: Iterable[_JobState]) -> dict[int, float | None]:
    """Seconds that each unfinished job may still take, by its identity here; None where nothing tells.

    By the mean of complete jobs of the same suite, models, pace and conditions on its node, else on others.
    """
    listed = list(jobs)
    took: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for job in listed:
        if job.state == "complete" and job.took_s is not None:
            for known in _alike(job.cell):
                took[known].append(job.took_s)
    left: dict[int, float | None] = {}
    for job in listed:
        if job.state in {"waiting", "running"}:
            mean_s = next((fmean(took[known]) for known in _alike(job.cell) if known in took), None)
            left[id(job)] = None if mean_s is None else max(0.0, mean_s - (job.running_s or 0.0))
    return left


def _alike(cell: Cell) -> list[tuple[object, ...]]:
    """What cells have in common that take about as long, the most alike first."""
    suite, conditions = cell.suite, cell.conditions
    alike = (suite.hash, suite.models, suite.batch, suite.dims, cell.pace, conditions.threads, conditions.cache)
    return [(cell.node, cell.stack.name, *alike), (cell.node, *alike), alike]


def _node(name: str, jobs: list[_JobState], left: Mapping[int, float | None], seen: datetime | None) -> NodeStatus:
    states = Counter(job.state for job in jobs)
    running = next((job for job in jobs if job.state == "running"), None)
    return NodeStatus(
        node=name,
        seen=seen,
        waiting=states["waiting"],
        running=running.cell.label if running else None,
        running_s=running.running_s if running else None,
        complete=states["complete"],
        failed=states["failed"],
        forecast_s=_sum(left[id(job)] for job in jobs if id(job) in left),
    )


def _campaign(name: str, jobs: list[_JobState], left: Mapping[int, float | None]) -> CampaignStatus:
    ours = [job for job in jobs if job.cell.campaign == name]
    states = Counter(job.state for job in ours)
    ends = [_until(node, name, jobs, left) for node in {job.cell.node for job in ours}]
    known = [end for end in ends if end is not None]
    return CampaignStatus(
        campaign=name,
        cells=len(ours),
        waiting=states["waiting"],
        running=states["running"],
        complete=states["complete"],
        failed=states["failed"],
        bricks=_total(ours, "bricks"),
        bricks_measured=_total(ours, "measured") + _total(ours, "reused"),
        bricks_failed=_total(ours, "failed"),
        bricks_remaining=_total(ours, "remaining"),
        models=_total(ours, "models"),
        models_remaining=_total(ours, "models_remaining"),
        forecast_s=max(known, default=0.0) if len(known) == len(ends) else None,
    )


def _until(node: str, campaign: str, jobs: list[_JobState], left: Mapping[int, float | None]) -> float | None:
    """Until the last cell of a campaign on a node ends: whatever stands before it in the queue comes first."""
    queue = [job for job in jobs if job.cell.node == node and id(job) in left]
    last = max((place for place, job in enumerate(queue) if job.cell.campaign == campaign), default=-1)
    return _sum(left[id(job)] for job in queue[: last + 1])


def _sum(parts: Iterable[float | None]) -> float | None:
    """Of nothing it is 0; where a part is not known neither is the sum."""
    listed = list(parts)
    known = [part for part in listed if part is not None]
    return sum(known, 0.0) if len(known) == len(listed) else None


def _total(jobs: Iterable[_JobState], name: str) -> int:
    """Of what nodes counted; whatever else a node may have noted is left out."""
    counts = [job.counts.get(name) for job in jobs]
    return sum(count for count in counts if type(count) is int and count >= 0)
