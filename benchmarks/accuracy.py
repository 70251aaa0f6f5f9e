"""How well estimates add up, on a machine as it is.

    python benchmarks/accuracy.py [--graph runtime] [-g 1] [--threads 1] [--batch 1] [--neighbour DUTY] [--half HALF]
                                  [--models ...] [--backend NAME] [--option NAME=VALUE] [--cache model]

The zoo is ``benchmarks/zoo.csv`` (the exports need the ``zoo`` extra). The protocol was tuned on the half ``tune``;
``held`` was set aside then and has been seen since; ``new`` was added later. ``--half`` selects halves. One run
alternates all bricks and all models. Only alternating pairs (``paired``) enter the tables as ratios.

``--neighbour`` starts a process that disturbs the machine (``neighbour.py``). It counts as a disturbance if models took
at least 1.25 times as long on average as without it: by the undisturbed latencies of the same run, or, with
``--against``, by an earlier run without a neighbour (its ``--db``). At all cores only the latter is valid, since the
neighbour shares a core in every visit. With ``--elsewhere`` the suite is generated and the models are cut here, and
measured in another environment of this machine, which may have another version of the runtime (for ``fused`` bricks).
A runtime that compiles for seconds (``--backend torch --option mode=compile --cache hot``) needs few models and
``--item-timeout``: slower bricks or models are given up, and the model is reported.

Written under ``--out``: ``accuracy-[<backend>-][<option>-]<graph>-g<G>-t<threads>-b<batch>[-<cache>][-n<duty>]
[-elsewhere][-<half>]`` as ``.json``: every figure, with the stack, the costs of the run, and the neighbour's schedule.
Results with options or another cache state do not calibrate intervals.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dlbricks import estimate
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.layer import Cutting
from dlbricks.bricks.suite.suite import Suite
from dlbricks.constructor import Estimate
from dlbricks.constructor.result import EstimatedModel
from dlbricks.constructor.uncertainty.calibration import Method, method_error
from dlbricks.db import Measurement, Store, Subject
from dlbricks.db.values import PROTOCOL
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.cores import physical_cores
from dlbricks.generator.measurement.run import RunReport, run
from dlbricks.generator.network.packed import PACKING
from dlbricks.models import ModelSource, find_models
from facts import (
    HALVES,
    accuracy_name,
    chosen,
    earlier,
    entry,
    middle,
    number,
    percent,
    provenance,
    quietness,
    share,
    spent,
    versions,
    within,
    write,
)
from neighbour import Neighbour

_LIMITS = (3, 5, 10, 15)
_SLOWED = 1.25
_CHILD = "--run-here"
"""First argument of the script in the other environment of ``--elsewhere``."""


def main() -> None:
    """Measure, print and write."""
    if sys.argv[1:2] == [_CHILD]:
        _run_here(*sys.argv[2:])
        return
    options = arguments().parse_args()
    options.threads = options.threads or len(physical_cores())
    begun = time.monotonic()
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="dlbricks-accuracy-")))
        options.db = options.db or folder / "accuracy.db"
        store = resources.enter_context(Store.open(options.db))
        batches = [options.batch] if options.batch != 1 else []
        sources = find_models(chosen(options.models, options.half), batches=batches)
        result = experiment(sources, store, folder, options)
    result["cost"]["wall_s"] = time.monotonic() - begun
    write(options.out, accuracy_name(result), result, report(result))


def arguments() -> argparse.ArgumentParser:
    """Return the options; other benchmarks share the options of the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument(
        "--neighbour", type=float, default=0.0, metavar="DUTY", help="part of the time it is busy, 0..1"
    )
    parser.add_argument("--against", type=Path, metavar="DB", help="a run without the neighbour, to show what it slows")
    parser.add_argument("--db", type=Path, help="keep the measurements; a second call goes on with them")
    parser.add_argument("--backend", default="onnxruntime", help="which reports --graph runtime or fused, where it can")
    parser.add_argument(
        "--option", action="append", type=setting, default=[], metavar="NAME=VALUE", help="of the backend; repeatable"
    )
    parser.add_argument("--cache", choices=("model", "hot"), default="model", help="hot: where a backend has no other")
    parser.add_argument("--item-timeout", type=float, default=120.0, metavar="S", help="most for a brick or model")
    parser.add_argument("--elsewhere", type=Path, metavar="PYTHON", help="measure in the environment of another Python")
    return shared(parser)


