"""From stored brick latencies to the latency of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...bricks.inference.shapes import ShapeOracle
from ...constructor.choice import Choice
from ...constructor.construction import construct, without
from ...constructor.decomposition import Decomposition, Failed
from ...constructor.result import Estimate
from ...db import Store
from ...db.values import NATIVE
from ...errors import UsageError
from ...generator.decomposition.cutter import Cut
from ...generator.decomposition.oracle import WorkerOracle
from ...models import ModelSource, require_known
from .commands import Commands
from .cutting import cut_of
from .lookup import look_up
from .runtime import chosen_stack
from .selection import Query, choose
from .survey import decompose_all, executed_graphs, wanted_bricks

__all__ = ["Explained", "estimate", "estimates_under", "explained"]

Explained = tuple[Estimate, Decomposition | None]
"""An estimate with what the model was decomposed into; None where it cannot be."""


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
) -> list[Explained]:
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
    if graph == "runtime" and dtype not in {None, NATIVE}:
        raise UsageError(
            f"the graph that a runtime executes is told in {NATIVE} only, not in {dtype}",
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
        if place.why_not is not None:
            reason = f"{place.why_not}; use --graph source"
            return [(without(Failed(source, reason), blank), None) for source in models]
        cut = cut_of(cut, graph, place.stack, place.threads)
        if graph == "runtime" and place.stack.key in store.stacks():
            query = replace(query, stack=place.stack.key)
    with WorkerOracle() as worker:
        shapes = oracle or worker
        found = decompose_all(models, cut, shapes, store=store)
        readable = [model for model in found if isinstance(model, Decomposition)]
        if readable:
            dims = {name: size for source in models for name, size in source.dims}
            require_known(dims, [model.own for model in readable])
        keys = {part.key for model in readable for part in model.sequences}
        choice = choose(store, keys, query)
        estimates = iter(estimates_under(choice, readable, store=store, query=query, blank=blank, oracle=shapes))
        return [
            (next(estimates), model) if isinstance(model, Decomposition) else (without(model, blank), None)
            for model in found
        ]


def estimates_under(
    choice: Choice | None,
    models: Sequence[Decomposition],
    *,
    store: Store,
    query: Query,
    blank: Estimate,
    oracle: ShapeOracle,
) -> list[Estimate]:
    """Estimate models that are decomposed from what is stored under one combination.

    Args:
        choice: The combination; None where nothing that matches is stored.
        models: The models.
        store: Where brick latencies are.
        query: What the caller asked for.
        blank: How the models were decomposed.
        oracle: Finds shapes that inference does not.
    """
    keys = {part.key for model in models for part in model.sequences}
    executed = executed_graphs(models, store, choice, keys, oracle)
    stored = look_up(
        store,
        query,
        choice,
        bricks=wanted_bricks(models, choice, executed),
        models={model.own.key for model in models},
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
    return [construct(model, stored, executed[model.own.key], commands, blank) for model in models]
