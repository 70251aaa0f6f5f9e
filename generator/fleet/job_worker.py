"""A node's worker: one job at a time, from the queue to results on the server.

Between fetching a job and pushing its results the worker has no connection and sleeps in the kernel until the runner
ends: the queue is idle while a sample is timed. Results stay in the cell's SQLite file until the server has them and
the job is ended. After a kill the next attempt resumes from this file.
"""

from __future__ import annotations

import fcntl
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from ... import errors
from ...db.merging import merge
from ...db.store import Store
from .blob import fetched_lock, fetched_suite, keep_lock, keep_suite
from .cell import NAME, NAME_RULE, Cell
from .queue import EndedJob, NodeJob, fetch, finish, give_back, heartbeat, held_jobs, retry, states
from .runner import Measured, Stopping, measure_cell, stopping_on_signals, wait_until_quiet
from .server import Connection, bounded, transaction

_FIRST_S, _LONGEST_S = 1.0, 15.0
"""Pauses between two attempts to reach the server: doubled from the one to the other."""

_MOST = 50
"""Maximum number of attempts that never ended; then the job fails, since it may kill the worker."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A machine that works for a fleet.

    Attributes:
        name: The owner's name for the node.
        url: URL of the PostgreSQL database.
        state: The node's folder on a local disk, which outlives the worker.
        busy: Share of the processors that others may use when measuring begins.
        patience_s: Maximum wait in seconds for a quiet machine, and for another measuring process.
        poll_s: Seconds between two looks at an empty queue.
        take_over: Take the name over from another machine.
    """

    name: str
    url: str
    state: Path
    busy: float = 0.05
    patience_s: float = 1800.0
    poll_s: float = 10.0
    take_over: bool = False


def work(
    node: FleetNode, *, most: int | None = None, drain: bool = False, note: Callable[[str], None] = lambda _text: None
) -> list[EndedJob]:
    """Work for a fleet until SIGTERM or SIGINT, or until a limit.

    Args:
        node: The node.
        most: End after so many jobs, or when the queue is empty.
        drain: End when the queue is empty.
        note: Called with messages between jobs.

    Returns:
        The finished jobs.

    Raises:
        UsageError: The node's name is invalid or belongs to another machine; the database is not PostgreSQL; the extra
            is not installed.
        MachineBusy: Another worker uses the same folder.
        StoreError: The server refuses, or cannot be reached at first; after its first answer the worker waits for it.
    """
    if not NAME.fullmatch(node.name):
        raise errors.UsageError(f"{node.name!r} cannot be the name of a node", remedy=f"use {NAME_RULE}")
    done: list[EndedJob] = []
    with _alone(node.state), stopping_on_signals() as stopping:
        worker = _NodeWorker(node, stopping, note)
        while not stopping.asked and (most is None or len(done) < most):
            job = worker.claim()
            if job is not None:
                ended = worker.perform(job)
                done += [ended] if ended is not None else []
            elif most is not None or drain:
                break
            else:
                stopping.wait(node.poll_s)
    return done


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise errors.MachineBusy(
                f"another worker works in {state}", remedy="one is enough; or give --state"
            ) from error
        yield


