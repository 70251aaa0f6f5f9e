"""How each stage of a visit is done, until it is done or its time is up.

A stage is tried as it stands on any device: what the library refuses there, such as an option that the device does not
have, is recorded with the library's reason.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from dlbricks import __version__
from dlbricks.bricks.suite import Suite
from dlbricks.db import Store
from dlbricks.errors import UsageError
from dlbricks.generator.agreement import Verdict, agreements
from dlbricks.generator.backends.registry import backends, get
from dlbricks.generator.generate import generate
from dlbricks.generator.measure import measure
from dlbricks.generator.progress import Progress
from dlbricks.generator.run import run
from dlbricks.generator.system import machine_state, probe_system
from dlbricks.models import ModelSource, find_models
from visit_clock import Clock
from visit_folder import Folder, Record
from visit_plan import Stage

_FEW = 3
"""Models of a stage that takes long for each."""

_ITEM_TIMEOUT_S = 60.0
_MODEL_TIMEOUT_S = 180.0
"""Compilation included."""

_PACKAGES = (
    "cuda", "cupy", "ml-dtypes", "numpy", "nvidia", "nvmath", "onnx", "openvino", "protobuf", "sqlalchemy", "tensorrt",
    "torch", "triton",
)  # fmt: skip
"""Beginnings of the names of packages that may decide a latency."""


@dataclass(slots=True)
class Visit:
    """What the stages of one visit share.

    Attributes:
        folder: What it leaves behind.
        clock: Its time.
        work: A folder that goes with the visit.
    """

    folder: Folder
    clock: Clock
    work: Path
    _suites: dict[int | None, Suite] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Models, backend, device and so on."""
        return self.folder.settings

    def options(self, stage: Stage) -> dict[str, str]:
        """Options of the backend: those of the stage, and those of the visit."""
        return {**self.settings["options"], **stage.options}

    def sources(self, batch: int | None) -> list[ModelSource]:
        """The models at a batch."""
        return find_models(self.settings["models"], batches=[batch] if batch else [])

    def suite(self, batch: int | None) -> Suite:
        """Their bricks at G=1; made anew in each visit, which takes a second.

        Raises:
            UsageError: None of the models can be read.
        """
        if batch not in self._suites:
            report = generate(self.sources(batch), granularity=1, out=self.work / f"suite-{batch or 'own'}")
            if report.suite is None:
                raise UsageError(f"no model can be read at batch {batch or 'of its own'}: {report.rows[0].error}")
            self._suites[batch] = report.suite
        return self._suites[batch]

    def record(self, stage: Stage) -> Record:
        """What is known of a stage on this system and the stack that it would run on.

        Raises:
            BackendUnavailable: The backend is not installed.
        """
        stack = reason = ""
        if stage.kind != "stack":
            try:
                stack = get(self.settings["backend"]).stack(self.settings["device"], self.options(stage)).key
            except UsageError as error:
                reason = str(error)
        record = self.folder.record(asdict(stage), probe_system().key, stack)
        if reason:
            record.status, record.reason = "refused", reason
        return record

    def do(self, stage: Stage, record: Record, allowed_s: float) -> None:
        """Go on with a stage for some time; its record then says how far it came.

        Raises:
            DlbricksError: It cannot be done here, or not now.
        """
        kinds = {"stack": _stack, "agreement": _agreement, "bricks": _bricks, "kernels": _kernels, "models": _models}
        kinds[stage.kind](self, stage, record, allowed_s)


