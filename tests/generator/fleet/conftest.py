"""A fleet on a real PostgreSQL server: a campaign of a backend that only sleeps, and workers as processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from dlbricks.generator.fleet.campaign import Campaign, load_campaign
from dlbricks.generator.fleet.queue import EndedJob, NodeJob, fetch, finish, heartbeat
from dlbricks.generator.fleet.runner import Measured
from dlbricks.generator.fleet.server import transaction

_SLEEPING = Path(__file__).parents[1] / "sleeping_backend.py"

_CAMPAIGN = """
campaign = "november"
nodes = {nodes}

[[stack]]
name = "sleepy"
backend = "sleeping"
options = {{ sleep_us = {sleep_us} }}

[[suite]]
name = "small"
path = "{suite}"
{models_line}

[conditions]
cache = "hot"
threads = {threads}

[pace]
visits = {visits}
processes = 1
sessions = {sessions}
"""

WriteCampaign = Callable[..., Campaign]


@pytest.fixture(scope="session", autouse=True)
def extra() -> None:
    """Skips where the extra is not installed."""
    pytest.importorskip("psycopg")
    pytest.importorskip("procrastinate")


@pytest.fixture
def sleeping(install_backend) -> None:
    """The backend ``sleeping``, for this process and those that it starts."""
    install_backend("sleeping", "SleepingBackend", _SLEEPING.read_text())


@pytest.fixture
def campaign(sleeping, small_suite, tmp_path) -> WriteCampaign:
    """Write and read a campaign of the small suite: ten bricks in each cell."""

    def write(*, nodes=("alpha",), threads=(1,), sleep_us=100, visits=10, sessions=1, models=(), more="") -> Campaign:
        text = _CAMPAIGN.format(
            nodes=list(nodes), threads=list(threads), sleep_us=sleep_us, suite=small_suite.path, visits=visits,
            sessions=sessions, models_line=f"models = {list(models)}" if models else "",
        )  # fmt: skip
        file = tmp_path / "campaign.toml"
        file.write_text(text + more)
        return load_campaign(file)

    return write


@dataclass
class Workers:
    """Workers of nodes, each a process with a folder of its own."""

    url: str
    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def state(self, node: str) -> Path:
        return self.folder / node

    def start(self, node: str = "alpha", *options: str, **environment: str) -> subprocess.Popen[str]:
        """Start one that takes any machine for a quiet one."""
        state = self.state(node)
        state.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "dlbricks", "fleet", "work", "--node", node, "--state", str(state)]
        process = subprocess.Popen(
            [*command, "--busy", "100%", *(options or ("--drain",))],
            env={**os.environ, "DLBRICKS_DB": self.url, "DLBRICKS_LOCK_DIR": str(state), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def runner(self, worker: subprocess.Popen[str]) -> psutil.Process:
        """The process that measures for a worker; waits for it, past helpers that imports start for a moment."""
        children = psutil.Process(worker.pid).children
        return until(lambda: next((child for child in children() if "run" in child.cmdline()), None))

    def drained(self, *arguments: str, code: int = 0, timeout_s: float = 300, **environment: str) -> str:
        """What one says on both streams until it ends, with a code."""
        worker = self.start(*arguments, **environment)
        out, err = worker.communicate(timeout=timeout_s)
        assert worker.returncode == code, err
        return out + err


def until(found: Callable[[], Any], seconds: float = 400) -> Any:
    """What a function finds, as soon as it finds something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if value := found():
                return value
        except psutil.NoSuchProcess:
            pass
        time.sleep(0.01)
    raise AssertionError("nothing was found in time")


@pytest.fixture
def workers(url, tmp_path) -> Iterator[Workers]:
    """Starts workers on an empty database, and ends those that are left."""
    made = Workers(url, tmp_path / "nodes")
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


@pytest.fixture
def states(rows) -> Callable[[], list[str]]:
    """States of all jobs, in the order in which they were planned."""
    return lambda: [row["s"] for row in rows("SELECT status::text AS s FROM procrastinate_jobs ORDER BY id")]


def took(connection, node: str = "alpha") -> NodeJob:
    """A node takes its next job."""
    job = fetch(connection, node, heartbeat(connection, node, "here", take_over=False))
    assert job is not None
    assert job.cell is not None
    return job


def end(url: str, node: str = "alpha", *, took_s: float = 1.0, reason: str = "", counts=None) -> None:
    """A node takes its next job, and ends it."""
    measured = Measured(not reason, reason, counts, took_s)
    with transaction(url) as connection:
        finish(connection, EndedJob(took(connection, node), measured, datetime(2026, 11, 23, tzinfo=UTC), 0.0))


@pytest.fixture
def rows(url) -> Callable[[str], list[dict[str, Any]]]:
    """Ask the fleet's tables."""

    def ask(query: str) -> list[dict[str, Any]]:
        with transaction(url) as connection:
            return connection.execute(query.encode()).fetchall()

    return ask
