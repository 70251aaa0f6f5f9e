"""A campaign's file: nodes, stacks, suites and conditions in TOML, and the cells that they make."""

from __future__ import annotations

import hashlib
import itertools
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ...bricks.suite.suite import Suite
from ...errors import UsageError
from ...models.control.choices import read_choices
from ..measurement.settings import CACHE_MODES, MeasurementSettings
from .cell import NAME, NAME_RULE, Cell

__all__ = ["Campaign", "Pace", "PlannedStack", "PlannedSuite", "load_campaign"]

_DEFAULT = MeasurementSettings()
_NOTHING: Mapping[str, Any] = {}

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class PlannedStack:
    """A runtime as a campaign names it.

    Attributes:
        name: In the file.
        backend: Name of the runtime.
        device: ``cpu`` or ``cuda``.
        options: Of the runtime, sorted.
        lock: Its PEP 751 lock file; None: the environment of the node's worker.
        lock_hash: SHA-256 of that.
        custom_ops: Libraries of custom operators: paths on the nodes.
        algorithms: As ``--algorithms`` has it.
        algorithm: As ``--algorithm`` takes them.
        nodes: Where it is measured; None: everywhere.
    """

    name: str
    backend: str
    device: str
    options: tuple[tuple[str, str], ...]
    lock: Path | None
    lock_hash: str | None
    custom_ops: tuple[str, ...]
    algorithms: bool
    algorithm: tuple[str, ...]
    nodes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class PlannedSuite:
    """A suite as a campaign names it, with the whole models that are measured beside it.

    Attributes:
        name: In the file.
        suite: Open.
        models: Names of the zoo, or paths on the nodes.
        batch: As ``--batch`` takes it.
        dims: As ``--dim`` takes them.
        branches: As ``--branch`` takes them.
        trips: As ``--trip`` takes them.
        nodes: Where it is measured; None: everywhere.
    """

    name: str
    suite: Suite
    models: tuple[str, ...]
    batch: str | None
    dims: tuple[str, ...]
    branches: tuple[str, ...]
    trips: tuple[str, ...]
    nodes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Pace:
    """How long is measured: ``--visits`` or ``--budget``, ``--processes`` and ``--sessions``."""

    visits: int | None
    budget_s: float | None
    processes: int
    sessions: int


@dataclass(frozen=True, slots=True)
class Campaign:
    """What a file asks for.

    Attributes:
        name: Stored with every run.
        nodes: The owner's names of the machines.
        stacks: Runtimes.
        suites: Suites.
        threads: Numbers of threads.
        caches: Cache states.
        dtypes: Precisions.
        pace: How long is measured.
    """

    name: str
    nodes: tuple[str, ...]
    stacks: tuple[PlannedStack, ...]
    suites: tuple[PlannedSuite, ...]
    threads: tuple[int, ...]
    caches: tuple[str, ...]
    dtypes: tuple[str, ...]
    pace: Pace

    def cells(self) -> Iterator[Cell]:
        """Every node with every stack, suite and condition that it has a part in, suite by suite."""
        conditions = itertools.product(self.threads, self.caches, self.dtypes)
        everything = itertools.product(self.nodes, self.suites, self.stacks, conditions)
        for node, suite, stack, (threads, cache, dtype) in everything:
            if all(which is None or node in which for which in (suite.nodes, stack.nodes)):
                yield Cell(
                    campaign=self.name,
                    node=node,
                    stack=stack.name,
                    suite=suite.name,
                    suite_hash=suite.suite.hash,
                    lock_hash=stack.lock_hash,
                    backend=stack.backend,
                    device=stack.device,
                    options=stack.options,
                    threads=threads,
                    cache=cache,
                    dtype=dtype,
                    models=suite.models,
                    batch=suite.batch,
                    dims=suite.dims,
                    visits=self.pace.visits,
                    budget_s=self.pace.budget_s,
                    processes=self.pace.processes,
                    sessions=self.pace.sessions,
                    branches=suite.branches,
                    trips=suite.trips,
                    custom_ops=stack.custom_ops,
                    algorithms=stack.algorithms,
                    algorithm=stack.algorithm,
                )


