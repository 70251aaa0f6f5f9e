"""Latencies of models and bricks on several sides, and their differences."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...bricks.decomposition import Decomposition, Failed
from ...bricks.graph.footprint import nearest_levels
from ...bricks.layer import Layer, LayerState
from ...constructor.choice import COLD, Choice, Query
from ...constructor.construction import construct
from ...constructor.coverage import form_of
from ...constructor.evidence import Evidence
from ...constructor.interventions import state_of
from ...constructor.result import Estimate, Form
from ...constructor.uncertainty.calibration import NORMAL
from ...constructor.uncertainty.interval import Uncertainty
from ...db import Failure, Measurement, Store, Subject, Verdict
from ...generator.decomposition.cut import Cut
from ...generator.decomposition.decompose import decompose, readable
from ...models import ModelSource
from ...tabular import Row, fields, record_of
from ..estimation.query import stored_under
from ..estimation.reading import evidence_under
from .difference import Difference, Relation, difference, discoveries, relation
from .sides import By, Side, Timeline, find_sides, latency_ns, visited_in_turn

_NS_PER_MS = 1e6
_MANY = 1e9
"""Degrees of freedom of an interval whose own are not known."""

_NO_TIME = "it takes no time that could be measured"


# Values: bricks, latencies, and two of these side by side.


@dataclass(frozen=True, slots=True)
class ModelBrick:
    """A brick of a model.

    Attributes:
        key: Its key.
        operators: Its operators.
        names: Names of the layers of its first occurrence.
        occurrences: Number of occurrences in the model.
        form: Shapes of its first occurrence.
    """

    key: str
    operators: tuple[str, ...]
    names: tuple[str, ...]
    occurrences: int
    form: Form

    def record(self) -> Row:
        """Return the identifying keys of a brick in JSON, except ``form``."""
        return {"key": self.key, "operators": self.operators, "names": self.names, "occurrences": self.occurrences}


def bricks_of(model: Decomposition) -> dict[str, ModelBrick]:
    """Return the bricks of a model by key, in the order of their first sequences."""
    counts = Counter(part.key for part in model.sequences)
    first = {part.key: part for part in reversed(model.sequences)}
    bricks = {}
    for key, count in counts.items():
        layers = [model.graph.layers[index] for index in first[key].layers]
        operators, names = tuple(layer.op_type for layer in layers), tuple(layer.name for layer in layers)
        bricks[key] = ModelBrick(key, operators, names, count, form_of(model, first[key]))
    return bricks


@dataclass(frozen=True, slots=True)
class SideLatency:
    """A latency.

    Attributes:
        ms: Milliseconds.
        ci95_ms: Its interval; None if it is unknown.
    """

    ms: float
    ci95_ms: tuple[float, float] | None

    @property
    def error(self) -> float:
        """Relative standard error; 0 if it is unknown."""
        return 0.0 if not self.ms or self.ci95_ms is None else (self.ci95_ms[1] - self.ms) / NORMAL / self.ms


@dataclass(frozen=True, slots=True)
class Figure:
    """The latency of a model or brick on one side; None if it is unknown.

    Attributes:
        measured: Mean of its measurement.
        estimate: Estimate from bricks; only made if a measurement is missing.
        undisturbed: Latency on a quiet machine, if this is compared; its relative interval is the one of the mean.
    """

    measured: SideLatency | None = None
    estimate: SideLatency | None = None
    undisturbed: SideLatency | None = None

    @property
    def best(self) -> SideLatency | None:
        """As measured, else from bricks."""
        return self.measured or self.estimate

    @property
    def basis(self) -> str | None:
        """The source of ``best``."""
        return "measured" if self.measured else "estimate" if self.estimate else None


@dataclass(frozen=True, slots=True)
class SidePair:
    """One model or brick on two sides.

    Attributes:
        base: Latency on the base.
        other: Latency on the other side.
        basis: Source of the compared latencies: ``measured`` (ground truth), ``estimate``, ``bricks`` (their sum), or
            ``measured and estimate`` if the sides have no common source. None without a difference.
        difference: The difference; None if it is unknown.
        reason: Why it is unknown or not reliable, or why the verdict is UNCLEAR.
        apart: True for different runs: the interval includes changes of the machine.
        guessed: True if these changes are not calibrated for the stacks, and taken from others.
        noisy: True if a measurement scatters by more than 10 %.
        verdict: The other side in relation to the base (``with_verdicts``); None if nothing is known.
    """

    base: Figure = Figure()
    other: Figure = Figure()
    basis: str | None = None
    difference: Difference | None = None
    reason: str | None = None
    apart: bool = False
    guessed: bool = False
    noisy: bool = False
    verdict: Relation | None = None

    @property
    def compared(self) -> tuple[SideLatency | None, SideLatency | None]:
        """The latencies of both sides that the difference is of."""
        if "measured" in (self.basis or "measured"):
            return self.base.undisturbed or self.base.best, self.other.undisturbed or self.other.best
        return self.base.estimate or self.base.measured, self.other.estimate or self.other.measured


UNKNOWN = SidePair()
"""A pair of which nothing is known."""


class Judged:
    """A model or brick on both sides as ``pair``, with its verdict."""

    __slots__ = ()

    pair: SidePair

    @property
    def ratio(self) -> float | None:
        """Latency of the other side / latency of the base."""
        return None if self.pair.difference is None else self.pair.difference.ratio

    @property
    def ratio_ci95(self) -> tuple[float, float] | None:
        """Interval of ``ratio``."""
        return None if self.pair.difference is None else self.pair.difference.ci95

    @property
    def verdict(self) -> Relation | None:
        """The other side in relation to the base; None if nothing is known."""
        return self.pair.verdict

    @property
    def reason(self) -> str | None:
        """Why there is no verdict, or why it is UNCLEAR."""
        return self.pair.reason

    def judgement(self) -> Row:
        """Return the keys of a JSON object that say how both sides differ."""
        return record_of(self, fields("ratio ratio_ci95 verdict reason"))


def figure_of(measurement: Measurement, *, undisturbed: bool = False) -> Figure:
    """Return the figure of a measurement; with ``undisturbed``, also its latency on a quiet machine."""
    figure = Figure(SideLatency(measurement.latency_ms, measurement.ci95_ms))
    if not undisturbed or measurement.undisturbed_ns is None:
        return figure
    quiet_ms = measurement.undisturbed_ns / _NS_PER_MS
    low, high = (bound * quiet_ms / measurement.latency_ms for bound in measurement.ci95_ms)
    return replace(figure, undisturbed=SideLatency(quiet_ms, (low, high)))


def measured_pair(base: Measurement, other: Measurement, timeline: Timeline, uncertainty: Uncertainty) -> SidePair:
    """Return two measurements of one kind as a pair, without a verdict.

    Args:
        base: Measurement on the base.
        other: Measurement on the other side.
        timeline: The runs of both.
        uncertainty: It contains both.
    """
    if base.latency_ns <= 0 or other.latency_ns <= 0:
        return SidePair(figure_of(base), figure_of(other), reason=_NO_TIME)
    blocks = uncertainty.blocks(base.id), uncertainty.blocks(other.id)
    apart, undisturbed = timeline.between(base, other, blocks, in_turn=visited_in_turn(base, other, *blocks))
    error = timeline.undisturbed_error(base, other, uncertainty) if undisturbed else None
    if error is None:
        error = uncertainty.error_ns({base.id: -1 / base.latency_ns, other.id: 1 / other.latency_ns})
    base_ns, other_ns = (latency_ns(side, undisturbed=undisturbed) for side in (base, other))
    return SidePair(
        figure_of(base, undisturbed=undisturbed),
        figure_of(other, undisturbed=undisturbed),
        "measured",
        difference(base_ns, other_ns, error, apart=apart),
        apart=apart > 0,
        guessed=apart > 0 and not timeline.known(base, other),
        noisy=Verdict.UNSTABLE in {base.summary.verdict, other.summary.verdict},
    )


def with_verdicts(pairs: Sequence[SidePair], minimum_effect: float) -> list[SidePair]:
    """Return several pairs that were looked at together, each with its verdict and why it is UNCLEAR."""
    fair = [pair.difference for pair in pairs if pair.difference is not None and pair.reason is None]
    beyond_chance = iter(discoveries([seen.p for seen in fair]))
    judged: list[SidePair] = []
    for pair in pairs:
        if pair.difference is None or pair.reason is not None:
            judged.append(replace(pair, verdict=Relation.UNCLEAR))
            continue
        discovered = next(beyond_chance)
        verdict = relation(pair.difference, minimum_effect=minimum_effect, discovered=discovered)
        unclear = verdict is Relation.UNCLEAR
        why = _why_unclear(pair, discovered, minimum_effect, len(fair)) if unclear else None
        judged.append(replace(pair, verdict=verdict, reason=why))
    return judged


def _why_unclear(pair: SidePair, discovered: bool, minimum_effect: float, looked_at: int) -> str:  # noqa: FBT001
    assert pair.difference is not None  # noqa: S101
    low, high = pair.difference.ci95
    if discovered:
        return f"they differ, by less than {minimum_effect:.1%} or more"
    if not low <= 1 <= high:
        return f"the difference could be chance among the {looked_at} that were looked at"
    noisy = "; the machine was not quiet: measure again" if pair.noisy else ""
    guessed = (
        "; the scatter between runs of such stacks is not calibrated: other stacks' was used" if pair.guessed else ""
    )
    return f"the interval of the ratio reaches from {low:.3f} to {high:.3f}{guessed}{noisy}"


# What is stored of some models on all sides.


class Results:
    """The stored results of some models on all sides; estimates are made on first use.

    Args:
        store: The database.
        models: The models that could be decomposed.
        sides: The sides.
        evidence: Reads the stored results of models under a combination.
        by: Kind of side.
    """

    def __init__(
        self,
        store: Store,
        models: Sequence[Decomposition | Failed],
        sides: Sequence[Side],
        evidence: Callable[[Choice, Sequence[Decomposition]], Evidence],
        by: By,
    ) -> None:
        self.models = models
        self.sides = list(sides)
        self._evidence = evidence
        self._by = by
        self._estimates: dict[tuple[str, str], Estimate] = {}
        self._timeline = Timeline(store)
        self._truths: dict[tuple[str, str], Measurement] = {}
        self._bricks: dict[tuple[str, str, str], Measurement] = {}
        self._failures: dict[tuple[str, ...], Failure] = {}
        for side in sides:
            self._read(store, side)
        of_models, of_bricks = [*self._truths.values()], [*self._bricks.values()]
        taken = store.blocks_of([measurement.id for measurement in (*of_models, *of_bricks)])
        stacks = store.stacks()
        self._model_uncertainty = Uncertainty(of_models, taken, stacks)
        self._brick_uncertainty = Uncertainty(of_bricks, taken, stacks)

    def _read(self, store: Store, side: Side) -> None:
        """Read the results of a side: of models by key, of bricks by cache state and key."""
        decompositions = [model for model in self.models if isinstance(model, Decomposition)]
        keys_by_state: defaultdict[str, set[str]] = defaultdict(set)
        for model in decompositions:
            keys_by_state[state_of(model, side.choice)] |= {part.key for part in model.sequences}

        def of_run(entry: Measurement | Failure) -> bool:
            return side.run is None or entry.run == side.run.id

        def as_cold(entry: Measurement | Failure) -> bool:
            return (entry.conditions.cache == COLD) == side.cold

        here, latest = stored_under(side.choice).but(variant=side.variant), side.run is None
        whole = here.but(subject=Subject.MODEL, keys={model.own.key for model in decompositions})
        truths = [truth for truth in store.measurements(whole, latest=latest) if of_run(truth) and as_cold(truth)]
        # Measured hot and as part of a run at reuse distances: the later one stands.
        truths.sort(key=self._timeline.started)
        self._truths |= {(side.name, truth.key): truth for truth in truths}
        failures = [failed for failed in store.failures(whole) if as_cold(failed)]
        self._failures |= {(side.name, failed.key): failed for failed in failures}
        for state, keys in keys_by_state.items():
            lacking = {*keys}
            for level in nearest_levels(state):  # of a footprint class that lacks a brick the nearest stands in
                if not lacking:
                    break
                conditions = replace(side.choice.conditions, cache=level)
                where = here.but(subject=Subject.BRICK, keys=lacking, conditions=conditions)
                bricks = [*filter(of_run, store.measurements(where, latest=latest))]
                self._bricks |= {(side.name, state, brick.key): brick for brick in bricks}
                failed_bricks = filter(of_run, store.failures(where))
                self._failures |= {(side.name, state, failed.key): failed for failed in failed_bricks}
                lacking -= {brick.key for brick in bricks}

    # Bricks -------------------------------------------------------------------------------------------------------

    def brick(self, model: Decomposition, side: Side, key: str) -> Measurement | None:
        """Return a brick's measurement in the cache state of a model."""
        return self._bricks.get((side.name, state_of(model, side.choice), key))

    def lacks(self, model: Decomposition, side: Side, key: str) -> str | None:
        """Return the reason why a side lacks the latency of a brick; None if it has one."""
        if self.brick(model, side, key) is not None:
            return None
        failure = self._failures.get((side.name, state_of(model, side.choice), key))
        return "not measured" if failure is None else f"{failure.kind}: {failure.reason}"

    def skipped(self, model: Decomposition) -> list[Layer]:
        """Return the layers of a model that cannot be bricks."""
        return [layer for layer in model.graph.layers if layer.state is LayerState.SKIPPED]

    def brick_pair(self, model: Decomposition, base: Side, other: Side, key: str) -> SidePair:
        """Return a brick on two sides with measurements."""
        ours, theirs = self.brick(model, base, key), self.brick(model, other, key)
        assert ours is not None  # noqa: S101  # the caller asked ``lacks``
        assert theirs is not None  # noqa: S101
        return measured_pair(ours, theirs, self._timeline, self._brick_uncertainty)

    # Models -------------------------------------------------------------------------------------------------------

    def estimate(self, model: Decomposition, side: Side) -> Estimate:
        """Return the estimate of a model under the combination of a side."""
        asked = side.name, model.own.key
        if asked not in self._estimates:
            self._estimates[asked] = construct(model, self._evidence(side.choice, [model]))
        return self._estimates[asked]

    def measured(self, model: Decomposition, side: Side) -> Figure:
        """Return the measured latency of a model on a side."""
        truth = self._truths.get((side.name, model.own.key))
        return Figure() if truth is None else figure_of(truth)

    def figure(self, model: Decomposition, side: Side) -> Figure:
        """Return the measured and the estimated latency of a model on a side; no estimate without all bricks."""
        measured = self.measured(model, side)
        if not model.sequences or self.skipped(model) or any(self.lacks(model, side, key) for key in _keys(model)):
            return measured  # an estimate may load the model in a worker, and would be empty
        if self._by is By.COMBINATION:
            entry = self.estimate(model, side)
            estimate = None if entry.latency.ms is None else SideLatency(entry.latency.ms, entry.latency.ci95_ms)
            return replace(measured, estimate=estimate)
        weights = self._weights(model, side)
        if weights is None:
            return measured
        low, high = self._brick_uncertainty.interval_ns(weights)
        value_ms = self._brick_uncertainty.value_ns(weights) / _NS_PER_MS
        return replace(measured, estimate=SideLatency(value_ms, (low / _NS_PER_MS, high / _NS_PER_MS)))

    def best(self, model: Decomposition, side: Side) -> Figure:
        """Return the measured latency of a model on a side, else the estimated one."""
        measured = self.measured(model, side)
        return self.figure(model, side) if measured.best is None else measured

    def ranked(self, model: Decomposition, sides: Sequence[Side]) -> list[Side]:
        """Return the sides, the fastest for a model first and those without a latency last."""
        latencies = {side.name: self.best(model, side).best for side in sides}
        return sorted(sides, key=lambda side: math.inf if (latency := latencies[side.name]) is None else latency.ms)

    def pair(self, model: Decomposition, base: Side, other: Side) -> SidePair:
        """Return a model on two sides: both measured, else both estimated, else one of each."""
        ours, theirs = (self._truths.get((side.name, model.own.key)) for side in (base, other))
        if ours is not None and theirs is not None:
            return measured_pair(ours, theirs, self._timeline, self._model_uncertainty)
        sides = base, other
        known = all(self.best(model, side).best is not None for side in sides)
        figures = [self.figure(model, side) if known else self.best(model, side) for side in sides]
        pair = SidePair(figures[0], figures[1])
        lacking = [side for side, figure in zip(sides, figures, strict=True) if figure.best is None]
        if lacking:
            return replace(pair, reason="; ".join(self.why_unknown(model, side) for side in lacking))
        kind = "estimate" if self._by is By.COMBINATION else "bricks"
        if all(figure.estimate is not None for figure in figures):
            figures = [replace(figure, measured=None) for figure in figures]  # like with like
        else:
            kind = f"measured and {kind}"
        first, second = (figure.best for figure in figures if figure.best is not None)
        if first.ms <= 0 or second.ms <= 0:
            return replace(pair, reason=_NO_TIME)
        ours, theirs = (
            self._representative(model, *side_and_figure) for side_and_figure in zip(sides, figures, strict=True)
        )
        in_turn = self._in_turn(ours, theirs) if kind != "bricks" else self._all_in_turn(model, base, other)
        apart = self._timeline.apart(ours, theirs, in_turn=in_turn)
        reason = None
        if kind == "bricks":
            error = self._error_of_sums(model, base, other)
        else:
            # Each with the error of the method, by itself: how far those of two stacks are the same is not known.
            error = math.hypot(first.error, second.error), _MANY
            estimated = [side for side, figure in zip(sides, figures, strict=True) if figure.basis == "estimate"]
            reason = self._not_calibrated(model, estimated)
        return replace(
            pair,
            basis=kind,
            difference=difference(first.ms, second.ms, error, apart=apart),
            reason=reason,
            apart=apart > 0,
            guessed=apart > 0 and not self._timeline.known(ours, theirs),
        )

    def _all_in_turn(self, model: Decomposition, base: Side, other: Side) -> bool:
        """Return true if each brick of a model alternated with itself on the other side."""
        for key in {part.key for part in model.sequences}:
            ours, theirs = self.brick(model, base, key), self.brick(model, other, key)
            if ours is None or theirs is None or not self._in_turn(ours, theirs):
                return False
        return True

    def _in_turn(self, base: Measurement, other: Measurement) -> bool:
        taken = (
            (self._brick_uncertainty if side.subject is Subject.BRICK else self._model_uncertainty).blocks(side.id)
            for side in (base, other)
        )
        return visited_in_turn(base, other, *taken)

    def _not_calibrated(self, model: Decomposition, sides: Sequence[Side]) -> str | None:
        """Return the reason why estimates on some sides cannot be compared; None if all errors are known."""
        names = [side.name for side in sides if not self.estimate(model, side).latency.calibrated]
        if not names:
            return None
        return f"how far estimates are off is not known ({', '.join(names)}): measure the model itself"

    def _weights(self, model: Decomposition, side: Side) -> dict[str, float] | None:
        """Return the sum of a model's bricks; None if some are not measured."""
        weights: dict[str, float] = {}
        for key, count in Counter(part.key for part in model.sequences).items():
            measured = self.brick(model, side, key)
            if measured is None:
                return None
            weights[measured.id] = count
        return None if not weights or self.skipped(model) else weights

    def _error_of_sums(self, model: Decomposition, base: Side, other: Side) -> tuple[float, float]:
        together: defaultdict[str, float] = defaultdict(float)
        for side, sign in ((base, -1.0), (other, 1.0)):
            weights = self._weights(model, side)
            assert weights is not None  # noqa: S101  # its sum is known
            total = self._brick_uncertainty.value_ns(weights)
            for id_, count in weights.items():
                together[id_] += sign * count / total
        return self._brick_uncertainty.error_ns(together)

    def _representative(self, model: Decomposition, side: Side, figure: Figure) -> Measurement:
        """Return a measurement with the place and time of a model's latency."""
        if figure.measured is not None:
            return self._truths[side.name, model.own.key]
        counts = Counter(part.key for part in model.sequences)
        measurements = {key: brick for key in counts if (brick := self.brick(model, side, key)) is not None}
        return measurements[max(measurements, key=lambda key: measurements[key].latency_ns * counts[key])]

    def why_unknown(self, model: Decomposition, side: Side) -> str:
        """Why the latency of a model on a side is not known."""
        failure = self._failures.get((side.name, model.own.key))
        if failure is not None:
            return f"{side.name}: the model could not be measured ({failure.kind}: {failure.reason})"
        keys = {part.key for part in model.sequences}
        if not keys:
            return f"{side.name}: the model is not measured, and nothing of it is left to be a brick"
        measured_count = sum(self.lacks(model, side, key) is None for key in keys)
        return f"{side.name}: the model is not measured, and {measured_count} of its {len(keys)} bricks are"


