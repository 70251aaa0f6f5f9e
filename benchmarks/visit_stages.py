"""How each stage of a visit is done, until it is done or its time is up.

A stage is tried as it stands on any device: what the library refuses there, such as an option that the device does not
have, is recorded with the library's reason.
"""

from __future__ import annotations

import math
import platform
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from dlbricks import __version__
from dlbricks.bricks.suite import Suite
from dlbricks.errors import UsageError
from dlbricks.generator.agreement import Verdict, agreements
from dlbricks.generator.backends.registry import backends, get
from dlbricks.generator.generate import generate
from dlbricks.generator.system import machine_state, probe_system
from dlbricks.models import ModelSource, find_models
from visit_clock import Clock
from visit_folder import Folder, Record
from visit_measuring import bricks, kernels, models
from visit_plan import Stage

_ITEM_TIMEOUT_S = 60.0

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
    _suites: dict[tuple[int | None, tuple[str, ...]], Suite] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Models, backend, device and so on."""
        return self.folder.settings

    def options(self, stage: Stage) -> dict[str, str]:
        """Options of the backend: those of the stage, and those of the visit."""
        return {**self.settings["options"], **stage.options}

    def sources(self, batch: int | None, names: Collection[str] = ()) -> list[ModelSource]:
        """The models at a batch.

        Args:
            batch: None: the models' own.
            names: Only these; empty: all.
        """
        found = find_models(self.settings["models"], batches=[batch] if batch else [])
        return [source for source in found if not names or source.name in names]

    def suite(self, batch: int | None, names: Collection[str] = ()) -> Suite:
        """Their bricks at G=1; made anew in each visit, which takes a second for the whole zoo.

        Raises:
            UsageError: None of the models can be read.
        """
        key = (batch, tuple(sorted(names)))
        if key not in self._suites:
            report = generate(self.sources(batch, names), granularity=1, out=self.work / f"suite-{len(self._suites)}")
            if report.suite is None:
                raise UsageError(f"no model can be read at batch {batch or 'of its own'}: {report.rows[0].error}")
            self._suites[key] = report.suite
        return self._suites[key]

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
        kinds = {"stack": _stack, "agreement": _agreement, "bricks": bricks, "kernels": kernels, "models": models}
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
    wrong = Counter(f"{' '.join(row['operators'])}: {row['reason']}" for row in rows if row["verdict"] != Verdict.SAME)
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
