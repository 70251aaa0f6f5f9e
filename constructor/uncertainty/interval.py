"""The uncertainty of a composed latency, from the latencies of its bricks in each time block.

Bricks and models of a group are visited alternately: in one time block all met the same machine, fast together or slow
together. This module follows a combination of measurements block by block. A common disturbance stays in a sum and
cancels in a difference; independent noise averages out. Adding the intervals of single bricks would do neither.
Groups and runs share no time; their errors are independent.

A mean over visits is linear in them. The error that a visit adds to a combination is its distance from the mean of its
measurement, times the coefficient, over the number of visits. The variance is the sum over time blocks of the squared
errors; its degrees of freedom are the number of blocks less one. Processes differ too (placement of memory), and a run
shows this only as often as it has processes. The scatter of processes in other runs is therefore added
(``calibration``). It contains the scatter of sessions (``docs/results/sessions-runtime-g1-t1.json``), is common to a
run, and is independent between runs. With a single process it averages nothing out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...bricks.operators import Trait, having
from ...db.samples.statistics import (
    VISITS_PER_BLOCK,
    Baseline,
    block_values,
    student,
    time_blocks,
    undisturbed_error,
)
from ...db.values import Block, Measurement, Stack
from .calibration import NORMAL, MethodError, scatters

Weights = Mapping[str, float]
"""A linear combination of measurements: coefficient by the measurement's id."""

_MANY = 1e9
"""Degrees of freedom of a known value."""

_SEED = 0

_FEW = 5
"""Time blocks of which fewer estimate their own scatter badly."""

_CALIBRATED = 2
"""Processes of each run in the data of ``run_sd``."""

_Session = tuple[str, int, int]
"""Run, process and round."""

_Layout = tuple[tuple[_Session, int], ...]


def combined(*terms: tuple[float, Weights]) -> dict[str, float]:
    """Return the linear combination of linear combinations, each with its coefficient."""
    total: defaultdict[str, float] = defaultdict(float)
    for coefficient, weights in terms:
        for id_, weight in weights.items():
            total[id_] += coefficient * weight
    return dict(total)


def with_method(half: float, error: MethodError | None, *, value: float = 1.0) -> float:
    """Return half of an interval, widened by the error of the method.

    Args:
        half: Half of the 95 % interval of the measurements.
        error: Error of the method; None if nothing is composed.
        value: Centre of the interval; 1 if it is relative.
    """
    return half if error is None else math.hypot(half, NORMAL * error.sd * value)


_VALUES_SD = math.log(2) / NORMAL
"""Relative standard deviation of a latency that depends on values: in a model, values are not those of a brick alone,
and such a latency is known to no better than a factor of two."""


def valued_share(timed: Iterable[tuple[Sequence[str], float]]) -> float:
    """Return the share of a sum in bricks whose time depends on the values of their operands."""
    total, valued = 0.0, 0.0
    for op_types, latency in timed:
        total += latency
        if not having(Trait.VALUED).isdisjoint(op_types):
            valued += latency
    return valued / total if total > 0 else 0.0


def with_values(error: MethodError | None, share: float) -> MethodError | None:
    """Return the error of a method, widened for the share of a sum whose time depends on values."""
    return error if error is None or not share else replace(error, sd=math.hypot(error.sd, share * _VALUES_SD))


def with_unsure(error: MethodError | None, share: float) -> MethodError | None:
    """Return the error of a method, widened for a part that is anything between nothing and twice this share."""
    return error if error is None or not share else replace(error, sd=math.hypot(error.sd, share / math.sqrt(3)))


@dataclass(frozen=True, slots=True)
class _Seen:
    """Errors of a measurement by time block.

    Attributes:
        layout: Its sessions in order, each with the number of its time blocks.
        residuals: Error that each time block adds to the mean.
        processes: Number of its processes.
        process_sd: Relative standard deviation of processes.
    """

    layout: _Layout
    residuals: NDArray[np.float64]
    processes: int
    process_sd: float


