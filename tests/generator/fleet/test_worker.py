"""A node's worker: what it measures arrives once, whatever is killed, lost or in the way."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from dlbricks.db import Store, Subject
from dlbricks.generator.fleet.planning import plan
from dlbricks.generator.fleet.queue import give_back, held_jobs, retry
from dlbricks.generator.fleet.runner import Measured, measure_cell, stopping_on_signals
from dlbricks.generator.fleet.server import transaction
from servers import serving

from .conftest import end, took, until

BRICKS = 10


TRIED_OFTEN = "UPDATE procrastinate_jobs SET attempts = 50"
"""As of a job that always kills its worker."""


def measured(url: str) -> dict[str, list[str]]:
    """Run by run, the keys of bricks that the server has measurements of."""
    with Store.open(url, read_only=True) as store:
        found = store.measurements(subject=Subject.BRICK, latest=False)
    return {run: sorted(one.key for one in found if one.run == run) for run in {one.run for one in found}}


def local_blocks(state: Path) -> set[tuple[str, int, int]]:
    """Blocks of samples that are committed in a node's file."""
    blocks: set[tuple[str, int, int]] = set()
    for file in (state / "cells").glob("*.db"):
        try:
            with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
                blocks |= set(connection.execute("SELECT measurement_id, process, round FROM block"))
            connection.close()
        except sqlite3.OperationalError:
            pass  # the schema is not there yet
    return blocks


def test_jobs_are_measured_pushed_and_ended(campaign, url, workers, rows, states, small_suite):
    plan(campaign(), url)

    assert "1 job: 1 complete, 0 failed" in workers.drained()

    assert states() == ["succeeded"]
    assert list(measured(url).values()) == [sorted(small_suite.keys)]
    with Store.open(url, read_only=True) as store:
        runs = store.runs()
        assert {(run.node, run.campaign) for run in runs} == {("alpha", "november")}
        assert all(run.finished for run in runs)
    assert [row["counts"]["measured"] for row in rows("SELECT counts FROM outcome")] == [BRICKS]
    assert list((workers.state("alpha") / "cells").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("who", ["worker", "runner"])
def test_a_kill_loses_and_doubles_nothing(campaign, url, workers, rows, states, small_suite, who):
    """A worker of bricks that is killed costs a session: ``measurement/test_kill.py``."""
    plan(campaign(sleep_us=5000, visits=16, sessions=4), url)
    state = workers.state("alpha")
    worker = workers.start()
    until(lambda: local_blocks(state))
    victim = psutil.Process(worker.pid) if who == "worker" else workers.runner(worker)
    below = victim.children(recursive=True)
    before = local_blocks(state)

    victim.kill()

    _, alive = psutil.wait_procs(below, timeout=30)
    assert alive == []  # nobody goes on measuring for a worker that is gone
    if who == "worker":
        worker.wait()
        assert local_blocks(state) >= before
        workers.drained()
    else:
        worker.communicate(timeout=300)
    assert states() == ["succeeded"]
    arrived = [key for keys in measured(url).values() for key in keys]
    assert sorted(arrived) == sorted(small_suite.keys)
    on_server = {tuple(row.values()) for row in rows("SELECT measurement_id, process, round FROM public.block")}
    assert on_server >= before


@pytest.mark.slow
def test_sigterm_puts_the_job_back_and_keeps_what_was_committed(campaign, url, workers, states):
    plan(campaign(sleep_us=5000, visits=16, sessions=4), url)
    state = workers.state("alpha")
    worker = workers.start("alpha", "--poll", "1s")
    until(lambda: local_blocks(state))
    before = local_blocks(state)
    children = psutil.Process(worker.pid).children(recursive=True)

    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=60)

    assert worker.returncode == 0, err
    assert "put back: november" in err
    assert states() == ["todo"]
    assert local_blocks(state) >= before
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    idle = workers.start("beta", "--poll", "1h")  # an idle worker ends at once
    until((workers.state("beta") / "holder").exists)
    time.sleep(1)
    idle.send_signal(signal.SIGTERM)
    assert idle.wait(timeout=20) == 0


@pytest.mark.slow
def test_nothing_of_the_queue_runs_while_a_cell_is_measured(campaign, url, workers, rows):
    """From the runner's start to its end the worker is not scheduled once, and has no connection."""
    plan(campaign(sleep_us=20_000, visits=16, sessions=4), url)
    worker = workers.start()
    runner = workers.runner(worker)
    state = workers.state("alpha")
    until(lambda: local_blocks(state) or not runner.is_running())
    process = psutil.Process(worker.pid)
    before, connections = process.num_ctx_switches(), process.net_connections("all")
    threads = process.num_threads()
    time.sleep(0.5)
    after = process.num_ctx_switches()

    assert runner.is_running()
    assert (after.voluntary, after.involuntary) == (before.voluntary, before.involuntary)
    assert connections == []
    assert threads == 1
    assert rows("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlbricks fleet'")[0]["count"] == 1
    worker.communicate(timeout=300)


