"""Execute each stage of a visit until it is done or its time is up.

A stage is tried on any device; a refusal (for example of an option that the device lacks) is recorded with the
library's reason. On a GPU a few bricks come first, in every planned way: a failure costs only the stages of this way,
and its message is kept.
"""

from __future__ import annotations

import json
import math
import platform
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from dlbricks import __version__
from dlbricks.bricks.suite.suite import Suite
from dlbricks.errors import DlbricksError
from dlbricks.generator.backends.registry import backends
from dlbricks.generator.machine.system import machine_state, probe_system
from dlbricks.generator.measurement.agreement import Agreement, Outcome, agreements, checked_place
from visit_folder import Record
from visit_measuring import bricks, ceilings, findings, kernels, models
from visit_plan import Stage, stages
from visit_plans import plans
from visit_state import Visit

_ITEM_TIMEOUT_S = 60.0

_OPERATORS = ("Conv", "Gemm", "MatMul", "Softmax", "MaxPool", "Add")
"""Operators with a brick to verify, if the models have one."""

_PACKAGES = (
    "cuda", "cupy", "ml-dtypes", "numpy", "nvidia", "nvmath", "onnx", "openvino", "protobuf", "sqlalchemy", "tensorrt",
    "torch", "triton",
)  # fmt: skip
"""Beginnings of the names of packages that may decide a latency."""


def do(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:
    """Go on with a stage for some time; its record then says how far it came.

    Raises:
        DlbricksError: It cannot be done here, or not now.
    """
    kinds = {
        "stack": _stack,
        "verify": _verify,
        "agreement": _agreement,
        "bricks": bricks,
        "kernels": kernels,
        "models": models,
        "plans": plans,
        "findings": findings,
        "ceilings": ceilings,
    }
    kinds[stage.kind](visit, stage, record, allowed_s)


def _stack(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:  # noqa: ARG001
    """Record this machine, in every visit again."""
    visit.folder.stacks[record.system] = {
        "dlbricks": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "system": asdict(probe_system()),
        "state": machine_state(),
        "driver": {"nvidia-smi": _output("nvidia-smi"), "module": _text(Path("/proc/driver/nvidia/version"))},
        "compilers": {name: shutil.which(name) is not None for name in ("g++", "clang++", "nvcc", "ptxas")},
        "packages": dict(sorted(_versions())),
        "backends": {
            name: {"available": found.ok, "reason": found.reason, "missing": dict(found.missing)}
            for name, found in backends().items()
        },
    }
    with suppress(ImportError):
        import cudnn

        visit.folder.stacks[record.system]["cudnn"] = json.loads(cudnn.create_device_properties(0).serialize())
    record.status = "done"


def _verify(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:  # noqa: ARG001
    """Check each way once, until the time is up."""
    until = time.monotonic() + allowed_s
    ways: dict[str, Any] = record.result.setdefault("ways", {})
    planned = [one for one in stages(visit.settings["batch"], visit.settings["device"]) if one.kind == "bricks"]
    for one in planned:
        if one.batch is not None or one.name in ways:
            continue
        if time.monotonic() >= until:
            return
        ways[one.name] = _checked(visit, one)
        visit.folder.save()
    record.status = "done"


def _checked(visit: Visit, stage: Stage) -> dict[str, Any]:
    """Check a few bricks: return the number that agree, and the reasons of the others."""
    found: dict[str, Any] = {"counts": {}, "reasons": []}
    suite = visit.suite(None)
    try:
        for one in _rows(visit, stage, suite, set(_different(suite))):
            verdict = str(one.verdict)
            found["counts"][verdict] = found["counts"].get(verdict, 0) + 1
            if one.reason:
                found["reasons"].append(f"{' '.join(one.operators)}: {one.reason}")
    except DlbricksError as error:
        found["reasons"].append(str(error))
    return found


def _rows(visit: Visit, stage: Stage, suite: Suite, keys: Collection[str]) -> Generator[Agreement, None, None]:
    place = checked_place(visit.backend(stage), visit.settings["device"], visit.options(stage), stage.dtype)
    yield from agreements(suite, place, checked_place("onnxruntime"), keys=keys, timeout_s=_ITEM_TIMEOUT_S)


def _different(suite: Suite) -> Iterator[str]:
    """Return bricks of the most different operators, with at least one for each library."""
    seen: dict[str, list[str]] = {}
    for key in suite.keys:
        seen.setdefault(" ".join(suite.brick(key).operators), []).append(key)
    for name in _OPERATORS:
        if name in seen:
            yield seen[name][len(seen[name]) // 2]


def _agreement(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:
    """Compare bricks with the CPU's reference, and record each at once."""
    until = time.monotonic() + allowed_s
    suite = visit.suite(stage.batch)
    place = {"system": record.system, "stack": record.stack, "dtype": stage.dtype}
    rows = [row for row in visit.folder.rows() if place.items() <= row.items()]
    left = set(suite.keys) - {row["key"] for row in rows}
    checking = _rows(visit, stage, suite, left)
    try:
        for found in checking if left else ():
            row = place | asdict(found)
            if not math.isfinite(found.error or 0.0):
                row["error"] = None  # JSON has no infinity; the reason says it
            visit.folder.add_row(row)
            rows.append(row)
            left.remove(found.key)
            if time.monotonic() >= until:
                break
    finally:
        checking.close()
        record.result = {"left": 0, "unchecked": len(left), **_agreed(rows)}
    if not left:
        record.status = "done"


def _agreed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [row["error"] for row in rows if row["error"] is not None]
    wrong = Counter(f"{' '.join(row['operators'])}: {row['reason']}" for row in rows if row["verdict"] != Outcome.SAME)
    return {
        "bricks": len(rows),
        "counts": dict(Counter(str(row["verdict"]) for row in rows)),
        "worst_error": max(errors, default=None),
        "reasons": dict(wrong.most_common()),
    }


def _versions() -> Iterator[tuple[str, str]]:
    for found in distributions():
        name = (found.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith(_PACKAGES):
            yield name, found.version


@cache
def _output(program: str) -> str | None:
    """Return the output of a program; None if it is missing or does not answer."""
    found = shutil.which(program)
    if found is None:
        return None
    try:
        return subprocess.run([found], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None