class _NodeWorker:
    def __init__(self, node: FleetNode, stopping: Stopping, note: Callable[[str], None]) -> None:
        self._node, self._stopping, self._note = node, stopping, note
        self._cells = node.state / "cells"
        self._cells.mkdir(exist_ok=True)
        self._holder = _identity(node.state / "holder")
        self._met = False

    def claim(self) -> NodeJob | None:
        """Requeue what an earlier worker left, and take the next job."""

        def take() -> NodeJob | None:
            with transaction(self._node.url) as connection:
                number = heartbeat(connection, self._node.name, self._holder, take_over=self._node.take_over)
                for job_number in held_jobs(connection, self._node.name):
                    retry(connection, job_number)
                    self._note(f"put back, since no worker has it any more: job {job_number}")
                self._tidy(connection)
                return fetch(connection, self._node.name, number)

        return self._patiently(take)

    def perform(self, job: NodeJob) -> EndedJob | None:
        """Measure a cell, push the results, end the job; None if the job was put back."""
        began = _now()
        if (cell := job.cell) is None:
            return self._end(job, Measured.failed(job.reason), 0.0, began)
        if job.deaths >= _MOST:
            reason = f"was begun {job.deaths} times and never ended"
            return self._end(job, Measured.failed(reason), 0.0, began)
        self._note(f"measuring {cell.label}")
        waited_s = 0.0
        try:
            suite, lock_hash = self._suite(cell.suite.hash), cell.stack.lock_hash
            python = sys.executable if lock_hash is None else self._python(lock_hash)
            if suite is None or python is None:
                return None  # ended while it waited for the server: the next start puts the job back
            waited_s, disturbed = wait_until_quiet(self._node.busy, self._node.patience_s, self._stopping)
            measured = Measured.failed(disturbed)
            if not disturbed and not self._stopping.asked:
                words = cell.command(suite, self._local(cell))
                patience_s = self._node.patience_s
                log = self._local(cell).with_suffix(".log")
                measured = measure_cell(python, words, log, patience_s=patience_s, stopping=self._stopping)
                if measured.complete and (missing := _missing(self._local(cell), measured.failures)):
                    measured = replace(measured, complete=False, reason=missing)
        except (errors.BackendUnavailable, errors.SuiteError, errors.UsageError) as error:
            measured = Measured.failed(str(error))
        if self._stopping.asked and not measured.complete:
            self._put_back(job)
            return None
        return self._end(job, measured, waited_s, began)

    def _end(self, job: NodeJob, measured: Measured, waited_s: float, began: datetime) -> EndedJob | None:
        """Push and finish until the server has acknowledged both; only then delete the local files."""
        cell, from_s = job.cell, time.monotonic()
        lost = ""

        def acknowledged() -> EndedJob:
            nonlocal lost
            lost = self._push(self._local(cell)) if cell is not None else ""
            reason = "; ".join(filter(None, [measured.reason, lost]))
            arrived = replace(measured, complete=measured.complete and not lost, reason=reason)
            ended = EndedJob(job, arrived, began, waited_s)
            with transaction(self._node.url) as connection:
                finish(connection, ended)
            return ended

        ended = self._patiently(acknowledged)
        if ended is None:
            return None  # ended before the server answered: the next start goes on from the file
        if cell is not None and lost:
            # Rename a file that cannot be read, so that the next attempt does not find it.
            aside = self._node.state / "unreadable"
            aside.mkdir(exist_ok=True)
            for path in self._cells.glob(f"{cell.key}.db*"):
                path.replace(aside / path.name)
        elif cell is not None and ended.complete:
            self._forget(cell.key)
        reason = ended.measured.reason
        self._note(f"{'done' if ended.complete else 'failed'}: {job.label}{f': {reason}' if reason else ''}")
        return replace(ended, pushed_s=time.monotonic() - from_s)

    def _push(self, local: Path) -> str:
        """Push the results to the server; return the reason if the file cannot be read and its results are lost."""
        if not local.exists():
            return ""
        try:
            with Store.open(bounded(self._node.url)) as store:
                merge(store, local, node=self._node.name)
        except (errors.DatabaseUnreachable, errors.DatabaseLocked):
            raise
        except errors.StoreError:
            if not (lost := _unreadable(local)):
                raise  # it was the server's
            return f"what was measured cannot be read: {lost}"
        return ""

    def _put_back(self, job: NodeJob) -> None:
        """Put a job back if the server answers; otherwise the next start does it."""
        try:
            with transaction(self._node.url) as connection:
                give_back(connection, job)
        except errors.DatabaseUnreachable as error:
            self._note(f"not put back, the next start does that: {error}")
        else:
            self._note(f"put back: {job.label}")

    def _patiently(self, ask: Callable[[], T]) -> T | None:
        """Ask until the server answers; None if the worker has to end first.

        Raises:
            DatabaseUnreachable: The server never answered this worker; address or password may be wrong.
        """
        pause_s = _FIRST_S
        while True:
            try:
                answer = ask()
            except (errors.DatabaseUnreachable, errors.DatabaseLocked) as error:
                if not self._met and isinstance(error, errors.DatabaseUnreachable):
                    raise
                self._note(f"{error}; trying again in {pause_s:.0f} s")
            else:
                self._met = True
                return answer
            self._stopping.wait(pause_s)
            if self._stopping.asked:
                return None
            pause_s = min(2 * pause_s, _LONGEST_S)

    def _suite(self, digest: str) -> Path | None:
        folder = self._node.state / "suites"
        here = fetched_suite(folder, digest)
        if here is not None:
            return here
        data = self._patiently(lambda: self._blob(digest))
        return None if data is None else keep_suite(folder, digest, data)

    def _python(self, digest: str) -> str | None:
        """Return the interpreter of a lock file's environment."""
        folder = self._node.state / "locks"
        lock = fetched_lock(folder, digest)
        if lock is None:
            data = self._patiently(lambda: self._blob(digest))
            if data is None:
                return None
            lock = keep_lock(folder, digest, data)
        from ..backends.environments import locked_environment  # half of what a worker would load, and few have locks

        return str(locked_environment(lock))

    def _blob(self, digest: str) -> bytes:
        with transaction(self._node.url) as connection:
            row = connection.execute("SELECT content FROM blob WHERE hash = %s", [digest]).fetchone()
        if row is None:
            raise errors.SuiteError(f"the fleet has no blob {digest[:12]}", remedy="plan the campaign again")
        return bytes(row["content"])

    def _local(self, cell: Cell) -> Path:
        return self._cells / f"{cell.key}.db"

    def _tidy(self, connection: Connection) -> None:
        """Remove the files of cells with ended jobs, left by a killed worker."""
        here = {path.stem for path in self._cells.glob("*.db")}
        for key, (_, status) in states(connection, here).items():
            if status == "succeeded":
                self._forget(key)

    def _forget(self, key: str) -> None:
        for path in self._cells.glob(f"{key}.*"):
            path.unlink(missing_ok=True)


def _identity(file: Path) -> str:
    """Return the identity of a node's folder; create it if missing."""
    if not file.exists():
        aside = file.with_suffix(".new")
        aside.write_text(str(uuid.uuid4()))
        aside.rename(file)
    return file.read_text()


def _missing(local: Path, failures: Sequence[tuple[str, str]]) -> str:
    """Return models with missing or broken files, which were not tried; no failure is stored for them."""
    if not failures:
        return ""
    try:
        with Store.open(local, read_only=True) as store:
            stored = {text for failure in store.failures() for text in (failure.key, failure.reason)}
    except errors.StoreError:
        return ""  # whoever pushes it says so
    missing = [f"{name}: {reason}" for name, reason in failures if name not in stored and reason not in stored]
    return f"{len(missing)} of its bricks and models cannot be read, first {missing[0]}" if missing else ""


def _unreadable(local: Path) -> str:
    """Return why a cell's file cannot be read completely; empty if it can."""
    try:
        with Store.open("sqlite://") as copy:
            merge(copy, local)
    except errors.StoreError as error:
        return error.message
    return ""


def _now() -> datetime:
    return datetime.now(UTC)
