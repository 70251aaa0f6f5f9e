"""From stored brick latencies to the latency of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from ...bricks.inference.shapes import ShapeOracle
from ...constructor.choice import Choice
from ...constructor.construction import construct, without
from ...constructor.decomposition import Decomposition, Failed
from ...constructor.interpolation import Sized, read_between
from ...constructor.result import Estimate
from ...constructor.stored import Stored
from ...db import Store
from ...generator.decomposition.cutter import Cut
from ...generator.decomposition.oracle import WorkerOracle
from ...models import ModelSource
from .cutting import readable_of, settle
from .estimates import Estimates
from .lookup import look_up
from .query import Query, QueryFields, asked, choose
from .survey import decompose_all, executed_graphs, wanted_bricks
from .tasks import Tasks

__all__ = ["Explained", "Relatives", "estimate", "estimates_under", "explained"]

Explained = tuple[Estimate, Decomposition | None]
"""An estimate with what the model was decomposed into; None where it cannot be."""


@dataclass(frozen=True, slots=True)
class Relatives:
    """The same model at other sizes of one dimension.

    Attributes:
        dimension: The dimension.
        size: Its size.
        others: The others by size; those of them that are not decomposed are left out.
    """

    dimension: str
    size: int
    others: Mapping[int, ModelSource]


def estimate(
    models: Sequence[ModelSource],
    *,
    store: Store,
    query: Query | None = None,
    granularity: int = 1,
    overlap: bool = False,
    connected: bool = False,
    graph: str = "source",
    oracle: ShapeOracle | None = None,
    **fields: Unpack[QueryFields],
) -> Estimates:
    """Estimate the latency of models from the stored latencies of their bricks.

    Args:
        models: The models, from ``find_models``. Nothing of them is run, but that a worker loads them to get the graph
            that the runtime executes: where that is asked for, and where bricks at reuse distances are stored.
        store: Where brick latencies are.
        query: Which of the stored measurements.
        granularity: Most layers in a sequence; that of the suite that was measured.
        overlap: Sequences begin at every layer; the cheapest way to cut the model with them is composed.
        connected: Sequences may be weakly connected windows.
        graph: Which graph is decomposed: the model's own (``source``); the one that the runtime executes
            (``runtime``), which is known only of the stack that is installed here; or the model's own, cut along the
            fusions that are learnt from that stack, or another one here (``fused``).
        oracle: Finds shapes that inference does not; by default a worker that starts when it is needed.
        **fields: Fields of a ``Query``, in place of those of ``query``.

    Returns:
        One row per model, in their order; a model that cannot be decomposed has ``error``.

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
    cut = Cut(granularity, overlap, connected, graph)
    found = explained(models, store=store, query=asked(query, fields), cut=cut, oracle=oracle)
    return Estimates(tuple(one for one, _ in found))


def explained(
    models: Sequence[ModelSource],
    *,
    store: Store,
    query: Query,
    cut: Cut,
    oracle: ShapeOracle | None = None,
    relatives: Mapping[ModelSource, Relatives] | None = None,
) -> list[Explained]:
    """The same, each estimate with what the model was decomposed into; None where it cannot be.

    Args:
        models: As for ``estimate``, and it raises the same.
        store: Where brick latencies are.
        query: Which of the stored combinations.
        cut: Which graph is decomposed, and how wide sequences are.
        oracle: Finds shapes that inference does not.
        relatives: Of those models whose missing bricks are to be read between other sizes: which of ``models`` these
            are.
    """
    settled = settle(store, query, cut)
    cut, query = settled.cut, settled.query
    if settled.why_not is not None:
        blank = _blank(query, cut)
        return [(without(Failed(source, settled.why_not), blank), None) for source in models]
    with WorkerOracle() as worker:
        shapes = oracle or worker
        found = decompose_all(models, cut, shapes, store=store)
        readable = readable_of(models, found)
        choice = choose(store, {part.key for model in readable for part in model.sequences}, query)
        made = estimates_under(
            choice, readable, store=store, query=query, cut=cut, oracle=shapes, relatives=relatives or {}
        )
        estimates = iter(made)
    return [
        (next(estimates), model) if isinstance(model, Decomposition) else (without(model, _blank(query, cut)), None)
        for model in found
    ]


def _blank(query: Query, cut: Cut) -> Estimate:
    """An estimate of which only that is known what was asked for."""
    return Estimate(
        name="",
        granularity=cut.granularity,
        graph=cut.graph,
        overlap=cut.overlap,
        connected=cut.connected,
        backend=query.backend,
        device=query.device,
        threads=query.threads,
        cache=query.cache,
        dtype=query.dtype,
    )


def estimates_under(
    choice: Choice | None,
    models: Sequence[Decomposition],
    *,
    store: Store,
    query: Query,
    cut: Cut,
    oracle: ShapeOracle,
    relatives: Mapping[ModelSource, Relatives] | None = None,
) -> list[Estimate]:
    """Estimate models that are decomposed from what is stored under one combination.

    Args:
        choice: The combination; None where nothing that matches is stored.
        models: The models.
        store: Where brick latencies are.
        query: What the caller asked for.
        cut: How the models were decomposed.
        oracle: Finds shapes that inference does not.
        relatives: As for ``explained``.
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
    tasks, blank = Tasks(store, choice, query, cut), _blank(query, cut)
    by_source = {model.source: model for model in models}
    made = []
    for model in models:
        known: Stored | str = stored
        if relatives and (related := relatives.get(model.source)) is not None:
            sized = {size: by_source[other] for size, other in related.others.items() if other in by_source}
            others = [Sized(size, other, executed[other.own.key]) for size, other in sized.items()]
            wanted = Sized(related.size, model, executed[model.own.key])
            known = read_between(wanted, others, related.dimension, stored)
        entry = construct(model, stored if isinstance(known, str) else known, executed[model.own.key], tasks, blank)
        made.append(replace(entry, interpolation_reason=known) if isinstance(known, str) else entry)
    return made