@pytest.mark.parametrize(
    ("said", "complete", "counts"),
    [('{"bricks": 3, "results": []}', True, 3), ("", False, None), ("[]", False, None), ('{"bricks": ', False, None)],
)
def test_an_answer_of_another_version_is_taken_as_it_is(tmp_path, said, complete, counts):
    """The runner of a locked environment may know fewer counts, or say nothing."""
    package = tmp_path / "dlbricks"
    package.mkdir()
    (package / "__main__.py").write_text(f"print({said!r})")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    with stopping_on_signals() as stopping:
        done = measure_cell(str(python), [], tmp_path / "cell.log", patience_s=1.0, stopping=stopping)

    assert isinstance(done, Measured)
    assert done.complete is complete
    assert (done.counts or {}).get("bricks") == counts
    assert complete or "without an answer" in done.reason
    assert (done.counts or {}).get("models") is None


@pytest.mark.slow
def test_what_was_measured_while_the_server_was_down_arrives(campaign, workers):
    with serving() as server:
        server.execute("CREATE DATABASE fleet")
        workers.url = server.url("fleet")
        plan(campaign(sleep_us=5000, visits=20), workers.url)
        worker = workers.start()
        until(lambda: local_blocks(workers.state("alpha")))
        server.stop()
        until(lambda: not psutil.Process(worker.pid).children())
        time.sleep(2)
        assert worker.poll() is None
        server.start()

        _, err = worker.communicate(timeout=120)

        assert "trying again" in err
        assert worker.returncode == 0
        assert [len(keys) for keys in measured(workers.url).values()] == [BRICKS]


@pytest.mark.slow
def test_a_machine_that_is_not_quiet_is_waited_for_and_then_named(campaign, url, workers, rows):
    plan(campaign(), url)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        said = workers.drained("alpha", "--drain", "--busy", "0.01%", "--patience", "1s", code=3)
        busy.kill()

    assert "1 job: 0 complete, 1 failed" in said
    (row,) = rows("SELECT reason, waited_s, counts FROM outcome")
    assert re.fullmatch(r"the machine was not quiet for 1 s: others used \d+% of its processors", row["reason"])
    assert row["waited_s"] >= 1
    assert row["counts"] is None
    assert measured(url) == {}


@pytest.mark.slow
def test_cells_that_cannot_be_measured_fail_with_their_reasons_and_are_in_nobodys_way(
    campaign, url, workers, rows, states, tmp_path, branches
):
    """A lock that is none, an option that there is not, a job of another version, and a model that is not there."""
    (tmp_path / "pylock.toml").write_text("nonsense = 1\n")
    wrong = '[[stack]]\nname = "wrong"\nbackend = "sleeping"\noptions = { colour = "red" }\n'
    locked = '[[stack]]\nname = "locked"\nbackend = "sleeping"\nlock = "pylock.toml"\n'
    newer = '[[stack]]\nname = "newer"\nbackend = "sleeping"\noptions = { sleep_us = 7 }\n'
    plan(campaign(more=wrong + locked + newer, models=[str(branches), "/nowhere/squeezenet.onnx"]), url)
    with transaction(url) as connection:
        novel = "UPDATE procrastinate_jobs SET args = args || '{\"novelty\": 1}'::jsonb, status = 'doing'"
        connection.execute(f"{novel} WHERE id = (SELECT max(id) FROM procrastinate_jobs)".encode())

    assert "4 jobs: 0 complete, 4 failed" in workers.drained(code=3)

    assert states() == ["failed"] * 4
    found = rows("SELECT reason, counts FROM outcome ORDER BY job")
    reasons = ("squeezenet.onnx", "no device 'cpu', or not all of the options", "is no lock file", "novelty")
    assert all(reason in row["reason"] for reason, row in zip(reasons, found, strict=True))
    assert [len(keys) for keys in measured(url).values()] == [BRICKS]  # what could be measured is on the server


