"""A cell of a campaign: one job on one node, with one stack, one suite and one condition."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from ...db.values import Conditions, Runtime, content_key
from ...errors import StoreError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NAME_RULE = "up to 63 letters, digits, dots, dashes and underscores, a letter or digit first"
"""Names of campaigns, nodes, stacks and suites, as a run accepts them."""

_NAMES = ("stack", "suite")
"""Names from the campaign's file; they are not part of a cell's identity."""

_KEYS = frozenset(
    {
        *("campaign", "node", "stack", "suite", "suite_hash", "lock_hash", "backend", "device", "options", "threads"),
        *("cache", "dtype", "models", "batch", "dims", "visits", "budget_s", "processes", "sessions"),
    }
)
"""Keys of every record."""

_REMEDY = "bring planner and nodes to the same version of dlbricks, and plan again"

_LATER = frozenset({"branches", "trips", "values", "custom_ops", "algorithms", "algorithm"})
"""Keys that earlier versions did not have: a record has them only with a value, so that cells stay the same."""


@dataclass(frozen=True, slots=True)
class PlannedStack:
    """A runtime in a campaign.

    Attributes:
        name: Its name in the campaign's file.
        runtime: Backend, device and options.
        lock_hash: SHA-256 of the lock file of its environment; None: the environment that the node's worker runs in.
        custom_ops: Libraries of custom operators: paths on the node.
        algorithms: True if each brick is also measured with each algorithm that the runtime offers.
        algorithm: Names of the algorithms with which each brick is also measured.
    """

    name: str
    runtime: Runtime
    lock_hash: str | None = None
    custom_ops: tuple[str, ...] = ()
    algorithms: bool = False
    algorithm: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedSuite:
    """A suite in a campaign, with the whole models that are measured with it.

    Attributes:
        name: Its name in the campaign's file.
        hash: ``Suite.hash``, by which a node fetches it.
        models: Whole models to be visited with the bricks: names of the zoo, or paths on the node.
        batch: Their batch sizes, as ``--batch`` takes them; None: as they are.
        dims: Their dynamic dimensions, as ``--dim`` takes them.
        branches: Branches of the models' control flow, as ``--branch`` takes them.
        trips: Trips of the models' loops, as ``--trip`` takes them.
        values: Numbers of the models' small inputs, as ``--value`` takes them.
    """

    name: str
    hash: str
    models: tuple[str, ...] = ()
    batch: str | None = None
    dims: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    trips: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedPace:
    """Length of a measurement.

    Attributes:
        visits: Visits of each brick and model; None with a budget.
        budget_s: Total time instead, in seconds.
        processes: Worker processes that share the visits.
        sessions: Sessions of each process.
    """

    visits: int | None
    budget_s: float | None
    processes: int
    sessions: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The content of one job.

    Attributes:
        campaign: The campaign, stored with its run.
        node: The node that measures it; also the name of the queue.
        stack: The runtime.
        suite: Bricks and models.
        conditions: Threads (0: all physical cores of the node), cache state and precision.
        pace: Length of the measurement.
    """

    campaign: str
    node: str
    stack: PlannedStack
    suite: PlannedSuite
    conditions: Conditions
    pace: PlannedPace

    @property
    def key(self) -> str:
        """Content key: equal for equal cells on every machine; names in the file do not matter."""
        return content_key({name: value for name, value in self.record().items() if name not in _NAMES})

    @property
    def label(self) -> str:
        """For messages."""
        threads, cache, dtype = astuple(self.conditions)
        counted = f"{threads or 'all'} thread{'' if threads == 1 else 's'}"
        return f"{self.campaign}: {self.suite.name} on {self.stack.name}, {counted}, {cache}, {dtype}"

    def record(self) -> dict[str, Any]:
        """Return the cell as flat JSON."""
        stack, suite = asdict(self.stack), asdict(self.suite)
        record = {
            "campaign": self.campaign,
            "node": self.node,
            "stack": stack.pop("name"),
            "suite": suite.pop("name"),
            "suite_hash": suite.pop("hash"),
            **stack.pop("runtime"),
            **stack,
            **suite,
            **asdict(self.conditions),
            **asdict(self.pace),
        }
        return {name: value for name, value in record.items() if value or name not in _LATER}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the cell of a JSON record.

        Raises:
            StoreError: It is not one of this version.
        """
        if other := (set(record) ^ _KEYS) - _LATER:
            raise StoreError(
                f"a job of the fleet is not of this version: {', '.join(sorted(other))}",
                remedy=_REMEDY,
            )
        nested = {
            "campaign": record["campaign"],
            "node": record["node"],
            "stack": {**record, "name": record["stack"], "runtime": record},
            "suite": {**record, "name": record["suite"], "hash": record["suite_hash"]},
            "conditions": record,
            "pace": record,
        }
        try:
            return msgspec.convert(nested, cls)
        except msgspec.ValidationError as error:
            raise StoreError(f"a job of the fleet is not of this version: {error}", remedy=_REMEDY) from error

    def command(self, folder: Path, database: Path) -> list[str]:
        """Return the arguments of ``dlbricks`` that measure the cell, or resume an interrupted measurement.

        Args:
            folder: Folder of the suite.
            database: An SQLite file for this cell alone.
        """
        stack, suite, conditions, pace = self.stack, self.suite, self.conditions, self.pace
        length = ("--budget", f"{pace.budget_s}s") if pace.budget_s is not None else ("--visits", str(pace.visits))
        words = [
            "run", str(folder), "--db", str(database), "--node", self.node, "--campaign", self.campaign,
            "--backend", stack.runtime.backend, "--device", stack.runtime.device, "--threads", str(conditions.threads),
            "--cache", conditions.cache, "--dtype", conditions.dtype, *length,
            "--processes", str(pace.processes), "--sessions", str(pace.sessions), "--quiet", "--json",
        ]  # fmt: skip
        words += [word for name, value in stack.runtime.options for word in ("--option", f"{name}={value}")]
        words += ["--batch", suite.batch] if suite.batch is not None else []
        words += ["--algorithms"] if stack.algorithms else []
        repeated = {
            "--dim": suite.dims, "--branch": suite.branches, "--trip": suite.trips, "--value": suite.values,
            "--custom-ops": stack.custom_ops, "--algorithm": stack.algorithm, "--with": suite.models,
        }  # fmt: skip
        return words + [word for option, values in repeated.items() for value in values for word in (option, value)]
