"""A real PostgreSQL server for tests; skipped where psycopg or the server's programs are not installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_PROGRAMS = ("initdb", "pg_ctl")


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        folder: Holds its data, its socket and its log.
    """

    folder: Path

    def url(self, database: str = "postgres", user: str = "ann") -> str:
        return f"postgresql+psycopg://{user}@/{database}?host={self.folder}"

    def execute(self, *statements: str, database: str = "postgres", user: str = "ann") -> None:
        """Run statements past the store, each by itself."""
        import psycopg

        with psycopg.connect(self.url(database, user).replace("+psycopg", ""), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def new(self) -> str:
        """URL of an empty database."""
        name = f"db_{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)


@contextmanager
def serving(settings: str = "", *, access: str = "") -> Iterator[Server]:
    """Start a server of its own on a socket in a temporary folder; PostgreSQL refuses to run as root.

    Args:
        settings: Lines for postgresql.conf.
        access: Lines for pg_hba.conf, before those of the socket.
    """
    pytest.importorskip("psycopg", reason="psycopg is not installed (pip install 'dlbricks[postgres]')")
    if not all(map(shutil.which, _PROGRAMS)):
        pytest.skip("no PostgreSQL server on the PATH")
    demote: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(name, user.pw_uid, user.pw_gid)
            demote = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        data = folder / "data"

        def call(*command: object) -> None:
            subprocess.run([*map(str, command)], check=True, capture_output=True, cwd=name, **demote)

        call("initdb", "-D", data, "-A", "trust", "-U", "ann", "--no-sync")
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"unix_socket_directories = '{name}'\nlisten_addresses = ''\nfsync = off\n{settings}\n")
        rules = data / "pg_hba.conf"
        rules.write_text(f"{access}\n{rules.read_text()}")
        call("pg_ctl", "-D", data, "-l", folder / "log", "-w", "start")
        try:
            yield Server(folder)
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One for all tests of a process."""
    with serving() as started:
        yield started


@pytest.fixture
def url(server: Server) -> str:
    """An empty database on it."""
    return server.new()
