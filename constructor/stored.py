"""What is stored of some models and their bricks, as values: what estimates are made from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from ..bricks.graph.boundary import boundary_of, boundary_variants
from ..bricks.graph.graph import ModelGraph
from ..bricks.sequence import LayerSequence
from ..db import Failure, Measurement, Subject
from .choice import Choice
from .result import Interpolation
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
        read: Those of ``latest`` that were not measured, but read between other sizes of a model (``interpolation``).
        repeated: As ``latest``, of bricks whose weights an iteration before has read, by footprint class in bytes.
    """

    latest: Mapping[str, Measurement] = field(default_factory=dict)
    inner: Mapping[str, Measurement] = field(default_factory=dict)
    host: Mapping[str, Measurement] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    rivals: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    fusion: Mapping[str, tuple[Measurement, Measurement]] = field(default_factory=dict)
    outdated: AbstractSet[str] = frozenset()
    boundary: Mapping[str, Mapping[str, Measurement]] = field(default_factory=dict)
    repeated: Mapping[int, Mapping[str, Measurement]] = field(default_factory=dict)
    read: AbstractSet[str] = frozenset()

    def measured(self, key: str, reuse: int = 0) -> bool:
        """Whether a brick was measured, as warm as iterations find it or at all, and not only read between others."""
        return key in self.repeated.get(reuse, {}) or (key in self.latest and key not in self.read)

    def of(self, part: LayerSequence) -> Measurement | None:
        """The latest measurement of a sequence's brick, as warm as the sequence finds its weights; None without any."""
        return self.repeated.get(part.reuse, {}).get(part.key) or self.latest.get(part.key)

    def latency_ns(self, part: LayerSequence) -> float:
        """The latency of a sequence that is measured."""
        found = self.of(part)
        return (self.latest[part.key] if found is None else found).latency_ns


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
        interpolated: How bricks were read between other sizes of one model, for which this then is alone; else None.
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
    interpolated: Interpolation | None = None

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

    def at_boundary(self, graph: ModelGraph | None, parts: Sequence[LayerSequence], state: str) -> Stored:
        """The same for one model: bricks at its own inputs and outputs as they were measured there, where they were.

        A brick that a model holds at its edge and inside of it as well is taken as inside, and so are all bricks of a
        model that reads and gives little: what is stored of them may have been measured for another model.

        Args:
            graph: The graph that was cut; None where it is not known.
            parts: Its sequences.
            state: The cache state that its bricks are looked up in.
        """
        bricks = self.bricks_in(state)
        if graph is None or not any(bricks.boundary.values()):
            return self
        inside = {part.key for part in parts if not boundary_of(graph, part)}
        latest = dict(bricks.latest)
        for key, (variant, *others) in boundary_variants(graph, parts).items():
            if not others and key not in inside:
                found = bricks.boundary.get(variant, {}).get(key)
                latest |= {} if found is None else {key: found}
        return replace(self, bricks={**self.bricks, state: replace(bricks, latest=latest)})
