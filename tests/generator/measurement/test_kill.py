"""A run that is killed at any point goes on where it was."""

from __future__ import annotations

import dataclasses
import random
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db.identity import Identity
from dlbricks.db.store import Opened, Store
from dlbricks.db.values import PROTOCOL, Block, Subject, Visit
from dlbricks.generator.measurement.run import RunReport, run

_SCRIPT = """
import sys
from dlbricks.db.store import Store
from dlbricks.generator.measurement.run import run
with Store.open(sys.argv[2]) as store:
    run(sys.argv[1], store=store, cache=sys.argv[3], visits=int(sys.argv[4]), processes=2, sessions=3)
"""
VISITS = 24
QUICKEST = {"cache": "hot", "visits": 10, "processes": 1, "sessions": 1}


def _start(suite: Suite, database: Path, cache: str = "hot", *, visits: int = VISITS) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(suite.path), str(database), cache, str(visits)],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _blocks(database: Path) -> dict[tuple[str, int, int], bytes]:
    """Every committed block, read around the store: (measurement, process, round) to its raw samples."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "SELECT b.measurement_id, b.process, b.round, b.data FROM block b "
            "JOIN measurement m ON m.id = b.measurement_id"
        ).fetchall()
    connection.close()
    assert len(rows) == len({row[:3] for row in rows})
    return {(measurement, process, round_): data for measurement, process, round_, data in rows}


def _sessions(blocks: dict[tuple[str, int, int], bytes]) -> set[tuple[int, int]]:
    return {(process, session) for _, process, session in blocks}


def _wait_for_blocks(database: Path, more_than: int, process: subprocess.Popen[bytes]) -> None:
    """Until the run has committed something new, so that a slow start is not all that is ever killed."""
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if len(_blocks(database)) > more_than:
                return
        except sqlite3.OperationalError:
            pass  # the schema is not there yet
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("cache", "fewest"), [("hot", 3), ("model", 1)])
def test_killed_at_random_points_nothing_is_lost_or_doubled(small_suite, tmp_path, thorough, cache, fewest):
    database = tmp_path / "killed.db"
    moments = random.Random(11)
    committed: dict[tuple[str, int, int], bytes] = {}
    kills = 0
    for _ in range(8 if thorough else 2):
        process = _start(small_suite, database, cache)
        _wait_for_blocks(database, len(committed), process)
        time.sleep(moments.uniform(0, 0.4))
        workers = psutil.Process(process.pid).children() if process.poll() is None else []
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        process.communicate()
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert alive == []
        after = _blocks(database)
        assert after.items() >= committed.items()
        committed = after
    assert kills >= (fewest if thorough else 1)

    with Store.open(database) as store:
        report = run(small_suite, store=store, cache=cache, visits=VISITS, processes=2, sessions=3)
        assert (report.measured + report.reused, report.failed, report.remaining) == (10, 0, 0)
        measurements = store.measurements(subject=Subject.BRICK, latest=False)
        assert sorted(entry.key for entry in measurements) == sorted(small_suite.keys)
        for entry in measurements:
            blocks = store.blocks(entry.id)
            assert entry.summary.samples == sum(len(block.samples) for block in blocks)
            assert VISITS <= entry.summary.samples < 2 * VISITS
            assert all(len(block.visits) == len(block.samples) for block in blocks)
        assert store.info()["counts"]["open"] == 0
    assert _blocks(database).items() >= committed.items()
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["hot", "model"])
def test_a_session_is_committed_as_a_whole(small_suite, tmp_path, cache):
    """Whatever the moment: of each session every brick has its block, or none has."""
    database = tmp_path / "killed.db"
    process = _start(small_suite, database, cache, visits=60)
    _wait_for_blocks(database, 12, process)
    process.kill()
    process.communicate()

    blocks = _blocks(database)

    taken = [{name for name, *when in blocks if tuple(when) == session} for session in _sessions(blocks)]
    assert len(taken) > 1
    assert all(names == taken[0] for names in taken)
    assert len(taken[0]) >= 11  # ten bricks, what a call costs, and what is without layout changes at its edges


@pytest.mark.slow
def test_a_process_number_means_one_process(small_suite, tmp_path):
    """Blocks of an interrupted run keep their numbers; the next worker gets the next one, for every item."""
    database = tmp_path / "killed.db"
    process = _start(small_suite, database, visits=60)
    _wait_for_blocks(database, 8, process)
    process.kill()
    process.communicate()
    before = {number for number, _ in _sessions(_blocks(database))}

    with Store.open(database) as store:
        report = run(small_suite, store=store, cache="hot", visits=60)
        assert report.measured == 10
    after = {number for number, _ in _sessions(_blocks(database))}

    assert before == set(range(len(before)))
    assert after == set(range(max(after) + 1))
    assert max(after) > max(before)


def _left(store: Store, report: RunReport, key: str, blocks: list[Block], run_id: str) -> str:
    """Open an item as an interrupted run leaves it."""
    name = f"left {key[:20]}"
    conditions = store.measurements(subject=Subject.BRICK)[0].conditions
    identity = Identity(Subject.BRICK, key, report.system, report.stack, conditions)
    store.add_session([Opened(name, run_id, identity, 1)], ())
    for block in blocks:
        store.add_session((), [(name, block)])
    return name


def _block(process: int, count: int) -> Block:
    visit = Visit(1_700_000_000_000_000, 20_000, 30_000)
    return Block(process, 0, ((10**9, 1),) * count, 0, (visit,) * count)


def test_process_numbers_go_on_after_those_of_another_suite(small_suite, tmp_path):
    """Otherwise visits of two processes look as if they had been taken in turn."""
    with Store.open(tmp_path / "test.db") as store:
        report = run(small_suite, store=store, **QUICKEST)
        _left(store, report, "f" * 64, [_block(6, 10)], report.run)

        again = run(small_suite, store=store, again=["all"], **QUICKEST)

        numbers = {
            block.process
            for entry in store.measurements(subject=Subject.BRICK)
            for block in store.blocks(entry.id)
            if entry.run == again.run
        }
        assert numbers == {7}
        assert store.info()["counts"]["open"] == 1  # it waits for its own suite


def test_what_is_left_of_the_same_hour_goes_on(small_suite, tmp_path):
    with Store.open(tmp_path / "test.db") as store:
        report = run(small_suite, store=store, **QUICKEST)
        key = small_suite.keys[0]
        name = _left(store, report, key, [_block(3, 4)], report.run)

        again = run(small_suite, store=store, again=["all"], **QUICKEST)

        assert again.measured == 10
        (entry,) = (one for one in store.measurements(keys=[key], latest=False) if one.id == name)
        assert [(block.process, len(block.samples)) for block in store.blocks(name)] == [(3, 4), (4, 10)]
        assert entry.summary.samples == 14
        assert store.info()["counts"]["open"] == 0


def test_what_another_node_left_is_its_own(small_suite, tmp_path, monkeypatch):
    """Two equal machines on one database: neither continues, closes or waits for what the other has begun."""
    monkeypatch.setenv("DLBRICKS_NODE", "alpha")
    with Store.open(tmp_path / "test.db") as store:
        report = run(small_suite, store=store, campaign="autumn", **QUICKEST)
        key = small_suite.keys[0]
        name = _left(store, report, key, [_block(3, 4)], report.run)

        other = run(small_suite, store=store, again=["all"], node="beta", **QUICKEST)

        assert other.measured == 10
        (theirs,) = store.measurements(keys=[key], node="beta")
        assert [(block.process, len(block.samples)) for block in store.blocks(theirs.id)] == [(0, 10)]
        assert store.info()["counts"]["open"] == 1
        run(small_suite, store=store, again=["all"], **QUICKEST)
        (ours,) = store.measurements(keys=[key], node="alpha")
        assert (ours.id, ours.summary.samples, store.info()["counts"]["open"]) == (name, 14, 0)
        assert [(one.node, one.campaign) for one in store.runs()] == [("alpha", "autumn"), ("beta", ""), ("alpha", "")]


@pytest.mark.parametrize("known", [True, False], ids=["of this suite", "of another"])
@pytest.mark.parametrize("samples", [4, 10])
def test_samples_of_another_day_are_not_pooled(small_suite, tmp_path, samples, known):
    """Enough of them are a measurement of that day; fewer are dropped. Neither keeps anything from being measured."""
    with Store.open(tmp_path / "test.db") as store:
        report = run(small_suite, store=store, **QUICKEST)
        old = dataclasses.replace(store.runs()[0], id="old", started="2020-01-01T00:00:00.000+00:00")
        store.begin_run(old)
        key = small_suite.keys[0] if known else "f" * 64
        name = _left(store, report, key, [_block(3, samples)], "old")

        again = run(small_suite, store=store, again=["all"], **QUICKEST)

        assert again.measured == 10
        found = {entry.id: entry for entry in store.measurements(keys=[key], latest=False)}
        if samples == 10:
            assert (found[name].run, found[name].summary.samples, found[name].latency_ns) == ("old", 10, 10**9)
        else:
            assert name not in found
        if known:
            (today,) = store.measurements(keys=[key])
            assert (today.run, today.summary.samples) == (again.run, 10)
        assert store.info()["counts"]["open"] == 0


@pytest.mark.parametrize("samples", [4, 10])
def test_what_another_protocol_left_is_closed_and_never_pooled(small_suite, tmp_path, samples):
    with Store.open(tmp_path / "test.db") as store:
        report = run(small_suite, store=store, **QUICKEST)
        key = small_suite.keys[0]
        name = _left(store, report, key, [dataclasses.replace(_block(3, samples), visits=())], report.run)
    with sqlite3.connect(tmp_path / "test.db") as connection:
        connection.execute("UPDATE measurement SET protocol = 1 WHERE id = ?", [name])
    connection.close()

    with Store.open(tmp_path / "test.db") as store:
        again = run(small_suite, store=store, again=["all"], **QUICKEST)

        assert again.measured == 10
        (today,) = store.measurements(keys=[key])
        assert (today.run, today.summary.samples, today.protocol) == (again.run, 10, PROTOCOL)
        old = [one for one in store.measurements(keys=[key], latest=False, protocol=None) if one.protocol == 1]
        kept = [(one.id, one.summary.samples, one.undisturbed_ns) for one in old]
        assert kept == [(name, 10, None)] * (samples == 10)
        assert store.info()["counts"]["open"] == 0


@pytest.mark.slow
def test_ctrl_c_leaves_a_database_that_goes_on(small_suite, tmp_path):
    database = tmp_path / "interrupted.db"
    process = _start(small_suite, database, visits=200)
    _wait_for_blocks(database, 5, process)
    workers = psutil.Process(process.pid).children()

    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=30)

    assert b"KeyboardInterrupt" in message
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    kept = _blocks(database)
    with Store.open(database) as store:
        assert store.runs()[0].finished is None
        report = run(small_suite, store=store, cache="hot", visits=12)
        assert report.measured + report.reused == 10
    assert _blocks(database).items() >= kept.items()


@pytest.mark.parametrize("cache", ["hot", "model"])
def test_a_killed_worker_costs_one_session(small_suite, tmp_path, cache):
    """The kernel's out-of-memory killer strikes from outside: the brick is tried again and measured."""
    with Store.open(tmp_path / "test.db") as store:
        struck = []

        def strike(event):
            children = psutil.Process().children()
            if event.stage == "sample" and event.done and not struck:
                struck.append(event.label)
                children[0].kill()

        report = run(small_suite, store=store, cache=cache, visits=12, progress=strike)

    assert struck
    assert (report.measured, report.failed) == (10, 0)


