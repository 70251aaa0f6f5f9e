"""Ratio of bricks and model, by means over visits that alternated.

A disturbance of the machine met both within seconds, so that their ratio holds even if neither latency does. Its
interval is a bootstrap over sessions: these differ by more than their time blocks (``benchmarks/sessions.py``), since
each process places memory anew and each session orders the pack anew. Fewer than four sessions show too little, and
time blocks stand for them. Each draw takes bricks and model of the same sessions or blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...db.samples.statistics import student, time_blocks
from ...db.values import Measurement, Subject
from .interval import Uncertainty, Weights

FUSION = ("unfused", "extended")
"""Algorithms without fusion and with it, in the same layout: their difference is the saving of fusion. It may be
measured apart from the model."""

_DRAWS = 2000
_SEED = 0

_STALL = 3.0
_FEW = 0.1

_SESSIONS = 4
"""Sessions of a default run. Of fewer, Student's t makes an interval too wide to be of use."""

Array = NDArray[np.float64]
Sessions = Mapping[tuple[int, int], Array]


@dataclass(frozen=True, slots=True)
class Paired:
    """Latencies of bricks and model in the sessions that visited both.

    Attributes:
        estimate_ns: Mean of the combination of bricks.
        measured_ns: Mean of the model.
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
    weights: Weights, truth: Measurement, known: Mapping[str, Measurement], uncertainty: Uncertainty
) -> Paired | None:
    """Follow a combination and a model through the sessions that they share.

    Args:
        weights: The combination: bricks, and constant parts that were measured apart from any model (a call, the saving
            of fusion).
        truth: The model.
        known: Measurements of the combination by id.
        uncertainty: Holds the raw samples.

    Returns:
        None if a brick was not visited in any session of the model.
    """
    model = uncertainty.visited(truth.id)
    taken: list[tuple[float, Sessions]] = []
    places: set[tuple[int, int]] | None = None
    constant: dict[str, float] = {}
    for id_, weight in weights.items():
        measurement = known[id_]
        shared = _shared(measurement, truth, uncertainty)
        if not shared:
            if measurement.subject is Subject.BRICK and measurement.variant not in FUSION:
                return None
            constant[id_] = weight  # a call, what values cost, or what fusion saves: visited beside any model
            continue
        fitting = {place: values for place, values in shared.items() if values.size == model[place].size}
        taken.append((weight, fitting))
        places = {*fitting} if places is None else places & fitting.keys()
        if not places:
            return None
    if places is None:
        return None
    factors = np.array([weight for weight, _ in taken])
    together = {place: factors @ np.stack([values[place] for _, values in taken]) for place in sorted(places)}
    bricks, models = without_stalls([*together.values()], [model[place] for place in together])
    constant_ns = uncertainty.value_ns(constant)
    ours, theirs = _units(bricks) + constant_ns, _units(models)
    estimate = float(np.concatenate(bricks).mean()) + constant_ns
    measured = float(np.concatenate(models).mean())
    if estimate <= 0 or measured <= 0:
        return None
    apart = uncertainty.half_ns(constant) / estimate
    return Paired(estimate, measured, ratio_spread(ours, theirs), max(1, ours.size - 1), apart)


def _units(sessions: Sequence[Array]) -> Array:
    """Return the values that are independent of each other: means of sessions, or of time blocks with few sessions."""
    if len(sessions) < _SESSIONS:
        return time_blocks(sessions)
    return np.array([session.mean() for session in sessions])


def without_stalls(bricks: Sequence[Array], models: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Return both sides without the visits in which either took more than three times its median.

    In these visits the machine stopped for a tenth of a second or more, and by chance met one of both. The rule does
    not see their ratio. If more than a tenth of the visits are slow, the machine is slow, and all visits are kept.
    """
    limits = [_STALL * float(np.median(np.concatenate(side))) for side in (bricks, models)]
    kept = [(ours <= limits[0]) & (theirs <= limits[1]) for ours, theirs in zip(bricks, models, strict=True)]
    if np.concatenate(kept).mean() < 1 - _FEW:
        return [*bricks], [*models]
    filled = [(ours[calm], theirs[calm]) for ours, theirs, calm in zip(bricks, models, kept, strict=True) if calm.any()]
    return [ours for ours, _ in filled], [theirs for _, theirs in filled]


def ratio_spread(ours: Array, theirs: Array) -> float:
    """Return the standard deviation of the logarithm of the ratio of means, over draws of sessions or time blocks."""
    count = ours.size
    if count < 2:
        return math.inf
    draws = _draws(count)
    drawn = np.log(ours[draws].mean(axis=1).clip(min=1e-9)) - np.log(theirs[draws].mean(axis=1))
    return float(drawn.std()) * math.sqrt(count / (count - 1))


@lru_cache(maxsize=16)
def _draws(count: int) -> NDArray[np.int64]:
    """Return the sessions or time blocks of each replicate: equal for equal counts."""
    return np.random.default_rng(_SEED).integers(0, count, size=(_DRAWS, count))


def _shared(brick: Measurement, truth: Measurement, uncertainty: Uncertainty) -> Mapping[tuple[int, int], Array]:
    """Return the sessions of a brick that also visited its model."""
    own, model = uncertainty.visited(brick.id), uncertainty.visited(truth.id)
    if brick.run == truth.run and own.keys() <= model.keys():
        return own
    return {place: own[place] for place in own if place in model and _at_once(brick, truth, uncertainty, place)}


def _at_once(brick: Measurement, other: Measurement, uncertainty: Uncertainty, place: tuple[int, int]) -> bool:
    """Return True if blocks of the same number were taken at the same time: each run counts its processes anew."""
    if brick.run == other.run:
        return True
    ours, theirs = (
        [block for block in uncertainty.blocks(measurement.id) if (block.process, block.round) == place]
        for measurement in (brick, other)
    )
    return any(block.beside(twin) for block in ours for twin in theirs)
