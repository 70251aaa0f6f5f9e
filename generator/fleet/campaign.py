"""A campaign's file: nodes, stacks, suites and conditions in TOML, and the resulting cells."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import tomllib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from ...bricks.suite.suite import Suite
from ...db.values import Conditions, Runtime
from ...errors import UsageError
from ...models.control_flow import read_choices
from ..measurement.settings import CACHE_MODES, MeasurementSettings
from .cell import NAME, NAME_RULE, Cell, PlannedPace, PlannedStack, PlannedSuite

_DEFAULT = MeasurementSettings()
_REMEDY = "docs/how-to/fleet.md has an example"

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Campaign:
    """The content of a campaign's file.

    Attributes:
        name: Stored with every run.
        cells: One for every allowed combination of node, suite, stack and conditions, in this order.
        suites: Open suites by hash.
        locks: Lock files by hash.
    """

    name: str
    cells: tuple[Cell, ...]
    suites: Mapping[str, Suite]
    locks: Mapping[str, Path]


_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Name = _Text
"""A name that ``_CampaignReader`` checks. A ``pattern`` of msgspec 0.22 frees its regular expression too often, and the
process ends with a segmentation fault."""
_Spelt = str | int | float  # not true and false
_Number = int | float
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Cache = Literal[*CACHE_MODES]  # type: ignore[valid-type]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file: its fields and their defaults."""


class _StackTable(_Table, frozen=True):
    backend: _Text
    name: _Name | None = None
    device: _Text = _DEFAULT.runtime.device
    options: dict[str, _Spelt] = {}
    lock: _Text | None = None
    custom_ops: _Text | list[_Text] = []
    algorithms: bool = False
    algorithm: _Text | list[_Text] = []
    nodes: _Name | list[_Name] | None = None


class _SuiteTable(_Table, frozen=True):
    path: _Text
    name: _Name | None = None
    models: _Text | list[_Text] = []
    batch: _Spelt | None = None
    dims: dict[str, _Spelt] = {}
    branch: _Spelt | list[_Spelt] = []
    trip: _Spelt | list[_Spelt] = []
    values: dict[str, _Spelt | list[_Number]] = {}
    nodes: _Name | list[_Name] | None = None


class _ConditionsTable(_Table, frozen=True):
    threads: Annotated[int, msgspec.Meta(ge=0)] | list[Annotated[int, msgspec.Meta(ge=0)]] = _DEFAULT.conditions.threads
    cache: _Cache | list[_Cache] = _DEFAULT.conditions.cache
    dtype: _Text | list[_Text] = _DEFAULT.conditions.dtype


class _PaceTable(_Table, frozen=True):
    visits: _Count | None = None
    budget_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    processes: _Count = _DEFAULT.processes
    sessions: _Count = _DEFAULT.sessions


class _CampaignTable(_Table, frozen=True):
    campaign: _Name
    nodes: _Name | list[_Name]
    stack: Annotated[list[_StackTable], msgspec.Meta(min_length=1)]
    suite: Annotated[list[_SuiteTable], msgspec.Meta(min_length=1)]
    conditions: _ConditionsTable = _ConditionsTable()
    pace: _PaceTable = _PaceTable()


_PLACE = re.compile(r"^(?P<what>.*) - at `\$\.?(?P<place>.*)`$")


def load_campaign(file: str | os.PathLike[str]) -> Campaign:
    """Read a campaign's file, and open its suites and lock files; paths are relative to it.

    Raises:
        UsageError: It cannot be read, is not TOML, or has an invalid value; the message names the place.
        SuiteError: A suite cannot be read.
    """
    path = Path(file)
    try:
        table = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _CampaignTable)
    except OSError as error:
        raise UsageError(f"campaign {path} cannot be read: {error.strerror}") from error
    except msgspec.ValidationError as error:
        match = _PLACE.match(str(error))
        what = f"{match['place']}: {match['what']}" if match else str(error)
        raise UsageError(f"campaign {path}: {what}", remedy=_REMEDY) from error
    except ValueError as error:
        raise UsageError(f"campaign {path} is no TOML: {error}") from error
    reader = _CampaignReader(path, ())
    nodes = reader.several("nodes", table.nodes)
    for location, name in (("campaign", table.campaign), *(("nodes", node) for node in nodes)):
        reader.require_name(location, name)
    return _CampaignReader(path, nodes).campaign(table)


Nodes = tuple[str, ...] | None
"""Names of some of a campaign's nodes; None: all."""


