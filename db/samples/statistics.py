"""Statistics of visits: means, their intervals, and latencies on a quiet machine.

Bricks and models are visited alternately for the whole run, so that they meet the same disturbances, and the mean of a
sum is the sum of means. Medians and trimmed means do not add up, and no samples are removed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..values import Block, Run, Summary, Verdict, Visit

MIN_SAMPLES = 10
"""Minimum samples of a measurement (nvbench, DLBricks)."""

VISITS_PER_BLOCK = 3
"""Successive visits of one session in a time block: disturbances last longer than one visit."""

BASELINE = "probes_ns"
"""Name under which a run stores its baseline: arithmetic and memory, in nanoseconds."""

_NORMAL = 1.959963984540054
_LARGE = 1e5
"""Degrees of freedom above which two terms of the series around the normal distribution are equally exact."""

_STEPS = 4096
"""Steps of the integral of the density."""

_TRIM = 0.2
_STABLE = 0.02
_NOISY = 0.10

_BASE = 0.01, 0.1
_QUIET = 1.05, 2.5
"""Baselines are quantiles (``_BASE``) of the probes of arithmetic and of memory. Visits are quiet up to these multiples
of them: reading memory scatters far more. These values minimised the difference between the estimates of two runs
over 60 models among the tried ones (docs/results/README.md)."""

_FEWEST_QUIET = 3, 1 / 8
_FASTEST = 0.2
"""If fewer visits than ``_FEWEST_QUIET`` were quiet, or a smaller share, this share of the visits replaces them: the
fastest. Of 96 visits the tenth fastest repeats to 0.2 to 1 %, the mean of three quiet visits to 1 to 15 %."""

_LOW = 0.1
"""Quantile of probes that tells how fast a machine is."""

_DRAWS = 200
"""Draws of the bootstrap; standard errors are accurate to 5 %."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The probes' times on this machine when it is quiet.

    Attributes:
        compute_ns: The probe of arithmetic.
        memory_ns: The probe of memory.
    """

    compute_ns: float
    memory_ns: float

    @classmethod
    def of(cls, visits: Iterable[Visit], earlier: Iterable[Baseline] = ()) -> Baseline | None:
        """Return low quantiles of all probes, or lower values of earlier runs; None without any probe."""
        probes = np.array([(visit.compute_ns, visit.memory_ns) for visit in visits], dtype=np.float64)
        baselines = [(visit.compute_ns, visit.memory_ns) for visit in earlier]
        if probes.size:
            baselines.append((float(np.quantile(probes[:, 0], _BASE[0])), float(np.quantile(probes[:, 1], _BASE[1]))))
        return cls(*(min(ends) for ends in zip(*baselines, strict=True))) if baselines else None

    @classmethod
    def of_run(cls, run: Run) -> Baseline | None:
        """Return the baseline that a run recorded at its end; None if missing."""
        pair = (run.after or {}).get(BASELINE)
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(probe, int | float) for probe in pair):
            return None
        return cls(float(pair[0]), float(pair[1]))

    def quiet(self, visit: Visit) -> bool:
        """Return True if the machine was quiet around a visit."""
        return visit.compute_ns <= _QUIET[0] * self.compute_ns and visit.memory_ns <= _QUIET[1] * self.memory_ns


def block_values(blocks: Sequence[Block], unroll: int) -> list[Values]:
    """Return per block the time of one execution for each sample: ``elapsed_ns / (loops * unroll)``."""
    values = []
    for block in blocks:
        raw = np.asarray(block.samples, dtype=np.float64).reshape(-1, 2)
        values.append(raw[:, 0] / (raw[:, 1] * unroll))
    return values


def time_blocks(values: Sequence[Values]) -> Values:
    """Return the means of the time blocks of some sessions; a short last one is part of the previous one."""
    sizes = {samples.size for samples in values}
    if len(sizes) == 1 and sizes.pop() % VISITS_PER_BLOCK == 0:  # the usual case; faster than one by one
        whole: Values = np.concatenate(values).reshape(-1, VISITS_PER_BLOCK).mean(axis=1)
        return whole
    means: list[float] = []
    for samples in values:
        count = max(1, samples.size // VISITS_PER_BLOCK)
        if samples.size == count * VISITS_PER_BLOCK:
            means += samples.reshape(count, VISITS_PER_BLOCK).mean(axis=1).tolist()
        else:
            means += [float(part.mean()) for part in np.array_split(samples, count) if part.size]
    return np.array(means)


def half_width(means: Values) -> float:
    """Return half of the 95 % interval of the mean of time blocks; infinite for a single block."""
    if means.size < 2:
        return math.inf
    return student(means.size - 1) * float(means.std(ddof=1)) / math.sqrt(means.size)


def summarise(blocks: Sequence[Block], unroll: int) -> Summary:
    """Compute statistics over all samples of all blocks.

    Args:
        blocks: At least one with at least one sample; order (process, round).
        unroll: Copies of the subject per loop.

    Raises:
        ValueError: There are no samples.
    """
    filled = [block for block in blocks if block.samples]
    if not filled:
        raise ValueError("a measurement without samples has no statistics")
    values = block_values(filled, unroll)
    pooled = np.sort(np.concatenate(values))
    mean = max(0.0, float(pooled.mean()))
    half = half_width(time_blocks(values))
    if not math.isfinite(half):
        half = half_width(pooled) if pooled.size > 1 else mean  # one sample shows nothing of its error
    low, high = max(0.0, mean - half), mean + half
    p90, p99 = np.quantile(pooled, (0.9, 0.99))
    cut = int(pooled.size * _TRIM)
    return Summary(
        median_ns=max(0.0, float(np.median(pooled))),
        mean_ns=mean,
        trimmed_mean_ns=max(0.0, float(pooled[cut : pooled.size - cut].mean())),
        min_ns=max(0.0, float(pooled[0])),
        p90_ns=max(0.0, float(p90)),
        p99_ns=max(0.0, float(p99)),
        ci95_ns=(low, high),
        samples=int(pooled.size),
        block_medians_ns=tuple(float(np.median(samples)) for samples in values),
        verdict=_verdict(pooled.size, (high - low) / 2 / mean if mean else math.inf, filled),
    )


def _verdict(samples: int, half: float, blocks: Sequence[Block]) -> Verdict:
    """Return the reliability of a mean, from the relative half-width of its interval."""
    if samples < MIN_SAMPLES:
        return Verdict.TIMED_OUT
    if half <= _STABLE and len({block.process for block in blocks}) > 1:
        return Verdict.STABLE
    return Verdict.NOISY if half <= _NOISY else Verdict.UNSTABLE


def quiet_visits(blocks: Sequence[Block], baseline: Baseline | None, *, threads: int = 1) -> list[NDArray[np.bool_]]:
    """Return per block a mask of quiet visits; all False if unknown.

    Args:
        blocks: Samples with their visits.
        baseline: The probes on the quiet machine.
        threads: With several threads a visit is not quiet if the kernel ran another program in it. With one thread the
            other program's time is taken off.
    """

    def quiet(visit: Visit) -> bool:
        return baseline is not None and baseline.quiet(visit) and not (threads > 1 and visit.switches)

    return [
        np.array([quiet(visit) for visit in block.visits], dtype=np.bool_)
        if block.visits
        else np.zeros(len(block.samples), dtype=np.bool_)
        for block in blocks
    ]


def undisturbed(
    blocks: Sequence[Block],
    unroll: int,
    baseline: Baseline | None,
    *,
    threads: int = 1,
    together: Sequence[Values] | None = None,
) -> tuple[float, float]:
    """Return the latency on a quiet machine in nanoseconds, and the share of quiet visits.

    The latency is the mean of the quiet visits, but at most that of all visits. If few are quiet, it is the mean of the
    fastest ones. For a brick of a pack, they are the fastest of the pack: if each brick had its own, their sum would be
    less than any pass takes.

    Args:
        blocks: Samples with their visits.
        unroll: Copies of the subject per loop.
        baseline: The probes on the quiet machine.
        threads: As for ``quiet_visits``.
        together: By block and visit, the time of all that the visit executed; default: the samples themselves.
    """
    values = block_values(blocks, unroll)
    quiet = np.concatenate(quiet_visits(blocks, baseline, threads=threads))
    share = float(quiet.mean()) if quiet.size else 0.0
    efforts, latencies = np.concatenate(values if together is None else together), np.concatenate(values)
    latency = float(_undisturbed(latencies[None], quiet[None], efforts[None])[0])
    return max(0.0, min(latency, float(latencies.mean()))), share


def _undisturbed(values: Values, quiet: NDArray[np.bool_], efforts: Values) -> Values:
    """Return for each row the mean of its quiet visits, or of its fastest visits if these are too few.

    Args:
        values: Latencies; missing ones are infinite.
        quiet: Which visits were quiet.
        efforts: Time of all that each visit executed; infinite for missing ones.
    """
    sizes, calm = np.isfinite(values).sum(axis=1), quiet.sum(axis=1)
    wanted = np.maximum(1, np.rint(_FASTEST * sizes).astype(np.intp))
    ordered = np.take_along_axis(values, np.argsort(efforts, axis=1, kind="stable"), axis=1)
    chosen = np.arange(values.shape[1])[None] < wanted[:, None]
    fastest = np.where(chosen, ordered, 0.0).sum(axis=1) / wanted
    fewest, share = _FEWEST_QUIET
    means = np.where(quiet, values, 0.0).sum(axis=1) / np.maximum(calm, 1)
    latencies: Values = np.where(calm >= np.maximum(fewest, share * sizes), means, fastest)
    return latencies


def undisturbed_error(
    blocks: Sequence[Block], unroll: int, baseline: Baseline | None, *, threads: int = 1
) -> tuple[float, float] | None:
    """Return the standard error of the undisturbed latency in nanoseconds, and its degrees of freedom.

    Computed by a bootstrap over time blocks (Efron and Tibshirani 1993, section 8.5), for a mean of quiet visits as
    well as for one of the fastest. None for a single time block.
    """
    values, quiet = block_values(blocks, unroll), quiet_visits(blocks, baseline, threads=threads)
    parts: list[tuple[Values, NDArray[np.bool_]]] = []
    for samples, calm in zip(values, quiet, strict=True):
        count = max(1, samples.size // VISITS_PER_BLOCK)
        parts += zip(np.array_split(samples, count), np.array_split(calm, count), strict=True)
    if len(parts) < 2:
        return None
    widest = max(samples.size for samples, _ in parts)
    filled, quiet_mask = np.full((len(parts), widest), np.inf), np.zeros((len(parts), widest), dtype=np.bool_)
    for number, (samples, calm) in enumerate(parts):  # missing values are infinite and do not count as visits
        filled[number, : samples.size], quiet_mask[number, : samples.size] = samples, calm
    drawn = np.random.default_rng(0).integers(0, len(parts), (_DRAWS, len(parts)))
    values_drawn = filled[drawn].reshape(_DRAWS, -1)
    draws = _undisturbed(values_drawn, quiet_mask[drawn].reshape(_DRAWS, -1), values_drawn)
    return float(np.std(draws)) * math.sqrt(len(parts) / (len(parts) - 1)), len(parts) - 1


def low_probes(blocks: Iterable[Block]) -> tuple[float, float] | None:
    """Return low quantiles of the probes of arithmetic and of memory around some visits; None without visits."""
    probes = [(visit.compute_ns, visit.memory_ns) for block in blocks for visit in block.visits]
    if not probes:
        return None
    compute_ns, memory_ns = np.quantile(np.array(probes, dtype=np.float64), _LOW, axis=0)
    return float(compute_ns), float(memory_ns)


def alike(base: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
    """Return True if two machines have similar low quantiles of probes, within the limits of quiet visits."""
    if base is None or other is None:
        return False
    pairs = zip(base, other, _QUIET, strict=True)
    return all(max(ours, theirs) <= most * min(ours, theirs) for ours, theirs, most in pairs)


@cache
def student(degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t; below one degree of freedom, the value for one.

    Computed by Newton's method on the integral of the density, because importing SciPy takes 0.2 s, a quarter of
    ``estimate``.
    """
    degrees = max(1.0, degrees)
    if degrees > _LARGE:
        return _NORMAL + (_NORMAL**3 + _NORMAL) / (4 * degrees)
    power = -(degrees + 1) / 2
    height = math.exp(math.lgamma(-power) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    points = np.linspace(0, 1, _STEPS + 1)
    weights = np.tile([2.0, 4.0], _STEPS // 2 + 1)[:-1]  # Simpson's rule
    weights[0] = weights[-1] = 1
    t = _NORMAL
    for _ in range(12):
        density = height * (1 + (t * points) ** 2 / degrees) ** power
        t += (0.475 - t * float(weights @ density) / (3 * _STEPS)) / float(density[-1])
    return t
