"""Test sessions of a run for an effect beyond their time blocks: the F-test of an analysis of variance.

    python benchmarks/sessions.py DB [--graph runtime] [-g 1] [--threads 1] [--models ...] [--out docs/results]

For each model that was visited alternately with its bricks, the script takes the logarithms of three latencies by time
block: of the model, of the sum of its bricks, and of their ratio. It divides the mean square between sessions (process
and round) by the mean square between time blocks within sessions. This has an F distribution without an effect of
sessions; about 5 % of the models then exceed its 95 % point. Intervals of models and of sums of bricks also contain the
scatter of processes (``constructor/uncertainty/scatter.json``), so that a second F allows for it. Nothing is measured.

Written under ``--out``: ``sessions-<graph>-g<G>-t<threads>[-<name>].json``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dlbricks import estimate
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.constructor import Estimate
from dlbricks.constructor.uncertainty.calibration import scatter_of
from dlbricks.db import Measurement, Store, Subject
from dlbricks.db.samples.statistics import block_values, time_blocks
from dlbricks.models import find_models
from facts import chosen, provenance, quietness, share, write

Sessions = dict[tuple[int, int], np.ndarray[Any, np.dtype[np.float64]]]
"""Latency of each time block, by process and round."""

_DRAWS = 200_000
_POINT = 0.05


def main() -> None:
    """Read a database, and write the tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("db", type=Path, nargs="+")
    parser.add_argument("--models", nargs="+", help="instead of benchmarks/zoo.csv without the half new")
    parser.add_argument("--graph", choices=("runtime", "fused", "source"), default="runtime")
    parser.add_argument("-g", "--granularity", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="", help="distinguishes several runs of one kind")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    for path in options.db:
        with Store.open(path, read_only=True) as store:
            found, facts = tested(store, options)
        rows += [{"run": path.stem, **row} for row in found]
    name = f"sessions-{options.graph}-g{options.granularity}-t{options.threads}"
    beyond = {
        of: {name: share(sum(row[of][name] < _POINT for row in rows), len(rows)) for name in ("p", "p_allowed")}
        for of in ("model", "bricks", "ratio")
    }
    result = {**facts, "beyond_5_percent": beyond, "models": rows}
    write(options.out, name + (f"-{options.name}" if options.name else ""), result)


def tested(store: Store, options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the tests of each model in a database, and their provenance."""
    sources = find_models(chosen(options.models, () if options.models else ("tune", "held")))
    cut = {"graph": options.graph, "granularity": options.granularity}
    estimates = estimate(sources, store=store, threads=options.threads, **cut)
    truths = {one.key: one for one in store.measurements(subject=Subject.MODEL, threads=options.threads, variant="")}
    rows = []
    for source, row in zip(sources, estimates, strict=True):
        truth = truths.get(build_graph(source.skeleton()).key)
        if row.truth.paired and truth is not None:
            rows.append({"name": row.name, **_tests(row, truth, store)})
    place = next(row.place for row in estimates if row.place.system)
    return rows, {
        **provenance(store, place.system or "", place.stack or ""),
        **cut,
        "threads": options.threads,
        "quiet": quietness(store, [truth.id for truth in truths.values()]),
    }


def _tests(row: Estimate, truth: Measurement, store: Store) -> dict[str, Any]:
    counts = Counter(part.key for part in row.parts.sequences)
    bricks = {
        one.key: one
        for one in store.measurements(
            subject=Subject.BRICK, keys=set(counts), stack=truth.stack, threads=truth.conditions.threads,
            cache=row.model.level, variant="",
        )
    }  # fmt: skip
    model, total = _by_session(truth, store), {}
    for key, brick in bricks.items():
        for session, values in _by_session(brick, store).items():
            known = total.get(session)
            size = values.size if known is None else min(known.size, values.size)
            total[session] = counts[key] * values[:size] + (0.0 if known is None else known[:size])
    both = sorted(model.keys() & total.keys())
    sizes = {session: min(model[session].size, total[session].size) for session in both}
    logs = {
        "model": {session: np.log(model[session][: sizes[session]]) for session in both},
        "bricks": {session: np.log(total[session][: sizes[session]]) for session in both},
    }
    logs["ratio"] = {session: logs["bricks"][session] - logs["model"][session] for session in both}
    stacks = store.stacks()
    allowed = {
        "model": scatter_of(stacks[truth.stack], truth.conditions.threads, Subject.MODEL).process_sd,
        "bricks": scatter_of(stacks[truth.stack], truth.conditions.threads, Subject.BRICK).process_sd,
        "ratio": 0.0,  # its interval has the session as unit
    }
    return {of: f_test([*values.values()], allowed[of]) for of, values in logs.items()}


def _by_session(one: Measurement, store: Store) -> Sessions:
    """Return the means of the time blocks of a measurement, by session."""
    blocks = [block for block in store.blocks_of([one.id])[one.id] if block.samples]
    values = block_values(blocks, one.unroll)
    return {(block.process, block.round): time_blocks([visits]) for block, visits in zip(blocks, values, strict=True)}


def f_test(sessions: Sequence[Any], allowed_sd: float = 0.0) -> dict[str, float]:
    """Return F, and the probability of a larger one without an effect of sessions and with an allowed effect.

    Args:
        sessions: Values by session, as logarithms.
        allowed_sd: Standard deviation of sessions that intervals contain anyway.
    """
    values, counts = np.concatenate(sessions), np.array([len(one) for one in sessions])
    means = np.array([one.mean() for one in sessions])
    degrees = len(sessions) - 1, len(values) - len(sessions)
    between = float((counts * (means - values.mean()) ** 2).sum()) / degrees[0]
    within = sum(float(((one - one.mean()) ** 2).sum()) for one in sessions) / degrees[1]
    allowed = within + float(counts.mean()) * allowed_sd**2
    rng = np.random.default_rng(0)
    drawn = rng.f(*degrees, size=_DRAWS)
    return {
        "f": between / within,
        "p": float(np.mean(drawn >= between / within)),
        "p_allowed": float(np.mean(drawn >= between / allowed)),
        "between": degrees[0],
        "within": degrees[1],
        "session_sd": float(np.std(means, ddof=1)),
    }


if __name__ == "__main__":
    main()
