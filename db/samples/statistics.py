"""Statistics of visits: means, their intervals, and what a measurement is on a quiet machine.

Bricks and models are visited in turn for the whole of a run, so that they meet the same disturbances, and the mean of a
sum is the sum of means. Medians and trimmed means do not add up, and nothing is cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..values import Block, Verdict, Visit

__all__ = [
    "MIN_SAMPLES",
    "Baseline",
    "Summary",
    "block_values",
    "half_width",
    "quiet_visits",
    "student",
    "summarise",
    "time_blocks",
    "undisturbed",
]

MIN_SAMPLES = 10
"""Fewer samples are no measurement (PEERS: nvbench, DLBricks)."""

VISITS_PER_BLOCK = 3
"""Visits of one session that follow each other make a time block: what disturbs a machine lasts longer than one."""

_TRIM = 0.2
_STABLE = 0.02
_NOISY = 0.10

_BASE = 0.01, 0.1
_QUIET = 1.05, 2.5
"""Quantiles of the probes of arithmetic and of memory that are their baselines, and up to how many times these they are
quiet: reading memory scatters far more. With these the estimates of two runs over 60 models differed least of the means
that were tried (docs/results/README.md)."""

_FEWEST_QUIET = 3
_LOW = 0.1
"""Where fewer visits than that were quiet, this quantile of all of them stands for a quiet one."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the probes take on this machine when it is quiet.

    Attributes:
        compute_ns: The probe of arithmetic.
        memory_ns: The probe of memory.
    """

    compute_ns: float
    memory_ns: float

    @classmethod
    def of(cls, visits: Iterable[Visit], known: Iterable[Baseline] = ()) -> Baseline | None:
        """Low quantiles of all probes, or what earlier runs found where that is less; None without any probe."""
        probes = np.array([(visit.compute_ns, visit.memory_ns) for visit in visits], dtype=np.float64)
        found = [(one.compute_ns, one.memory_ns) for one in known]
        if probes.size:
            found.append((float(np.quantile(probes[:, 0], _BASE[0])), float(np.quantile(probes[:, 1], _BASE[1]))))
        return cls(*(min(ends) for ends in zip(*found, strict=True))) if found else None

    def quiet(self, visit: Visit) -> bool:
        """Whether the machine was quiet around a visit."""
        return visit.compute_ns <= _QUIET[0] * self.compute_ns and visit.memory_ns <= _QUIET[1] * self.memory_ns


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of one execution of the subject, in nanoseconds."""

    mean_ns: float
    median_ns: float
    trimmed_mean_ns: float
    min_ns: float
    p90_ns: float
    p99_ns: float
    ci95_ns: tuple[float, float]
    samples: int
    block_medians_ns: tuple[float, ...]
    processes: int

    @property
    def verdict(self) -> Verdict:
        """How far the mean can be trusted."""
        if self.samples < MIN_SAMPLES:
            return Verdict.TIMED_OUT
        low, high = self.ci95_ns
        half = (high - low) / 2 / self.mean_ns if self.mean_ns else math.inf
        if half <= _STABLE and self.processes > 1:
            return Verdict.STABLE
        return Verdict.NOISY if half <= _NOISY else Verdict.UNSTABLE


def block_values(blocks: Sequence[Block], unroll: int) -> list[Values]:
    """Per block, the time of one execution of each sample: ``elapsed_ns / (loops * unroll)``."""
    values = []
    for block in blocks:
        raw = np.asarray(block.samples, dtype=np.float64).reshape(-1, 2)
        values.append(raw[:, 0] / (raw[:, 1] * unroll))
    return values


def time_blocks(values: Sequence[Values]) -> Values:
    """Means of the time blocks of some sessions; a last one that is short belongs to the one before."""
    means: list[float] = []
    for one in values:
        count = max(1, one.size // VISITS_PER_BLOCK)
        if one.size == count * VISITS_PER_BLOCK:  # as a rule; cutting it up otherwise takes longer
            means += one.reshape(count, VISITS_PER_BLOCK).mean(axis=1).tolist()
        else:
            means += [float(part.mean()) for part in np.array_split(one, count) if part.size]
    return np.array(means)


def half_width(means: Values) -> float:
    """Half of the 95 % interval of the mean of time blocks; infinite for a single one."""
    if means.size < 2:
        return math.inf
    return student(means.size - 1) * float(means.std(ddof=1)) / math.sqrt(means.size)


def summarise(blocks: Sequence[Block], unroll: int) -> Summary:
    """Statistics over all samples of all blocks.

    Args:
        blocks: At least one with at least one sample; order (process, round).
        unroll: Copies of the subject per loop.

    Raises:
        ValueError: There is no sample.
    """
    filled = [block for block in blocks if block.samples]
    if not filled:
        raise ValueError("a measurement without samples has no statistics")
    values = block_values(filled, unroll)
    pooled = np.sort(np.concatenate(values))
    mean = max(0.0, float(pooled.mean()))
    half = half_width(time_blocks(values))
    if not math.isfinite(half):
        half = student(max(1, pooled.size - 1)) * float(pooled.std()) / math.sqrt(pooled.size)
    p90, p99 = np.quantile(pooled, (0.9, 0.99))
    cut = int(pooled.size * _TRIM)
    return Summary(
        mean_ns=mean,
        median_ns=max(0.0, float(np.median(pooled))),
        trimmed_mean_ns=max(0.0, float(pooled[cut : pooled.size - cut].mean())),
        min_ns=max(0.0, float(pooled[0])),
        p90_ns=max(0.0, float(p90)),
        p99_ns=max(0.0, float(p99)),
        ci95_ns=(max(0.0, mean - half), mean + half),
        samples=int(pooled.size),
        block_medians_ns=tuple(float(np.median(one)) for one in values),
        processes=len({block.process for block in filled}),
    )


def quiet_visits(blocks: Sequence[Block], baseline: Baseline | None) -> list[NDArray[np.bool_]]:
    """Per block, which of its visits were quiet; none where that is not known."""
    return [
        np.array([baseline is not None and baseline.quiet(visit) for visit in block.visits], dtype=np.bool_)
        if block.visits
        else np.zeros(len(block.samples), dtype=np.bool_)
        for block in blocks
    ]


def undisturbed(blocks: Sequence[Block], unroll: int, baseline: Baseline | None) -> tuple[float, float]:
    """Latency on a quiet machine in nanoseconds, and the share of visits that were quiet.

    The mean of the quiet visits; where there are too few of them, a low quantile of all, which is what a short brick
    takes in the quiet moments that it finds.
    """
    values = np.concatenate(block_values(blocks, unroll))
    quiet = np.concatenate(quiet_visits(blocks, baseline))
    share = float(quiet.mean()) if quiet.size else 0.0
    chosen = values[quiet]
    latency = float(chosen.mean()) if chosen.size >= _FEWEST_QUIET else float(np.quantile(values, _LOW))
    return max(0.0, latency), share


def student(degrees: float) -> float:
    """97.5 % quantile of Student's t; of one degree of freedom below that."""
    from scipy.special import stdtrit

    return float(stdtrit(max(1.0, degrees), 0.975))