class Uncertainty:
    """Values and intervals of linear combinations of measurements.

    Args:
        measurements: Measurements that a combination may contain.
        blocks: Raw samples by the measurement's id. A measurement without samples has its stored interval, independent
            of others.
        stacks: Stacks by key; they determine the scatter of processes. An absent stack has the widest known scatter.
    """

    def __init__(
        self,
        measurements: Iterable[Measurement],
        blocks: Mapping[str, Sequence[Block]],
        stacks: Mapping[str, Stack] | None = None,
    ) -> None:
        self.known = {measurement.id: measurement for measurement in measurements}
        self.stacks = stacks or {}
        self._blocks = blocks
        self._seen: dict[str, _Seen | None] = {}
        self._sessions: dict[str, Mapping[tuple[int, int], NDArray[np.float64]]] = {}
        self._visited: dict[str, Mapping[tuple[int, int], NDArray[np.float64]]] = {}

    def beside(self, others: Iterable[Measurement]) -> Uncertainty:
        """Return the same with further measurements, without samples."""
        return Uncertainty([*self.known.values(), *others], self._blocks, self.stacks)

    def blocks(self, id_: str) -> Sequence[Block]:
        """Return the raw samples of a measurement."""
        return self._blocks.get(id_, ())

    def sessions(self, id_: str) -> Mapping[tuple[int, int], NDArray[np.float64]]:
        """Return the latency of each visit, by process and round."""
        if id_ not in self._sessions:
            filled = [block for block in self.blocks(id_) if block.samples]
            values = block_values(filled, self.known[id_].unroll)
            self._sessions[id_] = {
                (block.process, block.round): latencies for block, latencies in zip(filled, values, strict=True)
            }
        return self._sessions[id_]

    def visited(self, id_: str) -> Mapping[tuple[int, int], NDArray[np.float64]]:
        """Return the latency of each visit, by process and round, of sessions that recorded visits."""
        if id_ not in self._visited:
            seen = {(block.process, block.round) for block in self.blocks(id_) if block.visits}
            self._visited[id_] = {session: values for session, values in self.sessions(id_).items() if session in seen}
        return self._visited[id_]

    def value_ns(self, weights: Weights) -> float:
        """Return the combination of the means; rounded once."""
        return math.fsum(weight * self.known[id_].latency_ns for id_, weight in weights.items())

    def undisturbed_ns(self, weights: Weights) -> float | None:
        """Return the combination on a quiet machine; None if this is unknown for one of its measurements."""
        total: list[float] = []
        for id_, weight in weights.items():
            quiet = self.known[id_].undisturbed_ns
            if quiet is None:
                return None
            total.append(weight * quiet)
        return math.fsum(total)

    def half_ns(self, weights: Weights) -> float:
        """Return half of the 95 % interval of the combination."""
        error, degrees = self.error_ns(weights)
        return student(degrees) * error

    def error_ns(self, weights: Weights) -> tuple[float, float]:
        """Return the standard error of the combination in ns, and its degrees of freedom.

        In time block b, a measurement i deviates from its mean by r(i, b), weighted by the visits of the block. The
        sum E(b) of w(i) r(i, b) keeps common disturbances. The variance is the sum of E(b)^2, times B / (B - 1) for B
        blocks that share sessions. For each run, (sum of w(i) L(i) process_sd)^2 / processes is added.
        """
        alone = 0.0
        alike: defaultdict[_Layout, list[tuple[float, NDArray[np.float64]]]] = defaultdict(list)
        shared: defaultdict[str, float] = defaultdict(float)
        processes: dict[str, int] = {}
        for id_, weight in weights.items():
            seen, measurement = self._of(id_), self.known[id_]
            if seen is None:
                alone += (weight * measurement.half_ns / NORMAL) ** 2
                continue
            shared[measurement.run] += weight * measurement.latency_ns * seen.process_sd
            processes[measurement.run] = min(seen.processes, processes.get(measurement.run, seen.processes))
            alike[seen.layout].append((weight, seen.residuals))
        sessions: dict[_Session, NDArray[np.float64]] = {}
        for layout, members in alike.items():
            together = np.array([weight for weight, _ in members]) @ np.stack([residuals for _, residuals in members])
            for session, residuals in _split(layout, together):
                summed = sessions.setdefault(session, residuals)
                if summed is not residuals:
                    size = min(summed.size, residuals.size)
                    summed[:size] += residuals[:size]
        if not sessions:
            return math.sqrt(alone), _MANY
        variances = []  # of sets of sessions that share no time, each around means of its own
        for cluster in _clusters(alike):
            sums = np.concatenate([sessions[session] for session in cluster])
            degrees = max(1, sums.size - 1)
            variances.append((float((sums**2).sum()) * sums.size / degrees, degrees))
        blocks = math.fsum(variance for variance, _ in variances)
        total = blocks + alone + math.fsum(apart**2 / processes[run] for run, apart in shared.items())
        if total <= 0:
            return 0.0, _MANY
        doubt = math.fsum(variance**2 / degrees for variance, degrees in variances)  # Welch and Satterthwaite
        return math.sqrt(total), total**2 / doubt if doubt else _MANY

    def undisturbed_error(self, id_: str, baseline: Baseline | None) -> tuple[float, float] | None:
        """Return the relative standard error of one undisturbed latency, and its degrees of freedom; None if unknown.

        Add it to ``Scatter.run_sd``, the scatter of undisturbed latencies between runs of two processes. It contains
        the additional scatter of a single process.

        Args:
            id_: Id of the measurement.
            baseline: Baseline of its run, which decides which visits were quiet.
        """
        measurement = self.known[id_]
        blocks = [block for block in self.blocks(id_) if block.samples]
        threads = measurement.identity.conditions.threads
        sample_error = undisturbed_error(blocks, measurement.unroll, baseline, threads=threads)
        if sample_error is None or not measurement.undisturbed_ns:
            return None
        sampled, degrees = sample_error[0] / measurement.undisturbed_ns, sample_error[1]
        processes = len({process for process, _ in self.sessions(id_)})
        fewer = max(0.0, 1 / processes - 1 / _CALIBRATED)
        total = math.hypot(sampled, scatters(self.stacks, measurement).process_sd * math.sqrt(fewer))
        return total, degrees * (total / sampled) ** 4 if sampled else _MANY

    def draws_ns(self, ids: Sequence[str], count: int) -> NDArray[np.float64]:
        """Draw possible errors of some measurements together: ``count`` for each, half of them mirrored.

        Each time block, process and (with several runs) run has one draw, common to all its measurements. Fewer than
        five time blocks estimate their scatter badly: their draws are wider by the ratio of Student's t to the normal
        quantile.

        Returns:
            One row per measurement, in nanoseconds.
        """
        rng = np.random.default_rng(_SEED)
        measurements = [self.known[id_] for id_ in ids]
        runs = sorted({measurement.run for measurement in measurements})
        shared = {run: rng.normal(size=(2, count // 2)) for run in runs}
        blocks: dict[tuple[_Session, int], NDArray[np.float64]] = {}
        drawn: dict[_Layout, NDArray[np.float64]] = {}
        rows = np.zeros((len(ids), count // 2))
        for number, measurement in enumerate(measurements):
            scatter, seen = scatters(self.stacks, measurement), self._of(measurement.id)
            of_process, of_run = shared[measurement.run]
            if len(runs) > 1:
                rows[number] += of_run * (scatter.run_sd * measurement.latency_ns)
            if seen is None:
                rows[number] += rng.normal(size=count // 2) * (measurement.half_ns / NORMAL)
                continue
            rows[number] += of_process * (seen.process_sd * measurement.latency_ns / math.sqrt(seen.processes))
            size = seen.residuals.size
            wider = math.sqrt(size / max(1, size - 1)) * (student(size - 1) / NORMAL if size < _FEW else 1.0)
            if seen.layout not in drawn:
                block_keys = [(session, block) for session, count_ in seen.layout for block in range(count_)]
                for block in block_keys:
                    if block not in blocks:
                        blocks[block] = rng.normal(size=count // 2)
                drawn[seen.layout] = np.stack([blocks[block] for block in block_keys])
            rows[number] += (wider * seen.residuals) @ drawn[seen.layout]
        return np.hstack([rows, -rows])

    def runs_ns(self, weights: Weights) -> float:
        """Return the standard deviation of a combination between runs, which are independent."""
        shared: defaultdict[str, float] = defaultdict(float)
        for id_, weight in weights.items():
            measurement = self.known[id_]
            shared[measurement.run] += weight * measurement.latency_ns * scatters(self.stacks, measurement).run_sd
        return math.hypot(*shared.values())

    def interval_ns(self, weights: Weights) -> tuple[float, float]:
        """Return the 95 % interval of a latency; low is never negative."""
        centre, half = self.value_ns(weights), self.half_ns(weights)
        return max(0.0, centre - half), centre + half

    def _of(self, id_: str) -> _Seen | None:
        if id_ not in self._seen:
            measurement = self.known[id_]
            self._seen[id_] = _described(
                measurement.run, self.sessions(id_), scatters(self.stacks, measurement).process_sd
            )
        return self._seen[id_]


def _described(run: str, sessions: Mapping[tuple[int, int], NDArray[np.float64]], process_sd: float) -> _Seen | None:
    """Return the errors by time block; None without visits.

    In a single time block each visit stands for one. A single visit shows nothing of its error: it may be all of it.
    """
    keys = sorted(sessions)
    values = [sessions[key] for key in keys]
    if not values:
        return None
    means, visits = time_blocks(values), sum(session.size for session in values)
    counts = [max(1, session.size // VISITS_PER_BLOCK) for session in values]
    if means.size == 1:
        means, counts = values[0], [visits]
    centre = math.fsum(float(session.sum()) for session in values) / visits if visits > 1 else 0.0
    scale = np.repeat([session.size / count for session, count in zip(values, counts, strict=True)], counts)
    return _Seen(
        tuple(((run, *key), count) for key, count in zip(keys, counts, strict=True)),
        (means - centre) * scale / visits,
        len({process for process, _ in sessions}),
        process_sd,
    )


def _clusters(layouts: Iterable[_Layout]) -> list[set[_Session]]:
    """Return the sessions of some layouts as sets without common members."""
    clusters: list[set[_Session]] = []
    for layout in layouts:
        joined = {session for session, _ in layout}
        for cluster in [cluster for cluster in clusters if cluster & joined]:
            clusters.remove(cluster)
            joined |= cluster
        clusters.append(joined)
    return clusters


def _split(layout: _Layout, residuals: NDArray[np.float64]) -> Iterator[tuple[_Session, NDArray[np.float64]]]:
    """Yield each session with its part of the residuals."""
    begin = 0
    for session, count in layout:
        yield session, residuals[begin : begin + count]
        begin += count
