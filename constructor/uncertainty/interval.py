"""The uncertainty of a composed latency, from what its bricks were in each time block.

Bricks and models of a group are visited in turn, so that in one time block all of them met the same machine: fast
together or slow together. A combination of measurements is therefore followed block by block: what drives all together
stays in a sum and cancels in a difference, what each has of its own averages out. Intervals of single bricks that are
added up would do neither. Groups and runs do not share their time; what they leave in doubt is independent.

A mean over visits is linear in them: what a visit adds to the error of a combination is its distance from the mean of
its measurement, times the coefficient, over the number of visits. The variance is that of the sums over time blocks,
known with as many degrees of freedom as there are blocks less one. What all visits of a process share (where memory was
placed) is seen only as often as there are processes; how much that was in other runs is added (``calibration``). It is
shared within a run, and independent between runs. A single process shows nothing of it and averages nothing out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...db.samples.statistics import (
    VISITS_PER_BLOCK,
    Baseline,
    block_values,
    student,
    time_blocks,
    undisturbed_error,
)
from ...db.values import Block, Measurement, Stack, Subject
from .calibration import NORMAL, MethodError, scatters

Weights = Mapping[str, float]
"""A linear combination of measurements: coefficient by the measurement's id."""

_MANY = 1e9
"""Degrees of freedom of what counts as known."""

_SEED = 0

_FEW = 5
"""Time blocks of which fewer estimate their own scatter badly."""

_CALIBRATED = 2
"""Processes of the runs that show what runs differ by."""

_Session = tuple[str, int, int]
"""Run, process and round: what blocks that were taken in turn have in common."""

_Layout = tuple[tuple[_Session, int], ...]


