"""A run in another environment of this machine: what a suite is worth where it was not generated.

``accuracy.py --elsewhere PYTHON`` calls this file by that interpreter, whose environment has dlbricks and, say, another
version of the runtime. The models are measured there too; they are cut here, as by whoever made the suite.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store
from dlbricks.generator.measurement.costs import RunCosts
from dlbricks.generator.measurement.run import RunReport, run
from dlbricks.models import find_models


def run_elsewhere(interpreter: Path, suite: Suite, database: Path, names: Sequence[str], **options: Any) -> RunReport:
    """Measure a suite and models by another interpreter into a database.

    Args:
        interpreter: Its environment has this version of dlbricks.
        suite: Generated here.
        database: Where measurements go.
        names: Of models of the zoo.
        options: As of ``run``.

    Raises:
        CalledProcessError: It failed; what it said stands on stderr.
    """
    command = [str(interpreter), __file__, str(suite.path.resolve()), str(database.resolve()), json.dumps(options)]
    done = subprocess.run([*command, *names], check=True, stdout=subprocess.PIPE, text=True)
    report = json.loads(done.stdout)
    costs, failures = RunCosts(**report.pop("costs")), tuple(map(tuple, report.pop("failures")))
    return RunReport(**report, costs=costs, failures=failures)  # type: ignore[arg-type]


def main() -> None:
    """What the other interpreter does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("database", type=Path)
    parser.add_argument("options", type=json.loads)
    parser.add_argument("models", nargs="+")
    options = parser.parse_args()
    with Store.open(options.database) as store:
        found = run(options.suite, store=store, models=find_models(options.models), **options.options)
    json.dump(asdict(found), sys.stdout)


if __name__ == "__main__":
    main()
