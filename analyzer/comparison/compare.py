"""Stored results against each other: frameworks, options, systems, threads, precisions, runs or algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

from ...bricks.decomposition import Decomposition
from ...constructor.choice import Query
from ...constructor.evidence import ends_in_view
from ...db import Store
from ...db.values import Run, earlier_version
from ...generator.decomposition.cut import Cut
from ...models import ModelSource
from ...tabular import Records, Row, Tabular, fields, nested_rows, record_of
from ..estimation.query import QueryFields, asked, executes_as_written
from .difference import MINIMUM_EFFECT, Relation, check_minimum_effect
from .results import (
    UNKNOWN,
    Judged,
    ModelBrick,
    Results,
    SideLatency,
    SidePair,
    bricks_of,
    decomposed,
    open_results,
    with_verdicts,
)
from .sides import By, Side, find_side, place_record

FASTEST = "fastest"
"""In place of a base: the side with the lowest latency, of each model."""


@dataclass(frozen=True, slots=True)
class LayerComparison(Judged):
    """One brick of a model on both sides; its verdict considers all bricks of the model.

    Attributes:
        pair: The brick on both sides.
        brick: The brick.
        mixed: True if only one side is eager and the brick ends in a view: the reader of the result then pays for it.
    """

    pair: SidePair
    brick: ModelBrick
    mixed: bool

    @property
    def base_ms(self) -> float:
        """Its latency on the base; for different runs, on a quiet machine."""
        return self._compared_ms[0]

    @property
    def other_ms(self) -> float:
        """Its latency on the other side."""
        return self._compared_ms[1]

    @property
    def _compared_ms(self) -> tuple[float, float]:
        base, other = self.pair.compared
        assert base is not None  # noqa: S101  # both sides have the brick
        assert other is not None  # noqa: S101
        return base.ms, other.ms

    @property
    def gain_ms(self) -> float:
        """Gain of the model if the base ran this brick as fast as the other side.

        Occurrences times the difference; negative if the base is faster, 0 if ``mixed``.
        """
        return 0.0 if self.mixed else self.brick.occurrences * (self.base_ms - self.other_ms)

    def record(self) -> Row:
        """As a JSON object."""
        row = record_of(self, fields("base_ms other_ms ratio ratio_ci95 verdict reason gain_ms"))
        return {**self.brick.record(), **row, "form": asdict(self.brick.form), "apart": self.pair.apart}


@dataclass(frozen=True, slots=True)
class Absent:
    """A brick without a latency on some side.

    Attributes:
        key: Key of the brick; None for a layer that cannot be a brick.
        operators: Its operators.
        occurrences: Number of occurrences in the model.
        sides: Names of the sides without it.
        reason: The reason.
    """

    key: str | None
    operators: tuple[str, ...]
    occurrences: int
    sides: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ModelComparison(Judged):
    """One model on two sides; unknown values are None.

    Attributes:
        name: The model.
        pair: The model on both sides.
        base: Name of the base.
        other: Name of the other side; None without one.
        layers: Bricks with measurements on both sides, the largest gain first.
        missing: The other bricks.
        error: Why the model could not be decomposed.
    """

    name: str
    pair: SidePair = UNKNOWN
    base: str | None = None
    other: str | None = None
    layers: tuple[LayerComparison, ...] = ()
    missing: tuple[Absent, ...] = ()
    error: str | None = None

    @property
    def gain_ms(self) -> float | None:
        """Gain of the model if the base ran every FASTER brick as fast as the other side.

        None if no brick is measured on both sides.
        """
        gains = [layer.gain_ms for layer in self.layers if layer.verdict is Relation.FASTER]
        return sum(gains) if self.layers else None

    def record(self) -> dict[str, Any]:
        """As a JSON object, with the latencies that the ratio is of."""
        base, other, compared = self.pair.base, self.pair.other, self.pair.compared
        return {
            **record_of(self, fields("name base other basis=pair.basis")),
            **_cells(base_measured=base.measured, other_measured=other.measured),
            **_cells(base_estimate=base.estimate, other_estimate=other.estimate),
            **_cells(base_undisturbed=base.undisturbed, other_undisturbed=other.undisturbed),
            **self.judgement(),
            **record_of(self, fields("apart=pair.apart gain_ms layers")),
            "missing": [asdict(absent) for absent in self.missing],
            "error": self.error,
            **_cells(base=compared[0], other=compared[1]),
        }


@dataclass(frozen=True, slots=True)
class Comparison(Tabular):
    """Models on all sides, each against the base.

    Attributes:
        rows: One per model and other side; one per model without another side.
        sides: All sides, a common base first.
        by: Kind of side.
        minimum_effect: Relative difference that matters.
    """

    ANSWER = "report.answers.comparison.comparison_answer"

    rows: tuple[ModelComparison, ...]
    sides: tuple[Side, ...]
    by: By
    minimum_effect: float

    @property
    def base(self) -> str | None:
        """Name of the base; None if models have different ones, or none."""
        names = {row.base for row in self.rows if row.base is not None}
        return next(iter(names)) if len(names) == 1 else None

    @property
    def complete(self) -> bool:
        """True if every model has a verdict on every side."""
        return all(row.verdict is not None for row in self.rows)

    def records(self) -> Records:
        """Return one row per model and other side; the sides as totals."""
        rows = [row.record() for row in self.rows]
        totals = {
            "base": self.base,
            "by": str(self.by),
            "minimum_effect": self.minimum_effect,
            "sides": [_described(side) for side in self.sides],
        }
        hidden = {"layers", "missing"}
        flat = [line for row in rows for line in nested_rows(row, "layer", row["layers"], without=hidden)]
        return Records(rows, totals, flat)


def _cells(**latencies: SideLatency | None) -> Row:
    """Return latencies as keys of a JSON object."""
    cells: dict[str, object] = {}
    for name, latency in latencies.items():
        cells[f"{name}_ms"] = None if latency is None else latency.ms
        cells[f"{name}_ci95_ms"] = None if latency is None else latency.ci95_ms
    return cells


def _described(side: Side) -> Row:
    return {
        "name": side.name,
        **place_record(side.choice),
        **record_of(side, fields("run=run.id started=run.started variant")),
    }


def compare(
    models: Sequence[ModelSource],
    *,
    store: Store,
    by: By | str = By.COMBINATION,
    base: str | None = None,
    others: Sequence[str] = (),
    minimum_effect: float = MINIMUM_EFFECT,
    query: Query | None = None,
    granularity: int = 1,
    connected: bool = False,
    **fields: Unpack[QueryFields],
) -> Comparison:
    """Compare stored results, per model and per brick; nothing is measured.

    Args:
        models: The models, from ``find_models``.
        store: Where latencies are.
        by: Kind of side: ``combination`` (stored systems, stacks and conditions), ``run`` (runs of one combination) or
            ``variant`` (algorithms within one).
        base: The base: its name or the beginning of a key; None: the side that was measured first. ``fastest``: the
            fastest side of each model. The others follow by latency. Sides that differ only in the cache state of
            bricks are then one, and evicted caches are left out unless the query asks for them.
        others: The sides to compare with it, named in the same way; empty: all.
        minimum_effect: Relative difference that matters.
        query: Narrows the comparison.
        granularity: Most layers in a brick; bricks are those of the models' own graphs.
        connected: Bricks may be weakly connected windows.
        **fields: Fields of a ``Query``, in place of those of ``query``.

    Raises:
        AmbiguousQuery: Runs or variants of several combinations match, or several sides have the given name.
        UsageError: The minimum effect is not positive, or there is no such system, stack or side.
        StoreError: The database cannot be read.

    Example:
        >>> from dlbricks.db import Store
        >>> from dlbricks.models import find_models
        >>> with Store.open("sqlite://") as store:
        ...     (row,) = compare(find_models(["squeezenet"]), store=store).rows
        >>> row.verdict, row.reason
        (None, 'nothing is stored')
    """
    check_minimum_effect(minimum_effect)
    by, cut, query = By(by), Cut(granularity, connected=connected), asked(query, fields)
    ranked = base == FASTEST
    results = open_results(decomposed(models, cut), store, query, cut, by=by, merged=ranked)
    sides = results.sides
    if ranked:
        sides = [side for side in sides if query.cache is not None or not side.cold]
        first = None
    else:
        first = next(iter(sides), None) if base is None else find_side(sides, base)
    chosen = [find_side(sides, text) for text in others] or sides
    sides = ([] if first is None else [first]) + [side for side in chosen if side is not first]
    rows = _rows(results, sides, minimum_effect, store.runs(), ranked=ranked)
    return Comparison(tuple(rows), tuple(sides), by, minimum_effect)


def _rows(
    results: Results, sides: Sequence[Side], minimum_effect: float, runs: Sequence[Run], *, ranked: bool
) -> list[ModelComparison]:
    """Return the rows with their verdicts: each is one of several differences that were looked at."""
    decompositions = [model for model in results.models if isinstance(model, Decomposition)]
    orders = {model.own.key: results.ranked(model, sides) if ranked else sides for model in decompositions}
    pairs = [
        results.pair(model, orders[model.own.key][0], other)
        for model in decompositions
        for other in orders[model.own.key][1:]
    ]
    judged_pairs = iter(with_verdicts(pairs, minimum_effect))
    rows: list[ModelComparison] = []
    for model in results.models:
        name = model.source.name
        if not isinstance(model, Decomposition):
            rows.append(ModelComparison(name, SidePair(reason=model.reason), error=model.reason))
            continue
        order = orders[model.own.key]
        if len(order) < 2:
            rows.append(_alone(results, model, order, earlier_version(runs, name, model.own.key)))
        for other in order[1:]:
            pair = next(judged_pairs)
            pair = replace(pair, verdict=pair.verdict if pair.difference is not None else None)
            layers, missing = _layers(results, model, order[0], other, minimum_effect)
            rows.append(ModelComparison(name, pair, order[0].name, other.name, layers, missing))
    return rows


def _alone(results: Results, model: Decomposition, sides: Sequence[Side], version: str) -> ModelComparison:
    """Return the row of a model with at most one side; ``version`` says that another model had its name."""
    base = next(iter(sides), None)
    reason = "nothing is stored" if base is None else f"nothing to compare with: only {base.name} is stored"
    reason = f"{version}; compare both files: dlbricks compare OLD NEW" if version else reason
    if base is None:
        return ModelComparison(model.source.name, SidePair(reason=reason))
    return ModelComparison(model.source.name, SidePair(results.best(model, base), reason=reason), base.name)


def _layers(
    results: Results, model: Decomposition, base: Side, other: Side, minimum_effect: float
) -> tuple[tuple[LayerComparison, ...], tuple[Absent, ...]]:
    """Return every brick of a model on both sides, the largest gain first, and the bricks that a side lacks.

    Args:
        results: The stored results.
        model: The model.
        base: The base.
        other: The other side.
        minimum_effect: Relative difference that matters.
    """
    bricks: list[ModelBrick] = []
    pairs: list[SidePair] = []
    missing: list[Absent] = []
    for key, brick in bricks_of(model).items():
        lacking = {side.name: reason for side in (base, other) if (reason := results.lacks(model, side, key))}
        if lacking:
            reason = "; ".join(dict.fromkeys(lacking.values()))
            missing.append(Absent(key, brick.operators, brick.occurrences, tuple(lacking), reason))
        else:
            bricks.append(brick)
            pairs.append(results.brick_pair(model, base, other, key))
    missing += [
        Absent(None, (layer.op_type,), 1, (base.name, other.name), f"cannot be a brick: {layer.reason}")
        for layer in results.skipped(model)
    ]
    mixed = executes_as_written(base.choice.stack) is not executes_as_written(other.choice.stack)
    layers = [
        LayerComparison(pair, brick, mixed=mixed and ends_in_view(brick.operators))
        for brick, pair in zip(bricks, with_verdicts(pairs, minimum_effect), strict=True)
    ]
    return tuple(sorted(layers, key=lambda layer: -layer.gain_ms)), tuple(missing)
