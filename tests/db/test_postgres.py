"""What is special about a store on a PostgreSQL server."""

from __future__ import annotations

import uuid

import pytest
from dlbricks.db import Run, Store, Subject, export, merge, upgrade
from dlbricks.db.identity import Identity
from dlbricks.db.schema import REVISIONS
from dlbricks.db.store import Opened
from dlbricks.errors import DatabaseReadOnly, DatabaseUnreachable, ForeignDatabase, StoreError


def test_everything_that_works_in_a_file_works_on_a_server(url, bench, block, tmp_path):
    bench.measure("a")
    bench.measure("a", variant="winograd")
    bench.store.add_failure(bench.failure("b"))
    with Store.open(url) as store:
        assert merge(store, bench.path).measurements == 2
        assert merge(store, bench.path).measurements == 0
        assert store.measurements(variant=None) == bench.store.measurements(variant=None)
        assert store.failures() == bench.store.failures()

        made = bench.measurement("c")
        identity = (made.subject, made.key, made.system, made.stack, made.conditions)
        store.add_session([Opened(made.id, made.run, Identity(*identity), made.unroll)], ())
        with pytest.raises(StoreError, match="open already"):
            store.add_session([Opened(str(uuid.uuid4()), made.run, Identity(*identity), made.unroll)], ())
        store.add_session((), [(made.id, block(0, 0))])
        with pytest.raises(StoreError, match="already"):
            store.add_session((), [(made.id, block(0, 0))])
    with Store.open(url) as store:
        assert store.open_item(*identity) == (made.id, made.unroll, [block(0, 0)])
        store.finish(made)
        assert store.measured_keys(*identity[2:], Subject.BRICK) == {made.key, bench.measurement("a").key}
        assert store.begin_run(Run(str(uuid.uuid4()), "2026", "0", "run", None, made.system, made.stack)) is None
        assert store.info()["counts"]["runs"] == 2
        assert export(store, tmp_path / "out.db") == 3
    assert merge(bench.store, url).measurements == 1


def test_alembic_finds_no_difference_on_the_server(url):
    from alembic import command
    from dlbricks.db.place import Place, engine
    from dlbricks.db.upgrading import migration_config

    Store.open(url).close()
    made = engine(Place.of(url))
    with made.connect() as connection:
        command.check(migration_config(connection))
    made.dispose()
    assert upgrade(url).before == REVISIONS[-1]


def test_another_programs_database_on_the_server(url):
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE TABLE urls (url TEXT)")
    with pytest.raises(ForeignDatabase):
        Store.open(url)


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


def test_reading_only(url):
    Store.open(url).close()
    with Store.open(url, read_only=True) as store, pytest.raises(DatabaseReadOnly):
        store.end_run("any", after={}, finished="2026")
