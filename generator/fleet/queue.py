"""The queue: Procrastinate's jobs, one queue for each node.

Procrastinate's worker is not used, because it sends heartbeats, listens and polls while a job runs. Its schema, job
manager and queries are used, each over one connection that is closed before anything is measured.

A job's ``queueing_lock`` is its cell, so that no cell waits twice. Its ``lock`` is its node, so that no node has two
jobs at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar

from ...errors import StoreError, UsageError
from .cell import Cell
from .runner import Measured
from .server import Connection

if TYPE_CHECKING:
    from procrastinate.jobs import Job as QueuedJob
    from procrastinate.manager import JobManager

_TASK = "dlbricks.measure"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeJob:
    """A job that a node took.

    Attributes:
        id: Number in the queue.
        node: Name of the node that took it.
        attempts: Number of earlier attempts, without those that were put back.
        cell: The cell to measure; None if another version planned the job, so that it cannot be read.
        deaths: Number of attempts since it was last queued that never ended.
        reason: Why it cannot be read; empty if it can.
    """

    id: int
    node: str
    attempts: int
    cell: Cell | None = None
    deaths: int = 0
    reason: str = ""

    @property
    def label(self) -> str:
        """For messages."""
        return f"job {self.id}" if self.cell is None else self.cell.label


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that a node ended.

    Attributes:
        job: The job.
        measured: Result of the runner.
        began: Time at which the node took it.
        waited_s: Seconds of waiting for a quiet machine.
        pushed_s: Seconds from the end of the runner until the job was ended.
    """

    job: NodeJob
    measured: Measured
    began: datetime
    waited_s: float
    pushed_s: float = 0.0

    @property
    def complete(self) -> bool:
        """True if it ran to its end."""
        return self.measured.complete

    def record(self) -> dict[str, object]:
        """Return the row of JSON."""
        return {
            "job": self.job.id,
            "label": self.job.label,
            "complete": self.measured.complete,
            "reason": self.measured.reason,
            "counts": self.measured.counts,
            "waited_s": self.waited_s,
            "measured_s": self.measured.wall_s,
            "pushed_s": self.pushed_s,
        }


def queue_tables() -> str:
    """Statements that make the queue's tables."""
    from procrastinate.schema import SchemaManager

    return SchemaManager.get_schema()