def load_campaign(file: str | os.PathLike[str]) -> Campaign:
    """Read a campaign's file, and open what it names; paths are relative to it.

    Raises:
        UsageError: It cannot be read, is no TOML, or asks for something that makes no sense; the message names where.
        SuiteError: A suite cannot be read.
    """
    path = Path(file)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"campaign {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"campaign {path} is no TOML: {error}") from error
    top = _Table(path, "", table)
    nodes = top.take("nodes", _names)
    campaign = Campaign(
        name=top.take("campaign", _name),
        nodes=nodes,
        stacks=tuple(_stack(one, nodes) for one in top.tables("stack")),
        suites=tuple(_suite(one, nodes) for one in top.tables("suite")),
        **_conditions(top.table("conditions")),
        pace=_pace(top.table("pace")),
    )
    top.end()
    _distinct(path, campaign)
    return campaign


class _Table:
    """A table of the file, of which every key has to be taken."""

    def __init__(self, file: Path, where: str, values: Mapping[str, Any]) -> None:
        self.file, self.where, self._left = file, where, dict(values)

    def take(self, key: str, read: Callable[[Any], T], *default: D) -> T | D:
        """A value; without a default it has to be there."""
        if key not in self._left:
            return default[0] if default else self.refuse(key, "is missing")
        return self.read(key, self._left.pop(key), read)

    def read(self, key: str, value: object, read: Callable[[Any], T]) -> T:
        """A value as it is meant, also one that stands in for what is not there."""
        try:
            return read(value)
        except (TypeError, ValueError) as error:
            return self.refuse(key, f"= {value!r}: {error}")

    def refuse(self, key: str, what: str) -> NoReturn:
        raise UsageError(f"campaign {self.file}: {self.where}{key} {what}", remedy="docs/fleet.md has an example")

    def table(self, key: str) -> _Table:
        return _Table(self.file, f"{key}.", self.take(key, _mapping, _NOTHING))

    def tables(self, key: str) -> list[_Table]:
        found = self.take(key, lambda value: _listed(value, _mapping))
        return [_Table(self.file, f"{key} {number}: ", one) for number, one in enumerate(found, 1)]

    def end(self) -> None:
        for key in self._left:
            self.refuse(key, "is unknown here")


def _stack(table: _Table, nodes: tuple[str, ...]) -> PlannedStack:
    backend = table.take("backend", _text)
    lock = table.take("lock", lambda value: table.file.parent / _text(value), None)
    try:
        digest = None if lock is None else hashlib.sha256(lock.read_bytes()).hexdigest()
    except OSError as error:
        table.refuse("lock", f"{lock} cannot be read: {error.strerror}")
    stack = PlannedStack(
        name=table.take("name", _name, None) or table.read("name", backend, _name),
        backend=backend,
        device=table.take("device", _text, _DEFAULT.device),
        options=table.take("options", _pairs, ()),
        lock=lock,
        lock_hash=digest,
        custom_ops=table.take("custom_ops", _texts, ()),
        algorithms=table.take("algorithms", _whether, False),  # noqa: FBT003  (what it is where it is not said)
        algorithm=table.take("algorithm", _texts, ()),
        nodes=_some(table, nodes),
    )
    table.end()
    return stack


def _suite(table: _Table, nodes: tuple[str, ...]) -> PlannedSuite:
    path = table.take("path", lambda value: table.file.parent / _text(value))
    suite = PlannedSuite(
        name=table.take("name", _name, None) or table.read("name", path.name, _name),
        suite=Suite.open(path),
        models=table.take("models", _texts, ()),
        batch=table.take("batch", _spelt, None),
        dims=tuple(f"{name}={size}" for name, size in table.take("dims", _pairs, ())),
        branches=table.take("branch", lambda value: _courses(value, branch=True), ()),
        trips=table.take("trip", lambda value: _courses(value, branch=False), ()),
        nodes=_some(table, nodes),
    )
    table.end()
    return suite


