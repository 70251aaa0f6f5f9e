"""Several ways in which a backend can run the same network in the same precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .base import Backend

__all__ = ["PADDED", "Algorithm", "AlgorithmBackend"]


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
