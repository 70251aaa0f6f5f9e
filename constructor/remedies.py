"""Tasks that would measure missing bricks, models or ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ..models import ModelSource


class TaskKind(StrEnum):
    """The public function of a task."""

    BRICKS = "bricks"
    """``generate`` and ``run``: decompose the model and measure its bricks."""
    MODEL = "model"
    """``measure``: the whole model."""
    CEILINGS = "ceilings"
    """``measure_ceilings``: the machine's ceilings."""
    PROOFS = "proofs"
    """``analyze`` with ``prove``: try rewrites of the model and write the proven ones."""


@dataclass(frozen=True, slots=True)
class Task:
    """A call of a public function with its options; None means the default.

    Attributes:
        kind: The function.
        source: The model; None for ceilings.
        database: Database of the results, if named.
        granularity: Most layers in a brick.
        overlap: Sequences begin at every layer.
        connected: Sequences may be connected windows.
        graph: Graph to decompose: ``source``, ``runtime`` or ``fused``.
        backend: The runtime.
        device: Its device.
        options: Its options other than the defaults.
        threads: Threads.
        cache: Cache state.
        dtype: Precision; None for the model's own.
        algorithms: Algorithms to measure as well.
        again: Stored results to measure again: ``failed`` or ``all``.
        kernels: True to record kernels as well.
    """

    kind: TaskKind
    source: ModelSource | None = None
    database: str | None = None
    granularity: int = 1
    overlap: bool = False
    connected: bool = False
    graph: str = "source"
    backend: str | None = None
    device: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    threads: int | None = None
    cache: str | None = None
    dtype: str | None = None
    algorithms: tuple[str, ...] = ()
    again: str | None = None
    kernels: bool = False


class Remedies(Protocol):
    """Source of tasks for missing measurements; a method returns None if no task would help."""

    def measure(
        self,
        source: ModelSource,
        *,
        graph: str | None = None,
        cache: str | None = None,
        algorithms: Sequence[str] = (),
        again: str | None = None,
    ) -> Task | None:
        """Decompose the model and measure its bricks.

        Args:
            source: The model.
            graph: Graph to decompose, if not the estimate's.
            cache: Cache state, if not the requested one.
            algorithms: Algorithms to measure as well.
            again: Stored results to measure again.
        """

    def truth(self, source: ModelSource) -> Task | None:
        """Measure the whole model."""

    def proofs(self, source: ModelSource) -> Task:
        """Try every remedy of the model."""

    def ceilings(self) -> Task:
        """Measure the machine's ceilings."""
