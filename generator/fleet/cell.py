"""A cell of a campaign: what one job measures, on one node, with one stack, of one suite, under one condition."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from ...db.values import content_key
from ...errors import StoreError

__all__ = ["NAME", "NAME_RULE", "Cell"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NAME_RULE = "up to 63 letters, digits, dots, dashes and underscores, a letter or digit first"
"""Of campaigns, nodes, stacks and suites: what a run takes as a name."""

_NAMES = ("stack", "suite")
"""What the campaign's file calls things: another name is no other cell."""

_LISTS = ("models", "dims", "options", "branches", "trips", "custom_ops", "algorithm")

_LATER = ("branches", "trips", "custom_ops", "algorithms", "algorithm")
"""What cells of earlier versions were without: not in a record where it says nothing, so that they stay the same."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What one job measures.

    Attributes:
        campaign: What it is part of, stored with its run.
        node: Where; the name of the queue, too.
        stack: What the campaign calls the stack.
        suite: What the campaign calls the suite.
        suite_hash: ``Suite.hash``, by which the node fetches it.
        lock_hash: SHA-256 of the lock file of its environment; None: the environment that the node's worker runs in.
        backend: Name of the runtime.
        device: ``cpu`` or ``cuda``.
        options: Of the runtime, sorted.
        threads: Of the runtime; 0: all physical cores of the node.
        cache: Cache state.
        dtype: Precision.
        models: Whole models to be visited with the bricks: names of the zoo, or paths on the node.
        batch: Their batch sizes, as ``--batch`` takes them; None: as they are.
        dims: Their dynamic dimensions, as ``--dim`` takes them.
        visits: How often each brick and model is visited; None where there is a budget.
        budget_s: Total time instead, in seconds.
        processes: Worker processes that share the visits.
        sessions: Sessions of each.
        branches: Of the models' control flow, as ``--branch`` takes them.
        trips: Likewise, as ``--trip`` takes them.
        custom_ops: Libraries of custom operators: paths on the node.
        algorithms: Whether each brick is also measured with each algorithm that the runtime offers.
        algorithm: Those with which it is measured as well, by name.
    """

    campaign: str
    node: str
    stack: str
    suite: str
    suite_hash: str
    lock_hash: str | None
    backend: str
    device: str
    options: tuple[tuple[str, str], ...]
    threads: int
    cache: str
    dtype: str
    models: tuple[str, ...]
    batch: str | None
    dims: tuple[str, ...]
    visits: int | None
    budget_s: float | None
    processes: int
    sessions: int
    branches: tuple[str, ...] = ()
    trips: tuple[str, ...] = ()
    custom_ops: tuple[str, ...] = ()
    algorithms: bool = False
    algorithm: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Content key: the same cell has the same on every machine, whatever the file calls its parts."""
        return content_key({name: value for name, value in self.record().items() if name not in _NAMES})

    @property
    def label(self) -> str:
        """For messages."""
        threads = f"{self.threads or 'all'} thread{'' if self.threads == 1 else 's'}"
        return f"{self.campaign}: {self.suite} on {self.stack}, {threads}, {self.cache}, {self.dtype}"

    def record(self) -> dict[str, Any]:
        """As JSON."""
        said = {name: value for name, value in asdict(self).items() if value or name not in _LATER}
        return {name: list(map(_plain, value)) if name in _LISTS else value for name, value in said.items()}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """From JSON.

        Raises:
            StoreError: It is not one of this version.
        """
        names = {field.name for field in fields(cls)}
        if other := (set(record) ^ names).difference(_LATER):
            raise StoreError(
                f"a job of the fleet is not of this version: {', '.join(sorted(other))}",
                remedy="bring planner and nodes to the same version of dlbricks, and plan again",
            )
        pairs = tuple((str(name), str(value)) for name, value in record["options"])
        lists = {name: tuple(record[name]) for name in _LISTS if name in record}
        return cls(**{**record, **lists, "options": pairs})

    def command(self, suite: Path, database: Path) -> list[str]:
        """Arguments of ``dlbricks`` that measure it, and go on where that was interrupted.

        Args:
            suite: Folder of the suite.
            database: An SQLite file of this cell alone: what is there was measured for it.
        """
        pace = ("--budget", f"{self.budget_s}s") if self.budget_s is not None else ("--visits", str(self.visits))
        words = [
            "run", str(suite), "--db", str(database), "--node", self.node, "--campaign", self.campaign,
            "--backend", self.backend, "--device", self.device, "--threads", str(self.threads),
            "--cache", self.cache, "--dtype", self.dtype, *pace,
            "--processes", str(self.processes), "--sessions", str(self.sessions), "--quiet", "--json",
        ]  # fmt: skip
        words += [word for name, value in self.options for word in ("--option", f"{name}={value}")]
        words += ["--batch", self.batch] if self.batch is not None else []
        words += ["--algorithms"] if self.algorithms else []
        repeated = {
            "--dim": self.dims, "--branch": self.branches, "--trip": self.trips, "--custom-ops": self.custom_ops,
            "--algorithm": self.algorithm, "--with": self.models,
        }  # fmt: skip
        return words + [word for option, values in repeated.items() for value in values for word in (option, value)]


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
