"""From stored brick latencies to the latency of models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..bricks.graph import ModelGraph, build_graph
from ..bricks.layer import LayerState
from ..bricks.sequence import Sequence as Part
from ..bricks.shapes import ShapeOracle
from ..bricks.windows import KeyedWindow, windows
from ..bricks.wiring import sequences
from ..db import Measurement, Store
from ..errors import DlbricksError, InvalidSequence, UsageError
from ..generator.decompose import unforeseen
from ..generator.oracle import WorkerOracle
from ..models import ModelSource, require_known
from .bound import Cover, LowerBound, further_covers, lower_bound
from .commands import Commands
from .composition import CriticalPath, Quotient, contract, critical_path, sequential
from .cover import Window, cheapest_cover
from .result import Coverage, Estimate, Missing, SequenceLatency
from .selection import Choice, Query
from .stored import Stored, look_up
from .truth import beside_truth

__all__ = ["Coverage", "Estimate", "Missing", "SequenceLatency", "estimate"]


@dataclass(frozen=True, slots=True)
class _Model:
    """A model as decomposed.

    Attributes:
        source: The model.
        graph: Its layers.
        sequences: The sequences to compose it from.
        windows: All windows that may compete for the lower bound; empty where there are none but the sequences.
    """

    source: ModelSource
    graph: ModelGraph
    sequences: tuple[Part, ...]
    windows: tuple[KeyedWindow, ...]


def estimate(
    models: Sequence[ModelSource],
    *,
    store: Store,
    granularity: int = 1,
    system: str | None = None,
    stack: str | None = None,
    backend: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    cache: str | None = None,
    dtype: str | None = None,
    overlap: bool = False,
    connected: bool = False,
    oracle: ShapeOracle | None = None,
) -> list[Estimate]:
    """Estimate the latency of models from the stored latencies of their bricks.

    Args:
        models: The models, from ``find_models``; nothing of them is run.
        store: Where brick latencies are.
        granularity: Most layers in a sequence; that of the suite that was measured.
        system: Key of the system, or its beginning.
        stack: Key of the stack, or its beginning; tells versions and options of one backend apart.
        backend: Name of the backend.
        device: Its device.
        threads: Threads; 0 for all physical cores.
        cache: Cache state.
        dtype: Precision.
        overlap: Sequences begin at every layer; the cheapest way to cut the model with them is composed.
        connected: Sequences may be weakly connected windows.
        oracle: Finds shapes that inference does not; by default a worker that starts when it is needed.

    Returns:
        One estimate per model, in their order; a model that cannot be decomposed has ``error``.

    Raises:
        AmbiguousQuery: Several stored combinations match; the message lists them.
        UsageError: Granularity less than 1, a dimension that no model has, or a system or stack that is not stored.
        StoreError: The database cannot be read.

    Example:
        >>> from dlbricks.db import Store
        >>> from dlbricks.models import find_models
        >>> with Store.open("sqlite://") as store:
        ...     (answer,) = estimate(find_models(["squeezenet"]), store=store)
        >>> answer.sequential_ms, answer.coverage.sequences, len(answer.missing) == answer.unique
        (None, 0.0, True)
    """
    if granularity < 1:
        raise UsageError(f"granularity {granularity} is less than 1", remedy="give the number of layers per sequence")
    query = Query(system, stack, backend, device, threads, cache, dtype)
    blank = Estimate(
        name="",
        granularity=granularity,
        overlap=overlap,
        connected=connected,
        backend=backend,
        device=device,
        threads=threads,
        cache=cache,
        dtype=dtype,
    )
    decomposed: list[_Model | Estimate] = []
    with WorkerOracle() as worker:
        for source in models:
            try:
                graph = build_graph(source.skeleton(), oracle=oracle or worker)
                found = sequences(graph, granularity, overlap=overlap, connected=connected)
                every = windows(graph, granularity, connected=connected) if granularity > 1 else ()
                decomposed.append(_Model(source, graph, tuple(found), tuple(every)))
            except DlbricksError as error:
                decomposed.append(_failed(source, blank, str(error)))
            except Exception as error:  # noqa: BLE001  # the boundary of one model: the others go on
                decomposed.append(_failed(source, blank, unforeseen(source.name, error)))
    readable = [model for model in decomposed if isinstance(model, _Model)]
    if readable:
        dims = {name: size for source in models for name, size in source.dims}
        require_known(dims, [model.graph for model in readable])
    keys = {sequence.key for model in readable for sequence in model.sequences}
    competing = {window.key for model in readable for window in model.windows}
    truths = {model.graph.key for model in readable}
    stored = look_up(store, query, bricks=keys, models=truths, competing=competing)
    commands = Commands(store, stored.choice, query, granularity=granularity, overlap=overlap, connected=connected)
    return [_estimate(model, stored, commands, blank) if isinstance(model, _Model) else model for model in decomposed]


def _failed(source: ModelSource, blank: Estimate, error: str) -> Estimate:
    return replace(blank, name=source.name, batch=source.batch, dims=dict(source.dims), error=error)


def _estimate(model: _Model, stored: Stored, commands: Commands, blank: Estimate) -> Estimate:
    """One model's estimate; what it cannot say stays None."""
    graph = model.graph
    parts = _cover(model, stored.bricks) if blank.overlap else model.sequences
    try:
        quotient = contract(_edges(graph), [part.layers for part in parts])
    except InvalidSequence as error:
        return _failed(model.source, blank, str(error))
    measured = [part for part in parts if part.key in stored.bricks]
    missing = (*_missing(model, parts, stored, commands), *_skipped(graph))
    estimate = replace(
        blank,
        **_identity(model, stored.choice),
        unique=len({part.key for part in parts}),
        coverage=_coverage(graph, parts, measured),
        known_ms=_ms(sequential(stored.bricks[part.key].median_ns for part in measured)),
        missing=missing,
    )
    bound, path = _bound(model, parts, quotient, stored), None
    if not missing:
        path = critical_path(quotient, [stored.bricks[part.key].median_ns for part in parts])
        estimate = replace(estimate, **_totals(parts, path, stored))
    estimate = replace(estimate, **_bounds(bound, path))
    estimate = replace(estimate, **beside_truth(graph.key, parts, stored, estimate, bound))
    members = path.members if path is not None else ()
    on_path = frozenset(members)
    rows = tuple(_row(index, part, graph, stored, on_path=index in on_path) for index, part in enumerate(parts))
    return replace(estimate, sequences=rows, path=tuple(rows[index] for index in members))


