"""A run that is killed at any point goes on where it was."""

from __future__ import annotations

import collections
import dataclasses
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db.store import Store
from dlbricks.db.values import Block, Subject
from dlbricks.generator.measurement.run import run

_SCRIPT = """
import sys
from dlbricks.db.store import Store
from dlbricks.generator.measurement.run import run
with Store.open(sys.argv[2]) as store:
    run(sys.argv[1], store=store, cache=sys.argv[3], item_budget_s=float(sys.argv[4]), processes=2, rounds=3)
"""


def _start(suite: Suite, database: Path, cache: str = "hot", *, item_budget_s: float = 0.1) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(suite.path), str(database), cache, str(item_budget_s)],
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


def _open_subjects(database: Path) -> set[str]:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "SELECT i.subject FROM measurement m JOIN item i ON i.id = m.item_id WHERE m.finished_us IS NULL"
        ).fetchall()
    connection.close()
    return {subject for (subject,) in rows}


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
        report = run(small_suite, store=store, cache=cache, item_budget_s=0.1, processes=2, rounds=3)
        assert (report.measured + report.reused, report.failed, report.remaining) == (10, 0, 0)
        measurements = store.measurements(subject=Subject.BRICK, latest=False)
        assert sorted(entry.key for entry in measurements) == sorted(small_suite.keys)
        for entry in measurements:
            assert entry.samples == sum(len(block.samples) for block in store.blocks(entry.id))
            assert entry.samples >= 10
            assert entry.reference_ns is not None
    assert _open_subjects(database) <= {"reference"}  # killed after its last brick, a run leaves no more than that
    assert _blocks(database).items() >= committed.items()
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_process_number_means_one_process(small_suite, tmp_path):
    """Blocks of an interrupted run keep their numbers; the next worker gets the next one, for every item."""
    database = tmp_path / "killed.db"
    process = _start(small_suite, database)
    _wait_for_blocks(database, 8, process)
    process.kill()
    process.communicate()
    before = {process for _, process, _ in _blocks(database)}

    with Store.open(database) as store:
        run(small_suite, store=store, cache="hot", item_budget_s=0.1)
        numbers = collections.Counter(
            block.process
            for entry in store.measurements(subject=Subject.REFERENCE, latest=False)
            for block in store.blocks(entry.id)
        )

    assert before == set(range(len(before)))
    assert set(numbers) == set(range(max(numbers) + 1))
    assert max(numbers) > max(before)


def test_a_stale_reference_is_not_continued(small_suite, tmp_path):
    """Its first blocks belong to bricks that are done; mixed with new ones it would tell of two days at once."""
    with Store.open(tmp_path / "test.db") as store:
        options = {"item_budget_s": 0.02, "processes": 1, "rounds": 1}
        report = run(small_suite, store=store, cache="hot", **options)
        (entry, *_) = store.measurements(subject=Subject.REFERENCE)
        store.begin("stale", report.run, Subject.REFERENCE, entry.key, report.system, report.stack, entry.conditions, 1)
        store.add_block("stale", Block(7, 0, ((10**9, 1),) * 10))

        again = run(small_suite, store=store, cache="hot", again=["all"], **options)

        assert again.measured == 10
        stale = {found.id: found for found in store.measurements(subject=Subject.REFERENCE, latest=False)}["stale"]
        assert (stale.samples, stale.median_ns) == (10, 10**9)
        assert all(found.reference_ns < 10**8 for found in store.measurements(subject=Subject.BRICK))
        assert store.info()["counts"]["open"] == 0


def _left(store: Store, report, key: str, subject: Subject, blocks: list[Block], run_id: str) -> None:
    """Open an item as an interrupted run leaves it."""
    conditions = store.measurements(subject=Subject.REFERENCE)[0].conditions
    store.begin(f"left {key[:20]}", run_id, subject, key, report.system, report.stack, conditions, 1)
    for block in blocks:
        store.add_block(f"left {key[:20]}", block)


def test_process_numbers_go_on_after_those_of_another_suite(small_suite, tmp_path):
    """Otherwise the reference times of one suite's processes are taken for those of the other."""
    with Store.open(tmp_path / "test.db") as store:
        options = {"item_budget_s": 0.02, "processes": 1, "rounds": 1}
        report = run(small_suite, store=store, cache="hot", **options)
        foreign = "f" * 64
        _left(store, report, foreign, Subject.BRICK, [Block(6, 0, ((10**6, 1),) * 10)], report.run)

        again = run(small_suite, store=store, cache="hot", again=["all"], **options)

        numbers = {
            block.process
            for entry in store.measurements(subject=Subject.BRICK)
            for block in store.blocks(entry.id)
            if entry.run == again.run
        }
        assert numbers == {7}
        assert store.info()["counts"]["open"] >= 1  # it waits for its own suite


@pytest.mark.parametrize("samples", [4, 10])
def test_samples_of_another_day_are_not_pooled(small_suite, tmp_path, samples):
    with Store.open(tmp_path / "test.db") as store:
        options = {"item_budget_s": 0.02, "processes": 1, "rounds": 1}
        report = run(small_suite, store=store, cache="hot", **options)
        old = dataclasses.replace(store.runs()[0], id="old", started="2020-01-01T00:00:00.000+00:00")
        store.begin_run(old)
        key = small_suite.keys[0]
        _left(store, report, key, Subject.BRICK, [Block(3, 0, ((10**9, 1),) * samples)], "old")

        again = run(small_suite, store=store, cache="hot", again=["all"], **options)

        assert again.measured == 10
        found = {entry.id: entry for entry in store.measurements(keys=[key], latest=False)}
        left = found[f"left {key[:20]}"]
        if samples == 10:
            assert (left.run, left.samples, left.median_ns) == ("old", 10, 10**9)
            (today,) = store.measurements(keys=[key])
            assert today.run == again.run
            assert today.median_ns < 10**8
        else:
            assert left.run == again.run
            assert left.samples > samples
        assert store.info()["counts"]["open"] == 0


def test_ctrl_c_leaves_a_database_that_goes_on(small_suite, tmp_path):
    database = tmp_path / "interrupted.db"
    process = _start(small_suite, database, item_budget_s=2)
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
        report = run(small_suite, store=store, cache="hot", item_budget_s=0.1)
        assert report.measured + report.reused == 10
    assert _blocks(database).items() >= kept.items()


def test_a_killed_worker_costs_one_block(small_suite, tmp_path):
    """The kernel's out-of-memory killer strikes from outside: the brick is tried again and measured."""
    with Store.open(tmp_path / "test.db") as store:
        struck = []

        def strike(event):
            children = psutil.Process().children()
            if event.stage == "sample" and event.done == 4 and not struck:
                struck.append(event.label)
                children[0].kill()

        report = run(small_suite, store=store, cache="hot", item_budget_s=0.05, progress=strike)

    assert struck
    assert (report.measured, report.failed) == (10, 0)
