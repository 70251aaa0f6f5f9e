"""A model with two branches on disk, and a store in which its bricks have chosen latencies."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.db import Block, Conditions, Failure, Measurement, Run, Stack, Stop, Store, Subject, System, Verdict
from dlbricks.db.samples.statistics import summarise
from dlbricks.db.values import Identity, Summary, Visit
from dlbricks.models import ModelSource, find_models

SYSTEM = System("Xeon Example", "x86_64", 2, 4, (("L2", 2097152),), 16)
STACK = Stack("onnxruntime", "cpu", (("onnxruntime", "1.31.0"),))

#  x ─ Relu ─┬─ Sigmoid ─ Tanh ─┬─ Add ─ y
#            └────── Exp ───────┘
FORK = """
<ir_version: 8, opset_import: ["" : 17]>
fork (float[4, 8] x) => (float[4, 8] y) {
    a = Relu(x)
    b = Sigmoid(a)
    c = Tanh(b)
    d = Exp(a)
    y = Add(c, d)
}
"""
CHAIN = """
<ir_version: 8, opset_import: ["" : 17]>
chain (float[2, 3] x) => (float[2, 3] y) {
    a = Relu(x)
    b = Sigmoid(a)
    c = Relu(b)
    y = Sigmoid(c)
}
"""


def summary_of(ns: float) -> Summary:
    """Statistics of samples that all took about as long."""
    return Summary(*[ns] * 6, (ns * 0.99, ns * 1.01), 10, (ns * 0.99, ns, ns * 1.01), Verdict.STABLE)


def changed(made: Measurement, **changes: object) -> Measurement:
    """The same with other values of some fields, be they its own or those of its identity or statistics."""
    figures = {name: changes.pop(name) for name in Summary.__slots__ if name in changes}
    summary = dataclasses.replace(made.summary, **figures)  # type: ignore[arg-type]
    return dataclasses.replace(made, identity=identity_with(made, changes), summary=summary, **changes)  # type: ignore[arg-type]


def identity_with(made: Measurement | Failure, changes: dict[str, object]) -> Identity:
    """Its identity with other values of some fields, which are taken out of the changes."""
    own = {name: changes.pop(name) for name in Identity.__slots__ if name in changes}
    return dataclasses.replace(made.identity, **own)  # type: ignore[arg-type]


@dataclass
class Lab:
    """A store, and ways to put latencies into it."""

    store: Store
    folder: Path
    run: str
    system: System = SYSTEM
    stack: Stack = STACK
    conditions: Conditions = dataclasses.field(default_factory=lambda: Conditions(threads=1))

    def source(self, text: str, name: str = "model") -> ModelSource:
        """A model on disk."""
        path = self.folder / f"{name}.onnx"
        path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
        (source,) = find_models([path])
        return source

    def measurement(self, key: str, ms: float, **changes: object) -> Measurement:
        ns = ms * 1e6
        identity = Identity(Subject.BRICK, key, self.system.key, self.stack.key, self.conditions)
        made = Measurement(str(uuid.uuid4()), self.run, identity, 1, summary_of(ns), Stop.VISITS)
        return changed(made, **changes)

    def put(self, latencies: Iterable[tuple[str, float]], **changes: object) -> None:
        self.store.add((self.measurement(key, ms, **changes), ()) for key, ms in latencies)

    def put_in_turn(
        self,
        latencies: Mapping[str, float],
        machine: Sequence[Sequence[float]],
        *,
        model: str | None = None,
        begun_s: float = 0.0,
        **changes: object,
    ) -> None:
        """Bricks, and a model of which each is part once or more, as sessions of one run see them.

        Args:
            latencies: Undisturbed latency in ms by key.
            machine: By session and visit, how much slower than that everything was.
            model: Which of the keys is of a whole model.
            begun_s: When the first visit began.
            changes: Of the measurements.
        """
        visits = [
            tuple(
                Visit(int((begun_s + 10 * number + place) * 1e6), int(5e4 * factor), int(8e4 * factor))
                for place, factor in enumerate(session)
            )
            for number, session in enumerate(machine)
        ]
        added = []
        for key, ms in latencies.items():
            blocks = [
                Block(number // 2, number % 2, tuple((round(ms * 1e6 * factor), 1) for factor in session), 0, when)
                for number, (session, when) in enumerate(zip(machine, visits, strict=True))
            ]
            found = summarise(blocks, 1)
            statistics = {"mean_ns": found.mean_ns, "median_ns": found.median_ns, "ci95_ns": found.ci95_ns}
            subject = Subject.MODEL if key == model else Subject.BRICK
            quiet = sum(factor == 1 for session in machine for factor in session) / sum(map(len, machine))
            fields = {"subject": subject, "samples": found.samples, "undisturbed_ns": ms * 1e6, "quiet": quiet}
            added.append((self.measurement(key, ms, **(statistics | fields | changes)), blocks))
        self.store.add(added)

    def fail(
        self, key: str, kind: str = "crashed", reason: str = "signal 11", subject: Subject = Subject.BRICK
    ) -> None:
        identity = Identity(subject, key, self.system.key, self.stack.key, self.conditions)
        self.store.add_failure(Failure(str(uuid.uuid4()), self.run, identity, kind, reason))


def keys_of(source: ModelSource, granularity: int = 1, **options: bool) -> list[str]:
    """Keys of the sequences, in order."""
    return [sequence.key for sequence in sequences(graph_of(source), granularity, **options)]


def graph_of(source: ModelSource) -> ModelGraph:
    return build_graph(source.skeleton())


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Store.open(tmp_path / "lab.db") as store:
        run = str(uuid.uuid4())
        store.put_system(SYSTEM)
        store.put_stack(STACK)
        store.begin_run(Run(run, "2026-11-21T00:00:00Z", "0", "run", None, SYSTEM.key, STACK.key))
        yield Lab(store, tmp_path, run)


@pytest.fixture
def fork(lab: Lab) -> ModelSource:
    return lab.source(FORK, "fork")


@pytest.fixture
def chain(lab: Lab) -> ModelSource:
    return lab.source(CHAIN, "chain")


@pytest.fixture(name="keys_of")
def keys_of_fixture() -> Callable[..., list[str]]:
    return keys_of


@pytest.fixture(name="graph_of")
def graph_of_fixture() -> Callable[..., ModelGraph]:
    return graph_of