def _edges(graph: ModelGraph) -> Iterator[tuple[int, int]]:
    """(producer, consumer) of every value; faster than by way of ``graph.graph``, which may never be needed."""
    for layer in graph.layers:
        for value in layer.outputs:
            for consumer in graph.consumers(value):
                yield layer.index, consumer


def _cover(model: _Model, bricks: Mapping[str, Measurement]) -> tuple[Part, ...]:
    """Of overlapping sequences, those to compose the model from, in its order."""
    position = {layer: index for index, layer in enumerate(model.graph.live)}
    windows = [
        Window(
            begin=position[part.layers[0]],
            end=position[part.layers[-1]] + 1,
            latency=bricks[part.key].median_ns if part.key in bricks else None,
        )
        for part in model.sequences
    ]
    return tuple(model.sequences[index] for index in cheapest_cover(windows, len(model.graph.live)))


def _identity(model: _Model, choice: Choice | None) -> dict[str, Any]:
    graph = model.graph
    of_model = {
        "name": model.source.name,
        "batch": model.source.batch,
        "dims": dict(model.source.dims),
        "bound": dict(graph.bound),
        "layers": len(graph.layers),
        "folded": sum(layer.state is LayerState.FOLDED for layer in graph.layers),
    }
    if choice is None:
        return of_model
    return of_model | {
        "system": choice.system_key,
        "stack": choice.stack_key,
        "backend": choice.stack.backend,
        "device": choice.stack.device,
        "threads": choice.conditions.threads,
        "cache": choice.conditions.cache,
        "dtype": choice.conditions.dtype,
    }


