"""Several processes and one database."""

from __future__ import annotations

import os
import sqlite3
import traceback
from collections.abc import Callable

import pytest
from dlbricks.db import Store
from dlbricks.errors import DatabaseLocked

# Python 3.12 and later warn of any fork beside another thread; a BLAS that an earlier test loaded has some.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def together(*actions: Callable[[], None]) -> list[str]:
    """Run each in a process of its own, all at once; what went wrong in each."""
    gate, open_gate = os.pipe()
    pipes = []
    for action in actions:
        reader, writer = os.pipe()
        if os.fork() == 0:
            text = ""
            try:
                os.close(open_gate)
                os.read(gate, 1)  # returns when the parent closes its end
                action()
            except BaseException:  # noqa: BLE001  (the parent raises it)
                text = traceback.format_exc()
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        pipes.append(reader)
    os.close(gate)
    os.close(open_gate)
    said = []
    for reader in pipes:
        with os.fdopen(reader) as pipe:
            said.append(pipe.read())
        os.wait()
    return said


@pytest.fixture
def holder(bench):
    """Another connection that holds the write lock."""
    raw = sqlite3.connect(bench.path, isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    yield raw
    raw.close()


@pytest.mark.sqlite
def test_a_lock_that_is_not_given_up_is_one_clear_error(bench, holder):
    bench.store.close()
    with pytest.raises(DatabaseLocked, match="another process") as error:
        Store.open(bench.path, busy_timeout_s=0.1)
    assert str(bench.path) in str(error.value)


@pytest.mark.sqlite
def test_writing_waits_for_the_lock_and_then_goes_on(bench, holder, block):
    made = bench.measurement("a")
    holder.execute("ROLLBACK")
    bench.begin(made)
    store = Store.open(bench.path, busy_timeout_s=0.1)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseLocked):
        store.add_session((), [(made.id, block(0, 0))])
    holder.execute("COMMIT")
    store.add_session((), [(made.id, block(0, 0))])
    assert store.blocks(made.id) == [block(0, 0)]
    store.close()


@pytest.mark.sqlite
def test_reading_does_not_wait_for_a_writer(bench, holder):
    assert bench.store.measurements() == []
    with Store.open(bench.path, read_only=True, busy_timeout_s=0.1) as store:
        assert store.info()["counts"]["runs"] == 1


def test_processes_that_make_the_same_database_at_once(home, tmp_path):
    for attempt in range(5):
        path = home(tmp_path / f"{attempt}.db")

        def action(path=path):
            with Store.open(path) as store:
                assert store.info()["counts"]["runs"] == 0

        assert together(*[action] * 6) == [""] * 6


@pytest.mark.slow
def test_processes_that_write_at_once_lose_and_double_nothing(bench, block):
    bench.store.close()

    def writer(first: int):
        def action():
            with Store.open(bench.path) as store:
                bench.store = store
                for number in range(first, first + 25):
                    made = bench.measurement(number)
                    bench.begin(made)
                    store.add_session((), [(made.id, block(0, number))])
                    store.finish(made)

        return action

    def reader():
        with Store.open(bench.path, read_only=True) as store:
            for _ in range(50):
                for measurement in store.measurements():
                    assert len(store.blocks(measurement.id)) == 1

    assert together(writer(0), writer(1000), writer(2000), reader) == [""] * 4
    with Store.open(bench.path) as store:
        assert (
            store.info()["counts"] | {"bricks": 75, "measurements": 75, "open": 0, "blocks": 75}
            == (store.info()["counts"])
        )
