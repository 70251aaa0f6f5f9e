"""A database that somebody else changed: each value is checked when it is read, and the right file is named."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from dlbricks.db import Store, merge
from dlbricks.errors import ForeignDatabase, StoreError

_DEEP = "[" * 3000 + "]" * 3000

_VALUES = {
    "text for a latency": "UPDATE measurement SET median_ns = 'fast'",
    "a negative latency": "UPDATE measurement SET undisturbed_ns = -1.0",
    "a latency longer than any machine ran": "UPDATE measurement SET mean_ns = 1e300",
    "an interval upside down": "UPDATE measurement SET ci95_low_ns = ci95_high_ns + 1",
    "a run that started no day": "UPDATE run SET started = 'soon'",
    "a run that started at an hour of any place": "UPDATE run SET started = '2026-11-21T03:00:00'",
    "an infinite latency": "UPDATE measurement SET trimmed_mean_ns = 9e999",
    "no latency": "UPDATE measurement SET mean_ns = NULL",
    "text for a number": "UPDATE measurement SET unroll = 'many'",
    "medians that are no numbers": "UPDATE measurement SET block_medians_ns = x'000000000000f87f'",
    "a list of options": "UPDATE run SET options = '[1]'",
    "a number as state": "UPDATE run SET before = '7'",
    "deep JSON": f"UPDATE run SET options = '{_DEEP}'",
    "deep JSON of a system": f"UPDATE system SET cache_bytes = '{_DEEP}'",
    "caches of another form": "UPDATE system SET cache_bytes = '[[1, 2, 3]]'",
    "another system under its key": "UPDATE system SET physical_cores = 3",
    "text for threads": "UPDATE combination SET threads = 'all'",
    "no copies": "UPDATE measurement SET unroll = 0",
    "copies without end": "UPDATE measurement SET unroll = 9223372036854775807",
    "no executions": "UPDATE block SET data = zeroblob(16 * samples)",
    "fewer executions than none": f"UPDATE block SET data = x'{'ff' * 192}'",
    "a block of other samples": "UPDATE block SET samples = 100000000",
}

_PARTS = {
    "a view": "ALTER TABLE {0} RENAME TO moved; CREATE VIEW {0} AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL "
    "SELECT n + 1 FROM r) SELECT moved.* FROM moved, r",
    "a trigger": "CREATE TRIGGER more AFTER INSERT ON {0} BEGIN DELETE FROM block; END",
}


@pytest.fixture
def changed(tmp_path, furnish):
    """Return a function that changes a furnished database by SQL, behind the store's back."""

    def change(statement: str) -> Path:
        bench = furnish(tmp_path / "theirs.db")
        bench.measure("conv")
        bench.store.close()
        with closing(sqlite3.connect(bench.path)) as connection:
            connection.executescript(f"PRAGMA ignore_check_constraints = ON; {statement}")
        return Path(bench.path)

    return change


def _read(store: Store) -> None:
    store.systems()
    store.runs()
    store.blocks_of([measurement.id for measurement in store.measurements()])


@pytest.mark.parametrize("statement", _VALUES.values(), ids=_VALUES)
def test_a_value_that_dlbricks_did_not_write_names_its_database(changed, tmp_path, statement):
    theirs, ours = changed(statement), tmp_path / "ours.db"

    with Store.open(theirs, read_only=True) as store, pytest.raises(StoreError, match=r"theirs\.db holds a value"):
        _read(store)
    with Store.open(ours) as store:
        with pytest.raises(StoreError, match=r"theirs\.db holds a value") as error:
            merge(store, theirs)
        assert "ours.db" not in str(error.value)
        assert not store.runs()


@pytest.mark.parametrize("change", ["item_id = 77", "run_id = '77'", "finished_us = 253402300800000000"])
def test_a_measurement_of_no_item_run_or_day_is_not_left_out_in_silence(changed, tmp_path, change):
    theirs = changed(f"UPDATE measurement SET {change}")

    with Store.open(tmp_path / "ours.db") as store:
        with pytest.raises(StoreError, match=r"theirs\.db holds a value"):
            merge(store, theirs)
        assert not store.runs()


@pytest.mark.parametrize("table", ["measurement", "dlbricks_revision"])
@pytest.mark.parametrize("statements", _PARTS.values(), ids=_PARTS)
def test_a_view_or_a_trigger_is_never_run(changed, table, statements):
    theirs = changed(statements.format(table))

    with pytest.raises(ForeignDatabase, match=r"theirs\.db has a (view|trigger) '\w+', which dlbricks did not make"):
        Store.open(theirs, read_only=True)


def test_views_of_the_user_stay(changed):
    theirs = changed("CREATE VIEW mine AS SELECT id FROM run")

    with Store.open(theirs) as store:
        assert store.runs()
