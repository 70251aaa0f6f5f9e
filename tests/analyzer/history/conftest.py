"""A database with many runs of one model, whose latencies, versions and machine are chosen."""

from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.reference import OVERHEAD, built_in_key
from dlbricks.db import Block, Conditions, Measurement, Run, Stack, Stop, Store, Subject, System
from dlbricks.db.values import MODELS, Identity, Visit
from dlbricks.models import ModelSource, find_models
from lab import changed, summary_of

WARM = Conditions(1, "model")
SYSTEM = System("Xeon Example", "x86_64", 2, 4, (("L2", 2097152),), 16)


def stack(version: str = "1.30.0", **options: str) -> Stack:
    return Stack("onnxruntime", "cpu", (("onnxruntime", version),), tuple(sorted(options.items())))


@dataclass
class Nights:
    """A run every night, with 1 % of scatter between them."""

    store: Store
    source: ModelSource
    key: str
    """Of the model."""
    bricks: Mapping[str, int]
    """Key of each brick to its occurrences, in the model's order."""
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    nights: int = 0

    def run(
        self,
        ms: float = 1.0,
        *,
        version: str = "1.30.0",
        machine: float = 1.0,
        probe: bool = True,
        reference_us: float | None = 2.0,
        bricks: Mapping[str, float] | None = None,
        undisturbed: bool = True,
        quiet: float = 0.5,
        conditions: Conditions = WARM,
        kernel: str = "6.1",
        node: str = "",
        files: Sequence[str] = (),
        **options: str,
    ) -> str:
        """Store a run of some files of the model's name; what it measured is ``machine`` times as long as given."""
        id_, used = str(uuid.uuid4()), stack(version, **options)
        begun = datetime(2026, 9, 1, 2, tzinfo=UTC) + timedelta(days=self.nights)
        self.nights += 1
        self.store.put_system(SYSTEM)
        self.store.put_stack(used)
        state = {"kernel": kernel}
        named = {MODELS: dict.fromkeys(files, self.source.name)} if files else {}
        self.store.begin_run(
            Run(id_, begun.isoformat(), "0.1", "run", None, SYSTEM.key, used.key, named, before=state, node=node)
        )
        when = tuple(
            Visit(int(begun.timestamp() * 1e6) + 1000 * place, *(self._probe(ns * machine) for ns in (50_000, 80_000)))
            for place in range(12)
        )

        def taken(subject: Subject, key: str, latency_ms: float) -> tuple[Measurement, list[Block]]:
            ns = latency_ms * 1e6 * machine * float(self.rng.normal(1, 0.01))
            where = dataclasses.replace(conditions, cache="hot") if subject is Subject.REFERENCE else conditions
            made = Measurement(
                str(uuid.uuid4()), id_, Identity(subject, key, SYSTEM.key, used.key, where), 1, summary_of(ns),
                Stop.VISITS, undisturbed_ns=ns if undisturbed else None, quiet=quiet if undisturbed else None,
            )  # fmt: skip
            made = changed(made, mean_ns=1.2 * ns, ci95_ns=(1.19 * ns, 1.21 * ns), samples=12)
            return made, [Block(0, 0, ((int(ns), 1),) * 12, visits=when if probe else ())]

        wanted = [taken(Subject.MODEL, key, ms) for key in files or (self.key,)]
        wanted += [] if reference_us is None else [taken(Subject.REFERENCE, built_in_key(OVERHEAD), reference_us / 1e3)]
        self.store.add(wanted)
        level = dataclasses.replace(conditions, cache="hot")
        self.store.add(
            (changed(one, conditions=level), blocks)
            for one, blocks in (taken(Subject.BRICK, key, latency) for key, latency in (bricks or {}).items())
        )
        return id_

    def _probe(self, ns: float) -> int:
        return int(ns * self.rng.uniform(1.0, 1.02))


@pytest.fixture
def nights(tmp_path: Path, write_branches: Callable[[Path], Path]) -> Iterator[Nights]:
    (source,) = find_models([write_branches(tmp_path / "branches.onnx")])
    graph = build_graph(source.skeleton())
    with Store.open(tmp_path / "nights.db") as store:
        yield Nights(store, source, graph.key, Counter(part.key for part in sequences(graph, 1)))
