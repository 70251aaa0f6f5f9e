"""Evidence: all stored measurements of some models and their bricks under one combination, as values for estimates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..bricks.decomposition import Decomposition
from ..bricks.graph.boundary import USUAL, Caches, Place, boundary_variants, typical, variants_along_fusions
from ..bricks.graph.footprint import is_level, level_name, nearest_levels
from ..bricks.graph.model_graph import ModelGraph
from ..bricks.layer import Cutting, LayerSequence
from ..bricks.operators import Trait, having
from ..db import Failure, KernelView, Measurement, Run, Subject
from ..db.values import HOST, INNER
from .choice import Choice, Query
from .curve import Interpolation
from .interventions import Interventions, state_of
from .measurements import BrickMeasurements
from .remedies import Remedies
from .roofline import Ceilings
from .uncertainty.calibration import Calibration, scatter_of
from .uncertainty.interval import Uncertainty, Weights
from .uncertainty.pairing import FUSION

if TYPE_CHECKING:
    from .predictor import Predicted

REACH = 1.5
"""Greatest latency of a rival, as a multiple of the lowest: noise may have exchanged them."""

MOST_RIVALS = 6
"""Greatest number of rivals of one brick; further ones are seldom the lowest."""

Twin = tuple[str, str, str, str, str]
"""Run, stack, key, cache state and variant."""


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """The request for estimates."""

    cutting: Cutting
    place: Query
    remedies: Remedies


@dataclass(frozen=True, slots=True)
class Evidence:
    """All measurements of some models under one combination.

    Attributes:
        request: The request.
        choice: The combination; None if no measurement matches.
        bricks: Measurements of bricks, by model key and cache state.
        executed: Executed graph of each model, by its key.
        models: Measurements of each whole model in any cache state, by its key.
        truths: The measurement of each model for comparison with its estimate.
        model_failures: Failed measurements of whole models.
        overheads: Cost of one call, by cache state.
        uncertainty: Intervals of combinations of these measurements.
        ceilings: The machine's ceilings.
        twins: Measurements of bricks in the runs of the truths, if there are later ones.
        views: Recorded kernels of bricks and models, by key.
        runs: The runs, by id.
        interpolated: Interpolated bricks of each model; or the reason why interpolation failed.
        predicted: Predicted bricks of each model; or the reason for an unknown latency.
    """

    request: EstimateRequest
    choice: Choice | None = None
    bricks: Mapping[tuple[str, str], BrickMeasurements] = field(default_factory=dict)
    executed: Mapping[str, Interventions] = field(default_factory=dict)
    models: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    truths: Mapping[str, Measurement] = field(default_factory=dict)
    model_failures: Mapping[str, Failure] = field(default_factory=dict)
    overheads: Mapping[str, Measurement] = field(default_factory=dict)
    uncertainty: Uncertainty = field(default_factory=lambda: Uncertainty([], {}))
    ceilings: Ceilings = field(default_factory=Ceilings)
    twins: Mapping[Twin, Measurement] = field(default_factory=dict)
    views: Mapping[str, KernelView] = field(default_factory=dict)
    runs: Mapping[str, Run] = field(default_factory=dict)
    interpolated: Mapping[str, Interpolation | str] = field(default_factory=dict)
    predicted: Mapping[str, Predicted | str] = field(default_factory=dict)

    def in_run(self, weights: Weights, run: str) -> dict[str, float]:
        """Return a combination with the run's own measurements, for all bricks that it measured."""
        taken = ((self.uncertainty.known[id_], weight) for id_, weight in weights.items())
        return {self.twins.get(twin_of(latest, run), latest).id: weight for latest, weight in taken}

    def members(self, ids: Collection[str]) -> dict[str, Measurement]:
        """Return the measurements of a combination, by id."""
        return {id_: self.uncertainty.known[id_] for id_ in ids}

    @property
    def scatter_known(self) -> bool | None:
        """True if the scatter between processes and runs is calibrated for the combination; None without one."""
        if self.choice is None:
            return None
        return scatter_of(self.choice.stack, self.choice.conditions.threads, Subject.BRICK).known

    @property
    def calibrations(self) -> tuple[Calibration, ...]:
        """The user's own fits of the error of estimates on this system, the latest first."""
        if self.choice is None:
            return ()
        return Calibration.of_runs(self.runs.values(), self.choice.system_key, self.choice.system.cpu)

    def bricks_in(self, model: str, state: str) -> BrickMeasurements:
        """Return the measurements of a model's bricks in a cache state."""
        return self.bricks.get((model, state)) or BrickMeasurements()

    def kernels(self, key: str) -> tuple[str, ...] | None:
        """Return the names of a brick's recorded kernels, longest first; None without a record."""
        view = self.views.get(key)
        if view is None:
            return None
        ordered = sorted(view.kernels, key=lambda kernel: -(kernel.time_ns or 0))
        return tuple(dict.fromkeys(kernel.name for kernel in ordered))


