"""A suite measured by the Python of another environment, into a database of its own.

The other Python runs this module as a program; it has this very dlbricks, or the one of its lock file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from ...bricks.suite.suite import Suite
from ...db.store import Store
from ...errors import WorkerError
from ...generator.backends.custom_ops import adopt, files_of
from ...generator.backends.environments import own_variables
from ...generator.measurement.run import run
from ...generator.measurement.settings import MeasurementSettings
from ...generator.progress import ProgressCallback

__all__ = ["run_here", "run_with"]


def run_here(
    suite: Suite, database: Path, settings: MeasurementSettings, *, progress: ProgressCallback | None = None
) -> None:
    """Measure a suite in this environment; raises as ``run``."""
    with Store.open(database) as store:
        run(suite, store=store, settings=settings, progress=progress)


def run_with(python: Path, suite: Suite, database: Path, settings: MeasurementSettings) -> None:
    """Measure a suite by another Python.

    Args:
        python: Of an environment that has dlbricks.
        suite: The bricks.
        database: Is made, and holds one run afterwards.
        settings: How to measure.

    Raises:
        UsageError: A library of custom operators that the settings name was not given here.
        WorkerError: It failed; the message says why.
    """
    libraries = files_of(settings.options)
    order = json.dumps([str(suite.path.resolve()), str(database.resolve()), asdict(settings), libraries])
    done = subprocess.run(
        [str(python), "-P", "-m", __name__, order],
        env=own_variables(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        why = said[-1] if said else f"exit status {done.returncode}"
        kind, _, reason = why.partition(": ")  # the last line of a traceback
        raise WorkerError(f"{python} did not measure: {reason if kind.startswith('dlbricks.errors.') else why}")


def _main() -> None:
    suite, database, settings, libraries = json.loads(sys.argv[1])
    adopt(libraries)
    run_here(Suite.open(suite), Path(database), MeasurementSettings(**settings))


if __name__ == "__main__":
    _main()
