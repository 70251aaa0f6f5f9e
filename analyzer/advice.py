"""Which stored framework and options run a model fastest here, and what decides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

from ..bricks.inference.shapes import ShapeOracle
from ..constructor.decomposition import Decomposition, Failed
from ..constructor.form import Form
from ..constructor.remedies import Task
from ..db import Store
from ..errors import UsageError
from ..generator.decomposition.cutter import Cut
from ..generator.machine.system import probe_system
from ..models import ModelSource
from ..tabular import Records, Tabular
from .comparison.difference import MINIMUM_EFFECT, Relation, check_minimum_effect
from .comparison.results import Results, open_results
from .comparison.side_by_side import LayerComparison, judged, layers_of
from .comparison.sides import Side
from .estimation.query import Query, QueryFields, asked
from .ranking import Candidate, candidate_of, default_of, ranked, remedies_of
from .shell import spelled

__all__ = ["Advice", "Mixed", "ModelAdvice", "advise"]

_ANY = "any"
"""In place of a precision: all of them."""

_DEFAULT_DTYPE = "float32"


@dataclass(frozen=True, slots=True)
class Mixed:
    """A brick that another side than the best runs fastest.

    Attributes:
        key: Key of the brick.
        operators: Its operators.
        occurrences: How often the model holds it.
        side: Name of the side that runs it fastest.
        best_ms: Its latency on the best side.
        fastest_ms: On that side.
        gain_ms: Occurrences times the difference.
        names: Names of the layers of its first occurrence.
        form: What that looks like.
    """

    key: str
    operators: tuple[str, ...]
    occurrences: int
    side: str
    best_ms: float
    fastest_ms: float
    gain_ms: float
    names: tuple[str, ...]
    form: Form


@dataclass(frozen=True, slots=True)
class ModelAdvice:
    """How to run one model; everything is None or empty that is not known.

    Attributes:
        name: The model.
        best: Name of the fastest side.
        measured_by: Measures the model so.
        ties: Names of those that cannot be distinguished from it.
        ranking: Every side, the fastest first; those that nothing is known of last.
        runner_up: Name of the fastest side that is slower than the best by more than chance; else of the second.
        default: Name of the side that stands for the default: onnxruntime with its own options.
        over_runner_up: The bricks in which the best and the runner-up differ, what the best gains most by first.
        over_default: Likewise beside the default, where that is neither.
        bricks_ms: Sum of the bricks on the best side.
        lower_bound_ms: Cheapest way to make up the model of stored bricks of all stacks, under the same conditions.
        mixing_ms: What choosing for every brick could gain beyond the best: the difference of these two.
        mixed: The bricks that gain, the largest gain first.
        reason: Why there is no advice, or none worth the name.
        remedies: What would help.
        error: Why the model could not be decomposed.
    """

    name: str
    best: str | None = None
    measured_by: Task | None = None
    ties: tuple[str, ...] = ()
    ranking: tuple[Candidate, ...] = ()
    runner_up: str | None = None
    default: str | None = None
    over_runner_up: tuple[LayerComparison, ...] = ()
    over_default: tuple[LayerComparison, ...] = ()
    bricks_ms: float | None = None
    lower_bound_ms: float | None = None
    mixing_ms: float | None = None
    mixed: tuple[Mixed, ...] = ()
    reason: str | None = None
    remedies: tuple[Task, ...] = ()
    error: str | None = None

    @property
    def complete(self) -> bool:
        """Whether there is something to choose from, and all of it is known."""
        return len(self.ranking) > 1 and all(one.latency_ms is not None for one in self.ranking)

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        plain = asdict(replace(self, measured_by=None, ranking=(), remedies=()))
        ranking = [one.record() for one in self.ranking]
        own = {"measured_by": self.measured_by, "ranking": ranking, "remedies": self.remedies}
        return spelled(plain | own, measured_by="command", remedies="remedy")


@dataclass(frozen=True, slots=True)
class Advice(Tabular):
    """How to run some models.

    Attributes:
        rows: One per model.
        system: Key of the system that it is for; None where nothing is stored.
    """

    rows: tuple[ModelAdvice, ...]
    system: str | None

    @property
    def complete(self) -> bool:
        """Whether there is complete advice for every model."""
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
    """The best stored way to run each model on one system, from what is measured, else from estimates.

    Args:
        models: The models, from ``find_models``.
        store: Where latencies are.
        minimum_effect: Relative difference that matters.
        query: Which of the stored measurements. Where it leaves them open, the system is this machine, or the only one
            that is stored; the cache state that of a model that is repeated, whatever its bricks are in; and the
            precision float32, where ``any`` is all of them.
        granularity: Most layers in a brick.
        connected: Bricks may be weakly connected windows.
        oracle: Finds shapes that inference does not.
        **fields: Fields of a ``Query``, in place of those of ``query``.

    Raises:
        UsageError: The minimum effect is not positive, there is no such system or stack, or several systems are stored
            and this machine is none of them.
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
    with open_results(models, store=store, query=query, cut=cut, oracle=oracle, merged=True) as results:
        sides = [side for side in results.sides if query.cache is not None or not side.cold]
        rows = [
            _advised(results, model, sides, store, query, minimum_effect=minimum_effect) for model in results.models
        ]
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
    if not isinstance(model, Decomposition):
        return ModelAdvice(model.source.name, reason=model.reason, error=model.reason)
    candidates = {side.name: candidate_of(results, model, side, store, query) for side in sides}
    known = [side for side in sides if candidates[side.name].latency_ms is not None]
    known.sort(key=lambda side: candidates[side.name].latency_ms or 0.0)
    if not known:
        reason = "nothing is stored" if not sides else "neither the model nor all of its bricks are measured anywhere"
        return ModelAdvice(
            model.source.name, ranking=tuple(candidates.values()), reason=reason,
            remedies=remedies_of(model, sides, store, query),
        )  # fmt: skip
    best, rest = known[0], known[1:]
    pairs = {side.name: results.pair(model, best, side) for side in rest}
    verdicts = dict(zip(pairs, judged(list(pairs.values()), minimum_effect), strict=True))
    for name, pair in pairs.items():
        candidates[name] = ranked(candidates[name], pair, verdicts[name])
    unknown = [one for one in candidates.values() if one.latency_ms is None]
    ranking = (*(candidates[side.name] for side in known), *unknown)
    row = ModelAdvice(
        model.source.name,
        best=best.name,
        measured_by=candidates[best.name].measured_by,
        ties=tuple(name for name, (verdict, _) in verdicts.items() if verdict is not Relation.SLOWER),
        ranking=ranking,
    )
    row = replace(row, **_mixing(results, model, best, known))
    if not rest:
        return replace(
            row,
            reason=f"nothing to compare with: only {best.name} is known",
            remedies=remedies_of(model, sides, store, query),
        )
    slower = [side for side in rest if verdicts[side.name][0] is Relation.SLOWER]
    runner_up, default = (slower or rest)[0], default_of(known, best)
    row = replace(
        row, runner_up=runner_up.name, over_runner_up=_decisive(results, model, best, runner_up, minimum_effect)
    )
    if default is not None:
        row = replace(row, default=default.name)
        if default.name not in {best.name, runner_up.name}:
            row = replace(row, over_default=_decisive(results, model, best, default, minimum_effect))
    return row


