"""The uncertainty of a composed latency, from what its bricks were in each process and round.

Rounds are interleaved over all bricks of a run, so that in one round all of them saw the same machine: fast together or
slow together. Measurements of one run are therefore added moment by moment, (process, round) by (process, round), with
their coefficients: what drives all together stays in a sum and cancels in a difference, what each has of its own
averages out. Intervals of single bricks that are added up would do neither. Runs do not share their moments; their
doubts are independent.

What processes differ by is the difficulty: there are two of them as a rule, one degree of freedom, and Student's
quantile of one is 12.7. No statistic of two numbers does better. But a run knows more than its sum in two processes:

* what each brick has of its own in a process is drawn anew for every brick: its variance, relative to the brick, is
  pooled over all bricks of the run, robustly (median of the absolute deviations from what they share), and has so many
  degrees of freedom that it counts as known;
* what the rounds of a process differ by is seen in every process;
* what all bricks share in a process is drawn once per process. How far that goes on this kind of machine is known from
  other runs (``calibration.PROCESS_SD``).

These three are what one expects of the variance of the sum between processes; what is seen of it is weighed against the
expectation by their degrees of freedom, and Student's quantile is that of both together: the moderated variance of
Smyth (2004, "Linear models and empirical Bayes methods for assessing differential expression"), which has the same
problem of few samples and many subjects. Of independent runs the variances are added, their degrees of freedom after
Welch and Satterthwaite.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...db.values import Measurement
from ...generator.measurement.sampling.statistics import Moment
from .calibration import PROCESS_SD, PROCESS_WEIGHT

__all__ = ["NORMAL", "Moments", "Uncertainty", "Weights", "combined"]

Moments = tuple[Moment, ...]
"""Process and round of each block of a measurement, in order."""

Weights = Mapping[str, float]
"""A linear combination of measurements: coefficient by the measurement's id."""

NORMAL = 1.959964
"""97.5 % quantile of the normal distribution."""

_ROUNDS = 3
"""Rounds of a process where the blocks themselves are not stored: those of the default protocol."""

_FEWEST = 5
"""Bricks of a run that are enough to pool over."""

_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

_MANY = 1e9
"""Degrees of freedom of what counts as known."""


def combined(*terms: tuple[float, Weights]) -> dict[str, float]:
    """The linear combination of linear combinations, each with its coefficient."""
    total: defaultdict[str, float] = defaultdict(float)
    for coefficient, weights in terms:
        for id_, weight in weights.items():
            total[id_] += coefficient * weight
    return dict(total)


@dataclass(frozen=True, slots=True)
class _Brick:
    """A measurement of several blocks.

    Attributes:
        mean: Of its block medians, nanoseconds.
        processes: Their mean by process.
        residuals: What each block differs by from its process.
        free: Degrees of freedom of the residuals.
    """

    mean: float
    processes: Mapping[int, float]
    residuals: Mapping[Moment, float]
    free: int


@dataclass(frozen=True, slots=True)
class _Variance:
    """A variance and how well it is known."""

    value: float
    degrees: float


class Uncertainty:
    """Values and intervals of linear combinations of measurements.

    Args:
        measurements: Those that a combination may hold.
        moments: Process and round of each block, by the measurement's id; one that is absent is taken to have run
            through the first moments of the default protocol.
        differences: Ids of those that are differences of latencies, near 0 and not in proportion to them: nothing is
            pooled over these, and their own intervals stand.
    """

    def __init__(
        self,
        measurements: Iterable[Measurement],
        moments: Mapping[str, Moments],
        *,
        differences: Collection[str] = (),
    ) -> None:
        self._known = {measurement.id: measurement for measurement in measurements}
        self._bricks: dict[str, _Brick] = {}
        members: defaultdict[str, list[_Brick]] = defaultdict(list)
        for id_, measurement in self._known.items():
            medians = measurement.block_medians_ns
            if len(medians) > 1 and id_ not in differences:
                brick = self._bricks[id_] = _described(medians, moments.get(id_, ()))
                members[measurement.run].append(brick)
        self._own_variance = {run: _own_variance(bricks) for run, bricks in members.items()}

    def value_ns(self, weights: Weights) -> float:
        """The combination of the medians; rounded once."""
        return math.fsum(weight * self._known[id_].median_ns for id_, weight in weights.items())

    def half_ns(self, weights: Weights) -> float:
        """Half of the 95 % interval of the combination.

        A measurement of a single block tells nothing of moments: its own interval then stands, independent of others,
        as that of a difference does.
        """
        error, degrees = self.error_ns(weights)
        return student(degrees) * error

    def error_ns(self, weights: Weights) -> tuple[float, float]:
        """Standard error of the combination, and the degrees of freedom that it is known with."""
        parts: list[_Variance] = []
        runs: defaultdict[str, list[tuple[float, _Brick]]] = defaultdict(list)
        for id_, weight in weights.items():
            measurement = self._known[id_]
            if id_ in self._bricks:
                runs[measurement.run].append((weight, self._bricks[id_]))
            else:
                low, high = measurement.ci95_ns
                parts.append(_Variance((weight * (high - low) / 2 / NORMAL) ** 2, _MANY))
        parts += [_variance(members, self._own_variance[run]) for run, members in runs.items()]
        total = math.fsum(part.value for part in parts)
        if total <= 0:
            return 0.0, _MANY
        degrees = total**2 / math.fsum(part.value**2 / part.degrees for part in parts)
        return math.sqrt(total), degrees

    def interval_ns(self, weights: Weights) -> tuple[float, float]:
        """95 % interval of a latency; low is never negative."""
        centre, half = self.value_ns(weights), self.half_ns(weights)
        return max(0.0, centre - half), centre + half


