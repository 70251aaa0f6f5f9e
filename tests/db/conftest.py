"""Values to store, and a store with everything that a measurement refers to."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dlbricks.db import (
    Block,
    Conditions,
    Failure,
    Measurement,
    Run,
    Stack,
    Stop,
    Store,
    Subject,
    System,
    Verdict,
    upgrading,
)
from dlbricks.db.identity import Identity
from dlbricks.db.place import WRITING, Place, engine
from dlbricks.db.revision import mark
from dlbricks.db.rows import block_row, run_row, stack_row, statistics_row, system_row
from dlbricks.db.store import Opened
from dlbricks.db.values import Summary, Visit
from lab import changed
from servers import Server, server, url
from sqlalchemy import MetaData, Table, insert

__all__ = ["server", "url"]

SYSTEM = System(
    cpu="Xeon Example",
    architecture="x86_64",
    physical_cores=2,
    logical_cores=4,
    cache_bytes=(("L1d", 49152), ("L2", 2097152)),
    memory_gib=16,
    isa=("avx2", "avx512f"),
)
STACK = Stack(backend="onnxruntime", device="cpu", versions=(("onnxruntime", "1.31.0"),), options=(("level", "all"),))


def key_of(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


@dataclass
class Bench:
    """A store with one system, one stack and one run."""

    store: Store
    path: Path | str
    run: Run
    system: str
    stack: str
    conditions: Conditions = dataclasses.field(default_factory=lambda: Conditions(threads=1))

    def measurement(self, name: object, median_ns: float = 1000.0, **changes: object) -> Measurement:
        """A plausible finished measurement of a brick."""
        made = Measurement(
            id=str(uuid.uuid4()),
            run=self.run.id,
            subject=Subject.BRICK,
            key=key_of(name),
            system=self.system,
            stack=self.stack,
            conditions=self.conditions,
            unroll=4,
            summary=Summary(
                median_ns=median_ns,
                mean_ns=median_ns * 1.01,
                trimmed_mean_ns=median_ns,
                min_ns=median_ns * 0.9,
                p90_ns=median_ns * 1.1,
                p99_ns=median_ns * 1.2,
                ci95_ns=(median_ns * 0.99, median_ns * 1.01),
                samples=24,
                block_medians_ns=(median_ns * 0.99, median_ns, median_ns * 1.01),
                verdict=Verdict.STABLE,
            ),
            stop=Stop.VISITS,
            load_ns=5_000_000,
            footprint_bytes=32 << 20,
            undisturbed_ns=median_ns * 0.95,
            quiet=0.75,
        )
        return changed(made, **changes)

    def begin(self, measurement: Measurement) -> None:
        opened = Opened(measurement.id, measurement.run, Identity.of(measurement), measurement.unroll)
        self.store.add_session([opened], ())

    def measure(self, name: object, median_ns: float = 1000.0, **changes: object) -> Measurement:
        """Begin, add two blocks, finish: as a run does it."""
        made = self.measurement(name, median_ns, **changes)
        self.begin(made)
        for round_ in range(2):
            self.store.add_session((), [(made.id, block(0, round_))])
        self.store.finish(made)
        return made

    def failure(self, name: object, **changes: object) -> Failure:
        made = Failure(
            id=str(uuid.uuid4()),
            run=self.run.id,
            subject=Subject.BRICK,
            key=key_of(name),
            system=self.system,
            stack=self.stack,
            conditions=self.conditions,
            kind="crashed",
            reason="signal 11 while running /home/ann/secret/brick.onnx",
        )
        return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def block(process: int, round_: int, n: int = 12) -> Block:
    samples = tuple((1_000_000 + 7 * process + 13 * round_ + i, 64) for i in range(n))
    begun_us = 1_700_000_000_000_000 + 10**9 * process + 10**8 * round_
    visits = tuple(Visit(begun_us + 50_000 * i, 20_000 + 11 * i, 30_000 + 17 * i) for i in range(n))
    return Block(process, round_, samples, warmups=3, visits=visits)


def furnish(path: Path | str, system: System = SYSTEM, stack: Stack = STACK, node: str = "") -> Bench:
    store = Store.open(path)
    run = Run(
        id=str(uuid.uuid4()),
        started="2026-11-21T03:00:00Z",
        tool="0.1.0",
        command="run",
        suite="5" * 64,
        system=store.put_system(system),
        stack=store.put_stack(stack),
        options={"threads": 1, "suite": "/home/ann/secret-suite", "with": ["secret-model"]},
        before={"governor": "performance", "load_1m": 0.1, "host": "anns-laptop"},
        node=node,
        campaign="autumn" if node else "",
    )
    store.begin_run(run)
    return Bench(store, path, run, system.key, stack.key)


def make_old(
    path: Path | str, revision: str, done: Measurement, left: Measurement, blocks: Sequence[Block]
) -> Path | str:
    """A database as an earlier version left it: its own tables, one finished measurement and one open, with blocks."""
    from alembic import command

    place = Place.of(path)
    made = engine(place, foreign_keys=False)
    with made.connect().execution_options(**{WRITING: True}) as connection, connection.begin():
        command.upgrade(upgrading.migration_config(connection), revision)
        mark(connection, place)

        def put(name: str, row: Mapping[str, object]) -> Any:
            """Insert what the table of that time has a column for."""
            table = Table(name, MetaData(), autoload_with=connection)
            known = {column: value for column, value in row.items() if column in table.c}
            return connection.execute(insert(table), known).inserted_primary_key[0]

        put("system", system_row(SYSTEM))
        put("stack", stack_row(STACK))
        put("run", run_row(Run(done.run, "2026-11-20T03:00:00Z", "0.1.0", "run", "5" * 64, SYSTEM.key, STACK.key)))
        under = put("combination", {"system": SYSTEM.key, "stack": STACK.key, **dataclasses.asdict(done.conditions)})
        for measurement in (done, left):
            about = {"subject": str(measurement.subject), "key": measurement.key, "variant": ""}
            item = put("item", {"combination_id": under, **about})
            begun = {"id": measurement.id, "item_id": item, "run_id": measurement.run, "unroll": measurement.unroll}
            finished = statistics_row(measurement) | {"finished_us": 1} if measurement is done else {}
            put("measurement", finished | begun)
            for block_ in blocks:
                put("block", block_row(measurement.id, block_))
    made.dispose()
    return path


@pytest.fixture
def old_database(home: Callable[[Path], Path | str]) -> Callable[..., Path | str]:
    """Makes a database of an earlier revision: path, revision, what was finished, what was left open, their blocks."""
    return lambda path, *given: make_old(home(path), *given)


ANYWHERE = {
    *("test_decompositions", "test_export", "test_identity", "test_kernel_views", "test_locking", "test_many_writers"),
    *("test_merge", "test_nodes", "test_protocols", "test_store"),
}
"""Modules whose tests hold for every kind of database; those of them about the file itself are marked ``sqlite``."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "home" in metafunc.fixturenames:
        anywhere = metafunc.module.__name__.rpartition(".")[2] in ANYWHERE
        anywhere &= metafunc.definition.get_closest_marker("sqlite") is None
        metafunc.parametrize("home", ["sqlite", "postgresql"] if anywhere else ["sqlite"], indirect=True)


@pytest.fixture
def home(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], Path | str]]:
    """Where a new database is, in place of a file: the file itself, or one on a server."""
    if request.param == "sqlite":
        yield lambda path: path
        return
    server: Server = request.getfixturevalue("server")
    with server.databases() as new:
        yield lambda _path: new()


@pytest.fixture(name="furnish")
def furnish_fixture(home: Callable[[Path], Path | str]) -> Iterator[Callable[..., Bench]]:
    """Makes a furnished database: at a path, or what is in its place where tests run on a server."""
    opened: list[Bench] = []

    def make(path: Path | str, **given: object) -> Bench:
        place = home(path) if isinstance(path, Path) else path
        opened.append(furnish(place, **given))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for bench in opened:
        bench.store.close()


@pytest.fixture
def bench(tmp_path: Path, furnish: Callable[..., Bench]) -> Bench:
    return furnish(tmp_path / "ours.db")


@pytest.fixture(name="block")
def block_fixture() -> Callable[..., Block]:
    return block


@pytest.fixture(name="key_of")
def key_of_fixture() -> Callable[[object], str]:
    return key_of
