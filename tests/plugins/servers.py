"""A real PostgreSQL server for tests; skipped where psycopg or the server's programs are not installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
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
        port: Of that socket, and of the network where it listens there.
        call: Runs one of its programs as its user.
    """

    folder: Path
    port: int
    call: Callable[..., None]

    def stop(self) -> None:
        """As a crash ends it."""
        self.call("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "stop")

    def start(self) -> None:
        """Again, with what it held."""
        self.call("pg_ctl", "-D", self.folder / "data", "-l", self.folder / "log", "-w", "start")

    def url(self, database: str = "postgres", user: str = "ann") -> str:
        return f"postgresql+psycopg://{user}@/{database}?host={self.folder}&port={self.port}"

    def execute(self, *statements: str, database: str = "postgres", user: str = "ann") -> None:
        """Run statements past the store, each by itself."""
        import psycopg

        with psycopg.connect(self.url(database, user).replace("+psycopg", ""), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    @contextmanager
    def databases(self) -> Iterator[Callable[[], str]]:
        """Make empty databases, each by its URL; they are dropped at the end: each is 7 MB in a thousand files."""
        names: list[str] = []

        def new() -> str:
            names.append(f"db_{uuid.uuid4().hex}")
            self.execute(f"CREATE DATABASE {names[-1]}")
            return self.url(names[-1])

        yield new
        self.execute(*(f"DROP DATABASE {name} WITH (FORCE)" for name in names))


@contextmanager
def serving(
    settings: str = "", *, access: str = "", secrets: Mapping[str, Path] | None = None, port: int = 5432
) -> Iterator[Server]:
    """Start a server of its own on a socket in a temporary folder; PostgreSQL refuses to run as root.

    Args:
        settings: Lines for postgresql.conf.
        access: Lines for pg_hba.conf, instead of all but those of the socket.
        secrets: Files that only it may read, by the name that they have in its data folder.
        port: Of its socket, and of the network where ``settings`` let it listen.
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
            file.write(
                f"unix_socket_directories = '{name}'\nlisten_addresses = ''\nport = {port}\nfsync = off\n{settings}\n"
            )
        (data / "pg_hba.conf").write_text(f"local all all trust\n{access}\n")
        for place, file in (secrets or {}).items():
            shutil.copyfile(file, data / place)
            shutil.chown(data / place, demote.get("user"))
            (data / place).chmod(0o600)
        server = Server(folder, port, call)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One for all tests of a process."""
    with serving() as started:
        yield started


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    """An empty database on it."""
    with server.databases() as new:
        yield new()