def twin_of(measurement: Measurement, run: str) -> Twin:
    """Return the identity of the same brick in another run on the same stack."""
    return run, measurement.stack, measurement.key, measurement.conditions.cache, measurement.variant


class Table:
    """Measurements of bricks under one combination, by key, variant and cache state.

    It alone replaces a missing footprint class by the nearest one.

    Args:
        measurements: Measurements of the combination's own stack.
        rivals: Competing measurements of all stacks and cache states, by key.
        failures: Failures of the combination's own stack.
        eager: Keys of stacks without fusion.
        caches: Of the machine, as its latest run found them.
    """

    def __init__(
        self,
        measurements: Iterable[Measurement],
        rivals: Mapping[str, Sequence[Measurement]],
        failures: Iterable[Failure],
        eager: Collection[str],
        caches: Caches = USUAL,
    ) -> None:
        self.caches = caches
        self._own: defaultdict[tuple[str, str], dict[str, Measurement]] = defaultdict(dict)
        for measurement in measurements:
            self._own[measurement.key, measurement.variant][measurement.conditions.cache] = measurement
        self._failures = {(failure.key, failure.conditions.cache): failure for failure in failures}
        self._rivals = rivals
        self._eager = eager

    def nearest(self, key: str, variant: str, state: str) -> Measurement | None:
        """Return the latest measurement of a brick in a cache state or the nearest footprint class, if any."""
        by_state = self._own.get((key, variant), {})
        return next((by_state[level] for level in nearest_levels(state) if level in by_state), None)

    def found(self, keys: Collection[str], variant: str, state: str) -> dict[str, Measurement]:
        """Return the nearest measurements of several bricks by key; unmeasured bricks are absent."""
        pairs = ((key, self.nearest(key, variant, state)) for key in keys)
        return {key: measurement for key, measurement in pairs if measurement is not None}

    def failures(self, keys: Collection[str], state: str) -> dict[str, Failure]:
        """Return the failures of bricks in a cache state."""
        return {key: self._failures[key, state] for key in keys if (key, state) in self._failures}

    def rivals(self, key: str, state: str, measured: Measurement | None, *, view: bool) -> tuple[Measurement, ...]:
        """Return a brick's lowest latency over all competing stacks, and others that noise may have exchanged with it.

        Args:
            key: The brick.
            state: Cache state of the lookup.
            measured: Its measurement on the combination's own stack, for its cache state; None: use the nearest state.
            view: True if it ends in a rearrangement. Stacks without fusion leave it to the reader of the result: they
                compete only if no other stack has measured the brick. The bound is then lower, never higher.
        """
        everyone = self._rivals.get(key, ())
        competing = [one for one in everyone if not (view and one.stack in self._eager)] or everyone
        caches = nearest_levels(state) if measured is None else [measured.conditions.cache]
        for cache in caches:
            here = [measurement for measurement in competing if measurement.conditions.cache == cache]
            if here:
                here.sort(key=lambda measurement: measurement.latency_ns)
                most_ns = REACH * here[0].latency_ns
                return tuple(rival for rival in here[:MOST_RIVALS] if rival.latency_ns <= most_ns)
        return ()


def bricks_of(
    model: Decomposition, executed: Interventions, choice: Choice | None, table: Table
) -> dict[str, BrickMeasurements]:
    """Return the measurements of a model's bricks and its executed bricks, by cache state.

    Bricks at the model's inputs and outputs and bricks of iterations have the measurements made for these positions.
    """
    state = state_of(model, choice)
    cuts: list[tuple[ModelGraph, tuple[LayerSequence, ...], str]] = [(model.graph, model.sequences, state)]
    if executed.graph is not None:
        cuts.insert(0, (executed.graph, executed.parts, executed.level))
    keys = {part.key for _, parts, _ in cuts for part in parts}
    units = {part.key for part in executed.units or ()}
    by_level = {}
    for level in dict.fromkeys(level for *_, level in cuts):
        here = [(graph, parts) for graph, parts, at in cuts if at == level]
        inside, inner = table.found(keys, "", level), table.found(keys, INNER, level)
        variants: dict[Place, str] = {}
        for graph, parts in here:
            found = _variants(model, graph, parts, table.caches)
            variants |= {place: one for place, one in found.items() if place[0] not in inner}  # its edges would be cold
        placed = dict(at_boundary(variants, level, table))
        only = {key for key, _ in placed} - {
            part.key for _, parts in here for part in parts if (part.key, part.layers) not in placed
        }
        latest = inside | {key: measurement for (key, _), measurement in placed.items() if key in only}
        plain, fused = (table.found(units if level == state else (), variant, level) for variant in FUSION)
        by_level[level] = BrickMeasurements(
            latest=latest,
            inner=inner,
            host=table.found(keys, HOST, level),
            failures=table.failures(keys, level),
            rivals=_rivals(model, level, inside, table) if level == state else {},
            fusion={key: (plain[key], fused[key]) for key in plain.keys() & fused.keys()},
            repeated=_repeated(here, level, table),
            placed=placed,
            variants=variants,
        )
    return by_level


