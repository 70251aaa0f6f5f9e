"""How models are cut into sequences: width, kind of graph, and the runtime of executed graphs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from ...bricks.layer import Cutting
from ...bricks.suite.suite import GRAPHS
from ...db.values import DEFAULT_RUNTIME, Runtime, RuntimeFields, Stack, System, runtime_from
from ...errors import UsageError
from ..machine.system import probe_system


class CutFields(RuntimeFields, total=False):
    """A ``Cut`` as keywords of ``generate``."""

    granularity: int
    overlap: bool
    connected: bool
    graph: str
    threads: int


@dataclass(frozen=True, slots=True)
class Cut(Cutting):
    """How models are cut into sequences, with the runtime of executed graphs.

    Attributes:
        runtime: The runtime of executed graphs and fusions.
        threads: Its threads; 0: all physical cores.
    """

    runtime: Runtime = DEFAULT_RUNTIME
    threads: int = 1

    def check(self) -> None:
        """Raise ``UsageError`` for an invalid value."""
        if self.granularity < 1:
            raise UsageError(f"granularity cannot be {self.granularity}", remedy="use 1 or more")
        if self.graph not in GRAPHS:
            raise UsageError(f"there is no graph {self.graph!r}", remedy=f"use {', '.join(GRAPHS)}")

    def of(self, graph: str, stack: Stack | None = None, threads: int = 1) -> Cut:
        """Return a cut of the same width, for another graph.

        Args:
            graph: The kind of graph that is cut.
            stack: The stack of the runtime that executes it; None for the default runtime.
            threads: Its threads.

        Raises:
            UsageError: The graph is unknown, or the granularity is less than 1.
        """
        cut = Cut(self.granularity, self.overlap, self.connected, graph)
        if stack is not None:
            cut = replace(cut, runtime=stack.runtime, threads=threads)
        cut.check()
        return cut

    def salt(self) -> str:
        """Return what binds executed graphs of this cut to their stack and instruction set.

        Raises:
            BackendUnavailable: The runtime is unknown or not installed.
            UsageError: An option is wrong.
        """
        from ..backends.registry import get  # the source's graph needs no backend

        return runtime_salt(get(self.runtime.backend).stack(self.runtime.device, dict(self.runtime.options)))

    def bound_to(self) -> str | None:
        """Return the owner of this cut's bricks: stack and instruction set for executed graphs, else None."""
        if self.graph != "runtime":
            return None
        from ..backends.registry import get, require_available  # the source's graph needs no backend

        require_available(get(self.runtime.backend), self.runtime.backend, self.runtime.device)
        return self.salt()


def cut_from(settings: Cut | None, fields: CutFields) -> Cut:
    """Return the requested cut, from a ``Cut`` or from its fields.

    Raises:
        UsageError: Both are given, or the granularity is missing, or a value is invalid.
    """
    if settings is not None and fields:
        raise UsageError(f"settings are given, and {', '.join(fields)} beside them", remedy="give all of it in one")
    if settings is None:
        if "granularity" not in fields:
            raise UsageError(
                "no granularity is given", remedy="give granularity, the most layers in a brick, or settings"
            )
        runtime = RuntimeFields.__annotations__
        other_fields: dict[str, Any] = {name: value for name, value in fields.items() if name not in runtime}
        settings = Cut(**other_fields, runtime=runtime_from(fields))
    settings.check()
    return settings


_DIGITS = 12


def instruction_set(system: System | None = None) -> str:
    """Return the instruction sets by which runtimes choose kernels and layouts, as one short word.

    Args:
        system: The machine; default this one.

    Returns:
        The architecture, and a digest of the instruction sets: equal on machines with equal sets.
    """
    machine = system or probe_system()
    return f"{machine.architecture}-{hashlib.sha256(' '.join(machine.isa).encode()).hexdigest()[:_DIGITS]}"


def runtime_salt(stack: Stack, isa: str | None = None) -> str:
    """Return the salt that binds the keys of an executed graph to its stack and instruction set; default this one."""
    return f"runtime:{stack.key}:{isa or instruction_set()}"
