"""Evidence: what is stored of some models and their bricks under one combination, as values. Estimates read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..bricks.decomposition import Decomposition
from ..bricks.graph.boundary import boundary_of, boundary_variants
from ..bricks.graph.footprint import is_level, level_name, nearest_levels
from ..bricks.graph.graph import ModelGraph
from ..bricks.layer import LayerSequence
from ..db import Failure, KernelView, Measurement, Run, Subject
from ..db.values import HOST, INNER
from .choice import Choice, Cutting, MeasuredPlace
from .curve import Interpolation
from .decomposition import Interventions, state_of
from .measurements import BrickMeasurements
from .remedies import Remedies
from .roofline import Ceilings
from .uncertainty.calibration import Calibration, scatter_of
from .uncertainty.interval import Uncertainty, Weights
from .uncertainty.pairing import FUSION

if TYPE_CHECKING:
    from .predictor import Predicted

REACH = 1.5
"""A measurement whose latency is so many times the lowest may be the lowest but for chance."""

MOST_RIVALS = 6
"""Rivals of one brick. Of a dozen versions of a runtime that are about as fast, the others are seldom the lowest."""

Twin = tuple[str, str, str, str, str]
"""Run, stack, key, cache state and variant."""


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """What estimates were asked for.

    Attributes:
        cutting: How models are decomposed.
        place: The place, which stands where nothing is stored.
        remedies: What would measure what is missing.
    """

    cutting: Cutting
    place: MeasuredPlace
    remedies: Remedies


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of some models under one combination.

    Attributes:
        request: What was asked for.
        choice: The combination; None where nothing that matches is stored.
        bricks: What is known of bricks, by the model's key and the cache state.
        executed: What the runtime executes for each model, by the model's key.
        models: Measurements of each whole model in any cache state, by its key.
        truths: Of these, the one that an estimate is compared with.
        data: What each model's own values cost; may be negative.
        model_failures: Why a whole model could not be measured.
        overheads: What one call costs, by cache state.
        uncertainty: Intervals of combinations of all of these.
        ceilings: What the machine does at most.
        twins: Measurements of bricks from the runs that took the truths, where there are later ones.
        views: Kernels that ran for bricks and models, by key.
        runs: The runs, by id.
        interpolated: How bricks of a model were read between other sizes of it; or why they could not be.
        predicted: How bricks of a model were predicted; or why its latency is not known all the same.
    """

    request: EstimateRequest
    choice: Choice | None = None
    bricks: Mapping[tuple[str, str], BrickMeasurements] = field(default_factory=dict)
    executed: Mapping[str, Interventions] = field(default_factory=dict)
    models: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    truths: Mapping[str, Measurement] = field(default_factory=dict)
    data: Mapping[str, Measurement] = field(default_factory=dict)
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
        """A combination as a run measured it, as far as it did."""
        taken = ((self.uncertainty.known[id_], weight) for id_, weight in weights.items())
        return {self.twins.get(twin_of(latest, run), latest).id: weight for latest, weight in taken}

    def members(self, ids: Collection[str]) -> dict[str, Measurement]:
        """The measurements of a combination, by id."""
        return {id_: self.uncertainty.known[id_] for id_ in ids}

    @property
    def scatter_known(self) -> bool | None:
        """Whether what processes and runs differ by is calibrated for the combination; None where there is none."""
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
        """What is known of a model's bricks in a cache state.

        Args:
            model: Key of the model.
            state: The cache state.
        """
        return self.bricks.get((model, state)) or BrickMeasurements()

    def kernels(self, key: str) -> tuple[str, ...] | None:
        """Names of the kernels that ran for a brick, the longest first; None where none were recorded."""
        view = self.views.get(key)
        if view is None:
            return None
        ordered = sorted(view.kernels, key=lambda kernel: -(kernel.time_ns or 0))
        return tuple(dict.fromkeys(kernel.name for kernel in ordered))


def twin_of(measurement: Measurement, run: str) -> Twin:
    """What the same brick was measured as in another run, on the same stack."""
    return run, measurement.stack, measurement.key, measurement.conditions.cache, measurement.variant


