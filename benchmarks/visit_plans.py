"""Build and time every plan of a library for each brick, in a separate process.

If a plan ends the process, only its brick is lost: another process continues with the next brick.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Timer
from typing import Any

from dlbricks.errors import DlbricksError
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.registry import get
from dlbricks.generator.device.host import open_device
from dlbricks.generator.network.network import read_network, synthetic_network
from visit_plan import Stage
from visit_state import PLANS, Folder, Record, Visit

_WANTED = {"cudnn": {"Conv", "ConvTranspose"}, "cublas": {"MatMul", "Gemm"}}
"""Operators with a choice of plans, by library."""

WANTED = frozenset().union(*_WANTED.values())

_FRUITLESS = 3
"""Processes that end before their first brick, one after the other: then no other one will fare better."""

_WORTH = 0.05
"""Share of a brick's time that another plan has to save to be measured once more."""

_MOST = 40
"""Plans of a brick that are timed at most."""


def plans(visit: Visit, stage: Stage, record: Record, until: float) -> None:
    """Bricks with the most work first, each kept as it comes."""
    backend, options = visit.backend(stage), visit.options(stage)
    suite = visit.suite(stage)
    place = {"system": record.system, "stack": record.stack, "dtype": stage.dtype, "backend": backend}
    place |= {"batch": stage.batch} if stage.batch else {}
    known = {row["key"] for row in visit.folder.rows(PLANS) if place.items() <= row.items() and "footprint" in row}
    bricks = {key: suite.brick(key) for key in suite.keys if key not in known}
    wanted = [key for key, brick in bricks.items() if _WANTED.get(backend, WANTED) & {*brick.operators}]
    wanted.sort(key=lambda key: -(bricks[key].cost.macs if bricks[key].cost else 0))
    done = 0
    lines = [f"{key} {max(suite.footprints(key))}" for key in wanted]  # in the state of its largest model
    for row in _asked(lines, suite.path, backend, stage.dtype, options, until):
        visit.folder.add_row(row | place | {"operators": list(bricks[row["key"]].operators)}, PLANS)
        done += 1
    record.result = {"bricks": len(known) + done, "left": len(wanted) - done}
    if done == len(wanted):
        record.status = "done"


def faster_plans(folder: Folder, timed: Record) -> dict[str, list[str]]:
    """Return bricks by the name of their fastest plan, the largest savings first.

    Only plans that are faster than the library's first by ``_WORTH`` in the model's state.

    Args:
        folder: Of the visits.
        timed: The stage that timed the plans.
    """
    place = {"system": timed.system, "stack": timed.stack, "dtype": timed.stage["dtype"]}
    saved: dict[str, tuple[float, list[str]]] = {}
    for row in (row for row in folder.rows(PLANS) if place.items() <= row.items() and state_of(row) == "model"):
        ran = timed_plans(row)
        (_, first_ns), (best, best_ns) = ran[0], min(ran, key=lambda one: one[1])
        if first_ns - best_ns > _WORTH * first_ns:
            total_ns, keys = saved.setdefault(best["name"], (0.0, []))
            saved[best["name"]] = total_ns + first_ns - best_ns, [*keys, row["key"]]
    return {name: keys for name, (_, keys) in sorted(saved.items(), key=lambda item: -item[1][0])}


def best_of(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the nanoseconds of the library's first executable choice and of the fastest plan, both in one cache state.

    None if no plan was timed.
    """
    times = [ns for _, ns in timed_plans(row)]
    return (times[0], min(times)) if times else None


def timed_plans(row: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], float]]:
    """Return the timed plans of a brick in the library's order, with their nanoseconds in one cache state."""
    name = {"model": "model_ns", "hot": "ns"}[state_of(row)]
    return [(plan, plan[name]) for plan in row["plans"] if plan.get(name)]


def state_of(row: Mapping[str, Any]) -> str:
    """Return the cache state of a brick's plans: hot, as earlier versions timed them, if it is not the model's."""
    return "model" if any(plan.get("model_ns") for plan in row["plans"]) else "hot"


def in_one_state(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows with timed plans in one cache state: the model's, if any row has it."""
    timed = [row for row in rows if best_of(row)]
    state = "model" if any(state_of(row) == "model" for row in timed) else "hot"
    return [row for row in timed if state_of(row) == state]


def _asked(
    keys: Sequence[str], suite: Path, backend: str, dtype: str, options: Mapping[str, str], until: float
) -> Iterator[dict[str, Any]]:
    left, fruitless = [*keys], 0
    while left and time.monotonic() < until and fruitless < _FRUITLESS:
        before = len(left)
        command = [sys.executable, __file__, backend, dtype, json.dumps(dict(options)), str(suite)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            timer = Timer(max(0.1, until - time.monotonic()), process.kill)
            timer.start()
            try:
                process.stdin.write("\n".join(left))
                process.stdin.close()
                for line in process.stdout:
                    if line.endswith("\n"):
                        left.pop(0)
                        yield json.loads(line)
            finally:
                timer.cancel()
                process.kill()
        fruitless = fruitless + 1 if len(left) == before else 0
        if left and time.monotonic() < until and len(left) == before and fruitless < _FRUITLESS:
            key, footprint = left.pop(0).split()
            reason = f"the process ended with status {process.returncode}"
            yield {"key": key, "footprint": int(footprint), "plans": [], "reason": reason}


def _child(arguments: Sequence[str], lines: Iterable[str]) -> None:
    parser = argparse.ArgumentParser()
    for name in ("backend", "dtype", "options", "suite"):
        parser.add_argument(name)
    asked = parser.parse_args(arguments)
    backend = get(asked.backend)
    device = backend.devices[0]  # of a library the only one
    settings = Settings(device, 1, backend.resolve(device, json.loads(asked.options)), dtype=asked.dtype)
    backend.setup(settings)
    for key, footprint in map(str.split, lines):
        model = read_network(Path(asked.suite) / "bricks" / f"{key}.onnx")
        row: dict[str, Any] = {"key": key, "footprint": int(footprint), "plans": [], "reason": ""}
        try:
            plans_of_brick = backend.plans(synthetic_network(model), settings, _MOST, int(footprint))
            row["plans"] = [asdict(one) for one in plans_of_brick]
        except (DlbricksError, MemoryError) as error:
            row["reason"] = str(error)
        print(json.dumps(row), flush=True)
        open_device("cuda").synchronize()  # a GPU that failed works no more for this process: the next one goes on


if __name__ == "__main__":
    _child(sys.argv[1:], [line.strip() for line in sys.stdin])
