"""Robust statistics of a measurement's blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..db.values import Block, Verdict

__all__ = ["MIN_SAMPLES", "Summary", "block_values", "half_width", "median_interval", "summarise", "trimmed_mean"]

MIN_SAMPLES = 10
"""Fewer samples are no measurement (PEERS: nvbench, DLBricks)."""

_EXACT_BLOCKS = 6
"""Up to here all resamples are enumerated: 462 multisets of six blocks."""
_RESAMPLES = 2000
_MOST_RANKS = 1 << 22
"""Ranks held at a time: 32 MiB."""
_TRIM = 0.2
_STABLE = 0.02
_NOISY = 0.10


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
        if self.half_width <= _STABLE:
            return Verdict.STABLE
        return Verdict.NOISY if self.half_width <= _NOISY else Verdict.UNSTABLE


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
    values = [entry for entry in block_values(blocks, unroll) if entry.size]
    if not values:
        raise ValueError("a measurement without samples has no statistics")
    pooled = np.sort(np.concatenate(values))
    p90, p99 = np.quantile(pooled, (0.9, 0.99))
    return Summary(
        median_ns=_middle(pooled),
        mean_ns=float(pooled.mean()),
        trimmed_mean_ns=trimmed_mean(pooled),
        min_ns=float(pooled[0]),
        p90_ns=float(p90),
        p99_ns=float(p99),
        ci95_ns=median_interval(values),
        samples=int(pooled.size),
        block_medians_ns=tuple(_middle(np.sort(entry)) for entry in values),
    )


def half_width(blocks: Sequence[Block], unroll: int) -> float:
    """Half of the 95 % interval of the median, relative to the median; what stopping asks after every block."""
    values = [entry for entry in block_values(blocks, unroll) if entry.size]
    low, high = median_interval(values)
    return (high - low) / 2 / _middle(np.sort(np.concatenate(values)))


def _middle(ordered: NDArray[np.float64]) -> float:
    """Median of sorted values; ``np.median`` costs more than all the rest for the few that a block has."""
    return float(ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2


def trimmed_mean(ordered: NDArray[np.float64]) -> float:
    """Mean without the lowest and the highest fifth of sorted values (DLBricks, section 4.1)."""
    cut = int(ordered.size * _TRIM)
    return float(ordered[cut : ordered.size - cut].mean())


def median_interval(values: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """95 % bootstrap interval of the pooled median, resampling whole blocks.

    Samples within a block share their process and moment, so a block is the unit that is drawn. Up to six blocks all
    multisets are enumerated with their multinomial probabilities, which makes the interval exact and repeatable;
    beyond that a fixed seed draws them. With n blocks the percentiles are widened to
    ``Phi(-t[n-1] * sqrt(n / (n - 1)))`` on either side, since the plain percentile interval is too short for few
    blocks (Hesterberg 2015, "What teachers should know about the bootstrap", section 5.3). A single block is
    resampled by its samples, through the order statistics of its median.

    Args:
        values: Times per block, none of them empty.

    Returns:
        Low and high end, in the unit of the values.
    """
    count = len(values)
    if count == 1:
        return _order_interval(np.sort(values[0]))
    draws, weights = _resamples(count)
    medians = _resampled_medians(values, draws)
    order = np.argsort(medians, kind="stable")
    mass = np.cumsum(weights[order])
    tail = _tail(count)
    last = medians.size - 1
    low, high = np.minimum(np.searchsorted(mass, (tail, 1 - tail)), last)
    return float(medians[order[low]]), float(medians[order[high]])


def _resampled_medians(values: Sequence[NDArray[np.float64]], draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median of the pooled samples for each row of draws (how often each block is in the resample).

    The samples are sorted once. The rank of a sample within a resample is a weighted sum of its ranks within the
    blocks, thus all ranks are one matrix product; no resample is ever pooled or sorted.
    """
    count = len(values)
    pooled = np.concatenate(values)
    owner = np.repeat(np.arange(count), [entry.size for entry in values])
    order = np.argsort(pooled, kind="stable")
    ordered = pooled[order]
    within = np.cumsum(np.arange(count)[:, None] == owner[order], axis=1, dtype=np.float64)
    medians = np.empty(len(draws))
    step = max(1, _MOST_RANKS // ordered.size)
    for begin in range(0, len(draws), step):
        ranks = draws[begin : begin + step] @ within
        totals = ranks[:, -1:]
        lower = (ranks >= np.floor((totals + 1) / 2)).argmax(axis=1)
        upper = (ranks >= np.floor(totals / 2) + 1).argmax(axis=1)
        medians[begin : begin + step] = (ordered[lower] + ordered[upper]) / 2
    return medians


@cache
def _resamples(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows of draws of ``count`` blocks with replacement, and the probability of each row."""
    if count > _EXACT_BLOCKS:
        generator = np.random.default_rng(count)
        drawn = generator.multinomial(count, [1 / count] * count, size=_RESAMPLES)
        return drawn.astype(np.float64), np.full(_RESAMPLES, 1 / _RESAMPLES)
    rows = [
        [chosen.count(block) for block in range(count)]
        for chosen in itertools.combinations_with_replacement(range(count), count)
    ]
    ways = [math.factorial(count) / math.prod(map(math.factorial, row)) for row in rows]
    return np.asarray(rows, dtype=np.float64), np.asarray(ways) / count**count


@cache
def _tail(count: int) -> float:
    """Probability to cut on either side of the bootstrap distribution of ``count`` blocks."""
    degrees = count - 1
    quantile = _STUDENT[degrees - 1] if degrees <= len(_STUDENT) else 1.96 + 2.4 / degrees
    return math.erfc(quantile * math.sqrt(count / degrees) / math.sqrt(2)) / 2


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5 % quantile of Student's t for 1, 2, ... degrees of freedom."""


def _order_interval(ordered: NDArray[np.float64]) -> tuple[float, float]:
    """95 % interval of the median from the binomial ranks around it (normal approximation)."""
    reach = 1.96 * math.sqrt(ordered.size) / 2
    low = max(0, math.floor((ordered.size - 1) / 2 - reach))
    return float(ordered[low]), float(ordered[ordered.size - 1 - low])
