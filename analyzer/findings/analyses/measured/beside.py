"""Two stored measurements beside each other, with what the machine may have done in between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .....constructor.uncertainty.interval import NORMAL
from .....db import Measurement, Store
from ....comparison.timeline import Timeline, visited_in_turn

__all__ = ["Beside", "Ratio"]


@dataclass(frozen=True, slots=True)
class Ratio:
    """One latency over another.

    Attributes:
        value: The other's latency over that of the base.
        own: Half of the 95 % interval of its logarithm, by what both measurements leave in doubt.
        apart: The same by what the machine may have done in between, which other ratios of these runs have in common.
        in_turn: Whether both were visited in turn.
    """

    value: float
    own: float
    apart: float
    in_turn: bool

    @property
    def half(self) -> float:
        """Half of the 95 % interval of its logarithm."""
        return math.hypot(self.own, self.apart)

    def between(self, factor: float = 1.0) -> tuple[float, float]:
        """The interval of so many times the ratio."""
        return factor * self.value * math.exp(-self.half), factor * self.value * math.exp(self.half)


class Beside:
    """Compares stored measurements of one kind, as docs/comparing.md does.

    Args:
        store: The database.
        measurements: All that are compared.
    """

    def __init__(self, store: Store, measurements: Sequence[Measurement]) -> None:
        self._timeline = Timeline(store)
        self._blocks = store.blocks_of([one.id for one in measurements])

    def ratio(self, base: Measurement, other: Measurement) -> Ratio:
        """The latency of another measurement over that of a base; both above 0."""
        ours, theirs = (self._blocks.get(one.id, ()) for one in (base, other))
        in_turn = visited_in_turn(base, other, ours, theirs)
        stand = self._timeline.between(base, other, (ours, theirs), in_turn=in_turn)
        own = math.hypot(*(one.half_ns / one.latency_ns for one in (base, other)))
        return Ratio(stand.other_ns / stand.base_ns, own, NORMAL * stand.apart, in_turn)