def student(degrees: float) -> float:
    """97.5 % quantile of Student's t for at least 3 degrees of freedom, within 1 % (Abramowitz and Stegun 26.7.5)."""
    z = NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    few = 1 / degrees
    return z + first * few + second * few**2 + third * few**3


def _described(medians: Sequence[float], taken: Moments) -> _Brick:
    if len(taken) != len(medians):
        taken = tuple(divmod(block, _ROUNDS) for block in range(len(medians)))
    seen: defaultdict[int, list[float]] = defaultdict(list)
    for (process, _), latency in zip(taken, medians, strict=True):
        seen[process].append(latency)
    processes = {process: math.fsum(latencies) / len(latencies) for process, latencies in seen.items()}
    return _Brick(
        mean=math.fsum(medians) / len(medians),
        processes=processes,
        residuals={moment: latency - processes[moment[0]] for moment, latency in zip(taken, medians, strict=True)},
        free=len(medians) - len(processes),
    )


def _own_variance(bricks: Sequence[_Brick]) -> float:
    """Relative variance between processes of what each brick has of its own, beyond what its rounds explain."""
    pooled = [brick for brick in bricks if len(brick.processes) > 1 and brick.mean > 0]
    if len(pooled) < _FEWEST:
        return 0.0  # too few to tell own from shared: what is seen of the sum has to do
    shared = {
        process: float(
            np.median([brick.processes[process] / brick.mean for brick in pooled if process in brick.processes])
        )
        for process in {process for brick in pooled for process in brick.processes}
    }
    count = len(shared)
    own = [
        value / brick.mean - shared[process] for brick in pooled for process, value in brick.processes.items()
    ]  # fmt: skip
    observed = (_MAD * float(np.median(np.abs(own)))) ** 2 * count / (count - 1)
    rounds = [_within(brick) * count / brick.mean**2 for brick in pooled if brick.free]
    return max(0.0, observed - (float(np.median(rounds)) if rounds else 0.0))


def _within(brick: _Brick) -> float:
    """Variance of a brick's mean, by what the rounds of a process differ by."""
    squares = math.fsum(residual**2 for residual in brick.residuals.values())
    return squares / (brick.free * len(brick.residuals)) if brick.free else 0.0


def _variance(members: Sequence[tuple[float, _Brick]], own_variance: float) -> _Variance:
    """Variance of a combination of measurements of one run."""
    numbers = sorted({process for _, brick in members for process in brick.processes})
    count = len(numbers)
    # A process that a brick was not sampled in tells nothing of it.
    sums = [
        math.fsum(weight * brick.processes.get(process, brick.mean) for weight, brick in members) for process in numbers
    ]
    residuals: defaultdict[Moment, float] = defaultdict(float)
    for weight, brick in members:
        scale = weight / math.sqrt(brick.free * len(brick.residuals)) if brick.free else 0.0
        for moment, residual in brick.residuals.items():
            residuals[moment] += scale * residual
    total = math.fsum(weight * brick.mean for weight, brick in members)
    squares = math.fsum((weight * brick.mean) ** 2 for weight, brick in members)
    rounds = math.fsum(residual**2 for residual in residuals.values())
    spread = _spread(members, numbers)
    expected = ((PROCESS_SD * total) ** 2 + own_variance * squares) * spread + rounds
    seen = float(np.var(sums, ddof=1)) * spread if count > 1 else 0.0
    degrees = PROCESS_WEIGHT + count - 1
    return _Variance((PROCESS_WEIGHT * expected + (count - 1) * seen) / degrees, degrees)


def _spread(members: Sequence[tuple[float, _Brick]], processes: Sequence[int]) -> float:
    """Variance of the mean over the variance of a process: 1 / processes where each has as many blocks, else more."""
    shares = dict.fromkeys(processes, 0.0)
    whole = math.fsum(abs(weight) * brick.mean for weight, brick in members)
    for weight, brick in members:
        share = abs(weight) * brick.mean / whole if whole else 1 / len(members)
        for process, _ in brick.residuals:
            shares[process] += share / len(brick.residuals)
    return math.fsum(share**2 for share in shares.values())
