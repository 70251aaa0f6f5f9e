"""How well latencies repeat on a disturbed machine: two runs some time apart, each with a neighbour of its own.

    python benchmarks/repeat.py [--neighbour 0.5] [--minutes 10] [--against QUIET.db] [--graph runtime] [--models ...]

Each run measures all bricks and all models, in turn, into the same database. Reported are, as median and 95 % quantile
over the models, the differences between both runs of the estimates of the undisturbed latency, which come from the
bricks alone, and beside them of the same models' own minima, medians, means and undisturbed latencies. With
``--against``, a database that holds the same models measured when it was quiet (``accuracy.py --db``), also how far
each of these is from there; how quiet that was stands beside it.

Written under ``--out``: ``repeat-<graph>-g<G>-t<threads>-b<batch>-n<duty>[-<half>].json``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import protocol, shared
from dlbricks import estimate
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store, Subject
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.cores import physical_cores
from dlbricks.generator.measurement.run import RunReport, run
from dlbricks.models import ModelSource, find_models
from facts import chosen, earlier, provenance, quietness, restriction, spent, write
from neighbour import Neighbour

Figures = dict[str, dict[str, float]]
"""Milliseconds by model and statistic."""

_OWN = ("min", "median", "mean", "undisturbed")


def main() -> None:
    """Measure twice, print and write."""
    parser = shared(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument(
        "--neighbour", type=float, default=0.5, metavar="DUTY", help="part of the time it is busy, 0..1"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="from the end of one run to the other's beginning")
    parser.add_argument("--against", type=Path, metavar="DB", help="where the models are measured in quiet")
    parser.add_argument("--db", type=Path, help="keep the measurements; must be new")
    options = parser.parse_args()
    options.threads = options.threads or len(physical_cores())
    if options.db and options.db.exists():
        parser.error(f"{options.db} is there already")
    sources = find_models(chosen(options.models, options.half), batches=[options.batch] if options.batch != 1 else [])
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="dlbricks-repeat-")))
        store = resources.enter_context(Store.open(options.db or folder / "repeat.db"))
        result = experiment(sources, store, folder, options)
    name = f"repeat-{options.graph}-g{options.granularity}-t{options.threads}-b{options.batch}-n{options.neighbour:g}"
    write(options.out, name + restriction(options.half), result)


def experiment(
    sources: Sequence[ModelSource], store: Store, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Both runs, and what they differ by."""
    cut = {"granularity": options.granularity, "graph": options.graph}
    made = generate(sources, out=folder / "suite", threads=options.threads, annotate=True, **cut)
    usable = [source for source, row in zip(sources, made.rows, strict=True) if row.error is None]
    if made.suite is None:
        raise SystemExit(f"no model can be decomposed: {made.rows[0].error}")
    keys = {source.name: build_graph(source.skeleton()).key for source in usable}
    runs, found = [], []
    for number in range(2):
        if number:
            time.sleep(60 * options.minutes)
        done, record = _run(made.suite, usable, store, options, seed=options.seed + number)
        found.append(_figures(usable, keys, store, done, options))
        runs.append(record)
        print(f"run {number + 1}: {done.wall_s:.0f} s, {record['quiet']['state']}", flush=True)
    first, second = found
    result = {
        **provenance(store, done.system, done.stack),
        **{name: getattr(options, name) for name in ("graph", "granularity", "batch", "minutes")},
        **protocol(options),
        "models": len(usable),
        "left_out": [name for name in keys if name not in first or name not in second],
        "errors": {row.name: row.error for row in made.rows if row.error is not None},
        "between_runs": _apart(first, second),
        "runs": runs,
        "figures_ms": {name: [one.get(name) for one in found] for name in keys},
    }
    if options.against:
        quiet, state = earlier(options.against, keys, done, threads=options.threads)
        result["against"] = {
            "quiet": state,
            "models": len(quiet),
            "runs": [_against(one, quiet) for one in found],
            "latencies_ms": quiet,
        }
    return result


def _run(
    suite: Suite, sources: Sequence[ModelSource], store: Store, options: argparse.Namespace, *, seed: int
) -> tuple[RunReport, dict[str, Any]]:
    """One run with its neighbour; all is measured anew."""
    with Neighbour(options.neighbour, threads=options.threads, seed=seed) as neighbour:
        done = run(suite, store=store, models=sources, cache="model", again=("all",), **protocol(options))
    taken = [one for one in store.measurements(variant=None) if one.run == done.run]
    return done, {
        "failures": dict(done.failures),
        "neighbour": neighbour.facts if options.neighbour else None,
        "quiet": quietness(store, [one.id for one in taken]),
        "cost": spent(done.wall_s, done.costs),
    }


def _figures(
    sources: Sequence[ModelSource], keys: Mapping[str, str], store: Store, done: RunReport, options: argparse.Namespace
) -> Figures:
    """What the latest run says of each model."""
    where = {"system": done.system, "stack": done.stack, "threads": options.threads, "cache": "model"}
    cut = {"granularity": options.granularity, "graph": options.graph}
    truths = {one.key: one for one in store.measurements(subject=Subject.MODEL, **where) if one.run == done.run}
    figures: Figures = {}
    for row in estimate(sources, store=store, **where, **cut):
        truth = truths.get(keys[row.name])
        if row.undisturbed_ms is not None and truth is not None and truth.undisturbed_ns is not None:
            own_ns = (truth.summary.min_ns, truth.summary.median_ns, truth.latency_ns, truth.undisturbed_ns)
            own_ms = {f"own_{name}": ns / 1e6 for name, ns in zip(_OWN, own_ns, strict=True)}
            figures[row.name] = {"estimate_undisturbed": row.undisturbed_ms, **own_ms}
    return figures


def _apart(first: Figures, second: Figures) -> dict[str, dict[str, float]]:
    """How far each statistic of the second run is from that of the first."""
    names = sorted(first.keys() & second.keys())
    statistics = first[names[0]] if names else {}
    return {
        statistic: _spread([abs(second[name][statistic] / first[name][statistic] - 1) for name in names])
        for statistic in statistics
    }


def _against(found: Figures, quiet: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """How far each statistic of a run is from the means in quiet."""
    return _apart({name: dict.fromkeys(found[name], quiet[name]) for name in found if name in quiet}, found)


def _spread(differences: Sequence[float]) -> dict[str, float]:
    return {
        "models": len(differences),
        "median": float(np.median(differences)),
        "q95": float(np.quantile(differences, 0.95)),
        "worst": max(differences),
    }


if __name__ == "__main__":
    main()
