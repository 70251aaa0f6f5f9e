"""Execute each stage of a visit until it is done or its time is up.

A stage is tried on any device; a refusal (for example of an option that the device lacks) is recorded with the
library's reason.
"""

from __future__ import annotations

import json
import math
import platform
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from dlbricks import __version__
from dlbricks.db import Store
from dlbricks.errors import UsageError
from dlbricks.generator.backends.registry import backends
from dlbricks.generator.machine.nvml import driver_version
from dlbricks.generator.machine.system import machine_state, probe_system
from dlbricks.generator.measurement.agreement import Outcome, agreements, checked_place
from dlbricks.generator.measurement.ceilings import measure_ceilings
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from visit_plan import Stage
from visit_plans import faster_plans, plans
from visit_state import Record, Visit

_PLANNED = 0.6
"""Part of the time that is left for which models are taken together: a forecast knows neither device nor neighbours."""

_ITEM_TIMEOUT_S = 60.0
_MODEL_TIMEOUT_S = 180.0
"""Compilation included."""

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
        "tests": _tests,
        "agreement": _agreement,
        "bricks": _bricks,
        "kernels": _kernels,
        "models": _models,
        "plans": plans,
        "fastest": _fastest,
        "ceilings": _ceilings,
    }
    kinds[stage.kind](visit, stage, record, time.monotonic() + allowed_s)


def _stack(visit: Visit, stage: Stage, record: Record, until: float) -> None:  # noqa: ARG001
    """Record this machine, in every visit again."""
    record.status = "done"
    visit.folder.stacks[record.system] = {
        "dlbricks": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "system": asdict(probe_system()),
        "state": machine_state(),
        "driver": driver_version(),
        "compilers": {name: shutil.which(name) is not None for name in ("g++", "clang++", "nvcc", "ptxas")},
        "packages": dict(sorted(_versions())),
        "backends": {
            name: {"available": probed.ok, "reason": probed.reason, "missing": dict(probed.missing)}
            for name, probed in backends().items()
        },
    }
    if visit.settings["device"] == "cuda":
        with suppress(ImportError):
            import cudnn

            visit.folder.stacks[record.system]["cudnn"] = json.loads(cudnn.create_device_properties(0).serialize())


def _versions() -> Iterator[tuple[str, str]]:
    for package in distributions():
        name = (package.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith(_PACKAGES):
            yield name, package.version


_PROBE = "from dlbricks.generator.device.host import open_device; print(open_device({!r}).resolution_ns)"
_TESTS = ("tests/generator/device", "tests/generator/backends/test_libraries.py")


def _tests(visit: Visit, stage: Stage, record: Record, until: float) -> None:
    """Measure the step of the device's clock, and run the tests that need a GPU."""
    how: Any = {"capture_output": True, "text": True, "cwd": Path(__file__).parents[1]}
    probe = [sys.executable, "-c", _PROBE.format(visit.device(stage))]
    record.result["resolution_ns"] = float(subprocess.run(probe, timeout=60, check=True, **how).stdout)
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *_TESTS]
    done = subprocess.run(tests, timeout=max(1.0, until - time.monotonic()), check=False, **how)
    record.result["tests"] = (done.stdout or done.stderr).strip().splitlines()[-20:]
    record.status, record.reason = ("done", "") if done.returncode == 0 else ("failed", record.result["tests"][-1])


def _agreement(visit: Visit, stage: Stage, record: Record, until: float) -> None:
    """Compare bricks with the CPU's reference, and record each at once."""
    suite = visit.suite(stage)
    place = {"system": record.system, "stack": record.stack, "dtype": stage.dtype}
    rows = [row for row in visit.folder.rows() if place.items() <= row.items()]
    waiting = set(suite.keys) - {row["key"] for row in rows}
    where = checked_place(visit.backend(stage), visit.device(stage), visit.options(stage), stage.dtype)
    checking = agreements(suite, where, checked_place("onnxruntime"), keys=waiting, timeout_s=_ITEM_TIMEOUT_S)
    try:
        for outcome in checking if waiting else ():
            row = place | asdict(outcome)
            if not math.isfinite(outcome.error or 0.0):
                row["error"] = None  # JSON has no infinity; the reason says it
            visit.folder.add_row(row)
            rows.append(row)
            waiting.remove(outcome.key)
            if time.monotonic() >= until:
                break
    finally:
        checking.close()
        record.result = {"unchecked": len(waiting), **_agreed(rows)}
    if not waiting:
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


def _bricks(visit: Visit, stage: Stage, record: Record, until: float) -> None:
    """Measure bricks alternating with models: the fastest first, as many together as the time allows.

    If the time is short, visits to everything would finish nothing. Stored results are not measured again. Bricks that
    failed, and not because the library lacks them, are tried once more, at the next visit.
    """
    broken = record.result.setdefault("broken", {})
    again = sorted({began for began in broken.values() if began != visit.began.isoformat()})
    how: dict[str, Any] = {"again": ["failed"], "since": visit.began} if again else {}
    with visit.folder.store() as store:
        waiting = _forecasts(visit, stage, record, store, how)
        while waiting:
            record.result["waiting"] = sorted(waiting)
            left_s = until - time.monotonic()
            if left_s < visit.clock.least_s:
                return
            group = _fitting(waiting, _PLANNED * left_s)
            report = run(
                visit.suite(stage, group),
                store=store,
                models=visit.sources(stage.batch, group) if stage.models else [],
                item_timeout_s=_ITEM_TIMEOUT_S,
                budget_s=None if sum(waiting[name] for name in group) <= _PLANNED * left_s else left_s,
                **how,
                **_place(visit, stage),
            )
            record.result["failures"] |= dict(report.failures)
            chosen = report.outcome.chosen
            for failure in (*chosen.bricks.failures, *chosen.models.failures):
                if failure.kind != "unsupported":
                    broken.setdefault(failure.key, visit.began.isoformat())
            if report.remaining or report.models_remaining:
                return
            waiting = {name: seconds for name, seconds in waiting.items() if name not in group}
            record.result.setdefault("walls_s", []).append(report.wall_s)
            visit.folder.save()
    record.result["waiting"] = []
    if again or not broken:
        record.status = "done"
    else:
        record.reason = f"{len(broken)} failed; the next visit tries them again"


