"""From a model to the graph that is cut: its own, or the one that a runtime executes for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from ...bricks.cutting.wiring import sequences
from ...bricks.graph.graph import ModelGraph, build_graph
from ...bricks.inference.shapes import ShapeOracle
from ...bricks.sequence import LayerSequence
from ...bricks.suite.manifest import GRAPHS
from ...errors import UsageError
from ...models import ModelSource
from ..worker.standby import Standby, start_worker

if TYPE_CHECKING:
    from ...bricks.graph.executed import ExecutedModel

__all__ = ["Cut", "CutFields", "CutModel", "Cutter", "cut_from"]


@dataclass(frozen=True, slots=True)
class Cut:
    """How models are cut into sequences.

    Attributes:
        granularity: G, the most layers in a sequence; of a fused cut, the most units.
        overlap: Sequences begin at every layer (stride 1), which gives compositions a choice.
        connected: Weakly connected sequences count, not only paths.
        graph: What is cut: ``source``, the model as it is; ``runtime``, the graph that a runtime executes for it, whose
            bricks belong to that runtime and this machine; ``fused``, the model as it is, but along the fusions of a
            runtime.
        backend: The runtime that executed graphs and fusions are learned from.
        device: Its device.
        options: Its options.
        threads: Its threads; 0: all physical cores.
    """

    granularity: int
    overlap: bool = False
    connected: bool = False
    graph: str = "source"
    backend: str = "onnxruntime"
    device: str = "cpu"
    options: tuple[tuple[str, str], ...] = ()
    threads: int = 1

    def check(self) -> None:
        """Raise ``UsageError`` for a value that makes no sense."""
        if self.granularity < 1:
            raise UsageError(f"granularity cannot be {self.granularity}", remedy="use 1 or more")
        if self.graph not in GRAPHS:
            raise UsageError(f"there is no graph {self.graph!r}", remedy=f"use {', '.join(GRAPHS)}")

    @property
    def in_parts(self) -> bool:
        """Whether what is cut runs in parts: not the executed graph of a backend that only reports what it fuses."""
        if self.graph != "runtime":
            return True
        from ..backends.base import FusingBackend, GraphBackend  # the source's graph needs no backend
        from ..backends.registry import get

        backend = get(self.backend)
        return isinstance(backend, GraphBackend) or not isinstance(backend, FusingBackend)

    def bound_to(self) -> str | None:
        """What bricks of this cut belong to: the stack and instruction set of executed graphs."""
        if self.graph != "runtime":
            return None
        from ..backends.registry import get, require_available  # the source's graph needs no backend
        from .executed import instruction_set, runtime_salt

        backend = get(self.backend)
        require_available(backend, self.backend, self.device)
        return runtime_salt(backend.stack(self.device, dict(self.options)), instruction_set())


class CutFields(TypedDict, total=False):
    """The fields of a ``Cut`` as keywords of ``generate``; options are given by name."""

    granularity: int
    overlap: bool
    connected: bool
    graph: str
    backend: str
    device: str
    options: Mapping[str, str] | None
    threads: int


def cut_from(settings: Cut | None, fields: CutFields) -> Cut:
    """What the caller asked for: a cut, or fields of one.

    Raises:
        UsageError: Both are given, or neither says a granularity; or a value makes no sense.
    """
    if settings is not None and fields:
        raise UsageError(f"settings are given, and {', '.join(fields)} beside them", remedy="give all of it in one")
    if settings is None:
        if "granularity" not in fields:
            raise UsageError(
                "no granularity is given", remedy="give granularity, the most layers in a brick, or settings"
            )
        options = tuple(sorted((fields.get("options") or {}).items()))
        values: dict[str, Any] = {**fields, "options": options}
        settings = Cut(**values)
    settings.check()
    return settings


@dataclass(frozen=True, slots=True, eq=False)
class CutModel:
    """One model, cut.

    Attributes:
        source: The model's own graph.
        graph: The graph that was cut.
        sequences: Its sequences.
        executed: What the runtime executes; None where it was not asked.
    """

    source: ModelGraph
    graph: ModelGraph
    sequences: Sequence[LayerSequence]
    executed: ExecutedModel | None = None


class Cutter(Standby):
    """Cuts models; keeps the worker that reports executed graphs from one model to the next.

    Args:
        cut: How to cut.
        oracle: Finds the shapes that inference does not.
    """

    def __init__(self, cut: Cut, *, oracle: ShapeOracle | None = None) -> None:
        super().__init__(
            partial(start_worker, cut.backend, device=cut.device, options=dict(cut.options), threads=cut.threads)
        )
        self._cut = cut
        self._oracle = oracle

    @property
    def graph(self) -> str:
        """What it cuts, as ``Cut.graph``."""
        return self._cut.graph

    def __call__(self, source: ModelSource, executed: ExecutedModel | None = None) -> CutModel:
        """Read a model and cut it.

        Args:
            source: The model.
            executed: What the runtime executes for it, where that was reported for another cut.

        Raises:
            DlbricksError: As ``ModelSource.skeleton``, ``build_graph`` and ``executed_model``.
        """
        cut = self._cut
        if cut.graph == "source":
            graph = build_graph(source.skeleton(), oracle=self._oracle)
            found = sequences(graph, cut.granularity, overlap=cut.overlap, connected=cut.connected)
            return CutModel(graph, graph, tuple(found))
        executed = executed or self._execute(source)
        if cut.graph == "fused":
            from ...bricks.cutting.fused import fused_sequences

            found = fused_sequences(executed, cut.granularity, overlap=cut.overlap, connected=cut.connected)
            return CutModel(executed.source, executed.source, tuple(found), executed)
        found = sequences(executed.graph, cut.granularity, overlap=cut.overlap, connected=cut.connected)
        return CutModel(executed.source, executed.graph, tuple(found), executed)

    def _execute(self, source: ModelSource) -> ExecutedModel:
        from .executed import executed_model  # the source's graph needs no worker

        if not self._cut.in_parts:
            raise UsageError(
                f"backend {self._cut.backend} reports what it executes, but nothing of it runs by itself",
                remedy="use --graph fused or source",
            )
        return executed_model(source, worker=self.worker, oracle=self._oracle)
