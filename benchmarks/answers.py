"""Cost of an answer against its interval: predicting models, and measuring them, everything counted.

    python benchmarks/answers.py [--fold N] [--folds 3] [--threads 1] [--models NAME|FILE...] [--plot]
    python benchmarks/answers.py --threads 2 --prior-threads 1 --targets --budgets 0 2 5 10 --visits 24

The families of models are divided into folds. One call answers for all models of a fold. ``predict`` begins with an
empty database and without the bricks of the fold's families in the prior, for several targets or budgets. ``measure``
has one process, for several numbers of visits. The wall time of a call includes starts of workers, loading, warm-ups,
commits and statistics. Graphs that the runtime executes and the forest are cached, and the seconds to fit it are apart.

The longest ``measure`` is the truth of the errors. Written under ``--out``: ``answers-t<threads>.json``, fold by fold;
``--plot`` only draws all folds of it as ``answers-t<threads>.png``, and prints the table.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dlbricks.analyzer.estimation import learning
from dlbricks.analyzer.predicting import predict, quiet_ms
from dlbricks.analyzer.setups import Setup, cut_of, set_up
from dlbricks.bricks.features import features_of
from dlbricks.constructor.choice import Choice
from dlbricks.constructor.predictor import prior
from dlbricks.db import Store
from dlbricks.generator.decomposition.decompose import decompose, readable
from dlbricks.generator.measurement.measure import measure
from dlbricks.models import find_models
from facts import chosen
from prediction import MORE, family_of

_TARGETS = (0.2, 0.1, 0.05, 0.03)
_VISITS = (2, 3, 6, 12, 24)
_BUDGET_S = 600.0
_LEAST = 0.01
"""Target if the budget decides."""


def main() -> None:
    """Answer both ways, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", help="instead of the zoo")
    parser.add_argument("--fold", type=int, default=0)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--targets", type=float, nargs="*", default=_TARGETS)
    parser.add_argument("--budgets", type=float, nargs="*", default=(), help="seconds, instead of targets")
    parser.add_argument("--prior-threads", type=int, help="only bricks of the prior with this number of threads")
    parser.add_argument("--visits", type=int, nargs="*", default=_VISITS)
    parser.add_argument("--name", help="of the fold in the file; default: its number")
    parser.add_argument("--plot", action="store_true", help="draw only")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    path = options.out / f"answers-t{options.threads}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"threads": options.threads, "folds": {}}
    if not options.plot:
        name = options.name or str(options.fold)
        found["folds"][name] = found["folds"].get(name, {}) | answered(options)
        found["summary"] = summary(found["folds"])
        path.write_text(json.dumps(found, indent=1) + "\n")
    draw(found["summary"], path.with_suffix(".png"))
    print(table(found["summary"]))


def answered(options: argparse.Namespace) -> dict[str, Any]:
    """Return the answers of one fold."""
    zoo = [*chosen(None, []), *MORE]
    families = sorted({family_of(name) for name in zoo})[options.fold :: options.folds]
    names = options.models or [name for name in zoo if family_of(name) in families]
    setup = set_up(threads=options.threads)
    whole = options.models or options.prior_threads
    excluded = set() if whole else forms_of(names, setup)
    with without(excluded, options.prior_threads) as kept, tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = {"models": [Path(name).stem for name in names], "prior": kept, "fit_s": fit_s(setup)}
        for visits in options.visits:
            result[f"measure {visits}"] = measured(names, setup, visits, Path(folder, f"m{visits}.db"))
            print(visits, shown(result[f"measure {visits}"]), flush=True)
        for target in options.targets:
            result[f"predict {target}"] = predicted(names, setup, target, _BUDGET_S, Path(folder, f"p{target}.db"))
            print(target, shown(result[f"predict {target}"]), flush=True)
        for budget in options.budgets:
            result[f"budget {budget}"] = predicted(names, setup, _LEAST, budget, Path(folder, f"b{budget}.db"))
            print(budget, shown(result[f"budget {budget}"]), flush=True)
    return result


def forms_of(names: Sequence[str], setup: Setup) -> set[Any]:
    """Return the features of all bricks of some models."""
    models = readable(decompose(find_models(names), cut_of(setup)))
    return {features_of(model.graph, part) for model in models for part in model.sequences}


@contextmanager
def without(forms: set[Any], threads: int | None) -> Iterator[int]:
    """Leave bricks and other numbers of threads out of the prior; yield how many bricks are left."""
    left = tuple(
        example for example in prior() if example.features not in forms and threads in {None, example.origin.threads}
    )
    with patch.object(learning, "prior", lambda: left):
        yield len(left)


def fit_s(setup: Setup) -> float:
    """Fit the forest, so that no call counts it."""
    from dlbricks.analyzer.predicting import choice_of

    begun = time.monotonic()
    with Store.open("sqlite://") as store:
        choice: Choice = choice_of(store, setup, (), measure=True)
        learning.learn(store, choice)
    return time.monotonic() - begun


