"""What would measure what is missing, as values: whoever knows the runtimes that are installed makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ..models import ModelSource


class TaskKind(StrEnum):
    """What a task calls."""

    BRICKS = "bricks"
    """``generate`` and ``run``: cut the model, and measure its bricks."""
    MODEL = "model"
    """``measure``: the whole model."""
    DATA = "data"
    """``measure`` with ``data``: what the model's own values cost."""
    CEILINGS = "ceilings"
    """``measure_ceilings``: what the machine does at most."""
    PROOFS = "proofs"
    """``analyze`` with ``prove``: try what would make the model faster, and write what did."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be called, of which model and with which options; None leaves an option as it comes.

    Attributes:
        kind: What is called.
        source: The model; None for a machine's ceilings.
        database: Where the results go; None where it is not named.
        granularity: Most layers in a brick.
        overlap: Sequences begin at every layer.
        connected: Sequences may be connected windows.
        graph: Which graph is cut: ``source``, ``runtime`` or ``fused``.
        backend: The runtime.
        device: Its device.
        options: Its options, but for those that it has by default.
        threads: Threads.
        cache: Cache state.
        dtype: Precision; None for that of the model itself.
        algorithms: By which bricks are measured as well.
        again: What is measured although it is stored: ``failed`` or ``all``.
        kernels: Whether kernels are recorded as well.
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
    """Tasks for what an estimate misses; None where nothing does it."""

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
            graph: Another graph than the one that was decomposed.
            cache: Another cache state than the one that was asked for.
            algorithms: By which bricks are measured as well.
            again: What to measure although it is stored.
        """

    def truth(self, source: ModelSource) -> Task | None:
        """Measure the whole model."""

    def examine(self, source: ModelSource) -> Task | None:
        """Measure what the model's own values cost."""

    def ceilings(self) -> Task:
        """Measure what the machine does at most."""
