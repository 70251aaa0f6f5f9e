"""How long `estimate` of 60 models takes, and how much memory, from a database of 100,000 measurements.

Builds the database, unless it is there: what the models of the built-in zoo that need no extra are made of at five
batch sizes, kept in it as `estimate` does; their bricks and themselves on several stacks, and bricks of other models up
to the number wanted. Latencies are random, but visited in turn, in four sessions of six visits. Then the command runs
as often as wanted, its start included.

    python benchmarks/estimate_scale.py [--measurements 100000] [--graph runtime] [--repeat 5] [--table] [--db FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from dlbricks.analyzer.estimation.cutting import cut_of
from dlbricks.analyzer.estimation.survey import decompose_all
from dlbricks.bricks.reference import OVERHEAD, built_in_key
from dlbricks.constructor.decomposition import Decomposition
from dlbricks.db import Block, Conditions, Measurement, Run, Stack, Stop, Store, Subject
from dlbricks.db.samples.statistics import summarise
from dlbricks.db.values import Visit
from dlbricks.generator.backends.registry import get
from dlbricks.generator.decomposition.cutter import Cut
from dlbricks.generator.decomposition.oracle import WorkerOracle
from dlbricks.generator.machine.system import probe_system
from dlbricks.models import find_models
from dlbricks.models.zoo import names

STACKS = 10
CHUNK = 20_000
BATCHES = (1, 2, 3, 4, 8)
SESSIONS, VISITS = 4, 6

Taken = tuple[Measurement, list[Block]]


def zoo() -> list[str]:
    """Every model that needs no extra."""
    return [entry.name for entry in names() if entry.extra is None]


class Bench:
    """Invents measurements that were visited in turn.

    Args:
        system: Key of the system.
        run: UUID of the run.
    """

    def __init__(self, system: str, run: str) -> None:
        self._system, self._run = system, run
        self._rng = np.random.default_rng(1)
        begun = np.arange(SESSIONS * VISITS).reshape(SESSIONS, VISITS) * 1_000_000
        self._visits = [tuple(Visit(int(at), 50_000, 80_000) for at in session) for session in begun]
        self._machine = self._rng.choice([1.0, 1.6], size=(SESSIONS, VISITS))

    def taken(self, stack: Stack, subject: Subject, key: str, cache: str) -> Taken:
        """A measurement and its blocks."""
        latency = self._rng.uniform(1e4, 1e6)
        times = latency * self._machine * self._rng.normal(1, 0.01, self._machine.shape)
        blocks = [
            Block(number // 2, number % 2, tuple((int(ns), 1) for ns in session), 0, self._visits[number])
            for number, session in enumerate(times)
        ]
        measurement = Measurement(
            id=str(uuid.uuid4()), run=self._run, subject=subject, key=key, system=self._system, stack=stack.key,
            conditions=Conditions(1, cache), unroll=1, summary=summarise(blocks, 1), stop=Stop.VISITS,
            undisturbed_ns=latency, quiet=0.5,
        )  # fmt: skip
        return measurement, blocks


def fill(path: Path, wanted: int, graph: str) -> None:
    """Make the database."""
    system, own = probe_system(), get("onnxruntime").stack("cpu", {})
    stacks = [own, *(dataclasses.replace(own, versions=(("onnxruntime", f"0.{n}.0"),)) for n in range(1, STACKS))]
    run = Run(str(uuid.uuid4()), "2026-01-01T00:00:00+00:00", "0", "run", None, system.key, own.key)
    cut = Cut(1) if graph == "source" else cut_of(Cut(1), graph, own, 1)
    with Store.open(path) as store, WorkerOracle() as oracle:
        models = decompose_all(find_models(zoo(), batches=BATCHES), cut, oracle, store=store)
        bricks: dict[tuple[str, str], None] = {}
        for model in models:
            assert isinstance(model, Decomposition), model
            bricks |= dict.fromkeys((part.key, model.level) for part in model.sequences)
        keys = sorted({model.own.key for model in models if isinstance(model, Decomposition)})
        store.put_system(system)
        for stack in stacks:
            store.put_stack(stack)
        store.begin_run(run)
        bench = Bench(system.key, run.id)

        def rows() -> Iterator[Taken]:
            for stack in stacks:
                yield bench.taken(stack, Subject.REFERENCE, built_in_key(OVERHEAD), "hot")
                yield from (bench.taken(stack, Subject.BRICK, key, level) for key, level in bricks)
                yield from (bench.taken(stack, Subject.MODEL, key, "model") for key in keys)
            others = wanted - STACKS * (1 + len(bricks) + len(keys))
            for number in range(others):
                key = hashlib.sha256(str(number // STACKS).encode()).hexdigest()
                yield bench.taken(stacks[number % STACKS], Subject.BRICK, key, "8MiB")

        batch: list[Taken] = []
        for row in rows():
            batch.append(row)
            if len(batch) == CHUNK:
                store.add(batch)
                batch.clear()
        store.add(batch)


def timed(command: list[str]) -> tuple[float, float, float, bytes]:
    """Wall and processor seconds of a command, its largest memory in MB, and what it wrote."""
    with tempfile.TemporaryFile() as out:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, f"{command} ended with {process.returncode}"
        out.seek(0)
        return wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, out.read()


def main() -> None:
    """Build, ask, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measurements", type=int, default=100_000)
    parser.add_argument("--graph", choices=("source", "runtime"), default="runtime")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="time the table too")
    parser.add_argument("--db", type=Path, help="where the database is kept; made there where it is missing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.db or Path(folder) / "scale.db"
        begin = time.perf_counter()
        if not path.exists():
            # In a process of its own: one that is started begins with the memory of the one that starts it.
            filling = multiprocessing.get_context("spawn").Process(
                target=fill, args=(path, options.measurements, options.graph)
            )
            filling.start()
            filling.join()
            assert filling.exitcode == 0, "the database could not be made"
        print(f"built in {time.perf_counter() - begin:.1f} s: {path.stat().st_size / 2**20:.0f} MiB", flush=True)
        stack = get("onnxruntime").stack("cpu", {}).key
        command = [
            *(sys.executable, "-m", "dlbricks", "estimate", *zoo(), "--batch", ",".join(map(str, BATCHES))),
            *("--graph", options.graph, "--stack", stack, "--db", str(path)),
        ]
        for form in ("json", *(["table"] if options.table else [])):
            runs = [timed([*command, "--format", form]) for _ in range(options.repeat)]
            walls, processors, memories, (*_, text) = zip(*runs, strict=True)
            if form == "json":
                answers = json.loads(text)["results"]
                assert all(answer["coverage"]["sequences"] == 1 and answer["paired"] for answer in answers)
                count = sum(answer["sequences"] for answer in answers)
                print(f"{len(answers)} models, {count} sequences, {options.measurements} measurements")
            print(
                f"{form}: median {statistics.median(walls):.2f} s, {min(walls):.2f} to {max(walls):.2f} s, process "
                f"start included; processor time {statistics.median(processors):.2f} s; {max(memories):.0f} MB"
            )


if __name__ == "__main__":
    main()
