"""The state of visits: the folder from which the next visit resumes, the time, the models and their bricks.

In the folder ``visit.json`` has the stages, ``agreement.jsonl`` one line per checked brick and precision,
``plans.jsonl`` one line per brick with timed plans, ``measurements.db`` the measurements, ``results.md`` the tables. A
copy of a published folder (``docs/results/gpu``) can be continued: its packed files are unpacked, its databases merged.
An alarm enforces the time of each stage: the current measurement stops, and committed results stay.
"""

from __future__ import annotations

import json
import lzma
import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from dlbricks.bricks.suite.suite import Suite
from dlbricks.db import Store, merge
from dlbricks.db.values import Runtime
from dlbricks.errors import BackendUnavailable, UsageError
from dlbricks.generator.backends.registry import get
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.system import probe_system
from dlbricks.models import ModelSource, find_models
from visit_plan import Stage

AGREEMENT = "agreement.jsonl"
PLANS = "plans.jsonl"
"""A line per brick of these stages."""

_PLANNED = 0.93
"""Part of the time that is given to stages; the tables that are made of them have the rest."""

OVER_S = 5.0
"""Seconds that a stage may take longer than it was given, before it is stopped."""


@dataclass(slots=True)
class Record:
    """The outcome of a stage on one system and stack.

    Attributes:
        stage: The stage, as in ``visit_plan.Stage``.
        system: Key of the system; work on another system does not count here.
        stack: Key of the stack; empty for stages without a stack.
        status: ``open``, ``done``, ``refused`` (unavailable here; the next visit asks again) or ``failed`` (the next
            visit tries again).
        reason: Why it was refused or failed.
        seconds: Time spent so far.
        result: Its result.
    """

    stage: dict[str, Any]
    system: str
    stack: str
    status: str = "open"
    reason: str = ""
    seconds: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """True if nothing is left to do."""
        return self.status in {"done", "refused"}


class Folder:
    """The folder of a visit.

    Args:
        path: The folder; created with the first file.

    Raises:
        UsageError: The path is not a folder, or has files of other origin.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is no folder", remedy="name an empty folder, or a new one")
        self._state_file = path / "visit.json"
        (path / "visit.json.new").unlink(missing_ok=True)
        for packed in path.glob("*.xz") if self._state_file.exists() else ():
            if not packed.with_suffix("").exists():
                packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
        state = _read_state(self._state_file) if self._state_file.exists() else {}
        if not state and path.exists() and any(path.iterdir()):
            raise UsageError(f"{path} holds something else than visits", remedy="name an empty folder, or a new one")
        self.settings: dict[str, Any] = state.get("settings", {})
        if isinstance(batch := self.settings.get("batch"), int):  # as an earlier version wrote it
            self.settings["batch"] = [batch]
        self.stacks: dict[str, Any] = state.get("stacks", {})
        self.visits: list[dict[str, Any]] = state.get("visits", [])
        self.records = [Record(**record) for record in state.get("records", [])]
        self.results: dict[str, Any] = state.get("results", {})

    @classmethod
    def begun(cls, path: Path) -> Folder:
        """Open the folder of earlier visits.

        Raises:
            UsageError: No visit began in it.
        """
        folder = cls(path)
        if not folder.visits:
            raise UsageError(f"{path} holds no visit", remedy="name the --out of one")
        return folder

    def settle(self, asked: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        """Use the settings of the first visit for all.

        Args:
            asked: Settings by name; None for settings without a value.
            defaults: Defaults for the first visit.

        Raises:
            UsageError: A value differs from the first visit's.
        """
        for name, value in asked.items():
            known = self.settings.get(name)
            if known is not None and value is not None and value != known:
                raise UsageError(f"{self.path} was begun with {name} {known}, not {value}", remedy="name another --out")
            if known is None:
                self.settings[name] = defaults[name] if value is None else value

    def begin(self, minutes: float) -> dict[str, Any]:
        """Record a visit; return the dictionary for its further notes."""
        began = datetime.now(UTC).isoformat(timespec="seconds")
        visit: dict[str, Any] = {"began": began, "minutes": minutes, "ended": None, "seconds": None, "stages": {}}
        self.visits.append(visit)
        self.save()
        return visit

    def record(self, stage: Mapping[str, Any], system: str, stack: str) -> Record:
        """Return the record of a stage on a system and stack; begin one if missing."""
        record = self.find(stage["name"], system, stack)
        if record is None:
            if stack and (without := self.find(stage["name"], system, "")) is not None:
                self.records.remove(without)  # it was refused, by an earlier version
            record = Record(dict(stage), system, stack)
            self.records.append(record)
        return record

    def find(self, name: str, system: str, stack: str) -> Record | None:
        """Return the record of a stage; None if it was never begun."""
        place = (name, system, stack)
        return next((each for each in self.records if (each.stage["name"], each.system, each.stack) == place), None)

    def find_measured(self, name: str, system: str) -> Record | None:
        """Return the newest record of a finished stage on a system, of any stack."""
        mine = (each for each in reversed(self.records) if (each.stage["name"], each.system) == (name, system))
        return next((each for each in mine if each.stack and each.status == "done"), None)

    def save(self) -> None:
        """Write the state, whole or not at all."""
        parts = {name: getattr(self, name) for name in ("settings", "visits", "stacks", "results")}
        state = {"schema": 1, **parts, "records": [asdict(record) for record in self.records]}
        self.path.mkdir(parents=True, exist_ok=True)
        new = self.path / "visit.json.new"
        with new.open("w") as file:
            file.write(json.dumps(state, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._state_file)

    def rows(self, name: str = AGREEMENT) -> list[dict[str, Any]]:
        """Return every brick that was checked or has timed plans; drop a line that a kill cut short."""
        path = self.path / name
        if not path.exists():
            return []
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def add_row(self, row: Mapping[str, Any], name: str = AGREEMENT) -> None:
        """Keep one brick's row, now."""
        with (self.path / name).open("a") as file:
            file.write(json.dumps(row) + "\n")

    @property
    def databases(self) -> list[Path]:
        """Existing databases, oldest first."""
        return sorted(self.path.glob("measurements*.db"))

    def store(self) -> Store:
        """Open the database of the visits."""
        path = self.path / "measurements.db"
        others = [] if path.exists() else self.databases
        store = Store.open(path)
        for other in others:
            merge(store, other)
        return store


