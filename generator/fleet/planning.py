"""Planning: put the cells of a campaign that are not waiting, running or complete into the queues."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ...db.store import Store
from .blob import pack_lock, pack_suite
from .campaign import Campaign
from .cell import Cell
from .queue import defer, queue_tables, retry, states
from .server import Connection, bounded, connected, make_tables

_NEW, _AGAIN = "new", "again"


@dataclass(frozen=True, slots=True)
class QueueReport:
    """The result of planning.

    Attributes:
        campaign: Name of the campaign.
        cells: State of every cell: ``new``, ``again`` (failed before and queued again), ``waiting``, ``running`` or
            ``complete``.
        blobs: Suites and lock files that the server lacked.
        dry_run: True if nothing was changed.
    """

    campaign: str
    cells: tuple[tuple[Cell, str], ...]
    blobs: int
    dry_run: bool

    @property
    def counts(self) -> dict[str, int]:
        """Number of cells by state."""
        return dict(Counter(what for _, what in self.cells))


def plan(campaign: Campaign, url: str, *, dry_run: bool = False) -> QueueReport:
    """Put a campaign's cells into the queues of its nodes; planning twice adds nothing.

    Planning is one transaction that excludes other planners: a planner that is killed has added nothing.

    Args:
        campaign: The campaign.
        url: A PostgreSQL database; missing tables are created.
        dry_run: Report only; missing tables are still created.

    Raises:
        UsageError: The database is not PostgreSQL, or the extra ``fleet`` is not installed.
        SuiteError: A suite differs from its manifest.
        StoreError: The database refuses or cannot be reached.
    """
    with connected(url) as connection:
        Store.open(bounded(url)).close()  # nodes may add to the tables of measurements, and not make them
        make_tables(connection, queue_tables())
        cells = {cell.key: cell for cell in campaign.cells}
        job_states = states(connection, cells)
        cell_states = {key: _what(job_states[key][1]) if key in job_states else _NEW for key in cells}
        blobs = 0
        if not dry_run:
            queued_cells = [cell for key, cell in cells.items() if cell_states[key] in {_NEW, _AGAIN}]
            blobs = _send(connection, campaign, queued_cells)
            defer(connection, [cell for key, cell in cells.items() if cell_states[key] == _NEW])
            for key, what in cell_states.items():
                if what == _AGAIN:
                    retry(connection, job_states[key][0])
    return QueueReport(campaign.name, tuple((cell, cell_states[key]) for key, cell in cells.items()), blobs, dry_run)


def _what(status: str) -> str:
    return {"todo": "waiting", "doing": "running", "succeeded": "complete", "failed": _AGAIN}.get(status, _NEW)


def _send(connection: Connection, campaign: Campaign, cells: list[Cell]) -> int:
    """Store the suites and lock files that cells need and that are not there; how many they were."""
    hashes = {cell.suite.hash for cell in cells} | {cell.stack.lock_hash for cell in cells if cell.stack.lock_hash}
    rows = connection.execute("SELECT hash FROM blob WHERE hash = ANY(%s)", [list(hashes)])
    missing = hashes - {row["hash"] for row in rows}
    for digest in sorted(missing):
        if digest in campaign.suites:
            kind, data = "suite", pack_suite(campaign.suites[digest])
        else:
            kind, data = "lock", pack_lock(campaign.locks[digest], digest)
        connection.execute(
            "INSERT INTO blob (hash, kind, content) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", [digest, kind, data]
        )
    return len(missing)
