"""What is stored of some models and their bricks, as values: what estimates are made from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ..db import Failure, Measurement, Subject
from .choice import Choice
from .roofline.ceilings import Ceilings
from .uncertainty.calibration import scatter_of
from .uncertainty.interval import Uncertainty, Weights

__all__ = ["BrickMeasurements", "Stored", "Twin"]

Twin = tuple[str, str, str, str]
"""Run, key, cache state and variant."""


@dataclass(frozen=True, slots=True)
class BrickMeasurements:
    """What is known of bricks in one cache state; every mapping is by key.

    Attributes:
        latest: Latest measurement of each brick.
        inner: The same without the layout changes at its edges, where there are any.
        host: What the processor takes to enqueue a brick, where a device does the work.
        failures: Why a brick could not be measured.
        rivals: Measurements of each brick over all variants and stacks of the same system, device and conditions, the
            lowest latency first, up to a multiple of it that may be the lowest but for chance; those that run branches
            at once, on more cores than their threads say, only beside their like, and those that compute in TF32
            likewise. All of a brick are of one cache state, that of ``latest`` where it is there.
        fusion: Of each brick that is measured both ways, without fusion and with it, in the network's own layout.
        outdated: Those that only an earlier version measured, whose way was another.
        boundary: As ``latest``, of bricks at a model's own inputs and outputs, by variant.
    """

    latest: Mapping[str, Measurement] = field(default_factory=dict)
    inner: Mapping[str, Measurement] = field(default_factory=dict)
    host: Mapping[str, Measurement] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    rivals: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    fusion: Mapping[str, tuple[Measurement, Measurement]] = field(default_factory=dict)
    outdated: AbstractSet[str] = frozenset()
    boundary: Mapping[str, Mapping[str, Measurement]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stored:
    """What is known under one combination.

    Attributes:
        choice: The combination; None where nothing that matches is stored.
        bricks: What is known of bricks, by cache state.
        truths: Latest measurement of each whole model.
        data: What each model's own values cost; may be negative.
        model_failures: Why a whole model could not be measured.
        overheads: What one call costs, by cache state.
        uncertainty: Intervals of combinations of all of these.
        ceilings: What the machine does at most.
        twins: Measurements of bricks from the runs that took the truths, where there are later ones: by run, key, cache
            state and variant.
        kernels: Kernels that ran for bricks, by key.
    """

    choice: Choice | None = None
    bricks: Mapping[str, BrickMeasurements] = field(default_factory=dict)
    truths: Mapping[str, Measurement] = field(default_factory=dict)
    data: Mapping[str, Measurement] = field(default_factory=dict)
    model_failures: Mapping[str, Failure] = field(default_factory=dict)
    overheads: Mapping[str, Measurement] = field(default_factory=dict)
    uncertainty: Uncertainty = field(default_factory=lambda: Uncertainty([], {}))
    ceilings: Ceilings = field(default_factory=Ceilings)
    twins: Mapping[Twin, Measurement] = field(default_factory=dict)
    kernels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def in_run(self, weights: Weights, run: str) -> dict[str, float]:
        """A combination as a run measured it, as far as it did."""
        known = ((self.uncertainty.known[id_], weight) for id_, weight in weights.items())
        twins = (
            (self.twins.get((run, one.key, one.conditions.cache, one.variant), one), weight) for one, weight in known
        )
        return {one.id: weight for one, weight in twins}

    def members(self, ids: Collection[str]) -> dict[str, Measurement]:
        """The measurements of a combination, by id."""
        return {id_: self.uncertainty.known[id_] for id_ in ids}

    @property
    def scatter_known(self) -> bool | None:
        """Whether what processes and runs differ by is calibrated for the combination; None where there is none."""
        if self.choice is None:
            return None
        return scatter_of(self.choice.stack, self.choice.conditions.threads, Subject.BRICK).known

    def bricks_in(self, state: str) -> BrickMeasurements:
        """What is known in a cache state."""
        return self.bricks.get(state) or BrickMeasurements()
