"""Bricks of a model on two sides, and the verdicts of differences that are looked at together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...bricks.sequence import LayerSequence
from ...constructor.decomposition import Decomposition
from ...constructor.form import Form, form_of
from ..estimation.runtime import executes_as_written
from ..estimation.views import ends_in_view
from .difference import Relation, discoveries, relation
from .results import Pair, Results
from .sides import Side

__all__ = ["Absent", "LayerComparison", "judged", "layers_of"]


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """One brick of a model on both sides.

    Attributes:
        key: Key of the brick.
        operators: Its operators.
        names: Names of the layers of its first occurrence.
        occurrences: How often the model holds it.
        base_ms: Its latency on the base; where both come from different runs, that on a quiet machine.
        other_ms: On the other side.
        ratio: ``other_ms / base_ms``.
        ratio_ci95: Its interval.
        verdict: What the other side is; with that of all bricks of the model considered.
        reason: Why the verdict is UNCLEAR; None where it is not.
        gain_ms: What the model would gain if the base ran this brick as fast as the other side does: occurrences times
            the difference; negative where the base is faster. 0 where one side alone is
            eager and the brick ends in a view: what it leaves out, whoever reads the result pays.
        form: What its first occurrence looks like.
        apart: Whether both come from different runs.
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
    form: Form
    apart: bool


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
    noisy = "; the machine was not quiet: measure again" if pair.noisy else ""
    guessed = "; what runs of such stacks differ by is not calibrated: that of others was taken" if pair.guessed else ""
    return f"the interval of the ratio reaches from {low:.3f} to {high:.3f}{guessed}{noisy}"


def layers_of(
    results: Results, model: Decomposition, base: Side, other: Side, minimum_effect: float
) -> tuple[tuple[LayerComparison, ...], tuple[Absent, ...]]:
    """Every brick of a model on both sides, the largest gain first; and those that a side lacks.

    Args:
        results: What is stored.
        model: The model.
        base: The base.
        other: The other side.
        minimum_effect: Relative difference that matters.
    """
    counts = Counter(part.key for part in model.sequences)
    first = {part.key: part for part in reversed(model.sequences)}
    pairs: dict[str, Pair] = {}
    missing: list[Absent] = []
    for key, count in counts.items():
        operators = tuple(model.graph.layers[index].op_type for index in first[key].layers)
        lacking = {side.name: reason for side in (base, other) if (reason := results.lacks(model, side, key))}
        if lacking:
            reason = "; ".join(dict.fromkeys(lacking.values()))
            missing.append(Absent(key, operators, count, tuple(lacking), reason))
        else:
            pairs[key] = results.brick_pair(model, base, other, key)
    missing += [
        Absent(None, (layer.op_type,), 1, (base.name, other.name), f"cannot be a brick: {layer.reason}")
        for layer in results.skipped(model)
    ]
    verdicts = dict(zip(pairs, judged(list(pairs.values()), minimum_effect), strict=True))
    mixed = executes_as_written(base.choice.stack) is not executes_as_written(other.choice.stack)
    layers = [_layer(model, first[key], counts[key], pair, verdicts[key], mixed=mixed) for key, pair in pairs.items()]
    return tuple(sorted(layers, key=lambda layer: -layer.gain_ms)), tuple(missing)


def _layer(
    model: Decomposition,
    part: LayerSequence,
    count: int,
    pair: Pair,
    verdict: tuple[Relation, str | None],
    *,
    mixed: bool,
) -> LayerComparison:
    base_ms, other_ms = pair.base.undisturbed_ms or pair.base.best_ms, pair.other.undisturbed_ms or pair.other.best_ms
    assert base_ms is not None  # noqa: S101  # both sides have the brick
    assert other_ms is not None  # noqa: S101
    layers = [model.graph.layers[index] for index in part.layers]
    operators = tuple(layer.op_type for layer in layers)
    return LayerComparison(
        key=part.key,
        operators=operators,
        names=tuple(layer.name for layer in layers),
        occurrences=count,
        base_ms=base_ms,
        other_ms=other_ms,
        ratio=None if pair.difference is None else pair.difference.ratio,
        ratio_ci95=None if pair.difference is None else pair.difference.ci95,
        verdict=verdict[0],
        reason=verdict[1],
        gain_ms=0.0 if mixed and ends_in_view(operators) else count * (base_ms - other_ms),
        form=form_of(model, part),
        apart=pair.apart,
    )
