"""Robust statistics of a measurement's blocks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np
from numpy.typing import NDArray

from ....db.values import Block, Verdict

__all__ = [
    "MIN_SAMPLES",
    "Doubt",
    "Moment",
    "Summary",
    "block_values",
    "doubt",
    "half_width",
    "median_interval",
    "summarise",
    "trimmed_mean",
]

MIN_SAMPLES = 10
"""Fewer samples are no measurement (PEERS: nvbench, DLBricks)."""

_TRIM = 0.2
_STABLE = 0.02
_NOISY = 0.10

Moment = tuple[int, int]
"""Process and round: what blocks of one run that were taken beside each other share."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """How far a latency may be off.

    Attributes:
        half_width: Half of the 95 % interval.
        disagreement: Range over the processes, where more of it is due to the processes than to their rounds; else 0.
    """

    half_width: float
    disagreement: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of one execution of the subject, in nanoseconds."""

    median_ns: float
    mean_ns: float
    trimmed_mean_ns: float
    min_ns: float
    p90_ns: float
    p99_ns: float
    ci95_ns: tuple[float, float]
    samples: int
    block_medians_ns: tuple[float, ...]
    disagreement_ns: float = 0.0

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval, relative to the median."""
        low, high = self.ci95_ns
        return (high - low) / 2 / self.median_ns if self.median_ns else math.inf

    @property
    def verdict(self) -> Verdict:
        """How far the numbers can be trusted."""
        if self.samples < MIN_SAMPLES:
            return Verdict.TIMED_OUT
        # With many processes the interval is narrow although they disagree: each by itself then misleads.
        worst = max(self.half_width, self.disagreement_ns / self.median_ns if self.median_ns else math.inf)
        if worst <= _STABLE:
            return Verdict.STABLE
        return Verdict.NOISY if worst <= _NOISY else Verdict.UNSTABLE


def block_values(blocks: Sequence[Block], unroll: int) -> list[NDArray[np.float64]]:
    """Per block, the time of one execution of each sample: ``elapsed_ns / (loops * unroll)``."""
    values = []
    for block in blocks:
        raw = np.asarray(block.samples, dtype=np.float64).reshape(-1, 2)
        values.append(raw[:, 0] / (raw[:, 1] * unroll))
    return values


def summarise(blocks: Sequence[Block], unroll: int) -> Summary:
    """Statistics over all samples of all blocks.

    Args:
        blocks: At least one with at least one sample; order (process, round).
        unroll: Copies of the subject per loop.

    Raises:
        ValueError: There is no sample.
    """
    values, moments = _taken(blocks, unroll)
    if not values:
        raise ValueError("a measurement without samples has no statistics")
    medians = _medians(values, moments)
    pooled = np.sort(np.concatenate(values))
    p90, p99 = np.quantile(pooled, (0.9, 0.99))
    return Summary(
        median_ns=_middle(pooled),
        mean_ns=float(pooled.mean()),
        trimmed_mean_ns=trimmed_mean(pooled),
        min_ns=float(pooled[0]),
        p90_ns=float(p90),
        p99_ns=float(p99),
        ci95_ns=median_interval(values, moments),
        samples=int(pooled.size),
        block_medians_ns=tuple(medians.values()),
        disagreement_ns=doubt([medians]).disagreement,
    )


def half_width(blocks: Sequence[Block], unroll: int) -> float:
    """Half of the 95 % interval of the median, relative to the median; what stopping asks after every block."""
    values, moments = _taken(blocks, unroll)
    low, high = median_interval(values, moments)
    return (high - low) / 2 / _middle(np.sort(np.concatenate(values)))


def _taken(blocks: Sequence[Block], unroll: int) -> tuple[list[NDArray[np.float64]], list[Moment]]:
    """Times and moments of the blocks that have samples."""
    filled = [block for block in blocks if block.samples]
    return block_values(filled, unroll), [(block.process, block.round) for block in filled]


def _middle(ordered: NDArray[np.float64]) -> float:
    """Median of sorted values; ``np.median`` costs more than all the rest for the few that a block has."""
    return float(ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2


def trimmed_mean(ordered: NDArray[np.float64]) -> float:
    """Mean without the lowest and the highest fifth of sorted values (DLBricks, section 4.1)."""
    cut = int(ordered.size * _TRIM)
    return float(ordered[cut : ordered.size - cut].mean())


def median_interval(values: Sequence[NDArray[np.float64]], moments: Sequence[Moment]) -> tuple[float, float]:
    """95 % interval of the pooled median: around it the doubt that the block medians leave (``doubt``).

    Samples of a block share their process and moment, thus blocks, not samples, tell how far the median can be
    trusted. A single block has only its samples: the interval is then that of the order statistics of its median.

    Args:
        values: Times per block, none of them empty.
        moments: Process and round of each block.

    Returns:
        Low and high end, in the unit of the values; low is never negative.
    """
    if len(values) == 1:
        return _order_interval(np.sort(values[0]))
    centre = _middle(np.sort(np.concatenate(values)))
    half = doubt([_medians(values, moments)]).half_width
    return max(0.0, centre - half), centre + half


def doubt(parts: Sequence[Mapping[Moment, float]]) -> Doubt:
    """How far a sum of latencies may be off, by what its processes and rounds saw.

    What rounds of one process differ by tells the noise of rounds; what processes differ by beyond that is the noise
    of processes, of which there are far fewer draws: two, as a rule. Each component gets the Student quantile of its
    own degrees of freedom, and the squares of the two half-widths are added (Graybill and Wang 1980, "Confidence
    intervals on nonnegative linear combinations of variances"). A bootstrap over two processes could say no more than
    that the truth lies between them, which it does every other time.

    All parts belong to one run: in the same moment they saw the same machine. What drives them together is therefore
    added before it is squared, and what each has of its own cancels.

    Args:
        parts: Latency of each part by (process, round). Parts that stopped early lack the later moments. At least one
            part; one latency, with which all of this began, is a sum of one part.
    """
    total = sum(abs(fmean(part.values())) for part in parts)
    sums = dict.fromkeys(sorted({process for part in parts for process, _ in part}), 0.0)
    weights = dict.fromkeys(sums, 0.0)
    residuals: defaultdict[Moment, float] = defaultdict(float)
    degrees = noise = 0.0
    for part in parts:
        count, mean = len(part), fmean(part.values())
        share = abs(mean) / total if total else 1 / len(parts)
        seen: defaultdict[int, list[float]] = defaultdict(list)
        for (process, _), latency in part.items():
            seen[process].append(latency)
        means = {process: fmean(latencies) for process, latencies in seen.items()}
        for process in sums:  # a process that a part was not sampled in tells nothing of it
            sums[process] += means.get(process, mean)
            weights[process] += share * len(seen.get(process, ())) / count
        free = count - len(seen)
        degrees += share * free
        noise += share * count * fmean(1 / len(latencies) for latencies in seen.values())
        unbiased = math.sqrt(count / free) / count if free else 0.0
        for (process, round_), latency in part.items():
            residuals[process, round_] += unbiased * (latency - means[process])
    rounds = sum(residual**2 for residual in residuals.values())
    between = variance(sums.values()) if len(sums) > 1 else 0.0
    beyond = max(0.0, between - rounds * noise)
    processes = beyond * sum(weight**2 for weight in weights.values())
    return Doubt(
        half_width=math.hypot(
            _student(len(sums) - 1) * math.sqrt(processes),
            _student(degrees) * math.sqrt(rounds),
        ),
        disagreement=max(sums.values()) - min(sums.values()) if beyond > between / 2 else 0.0,
    )


def _medians(values: Sequence[NDArray[np.float64]], moments: Sequence[Moment]) -> dict[Moment, float]:
    return {moment: _middle(np.sort(entry)) for moment, entry in zip(moments, values, strict=True)}


def _student(degrees: float) -> float:
    """97.5 % quantile of Student's t; between whole degrees its logarithm is nearly linear in their inverse."""
    if degrees < 1:
        return _STUDENT[0]
    return math.exp(float(np.interp(1 / degrees, _INVERSE_DEGREES, _LOG_STUDENT)))


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5 % quantile of Student's t for 1, 2, ... degrees of freedom."""
_INVERSE_DEGREES = (0.0, *(1 / degrees for degrees in range(len(_STUDENT), 0, -1)))
_LOG_STUDENT = tuple(math.log(quantile) for quantile in (1.95996, *reversed(_STUDENT)))


def _order_interval(ordered: NDArray[np.float64]) -> tuple[float, float]:
    """95 % interval of the median from the binomial ranks around it (normal approximation)."""
    reach = 1.96 * math.sqrt(ordered.size) / 2
    low = max(0, math.floor((ordered.size - 1) / 2 - reach))
    return float(ordered[low]), float(ordered[ordered.size - 1 - low])