def _stack(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:  # noqa: ARG001
    """What this machine is; told by every visit anew."""
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
    record.status = "done"


def _agreement(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:
    """Bricks beside the CPU's reference, each kept as it comes."""
    until = time.monotonic() + allowed_s
    suite = visit.suite(stage.batch)
    place = {"system": record.system, "stack": record.stack, "dtype": stage.dtype}
    rows = [row for row in visit.folder.rows() if place.items() <= row.items()]
    left = set(suite.keys) - {row["key"] for row in rows}
    checking = agreements(
        suite,
        visit.settings["backend"],
        keys=left,
        device=visit.settings["device"],
        options=visit.options(stage),
        dtype=stage.dtype,
        timeout_s=_ITEM_TIMEOUT_S,
    )
    try:
        for found in checking if left else ():
            row = place | asdict(found)
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
    wrong = Counter(f"{' '.join(row['operators'])}: {row['reason']}" for row in rows if row["verdict"] != Verdict.SAME)
    return {
        "bricks": len(rows),
        "counts": dict(Counter(str(row["verdict"]) for row in rows)),
        "worst_error": max(errors, default=None),
        "reasons": dict(wrong.most_common()),
    }


def _bricks(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:
    """Bricks, and the models in the same rounds; what is stored is not measured again."""
    began = time.monotonic()
    suite, sources = visit.suite(stage.batch), visit.sources(stage.batch)
    states = [len(suite.distances(key)) if stage.cache == "model" else 1 for key in suite.keys]
    with _store(visit, record, sum(states) + len(sources)) as store:
        report = run(
            suite,
            store=store,
            cache=stage.cache,
            models=sources,
            item_timeout_s=_ITEM_TIMEOUT_S,
            budget_s=max(1.0, allowed_s - (time.monotonic() - began)),
            processes=visit.settings["processes"],
            **_place(visit, stage),
        )
    left = report.remaining + report.models_remaining
    record.result = {
        "left": left,
        "bricks": report.bricks,
        "failed": report.failed,
        "models": report.models,
        "failures": [list(failure) for failure in report.failures],
    }
    if not left:
        record.status = "done"


class _Enough(Exception):
    """The time of a stage is up, between two items."""


def _kernels(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:
    """The kernels that ran for what the stage of this precision measured, each kept as it comes."""
    until = time.monotonic() + allowed_s
    measured = visit.folder.find(stage.dtype, record.system, record.stack)
    if measured is None or measured.status != "done":
        record.reason = f"{stage.dtype} is not measured yet"
        return

    def watch(progress: Progress) -> None:
        record.result["left"] = progress.total - progress.done
        if time.monotonic() >= until:
            raise _Enough

    suite, sources = visit.suite(stage.batch), visit.sources(stage.batch)
    record.database = measured.database
    with _store(visit, record, len(suite.keys) + len(sources)) as store, suppress(_Enough):
        found = run(
            suite,
            store=store,
            cache=stage.cache,
            models=sources,
            item_timeout_s=_ITEM_TIMEOUT_S,
            processes=visit.settings["processes"],
            kernels=True,
            progress=watch,
            **_place(visit, stage),
        ).kernels
        if found is not None:
            record.result = {
                "left": 0,
                "views": found.taken + found.known,
                "failures": [asdict(failure) for failure in found.failures],
            }
            record.status = "done"


def _models(visit: Visit, stage: Stage, record: Record, allowed_s: float) -> None:
    """Whole models one by one: each takes long before its first sample."""
    until = time.monotonic() + allowed_s
    sources = visit.sources(stage.batch)[:_FEW]
    rows = record.result.setdefault("rows", {})
    with _store(visit, record, len(sources)) as store:
        for source in sources:
            if _known(rows.get(source.name)):
                continue
            left_s = until - time.monotonic()
            if left_s < visit.clock.least_s:
                return
            (row,) = measure(
                [source],
                store=store,
                cache=stage.cache,
                budget_s=left_s,
                item_timeout_s=_MODEL_TIMEOUT_S,
                processes=1,
                **_place(visit, stage),
            ).rows
            rows[source.name] = {"latency_ms": row.latency_ms, "error": row.error}
            record.result["left"] = sum(not _known(rows.get(source.name)) for source in sources)
            visit.folder.save()
    if all(_known(rows.get(source.name)) for source in sources):
        record.status = "done"


def _known(row: Mapping[str, Any] | None) -> bool:
    """Whether a model has its latency, or a reason that another try would not change."""
    return row is not None and (row["error"] is None or not row["error"].startswith("the time was up"))


def _store(visit: Visit, record: Record, items: int) -> Store:
    """The database of a stage, which is fixed before anything is measured."""
    path = visit.folder.database(record, items)
    record.result.setdefault("left", items)
    visit.folder.save()
    return Store.open(path)


def _place(visit: Visit, stage: Stage) -> dict[str, Any]:
    """What ``run`` and ``measure`` are told alike."""
    return {
        "backend": visit.settings["backend"],
        "device": visit.settings["device"],
        "threads": visit.settings["threads"],
        "options": visit.options(stage),
        "dtype": stage.dtype,
        "rounds": visit.settings["rounds"],
        "item_budget_s": visit.settings["item_budget"],
    }


def _versions() -> Iterator[tuple[str, str]]:
    for found in distributions():
        name = (found.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith(_PACKAGES):
            yield name, found.version


@cache
def _output(program: str) -> str | None:
    """What a program prints; None where it is not there or does not answer."""
    found = shutil.which(program)
    if found is None:
        return None
    try:
        return subprocess.run([found], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None