def setting(text: str) -> tuple[str, str]:
    """Parse an option of a backend."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def shared(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Options that other benchmarks have as well."""
    parser.add_argument("--models", nargs="+", help="instead of benchmarks/zoo.csv")
    parser.add_argument(
        "--half", action="append", choices=HALVES, default=[], help="models of this half of zoo.csv alone; repeatable"
    )
    parser.add_argument("--graph", choices=("runtime", "fused", "source"), default="runtime")
    parser.add_argument("-g", "--granularity", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="0: all cores")
    parser.add_argument("--visits", type=int, default=24)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    return parser


def protocol(options: argparse.Namespace) -> dict[str, Any]:
    """Return the common arguments of ``run`` and ``measure``."""
    return {name: getattr(options, name) for name in ("threads", "visits", "processes", "sessions", "seed")}


def experiment(
    sources: Sequence[ModelSource], store: Store, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Generate, run and estimate, each once."""
    threads, cut = options.threads, {"granularity": options.granularity, "graph": options.graph}
    runtime = {"backend": options.backend, "options": dict(options.option)}
    made = generate(sources, out=folder / "suite", threads=threads, annotate=True, **runtime, **cut)
    usable = [source for source, row in zip(sources, made.rows, strict=True) if row.error is None]
    if made.suite is None:
        raise SystemExit(f"no model can be decomposed: {made.rows[0].error}")
    with Neighbour(options.neighbour, threads=threads, seed=options.seed) as neighbour:
        if options.elsewhere:
            names = [source.name for source in usable]
            done = _run_elsewhere(options.elsewhere, made.suite, options.db, names, cache="model", **protocol(options))
        else:
            done = run(
                made.suite, store=store, models=usable, cache=options.cache, item_timeout_s=options.item_timeout,
                **runtime, **protocol(options),
            )  # fmt: skip
    begun = time.monotonic()
    where = {"stack": done.stack, "system": done.system, "threads": threads}
    found = estimate(usable, store=store, cache=options.cache, **where, **cut)
    estimate_s = time.monotonic() - begun
    calm: dict[str, float] = {}
    calm_state = None
    if options.against:
        keys = {source.name: build_graph(source.skeleton()).key for source in usable}
        calm, calm_state = earlier(options.against, keys, done, threads=threads)
    rows = [_row(one, calm.get(one.name)) for one in found]
    cutting = Cutting(options.granularity)
    rows += [
        _row(Estimate(EstimatedModel(ModelSource(row.name, None, None), cutting, error=row.error)))
        for row in made.rows
        if row.error
    ]
    measured = [one for one in store.measurements(variant=None, **where) if one.subject is not Subject.REFERENCE]
    return {
        **provenance(store, done.system, done.stack),
        **{name: getattr(options, name) for name in ("graph", "granularity", "batch", "cache")},
        "given": dict(options.option),
        **protocol(options),
        "protocol": PROTOCOL,
        "packing": PACKING,
        "unit": "session",
        "half": [half for half in HALVES if half in options.half] or None,
        "method_sd": method_error(method_of(options, store, done), store.systems()[done.system].cpu).sd,
        "neighbour": neighbour.facts if options.neighbour else None,
        "generated_with": version("onnxruntime") if options.elsewhere else None,
        "bricks": {
            "sequences": made.sequences,
            "unique": made.unique,
            "measured": done.measured,
            "failed": done.failed,
        },
        "failures": dict(done.failures),
        "against": calm_state,
        "quiet": quietness(store, [one.id for one in measured]),
        "summary": summaries(rows),
        "cost": {
            "generate_s": made.wall_s,
            "estimate_s": estimate_s,
            "run": spent(done.wall_s, done.costs),
            "executions": _executions(store, measured),
        },
        "models": rows,
    }


def _run_elsewhere(interpreter: Path, suite: Suite, database: Path, names: Sequence[str], **options: Any) -> RunReport:
    """Measure a suite and models of the zoo with another interpreter that has this version of dlbricks.

    Raises:
        CalledProcessError: It failed; its message is on stderr.
    """
    where = str(suite.path.resolve()), str(database.resolve())
    command = [str(interpreter), __file__, _CHILD, *where, json.dumps(options), *names]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    report: RunReport = pickle.loads(said)
    return report


def _run_here(suite: str, database: str, options: str, *names: str) -> None:
    """Measure in the other interpreter."""
    with Store.open(Path(database)) as store:
        found = run(Path(suite), store=store, models=find_models(names), **json.loads(options))
    sys.stdout.buffer.write(pickle.dumps(found))


def method_of(options: argparse.Namespace, store: Store, done: RunReport) -> Method:
    """Return the way in which estimates are composed."""
    stack, names = store.stacks()[done.stack], ("graph", "granularity", "threads", "batch", "cache")
    how = {name: getattr(options, name) for name in names}
    return Method(backend=stack.backend, device=stack.device, dtype="float32", **how)


def _row(found: Estimate, earlier_ms: float | None = None) -> dict[str, Any]:
    """Return the row of one model, with a ratio only if bricks and model alternated."""
    reason = found.error or found.truth.reason
    if reason is None and not found.truth.paired:
        reason = "bricks and model were not visited in turn"
    return {
        "name": found.name.partition("@")[0],
        **entry(found.name),
        "measured_ms": found.truth.ms,
        "estimate_ms": found.latency.ms,
        "ratio": found.truth.ratio if found.truth.paired else None,
        "ratio_ci95": found.truth.ratio_ci95 if found.truth.paired else None,
        "undisturbed_ms": found.latency.undisturbed_ms,
        "measured_undisturbed_ms": found.truth.undisturbed_ms,
        "earlier_ms": earlier_ms,
        "disturbance": found.disturbance,
        "quiet": found.latency.quiet,
        "level": found.model.level,
        "layers": found.model.layers,
        "unique": found.parts.unique,
        "missing": len(found.parts.missing),
        "reason": reason,
    }


def _executions(store: Store, measured: Sequence[Measurement]) -> dict[str, Any]:
    """Return the number and the time of sampled executions of bricks and models, without warm-ups."""
    blocks = store.blocks_of([one.id for one in measured])
    counts = {}
    for subject in (Subject.BRICK, Subject.MODEL):
        samples = [
            sample
            for one in measured
            if one.subject is subject and not one.variant
            for block in blocks.get(one.id, ())
            for sample in block.samples
        ]
        counts[f"{subject}s"] = {
            "items": sum(one.subject is subject and not one.variant for one in measured),
            "executions": sum(loops for _, loops in samples),
            "seconds": sum(elapsed_ns for elapsed_ns, _ in samples) / 1e9,
        }
    return counts


def summaries(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Summarise all models, and the models of each half and kind."""
    groups = {"all": list(rows)}
    for name in ("half", "kind"):
        for value in dict.fromkeys(row[name] for row in rows):
            groups[f"{name} {value}"] = [row for row in rows if row[name] == value]
    return {label: _summary(group) for label, group in groups.items()}


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over some models."""
    known = [row for row in rows if row["ratio"] is not None]
    errors = [abs(row["ratio"] - 1) for row in known]
    worst = max(known, key=lambda row: abs(row["ratio"] - 1), default=None)
    return {
        "models": len(rows),
        "with_ratio": share(len(known), len(rows)),
        "median_error": middle(errors),
        **{f"within_{limit}": within(errors, limit / 100) for limit in _LIMITS},
        "worst": max(errors, default=None),
        "worst_model": worst and worst["name"],
        "geomean_ratio": math.exp(statistics.fmean(math.log(row["ratio"]) for row in known)) if known else None,
        "inside_interval": share(sum(low <= 1 <= high for low, high in _intervals(known)), len(known)),
        "median_half_width": middle([(high - low) / 2 for low, high in _intervals(known)]),
        "undisturbed_median_error": middle(_quotients(known, "undisturbed_ms", "measured_undisturbed_ms", less=1)),
        "slowdown": _mean(_quotients(rows, "measured_ms", "measured_undisturbed_ms")),
        "slowdown_from_earlier": _mean(_quotients(rows, "measured_ms", "earlier_ms")),
        "models_of_earlier": len(_quotients(rows, "measured_ms", "earlier_ms")),
    }


def _intervals(rows: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    return [row["ratio_ci95"] for row in rows]


def _quotients(rows: Iterable[Mapping[str, Any]], part: str, whole: str, *, less: float = 0.0) -> list[float]:
    """Of two figures, or how far these are from a number."""
    return [abs(row[part] / row[whole] - less) for row in rows if row[part] is not None and row[whole]]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def report(result: Mapping[str, Any]) -> str:
    """Return the tables as Markdown."""
    quiet, cost, everything = result["quiet"], result["cost"], result["summary"]["all"]
    columns = ["", "models", "with a ratio", "median error", *(f"within {limit} %" for limit in _LIMITS)]
    columns += ["worst", "interval holds 1", "half-width"]
    lines = [
        (
            f"# Accuracy: {everything['models']} models, {result['graph']} graph at G={result['granularity']}, "
            f"{result['threads']} thread(s), batch {result['batch']}\n"
        ),
        (
            f"dlbricks {result['dlbricks']}, {result['date']}, {result['system']['cpu']}, {result['system']['cores']} "
            f"cores, {result['stack']['backend']} {versions(result['stack'])}; {result['visits']} visits, "
            f"{result['processes']} processes of {result['sessions']} sessions. {result['bricks']['unique']} unique "
            f"bricks of {result['bricks']['sequences']}. Written by `benchmarks/accuracy.py`; all figures are in the "
            "JSON.\n"
        ),
        (
            f"The machine: {quiet['state']} ({percent(quiet['quiet_share']) or 'none'} of the probes quiet); models "
            f"took {number(everything['slowdown'])} times what they take undisturbed. {_disturber(result)}\n"
        ),
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for label, row in result["summary"].items():
        cells = [percent(row[name]) for name in ("with_ratio", "median_error", *(f"within_{one}" for one in _LIMITS))]
        cells += [f"{percent(row['worst'])} ({row['worst_model']})" if row["worst_model"] else ""]
        cells += [percent(row["inside_interval"]), percent(row["median_half_width"])]
        lines.append(f"| {label} | {row['models']} | {' | '.join(cells)} |")
    executed = cost["executions"]
    lines += [
        (
            f"\nWall time {cost['wall_s']:.0f} s: generation {cost['generate_s']:.0f} s, the run "
            f"{cost['run']['wall_s']:.0f} s (of which bricks executed {executed['bricks']['seconds']:.0f} s and models "
            f"{executed['models']['seconds']:.0f} s), estimates {cost['estimate_s']:.0f} s.\n"
        ),
        "| model | half | level | measured ms | ratio | 95 % interval | disturbed by | quiet |",
        "|---" * 8 + "|",
    ]
    for row in result["models"]:
        low, high = row["ratio_ci95"] or (None, None)
        interval = f"{number(low)} to {number(high)}" if row["ratio_ci95"] else row["reason"]
        cells = [row["name"], row["half"], row["level"] or "", number(row["measured_ms"]), number(row["ratio"])]
        cells += [interval, percent(row["disturbance"]), percent(row["quiet"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _disturber(result: Mapping[str, Any]) -> str:
    """Describe the neighbour's activity."""
    neighbour, summary = result["neighbour"], result["summary"]["all"]
    if neighbour is None:
        return "No neighbour of our own."
    earlier_run = summary["slowdown_from_earlier"]
    slowdown = summary["slowdown"] if earlier_run is None else earlier_run
    since = "undisturbed" if earlier_run is None else f"in an earlier run ({summary['models_of_earlier']} of them)"
    counts = slowdown is not None and slowdown >= _SLOWED
    return (
        f"A neighbour of our own was busy for {percent(neighbour['achieved_duty'])} of the time, in "
        f"{len(neighbour['schedule'])} bursts; models took {number(slowdown)} times as long as "
        f"{since}, so that this {'counts' if counts else 'does not count'} as disturbed (from {_SLOWED} on)."
    )


if __name__ == "__main__":
    main()
