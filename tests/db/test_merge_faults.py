"""Which of two databases a merge calls to account: each error names the one that it came from, and the other not."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dlbricks.db import Store, merge, merging
from dlbricks.errors import DatabaseLocked, DatabaseReadOnly, DatabaseUnreachable, DiskFull, StoreError
from servers import Server

_MANY = 400


def blamed(error: pytest.ExceptionInfo[StoreError], one: Path | str, other: Path | str) -> str:
    """The message, which names one of the databases and not the other."""
    message = str(error.value)
    ours, theirs = (str(place).rpartition("@/")[2].partition("?")[0] for place in (one, other))
    assert ours in message
    assert theirs not in message
    return message


@pytest.fixture
def source(tmp_path, furnish, block) -> Path:
    """A file with measurements."""
    bench = furnish(tmp_path / "source.db")
    bench.store.add((bench.measurement(number), (block(0, 0), block(1, 0))) for number in range(_MANY))
    bench.store.close()
    return Path(bench.path)


@pytest.fixture
def target(tmp_path) -> Path:
    """A file that is ours, and empty."""
    Store.open(tmp_path / "target.db").close()
    return tmp_path / "target.db"


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Whoever holds a database is not waited for."""
    monkeypatch.setattr(merging, "_PATIENCE_S", 0.0)


def test_a_target_that_is_full(source, target):
    with Store.open(target) as store:
        with store.writing() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 2}")
        with pytest.raises(DiskFull) as error:
            merge(store, source)
        blamed(error, target, source)
        assert store.info()["counts"]["measurements"] == 0


def test_a_target_whose_disk_is_full(source, target):
    """The operating system's own refusal to let a file grow; as the command line says it."""

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    command = [sys.executable, "-P", "-m", "dlbricks", "db", "merge", str(source), "--db", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limited)
    assert done.returncode == 1
    assert str(target) in done.stderr
    assert str(source) not in done.stderr


def test_a_target_that_another_process_holds(source, target, impatient):
    holder = sqlite3.connect(target, isolation_level=None)
    with Store.open(target, busy_timeout_s=0.05) as store:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseLocked) as error:
            merge(store, source)
        blamed(error, target, source)
    holder.close()


def test_a_target_that_is_opened_for_reading(source, target):
    with Store.open(target, read_only=True) as store, pytest.raises(DatabaseReadOnly) as error:
        merge(store, source)
    blamed(error, target, source)


def spoil(path: Path) -> None:
    """Overwrite every page but the first ones, which say what the tables are."""
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\xff" * (size // 2))


def test_a_source_that_is_damaged(source, target):
    spoil(source)
    with Store.open(target) as store, pytest.raises(StoreError, match="damaged") as error:
        merge(store, source)
    blamed(error, source, target)


def test_a_target_that_is_damaged(source, target, furnish, block):
    with Store.open(target) as store:
        merge(store, source)
    spoil(target)
    with Store.open(target) as store, pytest.raises(StoreError, match="damaged") as error:
        merge(store, source)
    blamed(error, target, source)


def test_a_source_that_another_process_holds(source, target, impatient):
    """In WAL mode a reader waits for nobody; as other programs may leave a file, it does."""
    holder = sqlite3.connect(source, isolation_level=None)
    holder.execute("PRAGMA journal_mode=DELETE")
    holder.execute("BEGIN")
    with Store.open(source, read_only=True, busy_timeout_s=0.05) as other, Store.open(target) as store:
        holder.execute("COMMIT")
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseLocked) as error:
            merge(store, other)
        blamed(error, source, target)
    holder.close()


@pytest.fixture
def little_disk(server, tmp_path) -> Iterator[Path]:
    """A folder of the server on a disk of 12 MB."""
    folder = server.folder / "little"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(folder)], check=False)
    if mounted.returncode:
        folder.rmdir()
        pytest.skip("root may mount a disk, and others may not")
    shutil.chown(folder, server.folder.owner())
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


def on_server(server: Server, source: Path, *statements: str, url: str) -> pytest.ExceptionInfo[StoreError]:
    """What merging into a database on the server ends with, after some statements about it."""
    with Store.open(url) as store:
        server.execute(*statements)
        store.close()  # what was changed is true of new connections
        with pytest.raises(StoreError) as error:
            merge(store, source)
    return error


def test_a_target_on_a_server_that_may_only_be_read(source, server, url):
    name = url.partition("@/")[2].partition("?")[0]
    error = on_server(server, source, f"ALTER DATABASE {name} SET default_transaction_read_only = on", url=url)
    assert isinstance(error.value, DatabaseReadOnly)
    blamed(error, url, source)


def test_a_target_on_a_server_that_is_held(source, server, url, impatient):
    import psycopg

    name = url.partition("@/")[2].partition("?")[0]
    Store.open(url).close()
    with psycopg.connect(url.replace("+psycopg", "")) as holder:
        holder.execute("LOCK TABLE measurement IN ACCESS EXCLUSIVE MODE")
        error = on_server(server, source, f"ALTER DATABASE {name} SET lock_timeout = '100ms'", url=url)
        holder.rollback()
    assert isinstance(error.value, DatabaseLocked)
    blamed(error, url, source)


def test_a_target_on_a_server_whose_disk_is_full(source, server, little_disk):
    server.execute(f"CREATE TABLESPACE little LOCATION '{little_disk}'", "CREATE DATABASE full_one TABLESPACE little")
    url = server.url("full_one")
    try:
        Store.open(url).close()
        with (little_disk / "others").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)
        error = on_server(server, source, url=url)
        assert isinstance(error.value, DiskFull)
        blamed(error, url, source)
    finally:
        (little_disk / "others").unlink(missing_ok=True)
        server.execute("DROP DATABASE full_one WITH (FORCE)", "DROP TABLESPACE little")


def test_a_target_on_a_server_that_goes_away(source, server, url):
    """A trigger ends the connection that inserts, as a crash of its process would."""
    name = url.partition("@/")[2].partition("?")[0]
    Store.open(url).close()
    server.execute(
        "CREATE FUNCTION away() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END'",
        "CREATE TRIGGER away BEFORE INSERT ON block EXECUTE FUNCTION away()",
        database=name,
    )
    error = on_server(server, source, url=url)
    assert isinstance(error.value, DatabaseUnreachable)
    blamed(error, url, source)


def test_what_a_server_cannot_hold_is_said_of_it(source, server, url):
    """SQLite keeps any text; PostgreSQL refuses a zero byte in one."""
    with sqlite3.connect(source) as raw:
        raw.execute("UPDATE run SET command = 'run' || char(0)")
    raw.close()
    error = on_server(server, source, url=url)
    assert "refused a value" in blamed(error, url, source)
