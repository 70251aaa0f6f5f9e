"""Read the scatter between the processes of one run from its database: data for ``calibrate.py``.

    python benchmarks/scatter.py DB [--graph runtime] [-g 1] [--threads 1] [--models ...] [--half HALF]

For each model that two processes or more visited together with its bricks, the result contains latencies by process:
of the sum of its bricks, and of the model. Each has the standard error by time blocks within the process. Models that
one process visited are left out. Nothing is measured.

Written under ``--out``: ``scatter-[<backend>-]<graph>-g<G>-t<threads>[-<name>].json``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import composing, parsed
from dlbricks import estimate
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.constructor import Estimate
from dlbricks.db import Block, Measurement, Store, Subject
from dlbricks.db.samples.statistics import block_values, time_blocks
from dlbricks.db.values import PROTOCOL
from dlbricks.models import ModelSource, find_models
from facts import chosen, provenance, quietness
from figures import write

Scattered = list[tuple[float, float, int]]
"""Of each process: its mean in milliseconds, the relative standard error of that, and from how many time blocks."""


def main() -> None:
    """Read a database, and write the scatter of its processes."""
    arguments = composing(__doc__)
    arguments.add_argument("db", type=Path)
    arguments.add_argument("--backend", default="onnxruntime")
    arguments.add_argument("--name", default="", help="distinguishes several runs of one kind")
    options = parsed(arguments)
    default = () if options.models else ("tune", "held")
    sources = find_models(chosen(options.models, options.half or default))
    with Store.open(options.db, read_only=True) as store:
        result = scatter(sources, store, options)
    backend = "" if options.backend == "onnxruntime" else f"{options.backend}-"
    name = f"scatter-{backend}{options.graph}-g{options.granularity}-t{options.threads}"
    write(options.out / f"{name}{options.name and f'-{options.name}'}.json", result)


def scatter(sources: Sequence[ModelSource], store: Store, options: argparse.Namespace) -> dict[str, Any]:
    """Return the latencies by process, model by model."""
    where: dict[str, Any] = {"backend": options.backend, "threads": options.threads, "cache": "model"}
    rows = estimate(sources, store=store, graph=options.graph, granularity=options.granularity, **where)
    truths = {one.key: one for one in store.measurements(subject=Subject.MODEL, **where)}
    found = [
        _of_model(row, truths.get(build_graph(source.skeleton()).key), store)
        for source, row in zip(sources, rows, strict=True)
    ]
    models = [one for one in found if one is not None]
    if not models:
        raise SystemExit(f"no model of {options.db} was visited by two processes")
    place = next(row for row in rows if row.place.system and row.place.stack)
    runs = {one.run: None for one in truths.values()}
    begun = {run.id: run.started for run in store.runs()}
    return {
        **provenance(store, place.place.system or "", place.place.stack or ""),
        **{name: getattr(options, name) for name in ("graph", "granularity", "threads")},
        "protocol": PROTOCOL,
        "started": [begun[run] for run in runs],
        "quiet": quietness(store, [one.id for one in truths.values()]),
        "models": models,
        "left_out": [row.name for row, one in zip(rows, found, strict=True) if one is None],
    }


def _of_model(row: Estimate, truth: Measurement | None, store: Store) -> dict[str, Any] | None:
    """Return one model; None unless its bricks and itself were visited by the same processes, two or more."""
    if row.parts.missing or not row.parts.sequences or truth is None or row.model.level is None:
        return None
    counts = Counter(part.key for part in row.parts.sequences)
    place = {name: getattr(row.place, name) for name in ("system", "stack", "threads")}
    bricks = {
        one.key: one
        for one in store.measurements(subject=Subject.BRICK, keys=set(counts), cache=row.model.level, **place)
    }
    if bricks.keys() != counts.keys():
        return None
    blocks = store.blocks_of([truth.id, *(one.id for one in bricks.values())])
    ours = [(count, bricks[key], blocks.get(bricks[key].id, [])) for key, count in counts.items()]
    processes = {len({block.process for block in taken}) for *_, taken in (*ours, (1, truth, blocks.get(truth.id, [])))}
    if len(processes) != 1 or min(processes) < 2:
        return None
    bricks, model = _by_process(ours), _by_process([(1, truth, blocks[truth.id])])
    if min(len(bricks), len(model)) < 2:
        return None
    return {"name": row.name, "bricks": bricks, "model": model}


def _by_process(members: Sequence[tuple[int, Measurement, Sequence[Block]]]) -> Scattered:
    """Return the latency of a sum in each process, by time block."""
    sums: dict[int, list[float]] = {}
    for count, one, taken in members:
        for number, (mean, means) in enumerate(_means(one, taken).values()):
            known = sums.setdefault(number, [0.0] * (1 + len(means)))
            size = min(len(known), 1 + len(means))  # of bricks that were visited less often, the blocks that all have
            sums[number] = [
                old + count * new for old, new in zip(known[:size], [mean, *means[: size - 1]], strict=True)
            ]
    return [
        (round(mean / 1e6, 5), round(float(np.std(means, ddof=1)) / len(means) ** 0.5 / mean, 5), len(means))
        for mean, *means in sums.values()
        if len(means) > 1
    ]


def _means(one: Measurement, taken: Sequence[Block]) -> Mapping[int, tuple[float, list[float]]]:
    """Return the mean of the visits and of each time block, by process."""
    by_process: dict[int, list[Any]] = {}
    for block, values in zip(taken, block_values(taken, one.unroll), strict=True):
        by_process.setdefault(block.process, []).append(values)
    return {
        process: (float(np.concatenate(found).mean()), time_blocks(found).tolist())
        for process, found in sorted(by_process.items())
    }


if __name__ == "__main__":
    main()
