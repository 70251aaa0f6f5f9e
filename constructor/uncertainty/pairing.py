"""Ratio of bricks and model, by trimmed means over visits that alternated.

A disturbance of the machine met both within seconds, so that their ratio holds even if neither latency does. Each visit
of all bricks gives one sum. A fifth of the sums, and of the model's visits, is left out at each end: another program
meets few visits, and by chance more of one side. Beside two busy loops at two threads this halves the error
(docs/explanation/trust.md).

The interval is a jackknife over sessions (Efron 1982, "The jackknife, the bootstrap and other resampling plans"): these
differ by more than their time blocks (``docs/results/sessions-runtime-g1-t1.json``), since each process places memory
anew and each session orders the pack anew. Fewer than four sessions show too little, and time blocks stand for them,
and visits for a single block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...db.samples.statistics import VISITS_PER_BLOCK, student
from ...db.values import Measurement, Subject
from .interval import Uncertainty, Weights

FUSION = ("unfused", "extended")
"""Algorithms without fusion and with it, in the same layout: their difference is the saving of fusion. It may be
measured apart from the model."""

_TRIM = 0.2
"""Share of the visits that is left out at each end: those that something else disturbed."""

_SESSIONS = 4
"""Sessions of a default run. Of fewer, Student's t makes an interval too wide to be of use."""

Array = NDArray[np.float64]
Sessions = Mapping[tuple[int, int], Array]


@dataclass(frozen=True, slots=True)
class Paired:
    """Latencies of bricks and model in the sessions that visited both.

    Attributes:
        estimate_ns: Trimmed mean of the combination of bricks.
        measured_ns: Trimmed mean of the model.
        spread: Standard error of the logarithm of their ratio.
        degrees: Degrees of freedom of ``spread``.
        apart: Half of the 95 % interval of the parts that were measured apart from the model, relative to the estimate.
    """

    estimate_ns: float
    measured_ns: float
    spread: float
    degrees: float
    apart: float = 0.0

    @property
    def half(self) -> float:
        """Half of the 95 % interval of the logarithm of the ratio, without the error of the method."""
        return math.hypot(student(self.degrees) * self.spread, self.apart)


def paired(
    weights: Weights, truth: Measurement, measurements: Mapping[str, Measurement], uncertainty: Uncertainty
) -> Paired | None:
    """Follow a combination and a model through the sessions that they share.

    Args:
        weights: The combination: bricks, and constant parts that were measured apart from any model (a call, the saving
            of fusion).
        truth: The model.
        measurements: Measurements of the combination by id.
        uncertainty: Holds the raw samples.

    Returns:
        None if a brick was not visited in any session of the model.
    """
    model = uncertainty.visited(truth.id)
    taken: list[tuple[float, Sessions]] = []
    sessions: set[tuple[int, int]] | None = None
    constant: dict[str, float] = {}
    for id_, weight in weights.items():
        measurement = measurements[id_]
        shared = _shared(measurement, truth, uncertainty)
        if not shared:
            if measurement.subject is Subject.BRICK and measurement.variant not in FUSION:
                return None
            constant[id_] = weight  # a call, what values cost, or what fusion saves: visited beside any model
            continue
        fitting = {session: values for session, values in shared.items() if values.size == model[session].size}
        taken.append((weight, fitting))
        sessions = {*fitting} if sessions is None else sessions & fitting.keys()
        if not sessions:
            return None
    if sessions is None:
        return None
    factors = np.array([weight for weight, _ in taken])
    together = {session: factors @ np.stack([values[session] for _, values in taken]) for session in sorted(sessions)}
    constant_ns, models = uncertainty.value_ns(constant), [model[session] for session in together]
    bricks = [values + constant_ns for values in together.values()]
    estimate, measured = (trimmed(np.concatenate(side)) for side in (bricks, models))
    if estimate <= 0 or measured <= 0:
        return None
    spread, degrees = ratio_spread(bricks, models)
    return Paired(estimate, measured, spread, degrees, uncertainty.half_ns(constant) / estimate)


def ratio_spread(ours: Sequence[Array], theirs: Sequence[Array]) -> tuple[float, float]:
    """Return the standard error of the logarithm of a ratio of trimmed means, and its degrees of freedom.

    Args:
        ours: Visits of one side, by session (or process).
        theirs: Visits of the other side; those at one position belong together.
    """
    units = [*zip(ours, theirs, strict=True)]
    if len(units) < _SESSIONS:
        units = [block for pair in units for block in zip(*map(_blocks, pair), strict=True)]
    if len(units) < 2:
        units = [visit for pair in units for visit in zip(*(side[:, np.newaxis] for side in pair), strict=True)]
    count = len(units)
    if count < 2:
        return math.inf, 1
    log_ratios = np.empty(count)
    for omitted in range(count):
        sides = zip(*(unit for number, unit in enumerate(units) if number != omitted), strict=True)
        mine, other = (max(trimmed(np.concatenate(side)), 1e-9) for side in sides)
        log_ratios[omitted] = math.log(mine / other)
    return float(log_ratios.std()) * math.sqrt(count - 1), count - 1


def _blocks(session: Array) -> list[Array]:
    """Return the time blocks of a session."""
    return np.array_split(session, max(1, session.size // VISITS_PER_BLOCK))


def trimmed(values: Array) -> float:
    """Return the mean without a fifth of the values at each end."""
    cut = int(values.size * _TRIM)
    return float(np.sort(values)[cut : values.size - cut].mean())


def _shared(brick: Measurement, truth: Measurement, uncertainty: Uncertainty) -> Mapping[tuple[int, int], Array]:
    """Return the sessions of a brick that also visited its model."""
    visited, model = uncertainty.visited(brick.id), uncertainty.visited(truth.id)
    if brick.run == truth.run and visited.keys() <= model.keys():
        return visited
    return {
        session: visited[session]
        for session in visited
        if session in model and _at_once(brick, truth, uncertainty, session)
    }


def _at_once(brick: Measurement, other: Measurement, uncertainty: Uncertainty, session: tuple[int, int]) -> bool:
    """Return True if blocks of the same number were taken at the same time: each run counts its processes anew."""
    if brick.run == other.run:
        return True
    ours, theirs = (
        [block for block in uncertainty.blocks(measurement.id) if (block.process, block.round) == session]
        for measurement in (brick, other)
    )
    return any(block.beside(twin) for block in ours for twin in theirs)
