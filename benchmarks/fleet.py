"""What a fleet costs, and what it survives: real PostgreSQL, nodes as processes, a sleeping backend.

    python benchmarks/fleet.py [--only PART ...] [--kills 100] [--outage 600] [--rounds 10] [--out docs/results]

The parts, each of which replaces its own figures in ``fleet.json`` and leaves those of others:

* ``overhead``: jobs of 10 and of 500 bricks that hardly sleep; what a job takes beside its runner;
* ``scaling``: bricks per second of eight sleeping nodes against one;
* ``kills``: SIGKILLs, at random, of workers, runners, brick workers, the database server and planners;
* ``outage``: the server down for ``--outage`` seconds, and the way to it for a tenth of that, while nodes measure;
* ``recovery``: from the start of a worker after a kill to the next block of samples that is committed;
* ``planning``: a campaign of 1,000 cells, planned twice;
* ``beside``: ONNX Runtime under the fleet's worker and without it, alternating, and how often the worker woke up;
* ``rows``: estimates of 1,000 models and history of one, of ``--rows`` made-up measurements (``fleet_rows``).

Nodes share this machine, each with a lock of its own, and take it for quiet. Where this process may make them, each is
in a network namespace with a pair of virtual network cards to the server, and while the link is down, the server's card
is; where not, or with ``--no-namespaces``, a node's way to the server is a socket, in ``outage`` a process of ours that
swallows everything while the link is down. fsync is off, since no machine fails here.
The sleeping backend is measured hot, since nothing is learnt from it in other states.

Written under ``--out``: ``fleet.json`` and ``fleet.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from dlbricks import __version__
from fleet_network import Wire, isolate
from fleet_page import page
from fleet_rows import SETTINGS, ask, fill, make_models
from fleet_stage import Link, Node, Server, dlbricks, make_plugin, make_suite, serving, until

_KINDS = ("worker", "runner", "brick worker", "server", "planner")

Figures = dict[str, Any]


@dataclass
class Stage:
    """Where a part plays."""

    server: Server
    folder: Path
    plugin: Path
    options: argparse.Namespace
    wired: bool = False
    wires: list[Wire] = field(default_factory=list)
    _campaigns: int = 0

    def campaign(
        self, suite: Path, *, nodes: list[str], threads: int = 1, backend: str = "sleeping", sleep_us: int = 100,
        visits: int = 10, processes: int = 1, sessions: int = 1,
    ) -> Path:  # fmt: skip
        """The file of a new campaign."""
        self._campaigns += 1
        file = self.folder / f"campaign-{self._campaigns}.toml"
        sleep = f"options = {{ sleep_us = {sleep_us} }}" if backend == "sleeping" else ""
        file.write_text(
            f'campaign = "c{self._campaigns}"\nnodes = {json.dumps(nodes)}\n[[stack]]\nbackend = "{backend}"\n{sleep}\n'
            f'[[suite]]\npath = "{suite}"\n[conditions]\ncache = "hot"\nthreads = {list(range(1, threads + 1))}\n'
            f"[pace]\nvisits = {visits}\nprocesses = {processes}\nsessions = {sessions}\n"
        )
        return file

    def plan(self, file: Path) -> Any:
        """What ``fleet plan`` answers."""
        return json.loads(dlbricks("fleet", "plan", file, "--db", self.server.url, "--json"))

    def nodes(self, part: str, count: int, url: str | None = None) -> list[Node]:
        """Machines with names and folders of their own."""
        made = []
        for number in range(count):
            name = f"{part}{number}"
            if self.wired:
                self.wires.append(Wire(name, len(self.wires)))
            wire = self.wires[-1] if self.wired else None
            made.append(Node(name, url or self.server.url, self.folder / part, self.plugin, wire))
        return made

    def drained(self, nodes: list[Node]) -> bool:
        """Whether their queues are empty and nothing runs."""
        names = ", ".join(f"'{node.name}'" for node in nodes)
        query = f"SELECT count(*) FROM procrastinate_jobs WHERE queue_name IN ({names}) AND status IN ('todo', 'doing')"
        return self.server.ask(query)[0][0] == 0

    def states(self, nodes: list[Node]) -> dict[str, int]:
        """Their jobs by state."""
        names = ", ".join(f"'{node.name}'" for node in nodes)
        query = f"SELECT status::text FROM procrastinate_jobs WHERE queue_name IN ({names})"
        return dict(Counter(row[0] for row in self.server.ask(query)))


def overhead(stage: Stage) -> Figures:
    """Wall time of a job that is not its runner's, and of that what each brick costs."""
    figures: Figures = {}
    for bricks, jobs in ((10, 3), (500, 2)):
        suite = make_suite(stage.folder, bricks)
        (node,) = stage.nodes(f"overhead{bricks}-", 1)
        stage.plan(stage.campaign(suite, nodes=[node.name], threads=jobs))
        began_s = time.monotonic()
        done = json.loads(node.once("--drain").stdout)["results"]
        wall_s = time.monotonic() - began_s
        measured_s = [one["measured_s"] for one in done]
        pushed_s = [one["pushed_s"] for one in done]
        assert [one["counts"]["measured"] for one in done] == [bricks] * jobs
        figures[f"{bricks}_bricks"] = {
            "jobs": jobs,
            "overhead_per_job_s": (wall_s - sum(measured_s)) / jobs,
            "pushed_s": statistics.median(pushed_s),
            "measured_s": statistics.median(measured_s),
            "waited_s": statistics.median(one["waited_s"] for one in done),
        }
    few, many = figures["10_bricks"], figures["500_bricks"]
    extra_s = many["overhead_per_job_s"] - few["overhead_per_job_s"]
    return {
        **figures,
        "per_brick_ms": 1e3 * extra_s / 490,
        "pushed_per_s": 500 / many["pushed_s"],
    }