def _forecasts(visit: Visit, stage: Stage, record: Record, store: Store, how: Mapping[str, Any]) -> dict[str, float]:
    """Forecast the seconds of each unmeasured model with its bricks, the shortest first."""
    failures = record.result.setdefault("failures", {})
    seconds = {}
    for source in visit.sources(stage.batch):
        try:
            suite = visit.suite(stage, [source.name])
        except UsageError as error:
            failures[source.name] = str(error)
            continue
        models = [source] if stage.models else []
        forecast = run(suite, store=store, models=models, dry_run=True, **how, **_place(visit, stage))
        if forecast.remaining or forecast.models_remaining:
            seconds[source.name] = forecast.forecast_s
    return dict(sorted(seconds.items(), key=lambda item: item[1]))


def _fitting(waiting: Mapping[str, float], left_s: float) -> list[str]:
    """Return the first models that fit into the time together; at least one, which a later visit may finish."""
    group: list[str] = []
    for name, seconds in waiting.items():
        left_s -= seconds
        if group and left_s < 0:
            break
        group.append(name)
    return group


def _kernels(visit: Visit, stage: Stage, record: Record, until: float) -> None:  # noqa: ARG001
    """Record the kernels of everything that the stage of this precision measured."""
    if not _measured(visit, stage, record):
        return
    with visit.folder.store() as store:
        sources, place = visit.sources(stage.batch), _place(visit, stage)
        how: Any = {"store": store, "models": sources, "item_timeout_s": _ITEM_TIMEOUT_S, "kernels": True}
        kernels = run(visit.suite(stage), **how, **place).kernels
    if kernels is not None:
        failures = [asdict(failure) for failure in kernels.failures]
        record.result = {"views": kernels.taken + kernels.known, "failures": failures}
        record.status = "done"


def _measured(visit: Visit, stage: Stage, record: Record) -> bool:
    """Return True if the stage that measures these bricks is done."""
    name = stage.name.removeprefix(f"{stage.kind}-")
    measured = visit.folder.find(name, record.system, record.stack)
    if measured is None or measured.status != "done":
        record.reason = f"{name} is not measured yet"
        return False
    return True


def _models(visit: Visit, stage: Stage, record: Record, until: float) -> None:  # noqa: ARG001
    """Measure whole models; a measurement that was stopped is continued."""
    rows = record.result.setdefault("rows", {})
    since = datetime.fromisoformat(record.result.setdefault("since", visit.began.isoformat()))
    waiting = [source for source in visit.sources(stage.batch) if not _known(rows.get(source.name))]
    if waiting:
        how = {**_place(visit, stage), "processes": 1}
        with visit.folder.store() as store:
            measured = measure(waiting, store=store, since=since, item_timeout_s=_MODEL_TIMEOUT_S, **how).rows
        rows |= {row.name: {"latency_ms": row.latency_ms, "error": row.error} for row in measured}
    if all(_known(rows.get(source.name)) for source in waiting):
        record.status = "done"


def _known(row: Mapping[str, Any] | None) -> bool:
    """Return True if a model has its latency, or a final reason without one."""
    return row is not None and (row["error"] is None or not row["error"].startswith("the time was up"))


def _fastest(visit: Visit, stage: Stage, record: Record, until: float) -> None:
    """Measure bricks with the plan that was fastest in their model's state, so that ``analyze`` knows it."""
    timed = visit.folder.find_measured(stage.name.replace("fastest", "plans"), record.system)
    if timed is None:
        record.reason = "their plans are not timed yet"
        return
    waiting = faster_plans(visit.folder, timed)
    done: list[str] = record.result.setdefault("done", [])
    for plan in [plan for plan in waiting if plan not in done]:
        if time.monotonic() >= until:
            return
        place = _place(visit, stage)
        place["options"] = {**place["options"], "plan": plan}
        with visit.folder.store() as store:
            suite = replace(visit.suite(stage), keys=tuple(waiting[plan]))
            report = run(suite, store=store, item_timeout_s=_ITEM_TIMEOUT_S, **place)
        record.result.setdefault("failures", {}).update(dict(report.failures))
        done.append(plan)
        visit.folder.save()
    record.status = "done"


def _ceilings(visit: Visit, stage: Stage, record: Record, until: float) -> None:  # noqa: ARG001
    """Measure the machine's ceilings in the runtime of the visit."""
    how = {**_place(visit, stage), "processes": 1}
    del how["cache"]
    if visit.settings["rehearse"]:
        how |= {"gemm_sizes": [512], "sizes": [1 << 20]}
    with visit.folder.store() as store:
        rows = measure_ceilings(store=store, **how).rows
    record.result = {"failures": {f"{row.dtype} {row.network}": row.error for row in rows if row.error}}
    record.status = "done"


def _place(visit: Visit, stage: Stage) -> dict[str, Any]:
    """Return the common arguments of ``run`` and ``measure``."""
    return {
        **{name: visit.settings[name] for name in ("processes", "sessions", "visits")},
        "device": visit.device(stage),
        "threads": stage.threads or visit.settings["threads"],
        "backend": visit.backend(stage),
        "options": visit.options(stage),
        "dtype": stage.dtype,
        "cache": stage.cache,
    }
