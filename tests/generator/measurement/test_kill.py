"""A run that is killed at any point goes on where it was, and what was left open is closed or continued."""

from __future__ import annotations

import dataclasses
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime

import psutil
import pytest
from dlbricks.db.store import OpenedMeasurement, Store
from dlbricks.db.values import PROTOCOL, Block, Identity, Subject, Visit
from dlbricks.generator.measurement.run import run

_SCRIPT = """
import sys
from datetime import UTC, datetime
from dlbricks.db.store import Store
from dlbricks.generator.measurement.run import run
with Store.open(sys.argv[2]) as store:
    options = eval(sys.argv[3])
    if "since" in options:
        options["since"] = datetime.fromtimestamp(options["since"], UTC)
    run(sys.argv[1], store=store, **options)
"""
VISITS = 24
QUICKEST = {"cache": "hot", "visits": 10, "processes": 1, "sessions": 1}


@pytest.fixture
def database(tmp_path):
    return tmp_path / "killed.db"


@pytest.fixture
def begin(small_suite, database):
    """Start a run in a process of its own."""
    command = [sys.executable, "-c", _SCRIPT, str(small_suite.path), str(database)]
    return lambda options: subprocess.Popen(
        [*command, repr(options)], stderr=subprocess.PIPE, start_new_session=True
    )  # fmt: skip


def _blocks(database) -> dict[tuple[str, int, int], bytes]:
    """Every committed block, read around the store: (measurement, process, round) to its raw samples."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT measurement_id, process, round, data FROM block").fetchall()
    assert len(rows) == len({row[:3] for row in rows})
    return {tuple(at): data for *at, data in rows}


def _wait_for_blocks(database, more_than: int, process) -> None:
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
def test_killed_at_random_points_nothing_is_lost_or_doubled(small_suite, database, begin, thorough, cache, fewest):
    """Of each session every brick has its block, or none has; each process has a number of its own."""
    moments = random.Random(11)
    committed: dict[tuple[str, int, int], bytes] = {}
    kills = 0
    options = {"cache": cache, "visits": VISITS, "processes": 2, "sessions": 3}
    for _ in range(8 if thorough else 2):
        process = begin(options)
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
        sessions = {at: {name for name, *when in after if tuple(when) == at} for _, *at in after for at in [tuple(at)]}
        assert len({*map(frozenset, sessions.values())}) == 1  # ten bricks, what a call costs, and edges
        assert all(len(names) >= 11 for names in sessions.values())
    assert kills >= (fewest if thorough else 1)
    before = {process for _, process, _ in committed}

    with Store.open(database) as store:
        report = run(small_suite, store=store, **options)
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
    numbers = {process for _, process, _ in _blocks(database)}
    assert before <= numbers == set(range(len(numbers)))
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("cache", ["hot", "model"])
def test_a_killed_worker_costs_one_session(small_suite, store, cache):
    """The kernel's out-of-memory killer strikes from outside: the brick is tried again and measured."""
    struck, others = [], {*psutil.Process().children()}  # which belong to other tests

    def strike(event):
        if event.stage == "sample" and event.done and not struck:
            struck.append(event.label)
            ({*psutil.Process().children()} - others).pop().kill()

    report = run(small_suite, store=store, cache=cache, visits=12, progress=strike)

    assert struck
    assert (report.measured, report.failed) == (10, 0)


def _left(store: Store, key: str, process: int, count: int, run_id: str = "", **changes: object) -> str:
    """Open an item as an interrupted run leaves it, and begin the run where it is another one than the first."""
    ((first, *_), known) = store.runs(), store.measurements(subject=Subject.BRICK)[0]
    if run_id:
        store.begin_run(dataclasses.replace(first, id=run_id, **changes))
    identity = Identity(Subject.BRICK, key, known.system, known.stack, known.conditions)
    store.add_session([OpenedMeasurement("left", run_id or first.id, identity, 1)], ())
    visits = (Visit(1_700_000_000_000_000, 20_000, 30_000),) * count
    store.add_session((), [("left", Block(process, 0, ((10**9, 1),) * count, 0, visits))])
    return "left"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("known", [True, False], ids=["of this suite", "of another"])