@dataclass(frozen=True, slots=True)
class _CampaignReader:
    """Checks that need more than a single value."""

    file: Path
    nodes: tuple[str, ...]

    def wrong(self, location: str, what: str) -> UsageError:
        """Return the error for a location in the file."""
        return UsageError(f"campaign {self.file}: {location} {what}", remedy=_REMEDY)

    def several(self, location: str, value: T | list[T], *, empty: bool = False) -> tuple[T, ...]:
        """Return a list, or a single value as a list; refuse duplicates."""
        values = tuple(value) if isinstance(value, list) else (value,)
        if not values and not empty:
            raise self.wrong(location, "= []: wants at least one")
        if len(set(values)) < len(values):
            raise self.wrong(location, "names something twice")
        return values

    def named(self, location: str, name: str | None, otherwise: str) -> str:
        """Return a name, or the default if it is not given."""
        chosen_name = otherwise if name is None else name
        self.require_name(f"{location}.name", chosen_name)
        return chosen_name

    def require_name(self, location: str, name: str) -> None:
        """Refuse a name that a run would not accept."""
        if not NAME.fullmatch(name):
            raise self.wrong(location, f"= {name!r}: wants {NAME_RULE}")

    def some(self, location: str, nodes: str | list[str] | None) -> tuple[str, ...] | None:
        """Return some of the campaign's nodes; None for all."""
        if nodes is None:
            return None
        names = self.several(f"{location}.nodes", nodes)
        for name in names:
            if name not in self.nodes:
                raise self.wrong(f"{location}.nodes", f"names {name!r}, which is no node of the campaign")
        return names

    def courses(self, location: str, value: _Spelt | list[_Spelt], *, branch: bool) -> tuple[str, ...]:
        """Return courses of control flow that the command line can read, too."""
        courses = tuple(map(str, self.several(location, value, empty=True)))
        try:
            read_choices(*((courses, ()) if branch else ((), courses)))
        except UsageError as error:
            raise self.wrong(location, f"= {value!r}: {error.message}") from error
        return courses

    def values(self, location: str, table: _SuiteTable) -> tuple[str, ...]:
        """Return the numbers of small inputs as the command line takes them; refuse them without a model."""
        if table.values and not table.models:
            raise self.wrong(f"{location}.values", "are inputs of whole models, and models are not given")
        spelt = {
            name: ",".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in table.values.items()
        }
        if empty := next((name for name, text in spelt.items() if not (name and text)), None):
            raise self.wrong(f"{location}.values", f"of {empty!r} are missing")
        return tuple(sorted(f"{name}={text}" for name, text in spelt.items()))

    def campaign(self, table: _CampaignTable) -> Campaign:
        """Return the campaign of a file."""
        pace, where = table.pace, table.conditions
        if pace.budget_s is not None and pace.visits is not None:
            raise self.wrong("pace.visits", "stands beside budget_s, which takes as many visits as fit")
        locks: dict[str, Path] = {}
        suites: dict[str, Suite] = {}
        stack_nodes = [self.stack(f"stack[{number}]", part, locks) for number, part in enumerate(table.stack)]
        suite_nodes = [self.suite(f"suite[{number}]", part, suites) for number, part in enumerate(table.suite)]
        threads = self.several("conditions.threads", where.threads)
        caches = self.several("conditions.cache", where.cache)
        dtypes = self.several("conditions.dtype", where.dtype)
        conditions = [Conditions(*values) for values in itertools.product(threads, caches, dtypes)]
        visits = _DEFAULT.visits if pace.visits is None and pace.budget_s is None else pace.visits
        length = PlannedPace(visits, pace.budget_s, pace.processes, pace.sessions)
        self.check_names("stack", [stack.name for stack, _ in stack_nodes])
        self.check_names("suite", [suite.name for suite, _ in suite_nodes])
        cells = tuple(
            Cell(table.campaign, node, stack, suite, under, length)
            for node, (suite, suite_filter), (stack, stack_filter), under in itertools.product(
                self.nodes, suite_nodes, stack_nodes, conditions
            )
            if all(nodes is None or node in nodes for nodes in (suite_filter, stack_filter))
        )
        self.check_cells(cells)
        return Campaign(table.campaign, cells, suites, locks)

    def stack(self, location: str, table: _StackTable, locks: dict[str, Path]) -> tuple[PlannedStack, Nodes]:
        """Return a stack and the nodes that measure it, and note its lock file."""
        digest = None
        if table.lock is not None:
            lock = self.file.parent / table.lock
            try:
                digest = hashlib.sha256(lock.read_bytes()).hexdigest()
            except OSError as error:
                raise self.wrong(f"{location}.lock", f"{lock} cannot be read: {error.strerror}") from error
            locks[digest] = lock
        stack = PlannedStack(
            self.named(location, table.name, table.backend),
            Runtime.of(table.backend, table.device, {name: str(value) for name, value in table.options.items()}),
            digest,
            self.several(f"{location}.custom_ops", table.custom_ops, empty=True),
            table.algorithms,
            self.several(f"{location}.algorithm", table.algorithm, empty=True),
        )
        return stack, self.some(location, table.nodes)

    def suite(self, location: str, table: _SuiteTable, suites: dict[str, Suite]) -> tuple[PlannedSuite, Nodes]:
        """Return a suite and the nodes that measure it, and note the open suite."""
        path = self.file.parent / table.path
        name, opened = self.named(location, table.name, path.name), Suite.open(path)
        suites[opened.hash] = opened
        suite = PlannedSuite(
            name,
            opened.hash,
            self.several(f"{location}.models", table.models, empty=True),
            None if table.batch is None else str(table.batch),
            tuple(sorted(f"{dim}={size}" for dim, size in table.dims.items())),
            self.courses(f"{location}.branch", table.branch, branch=True),
            self.courses(f"{location}.trip", table.trip, branch=False),
            self.values(location, table),
        )
        return suite, self.some(location, table.nodes)

    def check_names(self, kind: str, names: Sequence[str]) -> None:
        """Refuse two stacks or suites of one name."""
        if len(set(names)) < len(names):
            raise UsageError(f"campaign {self.file}: two of {kind} have one name", remedy="give each a name of its own")

    def check_cells(self, cells: Sequence[Cell]) -> None:
        """Refuse equal cells, and a campaign without any."""
        cells_by_key: dict[str, Cell] = {}
        for cell in cells:
            other = cells_by_key.setdefault(cell.key, cell)
            if other is not cell:
                raise UsageError(
                    f"campaign {self.file}: {cell.suite.name} on {cell.stack.name} and {other.suite.name} on "
                    f"{other.stack.name} are the same",
                    remedy="leave one of them out",
                )
        if not cells_by_key:
            raise UsageError(
                f"campaign {self.file} asks for nothing", remedy="give it a node that has a stack and a suite"
            )
