"""The uncertainty of a composed latency, from what its bricks were in each process and round.

Rounds are interleaved over all bricks of a run, so that in one round all of them saw the same machine: fast together or
slow together. Bricks of one run are therefore added moment by moment, (process, round) by (process, round), and the sum
is judged as a single brick is (``statistics.doubt``): what drives all bricks together stays, what each has of its own
cancels. Intervals of single bricks that are added up would keep both, and independent draws per brick would lose both.
Runs do not share their moments; their doubts are independent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..db.values import Measurement
from ..generator.statistics import Moment, doubt

__all__ = ["Moments", "Uncertainty"]

Moments = tuple[Moment, ...]
"""Process and round of each block of a measurement, in order."""

_ROUNDS = 3
"""Rounds of a process where the blocks themselves are not stored: those of the default protocol."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Bricks of one run that were sampled in the same moments.

    Attributes:
        run: The run.
        moments: When its blocks were taken.
        medians: (bricks, blocks), nanoseconds.
    """

    run: str
    moments: Moments
    medians: NDArray[np.float64]


class Uncertainty:
    """Intervals of sums of measurements.

    Args:
        measurements: One per key.
        moments: Process and round of each block, by the measurement's id; one that is absent is taken to have run
            through the first moments of the default protocol.
    """

    def __init__(self, measurements: Sequence[Measurement], moments: Mapping[str, Moments]) -> None:
        self._latest = {measurement.key: measurement for measurement in measurements}
        members: defaultdict[tuple[str, Moments], list[Measurement]] = defaultdict(list)
        for measurement in measurements:
            blocks = len(measurement.block_medians_ns)
            taken = moments.get(measurement.id, ())
            if len(taken) != blocks:
                taken = tuple(divmod(block, _ROUNDS) for block in range(blocks))
            if blocks > 1:
                members[measurement.run, taken].append(measurement)
        self._groups: list[_Group] = []
        self._place: dict[str, tuple[int, int]] = {}
        for index, ((run, taken), found) in enumerate(members.items()):
            self._groups.append(_Group(run, taken, np.array([one.block_medians_ns for one in found])))
            self._place |= {one.key: (index, row) for row, one in enumerate(found)}

    def interval_ns(self, occurrences: Mapping[str, int]) -> tuple[float, float]:
        """95 % interval of a sum of bricks; low is never negative.

        A measurement of a single block tells nothing of moments: its own interval then stands, independent of others.

        Args:
            occurrences: Key to how often the sum holds it.
        """
        centre = 0.0
        halves: list[float] = []
        counts: dict[int, NDArray[np.float64]] = {}
        for key, count in occurrences.items():
            measurement = self._latest[key]
            centre += count * measurement.median_ns
            if key in self._place:
                index, row = self._place[key]
                if index not in counts:
                    counts[index] = np.zeros(len(self._groups[index].medians))
                counts[index][row] = count
            else:
                low, high = measurement.ci95_ns
                halves.append(count * (high - low) / 2)
        parts: defaultdict[str, list[dict[Moment, float]]] = defaultdict(list)
        for index, weights in counts.items():
            group = self._groups[index]
            parts[group.run].append(dict(zip(group.moments, (weights @ group.medians).tolist(), strict=True)))
        halves += [doubt(of_run).half_width for of_run in parts.values()]
        half = math.hypot(*halves)
        return max(0.0, centre - half), centre + half
