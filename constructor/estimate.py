"""From stored brick latencies to the latency of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..bricks.inference.shapes import ShapeOracle
from ..bricks.layer import LayerState
from ..bricks.sequence import Sequence as Part
from ..bricks.suite.signature import Signature
from ..db import Measurement, Store
from ..errors import InvalidSequence, UsageError
from ..generator.backends.base import AS_GIVEN
from ..generator.decomposition.decomposer import Cut
from ..generator.decomposition.oracle import WorkerOracle
from ..models import ModelSource, require_known
from .bounds import Bound, Bounds, bounds_of
from .commands import Commands
from .composition.composition import CriticalPath, critical_path, sequential
from .composition.cover import Window, cheapest_cover
from .coverage import coverage_of, missing_of, row_of
from .decomposition import Decomposition, Interventions, cut_of, quotient_of
from .headroom import beside_roofline
from .prediction.excess import benanza_note
from .prediction.prediction import Asked, Prediction, predict, unexplained
from .prediction.terms import host_of
from .result import Coverage, Estimate, Missing, SequenceLatency, Term
from .runtime import chosen_stack
from .selection import COLD, Choice, Query, choose
from .stored import Stored, in_parallel, look_up
from .survey import decompose_all, executed_graphs, failed, state_of, wanted_bricks
from .truth import beside_truth
from .uncertainty.calibration import Method
from .uncertainty.pairing import FUSION

__all__ = ["Coverage", "Estimate", "Missing", "SequenceLatency", "Term", "estimate", "estimates_under", "explained"]


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
    graph: str = "source",
    oracle: ShapeOracle | None = None,
) -> list[Estimate]:
    """Estimate the latency of models from the stored latencies of their bricks.

    Args:
        models: The models, from ``find_models``. Nothing of them is run, but that a worker loads them to tell the graph
            that the runtime executes: where that is asked for, and where bricks at reuse distances are stored.
        store: Where brick latencies are.
        granularity: Most layers in a sequence; that of the suite that was measured.
        system: Key of the system, or its beginning.
        stack: Key of the stack, or its beginning; tells versions and options of one backend apart.
        backend: Name of the backend.
        device: Its device.
        threads: Threads; 0 for all physical cores.
        cache: Cache state: ``model`` (of each model the level of its own reuse distance), ``hot``, ``cold``, or the
            name of one level (``64MiB``).
        dtype: Precision.
        overlap: Sequences begin at every layer; the cheapest way to cut the model with them is composed.
        connected: Sequences may be weakly connected windows.
        graph: Which graph is decomposed: the model's own (``source``); the one that the runtime executes
            (``runtime``), which only the stack that is installed here can tell; or the model's own, cut along the
            fusions that are learnt from that stack, or another one here (``fused``).
        oracle: Finds shapes that inference does not; by default a worker that starts when it is needed.

    Returns:
        One estimate per model, in their order; a model that cannot be decomposed has ``error``.

    Raises:
        AmbiguousQuery: Several stored combinations match; the message lists them.
        UsageError: Granularity less than 1, an unknown graph, the executed graph in another precision, a dimension that
            no model has, or a system or stack that is not stored.
        BackendUnavailable: The executed graph is asked for, nothing is stored, and the runtime is not installed.
        StoreError: The database cannot be read.

    Example:
        >>> from dlbricks.db import Store
        >>> from dlbricks.models import find_models
        >>> with Store.open("sqlite://") as store:
        ...     (answer,) = estimate(find_models(["squeezenet"]), store=store)
        >>> answer.sequential_ms, answer.coverage.sequences, len(answer.missing) == answer.unique
        (None, 0.0, True)
    """
    query = Query(system, stack, backend, device, threads, cache, dtype)
    found = explained(
        models, store=store, query=query, cut=Cut(granularity, overlap, connected), graph=graph, oracle=oracle
    )
    return [one for one, _ in found]


def explained(
    models: Sequence[ModelSource],
    *,
    store: Store,
    query: Query,
    cut: Cut,
    graph: str = "source",
    oracle: ShapeOracle | None = None,
) -> list[tuple[Estimate, Decomposition | None]]:
    """The same, each estimate with what the model was decomposed into; None where it cannot be.

    Args:
        models: As for ``estimate``, and it raises the same.
        store: Where brick latencies are.
        query: Which of the stored combinations.
        cut: How wide sequences are.
        graph: Which graph is decomposed.
        oracle: Finds shapes that inference does not.
    """
    if cut.granularity < 1:
        raise UsageError(
            f"granularity {cut.granularity} is less than 1", remedy="give the number of layers per sequence"
        )
    dtype = query.dtype
    if graph == "runtime" and dtype not in {None, AS_GIVEN}:
        raise UsageError(
            f"the graph that a runtime executes is told in {AS_GIVEN} only, not in {dtype}",
            remedy="use --graph source or fused",
        )
    cut = cut_of(cut, graph)
    blank = Estimate(
        name="",
        granularity=cut.granularity,
        graph=graph,
        overlap=cut.overlap,
        connected=cut.connected,
        backend=query.backend,
        device=query.device,
        threads=query.threads,
        cache=query.cache,
        dtype=dtype,
    )
    if graph != "source":
        place = chosen_stack(store, query, at_home=graph == "fused")
        if isinstance(place, str):
            return [(failed(source, blank, f"{place}; use --graph source"), None) for source in models]
        cut = cut_of(cut, graph, *place)
        if graph == "runtime" and place[0].key in store.stacks():
            query = replace(query, stack=place[0].key)
    with WorkerOracle() as worker:
        shapes = oracle or worker
        found = decompose_all(models, cut, shapes, blank, store=store)
        readable = [model for model in found if isinstance(model, Decomposition)]
        if readable:
            dims = {name: size for source in models for name, size in source.dims}
            require_known(dims, [model.own for model in readable])
        keys = {part.key for model in readable for part in model.sequences}
        choice = choose(store, keys, query)
        estimates = estimates_under(choice, found, store=store, query=query, blank=blank, oracle=shapes)
        made = [model if isinstance(model, Decomposition) else None for model in found]
        return list(zip(estimates, made, strict=True))


def estimates_under(
    choice: Choice | None,
    found: Sequence[Decomposition | Estimate],
    *,
    store: Store,
    query: Query,
    blank: Estimate,
    oracle: ShapeOracle,
) -> list[Estimate]:
    """Estimate models that are decomposed from what is stored under one combination.

    Args:
        choice: The combination; None where nothing that matches is stored.
        found: The models, or what to say of those that cannot be decomposed.
        store: Where brick latencies are.
        query: What the caller asked for.
        blank: How the models were decomposed.
        oracle: Finds shapes that inference does not.
    """
    readable = [model for model in found if isinstance(model, Decomposition)]
    keys = {part.key for model in readable for part in model.sequences}
    executed = executed_graphs(readable, store, choice, keys, oracle)
    stored = look_up(
        store,
        query,
        choice,
        bricks=wanted_bricks(readable, choice, executed),
        models={model.own.key for model in readable},
    )
    commands = Commands(
        store,
        choice,
        query,
        granularity=blank.granularity,
        overlap=blank.overlap,
        connected=blank.connected,
        graph=blank.graph,
    )
    return [
        _estimate(model, stored, executed[model.own.key], commands, blank)
        if isinstance(model, Decomposition)
        else model
        for model in found
    ]


def _estimate(
    model: Decomposition,
    stored: Stored,
    executed: Interventions,
    commands: Commands,
    blank: Estimate,
) -> Estimate:
    """One model's estimate; what it cannot say stays None."""
    graph, state = model.graph, state_of(model, stored.choice)
    shelf = stored.shelf(state)
    parts = _cover(model, shelf.bricks) if blank.overlap else model.sequences
    try:
        quotient = quotient_of(graph, parts)
    except InvalidSequence as error:
        return failed(model.source, blank, str(error))
    measured = [part for part in parts if part.key in shelf.bricks]
    missing = tuple(missing_of(model, parts, shelf, commands))
    estimate = replace(
        blank,
        **_identity(model, stored.choice),
        unique=len({part.key for part in parts}),
        coverage=coverage_of(graph, parts, measured),
        known_ms=_ms(sequential(shelf.bricks[part.key].latency_ns for part in measured)),
        missing=missing,
    )
    path: CriticalPath | None = None
    prediction: Prediction | None = None
    if not missing:
        path = critical_path(quotient, [shelf.bricks[part.key].latency_ns for part in parts])
        if graph is executed.graph:
            executed = replace(executed, parts=parts)
        parallel = _at_once(stored.choice)
        own = state if state == COLD else executed.level or model.level
        prediction = predict(
            Asked(
                model.own.key,
                graph,
                blank.graph,
                parts,
                quotient,
                state,
                own,
                method=_method(model, blank, stored.choice, state),
                parallel=parallel,
            ),
            stored,
            executed,
            lambda kind, cache: (
                commands.examine(model.source)
                if kind == "data"
                else commands.measure(model.source, graph="fused", cache=cache, algorithms=FUSION)
                if kind == "fusion"
                else commands.measure(model.source, graph=kind, cache=cache)
            ),
        )
        host = host_of(parts, shelf)
        estimate = replace(
            estimate,
            estimate_ms=prediction.ms,
            ci95_ms=(max(0.0, prediction.ms - prediction.half_ms), prediction.ms + prediction.half_ms),
            calibrated=prediction.method_sd is not None,
            scatter_calibrated=stored.scatter_known,
            sequential_ms=_ms(sequential(shelf.bricks[part.key].latency_ns for part in parts)),
            critical_path_ms=_ms(path.latency),
            host_ms=None if host is None else _ms(sequential(one.latency_ns for one in host)),
        )
    bounds = bounds_of(model, parts, quotient, shelf, stored.uncertainty, path)
    estimate = replace(estimate, **_bounded(bounds))
    known = {} if prediction is None else stored.members(prediction.weights)
    estimate = replace(
        estimate,
        **beside_truth(
            model.own.key,
            stored,
            estimate,
            prediction=prediction,
            known=known,
            bounds=bounds,
            state=state,
            own_states={model.level, executed.level},
        ),
    )
    if prediction is not None:
        estimate = replace(estimate, **_attributed(prediction, estimate))
    estimate = replace(estimate, benanza_note=benanza_note(estimate, parallel=_at_once(stored.choice)))
    members = path.members if path is not None else ()
    on_path = frozenset(members)
    signatures: dict[str, Signature] = {}
    rows = tuple(
        row_of(index, part, model, shelf, kernels=stored.kernels, known=signatures, on_path=index in on_path)
        for index, part in enumerate(parts)
    )
    estimate = replace(estimate, sequences=rows, path=tuple(rows[index] for index in members))
    return beside_roofline(estimate, model, parts, quotient, stored, commands)


