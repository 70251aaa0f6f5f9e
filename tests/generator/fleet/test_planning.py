"""Planning: what is queued, what is left alone, and what a planner that is killed leaves."""

from __future__ import annotations

import multiprocessing
import signal
import time

import pytest
from dlbricks.db import Store
from dlbricks.errors import DatabaseUnreachable, ForeignDatabase, NewerDatabase, UsageError
from dlbricks.generator.fleet.planning import plan
from dlbricks.generator.fleet.queue import fetch, finish, heard
from dlbricks.generator.fleet.server import SCHEMA, connected, transaction
from dlbricks.generator.fleet.status import fleet_status

_ENDED = {"began": "2026-11-23T00:00:00Z", "waited_s": 0.0, "measured_s": 1.0, "counts": None}


def end(url: str, node: str, *, complete: bool) -> None:
    """A node takes its next job, and ends it."""
    with transaction(url) as connection:
        job = fetch(connection, node, heard(connection, node, "here", take_over=False))
        assert job is not None
        finish(connection, job, {**_ENDED, "complete": complete, "reason": "" if complete else "it rained"})


def test_planning_twice_adds_nothing(campaign, url, rows):
    asked = campaign(nodes=["alpha", "beta"], threads=[1, 2])

    first, again = plan(asked, url), plan(asked, url)

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
    end(url, "alpha", complete=True)
    end(url, "alpha", complete=False)
    with transaction(url) as connection:
        assert fetch(connection, "alpha", heard(connection, "alpha", "here", take_over=False)) is not None

    report = plan(asked, url)

    assert report.counts == {"complete": 1, "again": 1, "running": 1, "waiting": 1}
    assert rows("SELECT count(*) FROM procrastinate_jobs") == [{"count": 4}]
    assert plan(asked, url).counts == {"complete": 1, "running": 1, "waiting": 2}


def test_a_campaign_that_grew_adds_what_is_new(campaign, url):
    plan(campaign(), url)

    assert plan(campaign(nodes=["alpha", "beta"]), url).counts == {"waiting": 1, "new": 1}


def test_a_dry_run_queues_nothing(campaign, url):
    report = plan(campaign(), url, dry_run=True)

    assert (report.counts, report.blobs, report.dry_run) == ({"new": 1}, 0, True)
    assert fleet_status(url).campaigns == ()


def _plan(asked, url):
    plan(asked, url)


def test_planners_at_the_same_time_add_each_cell_once(campaign, url, rows):
    asked = campaign(nodes=["alpha", "beta"], threads=list(range(1, 21)))
    spawn = multiprocessing.get_context("fork")
    planners = [spawn.Process(target=_plan, args=(asked, url)) for _ in range(4)]
    for planner in planners:
        planner.start()
    for planner in planners:
        planner.join()

    assert [planner.exitcode for planner in planners] == [0] * 4
    assert rows("SELECT count(*), count(DISTINCT queueing_lock) AS d FROM procrastinate_jobs") == [
        {"count": 40, "d": 40}
    ]


def test_a_planner_that_is_killed_leaves_all_or_nothing(campaign, url, rows):
    plan(campaign(nodes=["other"]), url)
    asked = campaign(threads=list(range(1, 101)))
    spawn = multiprocessing.get_context("fork")
    counts = set()
    for attempt in range(6):
        planner = spawn.Process(target=_plan, args=(asked, url))
        planner.start()
        time.sleep(0.02 * attempt)
        planner.kill()
        planner.join()
        counts |= {row["count"] for row in rows("SELECT count(*) FROM procrastinate_jobs WHERE queue_name = 'alpha'")}
        assert planner.exitcode in {0, -signal.SIGKILL}

    assert counts <= {0, 100}
    plan(asked, url)
    assert rows("SELECT count(*) FROM procrastinate_jobs WHERE queue_name = 'alpha'") == [{"count": 100}]


def test_a_node_has_one_job_at_a_time_whoever_asks(campaign, url):
    plan(campaign(threads=[1, 2]), url)
    with transaction(url) as connection:
        number = heard(connection, "alpha", "here", take_over=False)
        assert fetch(connection, "alpha", number) is not None

    with transaction(url) as connection:
        assert fetch(connection, "alpha", number) is None


def test_ending_a_job_again_changes_nothing(campaign, url, rows):
    plan(campaign(), url)
    with transaction(url) as connection:
        job = fetch(connection, "alpha", heard(connection, "alpha", "here", take_over=False))
    for complete in (True, False):
        with transaction(url) as connection:
            finish(connection, job, {**_ENDED, "complete": complete, "reason": ""})

    assert rows("SELECT status::text, attempts FROM procrastinate_jobs") == [{"status": "succeeded", "attempts": 1}]
    assert rows("SELECT complete FROM outcome") == [{"complete": True}]


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