def test_what_is_left_of_the_same_hour_goes_on_with_its_own_suite(small_suite, store, known):
    """Numbers of processes go on after it: else visits of two look as if they had been taken in turn."""
    run(small_suite, store=store, **QUICKEST)
    key = small_suite.keys[0] if known else "f" * 64
    name = _left(store, key, 6, 4)

    again = run(small_suite, store=store, again=["all"], **QUICKEST)

    assert again.measured == 10
    found = [one for one in store.measurements(subject=Subject.BRICK) if one.run == again.run or one.id == name]
    assert {block.process for one in found for block in store.blocks(one.id)} == ({6, 7} if known else {7})
    if known:
        (entry,) = (one for one in store.measurements(keys=[key], latest=False) if one.id == name)
        assert [(block.process, len(block.samples)) for block in store.blocks(name)] == [(6, 4), (7, 10)]
        assert entry.summary.samples == 14
    assert store.info()["counts"]["open"] == (0 if known else 1)  # it waits for its own suite


def test_what_another_node_left_is_its_own(small_suite, store, monkeypatch):
    """Two equal machines on one database: neither continues, closes or waits for what the other has begun."""
    monkeypatch.setenv("DLBRICKS_NODE", "alpha")
    run(small_suite, store=store, campaign="autumn", **QUICKEST)
    key = small_suite.keys[0]
    name = _left(store, key, 3, 4)

    other = run(small_suite, store=store, again=["all"], node="beta", **QUICKEST)

    assert other.measured == 10
    (theirs,) = store.measurements(keys=[key], node="beta")
    assert [(block.process, len(block.samples)) for block in store.blocks(theirs.id)] == [(0, 10)]
    assert store.info()["counts"]["open"] == 1
    run(small_suite, store=store, again=["all"], **QUICKEST)
    (ours,) = store.measurements(keys=[key], node="alpha")
    assert (ours.id, ours.summary.samples, store.info()["counts"]["open"]) == (name, 14, 0)
    assert [(one.node, one.campaign) for one in store.runs()] == [("alpha", "autumn"), ("beta", ""), ("alpha", "")]


@pytest.mark.sweep(1, by="left")
@pytest.mark.parametrize("samples", [4, 10])
@pytest.mark.parametrize("left", ["of another day", "of another day and suite", "of another protocol"])
def test_samples_of_another_day_or_protocol_are_not_pooled(small_suite, store, tmp_path, left, samples):
    """Enough of them are a measurement of that day; fewer are dropped. Neither keeps anything from being measured."""
    run(small_suite, store=store, **QUICKEST)
    key = "f" * 64 if "suite" in left else small_suite.keys[0]
    began = "2020-01-01T00:00:00.000+00:00" if "day" in left else datetime.now(UTC).isoformat()
    name = _left(store, key, 3, samples, "old", started=began)
    if "protocol" in left:
        with closing(sqlite3.connect(tmp_path / "test.db")) as connection, connection:
            connection.execute("UPDATE measurement SET protocol = 1 WHERE id = ?", [name])

    again = run(small_suite, store=store, again=["all"], **QUICKEST)

    assert again.measured == 10
    found = {entry.id: entry for entry in store.measurements(keys=[key], latest=False, protocol=None)}
    assert (name in found) == (samples == 10)
    if samples == 10:
        kept = found[name]
        assert (kept.run, kept.summary.samples, kept.latency_ns) == ("old", 10, 10**9)
        assert kept.protocol == (1 if "protocol" in left else PROTOCOL)
    if "suite" not in left:
        (today,) = store.measurements(keys=[key])
        assert (today.run, today.summary.samples, today.protocol) == (again.run, 10, PROTOCOL)
    assert store.info()["counts"]["open"] == 0


@pytest.mark.slow
def test_a_campaign_that_measures_all_again_goes_on_where_it_was_killed(small_suite, database, begin):
    chunked = {**QUICKEST, "memory_bytes": 1}  # one brick after the other
    with Store.open(database) as store:
        run(small_suite, store=store, **chunked)
        again = {**chunked, "again": ["all"], "since": datetime.now(UTC)}
        process = begin({**again, "since": again["since"].timestamp()})
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if len(store.measurements(latest=False)) >= 14:  # of 22, with the reference
                break
            time.sleep(0.01)
        process.kill()
        process.communicate()
        since_us = int(again["since"].timestamp() * 1e6)
        done = {entry.key for entry in store.measurements(subject=Subject.BRICK, since_us=since_us)}

        resumed = run(small_suite, store=store, **again)
        once_more = run(small_suite, store=store, **again)

        assert 0 < len(done) < 10
        assert (resumed.measured, resumed.reused) == (10 - len(done), len(done))
        assert (once_more.measured, once_more.reused) == (0, 10)
        assert len(store.measurements(subject=Subject.BRICK, latest=False)) == 20