class Table:
    """What is stored of bricks under one combination, by key, variant and cache state.

    Which footprint class stands for another is decided here and nowhere else.

    Args:
        own: Measurements of the combination's own stack.
        rivals: By key, measurements that may compete, of all stacks and cache states.
        failures: Failures of the own stack.
        eager: Keys of stacks that run operators as they are written.
    """

    def __init__(
        self,
        own: Iterable[Measurement],
        rivals: Mapping[str, Sequence[Measurement]],
        failures: Iterable[Failure],
        eager: Collection[str],
    ) -> None:
        self._own: defaultdict[tuple[str, str], dict[str, Measurement]] = defaultdict(dict)
        for measurement in own:
            self._own[measurement.key, measurement.variant][measurement.conditions.cache] = measurement
        self._failures = {(failure.key, failure.conditions.cache): failure for failure in failures}
        self._rivals = rivals
        self._eager = eager

    def nearest(self, key: str, variant: str, state: str) -> Measurement | None:
        """The latest measurement of a brick in a cache state, else in the nearest footprint class; None without any."""
        known = self._own.get((key, variant), {})
        return next((known[level] for level in nearest_levels(state) if level in known), None)

    def found(self, keys: Collection[str], variant: str, state: str) -> dict[str, Measurement]:
        """The same of several bricks, by key; those without are absent."""
        pairs = ((key, self.nearest(key, variant, state)) for key in keys)
        return {key: measurement for key, measurement in pairs if measurement is not None}

    def failures(self, keys: Collection[str], state: str) -> dict[str, Failure]:
        """Why bricks could not be measured in a cache state."""
        return {key: self._failures[key, state] for key in keys if (key, state) in self._failures}

    def rivals(self, key: str, state: str, own: Measurement | None, *, view: bool) -> tuple[Measurement, ...]:
        """The lowest latencies of a brick over all stacks that may compete, and those that may be lower but for chance.

        Args:
            key: The brick.
            state: Cache state that it is looked up in.
            own: Its measurement on the own stack, whose cache state decides; None: the nearest state decides.
            view: Whether it ends in a rearrangement. What runs operators as written leaves that to whoever reads the
                result, and a latency without it is no bound.
        """
        competing = [
            measurement for measurement in self._rivals.get(key, ()) if not (view and measurement.stack in self._eager)
        ]
        places = nearest_levels(state) if own is None else [own.conditions.cache]
        for place in places:
            here = [measurement for measurement in competing if measurement.conditions.cache == place]
            if here:
                here.sort(key=lambda measurement: measurement.latency_ns)
                most_ns = REACH * here[0].latency_ns
                return tuple(rival for rival in here[:MOST_RIVALS] if rival.latency_ns <= most_ns)
        return ()


def bricks_of(
    model: Decomposition, executed: Interventions, choice: Choice | None, table: Table
) -> dict[str, BrickMeasurements]:
    """What is known of a model's bricks, and of those that its runtime executes, by cache state.

    Bricks at the model's own inputs and outputs, and those of iterations, are taken as they were measured for these.

    Args:
        model: As decomposed.
        executed: What the runtime executes for it.
        choice: The combination.
        table: What is stored under it.
    """
    state = state_of(model, choice)
    cuts: list[tuple[ModelGraph, tuple[LayerSequence, ...], str]] = [(model.graph, model.sequences, state)]
    if executed.graph is not None:
        cuts.insert(0, (executed.graph, executed.parts, executed.level))
    keys = {part.key for _, parts, _ in cuts for part in parts}
    units = {part.key for part in executed.units or ()}
    made = {}
    for level in dict.fromkeys(level for *_, level in cuts):
        here = [(graph, parts) for graph, parts, at in cuts if at == level]
        inside = table.found(keys, "", level)
        latest = dict(inside)
        for graph, parts in here:
            latest |= at_boundary(graph, parts, level, table) if graph.salt else ()
        plain, fused = (table.found(units if level == state else (), variant, level) for variant in FUSION)
        made[level] = BrickMeasurements(
            latest=latest,
            inner=table.found(keys, INNER, level),
            host=table.found(keys, HOST, level),
            failures=table.failures(keys, level),
            rivals=_rivals(model, level, inside, table) if level == state else {},
            fusion={key: (plain[key], fused[key]) for key in plain.keys() & fused.keys()},
            repeated=_repeated(here, level, table),
        )
    return made


