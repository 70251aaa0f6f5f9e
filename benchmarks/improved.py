"""Measure the savings of `improve`: on models, and on planted faults of known cost.

    python benchmarks/improved.py MODEL... [--dim NAME=N ...] [--budget 30] [--out FOLDER]
    python benchmarks/improved.py --plants [NAME ...] [--budget 16] [--out FOLDER]
    python benchmarks/improved.py --null MODEL... [--tries 20]

With models, each is improved once on one thread; earlier rows of other models stay in ``improved.json``.
With ``--plants``, each faulty model is improved, and the improved file and the clean twin are timed against it in fresh
processes: ``improved-plants``. A fault is recovered if at least half of its cost is saved. With ``--null``, a model is
timed against its own copy, again and again: how often the interval excludes no difference.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dlbricks.analyzer.findings.improve import improve, proven_pairs
from dlbricks.errors import DlbricksError
from dlbricks.models import find_models
from plants.corpus import plants, write

Row = dict[str, Any]
PLANTS = "improved-plants"
HALF = 0.5
COSTS = 0.02
"""Share below which a fault costs nothing that could be recovered."""


def main() -> None:
    """Run the requested part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="files, or names of the zoo; with --plants names of plants")
    parser.add_argument("--plants", action="store_true", help="improve the faulty models of the corpus")
    parser.add_argument("--null", action="store_true", help="time models against their own copies")
    parser.add_argument("--tries", type=int, default=20, help="of each model with --null")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="value of a dynamic dimension")
    parser.add_argument("--budget", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), metavar="FOLDER")
    options = parser.parse_args()
    if options.null:
        print(null(options.models, options.tries))
    elif options.plants:
        wanted = options.models or [plant.name for plant in plants()]
        keep(options.out / PLANTS, [lambda name=name: plant(name, options.budget) for name in wanted], plants_text)
    else:
        dims = {name: int(size) for name, size in (pair.rsplit("=", 1) for pair in options.dim)}
        rows = [lambda name=name: model(name, dims, options.budget) for name in options.models]
        keep(options.out / "improved", rows, models_text)


def keep(path: Path, rows: Sequence[Callable[[], Row]], text: Callable[[Sequence[Row]], str]) -> None:
    """Add rows to the file, after each row."""
    file = path.with_suffix(".json")
    done = {row["name"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    for make in rows:
        row = make()
        done[row["name"]] = row
        ordered = [done[name] for name in sorted(done)]
        file.write_text(json.dumps(ordered, indent=1) + "\n")
        print(text([row]).splitlines()[-1], flush=True)


def model(name: str, dims: dict[str, int], budget_s: float) -> Row:
    """Improve one model."""
    (source,) = find_models([name], dims=dims) if dims else find_models([name])
    try:
        (row,) = improve(source, budget_s=budget_s).records().results
    except DlbricksError as error:
        return {"name": source.name, "error": str(error)}
    return {key: value for key, value in row.items() if key not in {"path", "command"}}


def plant(name: str, budget_s: float) -> Row:
    """Improve one faulty model, and time it and its twin against the original."""
    chosen = [known for known in plants() if known.name == name]
    with tempfile.TemporaryDirectory() as folder:
        write(chosen, Path(folder))
        faulty, clean = (Path(folder) / side / f"{name}.onnx" for side in ("faulty", "clean"))
        (source,) = find_models([faulty])
        begun, better = time.monotonic(), Path(folder) / "improved.onnx"
        found = improve(source, better, budget_s=budget_s)
        wall_s = time.monotonic() - begun
        pairs = [(faulty, clean), *([(faulty, better)] if found.path else [])]
        cost, *saved = proven_pairs(faulty, pairs)
    return {
        "name": name,
        "cost": cost.saving,
        "saved": saved[0].saving if saved else 0.0,
        "changes": [change.kind for change in found.changes],
        "wall_s": wall_s,
    }


def null(names: Sequence[str], tries: int) -> str:
    """Time models against their own copies."""
    excluded, total = 0, 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy.onnx"
            shutil.copyfile(name, copy)
            for number in range(tries):
                (seen,) = proven_pairs(Path(name), [(Path(name), copy)], seed=100 * number)
                total += 1
                excluded += seen.ci95[0] > 0 or seen.ci95[1] < 0
    return f"{excluded} of {total} proofs of a model against itself exclude no difference"


def models_text(rows: Sequence[Row]) -> str:
    """Return the table of models."""
    lines = [
        "| model | ms | saves, 95 % | error | noise | s | changes, with savings |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.get("error"):
            lines.append(f"| {row['name']} | | {row['error'].splitlines()[0][:80]} | | | | |")
            continue
        changes = ", ".join(f"{one['kind']} x {one['places']} ({percent(one['saving'])})" for one in row["changes"])
        seen = "nothing proven"
        if row["changes"]:
            low, high = row["saving_ci95"]
            seen = f"{percent(row['saving'])} ({percent(low)} to {percent(high)})"
        before = "" if row["before_ms"] is None else f"{row['before_ms']:.3f}"
        how = f"{row['largest_error']:.0e} | {row['noise']:.0e} | {row['wall_s']:.0f}"
        lines.append(f"| {row['name']} | {before} | {seen} | {how} | {changes} |")
    return "\n".join(lines) + "\n"


def plants_text(rows: Sequence[Row]) -> str:
    """Return the table of plants, with the number of recovered faults."""
    costly = [row for row in rows if row["cost"] >= COSTS]
    recovered = sum(row["saved"] >= HALF * row["cost"] for row in costly)
    lines = [
        f"{recovered} of {len(costly)} faults that cost {COSTS:.0%} or more are recovered by half or more.",
        "",
        "| plant | cost | saved | s | changes |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        changes = ", ".join(row["changes"])
        shares = f"{percent(row['cost'])} | {percent(row['saved'])}"
        lines.append(f"| {row['name']} | {shares} | {row['wall_s']:.0f} | {changes} |")
    return "\n".join(lines) + "\n"


def percent(share: float | None) -> str:
    """Format a share in per cent."""
    return "" if share is None else f"{share:.1%}"


if __name__ == "__main__":
    main()
