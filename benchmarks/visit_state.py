"""What the stages of one visit share: its folder, its time, the models and their bricks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dlbricks.bricks.suite.suite import Suite
from dlbricks.errors import BackendUnavailable, UsageError
from dlbricks.generator.backends.registry import get
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.system import probe_system
from dlbricks.models import ModelSource, find_models
from visit_clock import Clock
from visit_folder import Folder, Record
from visit_plan import Stage


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

    def backend(self, stage: Stage) -> str:
        """The backend that a stage is about."""
        return str(stage.backend or self.settings["backend"])

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
            BackendUnavailable: The backend of the visit is not installed.
        """
        stack = reason = ""
        if stage.kind not in {"stack", "verify"}:
            try:
                stack = get(self.backend(stage)).stack(self.settings["device"], self.options(stage)).key
            except (UsageError, BackendUnavailable) as error:
                if isinstance(error, BackendUnavailable) and stage.backend is None:
                    raise
                reason = str(error)
        record = self.folder.record(asdict(stage), probe_system().key, stack)
        if reason:
            record.status, record.reason = "refused", reason
        return record
