"""What a machine may have done between two measurements.

What one run measured was visited in turn. Measurements of different runs are compared by what they are on a quiet
machine, which repeats to a few percent where means do not (docs/results/README.md); where one of them was never seen
quiet, by how much it was disturbed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...constructor.uncertainty.calibration import RUN_SD
from ...db import Measurement, Store
from ...db.values import Block, Run

__all__ = ["Standing", "Timeline", "visited_in_turn"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Two measurements as they are compared.

    Attributes:
        base_ns: The first.
        other_ns: The second.
        apart: Relative standard deviation of what the machine may have done between both.
    """

    base_ns: float
    other_ns: float
    apart: float


class Timeline:
    """The runs of a database in time.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._runs: Mapping[str, Run] = {run.id: run for run in store.runs()}

    def started(self, measurement: Measurement) -> str:
        """When the run of a measurement began."""
        return self._runs[measurement.run].started

    def between(self, base: Measurement, other: Measurement, *, in_turn: bool) -> Standing:
        """Two measurements of one kind."""
        if in_turn:
            return Standing(base.latency_ns, other.latency_ns, 0.0)
        if base.undisturbed_ns and other.undisturbed_ns and base.quiet and other.quiet:
            return Standing(base.undisturbed_ns, other.undisturbed_ns, math.hypot(RUN_SD, RUN_SD))
        return Standing(base.latency_ns, other.latency_ns, self.apart(base, other, in_turn=False))

    def apart(self, base: Measurement, other: Measurement, *, in_turn: bool) -> float:
        """What two means may differ by because of the machine; nothing where they were visited in turn."""
        if in_turn:
            return 0.0
        return math.hypot(RUN_SD, RUN_SD, _disturbance(base) / 2, _disturbance(other) / 2)


def visited_in_turn(base: Measurement, other: Measurement, ours: Sequence[Block], theirs: Sequence[Block]) -> bool:
    """Whether one run visited both in the same minutes.

    What it did one after the other met a machine that may have changed in between. Measurements that do not know when
    they were visited are taken to have been visited in turn by their run.

    Args:
        base: One measurement.
        other: Another one.
        ours: Raw samples of the first.
        theirs: Of the other one.
    """
    if base.run != other.run:
        return False
    if not any(one.visits for one in ours) or not any(one.visits for one in theirs):
        return True
    known = {(one.process, one.round): one for one in ours}
    return any(place in known and known[place].beside(one) for one in theirs for place in [(one.process, one.round)])


def _disturbance(measurement: Measurement) -> float:
    """How much slower visits were than quiet ones."""
    if not measurement.undisturbed_ns:
        return 0.0
    return max(0.0, measurement.latency_ns / measurement.undisturbed_ns - 1)
