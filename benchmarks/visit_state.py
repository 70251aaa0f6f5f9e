"""The shared state of a visit's stages: its folder, its time, the models and their bricks.

An alarm enforces the time: the current measurement stops, and committed results stay.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from dlbricks.bricks.suite.suite import Suite
from dlbricks.errors import BackendUnavailable, UsageError
from dlbricks.generator.backends.registry import get
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.system import probe_system
from dlbricks.models import ModelSource, find_models
from visit_folder import Folder, Record
from visit_plan import Stage

_PLANNED = 0.92
"""Part of the time that is given to stages; they may take longer than they were given, until the alarm."""

STAGES, TABLES = 0.95, 0.99
"""Parts of the time after which the stages are stopped, and then the tables that are made of them."""


class TimeUp(KeyboardInterrupt):
    """The time is up; an interrupt, so that nothing takes it for an error."""


class Terminated(TimeUp):
    """The process was asked to end."""


class Clock:
    """The time of a visit.

    Args:
        total_s: The whole visit.
        began: ``time.monotonic()`` at its beginning; default now.
    """

    def __init__(self, total_s: float, *, began: float | None = None) -> None:
        self.total_s = total_s
        self._began = time.monotonic() if began is None else began

    @property
    def spent_s(self) -> float:
        """Since the visit began."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        """Return the seconds left for a stage."""
        return max(0.0, self.total_s * _PLANNED - self.spent_s)

    @property
    def least_s(self) -> float:
        """Nothing is begun that has less: a worker could not even load a framework."""
        return max(2.0, 0.03 * self.total_s)

    @contextmanager
    def alarm(self, part: float = STAGES) -> Iterator[None]:
        """Raise ``TimeUp`` inside, when a part of the time is over, or on SIGTERM."""
        handlers = {number: signal.signal(number, _end) for number in (signal.SIGALRM, signal.SIGTERM)}
        signal.setitimer(signal.ITIMER_REAL, max(0.001, self.total_s * part - self.spent_s))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> NoReturn:
    if number == signal.SIGTERM:
        raise Terminated("terminated")
    raise TimeUp("the time was up")


@dataclass(slots=True)
class Visit:
    """The shared state of a visit's stages.

    Attributes:
        folder: Its files.
        clock: Its time.
        work: A folder that is deleted with the visit.
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
        """Return the backend's options, from the stage and the visit."""
        return {**self.settings["options"], **stage.options}

    def backend(self, stage: Stage) -> str:
        """Return the backend of a stage."""
        return str(stage.backend or self.settings["backend"])

    def sources(self, batch: int | None, names: Collection[str] = ()) -> list[ModelSource]:
        """Return the models at a batch.

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
        """Return the record of a stage on this system and its stack.

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
