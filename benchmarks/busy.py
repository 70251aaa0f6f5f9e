"""Compare the latency of bricks and models beside busy programs with their latency on the quiet machine.

    python benchmarks/busy.py [--loops 0 1 2 3] [--priority high off] [--threads 1] [--visits 12] [--rounds 1]
        [--models ...]

For each model, quiet and busy phases alternate. A round runs the model and its bricks once for each priority and number
of busy loops, seconds apart. The phase with the first priority and the first number of loops is the quiet one. Each
kind of phase has its own database, so that a busy phase knows nothing of a quiet one. A busy loop is a program that
only computes, at the usual priority.

Written under ``--out``: ``busy-<priorities>-t<threads>-r<rounds>.json`` (every figure). Models that this file already
has are kept and not measured again, so that several short calls add up. For each kind of phase they compare the
undisturbed latency of models, and the undisturbed sums of their bricks, with the quiet phase of the same round. The
estimate is compared with the model of the same phase.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import figures_of
from dlbricks import estimate
from dlbricks.db import Store
from dlbricks.db.samples.statistics import student
from dlbricks.generator.machine.priority import PRIORITIES
from dlbricks.generator.measurement.run import run
from dlbricks.models import ModelSource, find_models
from facts import generated, provenance
from figures import parser, percent, read, table, write

_LOOP = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(10**6):
        pass
"""

MODELS = [
    "squeezenet", "resnet18", "resnet50", "inception_v1", "inception_v2", "mobilenet_v1", "mobilenet_v2",
    "shufflenet", "densenet121", "alexnet", "zfnet512", "efficientnet_b0", "regnet_y_040", "mobilevit_small",
    "mobilevitv2", "levit_128", "deit_tiny", "vit_small", "pvt_tiny", "pvt_v2_b0", "swiftformer_xs", "poolformer_s12",
    "minilm_l6", "electra_small", "distilbert", "squeezebert", "mobilebert", "t5_small", "yolos_tiny", "hgnetv2_b0",
]  # fmt: skip
"""Thirty, of 1 to 50 ms."""


@contextmanager
def busy(loops: int, program: str = _LOOP) -> Iterator[None]:
    """Run so many programs, those that only compute unless another is given."""
    started = [subprocess.Popen([sys.executable, "-c", program], start_new_session=True) for _ in range(loops)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> None:
    """Measure the phases of each model, and write their figures."""
    arguments = parser(__doc__)
    arguments.add_argument("--models", nargs="+", default=MODELS)
    arguments.add_argument("--loops", type=int, nargs="+", default=[0, 1, 2, 3])
    arguments.add_argument("--priority", nargs="+", choices=PRIORITIES, default=["high", "off"])
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--visits", type=int, default=12)
    arguments.add_argument("--rounds", type=int, default=1)
    options = arguments.parse_args()
    path = options.out / f"busy-{'-'.join(options.priority)}-t{options.threads}-r{options.rounds}.json"
    result = read(path, {"runs": []})
    known = {row["name"] for entry in result["runs"] for row in entry["models"]}
    with tempfile.TemporaryDirectory(prefix="dlbricks-busy-") as folder:
        for source in find_models([model for model in options.models if model not in known]):
            result = with_model(result, source, options, Path(folder))
            write(path, result, report(result))  # what is done stays, should this call be ended


def with_model(
    result: dict[str, Any], source: ModelSource, options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Return the result with the phases of one more model."""
    _, suite = generated([source], folder / source.name, granularity=1, graph="runtime", threads=options.threads)
    rows = {(entry["priority"], entry["loops"]): entry["models"] for entry in result["runs"]}
    phases = [(priority, loops) for priority in options.priority for loops in options.loops]
    for number, (priority, loops) in itertools.product(range(options.rounds), phases):
        with Store.open(folder / f"{priority}-{loops}.db") as store, busy(loops):
            done = run(
                suite, store=store, models=[source], threads=options.threads, visits=options.visits,
                priority=priority, again=["all"],
            )  # fmt: skip
            facts = provenance(store, done.system, done.stack)
            rows.setdefault((priority, loops), []).append({"round": number, **_row(source, store)})
    runs = [
        {"priority": priority, "loops": loops, "models": models, "summary": _summary(models, rows[phases[0]])}
        for (priority, loops), models in rows.items()
    ]
    settings = {name: getattr(options, name) for name in ("threads", "visits", "rounds")}
    return {**facts, **settings, "runs": runs}


def _row(source: ModelSource, store: Store) -> dict[str, Any]:
    (composed,) = estimate([source], store=store, granularity=1, graph="runtime")
    figures = figures_of(composed)
    latencies = ("measured_ms", "estimate_ms", "ratio", "undisturbed_ms", "measured_undisturbed_ms")
    return {name: figures[name] for name in ("name", *latencies, "quiet")}


def _summary(rows: Sequence[dict[str, Any]], quiet: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = ("measured", "measured_undisturbed", "undisturbed")
    return {
        **{name: _errors(_ratios(rows, quiet, f"{name}_ms")) for name in names},
        "estimate": _errors([row["ratio"] for row in rows if row["ratio"] is not None]),
    }


def _ratios(rows: Sequence[dict[str, Any]], quiet: Sequence[dict[str, Any]], figure: str) -> list[float]:
    """Return a figure relative to the quiet phase, by model: the geometric mean over the rounds."""
    logs: dict[str, list[float]] = {}
    for row, calm in zip(rows, quiet, strict=True):
        if row[figure] is not None and calm[figure] is not None:
            logs.setdefault(row["name"], []).append(math.log(row[figure] / calm[figure]))
    return [math.exp(statistics.fmean(found)) for found in logs.values()]


def _errors(ratios: Sequence[float]) -> dict[str, Any]:
    """Return the bias of ratios that should be 1, with its 95 % interval over models, and their errors."""
    values = np.array(ratios)
    errors, logs = np.abs(values - 1), np.log(values)
    half = student(len(logs) - 1) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    centre = float(np.mean(logs))
    return {
        "count": len(values),
        "bias": math.expm1(centre),
        "bias_ci95": [math.expm1(centre - half), math.expm1(centre + half)] if len(logs) > 1 else None,
        "median": float(np.median(errors)),
        "p95": float(np.quantile(errors, 0.95)),
        "worst": float(errors.max()),
        "within_10": float(np.mean(errors <= 0.1)),
    }


def report(result: dict[str, Any]) -> str:
    """Return the table as Markdown."""
    names = ("measured_undisturbed", "undisturbed", "estimate")
    figures = ("bias", "median", "p95", "within_10")
    head = ("priority", "busy loops", *(f"{name}: {', '.join(figures)}".replace("_", " ") for name in names))
    return table(head, [
        (entry["priority"], entry["loops"],
         *(", ".join(percent(entry["summary"][name][figure]) for figure in figures) for name in names))
        for entry in result["runs"]
    ])  # fmt: skip


if __name__ == "__main__":
    main()