def _cover(model: Decomposition, bricks: Mapping[str, Measurement]) -> tuple[Part, ...]:
    """Of overlapping sequences, those to compose the model from, in its order."""
    position = {layer: index for index, unit in enumerate(model.units) for layer in unit}
    windows = [
        Window(
            begin=min(position[layer] for layer in part.layers),
            end=max(position[layer] for layer in part.layers) + 1,
            latency=bricks[part.key].latency_ns if part.key in bricks else None,
        )
        for part in model.sequences
    ]
    return tuple(model.sequences[index] for index in cheapest_cover(windows, len(model.units)))


def _identity(model: Decomposition, choice: Choice | None) -> dict[str, Any]:
    graph = model.graph
    of_model = {
        "name": model.source.name,
        "batch": model.source.batch,
        "dims": dict(model.source.dims),
        "bound": dict(graph.bound),
        "level": model.level,
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


def _bounded(bounds: Bounds | None) -> dict[str, Any]:
    if bounds is None:
        return {}
    said: dict[str, Any] = {}
    for name in ("sequential", "critical_path"):
        bound: Bound = getattr(bounds, name)
        low, high = bound.ci95_ns
        said[f"lower_bound_{name}_ms"] = _ms(bound.latency_ns)
        said[f"lower_bound_{name}_ci95_ms"] = (_ms(low), _ms(high))
    return said


def _attributed(prediction: Prediction, estimate: Estimate) -> dict[str, Any]:
    """The distance to the measured latency by its causes."""
    measured = None
    if estimate.measured_ms is not None and estimate.measured_ci95_ms is not None:
        low, high = estimate.measured_ci95_ms
        measured = (estimate.measured_ms, (high - low) / 2)
    terms = {**prediction.terms, "unexplained": unexplained(prediction, measured, estimate.ratio_reason)}
    sizes = [abs(term.ms) for name, term in terms.items() if term.ms is not None and term.counted and name != "bricks"]
    return {"attribution": terms, "attribution_absolute_ms": sequential(sizes)}


def _method(model: Decomposition, blank: Estimate, choice: Choice | None, state: str) -> Method | None:
    """How the sum of the bricks is composed."""
    if choice is None:
        return None
    return Method(
        backend=choice.stack.backend,
        device=choice.stack.device,
        graph=blank.graph,
        granularity=2 if blank.overlap or blank.connected else blank.granularity,
        cache=state,
        threads=choice.conditions.threads,
        batch=model.source.batch or 1,
        dtype=choice.conditions.dtype,
    )


def _at_once(choice: Choice | None) -> bool:
    """Whether independent branches run at once."""
    return choice is not None and in_parallel(choice.stack)


def _ms(nanoseconds: float) -> float:
    return nanoseconds / 1e6
