"""The latencies of models and bricks on several sides, and how far those of two sides differ."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...bricks.inference.shapes import ShapeOracle
from ...bricks.layer import Layer, LayerState
from ...constructor.decomposition import Decomposition, Failed, state_of
from ...constructor.result import Estimate
from ...constructor.uncertainty.interval import NORMAL, Uncertainty
from ...db import Measurement, Store, Subject, Verdict
from ...generator.decomposition.cutter import Cut
from ...generator.decomposition.oracle import WorkerOracle
from ...models import ModelSource
from ..estimation.cutting import readable_of
from ..estimation.estimate import estimates_under
from ..estimation.query import Query
from ..estimation.survey import decompose_all
from .difference import Difference, difference
from .sides import By, Side, SideResults, find_sides, read_side
from .timeline import Timeline, visited_in_turn

__all__ = ["Figure", "Pair", "Results", "open_results"]

_NS_PER_MS = 1e6
_MANY = 1e9
"""Degrees of freedom of an interval whose own are not known."""

_NO_TIME = "it takes no time that could be measured"


@dataclass(frozen=True, slots=True)
class Figure:
    """The latency of a model or brick on one side; None where it is not known.

    Attributes:
        measured_ms: As measured.
        measured_ci95_ms: Its interval.
        estimate_ms: From bricks; not looked up where the measured ones do.
        estimate_ci95_ms: Its interval.
        undisturbed_ms: As measured while the machine was quiet, where that is what is compared.
        undisturbed_ci95_ms: Its interval, relatively as wide as that of ``measured_ms``.
    """

    measured_ms: float | None = None
    measured_ci95_ms: tuple[float, float] | None = None
    estimate_ms: float | None = None
    estimate_ci95_ms: tuple[float, float] | None = None
    undisturbed_ms: float | None = None
    undisturbed_ci95_ms: tuple[float, float] | None = None

    @property
    def best_ms(self) -> float | None:
        """As measured, else from bricks."""
        return self.estimate_ms if self.measured_ms is None else self.measured_ms

    @property
    def best_ci95_ms(self) -> tuple[float, float] | None:
        """Interval of ``best_ms``."""
        return self.estimate_ci95_ms if self.measured_ms is None else self.measured_ci95_ms

    @property
    def basis(self) -> str | None:
        """What ``best_ms`` is."""
        if self.best_ms is None:
            return None
        return "estimate" if self.measured_ms is None else "measured"

    @property
    def error(self) -> float:
        """Relative standard error of ``best_ms``; 0 where it is not known."""
        value, bounds = self.best_ms, self.best_ci95_ms
        return 0.0 if not value or bounds is None else (bounds[1] - value) / NORMAL / value

    def alone(self) -> Figure:
        """The estimate without what was measured."""
        return replace(self, measured_ms=None, measured_ci95_ms=None)


@dataclass(frozen=True, slots=True)
class Pair:
    """One model or brick on two sides.

    Attributes:
        base: On the base.
        other: On the other side.
        basis: What the difference is of; None where there is none.
        difference: How far both differ; None where that is not known.
        reason: Why it is not known, or why it says nothing.
        apart: Whether the machine may have changed between both: they were not visited in turn.
        guessed: Whether how much it may have is not known for such stacks, and taken from others.
        noisy: Whether a measurement scatters by more than 10 %.
    """

    base: Figure
    other: Figure
    basis: str | None = None
    difference: Difference | None = None
    reason: str | None = None
    apart: bool = False
    guessed: bool = False
    noisy: bool = False


class Results:
    """What is stored of some models on all sides; read when it is first asked for.

    Args:
        models: The models, decomposed, as far as they can be.
        store: The database.
        query: What the caller asked for.
        cut: How the models were decomposed.
        by: What a side is.
        oracle: Finds shapes that inference does not.
        merged: Whether sides that differ only in the cache state of bricks are one.
    """

    def __init__(
        self,
        models: Sequence[Decomposition | Failed],
        *,
        store: Store,
        query: Query,
        cut: Cut,
        by: By,
        oracle: ShapeOracle,
        merged: bool = False,
    ) -> None:
        self.models = models
        self._readable = [model for model in models if isinstance(model, Decomposition)]
        self._store = store
        self._query = query
        self._cut = cut
        self._by = by
        self._oracle = oracle
        self._timeline = Timeline(store)
        keys = {part.key for model in self._readable for part in model.sequences}
        truths = {model.own.key for model in self._readable}
        self.sides = find_sides(store, query, bricks=keys, models=truths, by=by, merged=merged)
        self._by_side = {side.name: self._read(side, truths) for side in self.sides}
        of_models = [one for stored in self._by_side.values() for one in stored.truths.values()]
        of_bricks = [one for stored in self._by_side.values() for one in stored.bricks.values()]
        taken = store.blocks_of([one.id for one in (*of_models, *of_bricks)])
        stacks = store.stacks()
        self._model_uncertainty = Uncertainty(of_models, taken, stacks)
        self._brick_uncertainty = Uncertainty(of_bricks, taken, stacks)
        self._estimates: dict[tuple[str, str], Estimate] = {}

    def _read(self, side: Side, models: Collection[str]) -> SideResults:
        wanted: defaultdict[str, set[str]] = defaultdict(set)
        for model in self._readable:
            wanted[state_of(model, side.choice)] |= {part.key for part in model.sequences}
        return read_side(self._store, self._timeline, side, bricks=wanted, models=models)

    # Bricks -------------------------------------------------------------------------------------------------------

    def brick(self, model: Decomposition, side: Side, key: str) -> Measurement | None:
        """A brick's measurement in the cache state of a model."""
        return self._by_side[side.name].bricks.get((state_of(model, side.choice), key))

    def lacks(self, model: Decomposition, side: Side, key: str) -> str | None:
        """Why a side has no latency of a brick; None where it has."""
        if self.brick(model, side, key) is not None:
            return None
        failure = self._by_side[side.name].failures.get((state_of(model, side.choice), key))
        return "not measured" if failure is None else f"{failure.kind}: {failure.reason}"

    def skipped(self, model: Decomposition) -> list[Layer]:
        """The layers of a model that cannot be bricks."""
        return [layer for layer in model.graph.layers if layer.state is LayerState.SKIPPED]

    def brick_pair(self, model: Decomposition, base: Side, other: Side, key: str) -> Pair:
        """A brick on two sides that both have it."""
        ours, theirs = self.brick(model, base, key), self.brick(model, other, key)
        assert ours is not None  # noqa: S101  # the caller asked ``lacks``
        assert theirs is not None  # noqa: S101
        return self._measured_pair(ours, theirs, self._brick_uncertainty)

    # Models -------------------------------------------------------------------------------------------------------

    def estimate(self, model: Decomposition, side: Side) -> Estimate:
        """The estimate of a model under the combination of a side."""
        asked = side.name, model.own.key
        if asked not in self._estimates:
            (self._estimates[asked],) = estimates_under(
                side.choice, [model], store=self._store, query=self._query, cut=self._cut, oracle=self._oracle
            )
        return self._estimates[asked]

    def measured(self, model: Decomposition, side: Side) -> Figure:
        """The latency of a model on a side as measured."""
        truth = self._by_side[side.name].truths.get(model.own.key)
        return Figure() if truth is None else Figure(truth.latency_ms, truth.ci95_ms)

    def figure(self, model: Decomposition, side: Side) -> Figure:
        """The latency of a model on a side, as measured and from bricks; nothing is made of no bricks."""
        found = self.measured(model, side)
        if not model.sequences:
            return found
        if self._by is By.COMBINATION:
            entry = self.estimate(model, side)
            return replace(found, estimate_ms=entry.estimate_ms, estimate_ci95_ms=entry.ci95_ms)
        weights = self._weights(model, side)
        if weights is None:
            return found
        low, high = self._brick_uncertainty.interval_ns(weights)
        return replace(
            found,
            estimate_ms=self._brick_uncertainty.value_ns(weights) / _NS_PER_MS,
            estimate_ci95_ms=(low / _NS_PER_MS, high / _NS_PER_MS),
        )

    def pair(self, model: Decomposition, base: Side, other: Side) -> Pair:
        """A model on two sides: as measured, else as estimated, else the one so and the other so."""
        ours, theirs = (self._by_side[side.name].truths.get(model.own.key) for side in (base, other))
        if ours is not None and theirs is not None:
            return self._measured_pair(ours, theirs, self._model_uncertainty)
        figures = {side.name: self.figure(model, side) for side in (base, other)}
        lacking = [side for side in (base, other) if figures[side.name].best_ms is None]
        pair = Pair(figures[base.name], figures[other.name])
        if lacking:
            return replace(pair, reason="; ".join(self.why_unknown(model, side) for side in lacking))
        kind = "estimate" if self._by is By.COMBINATION else "bricks"
        if all(figure.estimate_ms is not None for figure in figures.values()):
            figures = {name: figure.alone() for name, figure in figures.items()}  # like with like
        else:
            kind = f"measured and {kind}"
        first, second = (figures[side.name].best_ms or 0.0 for side in (base, other))
        if first <= 0 or second <= 0:
            return replace(pair, reason=_NO_TIME)
        one, two = (self._representative(model, side, figures[side.name]) for side in (base, other))
        in_turn = self._in_turn(one, two) if kind != "bricks" else self._all_in_turn(model, base, other)
        apart = self._timeline.apart(one, two, in_turn=in_turn)
        reason = None
        if kind == "bricks":
            error, degrees = self._error_of_sums(model, base, other)
        else:
            # Each with the error of the method, by itself: how far those of two stacks are the same is not known.
            error, degrees = math.hypot(*(figure.error for figure in figures.values())), _MANY
            reason = self._not_calibrated(
                model, [side for side in (base, other) if figures[side.name].basis == "estimate"]
            )
        seen = difference(first, second, error=error, degrees=degrees, apart=apart)
        guessed = apart > 0 and not self._timeline.known(one, two)
        return replace(pair, basis=kind, difference=seen, reason=reason, apart=apart > 0, guessed=guessed)

    def _all_in_turn(self, model: Decomposition, base: Side, other: Side) -> bool:
        """Whether each brick of a model was visited in turn with itself on the other side."""
        for key in {part.key for part in model.sequences}:
            ours, theirs = self.brick(model, base, key), self.brick(model, other, key)
            if ours is None or theirs is None or not self._in_turn(ours, theirs):
                return False
        return True

    def _in_turn(self, base: Measurement, other: Measurement) -> bool:
        taken = (
            (self._brick_uncertainty if one.subject is Subject.BRICK else self._model_uncertainty).blocks(one.id)
            for one in (base, other)
        )
        return visited_in_turn(base, other, *taken)

    def _not_calibrated(self, model: Decomposition, sides: Sequence[Side]) -> str | None:
        """Why estimates on some sides say nothing of a difference; None where the error of all is known."""
        names = [side.name for side in sides if not self.estimate(model, side).calibrated]
        if not names:
            return None
        return f"how far estimates are off is not known ({', '.join(names)}): measure the model itself"

    def _measured_pair(self, base: Measurement, other: Measurement, uncertainty: Uncertainty) -> Pair:
        noisy = Verdict.UNSTABLE in {base.summary.verdict, other.summary.verdict}
        here, there = (Figure(one.latency_ms, one.ci95_ms) for one in (base, other))
        pair = Pair(here, there, "measured", noisy=noisy)
        if base.latency_ns <= 0 or other.latency_ns <= 0:
            return replace(pair, basis=None, reason=_NO_TIME)
        taken = uncertainty.blocks(base.id), uncertainty.blocks(other.id)
        compared = self._timeline.between(base, other, taken, in_turn=self._in_turn(base, other))
        known = self._timeline.undisturbed_error(base, other, uncertainty) if compared.undisturbed else None
        if known is None:
            known = uncertainty.error_ns({base.id: -1 / base.latency_ns, other.id: 1 / other.latency_ns})
        error, degrees = known
        seen = difference(compared.base_ns, compared.other_ns, error=error, degrees=degrees, apart=compared.apart)
        guessed = compared.apart > 0 and not self._timeline.known(base, other)
        if compared.undisturbed:
            pair = replace(pair, base=_quiet(pair.base, compared.base_ns), other=_quiet(pair.other, compared.other_ns))
        return replace(pair, difference=seen, apart=compared.apart > 0, guessed=guessed)

    def _weights(self, model: Decomposition, side: Side) -> dict[str, float] | None:
        """The sum of a model's bricks; None where some are not measured."""
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
        """A measurement that stands for a model's latency in place and time."""
        if figure.measured_ms is not None:
            return self._by_side[side.name].truths[model.own.key]
        counts = Counter(part.key for part in model.sequences)
        found = [(one, count) for key, count in counts.items() if (one := self.brick(model, side, key)) is not None]
        largest, _ = max(found, key=lambda item: item[0].latency_ns * item[1])
        return largest

    def why_unknown(self, model: Decomposition, side: Side) -> str:
        """Why the latency of a model on a side is not known."""
        failure = self._by_side[side.name].model_failures.get(model.own.key)
        if failure is not None:
            return f"{side.name}: the model could not be measured ({failure.kind}: {failure.reason})"
        keys = {part.key for part in model.sequences}
        if not keys:
            return f"{side.name}: the model is not measured, and nothing of it is left to be a brick"
        known = sum(self.lacks(model, side, key) is None for key in keys)
        return f"{side.name}: the model is not measured, and {known} of its {len(keys)} bricks are"