def at_boundary(
    graph: ModelGraph, parts: Sequence[LayerSequence], state: str, table: Table
) -> Iterator[tuple[str, Measurement]]:
    """Bricks that a model holds only at its own inputs and outputs, as they were measured there, by key.

    All bricks of a model that reads and gives little are taken as inside: what is stored of them may have been measured
    for another model.

    Args:
        graph: The graph that was cut.
        parts: Its sequences.
        state: The cache state that its bricks are looked up in.
        table: What is stored of bricks.
    """
    inside = {part.key for part in parts if not boundary_of(graph, part)}
    for key, (variant, *others) in boundary_variants(graph, parts).items():
        if not others and key not in inside and (found := table.nearest(key, variant, state)) is not None:
            yield key, found


def _repeated(
    cuts: Iterable[tuple[ModelGraph, Sequence[LayerSequence]]], state: str, table: Table
) -> dict[int, dict[str, Measurement]]:
    """Bricks of iterations, in the footprint class that these find their weights in, by class and key."""
    repeated: dict[int, dict[str, Measurement]] = {}
    wanted = {(part.reuse, part.key) for _, parts in cuts for part in parts if part.reuse and is_level(state)}
    for level, key in sorted(wanted):
        if (warm := table.nearest(key, "", level_name(level))) is not None:
            repeated.setdefault(level, {})[key] = warm
    return repeated


def _rivals(
    model: Decomposition, state: str, inside: Mapping[str, Measurement], table: Table
) -> dict[str, tuple[Measurement, ...]]:
    """What competes in the lower bound, by the key of the brick.

    Of bricks of iterations the warmer of both competes for every occurrence: lower than the model can be by what the
    first iteration takes longer.
    """
    views = _views(model)
    keys = dict.fromkeys([*(part.key for part in model.sequences), *(window.key for window in model.windows)])
    rivals = {key: table.rivals(key, state, inside.get(key), view=key in views) for key in keys}
    for level, key in sorted(_iterated(model)) if is_level(state) else ():
        own = table.nearest(key, "", level_name(level))
        warm = table.rivals(key, level_name(level), own, view=key in views)
        both = [several for several in (rivals.get(key), warm) if several]
        if both:
            rivals[key] = min(both, key=lambda several: several[0].latency_ns)
    return {key: several for key, several in rivals.items() if several}


def _iterated(model: Decomposition) -> set[tuple[int, str]]:
    """Footprint class and key of the sequences of iterations, and of the windows that may compete with these."""
    classes = {index: part.reuse for part in model.sequences if part.reuse for index in part.layers}
    found = {(part.reuse, part.key) for part in model.sequences if part.reuse}
    live = model.graph.live if classes else ()
    for window in model.windows if classes else ():
        found |= {(classes[index], window.key) for index in live[window.begin : window.end] if index in classes}
    return found


_REARRANGING = frozenset({"Expand", "Slice", "Split", "Transpose"})
"""Operators whose result may be a view with steps of its own: an eager runtime moves nothing, and its reader pays."""

_IN_PLACE = frozenset({"Dropout", "Identity", "Squeeze", "Unsqueeze"})
"""Operators that hand such a view on."""


def ends_in_view(operators: Sequence[str]) -> bool:
    """Whether what a brick computes last is the same values in another order, or a part of them.

    Args:
        operators: Its operators, in order.
    """
    last = next((name for name in reversed(operators) if name not in _IN_PLACE), "")
    return last in _REARRANGING


def _views(model: Decomposition) -> set[str]:
    """Keys of the bricks of a model's own graph, windows included, that end in a view."""
    if model.graph.salt:
        return set()
    layers, live = model.graph.layers, model.graph.live
    spans = [(part.key, part.layers) for part in model.sequences]
    spans += [(window.key, live[window.begin : window.end]) for window in model.windows]
    return {key for key, indices in spans if ends_in_view([layers[index].op_type for index in indices])}
