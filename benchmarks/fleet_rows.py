"""Made-up measurements of a fleet in PostgreSQL, and how long estimates and history of them take.

Ten systems with four runtimes, of each of which a new version comes every month, measure 1,000 small models and their
bricks twice a month. The rows are made by the server itself, through the tables of ``dlbricks.db``: latencies are drawn
from a grid, so that every measurement has the statistics of its samples. Samples are stored of what is read of them:
the latest measurements of every stack on the first system, and all of the model whose history is asked for.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from dlbricks.analyzer.estimation.survey import decompose_all
from dlbricks.bricks.reference import CHAIN, OVERHEAD, built_in_key
from dlbricks.constructor.decomposition import Decomposition
from dlbricks.db import Block, Conditions, Measurement, Run, Stack, Stop, Store, Subject, System, Verdict
from dlbricks.db.rows import block_row, pack_visits, run_row, stack_row, statistics_row, system_row
from dlbricks.db.samples.statistics import summarise
from dlbricks.db.schema import BlockRow, MeasurementRow, table_of
from dlbricks.db.values import Visit, content_key
from dlbricks.generator.decomposition.cutter import Cut
from dlbricks.generator.decomposition.oracle import WorkerOracle
from dlbricks.models import find_models
from onnx import TensorProto, helper
from sqlalchemy import Connection, insert, text

if TYPE_CHECKING:
    from fleet_stage import Server

SETTINGS = "shared_buffers = 1GB\nwork_mem = 64MB\nrandom_page_cost = 1.1\nmax_wal_size = 2GB\n"
"""What whoever runs a server for so much data sets; as it comes it is for the smallest machines."""

SYSTEMS, BACKENDS, MONTHS, REPEATS = 10, ("onnxruntime", "openvino", "torch", "mxnet"), 12, 2
LAYERS, SIZES, ROWS = 20, range(17, 57), range(1, 9)
"""Of a model: products of matrices, each with an addition and a Relu; their widths; its rows."""

SESSIONS, VISITS = 4, 6
GRID, STEP, LEAST_NS = 700, 1.02, 1_000.0
"""Latencies: each is by a fiftieth higher than the one before."""

APART = 100
"""Steps of the grid by which the runtimes may differ in a brick: seven times."""

_M, _B = table_of(MeasurementRow), table_of(BlockRow)


def make_models(folder: Path, count: int) -> list[Path]:
    """Perceptrons of random widths: 60 layers each, of about ten thousand different ones."""
    folder.mkdir()
    draw = np.random.default_rng(1)
    made = []
    for number in range(count):
        rows, widths = int(draw.choice(ROWS)), [int(size) for size in draw.choice(SIZES, LAYERS + 1)]
        nodes, weights, value = [], [], "x"
        for layer, (width, wider) in enumerate(itertools.pairwise(widths)):
            weights.append(onnx.numpy_helper.from_array(np.full((width, wider), 0.1, np.float32), f"w{layer}"))
            weights.append(onnx.numpy_helper.from_array(np.full(wider, 0.1, np.float32), f"b{layer}"))
            for operator, inputs in (("MatMul", [value, f"w{layer}"]), ("Add", [f"m{layer}", f"b{layer}"])):
                nodes.append(helper.make_node(operator, inputs, [f"{operator[0].lower()}{layer}"]))
            nodes.append(helper.make_node("Relu", [f"a{layer}"], [value := f"r{layer}"]))
        graph = helper.make_graph(
            nodes, "made_up",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, widths[0]])],
            [helper.make_tensor_value_info(value, TensorProto.FLOAT, [rows, widths[-1]])], weights,
        )  # fmt: skip
        made.append(folder / f"model{number:04}.onnx")
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), made[-1])
    return made


def fill(server: Server, models: list[Path], wanted: int) -> dict[str, Any]:
    """Make about as many measurements as are wanted; what there is then, and what was asked to be answered.

    Args:
        server: Its database is empty.
        models: Their files.
        wanted: Measurements; they are made run by run.
    """
    began_s = time.monotonic()
    with Store.open(server.url) as store:
        with WorkerOracle() as oracle:
            found = decompose_all(find_models([str(models[0].parent)]), Cut(1), oracle, store=store)
        decomposed = [one for one in found if isinstance(one, Decomposition)]
        assert len(decomposed) == len(models), found
        decomposed_s = time.monotonic() - began_s
        # In the order in which they are met, by number: what is made up of one follows from that.
        bricks = list(dict.fromkeys(part.key for one in decomposed for part in one.sequences))
        keys = [
            *((str(Subject.BRICK), key, decomposed[0].level) for key in bricks),
            *((str(Subject.MODEL), one.own.key, "model") for one in decomposed),
            *((str(Subject.REFERENCE), built_in_key(name), "hot") for name in (OVERHEAD, CHAIN)),
        ]
        with store.writing() as connection:
            with _without_indexes(connection):
                connection.execute(text("SET LOCAL maintenance_work_mem = '1GB'"))
                _templates(connection, keys)
                runs = _runs(connection, -(-wanted // len(keys)))
                for run in runs:
                    connection.execute(text(_MEASURE), run)
            _visits(connection, runs)
            connection.execute(text("ANALYZE"))
            connection.execute(text(_SAMPLES), {"system": runs[0]["system"], "model": keys[len(bricks)][1]})
    server.tell("VACUUM ANALYZE", "CHECKPOINT")
    return {
        "filled_s": time.monotonic() - began_s,
        "decomposed_s": decomposed_s,
        "measurements": server.ask("SELECT count(*) FROM measurement")[0][0],
        "blocks": server.ask("SELECT count(*) FROM block")[0][0],
        "items": server.ask("SELECT count(*) FROM item")[0][0],
        "runs": len(runs),
        "models": len(models),
        "bricks": len(bricks),
        "sequences": sum(len(one.sequences) for one in decomposed),
        "database_bytes": server.ask("SELECT pg_database_size(current_database())")[0][0],
        "system": runs[0]["system"],
        "stack": _newest(runs),
    }


def _newest(runs: list[dict[str, Any]]) -> str:
    """The stack of the first runtime that the first system measured last."""
    ours = [run["stack"] for run in runs if run["system"] == runs[0]["system"] and run["backend"] == 0]
    return str(ours[-1])


@contextmanager
def _without_indexes(connection: Connection) -> Iterator[None]:
    """Without what has to be kept up to date for every row of ``measurement``; made again in the end."""
    about = "FROM pg_constraint WHERE contype IN ('p', 'f', 'u') AND 'measurement'::regclass IN (conrelid, confrelid)"
    constraints = connection.execute(
        text(f"SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) {about} ORDER BY contype DESC")
    ).all()  # 'p' before 'f': the others refer to it
    for table, name, _ in constraints:
        connection.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name} CASCADE"))
    indexes = connection.execute(
        text("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'measurement'")
    ).all()
    for name, _ in indexes:
        connection.execute(text(f"DROP INDEX {name}"))
    yield
    for _, definition in indexes:
        connection.execute(text(definition))
    for table, name, definition in constraints:
        connection.execute(text(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}"))


def _templates(connection: Connection, keys: list[tuple[str, str, str]]) -> None:
    """What is measured, and the grid of latencies with the statistics of their samples, as temporary tables."""
    draw = np.random.default_rng(2)
    machine = draw.choice([1.0, 1.6], size=(SESSIONS, VISITS))
    for name, table in (("grid", _M), ("grid_block", _B)):
        connection.execute(text(f"CREATE TEMPORARY TABLE {name} AS SELECT * FROM {table.name} LIMIT 0"))
        connection.execute(text(f"ALTER TABLE {name} ADD place integer"))
    latencies, samples = [], []
    for place in range(GRID):
        latency_ns = LEAST_NS * STEP**place
        times = latency_ns * machine * draw.normal(1, 0.01, machine.shape)
        blocks = [
            Block(number // 2, number % 2, tuple((int(ns), 1) for ns in session))
            for number, session in enumerate(times)
        ]
        latencies.append(_statistics(blocks, latency_ns) | {"place": place})
        samples += [block_row("", block) | {"place": place} for block in blocks]
    for name, rows in (("grid", latencies), ("grid_block", samples)):
        names = ", ".join(rows[0])
        values = ", ".join(f":{column}" for column in rows[0])
        connection.execute(text(f"INSERT INTO {name} ({names}) VALUES ({values})"), rows)
    connection.execute(
        text("CREATE TEMPORARY TABLE known (number integer, subject text, key text, cache text, base integer)")
    )
    rows = [
        {"number": number, "subject": subject, "key": key, "cache": cache, "base": int(base)}
        for number, ((subject, key, cache), base) in enumerate(
            zip(keys, draw.integers(0, GRID - 2 * APART, len(keys)), strict=True)
        )
    ]
    connection.execute(text("INSERT INTO known VALUES (:number, :subject, :key, :cache, :base)"), rows)
    for table in ("known", "grid", "grid_block"):
        connection.execute(text(f"ANALYZE {table}"))


def _visits(connection: Connection, runs: list[dict[str, Any]]) -> None:
    """When each run visited everything, as a temporary table: two runs never at the same time."""
    connection.execute(
        text("CREATE TEMPORARY TABLE visited (run_id text, process integer, round integer, visits bytea)")
    )
    rows = [
        {
            "run": run["run"], "process": number // 2, "round": number % 2,
            "visits": pack_visits(
                tuple(
                    Visit(run["finished_us"] + 1_000_000 * (number * VISITS + visit), 50_000, 80_000)
                    for visit in range(VISITS)
                )
            ),
        }
        for run in runs
        for number in range(SESSIONS)
    ]  # fmt: skip
    connection.execute(text("INSERT INTO visited VALUES (:run, :process, :round, :visits)"), rows)
    connection.execute(text("ANALYZE visited"))


def _statistics(blocks: list[Block], latency_ns: float) -> dict[str, Any]:
    """The columns of a measurement that follow from its samples."""
    summary = replace(summarise(blocks, 1), verdict=Verdict.STABLE)
    row = statistics_row(
        Measurement(
            id="", run="", subject=Subject.BRICK, key="", system="", stack="", conditions=Conditions(1), unroll=1,
            summary=summary, stop=Stop.VISITS, undisturbed_ns=latency_ns, quiet=0.5,
        )
    )  # fmt: skip
    return {name: value for name, value in row.items() if name not in {"id", "run_id"}}


def _runs(connection: Connection, count: int) -> list[dict[str, Any]]:
    """Systems, stacks, combinations and items as runs need them; the runs, the oldest first."""
    systems = [
        System(f"Example {number}", "x86_64", 8, 16, (("L2", 2 << 20),), 64, ("avx2",)) for number in range(SYSTEMS)
    ]
    for system in systems:
        connection.execute(insert(_table("system")), system_row(system))
    made: list[dict[str, Any]] = []
    stacks: dict[tuple[int, int], Stack] = {}
    combined: set[tuple[str, str]] = set()
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(count):
        rest, place = divmod(number, SYSTEMS)
        rest, backend = divmod(rest, len(BACKENDS))
        month = rest // REPEATS
        if (backend, month) not in stacks:
            name = BACKENDS[backend]
            stacks[backend, month] = Stack(name, "cpu", ((name, f"1.{month}.0"),), ())
            connection.execute(insert(_table("stack")), stack_row(stacks[backend, month]))
        system, stack = systems[place].key, stacks[backend, month].key
        started = begin + timedelta(days=15 * rest, minutes=number % (SYSTEMS * len(BACKENDS)))
        run = Run(
            str(uuid.UUID(content_key(number)[:32])), started.isoformat(), "1.0", "run", "5" * 64, system, stack,
            before={"kernel": "6.1"}, finished=started.isoformat(), node=f"node{place}", campaign=f"c{rest}",
        )  # fmt: skip
        connection.execute(insert(_table("run")), run_row(run))
        if (system, stack) not in combined:
            combined.add((system, stack))
            for statement in (_COMBINE, _ITEMS):
                connection.execute(text(statement), {"system": system, "stack": stack})
        made.append(
            {
                "number": number, "run": run.id, "system": system, "stack": stack, "backend": backend, "month": month,
                "node": run.node, "finished_us": int(started.timestamp()) * 1_000_000,
            }
        )  # fmt: skip
    connection.execute(text("ANALYZE item"))
    connection.execute(text("ANALYZE combination"))
    return made


def _table(name: str) -> Any:
    return _M.metadata.tables[name]


_COMBINE = """INSERT INTO combination (system, stack, threads, cache, dtype)
SELECT DISTINCT CAST(:system AS text), CAST(:stack AS text), 1, cache, 'float32' FROM known"""

_ITEMS = """INSERT INTO item (combination_id, subject, key, variant)
SELECT c.id, k.subject, k.key, '' FROM known k JOIN combination c USING (cache)
WHERE c.system = :system AND c.stack = :stack"""

_TAKEN = [column.name for column in _M.c if column.name not in {"id", "item_id", "run_id", "finished_us", "node"}]

_MEASURE = f"""INSERT INTO measurement (id, item_id, run_id, finished_us, node, {", ".join(_TAKEN)})
SELECT gen_random_uuid()::text, i.id, :run, :finished_us + k.number, :node, {", ".join(f"g.{one}" for one in _TAKEN)}
FROM known k JOIN combination c USING (cache) JOIN item i ON i.combination_id = c.id AND i.subject = k.subject
    AND i.key = k.key