def measured(names: Sequence[str], setup: Setup, visits: int, database: Path) -> dict[str, Any]:
    """Measure models."""
    with Store.open(database) as store:
        found = measure(find_models(names), store=store, settings=setup.settings(visits=visits, processes=1))
    rows = {}
    for row in found.rows:
        if row.latency_ms and row.ci95_ms:
            quiet = row.undisturbed_ms if row.undisturbed_ms is not None else row.latency_ms
            rows[row.name] = {"ms": row.latency_ms, "quiet_ms": quiet, "ci95_ms": row.ci95_ms}
            rows[row.name]["half"] = (row.ci95_ms[1] - row.ci95_ms[0]) / 2 / row.latency_ms
    return {"wall_s": found.wall_s, "failed": len(found.rows) - len(rows), "rows": rows}


def predicted(names: Sequence[str], setup: Setup, target: float, budget_s: float, database: Path) -> dict[str, Any]:
    """Predict models, and measure the most informative bricks; none without a budget."""
    with Store.open(database) as store:
        found = predict(
            find_models(names), store=store, setup=setup, target=target, budget_s=budget_s or 1.0, measure=budget_s > 0
        )
    rows = {}
    for entry in found.rows:
        ms, bounds = quiet_ms(entry)
        if ms and bounds:
            half = entry.parts.predicted.half if entry.parts.predicted else 0.0
            rows[entry.name] = {
                "quiet_ms": ms, "ci95_ms": bounds, "half": (bounds[1] - bounds[0]) / 2 / ms, "by_prediction": half,
            }  # fmt: skip
    wall = {"wall_s": found.wall_s, "failed": len(found.rows) - len(rows), "bricks": len(found.measured)}
    return wall | {"rows": rows}


def shown(answer: Mapping[str, Any]) -> str:
    """Return one line about an answer."""
    halves = [row["half"] for row in answer["rows"].values()]
    half = statistics.median(halves) if halves else math.nan
    return f"{answer['wall_s']:.1f} s, {len(halves)} models, half {half:.3f}, {answer.get('bricks', '')} bricks"


def summary(folds: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum the folds that have each setting: seconds, intervals, and errors against the longest measurement."""
    settings = dict.fromkeys(
        name for fold in folds.values() for name in fold if name.startswith(("measure", "predict"))
    )
    lines = []
    for setting in settings:
        having = [fold for fold in folds.values() if setting in fold]
        rows = [row for fold in having for row in fold[setting]["rows"].values()]
        pairs = [
            (row, truth)
            for fold in having
            for name, row in fold[setting]["rows"].items()
            if (truth := fold[_longest(fold)]["rows"].get(name)) is not None
        ]
        errors = [abs(row["quiet_ms"] / truth["quiet_ms"] - 1) for row, truth in pairs]
        inside = [row["ci95_ms"][0] <= truth["quiet_ms"] <= row["ci95_ms"][1] for row, truth in pairs]
        lines.append(
            {"setting": setting, "folds": len(having), "models": len(rows),
             "wall_s": sum(fold[setting]["wall_s"] for fold in having),
             "bricks": sum(fold[setting].get("bricks", 0) for fold in having),
             "half": statistics.median(row["half"] for row in rows),
             "half_90": sorted(row["half"] for row in rows)[int(0.9 * len(rows))],
             "median": statistics.median(errors), "within_10": sum(error <= 0.1 for error in errors) / len(errors),
             "inside": sum(inside) / len(inside)}
        )  # fmt: skip
    return lines


def _longest(fold: Mapping[str, Any]) -> str:
    return max((name for name in fold if name.startswith("measure")), key=lambda name: int(name.split()[1]))


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the summary as Markdown."""
    rows = [
        f"| {line['setting'].replace('measure', 'measure, visits:').replace('predict', 'predict, target:')} "
        f"| {line['wall_s']:.1f} | {line['bricks'] or ''} | {line['half']:.1%} | {line['median']:.1%} "
        f"| {line['within_10']:.0%} | {line['inside']:.0%} |"
        for line in lines
    ]
    head = "| way | seconds | bricks | half-width, median | median error | within 10 % | interval holds |"
    return "\n".join([head, "|---" * 7 + "|", *rows])


def draw(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw wall time against half of the interval, both ways."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for way in ("measure", "predict"):
        points = [line for line in lines if line["setting"].startswith(way)]
        axes.plot([100 * line["half"] for line in points], [line["wall_s"] for line in points], "o-", label=way)
        for line in points:
            at = (100 * line["half"], line["wall_s"])
            axes.annotate(line["setting"].split()[1], at, textcoords="offset points", xytext=(4, 4), fontsize=7)
    axes.set(xlabel="half of the 95 % interval, median over models (%)", ylabel="wall time (s)", yscale="log")
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
