"""How exact the estimate of a model is on a machine that never saw it: the documented private round trip.

    python benchmarks/round_trip.py MODEL... [--graph fused] [--threads 1] [--loops 0] [--together] [--out FOLDER]
    python benchmarks/round_trip.py --list FILES.tsv [...]

The suite is generated here, measured in another folder with an empty cache and without a model, and the models are
estimated from these latencies twice: with the cache folder that generating filled, and with an empty one. The models
themselves are measured before and after the bricks; the truth is the mean of both. ``--together`` measures models and
bricks alternately instead, which shows the error of the method without that of the time between. A list is that of
``improved.py``. Written under ``--out``: ``round-trip-<graph>-t<threads>[-busy][-together].json``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from busy import busy
from dlbricks import estimate
from dlbricks.db import Store
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from dlbricks.models import ModelSource, find_models
from facts import provenance
from figures import parser, percent, write
from improved import add_files, files

_STEP = "--step"
_WITHIN = (0.10, 0.15)

Row = dict[str, Any]


def main() -> None:
    """Make the round trip."""
    if sys.argv[1:2] == [_STEP]:
        print(json.dumps(_STEPS[sys.argv[2]](json.loads(sys.argv[3]))))
        return
    arguments = parser(__doc__)
    add_files(arguments)
    arguments.add_argument("--graph", choices=("fused", "source", "runtime"), default="fused")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--loops", type=int, default=0, help="busy programs beside the measurements")
    arguments.add_argument("--together", action="store_true")
    options = arguments.parse_args()
    models = [[name, dims] for name, dims, _ in files(options)]
    asked = {"models": models, "graph": options.graph, "threads": options.threads}
    with tempfile.TemporaryDirectory(prefix="dlbricks-round-trip-") as folder:
        result = _round_trip(Path(folder), asked, options.loops, together=options.together)
    name = f"round-trip-{options.graph}-t{options.threads}{'-busy' * bool(options.loops)}"
    write(options.out / f"{name}{'-together' * options.together}.json", result, report(result))


def _round_trip(folder: Path, asked: Row, loops: int, *, together: bool) -> Row:
    here, there, empty = (folder / name for name in ("here", "there", "empty"))
    suite, bricks, truth = folder / "suite", folder / "bricks.db", folder / "truth.db"
    made = _step("generate", {**asked, "suite": str(suite)}, here)
    measured: list[dict[str, Row]] = []
    with busy(loops):
        if not together:
            measured.append(_step("measure", {**asked, "db": str(truth)}, here))
        ran = _step("run", {**asked, "suite": str(suite), "db": str(bricks), "with": together}, there)
        if not together:
            measured.append(_step("measure", {**asked, "db": str(truth)}, here))
    asked = {**asked, "db": str(bricks)}
    rows, again = (_step("estimate", asked, cache)["rows"] for cache in (here, empty))
    models = []
    for row, other in zip(rows, again, strict=True):
        times = [each[row["name"]] for each in measured if each.get(row["name"]) is not None]
        ms = statistics.fmean(times) if times else row["measured_ms"]
        models.append({**row, "measured_ms": ms, "measured_each_ms": times, "empty_cache_ms": other["estimate_ms"]})
    with Store.open(str(bricks)) as store:
        measurement = store.measurements()[0]
        source = provenance(store, measurement.system, measurement.stack)
    spent = {"generate_s": made["wall_s"], "run": ran}
    return {**source, **{name: asked[name] for name in ("graph", "threads")}, "loops": loops, "together": together,
            "cost": spent, "models": models}  # fmt: skip


def _step(name: str, asked: Mapping[str, Any], cache: Path) -> Row:
    """Execute a step in a process and with a cache folder of its own."""
    command = [sys.executable, __file__, _STEP, name, json.dumps(asked)]
    environment = {**os.environ, "DLBRICKS_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr[-2000:]}")
    answer: Row = json.loads(done.stdout.splitlines()[-1])
    return answer


def _sources(asked: Mapping[str, Any]) -> list[ModelSource]:
    return [source for name, dims in asked["models"] for source in find_models([name], dims=dims or None)]


def _generate(asked: Row) -> Row:
    report = generate(
        _sources(asked), out=Path(asked["suite"]), graph=asked["graph"], granularity=1, threads=asked["threads"]
    )
    return {"wall_s": report.wall_s, "unique": report.unique}


def _run(asked: Row) -> Row:
    with Store.open(asked["db"]) as store:
        models = _sources(asked) if asked["with"] else []
        report = run(asked["suite"], store=store, models=models, threads=asked["threads"])
    return {"wall_s": report.wall_s, "timed_s": report.timed_s, "bricks": report.bricks, "failed": report.failed}


def _measure(asked: Row) -> Row:
    with Store.open(asked["db"]) as store:
        rows = measure(_sources(asked), store=store, threads=asked["threads"]).rows
    return {row.name: row.latency_ms for row in rows}


def _estimate(asked: Row) -> Row:
    with Store.open(asked["db"], read_only=True) as store:
        rows = estimate(_sources(asked), store=store, graph=asked["graph"], threads=asked["threads"]).records().results
    kept = ("name", "estimate_ms", "ci95_ms", "measured_ms", "ratio", "ratio_ci95", "calibrated", "error")
    return {"rows": [{name: row.get(name) for name in kept} for row in rows]}


_STEPS = {"generate": _generate, "run": _run, "measure": _measure, "estimate": _estimate}


def ratio(row: Row) -> float | None:
    """Return estimate over truth; None if one is not known."""
    if row["estimate_ms"] is None or not row["measured_ms"]:
        return None
    return float(row["ratio"] or row["estimate_ms"] / row["measured_ms"])


def holds(row: Row) -> bool:
    """Return True if the interval has the truth."""
    low, high = row["ci95_ms"] or (0.0, 0.0)
    return bool(low <= row["estimate_ms"] / (ratio(row) or 1.0) <= high)


def report(result: Row) -> str:
    """Return the table of a result."""
    rows: Sequence[Row] = sorted(result["models"], key=lambda row: row["measured_ms"] or 0.0)
    lines = [
        f"{row['name'][:60]:60} {row['measured_ms'] or 0:9.3f} ms  {ratio(row) or 0:.3f}  "
        f"{'holds' if row['estimate_ms'] and holds(row) else '-':5}  {row['error'] or ''}"
        for row in rows
    ]
    one = summary(result)
    within = ", ".join(f"{percent(one[f'within_{most:.0%}'])} within {most:.0%}" for most in _WITHIN)
    lines.append(
        f"{one['models']} models: median error {percent(one['median_error'])}, {within}, intervals hold "
        f"{percent(one['hold'])}, half-width {percent(one['half_width'])}, bias {percent(one['bias'])}; "
        f"{one['differ']} differ with an empty cache"
    )
    return "\n".join(lines)


def summary(result: Row) -> dict[str, float]:
    """Return the figures of a result over its estimated models."""
    known = [row for row in result["models"] if ratio(row) is not None]
    ratios = [ratio(row) or 1.0 for row in known]
    errors = [abs(one - 1) for one in ratios]
    return {
        "models": len(known),
        "median_error": statistics.median(errors),
        **{f"within_{most:.0%}": statistics.fmean(error <= most for error in errors) for most in _WITHIN},
        "hold": statistics.fmean(map(holds, known)),
        "half_width": statistics.median(row["ci95_ms"][1] / row["estimate_ms"] - 1 for row in known if row["ci95_ms"]),
        "bias": statistics.median(ratios) - 1,
        "differ": sum(row["empty_cache_ms"] != row["estimate_ms"] for row in known),
    }


if __name__ == "__main__":
    main()