JOIN grid g ON g.place = k.base + (k.number * 7919 + :backend * 104729) % {APART} + (k.number + 17 * :number) % 3
    + CASE WHEN :month = 6 THEN 10 ELSE 0 END
WHERE c.system = :system AND c.stack = :stack"""
"""With one version of the runtimes everything takes a fifth longer: so there is something in a history."""

_SAMPLES = """INSERT INTO block (measurement_id, process, round, warmups, samples, data, visits)
SELECT m.id, b.process, b.round, b.warmups, b.samples, b.data, v.visits
FROM measurement m JOIN item i ON i.id = m.item_id JOIN combination c ON c.id = i.combination_id
JOIN grid g ON g.mean_ns = m.mean_ns JOIN grid_block b ON b.place = g.place
JOIN visited v ON v.run_id = m.run_id AND v.process = b.process AND v.round = b.round
WHERE i.key = :model OR (c.system = :system AND m.finished_us = (
    SELECT max(finished_us) FROM measurement n WHERE n.item_id = m.item_id))"""


def ask(server: Server, folder: Path, filled: dict[str, Any], repeat: int) -> dict[str, Any]:
    """Commands as their users see them, and what of that the database takes."""
    where = ["--db", server.url, "--json"]
    commands = {
        "estimate": ["estimate", str(folder), "--system", filled["system"], "--stack", filled["stack"], *where],
        "history": ["history", str(folder / "model0000.onnx"), *where],
        "history_of_one": [
            "history", str(folder / "model0000.onnx"), "--system", filled["system"], "--backend", BACKENDS[0], *where
        ],
    }  # fmt: skip
    figures: dict[str, Any] = {}
    for name, words in commands.items():
        told = [_timed(words, folder.parent / "asked.jsonl") for _ in range(repeat)]
        figures[name] = {
            key: statistics.median(one[key] for one in told)
            for key in ("seconds", "processor_s", "queries", "queries_s", "rows")
        } | {"worst_s": max(one["seconds"] for one in told), "answers": told[-1]["answers"]}
    return figures


def _timed(words: list[str], told: Path) -> dict[str, float]:
    """A command's wall and processor time, its start included, and of its queries the number, time and rows."""
    told.unlink(missing_ok=True)
    environment = {**os.environ, "FLEET_ASKED": str(told)}
    began_s = time.perf_counter()
    command = [sys.executable, "-P", "-m", "dlbricks", *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr}")
    answers = json.loads(done.stdout)["results"]
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # Watching costs time of its own: once more, and only for what the database took.
    watched = subprocess.run([sys.executable, "-P", "-c", _WATCH, *words], capture_output=True, check=True,
                             env=environment)  # fmt: skip
    assert json.loads(watched.stdout)["results"]
    return {"seconds": seconds, "processor_s": processor_s, "answers": len(answers), **json.loads(told.read_text())}


_WATCH = """
import atexit, json, os, sys, time
from sqlalchemy import event
from sqlalchemy.engine import Engine
asked = {"queries": 0, "queries_s": 0.0, "rows": 0}
def before(connection, *_):
    connection.info["began_s"] = time.perf_counter()
def after(connection, cursor, *_):
    asked["queries"] += 1
    asked["queries_s"] += time.perf_counter() - connection.info["began_s"]
    asked["rows"] += max(0, cursor.rowcount)
event.listen(Engine, "before_cursor_execute", before)
event.listen(Engine, "after_cursor_execute", after)
atexit.register(lambda: open(os.environ["FLEET_ASKED"], "w").write(json.dumps(asked)))
from dlbricks.cli.commands import main
main()
"""
"""The command line with a look at each query; psycopg has the rows when a query is done."""
