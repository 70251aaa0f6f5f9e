"""Stored results against each other: frameworks, options, systems, threads, precisions, runs or algorithms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..bricks.sequence import Sequence as Part
from ..bricks.shapes import ShapeOracle
from ..constructor.contest import Contest, Figure, Pair, open_contest
from ..constructor.decomposition import Decomposition
from ..constructor.difference import MINIMUM_EFFECT, Relation, discoveries, relation
from ..constructor.result import Estimate
from ..constructor.selection import Query
from ..constructor.sides import By, Side, pick
from ..db import Store
from ..errors import UsageError
from ..models import ModelSource

__all__ = ["Absent", "Comparison", "LayerComparison", "ModelComparison", "compare", "judged", "layers_of"]


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """One brick of a model on both sides.

    Attributes:
        key: Key of the brick.
        operators: Its operators.
        names: Names of the layers of its first occurrence.
        occurrences: How often the model holds it.
        base_ms: Its latency on the base.
        other_ms: On the other side.
        ratio: ``other_ms / base_ms``.
        ratio_ci95: Its interval.
        verdict: What the other side is; with that of all bricks of the model considered.
        reason: Why the verdict is UNCLEAR; None where it is not.
        gain_ms: What the model would gain if the base ran this brick as fast as the other side does: occurrences times
            the difference; negative where the base is faster.
    """

    key: str
    operators: tuple[str, ...]
    names: tuple[str, ...]
    occurrences: int
    base_ms: float
    other_ms: float
    ratio: float | None
    ratio_ci95: tuple[float, float] | None
    verdict: Relation
    reason: str | None
    gain_ms: float


@dataclass(frozen=True, slots=True)
class Absent:
    """A brick that one side has no latency of.

    Attributes:
        key: Key of the brick; None for a layer that cannot be one.
        operators: Its operators.
        occurrences: How often the model holds it.
        sides: Names of the sides that lack it.
        reason: Why.
    """

    key: str | None
    operators: tuple[str, ...]
    occurrences: int
    sides: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """One model on two sides; everything is None that is not known.

    Attributes:
        name: The model.
        base: Name of the base.
        other: Name of the other side; None where there is none.
        basis: What the ratio is of: ``measured`` (ground truth), ``estimate``, ``bricks`` (the sum of them), or
            ``measured and estimate`` where neither is known of both.
        base_measured_ms: Ground truth on the base.
        base_measured_ci95_ms: Its interval.
        other_measured_ms: Ground truth on the other side.
        other_measured_ci95_ms: Its interval.
        base_estimate_ms: From bricks, where ground truth is missing on a side.
        base_estimate_ci95_ms: Its interval.
        other_estimate_ms: Likewise.
        other_estimate_ci95_ms: Its interval.
        ratio: Latency of the other side / latency of the base.
        ratio_ci95: Its interval.
        verdict: What the other side is.
        reason: Why there is no verdict, or why it is UNCLEAR.
        apart: Whether no reference network tells what the machine did between both: the interval holds what machines
            may do.
        gain_ms: What the model would gain if the base ran every brick that is FASTER on the other side as that does;
            None where no brick is measured on both.
        layers: Every brick that is measured on both sides, the largest gain first.
        missing: Those that are not.
        error: Why the model could not be decomposed.
    """

    name: str
    base: str | None = None
    other: str | None = None
    basis: str | None = None
    base_measured_ms: float | None = None
    base_measured_ci95_ms: tuple[float, float] | None = None
    other_measured_ms: float | None = None
    other_measured_ci95_ms: tuple[float, float] | None = None
    base_estimate_ms: float | None = None
    base_estimate_ci95_ms: tuple[float, float] | None = None
    other_estimate_ms: float | None = None
    other_estimate_ci95_ms: tuple[float, float] | None = None
    ratio: float | None = None
    ratio_ci95: tuple[float, float] | None = None
    verdict: Relation | None = None
    reason: str | None = None
    apart: bool = False
    gain_ms: float | None = None
    layers: tuple[LayerComparison, ...] = ()
    missing: tuple[Absent, ...] = ()
    error: str | None = None

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Models on all sides, each against the base.

    Attributes:
        rows: One per model and other side; one per model where there is no other side.
        sides: All sides, the base first.
        by: What a side is.
        minimum_effect: Relative difference that matters.
    """

    rows: tuple[ModelComparison, ...]
    sides: tuple[Side, ...]
    by: By
    minimum_effect: float

    @property
    def complete(self) -> bool:
        """Whether every model has a verdict on every side."""
        return all(row.verdict is not None for row in self.rows)


