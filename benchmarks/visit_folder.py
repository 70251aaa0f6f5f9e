"""The folder of a visit: a few small files, from which the next visit resumes.

``visit.json`` has the finished stages, ``agreement.jsonl`` one line per checked brick and precision, ``plans.jsonl``
one line per brick with timed plans, ``measurements-N.db`` the measurements, ``results.md`` the tables. A database that
a killed visit had open has two side files. Together with the file that replaces ``visit.json`` these are at most
``MOST_FILES``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlbricks.errors import StoreError, UsageError

AGREEMENT = "agreement.jsonl"
PLANS = "plans.jsonl"
"""A line per brick of these stages."""

MOST_FILES = 8
MOST_BYTES = 15 << 20

_PARTS = 2
_BYTES_PER_ITEM = 3 << 10
"""Of a brick or model in a database: its statistics, and the samples of all its sessions."""

_ENDED = ("done", "refused")


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
        database: File with its measurements.
        seconds: Time spent so far.
        result: Its result.
    """

    stage: dict[str, Any]
    system: str
    stack: str
    status: str = "open"
    reason: str = ""
    database: str = ""
    seconds: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """True if nothing is left to do."""
        return self.status in _ENDED


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
        if path.exists():
            (path / "visit.json.new").unlink(missing_ok=True)
        state = _read_state(self._state_file) if self._state_file.exists() else {}
        if not state and path.exists() and any(path.iterdir()):
            raise UsageError(f"{path} holds something else than visits", remedy="name an empty folder, or a new one")
        self.settings: dict[str, Any] = state.get("settings", {})
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
        found = cls(path)
        if not found.visits:
            raise UsageError(f"{path} holds no visit", remedy="name the --out of one")
        return found

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
        visit: dict[str, Any] = {"began": _now(), "minutes": minutes, "ended": None, "seconds": None, "stages": {}}
        self.visits.append(visit)
        self.save()
        return visit

    def record(self, stage: Mapping[str, Any], system: str, stack: str) -> Record:
        """Return the record of a stage on a system and stack; begin one if missing."""
        found = self.find(stage["name"], system, stack)
        if found is None:
            if stack and (without := self.find(stage["name"], system, "")) is not None:
                self.records.remove(without)  # it was refused, by an earlier version
            found = Record(dict(stage), system, stack)
            self.records.append(found)
        return found

    def find(self, name: str, system: str, stack: str) -> Record | None:
        """Return the record of a stage; None if it was never begun."""
        wanted = (name, system, stack)
        return next((each for each in self.records if (each.stage["name"], each.system, each.stack) == wanted), None)

    def save(self) -> None:
        """Write the state, whole or not at all."""
        state = {
            "schema": 1,
            "settings": self.settings,
            "visits": self.visits,
            "stacks": self.stacks,
            "records": [asdict(record) for record in self.records],
            "results": self.results,
        }
        self._make()
        new = self.path / "visit.json.new"
        with new.open("w") as file:
            file.write(json.dumps(state, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._state_file)

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    # Agreement ----------------------------------------------------------------------------------------------------

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
        self._make()
        with (self.path / name).open("a") as file:
            file.write(json.dumps(row) + "\n")

    # Databases ----------------------------------------------------------------------------------------------------

    @property
    def databases(self) -> list[Path]:
        """Existing databases, oldest first."""
        return sorted(self.path.glob("measurements-*.db"))

    def database(self, record: Record, items: int) -> Path:
        """Return the database for a stage's measurements: its present one, else one with room for all of them.

        Args:
            record: The stage.
            items: Bricks and models that it measures.

        Raises:
            StoreError: No room is left.
        """
        self._make()
        if not record.database:
            expected = items * _BYTES_PER_ITEM
            for number in range(1, _PARTS + 1):
                path = self.path / f"measurements-{number}.db"
                if (path.stat().st_size if path.exists() else 0) + self._promised(path) + expected <= MOST_BYTES:
                    record.database = path.name
                    break
            else:
                raise StoreError(
                    f"{self.path} has no room for {items} more bricks and models",
                    remedy="go on in another folder, with --stage or fewer --models; databases merge",
                )
        return self.path / record.database

    def _promised(self, path: Path) -> int:
        """Bytes that open stages may still write into a database."""
        waiting = [record for record in self.records if record.database == path.name and not record.ended]
        return sum(int(record.result.get("left", 0)) for record in waiting) * _BYTES_PER_ITEM

    def check(self) -> list[str]:
        """Return problems with the files, in words; empty within the limits."""
        files = [path for path in self.path.rglob("*") if path.is_file()]
        wrong = [f"{path.name} has {path.stat().st_size} bytes" for path in files if path.stat().st_size > MOST_BYTES]
        if len(files) > MOST_FILES:
            wrong.append(f"there are {len(files)} files")
        return wrong


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read_state(file: Path) -> dict[str, Any]:
    """Read the state of earlier visits.

    Raises:
        UsageError: It cannot be read. It is always replaced as a whole, so that a visit never leaves a part of it.
    """
    try:
        state = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{file} cannot be read: {error}", remedy="name another folder, or take a copy of it"
        ) from error
    if not isinstance(state, dict):
        raise UsageError(f"{file} is not what a visit writes", remedy="name another folder, or take a copy of it")
    return state
