"""Values to store, and a store with everything that a measurement refers to."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from dlbricks.db import Block, Conditions, Failure, Measurement, Run, Stack, Stop, Store, Subject, System, Verdict
from dlbricks.db.store import OpenedMeasurement
from dlbricks.db.values import Identity, Summary, Visit
from lab import changed, identity_with
from servers import Server

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

    def identity(self, name: object) -> Identity:
        return Identity(Subject.BRICK, key_of(name), self.system, self.stack, self.conditions)

    def measurement(self, name: object, median_ns: float = 1000.0, **changes: object) -> Measurement:
        """A plausible finished measurement of a brick."""
        made = Measurement(
            id=str(uuid.uuid4()),
            run=self.run.id,
            identity=self.identity(name),
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
        opened = OpenedMeasurement(measurement.id, measurement.run, measurement.identity, measurement.unroll)
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
        reason = "signal 11 while running /home/ann/secret/brick.onnx"
        made = Failure(str(uuid.uuid4()), self.run.id, self.identity(name), "crashed", reason)
        return dataclasses.replace(made, identity=identity_with(made, changes), **changes)  # type: ignore[arg-type]


def content(store: Store) -> tuple[object, ...]:
    """Everything that a database says, apart from its local numbering."""
    measurements = sorted(store.measurements(variant=None, latest=False), key=lambda m: m.id)
    runs = sorted(store.runs(), key=lambda run: run.id)
    failures = sorted(store.failures(variant=None), key=lambda failure: failure.id)
    blocks = store.blocks_of([m.id for m in measurements])
    return store.systems(), store.stacks(), runs, measurements, blocks, failures


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


ANYWHERE = {"test_many_writers", "test_protocols", "test_store"}
"""Modules whose tests run on a server too; those of them about a file are marked ``sqlite``. Other modules use what
these test, and have what is special about a server in ``test_postgres``."""


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