def _variants(
    model: Decomposition, graph: ModelGraph, parts: Sequence[LayerSequence], caches: Caches
) -> Mapping[Place, str]:
    """Return the variants that sequences of a model's graph, or of its executed graph, are at their positions."""
    if graph.salt:
        return boundary_variants(graph, parts, caches)
    return {} if model.executed is None else variants_along_fusions(model.executed, parts, typical(caches.last))


def at_boundary(variants: Mapping[Place, str], state: str, table: Table) -> Iterator[tuple[Place, Measurement]]:
    """Yield the place of each sequence whose inputs or outputs are cold, and the measurement for it.

    The model decides which: a stored variant may be of another model.

    Args:
        variants: Of the sequences of the model at these places.
        state: Cache state of the lookup.
        table: The measurements.
    """
    for place, variant in variants.items():
        if (placed := table.nearest(place[0], variant, state)) is not None:
            yield place, placed


def _repeated(
    cuts: Iterable[tuple[ModelGraph, Sequence[LayerSequence]]], state: str, table: Table
) -> dict[int, dict[str, Measurement]]:
    """Return bricks of iterations in the footprint class of their weights, by class and key."""
    repeated: dict[int, dict[str, Measurement]] = {}
    iterated = {(part.reuse, part.key) for _, parts in cuts for part in parts if part.reuse and is_level(state)}
    for level, key in sorted(iterated):
        if (warm := table.nearest(key, "", level_name(level))) is not None:
            repeated.setdefault(level, {})[key] = warm
    return repeated


def _rivals(
    model: Decomposition, state: str, inside: Mapping[str, Measurement], table: Table
) -> dict[str, tuple[Measurement, ...]]:
    """Return the competing measurements for the lower bound, by the key of the brick.

    For bricks of iterations the warmer measurement competes for every occurrence. The bound is then lower than possible
    by the extra time of the first iteration.
    """
    views = _views(model)
    keys = dict.fromkeys([*(part.key for part in model.sequences), *(window.key for window in model.windows)])
    rivals = {key: table.rivals(key, state, inside.get(key), view=key in views) for key in keys}
    for level, key in sorted(_iterated(model)) if is_level(state) else ():
        nearest = table.nearest(key, "", level_name(level))
        warm = table.rivals(key, level_name(level), nearest, view=key in views)
        both = [several for several in (rivals.get(key), warm) if several]
        if both:
            rivals[key] = min(both, key=lambda several: several[0].latency_ns)
    return {key: several for key, several in rivals.items() if several}


def _iterated(model: Decomposition) -> set[tuple[int, str]]:
    """Return footprint class and key of the sequences of iterations and of their competing windows."""
    classes = {index: part.reuse for part in model.sequences if part.reuse for index in part.layers}
    iterated = {(part.reuse, part.key) for part in model.sequences if part.reuse}
    live = model.graph.live if classes else ()
    for window in model.windows if classes else ():
        iterated |= {(classes[index], window.key) for index in live[window.begin : window.end] if index in classes}
    return iterated


def ends_in_view(operators: Sequence[str]) -> bool:
    """Return True if a brick ends with a reordering or selection of values."""
    last = next((name for name in reversed(operators) if name not in having(Trait.THROUGH)), "")
    return last in having(Trait.STRIDED)


def _views(model: Decomposition) -> set[str]:
    """Return the keys of bricks and windows of the model's own graph that end in a view."""
    if model.graph.salt:
        return set()
    layers, live = model.graph.layers, model.graph.live
    spans = [(part.key, part.layers) for part in model.sequences]
    spans += [(window.key, live[window.begin : window.end]) for window in model.windows]
    return {key for key, indices in spans if ends_in_view([layers[index].op_type for index in indices])}
