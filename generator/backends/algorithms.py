"""Several ways in which a backend can run the same network in the same precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..network.network import Network
from .base import Backend, Settings

__all__ = ["PADDED", "Algorithm", "AlgorithmBackend", "PlanBackend", "PlanTime"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way of several in which a backend can run the same network in the same precision.

    Attributes:
        name: Unique within the backend; measurements bear it as their variant.
        options: Options of the backend that make the difference, with their values. All of them take effect when a
            network is prepared, not when the process is set up, so that one worker runs all algorithms in turn.
        help: What is different, in one line.
        channels: ``Settings.channels``. No option: it would be part of every stack, and part it from what is stored.
    """

    name: str
    options: Mapping[str, str]
    help: str = ""
    channels: int = 1


PADDED = tuple(
    Algorithm(
        f"padded-{multiple}", {}, f"channels padded with zeros to a multiple of {multiple}, weights too", multiple
    )
    for multiple in (16, 8)
)
"""Those that any backend can offer: what is different is done to the network (``padding``)."""


@runtime_checkable
class AlgorithmBackend(Backend, Protocol):
    """A backend that offers a choice of algorithms."""

    def algorithms(self, device: str, options: Mapping[str, str], dtype: str) -> tuple[Algorithm, ...]:
        """Those that differ from what the effective options choose already, sorted by name."""


@dataclass(frozen=True, slots=True)
class PlanTime:
    """One way of several in which a library can execute one brick, and what came of it.

    Attributes:
        name: As the library names it; else made of its engine and knobs.
        engine: Number of the engine or algorithm, for this brick and version of the library.
        knobs: Name and value of each, sorted.
        modes: Heuristics that offer it, or the part of the library that has it.
        rank: Place in the list of the library's first heuristic, from 0; None where that does not offer it.
        place: Value of the option ``plan`` that executes it; None where it cannot be executed.
        notes: Numerical notes.
        behavior: Behaviour notes.
        workspace_bytes: Memory that it needs beside its tensors; None where it is not known.
        ns: Time of one execution, on the device's clock: median of a few, caches hot; None where it failed.
        error: Largest difference to the outputs of the first plan that ran, as a share of their largest value.
        reason: Why it was not timed; empty where it was.
    """

    name: str
    engine: int
    knobs: tuple[tuple[str, int], ...] = ()
    modes: tuple[str, ...] = ()
    rank: int | None = None
    place: int | None = None
    notes: tuple[str, ...] = ()
    behavior: tuple[str, ...] = ()
    workspace_bytes: int | None = None
    ns: float | None = None
    error: float | None = None
    reason: str = ""


@runtime_checkable
class PlanBackend(Backend, Protocol):
    """A backend whose library has a choice of its own for each brick; ``AlgorithmBackend`` has one for all."""

    def plans(self, network: Network, settings: Settings, most: int) -> tuple[PlanTime, ...]:
        """Build and time what the library offers for a brick, in the library's order; after ``setup``.

        Args:
            network: Of one brick, one copy.
            settings: As of ``prepare``; the option ``plan`` has no effect.
            most: Plans that are tried at most.

        Returns:
            One row per plan. A plan that cannot be built, runs out of memory or fails is a row with its reason.

        Raises as ``prepare``, where not one plan is offered.
        """