def scaling(stage: Stage) -> Figures:
    """Bricks per second from the first start to the last end, of one node and of eight."""
    suite = make_suite(stage.folder, 20)
    rates: dict[int, float] = {}
    for count in (1, 8):
        nodes = stage.nodes(f"scaling{count}-", count)
        jobs = stage.options.jobs
        file = stage.campaign(
            suite, nodes=[node.name for node in nodes], threads=jobs, sleep_us=1000 * stage.options.sleep_ms
        )
        stage.plan(file)
        began_s = time.monotonic()
        for node in nodes:
            node.start("--drain")
        for node in nodes:
            assert node.process is not None
            node.process.wait()
        rates[count] = 20 * jobs * count / (time.monotonic() - began_s)
        assert stage.states(nodes) == {"succeeded": jobs * count}
    return {
        "sleep_ms": stage.options.sleep_ms,
        "jobs": stage.options.jobs,
        "bricks_per_s": {str(count): rate for count, rate in rates.items()},
        "ratio": rates[8] / rates[1],
    }


def kills(stage: Stage) -> Figures:
    """Kill whatever there is, restart it as systemd would, and count what is missing or doubled in the end."""
    chance = random.Random(stage.options.seed)
    suite = make_suite(stage.folder, 20)
    nodes = stage.nodes("kills-", 3)
    names = [node.name for node in nodes]
    killed: Counter[str] = Counter()
    seen: set[tuple[str, int, int]] = set()
    planned: list[Path] = []

    def plan_more() -> None:
        planned.append(stage.campaign(suite, nodes=names, threads=2, sleep_us=10_000, visits=30, sessions=3))
        stage.plan(planned[-1])

    plan_more()
    for node in nodes:
        node.start()
    order = [_KINDS[number % len(_KINDS)] for number in range(stage.options.kills)]
    chance.shuffle(order)
    while order:
        node = chance.choice(nodes)
        if stage.drained([node]):
            plan_more()
        # It measures, so that there is something to lose; its last job may have ended just now.
        until(lambda node=node: node.brick_worker() or stage.drained([node]))
        time.sleep(chance.uniform(0.0, 5.0))
        for each in nodes:
            seen |= each.blocks()
        if _kill(order[-1], node, stage, planned[-1], chance):
            killed[order.pop()] += 1
        for each in nodes:
            if each.worker() is None:
                each.start()
    for file in planned:
        stage.plan(file)  # what failed is queued again
    until(lambda: stage.drained(nodes), 3600, 1.0)
    for node in nodes:
        node.end()
    stored = {tuple(row) for row in stage.server.ask("SELECT measurement_id, process, round FROM block")}
    copies = stage.server.ask(
        "SELECT count(*) FROM measurement m JOIN run r ON r.id = m.run_id JOIN item i ON i.id = m.item_id "
        "WHERE i.subject = 'brick' AND r.node LIKE 'kills-%' GROUP BY r.campaign, r.node, i.id"
    )
    cells = len(planned) * len(nodes) * 2
    return {
        "seed": stage.options.seed,
        "kills": dict(killed),
        "cells": cells,
        "states": stage.states(nodes),
        "blocks_seen_before_kills": len(seen),
        "blocks_lost": len(seen - stored),
        "bricks_expected": 20 * cells,
        "bricks_stored": len(copies),
        "bricks_doubled": sum(count > 1 for (count,) in copies),
        "failures": stage.server.ask("SELECT count(*) FROM failure")[0][0],
    }


