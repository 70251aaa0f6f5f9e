"""What ``benchmarks/fleet.py`` plays on: a PostgreSQL server, nodes as processes, a link that can fail."""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import psutil
from fleet_network import PLACES, Wire
from onnx import TensorProto, helper

T = TypeVar("T")

_PLUGIN = Path(__file__).with_name("sleeping_backend.py")


class Server:
    """PostgreSQL on a socket in a folder; without fsync: processes are killed here, not the machine.

    Args:
        folder: Of its data; it is made.
        wired: Whether it also listens to the nodes' wires: this process has a network of its own.
        settings: Further lines for ``postgresql.conf``.
    """

    def __init__(self, folder: Path, *, wired: bool = False, settings: str = "") -> None:
        self.folder = folder
        folder.mkdir()
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:  # as which PostgreSQL refuses to run
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._call("initdb", "-D", folder / "data", "-A", "trust", "-U", "owner", "--no-sync")
        with (folder / "data/postgresql.conf").open("a") as file:
            listening = "*" if wired else ""
            file.write(f"unix_socket_directories = '{folder}'\nlisten_addresses = '{listening}'\nfsync = off\n")
            file.write(settings)
        with (folder / "data/pg_hba.conf").open("a") as file:
            file.write(f"host all all {PLACES} trust\n")
        self.start()
        self._call("createdb", "-h", folder, "-U", "owner", "fleet")

    def _call(self, *command: object) -> None:
        subprocess.run([*map(str, command)], check=True, capture_output=True, cwd=self.folder, **self._user)

    @property
    def url(self) -> str:
        """Over its socket."""
        return f"postgresql+psycopg://owner@/fleet?host={self.folder}"

    @property
    def socket(self) -> Path:
        """Its file."""
        return self.folder / ".s.PGSQL.5432"

    @property
    def version(self) -> str:
        """What it says it is."""
        return subprocess.run(["postgres", "--version"], capture_output=True, text=True, check=True).stdout.strip()

    def kill(self) -> None:
        """The server's first process, and with it the others."""
        os.kill(int((self.folder / "data/postmaster.pid").read_text().split()[0]), signal.SIGKILL)

    def start(self) -> None:
        """Start, or start again: what a killed one held has to be let go first."""
        for _ in range(60):
            try:
                self._call("pg_ctl", "-D", self.folder / "data", "-l", self.folder / "log", "-w", "start")
            except subprocess.CalledProcessError:
                time.sleep(0.5)
            else:
                return
        raise RuntimeError(f"PostgreSQL does not start: {(self.folder / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        """As a crash of it alone ends it."""
        self._call("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "stop")

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        import psycopg

        address = self.url.replace("+psycopg", "")
        with psycopg.connect(address, options="-c search_path=public,dlbricks_fleet") as connection:
            return connection.execute(query.encode()).fetchall()

    def tell(self, *statements: str) -> None:
        """Run statements, each by itself."""
        import psycopg

        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


class Link:
    """A way to the server through this process; while it is down it swallows what is sent and answers nobody.

    For nodes without a wire of their own.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._down = server, False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Over it."""
        return f"postgresql+psycopg://owner@127.0.0.1:{self.port}/fleet"

    def set(self, state: str) -> None:
        """Take it ``down``, or put it ``up`` again."""
        self._down = state == "down"

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        while self._down:
            time.sleep(0.05)
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(str(self._server.socket))
            ends = {client: server, server: client}
            while True:
                for end in select.select(list(ends), [], [])[0]:
                    data = end.recv(1 << 16)
                    while self._down:
                        time.sleep(0.05)
                    if not data:
                        return
                    ends[end].sendall(data)


class Node:
    """A machine of the fleet: a worker's process with a folder, a lock and, if it has a wire, a network of its own."""

    def __init__(self, name: str, url: str, folder: Path, plugin: Path, wire: Wire | None = None) -> None:
        self.name, self.url, self.state = name, url, folder / name
        if wire is not None:
            self.url = f"postgresql+psycopg://owner@{wire.host}/fleet"
        self.wire = wire
        self.state.mkdir(parents=True)
        path = os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self.environment = {**os.environ, "PYTHONPATH": path, "DLBRICKS_LOCK_DIR": str(self.state)}
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *options: str) -> list[str]:
        """What starts its worker."""
        how = ["--node", self.name, "--state", str(self.state), "--db", self.url, "--busy", "100", "--poll", "1s"]
        inside = [] if self.wire is None else self.wire.inside
        return [*inside, sys.executable, "-P", "-m", "dlbricks", "fleet", "work", *how, *options]

    def start(self, *options: str) -> None:
        """Start its worker."""
        with (self.state / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(*options), env=self.environment, stdout=subprocess.DEVNULL, stderr=log
            )

    def once(self, *options: str) -> subprocess.CompletedProcess[bytes]:
        """Its worker until that ends, and what it answers."""
        return subprocess.run(self.command(*options, "--json"), env=self.environment, capture_output=True, check=True)

    def worker(self) -> psutil.Process | None:
        """The worker's process; None where there is none."""
        alive = self.process is not None and self.process.poll() is None
        return psutil.Process(self.process.pid) if alive and self.process is not None else None

    def runner(self) -> psutil.Process | None:
        """The process that measures for it."""
        return _child(self.worker())

    def brick_worker(self) -> psutil.Process | None:
        """The process in which bricks run."""
        return _child(self.runner())

    def blocks(self) -> set[tuple[str, int, int]]:
        """Blocks of samples that are committed in its files."""
        found: set[tuple[str, int, int]] = set()
        for file in (self.state / "cells").glob("*.db"):
            with (
                contextlib.suppress(sqlite3.OperationalError),  # the schema is not there yet, or the file has just gone
                contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection,
            ):
                found |= set(connection.execute("SELECT measurement_id, process, round FROM block"))
        return found

    def end(self) -> None:
        """End its worker."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


def _child(process: psutil.Process | None) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return next(iter(process.children()), None) if process is not None else None
    return None


def until(found: Callable[[], T], seconds: float = 600.0, pause_s: float = 0.05) -> T:
    """What a function finds, as soon as it finds something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(pause_s)
    raise TimeoutError(f"nothing within {seconds:.0f} s")


