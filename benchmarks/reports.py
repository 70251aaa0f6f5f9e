"""What `dlbricks report` answers for real files, each with an empty database and cache: ``docs/results/reports.json``.

    python benchmarks/reports.py MODEL... [--dim NAME=N ...] [--budget 60] [--out FOLDER]
    python benchmarks/reports.py --list FILES.tsv [...]

An answer is a latency, or the reason why there is none. Rows of other models stay. A list is that of ``improved.py``.
The command runs on one thread as a user types it; a shell would show the same text.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlbricks.db import Store
from facts import provenance
from figures import parser, percent, read, write
from improved import add_files, files

Row = dict[str, Any]

_HANGS = 5.0
"""Time after which a command is ended, as a multiple of its budget."""

_KEPT = ("measured_ms", "measured_ci95_ms", "estimate_ms", "ci95_ms", "ratio", "ratio_ci95", "coverage", "layers")
"""Keys of the answer that a row repeats."""


def main() -> None:
    """Ask for the reports."""
    arguments = parser(__doc__)
    add_files(arguments)
    arguments.add_argument("--budget", type=float, default=60.0, metavar="SECONDS")
    options = arguments.parse_args()
    file = options.out / "reports.json"
    result = read(file, {"rows": []})
    rows = {row["name"]: row for row in result["rows"]}
    for path, dims, package in files(options):
        facts, row = reported(path, dims, options.budget)
        row = {"name": Path(path).stem, "package": package, **row}
        rows[row["name"]] = row
        result = {**result, **facts, "rows": [rows[name] for name in sorted(rows)]}
        write(file, result, text(row))


def reported(path: str, dims: Mapping[str, int], budget_s: float) -> tuple[dict[str, Any], Row]:
    """Return machine and software of a measured answer, and what the command answered in which time."""
    command = [sys.executable, "-m", "dlbricks", "report", str(Path(path).resolve()), "--json", "--quiet"]
    command += ["--budget", f"{budget_s:g}s"]
    command += [part for name, size in dims.items() for part in ("--dim", f"{name}={size}")]
    row: Row = {"dims": dict(dims), "budget_s": budget_s, "wall_s": None, "exit_code": None}
    with tempfile.TemporaryDirectory(prefix="dlbricks-reports-") as folder:
        begun = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=folder, env={**os.environ, "DLBRICKS_CACHE": folder}, capture_output=True, text=True,
                timeout=_HANGS * budget_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {}, {**row, "reason": "no answer"}
        row |= {"wall_s": time.monotonic() - begun, "exit_code": done.returncode}
        row["traceback"] = "Traceback" in done.stderr
        try:
            (answer,) = json.loads(done.stdout)["results"]
        except (ValueError, LookupError):
            answer = {}
        row |= {key: answer[key] for key in _KEPT if answer.get(key) is not None}
        if "measured_ms" not in row:
            return {}, {**row, "reason": answer.get("error") or done.stderr.strip()}
        with Store.open(f"{folder}/dlbricks.db") as store:
            return provenance(store, answer["system"], answer["stack"]), row


def text(row: Row) -> str:
    """Return one line about a report."""
    wall = "no end" if row["wall_s"] is None else f"{row['wall_s']:.0f} s"
    if "measured_ms" not in row:
        return f"{row['name']}: {wall}, {row['reason']}"
    ratio = f"estimate / measured {row['ratio']:.2f}" if "ratio" in row else "no estimate"
    known = percent(row.get("coverage", {}).get("sequences"))
    return f"{row['name']}: {wall}, {row['measured_ms']:.3g} ms, {ratio}, coverage {known}"


if __name__ == "__main__":
    main()