def combined(*terms: tuple[float, Weights]) -> dict[str, float]:
    """The linear combination of linear combinations, each with its coefficient."""
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


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the time blocks of a measurement differ by.

    Attributes:
        layout: Its sessions in order, each with the number of its time blocks.
        residuals: What each of these adds to the error of the mean.
        processes: Number of its processes.
        process_sd: What these differ by, relative.
    """

    layout: _Layout
    residuals: NDArray[np.float64]
    processes: int
    process_sd: float


class Uncertainty:
    """Values and intervals of linear combinations of measurements.

    Args:
        measurements: Those that a combination may hold.
        blocks: Their raw samples, by the measurement's id; one that is absent has its own interval, independent of
            others.
        stacks: By key: how far processes differ depends on them, and is not known of a stack that is absent.
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
        """The same with further measurements, of which no samples are known."""
        return Uncertainty([*self.known.values(), *others], self._blocks, self.stacks)

    def blocks(self, id_: str) -> Sequence[Block]:
        """Raw samples of a measurement."""
        return self._blocks.get(id_, ())

    def sessions(self, id_: str) -> Mapping[tuple[int, int], NDArray[np.float64]]:
        """Latency of each visit, by process and round."""
        if id_ not in self._sessions:
            filled = [block for block in self.blocks(id_) if block.samples]
            values = block_values(filled, self.known[id_].unroll)
            self._sessions[id_] = {
                (block.process, block.round): latencies for block, latencies in zip(filled, values, strict=True)
            }
        return self._sessions[id_]

    def visited(self, id_: str) -> Mapping[tuple[int, int], NDArray[np.float64]]:
        """The same, of sessions that are known to be visits."""
        if id_ not in self._visited:
            seen = {(block.process, block.round) for block in self.blocks(id_) if block.visits}
            self._visited[id_] = {place: values for place, values in self.sessions(id_).items() if place in seen}
        return self._visited[id_]

    def value_ns(self, weights: Weights) -> float:
        """The combination of the means; rounded once."""
        return math.fsum(weight * self.known[id_].latency_ns for id_, weight in weights.items())

    def undisturbed_ns(self, weights: Weights) -> float | None:
        """The combination on a quiet machine; None where one of its bricks is not known there.

        What is measured apart from any brick, such as what a model's values cost, may be a difference, and stands.
        """
        total: list[float] = []
        for id_, weight in weights.items():
            measurement = self.known[id_]
            quiet = measurement.undisturbed_ns
            if quiet is None and measurement.subject is Subject.BRICK:
                return None
            total.append(weight * (measurement.latency_ns if quiet is None else quiet))
        return math.fsum(total)

    def half_ns(self, weights: Weights) -> float:
        """Half of the 95 % interval of the combination."""
        error, degrees = self.error_ns(weights)
        return student(degrees) * error

    def error_ns(self, weights: Weights) -> tuple[float, float]:
        """Standard error of the combination, and the degrees of freedom that it is known with."""
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
                known = sessions.setdefault(session, residuals)
                if known is not residuals:
                    size = min(known.size, residuals.size)
                    known[:size] += residuals[:size]
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
        """Relative standard error of one undisturbed latency, and its degrees of freedom; None where it is not known.

        It is what to add to ``Scatter.run_sd``, by which undisturbed latencies of runs of two processes differ: what a
        single one leaves in doubt beyond that is in it.

        Args:
            id_: Of the measurement.
            baseline: That of its run: which visits were quiet.
        """
        measurement = self.known[id_]
        blocks = [block for block in self.blocks(id_) if block.samples]
        threads = measurement.identity.conditions.threads
        found = undisturbed_error(blocks, measurement.unroll, baseline, threads=threads)
        if found is None or not measurement.undisturbed_ns:
            return None
        sampled, degrees = found[0] / measurement.undisturbed_ns, found[1]
        processes = len({process for process, _ in self.sessions(id_)})
        fewer = max(0.0, 1 / processes - 1 / _CALIBRATED)
        total = math.hypot(sampled, scatters(self.stacks, measurement).process_sd * math.sqrt(fewer))
        return total, degrees * (total / sampled) ** 4 if sampled else _MANY

    def draws_ns(self, ids: Sequence[str], count: int) -> NDArray[np.float64]:
        """Errors that some measurements may have, drawn together: one row each of ``count``, half of them mirrored.

        What a time block did to all is drawn once for all, and so is what their processes share and, where they come
        from several runs, what runs differ by. Fewer than five time blocks show little: draws of these are wider by as
        much as Student's t is.
        """
        rng = np.random.default_rng(_SEED)
        known = [self.known[id_] for id_ in ids]
        runs = sorted({measurement.run for measurement in known})
        shared = {run: rng.normal(size=(2, count // 2)) for run in runs}
        blocks: dict[tuple[_Session, int], NDArray[np.float64]] = {}
        drawn: dict[_Layout, NDArray[np.float64]] = {}
        rows = np.zeros((len(ids), count // 2))
        for number, measurement in enumerate(known):
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
                places = [(session, place) for session, count_ in seen.layout for place in range(count_)]
                for place in places:
                    if place not in blocks:
                        blocks[place] = rng.normal(size=count // 2)
                drawn[seen.layout] = np.stack([blocks[place] for place in places])
            rows[number] += (wider * seen.residuals) @ drawn[seen.layout]
        return np.hstack([rows, -rows])

    def runs_ns(self, weights: Weights) -> float:
        """Standard deviation of a combination by what runs differ by, each independent."""
        shared: defaultdict[str, float] = defaultdict(float)
        for id_, weight in weights.items():
            measurement = self.known[id_]
            shared[measurement.run] += weight * measurement.latency_ns * scatters(self.stacks, measurement).run_sd
        return math.hypot(*shared.values())

    def interval_ns(self, weights: Weights) -> tuple[float, float]:
        """95 % interval of a latency; low is never negative."""
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
    """None where there are too few time blocks to show anything."""
    places = sorted(sessions)
    values = [sessions[place] for place in places]
    means, visits = time_blocks(values), sum(session.size for session in values)
    if means.size < 2:
        return None
    counts = [max(1, session.size // VISITS_PER_BLOCK) for session in values]
    centre = math.fsum(float(session.sum()) for session in values) / visits
    scale = np.repeat([session.size / count for session, count in zip(values, counts, strict=True)], counts)
    return _Seen(
        tuple(((run, *place), count) for place, count in zip(places, counts, strict=True)),
        (means - centre) * scale / visits,
        len({process for process, _ in sessions}),
        process_sd,
    )


def _clusters(layouts: Iterable[_Layout]) -> list[set[_Session]]:
    """The sessions of some layouts, in sets that have none in common with each other."""
    clusters: list[set[_Session]] = []
    for layout in layouts:
        joined = {session for session, _ in layout}
        for cluster in [cluster for cluster in clusters if cluster & joined]:
            clusters.remove(cluster)
            joined |= cluster
        clusters.append(joined)
    return clusters


def _split(layout: _Layout, residuals: NDArray[np.float64]) -> Iterator[tuple[_Session, NDArray[np.float64]]]:
    """The part of each session."""
    begin = 0
    for session, count in layout:
        yield session, residuals[begin : begin + count]
        begin += count
