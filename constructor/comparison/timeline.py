"""What a machine may have done between two measurements.

What one run measured was visited in turn. Measurements of different runs are compared by what they are on a quiet
machine, which repeats to a few percent where means do not (docs/results/README.md); where one of them was never seen
quiet, by how much it was disturbed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...db import Measurement, Store
from ...db.values import Run
from ..uncertainty.calibration import RUN_SD

__all__ = ["Standing", "Timeline"]


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

    def between(self, base: Measurement, other: Measurement) -> Standing:
        """Two measurements of one kind."""
        if base.run == other.run:
            return Standing(base.latency_ns, other.latency_ns, 0.0)
        if base.undisturbed_ns and other.undisturbed_ns and base.quiet and other.quiet:
            return Standing(base.undisturbed_ns, other.undisturbed_ns, math.hypot(RUN_SD, RUN_SD))
        return Standing(base.latency_ns, other.latency_ns, self.apart(base, other))

    def apart(self, base: Measurement, other: Measurement) -> float:
        """What the means of two runs may differ by; nothing within one run."""
        if base.run == other.run:
            return 0.0
        return math.hypot(RUN_SD, RUN_SD, _disturbance(base) / 2, _disturbance(other) / 2)


def _disturbance(measurement: Measurement) -> float:
    """How much slower visits were than quiet ones."""
    if not measurement.undisturbed_ns:
        return 0.0
    return max(0.0, measurement.latency_ns / measurement.undisturbed_ns - 1)
