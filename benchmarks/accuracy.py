"""How well estimates add up, on a machine as it is.

    python benchmarks/accuracy.py [--graph runtime] [-g 1] [--threads 1] [--batch 1] [--half HALF] [--models ...]
                                  [--list FILES.tsv] [--backend NAME] [--option NAME=VALUE] [--cache model]

The zoo is ``benchmarks/zoo.csv`` (the exports need the ``zoo`` extra). The protocol was tuned on the half ``tune``;
``held`` was set aside then and has been seen since; ``new`` was added later. ``--half`` selects halves. One run
alternates all bricks and all models. Only alternating pairs (``paired``) enter the tables as ratios.

With ``--elsewhere`` the suite is generated and the models are cut here, and measured in another environment of this
machine, which may have another version of the runtime (for ``fused`` bricks). A runtime that compiles for seconds
(``--backend torch --option mode=compile --cache hot``) needs few models and ``--item-timeout``: slower bricks or models
are given up, and the model is reported.

Written under ``--out``: ``accuracy-[<backend>-][<option>-]<graph>-g<G>-t<threads>-b<batch>[-<cache>][-elsewhere]
[-<half>][-files]`` as ``.json``: every figure, with the stack and the costs of the run. Results with options or another
cache state do not calibrate intervals.
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
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dlbricks import estimate
from dlbricks.bricks.layer import Cutting
from dlbricks.bricks.suite.suite import Suite
from dlbricks.constructor import Estimate
from dlbricks.constructor.result import EstimatedModel
from dlbricks.constructor.uncertainty.calibration import Method, method_error
from dlbricks.db import Store, Subject
from dlbricks.db.values import PROTOCOL
from dlbricks.generator.machine.cores import physical_cores
from dlbricks.generator.measurement.run import RunReport, run
from dlbricks.generator.network.packed import PACKING
from dlbricks.models import ModelSource, find_models
from facts import HALVES, chosen, entry, generated, provenance, quietness, restricted, restriction, spent
from figures import middle, number, parser, percent, setting, share, table, versions, within, write
from improved import files

_LIMITS = (3, 5, 10, 15)
_CHILD = "--run-here"
"""First argument of the script in the other environment of ``--elsewhere``."""


def main() -> None:
    """Measure, print and write."""
    if sys.argv[1:2] == [_CHILD]:
        _run_here(*sys.argv[2:])
        return
    options = _options()
    begun = time.monotonic()
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="dlbricks-accuracy-")))
        options.db = options.db or folder / "accuracy.db"
        store = resources.enter_context(Store.open(options.db))
        batches = [options.batch] if options.batch != 1 else []
        names = chosen(options.models, options.half)
        sources = listed(options.list) if options.list else find_models(names, batches=batches)
        result = experiment(sources, store, folder, options)
    result["cost"]["wall_s"] = time.monotonic() - begun
    write(options.out / f"{_name(result)}.json", result, report(result))


def _options() -> argparse.Namespace:
    options = shared(__doc__)
    options.add_argument("--batch", type=int, default=1)
    options.add_argument("--list", type=Path, metavar="FILES.tsv", help="files of packages, instead of the zoo")
    options.add_argument("--db", type=Path, help="keep the measurements; a second call goes on with them")
    options.add_argument(
        "--backend", default="onnxruntime", help="which reports --graph runtime or fused, where it can"
    )
    options.add_argument(
        "--option", action="append", type=setting, default=[], metavar="NAME=VALUE", help="of the backend; repeatable"
    )
    options.add_argument("--cache", choices=("model", "hot"), default="model", help="hot: where a backend has no other")
    options.add_argument("--item-timeout", type=float, default=120.0, metavar="S", help="most for a brick or model")
    options.add_argument(
        "--elsewhere", type=Path, metavar="PYTHON", help="measure in the environment of another Python"
    )
    return parsed(options)


def shared(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark that measures the zoo."""
    options = composing(description)
    options.add_argument("--visits", type=int, default=24)
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--sessions", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    return options


