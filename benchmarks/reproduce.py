"""Whether results come out the same in a new environment of the same machine, and whether what was altered is named.

    python benchmarks/reproduce.py [--models squeezenet ...] [--granularity 1] [--repeats 3] [--out docs/results]

A suite is run once and its manifest written, hashes included. Then ``dlbricks reproduce FILE --suite SUITE`` is called,
as anybody would, with a cache folder that is empty: the environment is made from the lock. Counted are the verdicts of
all bricks, of every repeat; only the first makes the environment.

Then every field of ``hardware``, ``software`` and ``data`` is altered, one at a time, in a file of its own that is read
back, and it is counted whether ``--dry-run``'s function names it. Settings are no such fields: they are obeyed. Last,
the hash of one package in the lock is altered: no environment may come of that, and the package must be named.

Written under ``--out``: ``reproduce.json`` and ``reproduce.md``.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dlbricks.analyzer.manifests.manifest import Manifest, manifest, read_manifest
from dlbricks.analyzer.manifests.reproduce import MINIMUM_EFFECT, reproduce
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.run import run
from dlbricks.models import find_models
from facts import provenance, quietness, write

VERDICTS = ("SAME", "FASTER", "SLOWER", "UNCLEAR")
EFFECTS = (0.03, 0.05, 0.10, MINIMUM_EFFECT, 0.20)
"""Minimum effects at which SAME is counted beside, by the same intervals."""

KEPT = ("key", "operators", "manifest_ms", "here_ms", "ratio", "ratio_ci95", "verdict")
"""Of each brick, what stands in the data."""

PARTS = ("hardware", "software", "data")
_FILES = ("wheel", "sha256")
"""Of a package: they decide the lock and not what is installed, whose files have a digest of their own."""


def main() -> None:
    """Measure, reproduce, alter, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["squeezenet"])
    parser.add_argument("--granularity", type=int, default=1)
    parser.add_argument("--visits", type=int, default=24)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dlbricks-reproducing-") as name:
        result = experiment(options, Path(name))
    write(options.out, "reproduce", result, page(result))


