"""Compare predicted times of decoders with their own loop, and see how long the answer takes and how much memory.

    python benchmarks/tokens.py FILE... [--threads 1] [--budget 60] [--out DIR]     # files of benchmarks/decoders.py

Each file is measured by ``dlbricks tokens FILE --budget 60s``, with an empty database: bricks, and between their visits
the loop of the model itself. Executions of the loop are compared with the estimates of the same executions: a prompt of
512 tokens, and a token behind 0, 512 and 2,048 others. A row holds if the interval of the ratio contains 1.

Memory is the most anonymous memory of all processes of the command together, without mapped files, and beside it that
of the loop alone, which executes a prompt of 512 tokens and steps behind the longest context. Written under ``--out``:
``tokens-tN.json``; files that it has from this machine and are not given stay.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from dlbricks import __version__
from dlbricks.analyzer.decoding.beside import Loop, LoopTask, running_loop
from dlbricks.analyzer.decoding.lengths import sides_of
from dlbricks.analyzer.setups import set_up
from dlbricks.generator.machine.system import probe_system
from dlbricks.models import find_models
from figures import number, parser, percent, read, table, write

_EVERY_S = 0.2


def named(file: Path) -> str:
    """Return the name of a decoder: that of its folder, if its file has the usual one."""
    return file.parent.name if file.name == "model.onnx" else file.stem


def main() -> None:
    """Measure each file, and write after each."""
    arguments = parser(__doc__)
    arguments.add_argument("files", nargs="+", type=Path)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--budget", type=int, default=60, help="seconds of a file")
    options = arguments.parse_args()
    target = options.out / f"tokens-t{options.threads}.json"
    cpu = probe_system().cpu
    models = read(target, {"models": {}})["models"]
    models = {name: model for name, model in models.items() if model["cpu"] == cpu}
    for file in options.files:
        name = named(file)
        models[name] = {"cpu": cpu, **_measured(file, options.threads, options.budget)}
        rows = [row for model in models.values() for row in model["rows"]]
        result = {
            "schema": 4, "dlbricks": __version__, "threads": options.threads, "budget_s": options.budget,
            "models": models,
            "errors": {
                "first": _spread(row for row in rows if row["context"] is None),
                "token": _spread(row for row in rows if row["context"] is not None),
            },
        }  # fmt: skip
        write(target, result, page(result))


def _measured(file: Path, threads: int, budget_s: int) -> dict[str, Any]:
    """Run ``dlbricks tokens`` on a file, and see its memory."""
    with tempfile.TemporaryDirectory(prefix="dlbricks-tokens-") as folder:
        said = Path(folder) / "said.json"
        command = [sys.executable, "-m", "dlbricks", "tokens", str(file), "--budget", f"{budget_s}s", "--json"]
        more = ["--threads", str(threads), "--db", f"{folder}/bricks.db"]
        begun = time.monotonic()
        with said.open("wb") as out:
            process = psutil.Popen([*command, *more], stdout=out)
            peak = _peak(process, lambda: process.poll() is not None)
        wall_s = time.monotonic() - begun
        answer = json.loads(said.read_text())
    weights, curves = answer["memory"]["weight_bytes"], answer["curves"]
    method_sd = {
        name: {point["length"]: point["method_sd"] for point in curves[name]["points"]} for name in ("prompt", "step")
    }
    rows = []
    for test in answer["tests"]:
        if test["ratio"] is not None and not test["test"].startswith("tg128"):
            prompt = test["test"].startswith("pp")
            rows.append({
                "test": test["test"], "context": None if prompt else test["context"],
                "ms": test["ratio"] * test["loop_ms"], "loop_ms": test["loop_ms"], "loop_visits": test["loop_visits"],
                "ratio": test["ratio"], "ratio_ci95": test["ratio_ci95"],
                "method_sd": method_sd["prompt"][test["tokens"]] if prompt else method_sd["step"][test["context"]],
            })  # fmt: skip
    tasks = [LoopTask(512, prompt=True), LoopTask(max((row["context"] or 0 for row in rows), default=0), prompt=False)]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "exit_code": process.returncode,
        "weight_bytes": weights,
        "wall_s": wall_s,
        "own_bytes": _alone(file, threads, tasks),
        "peak_bytes": peak,
        "rows": rows,
    }


def _alone(file: Path, threads: int, tasks: Sequence[LoopTask]) -> int:
    """Return the most memory of a process that executes the loop and nothing else, after loading."""
    _, step = sides_of(*find_models([file]), None)
    with running_loop(step, set_up(threads=threads), tasks, None) as loop, ThreadPoolExecutor(1) as pool:
        if not isinstance(loop, Loop):
            raise SystemExit(f"{file}: {loop.reason}")
        (worker,) = psutil.Process().children()
        ending = pool.submit(loop.finish, math.inf)
        peak = _peak(worker, ending.done)
        ending.result()
        if reason := loop.report().reason:
            raise SystemExit(f"{file}: {reason}")
        return peak


def _peak(process: psutil.Process, ended: Callable[[], bool]) -> int:
    """Return the most anonymous memory of a process and of those that it started, until something has ended."""
    peak = 0
    while not ended():
        peak = max(peak, _anonymous(process))
        time.sleep(_EVERY_S)
    return peak


def _anonymous(process: psutil.Process) -> int:
    """Return the anonymous memory of a process and of those that it started, in bytes."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += _anonymous_of(Path(f"/proc/{one.pid}/status").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return total


def _anonymous_of(status: str) -> int:
    return sum(1024 * int(size) for size in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE))


def _spread(rows: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    rows = [*rows]
    if not rows:
        return None
    errors = [abs(row["ratio"] - 1) for row in rows]
    known = [row["ratio_ci95"] for row in rows if row["ratio_ci95"] is not None]
    return {
        "count": len(errors),
        "median": statistics.median(errors),
        "p90": float(np.quantile(errors, 0.9)),
        "worst": max(errors),
        "intervals": len(known),
        "hold": sum(low <= 1 <= high for low, high in known),
    }


def page(result: Mapping[str, Any]) -> str:
    """Return the tables as Markdown."""
    rows = [[name, *_cells(model)] for name, model in result["models"].items()]
    errors = [
        [kind, *(spread[name] for name in ("count", "hold", "intervals")),
         *(percent(spread[name]) for name in ("median", "p90", "worst"))]
        for kind, spread in result["errors"].items() if spread is not None
    ]  # fmt: skip
    titles = ("file", "weights, GB", "first token", "token at 0", "at 512", "at 2048", "s", "beyond")
    return table(titles, rows) + table(("error", "rows", "hold", "of", "median", "90 % within", "worst"), errors)


def _cells(model: Mapping[str, Any]) -> Sequence[str]:
    """Return ratios of estimates to the loop, seconds, and memory beyond the loop's own over the weights."""
    ratios = {row["context"]: row for row in model["rows"]}
    beyond = (model["peak_bytes"] - model["own_bytes"]) / model["weight_bytes"]
    return (
        number(model["weight_bytes"] / 1e9),
        *(_ratio(ratios.get(context)) for context in (None, 0, 512, 2048)),
        number(model["wall_s"]),
        f"{beyond:.2f}",
    )


def _ratio(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    if row["ratio_ci95"] is None:
        return f"{row['ratio']:.2f}"
    return f"{row['ratio']:.2f} ± {(row['ratio_ci95'][1] - row['ratio_ci95'][0]) / 2:.2f}"


if __name__ == "__main__":
    main()