def composing(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark that composes estimates of the zoo."""
    options = parser(description)
    options.add_argument("--models", nargs="+", help="instead of benchmarks/zoo.csv")
    options.add_argument(
        "--half", action="append", choices=HALVES, default=[], help="models of this half of zoo.csv alone; repeatable"
    )
    options.add_argument("--graph", choices=("runtime", "fused", "source"), default="runtime")
    options.add_argument("-g", "--granularity", type=int, default=1)
    options.add_argument("--threads", type=int, default=1, help="0: all cores")
    return options


def parsed(options: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the values of options, with the number of all cores for 0 threads."""
    values = options.parse_args()
    values.threads = values.threads or len(physical_cores())
    return values


def protocol(options: argparse.Namespace) -> dict[str, Any]:
    """Return the common arguments of ``run`` and ``measure``."""
    return {name: getattr(options, name) for name in ("threads", "visits", "processes", "sessions", "seed")}


def _name(result: Mapping[str, Any]) -> str:
    """Return the name of a result's file."""
    backend = result["stack"]["backend"]
    name = "accuracy-" if backend == "onnxruntime" else f"accuracy-{backend}-"
    name += "".join(f"{option}={value}-" for option, value in sorted(result["given"].items()))
    name += f"{result['graph']}-g{result['granularity']}-t{result['threads']}-b{result['batch']}"
    name += f"-{result['cache']}" if result["cache"] != "model" else ""
    name += "-elsewhere" if result["generated_with"] else ""
    return name + restriction(result["half"] or ()) + ("-files" if result["files"] else "")


def listed(path: Path) -> list[ModelSource]:
    """Return the models of a list, as ``improved.py`` has it; each is named by its package and file."""
    sources = []
    for file, dims, package in files(argparse.Namespace(models=(), list=path)):
        (source,) = find_models([file], dims=dims) if dims else find_models([file])
        sources.append(replace(source, name=f"{package.partition(' ')[0]}__{Path(file).stem}"))
    return sources


def experiment(
    sources: Sequence[ModelSource], store: Store, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Generate, run and estimate, each once."""
    threads, cut = options.threads, {"granularity": options.granularity, "graph": options.graph}
    runtime = {"backend": options.backend, "options": dict(options.option)}
    generation, suite = generated(sources, folder / "suite", threads=threads, **runtime, **cut)
    usable = [source for source, row in zip(sources, generation.rows, strict=True) if row.error is None]
    if options.elsewhere:
        done = _run_elsewhere(options, suite, [source.name for source in usable])
    else:
        done = run(
            suite, store=store, models=usable, cache=options.cache, item_timeout_s=options.item_timeout,
            **runtime, **protocol(options),
        )  # fmt: skip
    begun = time.monotonic()
    where = {"stack": done.stack, "system": done.system, "threads": threads}
    rows = [figures_of(one) for one in estimate(usable, store=store, cache=options.cache, **where, **cut)]
    estimate_s = time.monotonic() - begun
    cutting = Cutting(options.granularity)
    rows += [
        figures_of(Estimate(EstimatedModel(ModelSource(row.name, None, None), cutting, error=row.error)))
        for row in generation.rows
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
        "half": restricted(options.half),
        "files": options.list is not None,
        "method_sd": method_error(_method(options, store, done), store.systems()[done.system].cpu).sd,
        "generated_with": version("onnxruntime") if options.elsewhere else None,
        "bricks": {name: getattr(generation, name) for name in ("sequences", "unique")}
        | {name: getattr(done, name) for name in ("measured", "failed")},
        "failures": dict(done.failures),
        "quiet": quietness(store, [one.id for one in measured]),
        "summary": _summaries(rows),
        "cost": {
            "generate_s": generation.wall_s,
            "estimate_s": estimate_s,
            "run": spent(done.wall_s, done.costs),
        },
        "models": rows,
    }


def _run_elsewhere(options: argparse.Namespace, suite: Suite, names: Sequence[str]) -> RunReport:
    """Measure a suite and models of the zoo with another interpreter that has this version of dlbricks.

    Raises:
        CalledProcessError: It failed; its message is on stderr.
    """
    where = str(suite.path.resolve()), str(options.db.resolve())
    how = json.dumps({"cache": "model", **protocol(options)})
    command = [str(options.elsewhere), __file__, _CHILD, *where, how, *names]
    report: RunReport = pickle.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return report


def _run_here(suite: str, database: str, options: str, *names: str) -> None:
    """Measure in the other interpreter."""
    with Store.open(Path(database)) as store:
        done = run(Path(suite), store=store, models=find_models(names), **json.loads(options))
    sys.stdout.buffer.write(pickle.dumps(done))


def _method(options: argparse.Namespace, store: Store, done: RunReport) -> Method:
    """Return the way in which estimates are composed."""
    stack, names = store.stacks()[done.stack], ("graph", "granularity", "threads", "batch", "cache")
    how = {name: getattr(options, name) for name in names}
    return Method(backend=stack.backend, device=stack.device, dtype="float32", **how)


def figures_of(composed: Estimate) -> dict[str, Any]:
    """Return the figures of one model, with a ratio only if bricks and model alternated."""
    latency, truth = composed.latency, composed.truth
    reason = composed.error or truth.reason
    if reason is None and not truth.paired:
        reason = "bricks and model were not visited in turn"
    return {
        "name": composed.name.partition("@")[0],
        **entry(composed.name),
        "measured_ms": truth.ms,
        "estimate_ms": latency.ms,
        "ratio": truth.ratio if truth.paired else None,
        "ratio_ci95": truth.ratio_ci95 if truth.paired else None,
        "undisturbed_ms": latency.undisturbed_ms,
        "measured_undisturbed_ms": truth.undisturbed_ms,
        "disturbance": composed.disturbance,
        "quiet": latency.quiet,
        "level": composed.model.level,
        "layers": composed.model.layers,
        "unique": composed.parts.unique,
        "missing": len(composed.parts.missing),
        "reason": reason,
    }


def _summaries(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
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
    intervals = [row["ratio_ci95"] for row in known]
    slowdowns = _quotients(rows, "measured_ms", "measured_undisturbed_ms")
    return {
        "models": len(rows),
        "with_ratio": share(len(known), len(rows)),
        "median_error": middle(errors),
        **{f"within_{limit}": within(errors, limit / 100) for limit in _LIMITS},
        "worst": max(errors, default=None),
        "worst_model": worst and worst["name"],
        "geomean_ratio": math.exp(statistics.fmean(math.log(row["ratio"]) for row in known)) if known else None,
        "inside_interval": share(sum(low <= 1 <= high for low, high in intervals), len(known)),
        "median_half_width": middle([(high - low) / 2 for low, high in intervals]),
        "undisturbed_median_error": middle(_quotients(known, "undisturbed_ms", "measured_undisturbed_ms", less=1)),
        "slowdown": statistics.fmean(slowdowns) if slowdowns else None,
    }


def _quotients(rows: Iterable[Mapping[str, Any]], part: str, whole: str, *, less: float = 0.0) -> list[float]:
    """Of two figures, or how far these are from a number."""
    return [abs(row[part] / row[whole] - less) for row in rows if row[part] is not None and row[whole]]


def report(result: Mapping[str, Any]) -> str:
    """Return the tables of the groups and of the models as Markdown."""
    quiet, cost, everything = result["quiet"], result["cost"], result["summary"]["all"]
    shares = ("with_ratio", "median_error", *(f"within_{limit}" for limit in _LIMITS), "worst")
    shares += ("inside_interval", "median_half_width")
    groups = [
        (label, row["models"], *(percent(row[name]) for name in shares)) for label, row in result["summary"].items()
    ]
    models = [
        (row["name"], row["half"], row["level"] or "", number(row["measured_ms"]), number(row["ratio"]),
         " to ".join(map(number, row["ratio_ci95"])) if row["ratio_ci95"] else row["reason"],
         percent(row["disturbance"]), percent(row["quiet"]))
        for row in result["models"]
    ]  # fmt: skip
    told = (
        f"dlbricks {result['dlbricks']}, {result['system']['cpu']}, {versions(result['stack'])}, {result['threads']} "
        f"thread(s). Wall time {cost['wall_s']:.0f} s, of the run {cost['run']['wall_s']:.0f} s. The machine: "
        f"{quiet['state']}; models took {number(everything['slowdown'])} times what they take undisturbed."
    )
    head = ("model", "half", "level", "measured ms", "ratio", "95 % interval", "disturbed by", "quiet")
    titles = ("", "models", *(name.replace("_", " ") for name in shares))
    return "\n".join([told, table(titles, groups), table(head, models)])


if __name__ == "__main__":
    main()
