"""Stored results against each other: frameworks, options, systems, threads, precisions, runs or algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

from ...bricks.inference.shapes import ShapeOracle
from ...constructor.decomposition import Decomposition, Failed
from ...db import Store
from ...generator.decomposition.cutter import Cut
from ...models import ModelSource
from ...tabular import Records, Tabular, nested_rows
from ..estimation.query import Query, QueryFields, asked
from .difference import MINIMUM_EFFECT, Relation, check_minimum_effect
from .results import Figure, Pair, Results, open_results
from .side_by_side import Absent, LayerComparison, judged, layers_of
from .sides import By, Side, pick

__all__ = ["Comparison", "ModelComparison", "compare"]


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
        base_undisturbed_ms: As measured while the machine was quiet, where the ratio is of that: where both sides come
            from different runs.
        base_undisturbed_ci95_ms: Its interval.
        other_undisturbed_ms: Likewise.
        other_undisturbed_ci95_ms: Its interval.
        ratio: Latency of the other side / latency of the base.
        ratio_ci95: Its interval.
        verdict: What the other side is.
        reason: Why there is no verdict, or why it is UNCLEAR.
        apart: Whether both come from different runs: the interval holds what the machine may have done between them.
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
    base_undisturbed_ms: float | None = None
    base_undisturbed_ci95_ms: tuple[float, float] | None = None
    other_undisturbed_ms: float | None = None
    other_undisturbed_ci95_ms: tuple[float, float] | None = None
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
        """As a JSON object, with the latencies that the ratio is of."""
        return asdict(self) | _decided_by(self)


@dataclass(frozen=True, slots=True)
class Comparison(Tabular):
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

    def records(self) -> Records:
        """One row per model and other side, the sides beside them."""
        rows = [row.record() for row in self.rows]
        totals = {
            "base": self.sides[0].name if self.sides else None,
            "by": str(self.by),
            "minimum_effect": self.minimum_effect,
            "sides": [_described(side) for side in self.sides],
        }
        hidden = {"layers", "missing"}
        flat = [line for row in rows for line in nested_rows(row, "layer", row["layers"], without=hidden)]
        return Records(rows, totals, flat)


def _decided_by(row: ModelComparison) -> dict[str, object]:
    """The latencies that the ratio is of."""
    measured = "measured" in (row.basis or "measured")
    kinds = ("undisturbed", "measured", "estimate") if measured else ("estimate", "measured")
    found: dict[str, object] = {}
    for side in ("base", "other"):
        kind = next((kind for kind in kinds if getattr(row, f"{side}_{kind}_ms") is not None), kinds[-1])
        found |= {f"{side}_{unit}": getattr(row, f"{side}_{kind}_{unit}") for unit in ("ms", "ci95_ms")}
    return found


def _described(side: Side) -> dict[str, object]:
    place = side.choice
    return {
        "name": side.name,
        "system": place.system_key,
        "stack": place.stack_key,
        "backend": place.stack.backend,
        "device": place.stack.device,
        "versions": dict(place.stack.versions),
        "options": dict(place.stack.options),
        **asdict(place.conditions),
        "run": None if side.run is None else side.run.id,
        "started": None if side.run is None else side.run.started,
        "variant": side.variant,
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
    oracle: ShapeOracle | None = None,
    **fields: Unpack[QueryFields],
) -> Comparison:
    """Compare stored results with each other, per model and per brick; nothing is measured.

    Args:
        models: The models, from ``find_models``.
        store: Where latencies are.
        by: What is compared: ``combination`` (everything stored under different systems, stacks or conditions), ``run``
            (runs of one combination) or ``variant`` (algorithms within one).
        base: The side that others are compared with: its name or the beginning of a key; None for the one that was
            measured first.
        others: The sides to compare with it, named in the same way; none for all.
        minimum_effect: Relative difference that matters.
        query: Narrows what is compared.
        granularity: Most layers in a brick; bricks are those of the models' own graphs.
        connected: Bricks may be weakly connected windows.
        oracle: Finds shapes that inference does not.
        **fields: Fields of a ``Query``, in place of those of ``query``.

    Raises:
        AmbiguousQuery: Runs or variants of several combinations match, or a name is that of several sides.
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
    by = By(by)
    cut = Cut(granularity, connected=connected)
    with open_results(models, store=store, query=asked(query, fields), cut=cut, by=by, oracle=oracle) as results:
        sides = results.sides
        first = sides[0] if sides else None
        if base is not None or others:
            first = pick(sides, base) if base is not None else first
            chosen = [pick(sides, text) for text in others] or sides
            sides = ([] if first is None else [first]) + [side for side in chosen if side is not first]
        elif first is not None:
            sides = [first, *(side for side in sides if side is not first)]
        rows = [row for model in results.models for row in _rows(results, model, sides, minimum_effect)]
    return Comparison(tuple(_decided(rows, minimum_effect)), tuple(sides), by, minimum_effect)


@dataclass(frozen=True, slots=True)
class _Open:
    """A row before all rows are known."""

    row: ModelComparison
    pair: Pair | None = None


def _rows(results: Results, model: Decomposition | Failed, sides: Sequence[Side], minimum_effect: float) -> list[_Open]:
    if not isinstance(model, Decomposition):
        return [_Open(ModelComparison(model.source.name, error=model.reason, reason=model.reason))]
    name = model.source.name
    if len(sides) < 2:
        alone = sides[0].name if sides else None
        reason = "nothing is stored" if alone is None else f"nothing to compare with: only {alone} is stored"
        return [_Open(ModelComparison(name, base=alone, reason=reason))]
    return [_row(results, model, sides[0], other, minimum_effect) for other in sides[1:]]


def _row(results: Results, model: Decomposition, base: Side, other: Side, minimum_effect: float) -> _Open:
    pair = results.pair(model, base, other)
    row = ModelComparison(
        name=model.source.name,
        base=base.name,
        other=other.name,
        **_figures("base", pair.base),
        **_figures("other", pair.other),
    )
    layers, missing = layers_of(results, model, base, other, minimum_effect)
    gains = [layer.gain_ms for layer in layers if layer.verdict is Relation.FASTER]
    row = replace(row, basis=pair.basis, gain_ms=sum(gains) if layers else None, layers=layers, missing=missing)
    if pair.difference is None:
        return _Open(replace(row, reason=pair.reason))
    seen = pair.difference
    return _Open(replace(row, ratio=seen.ratio, ratio_ci95=seen.ci95, apart=pair.apart), pair)


def _figures(side: str, figure: Figure) -> dict[str, Any]:
    return {f"{side}_{name}": value for name, value in asdict(figure).items()}


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
