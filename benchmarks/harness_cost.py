"""What one more brick costs beyond its timed samples and its session's creation.

Runs suites of growing size (bricks of DenseNet-121, visited as seldom as the protocol allows), each into an empty
database, and fits a line through what remains of the wall time: the slope is the cost of one more brick, the intercept
that of a run (workers, the network that costs a call). In cache mode ``model`` each brick counts once per footprint
class.

    python benchmarks/harness_cost.py [--sizes 25 50 100 200] [--model densenet121] [--cache model] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from dlbricks.bricks.suite.suite import Suite
from dlbricks.bricks.suite.writing import write_suite
from dlbricks.db.store import Store
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.measurement.run import RunReport, run
from dlbricks.models import find_models

PARTS = {
    "store": "commits and queries",
    "statistics": "intervals and verdicts",
    "read": "reading and checking bricks",
    "build": "networks: weights, inputs, packs, beyond the runtime's own loading and first run",
    "unpack": "reading the profiles of packs",
    "schedule": "everything else: orders, JSON, pipes",
    "harness": "all of the above",
    "warm-up": "warm-up and probes, beside the timed samples",
}


def measure(suite: Suite, size: int, folder: Path, *, cache: str, visits: int) -> dict[str, float]:
    """Seconds by part of a run over the first bricks of a suite."""
    part = write_suite(
        folder / f"suite{size}", {key: suite.brick(key) for key in suite.keys[:size]}, granularity=suite.granularity
    )
    with Store.open(folder / f"{size}.db") as store:
        report = run(part, store=store, cache=cache, visits=visits)
    if report.failures or report.measured != report.bricks:
        sys.exit(f"{report.bricks - report.measured} of {report.bricks} bricks failed: {report.failures[:1]}")
    return {"bricks": report.bricks, "wall": report.wall_s, **_parts(report)}


def _parts(report: RunReport) -> dict[str, float]:
    costs = report.costs
    named = {
        "store": costs.store_s,
        "statistics": costs.statistics_s,
        "read": costs.read_s,
        "build": costs.prepare_s - costs.load_s,
        "unpack": costs.unpack_s,
    }
    schedule = report.wall_s - costs.start_s - costs.prepare_s - costs.sample_s - costs.store_s - costs.statistics_s
    named["schedule"] = schedule - costs.read_s - costs.unpack_s
    return {
        "timed": costs.timed_s,
        "load": costs.load_s,
        "start": costs.start_s,
        "warm-up": costs.sample_s - costs.timed_s,
        **named,
        "harness": sum(named.values()),
    }


def main() -> None:
    """Measure, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[25, 50, 100, 200])
    parser.add_argument("--model", default="densenet121")
    parser.add_argument("--cache", choices=("model", "hot"), default="model")
    parser.add_argument("--visits", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dlbricks-harness-") as name:
        folder = Path(name)
        suite = generate(find_models([arguments.model]), granularity=1, out=folder / "suite").suite
        if suite is None:
            sys.exit(f"{arguments.model} cannot be decomposed")
        sizes = sorted({min(size, len(suite.keys)) for size in arguments.sizes})
        rows = [measure(suite, size, folder, cache=arguments.cache, visits=arguments.visits) for size in sizes]
    bricks = np.asarray([row["bricks"] for row in rows])
    slopes = {part: 1e3 * float(np.polyfit(bricks, [row[part] for row in rows], 1)[0]) for part in PARTS}
    if arguments.json:
        print(json.dumps({"schema": 1, "results": rows, "ms_per_brick": slopes}))
        return
    print(" ".join(f"{column:>10}" for column in rows[0]))
    for row in rows:
        print(" ".join(f"{value:10.3f}" if isinstance(value, float) else f"{value:10}" for value in row.values()))
    print("\nms per brick (slope)")
    for part, meaning in PARTS.items():
        print(f"  {part:12} {slopes[part]:8.2f}   {meaning}")


if __name__ == "__main__":
    main()
