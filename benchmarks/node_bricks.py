"""Decompose ONNX's node tests, and count the bricks that keep their key and that run.

    python benchmarks/node_bricks.py [--names REGEX]

Every model of the onnx wheel's node tests is decomposed at G=1. Each brick is read back by its key, and measured by
``run`` like any brick. A plain session of ONNX Runtime also loads the brick with its weights and runs it once with
drawn inputs. Bricks that this session accepts and ``run`` refuses are faults of dlbricks.

Written under ``--out``: ``node-bricks.json``.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store, Subject
from dlbricks.errors import DlbricksError
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.run import run
from dlbricks.generator.network.network import synthetic_network
from dlbricks.models import find_models
from facts import provenance, share, versions, write

_SILENT = 4


def main() -> None:
    """Decompose, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default="", help="only the tests whose names begin like this")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dlbricks-nodes-") as place:
        folder = Path(place)
        with Store.open(folder / "nodes.db") as store:
            write_node_tests(folder / "models", options.names)
            result = experiment(folder, store)
    write(options.out, "node-bricks", result, report(result))


def write_node_tests(folder: Path, names: str = "") -> None:
    """Write the models of the onnx wheel's node tests.

    Args:
        folder: A new one.
        names: A pattern that their names begin with.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    folder.mkdir()
    for case in cases:
        if re.match(names, case.name):
            (folder / f"{case.name}.onnx").write_bytes(case.model.SerializeToString())


def experiment(folder: Path, store: Store) -> dict[str, Any]:
    """Test every brick: its key, a plain session, and ``run``."""
    made = generate(find_models([folder / "models"]), granularity=1, out=folder / "suite")
    if made.suite is None:
        raise SystemExit("no model can be decomposed")
    other_keys, refused = [], {}
    for key in made.suite.keys:
        try:
            made.suite.brick(key)
        except DlbricksError as error:
            other_keys.append({"key": key, "reason": str(error)})
        else:
            refused[key] = _refusal(made.suite, key)
    done = run(made.suite, store=store, visits=10, processes=1, sessions=1)
    failed = {one.key: f"{one.kind}: {one.reason}" for one in store.failures(subject=Subject.BRICK)}
    failed |= {key: reason for key, reason in done.failures if key not in failed}
    ours = {key: reason for key, reason in failed.items() if refused.get(key) is None}
    theirs = {key: reason for key, reason in failed.items() if refused.get(key) is not None}
    return {
        **provenance(store, done.system, done.stack),
        "models": len(made.rows),
        "broken_models": {row.name: row.error for row in made.rows if row.error},
        "bricks": len(made.suite.keys),
        "other_keys": other_keys,
        "accepted": sum(reason is None for reason in refused.values()),
        "measured": done.measured,
        "wall_s": done.wall_s,
        "accepted_and_not_measured": [{"key": key, "reason": reason} for key, reason in sorted(ours.items())],
        "refused_and_measured": [
            {"key": key, "reason": reason} for key, reason in refused.items() if reason and key not in failed
        ],
        "reasons": Counter(_kind(reason) for reason in theirs.values()).most_common(),
    }


def _refusal(suite: Suite, key: str) -> str | None:
    """Return why ONNX Runtime does not run a brick; None if it does."""
    try:
        network = synthetic_network(onnx.load(suite.brick_path(key)))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _SILENT
        data = network.self_contained().SerializeToString()
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        session.run(None, dict(network.feeds))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer
        return f"{type(error).__name__}: {error}"
    return None


def _kind(reason: str) -> str:
    """Return a reason without names and numbers of a single brick."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : ", "", reason.splitlines()[0])
    return re.sub(r"\(?node[^)]*\)|'[^']*'|\"[^\"]*\"|\d+|\S*/\S+", "*", text)[:100]


def report(result: Mapping[str, Any]) -> str:
    """Return the tables as Markdown."""
    kept = result["bricks"] - len(result["other_keys"])
    lines = [
        "# Bricks of ONNX's node tests\n",
        (
            f"{result['date']}, onnx {onnx.__version__}, {versions(result['stack'])}. "
            "Written by `benchmarks/node_bricks.py`.\n"
        ),
        "| | |",
        "|---|---|",
        f"| models, of which cannot be decomposed | {result['models']}, {len(result['broken_models'])} |",
        f"| bricks at G=1 | {result['bricks']} |",
        f"| read back under their own key | {kept} ({100 * (share(kept, result['bricks']) or 0):.1f} %) |",
        f"| accepted by a session of ONNX Runtime | {result['accepted']} |",
        f"| measured by `run` | {result['measured']} |",
        f"| accepted and not measured | {len(result['accepted_and_not_measured'])} |",
        f"| measured and refused by a plain session | {len(result['refused_and_measured'])} |",
        "\nNot measured and not accepted, by reason (stars stand for names and numbers):\n",
        "| bricks | reason |",
        "|---|---|",
        *(f"| {count} | {reason.replace('|', ' ')} |" for reason, count in result["reasons"]),
    ]
    if result["accepted_and_not_measured"]:
        lines += ["\nAccepted and not measured:\n", "| brick | reason |", "|---|---|"]
        lines += [
            f"| {one['key'][:12]} | {one['reason'].splitlines()[0].replace('|', ' ')[:160]} |"
            for one in result["accepted_and_not_measured"]
        ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
