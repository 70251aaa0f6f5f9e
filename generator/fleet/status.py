"""The state of a fleet: complete, remaining and failed cells, and forecasts."""

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
    """A cell that could not be measured."""

    campaign: str
    node: str
    cell: str
    reason: str


@dataclass(frozen=True, slots=True)
class CampaignStatus:
    """The progress of a campaign.

    Attributes:
        campaign: Name of the campaign.
        cells: Number of cells.
        waiting: Cells in a queue.
        running: Cells that a node is measuring.
        complete: Cells that are measured and on the server.
        failed: Cells that ended with a reason; planning again queues them again.
        bricks: Number of bricks of all ended cells.
        bricks_measured: Bricks that were measured.
        bricks_failed: Bricks that the runtime could not execute.
        bricks_remaining: Bricks left when the budget was spent.
        models: Whole models that were measured.
        models_remaining: Whole models left when the budget was spent.
        forecast_s: Seconds until the last cell ends, from the durations of similar cells; None if unknown.
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
    """The state of a node.

    Attributes:
        node: Name of the node.
        seen: Time of its worker's last request for a job; None: never.
        waiting: Jobs in its queue.
        running: The cell in progress.
        running_s: Duration so far in seconds.
        complete: Jobs that it completed.
        failed: Jobs that failed.
        forecast_s: Seconds until its queue is empty; None if unknown.
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
    """Return the state of a fleet.

    Args:
        url: URL of the PostgreSQL database.
        campaign: Report only this campaign; forecasts include others in the same queues.

    Raises:
        UsageError: The database is not PostgreSQL, or the extra ``fleet`` is not installed.
        StoreError: The database has no fleet, or cannot be reached.
    """
    with transaction(url) as connection:
        jobs, foreign = _read(connection.execute(_QUERY))
        seen = _seen(connection)
    forecasts = _left(jobs)
    nodes = sorted({job.cell.node for job in jobs} | set(seen))
    campaigns = dict.fromkeys(job.cell.campaign for job in jobs)
    chosen = [name for name in campaigns if campaign in {None, name}]
    return FleetStatus(
        tuple(_campaign(name, jobs, forecasts) for name in chosen),
        tuple(_node(name, [job for job in jobs if job.cell.node == name], forecasts, seen.get(name)) for name in nodes),
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
        """Build the value from a row that a node wrote; impossible counts and times become unknown.

        Raises:
            StoreError: Another version planned the job.
        """
        counts, parts = row["counts"], [row["waited_s"], row["measured_s"]]
        possible = all(part is not None and isfinite(part) and part >= 0 for part in parts)
        return _JobState(
            cell=Cell.of(row["args"]),
            state=_state(row),
            counts=counts if isinstance(counts, dict) else {},
            reason=row["reason"] or row["status"],
            took_s=sum(parts) if possible else None,
            running_s=row["running_s"],
        )


def _state(row: Mapping[str, Any]) -> str:
    return _STATES.get(row["status"], "failed")


def _read(rows: Iterable[Mapping[str, Any]]) -> tuple[list[_JobState], list[CellFailure]]:
    """Read the jobs, and the incomplete jobs of other versions."""
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
    """Return the last sign of life of each node; None for a time in the future."""
    query = "SELECT name, CASE WHEN seen BETWEEN '2000-01-01' AND now() THEN seen END AS seen FROM node"
    return {row["name"]: row["seen"] for row in connection.execute(query)}


def _left(jobs: Iterable[_JobState]) -> dict[int, float | None]:
    """Forecast the remaining seconds of each unfinished job; None if unknown.

    The forecast is the mean of complete jobs with equal suite, models, pace and conditions, on this node if possible.
    """
    listed = list(jobs)
    took: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for job in listed:
        if job.state == "complete" and job.took_s is not None:
            for key in _alike(job.cell):
                took[key].append(job.took_s)
    forecasts: dict[int, float | None] = {}
    for job in listed:
        if job.state in {"waiting", "running"}:
            mean_s = next((fmean(took[key]) for key in _alike(job.cell) if key in took), None)
            forecasts[id(job)] = None if mean_s is None else max(0.0, mean_s - (job.running_s or 0.0))
    return forecasts


def _alike(cell: Cell) -> list[tuple[object, ...]]:
    """Return keys that cells of about equal duration share, the most specific first."""
    suite, conditions = cell.suite, cell.conditions
    alike = (suite.hash, suite.models, suite.batch, suite.dims, cell.pace, conditions.threads, conditions.cache)
    return [(cell.node, cell.stack.name, *alike), (cell.node, *alike), alike]


def _node(name: str, jobs: list[_JobState], forecasts: Mapping[int, float | None], seen: datetime | None) -> NodeStatus:
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
        forecast_s=_sum(forecasts[id(job)] for job in jobs if id(job) in forecasts),
    )


def _campaign(name: str, jobs: list[_JobState], forecasts: Mapping[int, float | None]) -> CampaignStatus:
    ours = [job for job in jobs if job.cell.campaign == name]
    states = Counter(job.state for job in ours)
    ends = [_until(node, name, jobs, forecasts) for node in {job.cell.node for job in ours}]
    known_ends = [end for end in ends if end is not None]
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
        forecast_s=max(known_ends, default=0.0) if len(known_ends) == len(ends) else None,
    )


def _until(node: str, campaign: str, jobs: list[_JobState], forecasts: Mapping[int, float | None]) -> float | None:
    """Forecast the seconds until a campaign's last cell on a node ends, with the jobs queued before it."""
    queue = [job for job in jobs if job.cell.node == node and id(job) in forecasts]
    last = max((position for position, job in enumerate(queue) if job.cell.campaign == campaign), default=-1)
    return _sum(forecasts[id(job)] for job in queue[: last + 1])


def _sum(parts: Iterable[float | None]) -> float | None:
    """Return the sum; 0 for no parts, None if a part is unknown."""
    listed = list(parts)
    known_parts = [part for part in listed if part is not None]
    return sum(known_parts, 0.0) if len(known_parts) == len(listed) else None


def _total(jobs: Iterable[_JobState], name: str) -> int:
    """Return the sum of the nodes' counts; other entries are left out."""
    counts = [job.counts.get(name) for job in jobs]
    return sum(count for count in counts if type(count) is int and count >= 0)
