"""Planning: what is queued, what is left alone, and what a planner that is killed leaves."""

from __future__ import annotations

import multiprocessing
from datetime import UTC, datetime

import pytest
from dlbricks.db import Store
from dlbricks.errors import DatabaseUnreachable, ForeignDatabase, NewerDatabase, UsageError
from dlbricks.generator.fleet.planning import plan
from dlbricks.generator.fleet.queue import EndedJob, fetch, finish, heartbeat
from dlbricks.generator.fleet.runner import Measured
from dlbricks.generator.fleet.server import SCHEMA, connected, transaction
from dlbricks.generator.fleet.status import fleet_status

from .conftest import end, took


def test_planning_twice_adds_nothing(campaign, url, rows):
    dry = plan(campaign(), url, dry_run=True)
    assert (dry.counts, dry.blobs, dry.dry_run) == ({"new": 1}, 0, True)
    assert fleet_status(url).campaigns == ()
    asked = campaign(nodes=["alpha", "beta"], threads=[1, 2])

    first, again = plan(asked, url), plan(asked, url)
    grown = plan(campaign(nodes=["alpha", "beta"], threads=[1, 2, 3]), url, dry_run=True)

    assert grown.counts == {"waiting": 4, "new": 2}

    assert (first.counts, first.blobs) == ({"new": 4}, 1)
    assert (again.counts, again.blobs) == ({"waiting": 4}, 0)
    assert rows("SELECT count(*) FROM procrastinate_jobs") == [{"count": 4}]
    assert rows("SELECT queue_name AS q, count(*) AS n FROM procrastinate_jobs GROUP BY 1 ORDER BY 1") == [
        {"q": "alpha", "n": 2},
        {"q": "beta", "n": 2},
    ]


def test_what_is_running_or_complete_is_left_alone_and_what_failed_waits_again(campaign, url, rows):
    asked = campaign(threads=[1, 2, 3, 4])
    plan(asked, url)
    end(url)
    end(url, reason="it rained")
    with transaction(url) as connection:
        number = heartbeat(connection, "alpha", "here", take_over=False)
        assert fetch(connection, "alpha", number) is not None
    with transaction(url) as connection:
        assert fetch(connection, "alpha", number) is None  # a node has one job at a time

    report = plan(asked, url)

    assert report.counts == {"complete": 1, "again": 1, "running": 1, "waiting": 1}
    assert rows("SELECT count(*) FROM procrastinate_jobs") == [{"count": 4}]
    assert plan(asked, url).counts == {"complete": 1, "running": 1, "waiting": 2}


def _tables(url: str) -> list[str]:
    with connected(url) as connection:
        found = connection.execute("SELECT tablename AS t FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        return [row["t"] for row in found]


def test_the_tables_of_measurements_are_those_of_whoever_has_no_fleet(campaign, url, server):
    """A schema of its own: nothing is added to the other, and the database is opened as before."""
    with server.databases() as new:
        plain = new()
        Store.open(plain).close()
        plan(campaign(), url)
        seen = [_tables(one) for one in (plain, url)]

    assert seen[0] == seen[1] != []
    Store.open(url).close()


def test_what_is_no_fleet_says_so(campaign, url, tmp_path):
    with pytest.raises(UsageError, match=r"a fleet meets in a PostgreSQL database, and 'some\.db' is none"):
        plan(campaign(), "some.db")
    with pytest.raises(ForeignDatabase, match="holds no fleet; begin one: dlbricks fleet plan"):
        fleet_status(url)
    with pytest.raises(DatabaseUnreachable, match="cannot be reached") as error:
        fleet_status(f"postgresql+psycopg://ann:secret@/x?host={tmp_path}")
    assert "secret" not in str(error.value)
    plan(campaign(), url)
    with transaction(url) as connection:
        connection.execute(f"UPDATE {SCHEMA}.fleet SET version = 99".encode())
    for ask in (lambda: fleet_status(url), lambda: plan(campaign(), url)):
        with pytest.raises(NewerDatabase, match="are of version 99"):
            ask()


def test_planners_at_the_same_time_add_each_cell_once(campaign, url, rows):
    asked = campaign(threads=list(range(1, 41)))
    plan(campaign(nodes=["other"]), url)
    fork = multiprocessing.get_context("fork")

    def counted():
        return rows("SELECT count(*) AS n FROM procrastinate_jobs WHERE queue_name = 'alpha'")[0]["n"]

    planners = [fork.Process(target=plan, args=(asked, url)) for _ in range(4)]
    for planner in planners:
        planner.start()
    for planner in planners:
        planner.join()

    assert [planner.exitcode for planner in planners] == [0] * 4
    assert counted() == 40
    assert rows("SELECT count(DISTINCT queueing_lock) AS n FROM procrastinate_jobs") == [{"n": 41}]


def test_ending_a_job_again_changes_nothing(campaign, url, rows):
    plan(campaign(), url)
    with transaction(url) as connection:
        job = took(connection)
    for complete in (True, False):
        with transaction(url) as connection:
            measured = Measured(complete, "", None, 1.0)
            finish(connection, EndedJob(job, measured, datetime(2026, 11, 23, tzinfo=UTC), 0.0))

    assert rows("SELECT status::text, attempts FROM procrastinate_jobs") == [{"status": "succeeded", "attempts": 1}]
    assert rows("SELECT complete FROM outcome") == [{"complete": True}]
