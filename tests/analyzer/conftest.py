"""A model on disk; a database in which it and its bricks have chosen latencies, and one that was really measured."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.reference import OVERHEAD, built_in_key
from dlbricks.db import Block, Conditions, Failure, Measurement, Run, Stack, Stop, Store, Subject, System, Verdict
from dlbricks.db.samples.statistics import summarise
from dlbricks.db.values import Identity
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.run import run
from dlbricks.models import ModelSource, find_models

SYSTEM = System("Xeon Example", "x86_64", 2, 4, (("L2", 2097152),), 16)
PLAIN = Stack("onnxruntime", "cpu", (("onnxruntime", "1.31.0"),), (("optimization", "all"),))
DISABLED = Stack("onnxruntime", "cpu", (("onnxruntime", "1.31.0"),), (("optimization", "disabled"),))
TORCH = Stack("torch", "cpu", (("torch", "2.13.0"),))
HOT = Conditions(1, "hot")


@dataclass
class Bench:
    """A database, and runs whose samples are drawn around chosen latencies."""

    store: Store
    source: ModelSource
    key: str
    """Of the model."""
    counts: Mapping[str, int]
    """Key of each brick to its occurrences, in the model's order."""
    plain: ClassVar[Stack] = PLAIN
    disabled: ClassVar[Stack] = DISABLED
    torch: ClassVar[Stack] = TORCH
    minute: int = 0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def run(
        self,
        stack: Stack = PLAIN,
        *,
        ms: float | None = None,
        bricks: Mapping[str, float] | None = None,
        conditions: Conditions = HOT,
        reference_us: float = 100.0,
        noise: float = 0.001,
        system: System = SYSTEM,
        variant: str = "",
        key: str = "",
        references: Mapping[str, float] | None = None,
        start_ms: tuple[float, float] | None = None,
        undisturbed: float | None = None,
    ) -> str:
        """Store a run: two processes of three rounds, some percent of noise.

        Args:
            stack: That of the run.
            ms: Latency of the model; None where it is not measured.
            bricks: Latency of each brick in ms.
            conditions: Those of the run.
            reference_us: Latency of the reference network.
            noise: Relative standard deviation of each sample.
            system: Where it ran.
            variant: Algorithm of bricks and model.
            key: Key of the model; empty for that of the bench.
            start_ms: What loading the model and its first run took.
            undisturbed: Of each mean, the share that it takes while the machine is quiet; None where that is not known.
            references: Latency of further networks of our own in ms, by name.
        """
        id_ = str(uuid.uuid4())
        self.minute += 1
        self.store.put_system(system)
        self.store.put_stack(stack)
        started = f"2026-11-21T10:{self.minute:02}:00+00:00"
        self.store.begin_run(Run(id_, started, "0", "run", None, system.key, stack.key))

        def taken(subject: Subject, key: str, latency_ms: float) -> tuple[Measurement, list[Block]]:
            times = latency_ms * 1e6 * self.rng.normal(1, noise, (2, 3, 5))
            blocks = [
                Block(process, round_, tuple((int(sample), 1) for sample in times[process, round_]))
                for process in range(2)
                for round_ in range(3)
            ]
            found = summarise(blocks, 1)
            own = "" if subject is Subject.REFERENCE else variant
            measurement = Measurement(
                id=str(uuid.uuid4()), run=id_, identity=Identity(subject, key, system.key, stack.key, conditions, own),
                unroll=1, summary=replace(found, verdict=Verdict.STABLE), stop=Stop.VISITS,
                load_ns=None if start_ms is None else int(start_ms[0] * 1e6),
                first_run_ns=None if start_ms is None else int(start_ms[1] * 1e6),
                undisturbed_ns=None if undisturbed is None else undisturbed * found.mean_ns,
                quiet=None if undisturbed is None else 0.5,
            )  # fmt: skip
            return measurement, blocks

        wanted = [taken(Subject.REFERENCE, built_in_key(OVERHEAD), reference_us / 1e3)]
        wanted += [taken(Subject.REFERENCE, built_in_key(name), found) for name, found in (references or {}).items()]
        wanted += [taken(Subject.BRICK, key, latency) for key, latency in (bricks or {}).items()]
        wanted += [] if ms is None else [taken(Subject.MODEL, key or self.key, ms)]
        self.store.add(wanted)
        return id_

    def fail(self, run: str, stack: Stack, key: str, kind: str, reason: str, subject: Subject = Subject.BRICK) -> None:
        identity = Identity(subject, key, SYSTEM.key, stack.key, HOT)
        self.store.add_failure(Failure(str(uuid.uuid4()), run, identity, kind, reason))

    def bricks(self, *latencies: float) -> dict[str, float]:
        """A latency for each brick; one for all where one is given."""
        several = latencies if len(latencies) > 1 else latencies * len(self.counts)
        return dict(zip(self.counts, several, strict=True))


@pytest.fixture
def bench(tmp_path: Path, write_branches: Callable[[Path], Path]) -> Iterator[Bench]:
    (source,) = find_models([write_branches(tmp_path / "branches.onnx")])
    graph = build_graph(source.skeleton())
    counts = Counter(part.key for part in sequences(graph, 1))
    with Store.open(tmp_path / "bench.db") as store:
        yield Bench(store, source, graph.key, counts)


@pytest.fixture(scope="session")
def really_measured(tmp_path_factory: pytest.TempPathFactory, write_branches: Callable[[Path], Path]) -> Path:
    """A folder with a model and a database: onnxruntime as it is, without optimisations, and as it is once more."""
    folder = tmp_path_factory.mktemp("really")
    write_branches(folder / "branches.onnx")
    models = find_models([folder / "branches.onnx"])
    generate(models, granularity=1, out=folder / "suite")
    with Store.open(folder / "dlbricks.db") as store:
        for level in ("all", "disabled", "all"):
            run(
                folder / "suite", store=store, models=models, cache="hot", again=("all",),
                options={"optimization": level}, visits=12,
            )  # fmt: skip
    return folder
