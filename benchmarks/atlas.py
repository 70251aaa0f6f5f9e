"""What became slower or faster from one version of ONNX Runtime to the next, by operator.

    python benchmarks/atlas.py [--versions 1.20.1 1.21.1 ...] [--models squeezenet ...] [--budget 600]
    python benchmarks/atlas.py --again [--versions ...]
    python benchmarks/atlas.py --write FOLDER

Bricks are the unique source bricks of the built-in zoo (or of some models), and of each operator in ONNX's node tests
the one with the most work. Each pair of neighbouring versions is measured like ``compare --versions``; a difference
counts from 10 % (``--effect``). Written under ``--out``: ``atlas.json``, after each pair; pairs that it has are not
measured again, so that the atlas may grow over days. Only pairs from before the difference of calls was taken out are.
``--again`` repeats the told changes of the pairs that it has, each once a day, and says which hold. ``--write`` writes
the files to reproduce the twenty largest slower ones. A version against itself (``--versions 1.32.0 1.32.0``, with
another ``--out``) shows how many are told by chance.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx
from dlbricks.analyzer.comparison.bug_reports import SlowerBrick, write_bug_report
from dlbricks.analyzer.comparison.difference import Difference, Levels
from dlbricks.analyzer.comparison.runtime_versions import SeenBrick, Trying, brick_verdicts, places_of
from dlbricks.bricks.suite.brick import signature_of
from dlbricks.bricks.suite.suite import Suite
from dlbricks.errors import DlbricksError
from dlbricks.generator.backends.environments import version_of
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.system import probe_system
from dlbricks.models import find_models
from dlbricks.models.zoo import names
from figures import parser, read, write

VERSIONS = ("1.20.1", "1.21.1", "1.22.1", "1.23.2", "1.24.4", "1.26.0", "1.28.0", "1.30.0", "1.32.0")

EFFECT = 0.10
"""Relative difference that the atlas has."""

CALL_MS = 0.004
"""Latency below which a brick mostly shows the cost of a call."""


def main() -> None:
    """Measure the pairs that are missing."""
    arguments = parser(__doc__)
    arguments.add_argument("--versions", nargs="+", default=VERSIONS)
    arguments.add_argument("--models", nargs="+", default=[entry.name for entry in names() if entry.extra is None])
    arguments.add_argument("--budget", type=float, default=600.0, help="seconds of one pair")
    arguments.add_argument("--effect", type=float, default=EFFECT, help="relative difference that counts")
    arguments.add_argument("--no-node-tests", action="store_true")
    arguments.add_argument("--again", action="store_true", help="repeat the changes that are told")
    arguments.add_argument("--write", type=Path, metavar="FOLDER", help="files to reproduce the largest slower ones")
    options = arguments.parse_args()
    path = options.out / "atlas.json"
    with tempfile.TemporaryDirectory(prefix="dlbricks-atlas-") as name:
        suite = _suite(options, Path(name))
        if options.write is not None:
            _write(suite, read(path)["pairs"].values(), options.write)
            return
        for old, new in itertools.pairwise(options.versions):
            result = read(path, {"cpu": probe_system().cpu, "minimum_effect": options.effect, "pairs": {}})
            if result["minimum_effect"] != options.effect:
                raise SystemExit(f"{path} has changes from {result['minimum_effect']}: give another --out")
            pair = f"{old} {new}"
            earlier = result["pairs"].get(pair)
            if options.again if earlier is None else not options.again and "call_ms" in earlier:
                continue
            made = (
                _again(suite, earlier, options, result["cpu"]) if options.again else _measured(suite, old, new, options)
            )
            result["pairs"][pair] = made
            write(path, result, _repeated(pair, made) if options.again else _told(pair, made))


def _suite(options: argparse.Namespace, folder: Path) -> Suite:
    """Return the bricks of the models and of the node tests."""
    tests = [] if options.no_node_tests else [*_node_tests(folder)]
    report = generate(find_models([*options.models, *tests]), out=folder / "suite", granularity=1, graph="source")
    if report.suite is None:
        raise SystemExit("no model could be cut")
    return report.suite


def _node_tests(folder: Path) -> Iterator[Path]:
    """Write for each operator the node test with the largest inputs and outputs."""
    from onnx.backend.test.loader import load_model_tests

    best: dict[str, tuple[int, onnx.ModelProto]] = {}
    for model in (case.model for case in load_model_tests(kind="node") if case.model is not None):
        if len(model.graph.node) == 1:
            size = sum(_elements(value) for value in (*model.graph.input, *model.graph.output))
            operator = model.graph.node[0].op_type
            best[operator] = max(best.get(operator, (-1, model)), (size, model), key=lambda item: item[0])
    for operator, (_, model) in sorted(best.items()):
        path = folder / f"node-{operator}.onnx"
        onnx.save(model, path)
        yield path


def _elements(value: onnx.ValueInfoProto) -> int:
    total = 1
    for dim in value.type.tensor_type.shape.dim:
        total *= max(dim.dim_value, 1)
    return total


def _measured(suite: Suite, old: str, new: str, options: argparse.Namespace) -> dict[str, Any]:
    """Compare two versions on all bricks."""
    begun = time.monotonic()
    seen, call = _trying(old, new, options).bricks(suite)
    verdicts = brick_verdicts(seen, options.effect)
    told = {key for key, verdict in verdicts.items() if str(verdict) in {"SLOWER", "FASTER"}}
    failed = {key: str(brick.trial) for key, brick in seen.items() if isinstance(brick.trial, DlbricksError)}
    return {
        "old": old,
        "new": new,
        "date": _today(),
        "call_ms": None if call is None else [call.before_ms, call.after_ms],
        "bricks": len(seen),
        "compared": len(verdicts),
        "fresh": sum(brick.fresh for brick in seen.values()),
        "left": sum(brick.suspect for brick in seen.values()),
        "failed": len(failed),
        "wall_s": time.monotonic() - begun,
        "rows": sorted((_row(suite, key, seen[key]) for key in told), key=lambda row: -abs(row["ratio"] - 1)),
    }


def _again(suite: Suite, earlier: dict[str, Any], options: argparse.Namespace, cpu: str) -> dict[str, Any]:
    """Repeat the changes of a pair that were not repeated today, in fresh processes.

    Args:
        suite: The bricks.
        earlier: The pair.
        options: Of the command.
        cpu: Of the machine that found the changes; a repetition on another one says so.
    """
    today, here = _today(), probe_system().cpu
    mine = (today, None if here == cpu else here)
    wanted = {
        row["key"]
        for row in earlier["rows"]
        if all((once["date"], once.get("cpu")) != mine for once in row.get("again", ()))
    }
    keys = sorted(wanted & {*suite.keys})
    seen, _ = _trying(earlier["old"], earlier["new"], options).fresh(suite, keys) if keys else ({}, None)
    rows = []
    for row in earlier["rows"]:
        levels = seen[row["key"]].levels if row["key"] in seen else None
        if levels is not None:
            once = {"date": today, "ratio": levels.difference.ratio, "ratio_ci95": levels.difference.ci95}
            once |= {} if here == cpu else {"cpu": here}
            row = {**row, "again": [*row.get("again", ()), once]}  # noqa: PLW2901
        rows.append(row)
    return {**earlier, "rows": rows}


def _trying(old: str, new: str, options: argparse.Namespace) -> Trying:
    places = places_of((version_of(old), version_of(new, copy=int(old == new))), {}, 1)
    return Trying(places, options.effect, time.monotonic() + options.budget)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


HELD = 0.5
"""Share of a change that a repetition has to show, as a share of logarithms."""


def holds(row: dict[str, Any], cpu: str | None = None) -> bool | None:
    """Return True if all repetitions of a change show it; None if there is none.

    Args:
        row: The change.
        cpu: Repetitions on this processor; None: on the one that found it.
    """
    again = [once for once in row.get("again", ()) if once.get("cpu") == cpu]
    shown = [math.log(once["ratio"]) / math.log(row["ratio"]) >= HELD for once in again]
    return all(shown) if shown else None


def on_another_day(pair: dict[str, Any], cpu: str | None = None) -> bool:
    """Return True if the changes of a pair were repeated on another day than the one that found them.

    Args:
        pair: The pair.
        cpu: As ``holds``.
    """
    again = (once for row in pair["rows"] for once in row.get("again", ()) if once.get("cpu") == cpu)
    return any(once["date"] != pair["date"] for once in again)


_LARGEST = 20
"""Slower bricks that are written."""


def _write(suite: Suite, pairs: Iterable[dict[str, Any]], folder: Path) -> None:
    """Write the files to reproduce the largest slower bricks that no repetition contradicts."""
    slower = [
        (pair, row)
        for pair in pairs
        for row in pair["rows"]
        if row["ratio"] > 1 and row["old_ms"] >= CALL_MS and holds(row) is not False and row["key"] in suite.keys
    ]
    for pair, row in sorted(slower, key=lambda item: -item[1]["ratio"])[:_LARGEST]:
        names = (f"onnxruntime=={pair['old']}", f"onnxruntime=={pair['new']}")
        seen = Difference(row["ratio"], tuple(row["ratio_ci95"]), math.nan)
        slower_brick = SlowerBrick(row["key"], names, Levels(row["old_ms"], row["new_ms"], seen))
        print(write_bug_report(suite, slower_brick, folder / f"{pair['old']}-{pair['new']}"))


def _row(suite: Suite, key: str, brick: SeenBrick) -> dict[str, Any]:
    levels, form = brick.levels, signature_of(suite.brick(key))
    assert levels is not None
    return {
        "key": key,
        "operator": "+".join(suite.brick(key).operators),
        "inputs": form.inputs,
        "weights": form.weights,
        "outputs": form.outputs,
        "old_ms": levels.before_ms,
        "new_ms": levels.after_ms,
        "ratio": levels.difference.ratio,
        "ratio_ci95": levels.difference.ci95,
    }


def _told(pair: str, row: dict[str, Any]) -> str:
    slower = sum(each["ratio"] > 1 for each in row["rows"])
    largest = max((abs(math.log(each["ratio"])) for each in row["rows"]), default=0.0)
    return (
        f"{pair}: {slower} slower, {len(row['rows']) - slower} faster of {row['compared']} bricks, by at most "
        f"{math.expm1(largest):.1%} ({row['failed']} failed, {row['left']} suspects left), {row['wall_s']:.0f} s"
    )


def _repeated(pair: str, made: dict[str, Any]) -> str:
    cpus = {once.get("cpu") for row in made["rows"] for once in row.get("again", ())}
    known = [holds(row, cpu) for cpu in cpus or {None} for row in made["rows"] if row["old_ms"] >= CALL_MS]
    again = [held for held in known if held is not None]
    return f"{pair}: {sum(again)} of {len(again)} changes hold; {len(known) - len(again)} not repeated"


if __name__ == "__main__":
    main()
