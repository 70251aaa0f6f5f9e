"""Try comparisons: models against equal copies, and against copies that are slower by known shares.

    python benchmarks/gates.py --copies FOLDER [--models squeezenet FILE ...] [--shares 0 0 0.02 0.03 0.05] [--tries 5]
        [--beside quiet loops memory] [--minimum-effect 0.03] [--threads 1]
    python benchmarks/gates.py --proofs 200 [--models squeezenet ...] [--threads 1] [--name NAME]

Each try calls ``dlbricks.gate``: how often is a difference found, how wrong is its size, and how often does an equal
copy look slower? A slower copy computes more from its first input, in one of four ways (``WAYS``). The way depends on
the share and the model.

Separate processes measure how much slower a copy is, without dlbricks. Each loads both files, in one order or the
other, and runs them alternately. These processes run after every round of tries, without other load: hours later the
same two files differ by another share. A call uses the results of all its processes, so it should take half an hour at
most. Copies stay in ``--copies``, for later calls. During the tries nothing else runs, or two programs that only
compute, or one that copies memory. Written under ``--out``, after each round: ``power-t<threads>.json``; a later call
adds to it, so that a curve may grow over days.

With ``--proofs N``, models are compared with themselves N times in all, as in the proof of a finding. At most 5 % of
the intervals may exclude zero. Written: ``equal-t<threads>[-<name>].json``; a later call adds to it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
from busy import busy
from dlbricks import gate
from dlbricks.analyzer.comparison.difference import MINIMUM_EFFECT
from dlbricks.analyzer.findings.proof import Proving, proof_of
from dlbricks.db.values import runtime_from
from dlbricks.generator.machine.system import probe_system
from dlbricks.generator.measurement.trial import Contender, Trial, TrialPair, place_of, try_out
from dlbricks.models import ModelSource, find_models
from figures import parser, read, write
from slower import PROCESSES, WAYS, logs_of, share_of, slowed

_BATCH = 10
_SMALL = ("squeezenet", "mobilenet_v2", "shufflenet", "minilm_l6", "levit_128", "resnet18")
"""Models of a few milliseconds, and of several families."""

_FINDING = 0.03
"""Share of a model that a finding must save."""

_STREAM = """
import os
import numpy
parent, there, here = os.getppid(), numpy.ones(1 << 24), numpy.ones(1 << 24)
while os.getppid() == parent:
    here[:] = there