def _kill(kind: str, node: Node, stage: Stage, file: Path, chance: random.Random) -> bool:
    """Kill one; False where there is none of it now."""
    if kind == "server":
        stage.server.kill()
        time.sleep(chance.uniform(0.0, 3.0))
        stage.server.start()
        return True
    if kind == "planner":
        command = [sys.executable, "-P", "-m", "dlbricks", "fleet", "plan", str(file), "--db", stage.server.url]
        planner = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.2, 2.0))
        alive = planner.poll() is None
        planner.kill()
        planner.wait()
        return alive
    victim = {"worker": node.worker, "runner": node.runner, "brick worker": node.brick_worker}[kind]()
    if victim is None:
        return False
    try:
        victim.kill()
    except psutil.NoSuchProcess:
        return False
    if kind == "worker" and node.process is not None:
        node.process.wait()
    return True


def outage(stage: Stage) -> Figures:
    """The server, then the link, is gone from the first committed block on; samples of both, and how soon they come."""
    suite = make_suite(stage.folder, 20)
    figures: Figures = {}
    for what, seconds in (("server", stage.options.outage), ("link", stage.options.outage / 10)):
        proxy = Link(stage.server) if what == "link" and not stage.wired else None
        (node,) = stage.nodes(f"outage-{what}", 1, None if proxy is None else proxy.url)
        stage.plan(stage.campaign(suite, nodes=[node.name], sleep_us=5000, visits=20, sessions=2))
        node.start("--drain")
        until(node.blocks)
        link = node.wire or proxy
        _fail(stage, link if what == "link" else None, "down")
        time.sleep(seconds)
        until(lambda node=node: node.runner() is None)
        held = node.blocks()
        _fail(stage, link if what == "link" else None, "up")
        began_s = time.monotonic()
        until(lambda node=node: stage.drained([node]), 600, 0.2)
        pushed_s = time.monotonic() - began_s
        stored = {tuple(row) for row in stage.server.ask("SELECT measurement_id, process, round FROM block")}
        figures[what] = {
            "down_s": seconds,
            "pushed_after_s": pushed_s,
            "blocks": len(held),
            "blocks_lost": len(held - stored),
            "states": stage.states([node]),
        }
        node.end()
    return figures


def _fail(stage: Stage, link: Wire | Link | None, state: str) -> None:
    """Take a link, or where none is given the server, down or up."""
    if link is not None:
        link.set(state)
    elif state == "down":
        stage.server.stop()
    else:
        stage.server.start()


def recovery(stage: Stage) -> Figures:
    """Kill a worker in the midst of a cell, start it, and wait for the next committed block."""
    suite = make_suite(stage.folder, 20)
    (node,) = stage.nodes("recovery-", 1)
    stage.plan(stage.campaign(suite, nodes=[node.name], threads=3, sleep_us=5000, visits=60, sessions=6))
    times_s = []
    node.start("--drain")
    for _ in range(stage.options.rounds):
        before = until(node.blocks)
        assert node.process is not None
        node.process.kill()
        node.process.wait()
        before |= node.blocks()
        began_s = time.monotonic()
        node.start("--drain")
        until(lambda before=before: node.brick_worker() is not None or node.blocks() - before, 600, 0.01)
        times_s.append(time.monotonic() - began_s)
        until(lambda before=before: node.blocks() - before or stage.drained([node]))
        if stage.drained([node]):
            break
    node.end()
    return {"restarts": len(times_s), "median_s": statistics.median(times_s), "worst_s": max(times_s)}


def planning(stage: Stage) -> Figures:
    """A thousand cells, twice."""
    suite = make_suite(stage.folder, 500)
    file = stage.campaign(suite, nodes=[f"planned{number}" for number in range(10)], threads=100)
    figures: Figures = {}
    for which in ("first", "again"):
        began_s = time.monotonic()
        report = stage.plan(file)
        figures[which] = {
            "seconds": time.monotonic() - began_s, "new": report["new"], "waiting": report["waiting"],
        }  # fmt: skip
    query = "SELECT count(*), count(DISTINCT queueing_lock) FROM procrastinate_jobs WHERE queue_name LIKE 'planned%'"
    return {**figures, "jobs": stage.server.ask(query)[0][0], "cells": stage.server.ask(query)[0][1]}