@contextmanager
def open_results(
    models: Sequence[ModelSource],
    *,
    store: Store,
    query: Query,
    cut: Cut,
    by: By = By.COMBINATION,
    oracle: ShapeOracle | None = None,
    merged: bool = False,
) -> Iterator[Results]:
    """Decompose models and find what is stored of them; a worker that is started for it ends with the context.

    Args:
        models: The models.
        store: The database.
        query: What the caller asked for.
        cut: How models are decomposed.
        by: What a side is.
        oracle: Finds shapes that inference does not; None for a worker.
        merged: Whether sides that differ only in the cache state of bricks are one.

    Raises:
        UsageError: Granularity less than 1, a dimension that no model has, or a system or stack that is not stored.
        AmbiguousQuery: Runs or variants are asked for, and several combinations match.
        StoreError: The database cannot be read.
    """
    cut.check()
    with WorkerOracle() as worker:
        shapes = oracle or worker
        found = decompose_all(models, cut, shapes, store=store)
        readable_of(models, found)
        yield Results(found, store=store, query=query, cut=cut, by=by, oracle=shapes, merged=merged)


def _quiet(figure: Figure, latency_ns: float) -> Figure:
    """The figure with a latency on a quiet machine beside its mean."""
    assert figure.measured_ms is not None  # noqa: S101
    assert figure.measured_ci95_ms is not None  # noqa: S101
    undisturbed_ms = latency_ns / _NS_PER_MS
    low, high = (bound * undisturbed_ms / figure.measured_ms for bound in figure.measured_ci95_ms)
    return replace(figure, undisturbed_ms=undisturbed_ms, undisturbed_ci95_ms=(low, high))
