"""A message between parent and worker: a frozen dataclass, written as one line of JSON and read back with its types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from ....errors import WorkerError

__all__ = ["Message", "Reply", "Request", "parse_line"]


@dataclass(frozen=True, slots=True)
class Message:
    """Base of everything that is said."""

    def to_json(self) -> str:
        """One line of JSON, without the newline."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_fields(cls, found: Mapping[str, Any]) -> Self:
        """Build from parsed JSON; raises ``WorkerError`` where a field is missing, unknown or of a wrong kind."""
        known = {name: value for name, value in found.items() if name not in {"op", "ok"}}
        try:
            hints = get_type_hints(cls)
            return cls(**{name: _revive(hints[name], value) for name, value in known.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise WorkerError(f"not a {cls.__name__} message: {error}") from error


@dataclass(frozen=True, slots=True)
class Request(Message):
    """Said by the parent."""

    op: ClassVar[str]

    def to_json(self) -> str:
        """One line of JSON, without the newline."""
        return json.dumps({"op": self.op, **asdict(self)}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Reply(Message):
    """Said by the worker."""

    ok: ClassVar[bool] = True

    def to_json(self) -> str:
        """One line of JSON, without the newline."""
        return json.dumps({"ok": self.ok, **asdict(self)}, separators=(",", ":"))


def parse_line(text: str) -> dict[str, Any]:
    """Read one line; raises ``WorkerError`` for anything but a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise WorkerError(f"not a line of JSON: {text[:80]!r}") from error
    if not isinstance(found, dict):
        raise WorkerError(f"not a JSON object: {text[:80]!r}")
    return found


def _revive(hint: Any, value: Any) -> Any:
    """Give a JSON value the field's type: nested dataclass, tuple of these, enum, or tuples for lists."""
    if isinstance(hint, type) and is_dataclass(hint):
        names = {entry.name for entry in fields(hint)}
        if not isinstance(value, dict) or not names >= set(value):
            raise TypeError(f"{hint.__name__} cannot be {value!r:.80}")
        return hint(**{name: _frozen(item) for name, item in value.items()})
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(value)
    if get_origin(hint) is tuple and is_dataclass(get_args(hint)[0]) and isinstance(value, list):
        return tuple(_revive(get_args(hint)[0], item) for item in value)
    if isinstance(hint, type) and not isinstance(value, hint):
        raise TypeError(f"{value!r:.80} is not {hint.__name__}")
    return _frozen(value)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return value