def _coverage(graph: ModelGraph, parts: Sequence[Part], measured: Sequence[Part]) -> Coverage:
    def macs(some: Sequence[Part]) -> int:
        costs = (graph.layers[layer].cost for part in some for layer in part.layers)
        return sum(cost.macs for cost in costs if cost is not None)

    whole = len(parts) + sum(layer.state is LayerState.SKIPPED for layer in graph.layers)
    total = macs(parts)
    return Coverage(
        sequences=len(measured) / whole if whole else 1.0,
        macs=macs(measured) / total if total else None,
    )


def _missing(model: _Model, parts: Sequence[Part], stored: Stored, commands: Commands) -> Iterator[Missing]:
    counts = Counter(part.key for part in parts if part.key not in stored.bricks)
    first = {part.key: part for part in reversed(parts)}
    for key, count in counts.items():
        failure = stored.failures.get(key)
        layers = [model.graph.layers[index] for index in first[key].layers]
        yield Missing(
            key=key,
            count=count,
            layers=tuple(layer.name for layer in layers),
            op_types=tuple(layer.op_type for layer in layers),
            reason="not measured" if failure is None else f"{failure.kind}: {failure.reason}",
            command=commands.measure(model.source) if failure is None else commands.again(model.source),
        )


def _skipped(graph: ModelGraph) -> Iterator[Missing]:
    for layer in graph.layers:
        if layer.state is LayerState.SKIPPED:
            reason = f"cannot be a brick: {layer.reason}"
            yield Missing(None, 1, (layer.name,), (layer.op_type,), reason, None)


def _bound(model: _Model, parts: Sequence[Part], quotient: Quotient, stored: Stored) -> LowerBound | None:
    """The lower bound; None where no cover is measured, as where a layer cannot be a brick."""
    graph = model.graph
    if next(_skipped(graph), None) is not None:
        return None
    asked = Cover(quotient, tuple(part.key for part in parts))
    competing = {*asked.keys, *(window.key for window in model.windows)}
    lowest = {key: stored.fastest[key].median_ns for key in competing if key in stored.fastest}
    further = further_covers(_edges(graph), graph.live, model.windows, lowest) if model.windows else []
    return lower_bound([asked, *further], lowest)


def _bounds(bound: LowerBound | None, path: CriticalPath | None) -> dict[str, Any]:
    if bound is None:
        return {}
    # The asked sequences are one of the covers; where rounding chose another path through them, that one counts too.
    least = bound.critical_path if path is None else min(bound.critical_path, path.latency)
    return {"lower_bound_sequential_ms": _ms(bound.sequential), "lower_bound_critical_path_ms": _ms(least)}


def _totals(parts: Sequence[Part], path: CriticalPath, stored: Stored) -> dict[str, Any]:
    """Sums and interval of a model whose bricks are all measured."""
    keys = [part.key for part in parts]
    total = _ms(sequential(stored.bricks[key].median_ns for key in keys))
    low, high = stored.uncertainty.interval_ns(Counter(keys))
    return {
        "estimate_ms": total,
        "ci95_ms": (_ms(low), _ms(high)),
        "sequential_ms": total,
        "critical_path_ms": _ms(path.latency),
    }


def _row(index: int, part: Part, graph: ModelGraph, stored: Stored, *, on_path: bool) -> SequenceLatency:
    layers = [graph.layers[layer] for layer in part.layers]
    brick, lowest = stored.bricks.get(part.key), stored.fastest.get(part.key)
    return SequenceLatency(
        index=index,
        key=part.key,
        layers=part.layers,
        names=tuple(layer.name for layer in layers),
        op_types=tuple(layer.op_type for layer in layers),
        latency_ms=None if brick is None else _ms(brick.median_ns),
        ci95_ms=None if brick is None else (_ms(brick.ci95_ns[0]), _ms(brick.ci95_ns[1])),
        verdict=None if brick is None else str(brick.verdict),
        on_path=on_path,
        lower_bound_ms=None if lowest is None else _ms(lowest.median_ns),
    )


def _ms(nanoseconds: float) -> float:
    return nanoseconds / 1e6
