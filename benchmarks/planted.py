"""Models with planted faults: the cost of each fault, and the number of faults that an analysis finds.

    python benchmarks/planted.py --measure [--visits 96] [--half held] [--plants NAME ...]
    python benchmarks/planted.py --score [--prove] [--no-data] [--half tune] [--plants NAME ...] [--folder FOLDER]
    python benchmarks/planted.py --score --stored --folder FOLDER
    python benchmarks/planted.py --write FOLDER

The corpus is ``plants/plants.csv``: a fault (``plants/layouts.py``, ``plants/arithmetic.py``), an architecture
(``plants/images.py``, ``plants/sequences.py``), its half, and the number of places with the fault. Every faulty model
has a clean twin that computes the same function. Code writes the models from seeds; names of layers do not reveal
faults (docs/contributing/planted.md).

``--measure`` alternates each faulty model and its twin in one run, with one thread, or all cores for faults that cost
time only there: ``planted.json`` under ``--out``. ``--score`` measures the bricks of the executed graphs, alternating
with the models, and the machine's ceilings. It then calls ``analyze`` and compares the findings with the plants:
``planted-score``. ``plants/kinds.csv`` lists the right kinds of findings for each fault. ``--folder`` keeps models and
databases, and ``--stored`` analyses these again without measuring.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dlbricks.db import Store, Subject
from dlbricks.db.values import NATIVE
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.ceilings import measure_ceilings
from dlbricks.generator.measurement.data_effects import measure_data
from dlbricks.generator.measurement.run import run
from dlbricks.models import ModelSource
from facts import provenance, quietness
from facts import write as write_figures
from plants import cost, score
from plants.corpus import HALVES, Plant, plants, write

_CEILINGS: dict[str, Any] = {"gemm_sizes": (512, 1024), "sizes": (1 << 20, 1 << 25), "visits": 10, "processes": 1}
"""Measurements of the machine's ceilings, as in ``report``."""


def main() -> None:
    """Run the requested part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--measure", action="store_true", help="what each plant costs")
    what.add_argument("--score", action="store_true", help="how many of them are found")
    what.add_argument("--write", type=Path, metavar="FOLDER", help="only write the models")
    parser.add_argument("--prove", action="store_true", help="let the analysis try its remedies; takes much longer")
    parser.add_argument("--no-data", action="store_true", help="do not measure what the models' own values cost")
    parser.add_argument("--folder", type=Path, help="keep models and databases here")
    parser.add_argument("--stored", action="store_true", help="analyse what an earlier call left in --folder")
    parser.add_argument("--plants", nargs="+", metavar="NAME", help="only these; what was measured of others stays")
    parser.add_argument("--half", nargs="+", choices=HALVES, default=[], help="only these")
    parser.add_argument("--visits", type=int, help="of each model and brick; 96 for a cost, else 24")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    options.visits = options.visits or (96 if options.measure else 24)
    chosen = _chosen(options)
    if options.stored and (options.measure or options.folder is None):
        parser.error("--stored goes with --score and --folder")
    if options.write:
        write(chosen, options.write)
        return
    suffix = "".join(f"-{half}" for half in options.half)
    with ExitStack() as resources:
        kept = resources.enter_context(tempfile.TemporaryDirectory(prefix="dlbricks-planted-"))
        folder = options.folder or Path(kept)
        folder.mkdir(parents=True, exist_ok=True)
        if options.measure:
            store = resources.enter_context(Store.open(folder / "cost.db"))
            found = cost.experiment(chosen, store, folder, _protocol(options), _earlier(options, suffix))
            write_figures(options.out, f"planted{suffix}", found, cost.report(found))
        else:
            found = scores(chosen, folder, options)
            write_figures(options.out, f"planted-score{suffix}", found, score.report(found))


def _earlier(options: argparse.Namespace, suffix: str) -> list[dict[str, Any]]:
    """Return the rows of an earlier run to keep, if only some plants are measured now."""
    path = options.out / f"planted{suffix}.json"
    return list(json.loads(path.read_text())["plants"]) if options.plants and path.exists() else []


def _protocol(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("visits", "processes", "sessions", "seed")}


def _chosen(options: argparse.Namespace) -> list[Plant]:
    known = {plant.name: plant for plant in plants()}
    unknown = [name for name in options.plants or () if name not in known]
    if unknown:
        raise SystemExit(f"there is no plant {unknown[0]}: see plants/plants.csv")
    found = [known[name] for name in options.plants or known]
    found = [plant for plant in found if not options.half or plant.half in options.half]
    if not found:
        raise SystemExit("no plant is left")
    return found


def scores(chosen: Sequence[Plant], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure, analyse and judge."""
    from dlbricks.analyzer.findings.analyze import analyze

    layers = write(chosen, folder)
    verdicts, answers = [], []
    where, quiet = {}, {}
    for threads, members in cost.groups(chosen).items():
        models = cost.sources(members, folder)
        sources = list(models.values())
        with Store.open(folder / f"score-{threads}.db") as store:
            if not options.stored:
                _measure(sources, store, folder / f"suite-{threads}", threads, options)
            analysed = analyze(sources, store=store, threads=threads, prove=options.prove)
            of_models = store.measurements(subject=Subject.MODEL)
            where = provenance(store, of_models[0].system, of_models[0].stack)
            quiet[str(threads)] = quietness(store, [one.id for one in of_models])
        rows = dict(zip(models, analysed.rows, strict=True))
        answers += [
            {
                "model": source.name,
                "findings": [_summary(one) for one in rows[place].findings],
                "unasked": list(rows[place].unasked),
            }
            for place, source in models.items()
        ]
        for plant in members:
            faulty, clean = (rows[plant.name, side] for side in cost.SIDES)
            verdicts.append(
                score.judge(
                    name=plant.name,
                    kind=plant.what.kind,
                    half=plant.half,
                    layers=layers[plant.name, "faulty"],
                    repaired=layers[plant.name, "clean"],
                    faulty=faulty.findings,
                    clean=clean.findings,
                    error=faulty.error or clean.error,
                )
            )
    return {
        **where,
        **_protocol(options),
        "prove": options.prove,
        "data": not options.no_data,
        "quiet": quiet,
        **score.result(verdicts),
        "answers": answers,
    }


def _measure(
    sources: Sequence[ModelSource], store: Store, suite: Path, threads: int, options: argparse.Namespace
) -> None:
    made = generate(sources, granularity=1, graph="runtime", threads=threads, annotate=True, out=suite)
    if made.suite is None:
        raise SystemExit(f"no model can be decomposed: {made.rows[0].error}")
    run(made.suite, store=store, models=sources, cache="model", threads=threads, **_protocol(options))
    if not options.no_data:
        measure_data(sources, store=store, threads=threads, seed=options.seed)
    measure_ceilings(store=store, backend="onnxruntime", threads=threads, dtype=NATIVE, **_CEILINGS)


def _summary(found: Any) -> dict[str, Any]:
    """Return a finding without its evidence."""
    layers = list(found.layers)
    return {
        "kind": found.kind,
        "share": found.share,
        "layers": len(layers),
        "first": layers[:1],
        "proof": found.proof is not None,
    }


if __name__ == "__main__":
    main()