def _some(table: _Table, nodes: tuple[str, ...]) -> tuple[str, ...] | None:
    some = table.take("nodes", _names, None)
    for name in some or ():
        if name not in nodes:
            table.refuse("nodes", f"names {name!r}, which is no node of the campaign")
    return some


def _conditions(table: _Table) -> dict[str, Any]:
    found = {
        "threads": table.take("threads", lambda value: _listed(value, _count(0)), (_DEFAULT.threads,)),
        "caches": table.take("cache", lambda value: _listed(value, _cache), (_DEFAULT.cache,)),
        "dtypes": table.take("dtype", lambda value: _listed(value, _text), (_DEFAULT.dtype,)),
    }
    table.end()
    return found


def _pace(table: _Table) -> Pace:
    budget_s = table.take("budget_s", _positive, None)
    visits = table.take("visits", _count(1), None)
    if budget_s is not None and visits is not None:
        table.refuse("visits", "stands beside budget_s, which takes as many visits as fit")
    pace = Pace(
        visits=_DEFAULT.visits if visits is None and budget_s is None else visits,
        budget_s=budget_s,
        processes=table.take("processes", _count(1), _DEFAULT.processes),
        sessions=table.take("sessions", _count(1), _DEFAULT.sessions),
    )
    table.end()
    return pace


def _distinct(path: Path, campaign: Campaign) -> None:
    for kind, named in (("stack", campaign.stacks), ("suite", campaign.suites)):
        names = [one.name for one in named]
        if len(set(names)) < len(names):
            raise UsageError(f"campaign {path}: two of {kind} have one name", remedy="give each a name of its own")
    found: dict[str, Cell] = {}
    for cell in campaign.cells():
        other = found.setdefault(cell.key, cell)
        if other is not cell:
            raise UsageError(
                f"campaign {path}: {cell.suite} on {cell.stack} and {other.suite} on {other.stack} are the same",
                remedy="leave one of them out",
            )
    if not found:
        raise UsageError(f"campaign {path} asks for nothing", remedy="give it a node that has a stack and a suite")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("wants a text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    return _listed(value, _text)


def _whether(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("wants true or false")
    return value


def _courses(value: object, *, branch: bool) -> tuple[str, ...]:
    """Courses of control flow that the command line can read, too."""
    found = _listed(value, _spelt)
    try:
        read_choices(*((found, ()) if branch else ((), found)))
    except UsageError as error:
        raise ValueError(error.message) from error
    return found


def _name(value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(f"wants {NAME_RULE}")
    return value


def _names(value: object) -> tuple[str, ...]:
    return _listed(value, _name)


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("wants a table")
    return value


def _pairs(value: object) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, _spelt(one)) for name, one in _mapping(value).items()))


def _listed(value: object, read: Callable[[Any], T]) -> tuple[T, ...]:
    """A list, or one of its kind."""
    found = tuple(read(one) for one in (value if isinstance(value, list) else [value]))
    if not found:
        raise ValueError("wants at least one")
    if any(one in found[:place] for place, one in enumerate(found)):
        raise ValueError("names something twice")
    return found


def _count(least: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if type(value) is not int or value < least:
            raise ValueError(f"wants a whole number of at least {least}")
        return value

    return read


def _positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError("wants a positive number of seconds")
    return float(value)


def _cache(value: object) -> str:
    if value not in CACHE_MODES:
        raise ValueError(f"wants {', '.join(CACHE_MODES)}")
    return str(value)


def _spelt(value: object) -> str:
    """As the command line spells it."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("wants a text or a number")
    return str(value)
