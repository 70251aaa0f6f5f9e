"""What is special about a store on a PostgreSQL server."""

from __future__ import annotations

import dataclasses
import uuid

import pytest
from dlbricks.db import Run, Store, export, merge
from dlbricks.errors import DatabaseUnreachable


def test_files_and_servers_are_merged_and_exported_into_each_other(url, bench, block, tmp_path):
    bench.measure("a")
    bench.measure("a", variant="winograd")
    bench.store.add_failure(bench.failure("b"))
    with Store.open(url) as store:
        assert merge(store, bench.path).measurements == 2
        assert merge(store, bench.path).measurements == 0
        assert store.measurements(variant=None) == bench.store.measurements(variant=None)
        assert store.failures() == bench.store.failures()
        there = dataclasses.replace(bench, store=store).measure("c")
        assert (
            store.begin_run(Run(str(uuid.uuid4()), "2026-11-21T03:00:00Z", "0", "run", None, there.system, there.stack))
            is None
        )
        assert store.info()["counts"]["runs"] == 2
        assert export(store, tmp_path / "out.db") == 3
    assert merge(bench.store, url).measurements == 1


def test_a_server_that_does_not_answer(tmp_path):
    with pytest.raises(DatabaseUnreachable, match="cannot be used") as error:
        Store.open(f"postgresql+psycopg://ann:secret@/x?host={tmp_path}")
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def _break(server, name, connection):
    server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    connection.exec_driver_sql("SELECT 1")


def test_a_connection_that_breaks_in_the_midst(url, server):
    name = url.partition("@/")[2].partition("?")[0]
    with Store.open(url) as store:
        with pytest.raises(DatabaseUnreachable), store.writing() as connection:
            _break(server, name, connection)
        assert store.runs() == []