def states(connection: Connection, keys: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Job and state (``todo``, ``doing``, ``succeeded``, ``failed``...) of those cells that were planned before."""
    rows = connection.execute(
        "SELECT id, queueing_lock AS key, status::text AS status FROM procrastinate_jobs "
        "WHERE queueing_lock = ANY(%s) ORDER BY id",
        [list(keys)],
    )
    return {row["key"]: (row["id"], row["status"]) for row in rows}


def defer(connection: Connection, cells: Sequence[Cell]) -> None:
    """Put cells into the queues of their nodes; nothing is there before the transaction ends."""
    from procrastinate.jobs import Job as NewJob

    jobs = [
        NewJob(
            queue=cell.node, lock=_lock(cell.node), queueing_lock=cell.key, task_name=_TASK, task_kwargs=cell.record()
        )
        for cell in cells
    ]
    if jobs:
        _manager(connection).batch_defer_jobs(jobs)


def retry(connection: Connection, job: int) -> None:
    """Put a running or failed job back into the queue, due at once even if clocks differ."""
    _manager(connection).retry_job_by_id(job, retry_at=datetime.fromtimestamp(0, UTC))


def heartbeat(connection: Connection, node: str, holder: str, *, take_over: bool) -> int:
    """Record that a node is alive; return its worker's number in the queue.

    Args:
        connection: Connection inside a transaction.
        node: Name of the node.
        holder: Identity of the node's folder; two machines with one name would take each other's jobs.
        take_over: Accept a new identity for the name.

    Raises:
        UsageError: The name has another identity.
    """
    row = connection.execute("SELECT worker, holder FROM node WHERE name = %s FOR UPDATE", [node]).fetchone()
    if row and row["holder"] != holder and not take_over:
        raise UsageError(
            f"node {node} is worked for from another machine, or with another --state",
            remedy="give this machine a name of its own, or --take-over where the other one is gone",
        )
    manager = _manager(connection)
    worker: int = row["worker"] if row else _done(manager.register_worker())
    connection.execute(
        "INSERT INTO node (name, worker, holder) VALUES (%s, %s, %s) "
        "ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder, seen = now()",
        [node, worker, holder],
    )
    _done(manager.update_heartbeat(worker))
    return worker


def held_jobs(connection: Connection, node: str) -> list[int]:
    """Jobs that are in the hands of a node."""
    return [_number(job) for job in _manager(connection).list_jobs(queue=node, status="doing")]


def fetch(connection: Connection, node: str, worker: int) -> NodeJob | None:
    """Take a node's next job; None if the queue is empty."""
    job = _done(_manager(connection).fetch_job(queues=[node], worker_id=worker))
    if job is None:
        return None
    number = _number(job)
    try:
        cell = Cell.of(job.task_kwargs)
    except StoreError as error:
        return NodeJob(number, node, job.attempts, reason=str(error))
    row = connection.execute("SELECT max(attempt) AS last FROM outcome WHERE job = %s", [number]).fetchone()
    last = None if row is None else row["last"]
    # Its end and its being queued again count as one attempt each.
    deaths = job.attempts if last is None else max(0, job.attempts - last - 2)
    return NodeJob(number, node, job.attempts, cell, deaths)


def finish(connection: Connection, ended: EndedJob) -> None:
    """End a job, and note how; one that had ended before stays as it is.

    Args:
        connection: Inside a transaction.
        ended: A job in our hands, and its end.
    """
    from procrastinate.jobs import Status

    job, measured = ended.job, ended.measured
    manager = _manager(connection)
    status = manager.get_job_status(job.id)
    if status not in {Status.TODO, Status.DOING}:
        return  # the answer to an earlier attempt was lost on its way
    connection.execute(
        "INSERT INTO outcome (job, attempt, node, complete, reason, began, waited_s, measured_s, counts) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
        [
            *(job.id, job.attempts, job.node, measured.complete, measured.reason, ended.began, ended.waited_s),
            *(measured.wall_s, json.dumps(measured.counts)),
        ],
    )
    end = Status.SUCCEEDED if measured.complete else Status.FAILED
    _done(manager.finish_job_by_id_async(job.id, status=end, delete_job=False))


def give_back(connection: Connection, job: NodeJob) -> None:
    """Put a job back into its queue, if it is still in our hands; it does not count as an attempt."""
    from procrastinate.jobs import Status

    if _manager(connection).get_job_status(job.id) is Status.DOING:
        retry(connection, job.id)
        connection.execute("UPDATE procrastinate_jobs SET attempts = %s WHERE id = %s", [job.attempts, job.id])


def _lock(node: str) -> str:
    return f"node:{node}"


def _number(job: QueuedJob) -> int:
    if job.id is None:
        raise StoreError("the queue gave a job without a number")
    return job.id


def _done(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine of the job manager; with our connector none of them waits."""
    return asyncio.run(coroutine)


def _manager(connection: Connection) -> JobManager:
    """Procrastinate's job manager over one connection of ours, in its transaction."""
    from procrastinate import SyncPsycopgConnector
    from procrastinate.exceptions import NoResult
    from procrastinate.manager import JobManager

    class OneConnection(SyncPsycopgConnector):
        def execute_query(self, query: LiteralString, **arguments: Any) -> None:
            connection.execute(query, self._wrap_json(arguments))

        def execute_query_one(self, query: LiteralString, **arguments: Any) -> dict[str, Any]:
            row = connection.execute(query, self._wrap_json(arguments)).fetchone()
            if row is None:
                raise NoResult
            return row

        def execute_query_all(self, query: LiteralString, **arguments: Any) -> list[dict[str, Any]]:
            return connection.execute(query, self._wrap_json(arguments)).fetchall()

        async def execute_query_async(self, query: LiteralString, **arguments: Any) -> None:
            self.execute_query(query, **arguments)

        async def execute_query_one_async(self, query: LiteralString, **arguments: Any) -> dict[str, Any]:
            return self.execute_query_one(query, **arguments)

        async def execute_query_all_async(self, query: LiteralString, **arguments: Any) -> list[dict[str, Any]]:
            return self.execute_query_all(query, **arguments)

    return JobManager(OneConnection())