def _decisive(
    results: Results, model: Decomposition, best: Side, other: Side, minimum_effect: float
) -> tuple[LayerComparison, ...]:
    """Bricks of a model as ``other`` has them, seen from the best; the largest differences first, either way."""
    layers, _ = layers_of(results, model, best, other, minimum_effect)
    return tuple(sorted(layers, key=lambda layer: -abs(layer.gain_ms)))


def _mixing(results: Results, model: Decomposition, best: Side, known: Sequence[Side]) -> dict[str, Any]:
    """What choosing a side for every brick could gain."""
    entry = results.estimate(model, best)
    if entry.sequential_ms is None or entry.lower_bound_sequential_ms is None:
        return {}
    alike = [
        side
        for side in known
        if side is not best
        and (side.choice.system_key, side.choice.conditions) == (best.choice.system_key, best.choice.conditions)
    ]
    mixed = [
        Mixed(
            layer.key,
            layer.operators,
            layer.occurrences,
            side.name,
            layer.base_ms,
            layer.other_ms,
            layer.gain_ms,
            layer.names,
            layer.form,
        )
        for side in alike
        for layer in layers_of(results, model, best, side, MINIMUM_EFFECT)[0]
        if layer.gain_ms > 0
    ]
    mixed.sort(key=lambda one: -one.gain_ms)
    first = {one.key: one for one in reversed(mixed)}
    return {
        "bricks_ms": entry.sequential_ms,
        "lower_bound_ms": entry.lower_bound_sequential_ms,
        "mixing_ms": entry.sequential_ms - entry.lower_bound_sequential_ms,
        "mixed": tuple(sorted(first.values(), key=lambda one: -one.gain_ms)),
    }