_AGAIN = """
import sys
from datetime import datetime
from dlbricks.db.store import Store
from dlbricks.generator.measurement.run import run
with Store.open(sys.argv[2]) as store:
    run(sys.argv[1], store=store, cache="hot", visits=10, processes=1, sessions=1, memory_bytes=1,
        again=["all"], since=datetime.fromisoformat(sys.argv[3]))
"""


@pytest.mark.slow
def test_a_campaign_that_measures_all_again_goes_on_where_it_was_killed(small_suite, tmp_path):
    database = tmp_path / "again.db"
    chunked = {**QUICKEST, "memory_bytes": 1}  # one brick after the other
    with Store.open(database) as store:
        run(small_suite, store=store, **chunked)
        since = datetime.now(UTC)
        process = subprocess.Popen(
            [sys.executable, "-c", _AGAIN, str(small_suite.path), str(database), since.isoformat()]
        )
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if len(store.measurements(latest=False)) >= 14:  # of 22, with the reference
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        since_us = int(since.timestamp() * 1e6)
        done = {entry.key for entry in store.measurements(subject=Subject.BRICK, since_us=since_us)}

        resumed = run(small_suite, store=store, again=["all"], since=since, **chunked)
        once_more = run(small_suite, store=store, again=["all"], since=since, **chunked)

        assert 0 < len(done) < 10
        assert (resumed.measured, resumed.reused) == (10 - len(done), len(done))
        assert (once_more.measured, once_more.reused) == (0, 10)
        assert len(store.measurements(subject=Subject.BRICK, latest=False)) == 20