def beside(stage: Stage) -> Figures:
    """The same suite by ``dlbricks run`` and by a job, in turn; the ratio of what each brick took, paired by round."""
    suite = make_suite(stage.folder, 50, work=True)
    (node,) = stage.nodes("beside-", 1)
    logs: list[list[float]] = []
    wakeups = []
    for number in range(stage.options.rounds):
        sides = {}
        for side in ("fleet", "alone") if number % 2 else ("alone", "fleet"):
            if side == "alone":
                file = stage.folder / f"alone-{number}.db"
                words = ("--cache", "hot", "--visits", 24, "--processes", 1, "--sessions", 2, "--quiet")
                dlbricks("run", suite, "--db", file, *words, environment=node.environment)
                sides[side] = _means(file)
            else:
                campaign = stage.campaign(suite, nodes=[node.name], backend="onnxruntime", visits=24, sessions=2)
                stage.plan(campaign)
                node.start("--once")
                wakeups += _wakeups(node)
                assert node.process is not None
                node.process.wait()
                name = campaign.stem.replace("campaign-", "c")
                rows = stage.server.ask(
                    "SELECT i.subject || i.key, m.mean_ns FROM measurement m JOIN item i ON i.id = m.item_id "
                    f"JOIN run r ON r.id = m.run_id WHERE r.campaign = '{name}'"
                )
                sides[side] = dict(rows)
        common = sorted(set(sides["alone"]) & set(sides["fleet"]))
        logs.append([float(np.log(sides["fleet"][key] / sides["alone"][key])) for key in common])
    table = np.array(logs)
    generator = np.random.default_rng(1)
    draws = [
        float(np.median(table[generator.integers(0, len(table), len(table))])) for _ in range(2000)
    ]  # rounds are drawn: what disturbs one disturbs all of its bricks
    low, high = np.exp(np.quantile(draws, [0.025, 0.975]))
    return {
        "rounds": len(table), "subjects": table.shape[1], "median_ratio": float(np.exp(np.median(table))),
        "ci95": [float(low), float(high)], "wakeups_of_the_worker": int(sum(wakeups)), "watched": len(wakeups),
    }  # fmt: skip


def _means(file: Path) -> dict[str, float]:
    with closing(sqlite3.connect(file)) as connection:
        query = "SELECT i.subject || i.key, m.mean_ns FROM measurement m JOIN item i ON i.id = m.item_id"
        return dict(connection.execute(query + " WHERE m.finished_us IS NOT NULL"))


def rows(stage: Stage) -> Figures:
    """Commands that answer from a large database, with the server's own share of what they take."""
    models = make_models(stage.folder / "models", stage.options.models)
    with serving(stage.folder / "rows", wired=False, settings=SETTINGS) as server:
        filled = fill(server, models, int(stage.options.rows))
        return {**filled, **ask(server, models[0].parent, filled, stage.options.rounds)}


def _wakeups(node: Node) -> list[int]:
    """Times that the worker ran between the first committed block and the last look at its runner."""
    until(lambda: node.blocks() or node.worker() is None, 600, 1.0)  # rare: it must not disturb what it watches
    worker, runner = node.worker(), node.runner()
    if worker is None or runner is None:
        return []
    begun = last = sum(worker.num_ctx_switches())
    while True:
        now = sum(worker.num_ctx_switches()) if worker.is_running() else last
        if not runner.is_running() or runner.status() == psutil.STATUS_ZOMBIE:
            return [last - begun]  # what was counted when the runner was still there
        last = now
        time.sleep(1.0)


PARTS: dict[str, Callable[[Stage], Figures]] = {
    part.__name__: part for part in (overhead, scaling, kills, outage, recovery, planning, beside, rows)
}


def main() -> None:
    """Play the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--outage", type=float, default=600.0, help="seconds")
    parser.add_argument("--rounds", type=int, default=10, help="of recovery, beside and rows")
    parser.add_argument("--sleep-ms", type=int, default=1000, help="of scaling, per execution")
    parser.add_argument("--jobs", type=int, default=2, help="of scaling, per node")
    parser.add_argument("--rows", type=float, default=1e7, help="measurements of the part of this name")
    parser.add_argument("--models", type=int, default=1000, help="of rows")
    parser.add_argument("--no-namespaces", action="store_true", help="nodes share the machine's network")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    shared = "--no-namespaces was given" if options.no_namespaces else isolate()
    file = options.out / "fleet.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    with tempfile.TemporaryDirectory(prefix="fleet-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        # As an installation has it: without its bytecode every process would compile dlbricks anew.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        plugin = make_plugin(folder / "plugin")
        path = os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        os.environ["PYTHONPATH"] = path
        with serving(folder / "server", wired=not shared) as server, ExitStack() as wires:
            stage = Stage(server, folder, plugin, options, wired=not shared)
            wires.callback(lambda: [wire.cut() for wire in stage.wires])
            for part in options.only:
                began_s = time.monotonic()
                figures = PARTS[part](stage)
                found[part] = {
                    **figures,
                    "about": {**_about(server, time.monotonic() - began_s), "one_network": shared},
                }
                file.write_text(json.dumps(found, indent=1) + "\n")
                print(part, json.dumps(figures))
    (options.out / "fleet.md").write_text(page(found))


def _about(server: Server, took_s: float) -> Figures:
    """What a part was measured on, and beside what."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "took_s": round(took_s, 1),
        "cores": len(os.sched_getaffinity(0)),
        "nice": os.nice(0),
        "load_1m": round(os.getloadavg()[0], 1),
        "server": server.version,
        "python": platform.python_version(),
        "dlbricks": __version__,
    }


if __name__ == "__main__":
    main()
