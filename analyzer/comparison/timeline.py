"""What a machine may have done between two measurements.

What one run visited in turn met the same machine. All else is compared by what it is on a quiet machine, which repeats
better than means do (docs/results/README.md), with what runs differ by in doubt: that holds for two runs, and for what
one run did one after the other, whose machine drifts as well. Where one of them was never seen quiet, and probes say
that the machine was another at its best moments, means are compared, and by how much they were disturbed is in doubt
too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...constructor.uncertainty.calibration import scatters
from ...constructor.uncertainty.interval import Uncertainty
from ...db import Measurement, Store
from ...db.samples.statistics import Baseline, alike, low_probes
from ...db.values import Block, Run, Stack
from .difference import welch

__all__ = ["Compared", "Timeline", "compared_apart", "visited_in_turn"]


@dataclass(frozen=True, slots=True)
class Compared:
    """Two measurements as they are compared.

    Attributes:
        base_ns: The first.
        other_ns: The second.
        apart: Relative standard deviation of what the machine may have done between both.
        undisturbed: Whether the latencies are those on a quiet machine, and no means.
    """

    base_ns: float
    other_ns: float
    apart: float
    undisturbed: bool = False


class Timeline:
    """The runs of a database in time.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._runs: Mapping[str, Run] = {run.id: run for run in store.runs()}
        self._stacks = store.stacks()

    def started(self, measurement: Measurement) -> str:
        """When the run of a measurement began."""
        return self._runs[measurement.run].started

    def between(
        self, base: Measurement, other: Measurement, blocks: tuple[Sequence[Block], Sequence[Block]], *, in_turn: bool
    ) -> Compared:
        """Two measurements of one kind, with the raw samples of each."""
        if in_turn:
            return Compared(base.latency_ns, other.latency_ns, 0.0)
        same = bool(base.quiet and other.quiet) or alike(*(low_probes(side) for side in blocks))
        return compared_apart(base, other, self._stacks, same=same)

    def apart(self, base: Measurement, other: Measurement, *, in_turn: bool) -> float:
        """What two means may differ by because of the machine; nothing where they were visited in turn."""
        if in_turn:
            return 0.0
        return _apart(base, other, self._stacks)

    def undisturbed_error(
        self, base: Measurement, other: Measurement, uncertainty: Uncertainty
    ) -> tuple[float, float] | None:
        """Standard error of the difference of the logarithms of two undisturbed latencies, and its degrees of freedom.

        None where one of them is not known.
        """
        first, second = (
            uncertainty.undisturbed_error(one.id, Baseline.of_run(self._runs[one.run])) for one in (base, other)
        )
        return None if first is None or second is None else welch(first, second)

    def known(self, *measurements: Measurement) -> bool:
        """Whether what runs differ by was calibrated for the stacks and threads of some measurements."""
        return all(scatters(self._stacks, one).known for one in measurements)


def compared_apart(base: Measurement, other: Measurement, stacks: Mapping[str, Stack], *, same: bool) -> Compared:
    """Two measurements that were not visited in turn, of one database or of two.

    Args:
        base: The first.
        other: The second.
        stacks: Those of both, by key.
        same: Whether the machine was the same at its best moments, by probes.
    """
    if base.undisturbed_ns and other.undisturbed_ns and (same or (base.quiet and other.quiet)):
        return Compared(base.undisturbed_ns, other.undisturbed_ns, _of_runs(base, other, stacks), undisturbed=True)
    return Compared(base.latency_ns, other.latency_ns, _apart(base, other, stacks))


def visited_in_turn(base: Measurement, other: Measurement, ours: Sequence[Block], theirs: Sequence[Block]) -> bool:
    """Whether one run visited both in the same minutes, in all sessions of either.

    What it did one after the other met a machine that may have changed in between, and so may have what does not know
    when it was visited: neither counts as visited in turn.

    Args:
        base: One measurement.
        other: Another one.
        ours: Raw samples of the first.
        theirs: Of the other one.
    """
    if base.run != other.run or not ours:
        return False
    one, two = ({(block.process, block.round): block for block in side} for side in (ours, theirs))
    return one.keys() == two.keys() and all(one[place].beside(two[place]) for place in one)


def _of_runs(base: Measurement, other: Measurement, stacks: Mapping[str, Stack]) -> float:
    return math.hypot(*(scatters(stacks, one).run_sd for one in (base, other)))


def _apart(base: Measurement, other: Measurement, stacks: Mapping[str, Stack]) -> float:
    return math.hypot(_of_runs(base, other, stacks), _disturbance(base) / 2, _disturbance(other) / 2)


def _disturbance(measurement: Measurement) -> float:
    """How much slower visits were than quiet ones."""
    if not measurement.undisturbed_ns:
        return 0.0
    return max(0.0, measurement.latency_ns / measurement.undisturbed_ns - 1)
