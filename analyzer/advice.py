"""The fastest stored framework and options for a model, and the bricks that decide it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Unpack

from ..bricks.decomposition import Decomposition, Failed
from ..bricks.inference.shapes import ShapeOracle
from ..constructor.choice import Query
from ..constructor.remedies import Task
from ..constructor.result import Estimate
from ..db import Store
from ..errors import UsageError
from ..generator.backends.registry import backends
from ..generator.decomposition.cut import Cut
from ..generator.machine.system import probe_system
from ..models import ModelSource
from ..tabular import Records, Row, Tabular
from .comparison.compare import LayerComparison, ModelComparison, layers_of
from .comparison.difference import MINIMUM_EFFECT, Relation, check_minimum_effect
from .comparison.results import Figure, Judged, Results, decomposed, open_results, verdicts_of
from .comparison.sides import Side, place_record
from .estimation.query import QueryFields, asked
from .estimation.tasks import Tasks, default_options
from .shell import shell_command

_ANY = "any"
"""In place of a precision: all of them."""

_DEFAULT_DTYPE = "float32"

_DEFAULT_BACKEND = "onnxruntime"

# Values: the ways to run a model, and what to say of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedSide(Judged):
    """A stored combination as one way to run a model, and its difference from the best.

    Attributes:
        side: The combination.
        figure: Latency of the model.
        measured_by: The task that measures the model in this combination; None if this machine cannot.
    """

    side: Side
    figure: Figure
    measured_by: Task | None

    @property
    def name(self) -> str:
        """The distinguishing name of the combination."""
        return self.side.name

    @property
    def latency_ms(self) -> float | None:
        """The latency of the model; None if it is unknown."""
        return None if self.figure.best is None else self.figure.best.ms

    def record(self) -> Row:
        """As a JSON object."""
        return {
            "name": self.name,
            **place_record(self.side.choice, "stack", "backend", "device", "options", "threads", "dtype"),
            "latency_ms": self.latency_ms,
            "ci95_ms": None if self.figure.best is None else self.figure.best.ci95_ms,
            "basis": self.figure.basis,
            **self.judgement(),
            "command": None if self.measured_by is None else shell_command(self.measured_by),
        }


Mixed = tuple[str, LayerComparison]
"""A brick that another side than the best runs fastest: the name of that side, and the brick on both."""


def _mixed(mixed: Mixed) -> Row:
    """Return it as a JSON object."""
    side, layer = mixed
    return {
        **layer.brick.record(),
        "side": side,
        "best_ms": layer.base_ms,
        "fastest_ms": layer.other_ms,
        "gain_ms": layer.gain_ms,
        "form": asdict(layer.brick.form),
    }


@dataclass(frozen=True, slots=True)
class ModelAdvice:
    """Advice for one model; unknown values are None or empty.

    Attributes:
        name: The model.
        ranking: All combinations, the fastest first and unknown ones last.
        runner_up: The best, and the fastest combination with a proven difference from it, else the second: the bricks
            with a different latency, the largest gain of the best first.
        default: The best, and the default combination: onnxruntime with its own options. Without bricks if it is the
            best or the runner-up.
        composed: The estimate of the best combination, if a gain of a combination per brick is known.
        mixed: The bricks that gain by another combination, the largest gain first.
        reason: Why there is no advice, or only weak advice.
        remedies: Tasks that would improve the advice.
        error: Why the model could not be decomposed.
    """

    name: str
    ranking: tuple[RankedSide, ...] = ()
    runner_up: ModelComparison | None = None
    default: ModelComparison | None = None
    composed: Estimate | None = None
    mixed: tuple[Mixed, ...] = ()
    reason: str | None = None
    remedies: tuple[Task, ...] = ()
    error: str | None = None

    @property
    def fastest(self) -> RankedSide | None:
        """The best side."""
        return next((ranked for ranked in self.ranking if ranked.latency_ms is not None), None)

    @property
    def best(self) -> str | None:
        """Name of the fastest side."""
        return None if self.fastest is None else self.fastest.name

    @property
    def ties(self) -> tuple[str, ...]:
        """Names of the sides that cannot be distinguished from the best."""
        return tuple(ranked.name for ranked in self.ranking if ranked.verdict not in {None, Relation.SLOWER})

    @property
    def bricks_ms(self) -> float | None:
        """Sum of the bricks in the best combination."""
        return None if self.composed is None else self.composed.sums.sequential_ms

    @property
    def lower_bound_ms(self) -> float | None:
        """Cheapest composition of the model from stored bricks of all stacks, under the same conditions."""
        return None if self.composed is None else self.composed.bounds.sequential.ms

    @property
    def mixing_ms(self) -> float | None:
        """The gain of the model over the best combination if each brick ran in its fastest one."""
        return None if self.bricks_ms is None or self.lower_bound_ms is None else self.bricks_ms - self.lower_bound_ms

    @property
    def complete(self) -> bool:
        """True if there are several combinations, all with a latency."""
        return len(self.ranking) > 1 and all(ranked.latency_ms is not None for ranked in self.ranking)

    def record(self) -> Row:
        """As a JSON object."""
        over = {"runner_up": self.runner_up, "default": self.default}
        task = None if self.fastest is None else self.fastest.measured_by
        return {
            "name": self.name,
            "best": self.best,
            "command": None if task is None else shell_command(task),
            "ties": self.ties,
            "ranking": [ranked.record() for ranked in self.ranking],
            **{name: None if row is None else row.other for name, row in over.items()},
            **{f"over_{name}": [layer.record() for layer in row.layers] if row else [] for name, row in over.items()},
            "bricks_ms": self.bricks_ms,
            "lower_bound_ms": self.lower_bound_ms,
            "mixing_ms": self.mixing_ms,
            "mixed": [_mixed(mixed) for mixed in self.mixed],
            "reason": self.reason,
            "remedy": [shell_command(task) for task in self.remedies],
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Advice(Tabular):
    """Advice for some models.

    Attributes:
        rows: One per model.
        system: Key of the system; None without stored measurements.
    """

    rows: tuple[ModelAdvice, ...]
    system: str | None

    @property
    def complete(self) -> bool:
        """True if there is complete advice for every model."""
        return all(row.complete for row in self.rows)

    def records(self) -> Records:
        """One row per model."""
        return Records([row.record() for row in self.rows], {"system": self.system})


def advise(
    models: Sequence[ModelSource],
    *,
    store: Store,
    minimum_effect: float = MINIMUM_EFFECT,
    query: Query | None = None,
    granularity: int = 1,
    connected: bool = False,
    oracle: ShapeOracle | None = None,
    **fields: Unpack[QueryFields],
) -> Advice:
    """Find the best stored combination for each model on one system, from measurements, else from estimates.

    Args:
        models: The models, from ``find_models``.
        store: Where latencies are.
        minimum_effect: Relative difference that matters.
        query: Which of the stored measurements. By default: this machine, or the only stored system; the cache state of
            a
            repeated model; precision float32 (``any``: all precisions).
        granularity: Most layers in a brick.
        connected: Bricks may be weakly connected windows.
        oracle: Finds shapes that inference does not.
        **fields: Fields of a ``Query``, in place of those of ``query``.

    Raises:
        UsageError: The minimum effect is not positive, there is no such system or stack, or several systems are stored
            without this machine.
        StoreError: The database cannot be read.

    Example:
        >>> from dlbricks.db import Store
        >>> from dlbricks.models import find_models
        >>> with Store.open("sqlite://") as store:
        ...     (row,) = advise(find_models(["squeezenet"]), store=store).rows
        >>> row.best, row.reason
        (None, 'nothing is stored')
    """
    check_minimum_effect(minimum_effect)
    query = asked(query, fields)
    dtype = {None: _DEFAULT_DTYPE, _ANY: None}.get(query.dtype, query.dtype)
    query = replace(query, system=_system(store, query.system), dtype=dtype)
    cut = Cut(granularity, connected=connected)
    results = open_results(decomposed(models, cut, oracle), store, query, cut, merged=True)
    sides = [side for side in results.sides if query.cache is not None or not side.cold]
    rows = [_advised(results, model, sides, store, query, minimum_effect=minimum_effect) for model in results.models]
    return Advice(tuple(rows), query.system)


def _system(store: Store, asked: str | None) -> str | None:
    """Key of the system that advice is for."""
    if asked is not None:
        return asked
    stored, here = store.systems(), probe_system().key
    if here in stored or len(stored) < 2:
        return here if here in stored else next(iter(stored), None)
    listed = ", ".join(f"{key[:8]} ({system.cpu})" for key, system in stored.items())
    raise UsageError(f"nothing is stored of this machine, and several others are: {listed}", remedy="add --system")


def _advised(
    results: Results,
    model: Decomposition | Failed,
    sides: Sequence[Side],
    store: Store,
    query: Query,
    *,
    minimum_effect: float,
) -> ModelAdvice:
    name = model.source.name
    if not isinstance(model, Decomposition):
        return ModelAdvice(name, reason=model.reason, error=model.reason)
    ways = [_way(results, model, side, Tasks(store, side.choice, query, Cut(1))) for side in sides]
    known = sorted((way for way in ways if way.latency_ms is not None), key=lambda way: way.latency_ms or 0.0)
    unknown = [way for way in ways if way.latency_ms is None]
    if not known:
        reason = "nothing is stored" if not sides else "neither the model nor all of its bricks are measured anywhere"
        remedies = _remedies(model, sides, store, query)
        return ModelAdvice(name, ranking=tuple(unknown), reason=reason, remedies=remedies)
    best, rest = known[0].side, known[1:]
    composed, mixed = _mixing(results, model, best, [way.side for way in rest])
    if not rest:
        return ModelAdvice(
            name,
            ranking=(*known, *unknown),
            composed=composed,
            mixed=mixed,
            reason=f"nothing to compare with: only {best.name} is known",
            remedies=_remedies(model, sides, store, query),
        )
    pairs = [results.pair(model, best, way.side) for way in rest]
    ranked = [
        replace(way, pair=pair, verdict=verdict, reason=reason)
        for way, pair, (verdict, reason) in zip(rest, pairs, verdicts_of(pairs, minimum_effect), strict=True)
    ]
    slower = [way.side for way in ranked if way.verdict is Relation.SLOWER]
    runner_up, default = (slower or [way.side for way in ranked])[0], _default([way.side for way in known], best)

    def over(side: Side, shown: Collection[Side] = ()) -> ModelComparison:
        layers, _ = layers_of(results, model, best, side, minimum_effect) if side not in shown else ((), ())
        ordered = tuple(sorted(layers, key=lambda layer: -abs(layer.gain_ms)))
        return ModelComparison(name=name, base=best.name, other=side.name, layers=ordered)

    return ModelAdvice(
        name,
        ranking=(known[0], *ranked, *unknown),
        runner_up=over(runner_up),
        default=None if default is None else over(default, (best, runner_up)),
        composed=composed,
        mixed=mixed,
    )


def _way(results: Results, model: Decomposition, side: Side, tasks: Tasks) -> RankedSide:
    """Return a side as a way to run a model."""
    figure = results.measured(model, side)
    if figure.best is None:
        figure = results.figure(model, side)
    reason = results.why_unknown(model, side) if figure.best is None else None
    return RankedSide(side=side, figure=figure, measured_by=tasks.truth(model.source), reason=reason)


def _default(known: Sequence[Side], best: Side) -> Side | None:
    """Return the default combination, under the conditions of the best if possible."""

    def chosen(side: Side) -> int:
        """Return the options that differ from the default; unknown options do not count."""
        stack = side.choice.stack
        defaults = default_options(stack.backend, stack.device)
        return sum(defaults.get(name, value) != value for name, value in stack.options)

    found = [side for side in known if side.choice.stack.backend == _DEFAULT_BACKEND]
    found.sort(key=lambda side: (chosen(side), side.choice.conditions != best.choice.conditions))
    return found[0] if found else None


def _remedies(model: Decomposition, sides: Sequence[Side], store: Store, query: Query) -> tuple[Task, ...]:
    """Return tasks that measure the model on runtimes that can run here and that nothing is stored of."""
    known = {side.choice.stack.backend for side in sides}
    if sides:  # under the same conditions
        like = sides[0].choice.conditions
        query = replace(query, threads=like.threads, cache=like.cache, dtype=like.dtype)
    tasks = [
        Tasks(store, None, replace(query, system=None, backend=name, stack=None), Cut(1)).truth(model.source)
        for name, availability in backends().items()
        if availability.ok and name not in known
    ]
    return tuple(task for task in tasks if task is not None)


def _mixing(
    results: Results, model: Decomposition, best: Side, others: Sequence[Side]
) -> tuple[Estimate | None, tuple[Mixed, ...]]:
    """Return the estimate of the best, and the bricks that gain elsewhere; nothing without its sum or bound."""
    entry = results.estimate(model, best)
    if entry.sums.sequential_ms is None or entry.bounds.sequential.ms is None:
        return None, ()
    place = best.choice
    mixed = [
        (side.name, layer)
        for side in others
        if (side.choice.system_key, side.choice.conditions) == (place.system_key, place.conditions)
        for layer in layers_of(results, model, best, side, MINIMUM_EFFECT)[0]
        if layer.gain_ms > 0
    ]
    mixed.sort(key=lambda found: -found[1].gain_ms)
    first = {layer.brick.key: (side, layer) for side, layer in reversed(mixed)}
    return entry, tuple(sorted(first.values(), key=lambda found: -found[1].gain_ms))
