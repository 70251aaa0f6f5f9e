"""What of a model is measured: its sequences one by one, how much of it that is, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence

from ..bricks.graph.graph import ModelGraph
from ..bricks.layer import LayerState
from ..bricks.sequence import LayerSequence
from ..bricks.suite.signature import Signature
from .decomposition import Decomposition
from .form import form_of
from .remedies import Remedies
from .result import Coverage, Missing, SequenceLatency
from .stored import BrickMeasurements

__all__ = ["cannot_be_bricks", "coverage_of", "missing_of", "row_of"]


def coverage_of(graph: ModelGraph, parts: Sequence[LayerSequence], measured: Sequence[LayerSequence]) -> Coverage:
    """How much of a model is measured.

    Args:
        graph: The graph that was cut.
        parts: Its sequences.
        measured: Those of them that are measured.
    """

    def macs(some: Sequence[LayerSequence]) -> int:
        costs = (graph.layers[layer].cost for part in some for layer in part.layers)
        return sum(cost.macs for cost in costs if cost is not None)

    whole = len(parts) + sum(layer.state is LayerState.SKIPPED for layer in graph.layers)
    total = macs(parts)
    return Coverage(
        sequences=len(measured) / whole if whole else 1.0,
        macs=macs(measured) / total if total else None,
    )


def missing_of(
    model: Decomposition, parts: Sequence[LayerSequence], bricks: BrickMeasurements, remedies: Remedies
) -> Iterator[Missing]:
    """What is not measured, one entry per brick; and the layers that cannot be bricks.

    Args:
        model: The model.
        parts: Its sequences.
        bricks: What is known of their bricks.
        remedies: What would measure the others.
    """
    source, graph = model.source, model.graph
    counts = Counter(part.key for part in parts if not bricks.measured(part.key, part.reuse))
    first = {part.key: part for part in reversed(parts)}
    for key, count in counts.items():
        failure = bricks.failures.get(key)
        layers = [graph.layers[index] for index in first[key].layers]
        yield Missing(
            key=key,
            count=count,
            layers=tuple(layer.name for layer in layers),
            op_types=tuple(layer.op_type for layer in layers),
            reason=_unmeasured(key, bricks) if failure is None else f"{failure.kind}: {failure.reason}",
            remedy=remedies.measure(source, again=None if failure is None else "failed"),
            form=form_of(model, first[key]),
        )
    yield from _skipped(graph)


def _unmeasured(key: str, bricks: BrickMeasurements) -> str:
    if key in bricks.outdated:
        return "measured by an earlier version only, which is never combined with this one"
    return "not measured"


def cannot_be_bricks(graph: ModelGraph) -> bool:
    """Whether there are layers that cannot be bricks."""
    return next(_skipped(graph), None) is not None


def _skipped(graph: ModelGraph) -> Iterator[Missing]:
    for layer in graph.layers:
        if layer.state is LayerState.SKIPPED:
            reason = f"cannot be a brick: {layer.reason}"
            yield Missing(None, 1, (layer.name,), (layer.op_type,), reason, None)


def row_of(
    index: int,
    part: LayerSequence,
    model: Decomposition,
    bricks: BrickMeasurements,
    *,
    kernels: Mapping[str, tuple[str, ...]],
    known: MutableMapping[str, Signature],
    on_path: bool,
) -> SequenceLatency:
    """What is known of one sequence.

    Args:
        index: Its position among the sequences.
        part: The sequence.
        model: The model.
        bricks: What is known of its brick.
        kernels: Those that ran for bricks, by key.
        known: As of ``form_of``.
        on_path: Whether it lies on the critical path.
    """
    layers = [model.graph.layers[layer] for layer in part.layers]
    brick, lowest = bricks.of(part), next(iter(bricks.rivals.get(part.key, ())), None)
    read = part.key in bricks.read and not bricks.measured(part.key, part.reuse)
    return SequenceLatency(
        index=index,
        key=part.key,
        layers=part.layers,
        names=tuple(layer.name for layer in layers),
        op_types=tuple(layer.op_type for layer in layers),
        latency_ms=None if brick is None else brick.latency_ms,
        ci95_ms=None if brick is None else brick.ci95_ms,
        verdict=None if brick is None or read else str(brick.summary.verdict),
        cache=None if brick is None else brick.conditions.cache,
        on_path=on_path,
        lower_bound_ms=None if lowest is None else lowest.latency_ms,
        fastest_stack=None if lowest is None else lowest.stack,
        fastest_variant=None if lowest is None else lowest.variant,
        form=form_of(model, part, kernels=kernels, known=known),
        interpolated=read,
    )
