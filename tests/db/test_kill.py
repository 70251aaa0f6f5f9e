"""SIGKILL at any point: no committed block is lost or doubled, at most the one in flight is repeated."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections import Counter

import pytest
from dlbricks.db import Store, Subject
from dlbricks.db.store import OpenedMeasurement
from dlbricks.db.values import Identity

# Python 3.12 and later warn of any fork beside another thread; a BLAS that an earlier test loaded has some.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

ROUNDS = 6


def killed(action, after_s: float) -> list[list[str]]:
    """Start something in a child, kill it, and return what it had written to its pipe, by lines."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reader)
        status = 1
        try:
            action(writer)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    with os.fdopen(reader) as pipe:
        said = [line.split() for line in pipe.read().splitlines()]
    _, status = os.waitpid(child, 0)
    assert status in {0, signal.SIGKILL}, "it failed by itself"
    return said


def test_killed_many_times(bench, block, key_of):
    bench.store.close()

    def work(pipe: int) -> None:
        """What a run does, item by item, resuming what is open; reports each call after it has returned."""
        with Store.open(bench.path) as store:
            for number in range(10_000):
                identity = Identity(Subject.BRICK, key_of(number), bench.system, bench.stack, bench.conditions)
                if identity.key in store.measured_keys(bench.system, bench.stack, bench.conditions, Subject.BRICK):
                    continue
                found = store.open_item(identity)
                made = bench.measurement(number)
                if found is None:
                    store.add_session([OpenedMeasurement(made.id, bench.run.id, identity, made.unroll)], ())
                    found = (made.id, made.unroll, [])
                id_, _, blocks = found
                for round_ in range(len(blocks), ROUNDS):
                    store.add_session((), [(id_, block(number, round_))])
                    os.write(pipe, f"block {id_} {number} {round_}\n".encode())
                store.finish(bench.measurement(number, id=id_))
                os.write(pipe, f"finish {id_}\n".encode())

    rng = random.Random(20261121)
    reported = Counter[tuple[str, int, int]]()
    finished: set[str] = set()
    in_flight = 0
    for life in range(400):
        if life >= 40 and finished:
            break  # a machine that is busy with other things may let no child come as far in so many lives
        for kind, id_, *at in killed(work, rng.uniform(0.004, 0.08) * (1 + life // 40)):
            if kind == "block":
                reported[id_, int(at[0]), int(at[1])] += 1
            else:
                finished.add(id_)
        raw = sqlite3.connect(bench.path)
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = raw.execute("SELECT measurement_id, process, round FROM block").fetchall()
        closed = {id_ for (id_,) in raw.execute("SELECT id FROM measurement WHERE finished_us IS NOT NULL")}
        still_open = raw.execute("SELECT count(*) FROM measurement WHERE finished_us IS NULL").fetchone()[0]
        raw.close()
        stored = set(rows)
        assert len(rows) == len(stored)
        assert reported.keys() <= stored, "a committed block was lost"
        assert finished <= closed, "a finished measurement was lost"
        assert still_open <= 1
        assert len(stored - reported.keys()) <= in_flight + 1  # committed, but killed before it could say so
        in_flight = len(stored - reported.keys())
    assert set(reported.values()) == {1}, "a committed block was measured again"
    with Store.open(bench.path) as store:
        measured = store.measurements()
        assert measured  # how far forty lives get is up to the machine
        for measurement in measured:
            number = store.blocks(measurement.id)[0].process
            assert store.blocks(measurement.id) == [block(number, round_) for round_ in range(ROUNDS)]