def decomposed(models: Sequence[ModelSource], cut: Cut) -> list[Decomposition | Failed]:
    """Decompose models, as far as they can be.

    Args:
        models: The models.
        cut: How they are cut.

    Raises:
        UsageError: Granularity less than 1, or a dimension that no model has.
    """
    cut.check()
    decompositions = decompose(models, cut)
    readable(decompositions)
    return decompositions


def _keys(model: Decomposition) -> list[str]:
    """Return the keys of a model's bricks."""
    return [*dict.fromkeys(part.key for part in model.sequences)]


def open_results(
    models: Sequence[Decomposition | Failed],
    store: Store,
    query: Query,
    cut: Cut,
    *,
    by: By = By.COMBINATION,
    merged: bool = False,
) -> Results:
    """Find the stored results of models.

    Args:
        models: The models, decomposed.
        store: The database.
        query: What the caller asked for.
        cut: How the models were decomposed.
        by: Kind of side.
        merged: Merge sides that differ only in the cache state of bricks.

    Raises:
        UsageError: There is no such system or stack.
        AmbiguousQuery: Runs or variants are asked for, and several combinations match.
        StoreError: The database cannot be read.
    """
    decompositions = [model for model in models if isinstance(model, Decomposition)]
    bricks = {part.key for model in decompositions for part in model.sequences}
    truths = {model.own.key for model in decompositions}
    sides = find_sides(store, query, bricks, truths, by, merged=merged)
    return Results(store, models, sides, lambda choice, some: evidence_under(choice, some, store, query, cut), by)
