"""How long `estimate` of the whole built-in zoo takes from a database of 100,000 measurements.

Builds the database (the zoo's own bricks on several stacks, whole models, and bricks of other models up to the number
wanted; latencies are random, since only the time of the query matters), then starts a process per repetition that opens
it, estimates every model and prints the answer as JSON.

    python benchmarks/estimate_scale.py [--measurements 100000] [--granularity 1] [--repeat 5]
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.db import Conditions, Measurement, Run, Stack, Stop, Store, Subject, System, Verdict
from dlbricks.models import find_models
from dlbricks.models.zoo import names

STACKS = 10
CHUNK = 20_000

CLIENT = """
import json, sys
from dlbricks.constructor import estimate
from dlbricks.db import Store
from dlbricks.models import find_models
with Store.open(sys.argv[1], read_only=True) as store:
    answers = estimate(find_models(sys.argv[3:]), store=store, granularity=int(sys.argv[2]), stack=STACK)
print(json.dumps([answer.record() for answer in answers]))
"""


def zoo() -> list[str]:
    """Every model that needs no extra."""
    return [entry.name for entry in names() if entry.extra is None]


def decompose(granularity: int) -> tuple[set[str], set[str]]:
    """Keys of the zoo's bricks and models."""
    bricks: set[str] = set()
    models: set[str] = set()
    for source in find_models(zoo()):
        graph = build_graph(source.skeleton())
        bricks |= {sequence.key for sequence in sequences(graph, granularity)}
        models.add(graph.key)
    return bricks, models


def fill(path: Path, wanted: int, granularity: int) -> str:
    """Make the database; returns the key of the stack to ask for."""
    rng = random.Random(1)
    bricks, models = decompose(granularity)
    system = System("Benchmark CPU", "x86_64", 2, 2, (("L2", 2 << 20),), 16)
    stacks = [Stack("onnxruntime", "cpu", (("onnxruntime", f"1.{minor}.0"),)) for minor in range(STACKS)]
    run = str(uuid.uuid4())
    with Store.open(path) as store:
        store.put_system(system)
        for stack in stacks:
            store.put_stack(stack)
        store.begin_run(Run(run, "2026-01-01T00:00:00Z", "0", "run", None, system.key, stacks[0].key))
        template = Measurement(
            id="", run=run, subject=Subject.BRICK, key="", system=system.key, stack="", conditions=Conditions(1),
            unroll=1, median_ns=0, mean_ns=0, trimmed_mean_ns=0, min_ns=0, p90_ns=0, p99_ns=0, ci95_ns=(0, 0),
            samples=60, block_medians_ns=(), verdict=Verdict.STABLE, stop=Stop.CONVERGED, reference_ns=1e5,
        )  # fmt: skip

        def measured(stack: Stack, subject: Subject, key: str) -> Measurement:
            median = rng.uniform(1e4, 1e6)
            return dataclasses.replace(
                template, id=str(uuid.uuid4()), subject=subject, key=key, stack=stack.key, median_ns=median,
                ci95_ns=(median * 0.99, median * 1.01),
                block_medians_ns=tuple(median * rng.uniform(0.98, 1.02) for _ in range(6)),
            )  # fmt: skip

        def rows() -> Iterator[Measurement]:
            for stack in stacks:
                yield from (measured(stack, Subject.BRICK, key) for key in sorted(bricks))
                yield from (measured(stack, Subject.MODEL, key) for key in sorted(models))
            others = wanted - STACKS * (len(bricks) + len(models))
            for number in range(others):
                key = hashlib.sha256(str(number // STACKS).encode()).hexdigest()
                yield measured(stacks[number % STACKS], Subject.BRICK, key)

        batch: list[tuple[Measurement, tuple[()]]] = []
        for row in rows():
            batch.append((row, ()))
            if len(batch) == CHUNK:
                store.add(batch)
                batch.clear()
        store.add(batch)
    return stacks[0].key


def main() -> None:
    """Build, ask, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measurements", type=int, default=100_000)
    parser.add_argument("--granularity", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scale.db"
        begin = time.perf_counter()
        stack = fill(path, options.measurements, options.granularity)
        print(f"built in {time.perf_counter() - begin:.1f} s: {path.stat().st_size / 2**20:.0f} MiB")
        client = CLIENT.replace("STACK", repr(stack))
        command = [sys.executable, "-c", client, str(path), str(options.granularity), *zoo()]
        walls, cpus = [], []
        for _ in range(options.repeat):
            begin, before = time.perf_counter(), os.times()
            done = subprocess.run(command, check=True, capture_output=True)
            after = os.times()
            walls.append(time.perf_counter() - begin)
            cpus.append(sum(after[2:4]) - sum(before[2:4]))
        answers = json.loads(done.stdout)
        count = sum(answer["sequences"] for answer in answers)
        assert all(answer["coverage"]["sequences"] == 1 for answer in answers)
        print(
            f"{len(answers)} models, {count} sequences, G={options.granularity}, {options.measurements} measurements: "
            f"median {statistics.median(walls):.2f} s, {min(walls):.2f} to {max(walls):.2f} s, process start included; "
            f"processor time {statistics.median(cpus):.2f} s"
        )


if __name__ == "__main__":
    main()