def copied(published: Path, to: Path) -> Folder:
    """Return a copy of a published folder, which is never changed."""
    to.mkdir(parents=True, exist_ok=True)
    for path in published.iterdir():
        if path.is_file():
            (to / path.name).write_bytes(path.read_bytes())
    return Folder(to)


def _read_state(file: Path) -> dict[str, Any]:
    """Read the state of earlier visits.

    Raises:
        UsageError: It cannot be read. It is always replaced as a whole, so that a visit never leaves a part of it.
    """
    try:
        state = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}", remedy="name another folder, or a copy of it") from error
    if not isinstance(state, dict):
        raise UsageError(f"{file} is not what a visit writes", remedy="name another folder, or a copy of it")
    return state


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
        return max(2.0, 0.01 * self.total_s)

    @contextmanager
    def alarm(self, seconds: float) -> Iterator[None]:
        """Raise ``TimeUp`` inside, when some seconds are over; raise ``Terminated`` on SIGTERM."""
        handlers = {number: signal.signal(number, _end) for number in (signal.SIGALRM, signal.SIGTERM)}
        signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))
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
        began: When it began; earlier failures are tried again.
    """

    folder: Folder
    clock: Clock
    work: Path
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    _suites: dict[tuple[int | None, int, str, tuple[str, ...]], Suite] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Models, backend, device and so on."""
        return self.folder.settings

    def options(self, stage: Stage) -> dict[str, str]:
        """Return the backend's options, from the stage and the visit."""
        return {**({} if stage.threads else self.settings["options"]), **stage.options}

    def backend(self, stage: Stage) -> str:
        """Return the backend of a stage."""
        return str(stage.backend or self.settings["backend"])

    def device(self, stage: Stage) -> str:
        """Return the device of a stage."""
        return "cpu" if stage.threads else str(self.settings["device"])

    def sources(self, batch: int | None, names: Collection[str] = ()) -> list[ModelSource]:
        """Return the models at a batch.

        Args:
            batch: None: the models' own.
            names: Only these; empty: all.
        """
        found = find_models(self.settings["models"], batches=[batch] if batch else [])
        return [source for source in found if not names or source.name in names]

    def suite(self, stage: Stage, names: Collection[str] = ()) -> Suite:
        """Their bricks; made anew in each visit, a second for the whole zoo; with views each model runs once.

        Raises:
            UsageError: None of the models can be read.
        """
        key = (stage.batch, stage.granularity, stage.graph, tuple(sorted(names)))
        if key not in self._suites:
            sources, cut = self.sources(stage.batch, names), stage.granularity
            along = Cut(cut, overlap=cut > 1, graph=stage.graph, runtime=Runtime.of("torch", options=_ANYWHERE))
            report = generate(sources, settings=along, out=self.work / f"suite-{len(self._suites)}")
            if report.suite is None:
                raise UsageError(f"no model can be read at batch {stage.batch or 'of its own'}: {report.rows[0].error}")
            suite = report.suite
            keys = [key for key in suite.keys if cut == 1 or _is_fusion(suite.brick(key).operators, cut)]
            self._suites[key] = replace(suite, keys=tuple(keys))
        return self._suites[key]

    def record(self, stage: Stage) -> Record:
        """Return the record of a stage on this system and its stack.

        Raises:
            BackendUnavailable: The backend of the visit is not installed.
        """
        stack = reason = ""
        if stage.kind != "stack":
            try:
                stack = get(self.backend(stage)).stack(self.device(stage), self.options(stage)).key
            except (UsageError, BackendUnavailable) as error:
                if isinstance(error, BackendUnavailable) and stage.backend is None:
                    raise
                reason = str(error)
        record = self.folder.record(asdict(stage), probe_system().key, stack)
        if reason:
            record.status, record.reason = "refused", reason
        return record


_ANYWHERE = {"pinning": "off"}

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})


def _is_fusion(operators: Sequence[str], granularity: int) -> bool:
    """Return True for a product with its followers; at the largest granularities, for attention alone."""
    if granularity > 3:
        return (operators[0], operators[-1]) == ("MatMul", "MatMul") and "Softmax" in operators
    return len(operators) > 1 and operators[0] in _PRODUCTS
