"""The sequences of a model, their measured share, and the missing bricks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, MutableMapping, Sequence

from ..bricks.decomposition import Decomposition
from ..bricks.graph.model_graph import ModelGraph
from ..bricks.layer import Layer, LayerSequence, LayerState
from ..bricks.suite.brick import BrickTypes, signature_in
from .composition import CriticalPath
from .evidence import Evidence
from .measurements import BrickMeasurements
from .remedies import Remedies
from .result import Coverage, Form, Missing, SequenceLatency


def form_of(
    model: Decomposition,
    part: LayerSequence,
    *,
    kernels: tuple[str, ...] = (),
    signatures: MutableMapping[str, BrickTypes] | None = None,
) -> Form:
    """Return the signature and source layers of a sequence.

    Args:
        model: The model.
        part: A sequence of the decomposed graph.
        kernels: Recorded kernels of its brick.
        signatures: Signatures of earlier sequences by brick; updated.
    """
    sources = part.layers
    if model.executed is not None and model.graph is model.executed.graph:
        sources = tuple(sorted(frozenset[int]().union(*(model.executed.origins[index] for index in part.layers))))
    names = tuple(model.own.layers[index].name for index in sources)
    signature = (signatures or {}).get(part.key) or signature_in(model.graph, part)
    if signatures is not None:
        signatures[part.key] = signature
    inputs, weights, outputs = signature.inputs, signature.weights, signature.outputs
    return Form(inputs, weights, outputs, signature.strides, signature.kernel, names, kernels)


def coverage_of(graph: ModelGraph, parts: Sequence[LayerSequence], bricks: BrickMeasurements) -> Coverage:
    """Return the measured share of a model."""

    def macs(some: Sequence[LayerSequence]) -> int:
        costs = (graph.layers[layer].cost for part in some for layer in part.layers)
        return sum(cost.macs for cost in costs if cost is not None)

    measured = [part for part in parts if bricks.measured(part.key, part.reuse)]
    whole = len(parts) + len(skipped_layers(graph))
    total = macs(parts)
    return Coverage(
        sequences=len(measured) / whole if whole else 1.0,
        macs=macs(measured) / total if total else None,
    )


def missing_of(
    model: Decomposition, parts: Sequence[LayerSequence], bricks: BrickMeasurements, remedies: Remedies
) -> Iterator[Missing]:
    """Yield each missing brick, then each layer that cannot be a brick."""
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
            reason="not measured" if failure is None else f"{failure.kind}: {failure.reason}",
            remedy=remedies.measure(source, again=None if failure is None else "failed"),
            form=form_of(model, first[key]),
        )
    yield from _skipped(graph)


def cannot_be_bricks(graph: ModelGraph) -> bool:
    """Return True if a layer cannot be a brick."""
    return bool(skipped_layers(graph))


def skipped_layers(graph: ModelGraph) -> list[Layer]:
    """Return the layers that cannot be bricks, in the model's order."""
    return [layer for layer in graph.layers if layer.state is LayerState.SKIPPED]


def _skipped(graph: ModelGraph) -> Iterator[Missing]:
    for layer in skipped_layers(graph):
        reason = f"cannot be a brick: {layer.reason}"
        yield Missing(None, 1, (layer.name,), (layer.op_type,), reason, None)


def rows_of(
    model: Decomposition,
    parts: Sequence[LayerSequence],
    bricks: BrickMeasurements,
    evidence: Evidence,
    path: CriticalPath | None,
) -> tuple[SequenceLatency, ...]:
    """Return the latency of each sequence."""
    on_path = frozenset(path.members if path is not None else ())
    signatures: dict[str, BrickTypes] = {}
    predicted = model.own.key in evidence.predicted
    rows = []
    for index, part in enumerate(parts):
        form = form_of(model, part, kernels=evidence.kernels(part.key) or (), signatures=signatures)
        rows.append(_row(model.graph, index, part, bricks, form, on_path=index in on_path, predicted=predicted))
    return tuple(rows)


def _row(
    graph: ModelGraph, index: int, part: LayerSequence, bricks: BrickMeasurements, form: Form,
    *, on_path: bool, predicted: bool,
) -> SequenceLatency:  # fmt: skip
    """Return the latency of the sequence at a position."""
    layers = [graph.layers[layer] for layer in part.layers]
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
        form=form,
        interpolated=read and not predicted,
        predicted=read and predicted,
    )
