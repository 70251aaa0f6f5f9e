"""Cost of an answer against its interval: predicting models, and measuring them, everything counted.

    python benchmarks/answers.py [--folds 3] [--fold N] [--list FILES.tsv] [--threads 1] [--targets 0.1] [--visits 2 12]

One call answers for all models. ``predict`` begins with an empty database. The families of the zoo are divided into
folds, and the bricks of a fold's families are left out of the shipped ones; files of a list have no relatives there.
``measure`` has one process, for several numbers of visits. The wall time of a call includes starts of workers, loading,
warm-ups, commits and statistics. Graphs that the runtime executes and the forest are kept by an earlier call of
``predict`` without measuring; its seconds are ``prepared_s``.

The longest ``measure`` is the truth of the errors: latencies on a quiet machine. Written under ``--out``:
``answers-t<threads>[-files].json``, fold by fold.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from accuracy import listed, parsed
from dlbricks.analyzer.estimation import learning
from dlbricks.analyzer.predicting import predict, quiet_ms
from dlbricks.analyzer.setups import Setup, cut_of, set_up
from dlbricks.bricks.features import Features, features_of
from dlbricks.constructor import Estimate
from dlbricks.constructor.predictor import prior
from dlbricks.db import Store
from dlbricks.generator.decomposition.decompose import decompose, readable
from dlbricks.generator.measurement.measure import MeasureRow, measure
from dlbricks.models import ModelSource, find_models
from facts import entries, provenance, relatives_of
from figures import parser, read, write

_BUDGET_S = 600.0


def main() -> None:
    """Answer both ways, print and write."""
    options = parser(__doc__)
    options.add_argument("--folds", type=int, default=3)
    options.add_argument("--fold", type=int, action="append", help="only this one; repeatable")
    options.add_argument("--list", type=Path, metavar="FILES.tsv", help="files of packages, instead of the zoo")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--targets", type=float, nargs="*", default=[0.1])
    options.add_argument("--visits", type=int, nargs="*", default=[2, 12])
    values = parsed(options)
    path = values.out / f"answers-t{values.threads}{'-files' if values.list else ''}.json"
    result: dict[str, Any] = read(path) if path.exists() else {"threads": values.threads, "folds": {}}
    setup = set_up(threads=values.threads)
    for fold in [0] if values.list else values.fold or range(values.folds):
        sources = listed(values.list) if values.list else of_fold(fold, values.folds)
        relatives = set[Features]() if values.list else features_in(sources, setup)
        with tempfile.TemporaryDirectory() as folder, without(relatives) as left:
            found = {"models": [source.name for source in sources], "prior": left}
            result["folds"][str(fold)] = found | answered(sources, setup, values, Path(folder), result)
        result["summary"] = summary(result["folds"])
        write(path, result)
    for line in result["summary"]:
        print({name: round(value, 3) if isinstance(value, float) else value for name, value in line.items()})


def of_fold(fold: int, folds: int) -> list[ModelSource]:
    """Return the models of some families of the zoo."""
    families = {name: relatives_of(name) for name in entries()}
    taken = sorted(set(families.values()))[fold::folds]
    return list(find_models([name for name, family in families.items() if family in taken]))


def features_in(sources: Sequence[ModelSource], setup: Setup) -> set[Features]:
    """Return the features of all bricks of some models."""
    models = readable(decompose(sources, cut_of(setup)))
    return {features_of(model.graph, part) for model in models for part in model.sequences}


@contextmanager
def without(relatives: Collection[Features]) -> Iterator[int]:
    """Leave bricks out of the shipped ones; yield how many are left."""
    left = tuple(example for example in prior() if example.brick.features not in relatives)
    with patch.object(learning, "prior", lambda: left):
        yield len(left)


def answered(
    sources: Sequence[ModelSource], setup: Setup, values: argparse.Namespace, folder: Path, result: dict[str, Any]
) -> dict[str, Any]:
    """Return the answers of one fold, and note machine and software in the result."""
    begun = time.monotonic()
    with Store.open(folder / "none.db") as store:
        predict(sources, store=store, setup=setup, measure=False)
    answers: dict[str, Any] = {"prepared_s": time.monotonic() - begun}
    for target in values.targets:
        with Store.open(folder / f"p{target}.db") as store:
            found = predict(sources, store=store, setup=setup, target=target, budget_s=_BUDGET_S)
        answers[f"predict {target}"] = {
            "wall_s": found.wall_s, "bricks": len(found.measured), "rows": dict(map(predicted, found.rows)),
        }  # fmt: skip
    for visits in values.visits:
        with Store.open(folder / f"m{visits}.db") as store:
            timed = measure(sources, store=store, settings=setup.settings(visits=visits, processes=1))
            result |= provenance(store, timed.system, timed.stack)
        rows = {row.name: measured(row) for row in timed.rows}
        answers[f"measure {visits}"] = {"wall_s": timed.wall_s, "rows": rows}
    return answers


def predicted(entry: Estimate) -> tuple[str, dict[str, Any] | None]:
    """Return the name and the figures of a prediction."""
    return entry.name, row_of(*quiet_ms(entry))


def measured(row: MeasureRow) -> dict[str, Any] | None:
    """Return the figures of a measured model, on a quiet machine."""
    if row.latency_ms is None or row.ci95_ms is None or row.undisturbed_ms is None:
        return None
    slowed = row.latency_ms / row.undisturbed_ms
    return row_of(row.undisturbed_ms, (row.ci95_ms[0] / slowed, row.ci95_ms[1] / slowed))


def row_of(ms: float | None, bounds_ms: tuple[float, float] | None) -> dict[str, Any] | None:
    """Return the figures of one answer; None where there is none."""
    if ms is None or bounds_ms is None:
        return None
    return {"ms": ms, "ci95_ms": bounds_ms, "half": (bounds_ms[1] - bounds_ms[0]) / 2 / ms}


def summary(folds: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return seconds, intervals, and errors against the longest measurement, over all folds."""
    settings = dict.fromkeys(name for fold in folds.values() for name in fold if " " in name)
    truths = {name: row for fold in folds.values() for name, row in fold[max(fold, key=_visits)]["rows"].items()}
    lines = []
    for setting in settings:
        answers = [fold[setting] for fold in folds.values()]
        rows = {name: row for answer in answers for name, row in answer["rows"].items() if row and truths[name]}
        errors = [abs(row["ms"] / truths[name]["ms"] - 1) for name, row in rows.items()]
        inside = [row["ci95_ms"][0] <= truths[name]["ms"] <= row["ci95_ms"][1] for name, row in rows.items()]
        lines.append({
            "setting": setting, "models": len(rows), "wall_s": sum(answer["wall_s"] for answer in answers),
            "bricks": sum(answer.get("bricks", 0) for answer in answers),
            "half": statistics.median(row["half"] for row in rows.values()),
            "median": statistics.median(errors), "within_10": sum(error <= 0.1 for error in errors) / len(errors),
            "inside": sum(inside) / len(inside),
        })  # fmt: skip
    return lines


def _visits(name: str) -> int:
    kind, _, visits = name.partition(" ")
    return int(visits) if kind == "measure" else 0


if __name__ == "__main__":
    main()
