"""The latency of bricks and models beside busy programs, held against the same on the quiet machine.

    python benchmarks/busy.py [--loops 0 1 2 3] [--priority high off] [--threads 1] [--visits 12] [--models ...]

Suites are generated once. Then bricks and models are measured in one run for each priority and number of busy loops,
each into a database of its own; the run without loops at the first priority is the quiet one. A busy loop is a program
that only computes, in a session of its own and at the usual priority.

Written under ``--out``: ``busy-<priorities>-t<threads>.json`` (every figure): for each run the undisturbed
latency of models and the undisturbed sums of their bricks against those of the quiet run, and the estimate against the
model of the same run.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from dlbricks import estimate
from dlbricks.db import Store
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.priority import PRIORITIES
from dlbricks.generator.measurement.run import run
from dlbricks.models import ModelSource, find_models
from facts import percent, provenance, write

_LOOP = "while True: pass"

MODELS = [
    "squeezenet", "resnet18", "resnet50", "inception_v1", "inception_v2", "mobilenet_v1", "mobilenet_v2",
    "shufflenet", "densenet121", "alexnet", "zfnet512", "efficientnet_b0", "regnet_y_040", "mobilevit_small",
    "mobilevitv2", "levit_128", "deit_tiny", "vit_small", "pvt_tiny", "pvt_v2_b0", "swiftformer_xs", "poolformer_s12",
    "minilm_l6", "electra_small", "distilbert", "squeezebert", "mobilebert", "t5_small", "yolos_tiny", "hgnetv2_b0",
]  # fmt: skip
"""Thirty, of 1 to 50 ms."""


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many programs that only compute."""
    started = [subprocess.Popen([sys.executable, "-c", _LOOP], start_new_session=True) for _ in range(loops)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--loops", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--priority", nargs="+", choices=PRIORITIES, default=["high", "off"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--visits", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dlbricks-busy-") as name:
        result = experiment(options, Path(name))
    write(options.out, f"busy-{'-'.join(options.priority)}-t{options.threads}", result, report(result))


def experiment(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All runs, the quiet one first."""
    sources = find_models(options.models)
    made = generate(
        sources, out=folder / "suite", granularity=1, graph="runtime", threads=options.threads, annotate=True
    )
    usable = [source for source, row in zip(sources, made.rows, strict=True) if row.error is None]
    runs = []
    facts: dict[str, Any] = {}
    for priority in options.priority:
        for loops in options.loops:
            with Store.open(folder / f"{priority}-{loops}.db") as store:
                with busy(loops):
                    done = run(
                        made.suite, store=store, models=usable, threads=options.threads, visits=options.visits,
                        priority=priority,
                    )  # fmt: skip
                facts = facts or provenance(store, done.system, done.stack)
                runs.append(
                    {"priority": priority, "loops": loops, "wall_s": done.wall_s, "models": _rows(usable, store)}
                )
    quiet = {row["name"]: row for row in runs[0]["models"]}
    for entry in runs:
        entry["summary"] = _summary(entry["models"], quiet)
    return {**facts, "threads": options.threads, "visits": options.visits, "runs": runs}


def _rows(sources: Sequence[ModelSource], store: Store) -> list[dict[str, Any]]:
    return [
        {
            "name": found.name,
            "measured_ms": found.truth.ms,
            "estimate_ms": found.latency.ms,
            "ratio": found.truth.ratio if found.truth.paired else None,
            "undisturbed_ms": found.latency.undisturbed_ms,
            "measured_undisturbed_ms": found.truth.undisturbed_ms,
            "quiet": found.latency.quiet,
        }
        for found in estimate(sources, store=store, granularity=1, graph="runtime")
    ]


def _summary(rows: Sequence[dict[str, Any]], quiet: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "measured": _errors(row["measured_ms"] / quiet[row["name"]]["measured_ms"] for row in rows),
        "measured_undisturbed": _errors(
            row["measured_undisturbed_ms"] / quiet[row["name"]]["measured_undisturbed_ms"] for row in rows
        ),
        "undisturbed": _errors(row["undisturbed_ms"] / quiet[row["name"]]["undisturbed_ms"] for row in rows),
        "estimate": _errors(row["ratio"] for row in rows if row["ratio"] is not None),
    }


def _errors(ratios: Iterator[float]) -> dict[str, float]:
    """Bias and errors of ratios that should be 1."""
    values = np.array([*ratios])
    errors = np.abs(values - 1)
    return {
        "count": len(values),
        "bias": math.exp(float(np.mean(np.log(values)))) - 1,
        "median": float(np.median(errors)),
        "p95": float(np.quantile(errors, 0.95)),
        "worst": float(errors.max()),
        "within_10": float(np.mean(errors <= 0.1)),
    }


def report(result: dict[str, Any]) -> str:
    """The table."""
    titles = [
        "priority", "busy loops", "mean of models: bias", "undisturbed models: bias, median, 95 % within",
        "undisturbed sums of bricks: bias, median, 95 % within", "estimate against model: median, within 10 %",
    ]  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for entry in result["runs"]:
        found = entry["summary"]
        cells = [entry["priority"], str(entry["loops"]), percent(found["measured"]["bias"])]
        cells += [
            ", ".join(percent(found[name][figure]) for figure in ("bias", "median", "p95"))
            for name in ("measured_undisturbed", "undisturbed")
        ]
        cells.append(", ".join(percent(found["estimate"][figure]) for figure in ("median", "within_10")))
        lines.append(f"| {' | '.join(cells)} |")
    title = f"# {len(result['runs'][0]['models'])} models beside busy loops, {result['threads']} thread(s)"
    return "\n".join([title, "", *lines, ""])


if __name__ == "__main__":
    main()
