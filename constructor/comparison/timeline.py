"""What a machine did between two measurements, as far as the reference networks of a database tell.

Every worker times the reference network in each round, with its own runtime, options and threads: its latency is a
matter of these as well as of the machine. Two measurements are therefore

* of one run: taken in the same rounds. Nothing came between them.
* of one *place* (system, stack, threads, precision, kind of cache state): their references are compared. Up to
  ``drift.LIMIT`` the change widens the interval of a difference, beyond it there is no verdict.
* of different places on one system: their references say nothing about each other. But where some place was measured
  before both and again after both (as in A B A), its references tell how far the machine changed meanwhile.
* otherwise apart: how far references of one place scatter over the runs of this system, together with what is
  expected of such machines, adds to the variance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from ...bricks.graph.footprint import is_level
from ...db import Measurement, Run, Store, Subject
from ...generator.network.reference import REFERENCE
from ..selection import MODEL
from ..stored import built_in_key
from ..uncertainty.calibration import RUN_SD, RUN_WEIGHT
from ..uncertainty.drift import LIMIT

__all__ = ["Drift", "Timeline"]

_AGAIN = "measure both again, one after the other"

_Place = tuple[str, str, int, str, str]
"""System, stack, threads, precision, kind of cache state."""


@dataclass(frozen=True, slots=True)
class Drift:
    """What the machine may have done between two measurements, relative to a latency.

    Attributes:
        bias: Change that references saw.
        sd: Standard deviation of what no reference tells.
        reason: Why both cannot be compared; None where they can.
    """

    bias: float = 0.0
    sd: float = 0.0
    reason: str | None = None


class Timeline:
    """The reference latencies of a database, by place and time.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._runs: Mapping[str, Run] = {run.id: run for run in store.runs()}
        seen: defaultdict[_Place, list[tuple[str, float]]] = defaultdict(list)
        for one in store.measurements(
            subject=Subject.REFERENCE, keys=[built_in_key(REFERENCE)], variant=None, latest=False
        ):
            seen[_place(one)].append((self._runs[one.run].started, one.median_ns))
        self._seen = {place: sorted(references) for place, references in seen.items()}

    def started(self, measurement: Measurement) -> str:
        """When the run of a measurement began."""
        return self._runs[measurement.run].started

    def between(self, base: Measurement, other: Measurement) -> Drift:
        """What the machine did between two measurements."""
        if base.run == other.run:
            return Drift()
        if _place(base) == _place(other):
            if base.reference_ns is None or other.reference_ns is None:
                return Drift(reason=f"no reference network was timed beside one of both; {_AGAIN}")
            return _changed(base.reference_ns, other.reference_ns, "between both")
        around = self._around(base, other) if base.system == other.system else None
        if around is not None:
            return _changed(*around, "while both were measured")
        # Either side was in a state of its own; on two machines each was.
        variances = (self._variance(one.system) for one in (base, other))
        return Drift(sd=math.sqrt(math.fsum(variances)))

    def _around(self, base: Measurement, other: Measurement) -> tuple[float, float] | None:
        """References of one place before and after both, those nearest in time; None where there are none."""
        first, last = sorted((self.started(base), self.started(other)))
        found = []
        for place, references in self._seen.items():
            before = [reference for reference in references if reference[0] <= first]
            after = [reference for reference in references if reference[0] >= last]
            if place[0] == base.system and before and after:
                found.append((before[-1], after[0]))
        if not found:
            return None
        # Of those that all begin before both, the latest; of these, the one that ends first.
        begin = max(before[0] for before, _ in found)
        (_, before_ns), (_, after_ns) = min(
            (pair for pair in found if pair[0][0] == begin), key=lambda pair: pair[1][0]
        )
        return before_ns, after_ns

    def _variance(self, system: str) -> float:
        """Relative variance of a system's state between runs: what was seen, weighed against what is expected."""
        squares, degrees = RUN_WEIGHT * RUN_SD**2, float(RUN_WEIGHT)
        for place, references in self._seen.items():
            if place[0] == system and len(references) > 1:
                logarithms = [math.log(reference) for _, reference in references]
                centre = fmean(logarithms)
                squares += math.fsum((one - centre) ** 2 for one in logarithms)
                degrees += len(logarithms) - 1
        return squares / degrees


def _place(measurement: Measurement) -> _Place:
    conditions = measurement.conditions
    kind = MODEL if is_level(conditions.cache) else conditions.cache
    return measurement.system, measurement.stack, conditions.threads, conditions.dtype, kind


def _changed(before_ns: float, after_ns: float, when: str) -> Drift:
    change = abs(math.log(after_ns / before_ns))
    if math.expm1(change) > LIMIT:
        return Drift(
            bias=change,
            reason=f"the machine changed by {math.expm1(change):.1%} {when} (reference network: "
            f"{before_ns / 1e3:.1f} us and {after_ns / 1e3:.1f} us); {_AGAIN}",
        )
    return Drift(bias=change)