def make_plugin(folder: Path) -> Path:
    """The sleeping backend as an installed package."""
    information = folder / "sleeping-1.0.dist-info"
    information.mkdir(parents=True)
    shutil.copy(_PLUGIN, folder)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: sleeping\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[dlbricks.backends]\nsleeping = sleeping_backend:SleepingBackend\n")
    return folder


def make_suite(folder: Path, bricks: int, *, work: bool = False) -> Path:
    """A suite of so many bricks of one layer: Relu of many sizes, or (``work``) products of matrices of many sizes."""
    nodes, inputs, outputs, weights = [], [], [], []
    for number in range(bricks):
        columns = 64 + number if work else 1 + number
        rows = 64 if work else 1
        inputs.append(helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, [rows, columns]))
        outputs.append(helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, [rows, columns]))
        if work:
            values = np.ones((columns, columns), np.float32)
            weights.append(onnx.numpy_helper.from_array(values, f"w{number}"))
            nodes.append(helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"y{number}"]))
        else:
            nodes.append(helper.make_node("Relu", [f"x{number}"], [f"y{number}"]))
    graph = helper.make_graph(nodes, "many", inputs, outputs, weights)
    model = folder / f"model-{bricks}-{int(work)}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    place = folder / f"suite-{bricks}-{int(work)}"
    dlbricks("generate", model, "-g", 1, "-o", place)
    return place


def dlbricks(*words: object, environment: dict[str, str] | None = None) -> str:
    """What a command answers."""
    command = [sys.executable, "-P", "-m", "dlbricks", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def serving(folder: Path, *, wired: bool, settings: str = "") -> Iterator[Server]:
    """A server that is stopped in the end."""
    server = Server(folder, wired=wired, settings=settings)
    try:
        yield server
    finally:
        server.stop()
