"""What became slower or faster from one version of ONNX Runtime to the next, by operator.

    python benchmarks/atlas.py [--versions 1.20.1 1.21.1 ...] [--models squeezenet ...] [--budget 600] [--again]

Bricks are the unique source bricks of the built-in zoo (or of some models), and of each operator in ONNX's node tests
the one with the most work. Each pair of neighbouring versions is measured like ``compare --versions``; a difference
counts from 10 %. Written under ``--out``: ``atlas.json``, after each pair; pairs that it has are not measured again, so
that the atlas may grow over days. ``--again`` measures the told bricks of each pair once more, and stores both ratios.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from dlbricks.analyzer.comparison.runtime_versions import SeenBrick, Trying, brick_verdicts, places_of
from dlbricks.bricks.suite.brick import signature_of
from dlbricks.bricks.suite.suite import Suite
from dlbricks.errors import DlbricksError
from dlbricks.generator.backends.environments import version_of
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.system import probe_system
from dlbricks.generator.worker.messages import Place
from dlbricks.models import find_models
from dlbricks.models.zoo import names
from figures import parser, read, write

VERSIONS = ("1.20.1", "1.21.1", "1.22.1", "1.23.2", "1.24.4", "1.26.0", "1.28.0", "1.30.0", "1.32.0")

EFFECT = 0.10
"""Relative difference that the atlas has."""


def main() -> None:
    """Measure the pairs that are missing."""
    arguments = parser(__doc__)
    arguments.add_argument("--versions", nargs="+", default=VERSIONS)
    arguments.add_argument("--models", nargs="+", default=[entry.name for entry in names() if entry.extra is None])
    arguments.add_argument("--budget", type=float, default=600.0, help="seconds of one pair")
    arguments.add_argument("--no-node-tests", action="store_true")
    arguments.add_argument("--again", action="store_true")
    options = arguments.parse_args()
    path = options.out / "atlas.json"
    with tempfile.TemporaryDirectory(prefix="dlbricks-atlas-") as name:
        suite = _suite(options, Path(name))
        for old, new in itertools.pairwise(options.versions):
            result = read(path, {"cpu": probe_system().cpu, "minimum_effect": EFFECT, "pairs": {}})
            pair = f"{old} {new}"
            if (pair in result["pairs"]) != options.again:
                continue
            earlier = result["pairs"].get(pair)
            result["pairs"][pair] = _again(suite, earlier, options) if earlier else _measured(suite, old, new, options)
            write(path, result, _told(pair, result["pairs"][pair]))


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
    places = _places(old, new)
    seen, call = Trying(places, EFFECT, time.monotonic() + options.budget).bricks(suite)
    verdicts = brick_verdicts(seen, EFFECT)
    told = {key for key, verdict in verdicts.items() if str(verdict) in {"SLOWER", "FASTER"}}
    failed = {key: str(brick.trial) for key, brick in seen.items() if isinstance(brick.trial, DlbricksError)}
    return {
        "old": old,
        "new": new,
        "call_ms": None if call is None else [call.before_ms, call.after_ms],
        "bricks": len(seen),
        "compared": len(verdicts),
        "fresh": sum(brick.fresh for brick in seen.values()),
        "left": sum(brick.suspect for brick in seen.values()),
        "failed": len(failed),
        "wall_s": time.monotonic() - begun,
        "rows": sorted((_row(suite, key, seen[key]) for key in told), key=lambda row: -abs(row["ratio"] - 1)),
    }


def _again(suite: Suite, earlier: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Measure the told bricks of a pair once more."""
    trying = Trying(_places(earlier["old"], earlier["new"]), EFFECT, time.monotonic() + options.budget)
    seen, _ = trying.fresh(suite, [row["key"] for row in earlier["rows"] if row["key"] in suite.keys])
    rows = []
    for row in earlier["rows"]:
        levels = seen[row["key"]].levels if row["key"] in seen else None
        again = None if levels is None else [levels.difference.ratio, *levels.difference.ci95]
        rows.append({**row, "again": [*row.get("again", []), again]})
    return {**earlier, "rows": rows}


def _places(old: str, new: str) -> tuple[Place, Place]:
    return places_of((version_of(old), version_of(new, copy=int(old == new))), {}, 1)


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
    return (
        f"{pair}: {slower} slower, {len(row['rows']) - slower} faster of {row['compared']} bricks "
        f"({row['failed']} failed, {row['left']} suspects left), {row['wall_s']:.0f} s"
    )


if __name__ == "__main__":
    main()