def experiment(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All of it in a folder of its own."""
    made = generate(find_models(options.models), granularity=options.granularity, out=folder / "suite").suite
    if made is None:
        raise SystemExit("no model can be decomposed")
    file = folder / "results.json"
    with Store.open(folder / "first.db") as store:
        done = run(made, store=store, visits=options.visits, processes=options.processes)
        begun = time.monotonic()
        stated = manifest(made, store=store, hashes=True)
        hashes_s = time.monotonic() - begun
        first = quietness(store, [one.id for one in store.measurements()])
        result = provenance(store, done.system, done.stack)
    stated.write(file)
    if stated.software["lock"] is None:
        raise SystemExit(f"no lock: the hashes of {', '.join(stated.software['without_hash'])} are not to be had")
    repeats = [again(file, made.path, folder / "cache") for _ in range(options.repeats)]
    return result | {
        "models": options.models,
        "granularity": options.granularity,
        "visits": options.visits,
        "processes": options.processes,
        "bricks": len(made.keys),
        "packages": len(stated.software["packages"]),
        "run_s": done.wall_s,
        "hashes_s": hashes_s,
        "quiet": first,
        "repeats": repeats,
        "shares": shares(repeats),
        "altered": altered_fields(stated, made, folder / "altered.json"),
        "altered_hash": altered_hash(stated, made, folder),
    }


def again(file: Path, suite: Path, cache: Path) -> dict[str, Any]:
    """One call of the command, in a cache folder that is empty before the first."""
    fresh = not cache.exists()
    command = [sys.executable, "-m", "dlbricks", "reproduce", str(file), "--suite", str(suite), "--json", "--quiet"]
    begun = time.monotonic()
    done = subprocess.run(
        command, env={**os.environ, "DLBRICKS_CACHE": str(cache)}, capture_output=True, text=True, check=False
    )
    if done.returncode not in {0, 3}:
        raise SystemExit(f"reproduce ended with {done.returncode}: {done.stderr}")
    answer = json.loads(done.stdout)
    rows = [row for row in answer["results"] if row["ratio"] is not None]
    return {
        "environment_made": fresh,
        "wall_s": time.monotonic() - begun,
        "verdicts": answer["verdicts"],
        "not_measured": sum(row["verdict"] is None for row in answer["results"]),
        "ratio": answer["ratio"],
        "same_within": {f"{effect:g}": same_within(rows, effect) for effect in EFFECTS},
        "off": {f"q{q:g}": float(np.quantile([abs(row["ratio"] - 1) for row in rows], q)) for q in (0.5, 0.8, 0.95)},
        "half_width": float(np.median([(row["ratio_ci95"][1] - row["ratio_ci95"][0]) / 2 for row in rows])),
        "differences": answer["differences"],
        "bricks": [
            {
                name: row[name]
                for name in ("key", "operators", "manifest_ms", "here_ms", "ratio", "ratio_ci95", "verdict")
            }
            for row in answer["results"]
        ],
    }


def same_within(rows: Sequence[Mapping[str, Any]], effect: float) -> int:
    """Bricks whose interval lies within a minimum effect."""
    return sum(1 / (1 + effect) <= row["ratio_ci95"][0] and row["ratio_ci95"][1] <= 1 + effect for row in rows)


def shares(repeats: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Verdicts of all repeats together."""
    total: Counter[str] = Counter()
    for one in repeats:
        total.update({**one["verdicts"], "not measured": one["not_measured"]})
    return {name: count / total.total() for name, count in total.items()}


def leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every field of a part, as the keys that lead to it."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path


def altered_fields(stated: Manifest, suite: Suite, file: Path) -> dict[str, Any]:
    """Alter each field in a file of its own, and see whether it is named."""
    before = {one.field for one in reproduce(stated, suite=suite, dry_run=True).differences}
    counts = {part: [0, 0] for part in PARTS}
    unnamed = []
    for part in PARTS:
        for path in leaves(getattr(stated, part), (part,)):
            if path[1:] in {("lock",), ("without_hash",)} or path[-1] in _FILES:
                continue
            if path == ("software", "backend"):  # another runtime would have to be run: its name decides the options
                continue
            said = copy.deepcopy(stated.statement())
            inner = said["predicate"]
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = _other(inner[path[-1]])
            file.write_text(json.dumps(said))
            found = {one.field for one in reproduce(read_manifest(file), suite=suite, dry_run=True).differences}
            name = ".".join(path)
            counts[part][0] += 1
            counts[part][1] += name in found
            if name not in found:
                unnamed.append(name)
    return {
        "differed_before": sorted(before),
        "named": {part: {"altered": tried, "named": named} for part, (tried, named) in counts.items()},
        "unnamed": unnamed,
    }


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [*value, "more"] if isinstance(value, list) else f"{value or ''}?"


def altered_hash(stated: Manifest, suite: Suite, folder: Path) -> dict[str, Any]:
    """Alter the hash of one package in the lock, and see that no environment comes of it."""
    package = "click"
    known = stated.software["packages"][package]["sha256"]
    said = json.loads(json.dumps(stated.statement()))
    said["predicate"]["software"]["lock"] = stated.software["lock"].replace(known, "0" * len(known))
    file = folder / "hash.json"
    file.write_text(json.dumps(said))
    command = [sys.executable, "-m", "dlbricks", "reproduce", str(file), "--suite", str(suite.path), "--quiet"]
    cache = folder / "other-cache"
    done = subprocess.run(
        command, env={**os.environ, "DLBRICKS_CACHE": str(cache)}, capture_output=True, text=True, check=False
    )
    left = [path.name for path in (cache / "environments").glob("*") if path.suffix != ".lock"]
    return {"exit_code": done.returncode, "named": package in done.stderr, "left_behind": len(left)}


def page(result: Mapping[str, Any]) -> str:
    """The figures as a page."""
    got, altered, refused = result["shares"], result["altered"], result["altered_hash"]
    named, tried = (sum(one[kind] for one in altered["named"].values()) for kind in ("named", "altered"))
    where = f"{result['system']['cpu']}, {result['system']['cores']} cores, {_versions(result)}"
    refusal = f"exit code {refused['exit_code']}, {'' if refused['named'] else 'not '}named"
    columns = ["call", "s", *VERDICTS, "all bricks", "off, median", "80 %", "95 %", "half-width"]
    columns += [f"within {effect:.0%}" for effect in EFFECTS]
    differing = sorted({one["field"] for repeat in result["repeats"] for one in repeat["differences"]})
    return f"""# Results measured again in a new environment

`python benchmarks/reproduce.py --models {" ".join(result["models"])}` on {result["date"][:10]}: {where}.
{result["bricks"]} bricks at G={result["granularity"]}, one thread, {result["visits"]} visits in {result["processes"]} \
processes; an environment of {result["packages"]} packages made
from the lock. Of the visits of the first run {_percent(result["quiet"]["quiet_share"])} were quiet by their probes.

| | asked for | measured |
|---|---|---|
| SAME (within {MINIMUM_EFFECT:.0%}) | ≥ 80 % | {_percent(got["SAME"])} |
| FASTER | ≤ 5 % | {_percent(got["FASTER"])} |
| SLOWER | ≤ 5 % | {_percent(got["SLOWER"])} |
| UNCLEAR | | {_percent(got["UNCLEAR"])} |
| altered fields that are named | all | {named} of {tried} |
| a lock with an altered hash | refused, the package named | {refusal}, {refused["left_behind"]} environments left |

Each call of `dlbricks reproduce FILE --suite SUITE`. *All bricks* is the geometric mean of the ratios, *off* how far
ratios are from 1, *half-width* the median one of their intervals; *within* is how many bricks are SAME at other minimum
effects.

| {" | ".join(columns)} |
|{"---|" * len(columns)}
{"".join(_row(number, one) for number, one in enumerate(result["repeats"], 1))}
Fields that differed without being altered: {_listed(differing)}. Altered and not named: {_listed(altered["unnamed"])}.

The run took {result["run_s"]:.0f} s, the manifest {result["hashes_s"]:.0f} s, in which pip fetched the wheels to hash.
"""


def _row(number: int, one: Mapping[str, Any]) -> str:
    cells = [
        f"{number}{', made the environment' if one['environment_made'] else ''}",
        f"{one['wall_s']:.0f}",
        *(str(one["verdicts"][name]) for name in VERDICTS),
        f"{one['ratio']:.3f}",
        *(_percent(value) for value in one["off"].values()),
        _percent(one["half_width"]),
        *(str(one["same_within"][f"{effect:g}"]) for effect in EFFECTS),
    ]
    return f"| {' | '.join(cells)} |\n"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _versions(result: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in result["stack"]["versions"].items())


def _percent(value: float | None) -> str:
    return "not known" if value is None else f"{100 * value:.1f} %"


if __name__ == "__main__":
    main()
