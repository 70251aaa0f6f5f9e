"""How models are cut into sequences: width, kind of graph, and the runtime of executed graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...bricks.suite.suite import GRAPHS
from ...db.values import DEFAULT_RUNTIME, Runtime, RuntimeFields, Stack, runtime_from
from ...errors import UsageError


class CutFields(RuntimeFields, total=False):
    """A ``Cut`` as keywords of ``generate``."""

    granularity: int
    overlap: bool
    connected: bool
    graph: str
    threads: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How models are cut into sequences.

    Attributes:
        granularity: G, the maximum number of layers in a sequence; for a fused cut, of units.
        overlap: Sequences begin at every layer (stride 1), which gives compositions a choice.
        connected: Accept weakly connected sequences as well as paths.
        graph: The graph that is cut. ``source``: the model unchanged. ``runtime``: the graph that a runtime executes
            for it; the bricks belong to that runtime and this machine. ``fused``: the model, cut along the fusions of
            a runtime.
        runtime: The runtime of executed graphs and fusions.
        threads: Its threads; 0: all physical cores.
    """

    granularity: int
    overlap: bool = False
    connected: bool = False
    graph: str = "source"
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
        made = Cut(self.granularity, self.overlap, self.connected, graph)
        if stack is not None:
            made = replace(made, runtime=stack.runtime, threads=threads)
        made.check()
        return made

    def bound_to(self) -> str | None:
        """Return the owner of this cut's bricks: stack and instruction set for executed graphs, else None."""
        if self.graph != "runtime":
            return None
        from ..backends.registry import get, require_available  # the source's graph needs no backend
        from .executed import instruction_set, runtime_salt

        backend = get(self.runtime.backend)
        require_available(backend, self.runtime.backend, self.runtime.device)
        return runtime_salt(backend.stack(self.runtime.device, dict(self.runtime.options)), instruction_set())


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
        own: dict[str, Any] = {name: value for name, value in fields.items() if name not in runtime}
        settings = Cut(**own, runtime=runtime_from(fields))
    settings.check()
    return settings