def compare(
    models: Sequence[ModelSource],
    *,
    store: Store,
    by: By | str = By.COMBINATION,
    base: str | None = None,
    others: Sequence[str] = (),
    minimum_effect: float = MINIMUM_EFFECT,
    granularity: int = 1,
    connected: bool = False,
    system: str | None = None,
    stack: str | None = None,
    backend: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    cache: str | None = None,
    dtype: str | None = None,
    oracle: ShapeOracle | None = None,
) -> Comparison:
    """Compare stored results with each other, per model and per brick; nothing is measured.

    Args:
        models: The models, from ``find_models``.
        store: Where latencies are.
        by: What is compared: ``combination`` (everything stored under different systems, stacks or conditions), ``run``
            (runs of one combination) or ``variant`` (algorithms within one).
        base: The side that others are compared with: its name or the beginning of a key; None for the one that was
            measured first.
        others: The sides to compare with it, told in the same way; none for all.
        minimum_effect: Relative difference that matters.
        granularity: Most layers in a brick; bricks are those of the models' own graphs.
        connected: Bricks may be weakly connected windows.
        system: Key of the system, or its beginning; with the options below it narrows what is compared.
        stack: Key of the stack, or its beginning.
        backend: Name of the backend.
        device: Its device.
        threads: Threads; 0 for all physical cores.
        cache: Cache state.
        dtype: Precision.
        oracle: Finds shapes that inference does not.

    Raises:
        AmbiguousQuery: Runs or variants of several combinations match, or a side is told in a way that several are.
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
    if not 0 < minimum_effect < float("inf"):
        raise UsageError(f"a minimum effect of {minimum_effect} is not positive", remedy="write 0.03 for 3 %")
    by = By(by)
    query = Query(system, stack, backend, device, threads, cache, dtype)
    with open_contest(
        models, store=store, query=query, by=by, granularity=granularity, connected=connected, oracle=oracle
    ) as contest:
        sides = contest.sides
        first = sides[0] if sides else None
        if base is not None or others:
            first = pick(sides, base) if base is not None else first
            chosen = [pick(sides, text) for text in others] or sides
            sides = ([] if first is None else [first]) + [side for side in chosen if side is not first]
        elif first is not None:
            sides = [first, *(side for side in sides if side is not first)]
        rows = [row for model in contest.models for row in _rows(contest, model, sides, minimum_effect)]
    return Comparison(tuple(_decided(rows, minimum_effect)), tuple(sides), by, minimum_effect)


@dataclass(frozen=True, slots=True)
class _Open:
    """A row before all rows are known."""

    row: ModelComparison
    pair: Pair | None = None


def _rows(
    contest: Contest, model: Decomposition | Estimate, sides: Sequence[Side], minimum_effect: float
) -> list[_Open]:
    if not isinstance(model, Decomposition):
        return [_Open(ModelComparison(model.name, error=model.error, reason=model.error))]
    name = model.source.name
    if len(sides) < 2:
        alone = sides[0].name if sides else None
        reason = "nothing is stored" if alone is None else f"nothing to compare with: only {alone} is stored"
        return [_Open(ModelComparison(name, base=alone, reason=reason))]
    return [_row(contest, model, sides[0], other, minimum_effect) for other in sides[1:]]


def _row(contest: Contest, model: Decomposition, base: Side, other: Side, minimum_effect: float) -> _Open:
    pair = contest.pair(model, base, other)
    row = ModelComparison(
        name=model.source.name,
        base=base.name,
        other=other.name,
        **_figures("base", pair.base),
        **_figures("other", pair.other),
    )
    layers, missing = layers_of(contest, model, base, other, minimum_effect)
    gains = [layer.gain_ms for layer in layers if layer.verdict is Relation.FASTER]
    row = replace(row, basis=pair.basis, gain_ms=sum(gains) if layers else None, layers=layers, missing=missing)
    if pair.difference is None:
        return _Open(replace(row, reason=pair.reason))
    seen = pair.difference
    return _Open(replace(row, ratio=seen.ratio, ratio_ci95=seen.ci95, apart=pair.apart), pair)


def _figures(side: str, figure: Figure) -> dict[str, Any]:
    return {
        f"{side}_measured_ms": figure.measured_ms,
        f"{side}_measured_ci95_ms": figure.measured_ci95_ms,
        f"{side}_estimate_ms": figure.estimate_ms,
        f"{side}_estimate_ci95_ms": figure.estimate_ci95_ms,
    }


def _decided(rows: Sequence[_Open], minimum_effect: float) -> list[ModelComparison]:
    """The rows with their verdicts: each is one of several differences that were looked at."""
    verdicts = iter(judged([one.pair for one in rows if one.pair is not None], minimum_effect))
    decided = []
    for one in rows:
        if one.pair is None:
            decided.append(one.row)
        else:
            verdict, reason = next(verdicts)
            decided.append(replace(one.row, verdict=verdict, reason=reason))
    return decided


def judged(pairs: Sequence[Pair], minimum_effect: float) -> list[tuple[Relation, str | None]]:
    """The verdict of each of several pairs that were looked at together, and why it is UNCLEAR."""
    fair = [pair.difference for pair in pairs if pair.difference is not None and pair.reason is None]
    found = iter(discoveries([one.p for one in fair]))
    verdicts: list[tuple[Relation, str | None]] = []
    for pair in pairs:
        if pair.difference is None or pair.reason is not None:
            verdicts.append((Relation.UNCLEAR, pair.reason))
            continue
        discovered = next(found)
        verdict = relation(pair.difference, minimum_effect=minimum_effect, discovered=discovered)
        reason = None
        if verdict is Relation.UNCLEAR:
            reason = _why_unclear(pair, discovered, minimum_effect, len(fair))
        verdicts.append((verdict, reason))
    return verdicts


def _why_unclear(pair: Pair, discovered: bool, minimum_effect: float, looked_at: int) -> str:  # noqa: FBT001
    assert pair.difference is not None  # noqa: S101
    low, high = pair.difference.ci95
    if discovered:
        return f"they differ, by less than {minimum_effect:.1%} or more"
    if not low <= 1 <= high:
        return f"the difference could be chance among the {looked_at} that were looked at"
    return f"the interval of the ratio reaches from {low:.3f} to {high:.3f}"


def layers_of(
    contest: Contest, model: Decomposition, base: Side, other: Side, minimum_effect: float
) -> tuple[tuple[LayerComparison, ...], tuple[Absent, ...]]:
    """Every brick of a model on both sides, and those that a side lacks."""
    counts = Counter(part.key for part in model.sequences)
    first = {part.key: part for part in reversed(model.sequences)}
    pairs: dict[str, Pair] = {}
    missing: list[Absent] = []
    for key, count in counts.items():
        operators = tuple(model.graph.layers[index].op_type for index in first[key].layers)
        lacking = {side.name: reason for side in (base, other) if (reason := contest.lacks(model, side, key))}
        if lacking:
            reason = "; ".join(dict.fromkeys(lacking.values()))
            missing.append(Absent(key, operators, count, tuple(lacking), reason))
        else:
            pairs[key] = contest.brick_pair(model, base, other, key)
    missing += [
        Absent(None, (layer.op_type,), 1, (base.name, other.name), f"cannot be a brick: {layer.reason}")
        for layer in contest.skipped(model)
    ]
    verdicts = dict(zip(pairs, judged(list(pairs.values()), minimum_effect), strict=True))
    layers = [_layer(model, first[key], counts[key], pair, verdicts[key]) for key, pair in pairs.items()]
    return tuple(sorted(layers, key=lambda layer: -layer.gain_ms)), tuple(missing)


def _layer(
    model: Decomposition, part: Part, count: int, pair: Pair, verdict: tuple[Relation, str | None]
) -> LayerComparison:
    base_ms, other_ms = pair.base.best_ms, pair.other.best_ms
    assert base_ms is not None  # noqa: S101  # both sides have the brick
    assert other_ms is not None  # noqa: S101
    layers = [model.graph.layers[index] for index in part.layers]
    return LayerComparison(
        key=part.key,
        operators=tuple(layer.op_type for layer in layers),
        names=tuple(layer.name for layer in layers),
        occurrences=count,
        base_ms=base_ms,
        other_ms=other_ms,
        ratio=None if pair.difference is None else pair.difference.ratio,
        ratio_ci95=None if pair.difference is None else pair.difference.ci95,
        verdict=verdict[0],
        reason=verdict[1],
        gain_ms=count * (base_ms - other_ms),
    )