@pytest.mark.slow
def test_bricks_that_a_runtime_cannot_execute_are_no_failure_of_the_cell(campaign, url, workers, rows):
    plan(campaign(nodes=["alpha", "beta"], threads=[1, 2]), url)
    said = workers.drained("alpha", "--once", "--json", DLBRICKS_SLEEPLESS="Sqrt")

    assert '"jobs": 1' in said  # once takes one job, and a node leaves those of others
    done = rows("SELECT queue_name AS q FROM procrastinate_jobs WHERE status = 'succeeded'")
    assert done == [{"q": "alpha"}]
    (row,) = rows("SELECT complete, counts FROM outcome")
    assert row["complete"]
    assert (row["counts"]["measured"], row["counts"]["failed"]) == (BRICKS - 1, 1)
    with Store.open(url, read_only=True) as store:
        (failure,) = store.failures()
    assert "cannot fall asleep" in failure.reason


@pytest.mark.slow
def test_a_job_that_always_kills_its_worker_ends(campaign, url, workers, rows, states):
    asked = campaign(threads=[1, 2])
    plan(asked, url)
    with transaction(url) as connection:
        connection.execute(TRIED_OFTEN)

    assert '"jobs": 1' in workers.drained("alpha", "--once", "--json", code=3)
    assert states() == ["failed", "todo"]
    workers.drained(code=3)
    assert states() == ["failed", "failed"]
    reasons = rows("SELECT DISTINCT reason FROM outcome")
    assert reasons == [{"reason": "was begun 50 times and never ended"}]

    plan(asked, url)
    workers.drained()

    assert states() == ["succeeded", "succeeded"]


def test_only_what_never_ended_counts(campaign, url):
    asked = campaign()
    plan(asked, url)

    deaths = []
    with transaction(url) as connection:
        for _ in range(3):
            give_back(connection, took(connection))
        for _ in range(2):
            deaths.append(took(connection).deaths)
            retry(connection, *held_jobs(connection, "alpha"))
    end(url, reason="it rained")
    plan(asked, url)
    with transaction(url) as connection:
        deaths.append(took(connection).deaths)
        retry(connection, *held_jobs(connection, "alpha"))
        job = took(connection)
        deaths.append(job.deaths)
        give_back(connection, job)
        deaths.append(took(connection).deaths)

    assert deaths == [0, 1, 0, 1, 1]


@pytest.mark.slow
def test_a_file_that_cannot_be_read_fails_its_cell_and_no_other(campaign, url, workers, rows, states):
    """Damaged where a worker died of it 50 times, so that nothing runs over it before it is pushed."""
    asked = campaign(threads=[1, 2])
    plan(asked, url)
    first = asked.cells[0]
    file = workers.state("alpha") / "cells" / f"{first.key}.db"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no database" * 1000)
    with transaction(url) as connection:
        connection.execute(f"{TRIED_OFTEN} WHERE queueing_lock = %s".encode(), [first.key])

    workers.drained(code=3)

    assert states() == ["failed", "succeeded"]
    reason = rows("SELECT reason FROM outcome ORDER BY job")[0]["reason"]
    assert "what was measured cannot be read: " in reason
    assert file.name in reason
    assert [path.name for path in (workers.state("alpha") / "unreadable").iterdir()] == [file.name]
    plan(asked, url)
    workers.drained()
    assert states() == ["succeeded", "succeeded"]


@pytest.mark.slow
def test_two_workers_of_one_node_do_not_take_each_others_jobs(campaign, url, workers):
    plan(campaign(sleep_us=5000, visits=20), url)
    first = workers.start()
    workers.runner(first)
    elsewhere = ("--state", str(workers.folder / "elsewhere"))

    assert "another worker works in" in workers.drained(code=1)
    other = workers.drained("alpha", "--drain", *elsewhere, code=2)
    assert "node alpha is worked for from another machine" in other
    first.kill()
    first.wait()
    workers.drained("alpha", "--drain", "--take-over", *elsewhere)


@pytest.mark.slow
def test_a_worker_that_was_killed_after_pushing_measures_nothing_again(campaign, url, workers, rows, states):
    """The worst moment: the server has everything, and nobody ended the job."""
    plan(campaign(), url)
    with transaction(url) as connection:
        connection.execute("ALTER TABLE outcome RENAME COLUMN began TO hidden")
    _, refused = workers.start().communicate(timeout=300)
    before = measured(url)
    assert "refused" in refused
    assert (states(), [len(keys) for keys in before.values()]) == (["doing"], [BRICKS])
    with transaction(url) as connection:
        connection.execute("ALTER TABLE outcome RENAME COLUMN hidden TO began")

    assert "put back, since no worker has it any more" in workers.drained()

    assert states() == ["succeeded"]
    assert measured(url) == before
    assert [row["counts"]["reused"] for row in rows("SELECT counts FROM outcome")] == [BRICKS]