"""

BESIDE: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "quiet": contextlib.nullcontext,
    "loops": lambda: busy(2),
    "memory": lambda: busy(1, _STREAM),
}
"""Load of the machine during the tries."""


def main() -> None:
    """Try, print and write."""
    arguments = parser(__doc__)
    arguments.add_argument("--models", nargs="+", default=_SMALL)
    arguments.add_argument("--copies", type=Path, metavar="FOLDER", help="of the models and their copies")
    arguments.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.03], help="a repeated one is tried again")
    arguments.add_argument("--tries", type=int, default=5, help="of each copy beside each program")
    arguments.add_argument("--beside", nargs="+", choices=BESIDE, default=["quiet"])
    arguments.add_argument("--minimum-effect", type=float, default=MINIMUM_EFFECT)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--proofs", type=int, default=0)
    arguments.add_argument("--name", default="", help="distinguishes several runs of proofs")
    options = arguments.parse_args()
    if options.proofs:
        with tempfile.TemporaryDirectory(prefix="dlbricks-gates-") as name:
            equal(options, Path(name))
    elif options.copies is None:
        arguments.error("--copies is missing")
    else:
        curve(options)


def curve(options: argparse.Namespace) -> None:
    """Compare models with copies that are slower by known shares."""
    path = options.out / f"power-t{options.threads}.json"
    cpu = probe_system().cpu
    found = read(path, {"cpu": cpu, "threads": options.threads, "rows": []})
    if found["cpu"] != cpu:
        raise SystemExit(f"{path} is of {found['cpu']}: give another --out")
    pairs = [*_pairs(options)]
    logs: dict[Path, list[float]] = defaultdict(list)
    mine: dict[Path, list[dict[str, Any]]] = defaultdict(list)
    for number, beside in itertools.product(range(options.tries), options.beside):
        with BESIDE[beside]():
            for known, old, new in pairs:
                row = {**known, "beside": beside, **_tried(*find_models([old, new]), options)}
                mine[new].append(row)
                found["rows"].append(row)
                print(f"{number} {_told(row)}", flush=True)
        for known, old, new in {pair[-1]: pair for pair in pairs}.values():  # a repeated share is one copy
            share, error = 0.0, 0.0
            if known["share"]:
                logs[new] += logs_of(old, new, options.threads, PROCESSES)
                share, error = share_of(logs[new])
            for row in mine[new]:
                row |= {"injected": share, "injected_error": error, "injected_processes": len(logs[new])}
        write(path, found, f"{number} {beside}: {len(found['rows'])} rows")


def _pairs(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], Path, Path]]:
    """Return for each model and share: the properties of the copy, the file of the model and the file of the copy."""
    options.copies.mkdir(parents=True, exist_ok=True)
    for number, source in enumerate(find_models(options.models)):
        old = options.copies / f"{source.name}.onnx"
        if not old.exists():
            onnx.save(onnx.load(source.runnable(options.copies).path), old)
        for share in options.shares:
            way = [*WAYS][(number + round(100 * share)) % len(WAYS)] if share else ""
            new = options.copies / f"{source.name}-{way or 'equal'}-{share}-t{options.threads}.onnx"
            if not share:
                new.write_bytes(old.read_bytes())
            elif not new.exists():
                slowed(old, new, way, share, options.threads)
            yield ({"model": source.name, "share": share, "way": way}, old, new)


def _told(row: dict[str, Any]) -> str:
    low, high = row["ratio_ci95"] or (math.nan, math.nan)
    return (
        f"{row['model']} {row['way']} {row['share']:.0%}, {row['beside']}: reads {row['ratio'] - 1:+.2%} "
        f"({low - 1:+.2%} to {high - 1:+.2%}), {row['verdict']}, {row['wall_s']:.0f} s"
    )


def equal(options: argparse.Namespace, folder: Path) -> None:
    """Prove models against themselves until the file has the requested number of proofs; write it after each batch."""
    name = f"equal-t{options.threads}" + (f"-{options.name}" if options.name else "")
    path = options.out / f"{name}.json"
    rows = read(path, {"rows": []})["rows"]
    how, place = Proving(), place_of(runtime_from({}), options.threads)
    settings = {"visits": how.visits, "processes": how.processes, "threads": options.threads}
    for source in itertools.cycle(find_models(options.models)):
        if len(rows) >= options.proofs:
            break
        contender = Contender(source.runnable(folder), place)
        pairs = [TrialPair(contender, contender)] * min(_BATCH, options.proofs - len(rows))
        for trial in try_out(pairs, visits=how.visits, processes=how.processes):
            if not isinstance(trial, Trial):
                raise trial
            proof = proof_of(trial)
            ends = [end / proof.before_ms for end in proof.ci95_ms]
            rows.append({"model": source.name, "saving": proof.saving_ms / proof.before_ms, "ci95": ends})
        excluding = [row for row in rows if not row["ci95"][0] <= 0 <= row["ci95"][1]]
        found = {
            **settings,
            "models": Counter(row["model"] for row in rows),
            "proofs": len(rows),
            "exclude_zero": len(excluding),
            "save_3_percent": sum(row["ci95"][0] >= _FINDING for row in rows),
            "half_width": statistics.median((row["ci95"][1] - row["ci95"][0]) / 2 for row in rows),
            "rows": rows,
        }
        write(path, found, f"{len(excluding)} of {len(rows)} proofs exclude zero")


def _tried(before: ModelSource, after: ModelSource, options: argparse.Namespace) -> dict[str, Any]:
    begun = time.monotonic()
    found = gate(before, after, threads=options.threads, minimum_effect=options.minimum_effect)
    return {
        "minimum_effect": options.minimum_effect,
        "verdict": str(found.verdict),
        "ratio": found.levels.difference.ratio,
        "ratio_ci95": found.ratio_ci95,
        "ratios": found.levels.ratios,
        "processes": found.processes,
        "wall_s": time.monotonic() - begun,
    }


if __name__ == "__main__":
    main()
