"""From stored brick latencies to the latency of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Unpack

from ...bricks.decomposition import Failed
from ...constructor.choice import Query
from ...constructor.construction import construct, failed
from ...constructor.evidence import Evidence
from ...constructor.interpolation import Sized, read_between
from ...constructor.result import Estimate
from ...constructor.sweep import BATCH, sizes_of, stem_of
from ...db import Store
from ...db.values import NATIVE
from ...errors import AmbiguousQuery, BackendUnavailable, UsageError
from ...generator.decomposition.cut import Cut
from ...generator.decomposition.decompose import Model, decompose, readable, source_of
from ...models import ModelSource
from .estimates import Estimates
from .learning import Gaps, learn
from .query import QueryFields, asked, chosen_stack
from .reading import read_evidence, request_of
from .tasks import Tasks

# Decomposition of a model by the requested graph; ``Decomposer`` of the generator does the cutting.
#
# * ``source``: the model's own graph, as in DLBricks.
# * ``runtime``: the graph that the runtime executes, on one stack and instruction set.
# * ``fused``: the model's own layers, with no cut through a fusion of the runtime.


@dataclass(frozen=True, slots=True)
class Settled:
    """A decomposition with its runtime, and the matching stored combinations.

    Attributes:
        cut: Settings of the decomposition, with the runtime unless the graph is the model's own.
        query: Requested properties; restricted to this runtime for executed graphs.
        why_not: Reason why the runtime is not available here, if it is not.
    """

    cut: Cut
    query: Query
    why_not: str | None = None


def settle(store: Store, query: Query, cut: Cut) -> Settled:
    """Select the runtime of the decomposed graphs; a model's own graph needs none.

    Raises:
        AmbiguousQuery: Several stored stacks are installed here.
        UsageError: Unknown graph, granularity less than 1, executed graph in another precision, or no stored system or
            stack with the given key prefix.
        BackendUnavailable: No stored stack matches, and the backend is not installed.
    """
    if cut.graph == "runtime" and query.dtype not in {None, NATIVE}:
        raise UsageError(
            f"the graph that a runtime executes is known in {NATIVE} only, not in {query.dtype}",
            remedy="use --graph source or fused",
        )
    cut = cut.of(cut.graph)
    if cut.graph == "source":
        return Settled(cut, query)
    chosen = chosen_stack(store, query, at_home=cut.graph == "fused")
    if chosen.why_not is not None:
        return Settled(cut, query, f"{chosen.why_not}; use --graph source")
    if cut.graph == "runtime" and chosen.stack.key in store.stacks():
        query = replace(query, stack=chosen.stack.key)
    return Settled(cut.of(cut.graph, chosen.stack, chosen.threads), query)


def estimate(
    models: Sequence[Model],
    evidence: Evidence | None = None,
    *,
    store: Store | None = None,
    query: Query | None = None,
    settings: Cut | None = None,
    granularity: int = 1,
    overlap: bool = False,
    connected: bool = False,
    graph: str | None = None,
    predict: bool = False,
    **fields: Unpack[QueryFields],
) -> Estimates:
    """Estimate the latency of models from the stored latencies of their bricks.

    Args:
        models: The models, from ``find_models`` or ``decompose``. They are not run; only an executed graph needs a
            worker to load them.
        evidence: Their measurements from ``read_evidence``; replaces all following arguments.
        store: Database of brick latencies, if no evidence is given.
        query: Requested properties.
        settings: Cut of the models, as for ``generate``, in place of the next four arguments.
        granularity: Most layers in a sequence, as in the measured suite.
        overlap: Sequences begin at every layer; the cheapest cover is composed.
        connected: Sequences may be weakly connected windows.
        graph: Graph to decompose: the model's own (``source``); the graph executed by the installed runtime
            (``runtime``); or the model's own, cut along the fusions of an installed runtime
            (``fused``). None: the first of source, runtime and fused
            with a stored brick; with ``predict`` the runtime's best.
        predict: Predict unmeasured bricks from others (docs/explanation/prediction.md); not with evidence.
        **fields: Fields of a ``Query``, in place of those of ``query``.

    Returns:
        One row per model in their order; a model that cannot be decomposed has ``error``.

    Raises:
        AmbiguousQuery: Several stored combinations match; the message lists them.
        UsageError: Granularity less than 1, unknown graph, executed graph in another precision, unknown dimension, or
            unknown system or stack.
        BackendUnavailable: An executed graph needs a runtime that is not installed, and nothing is stored.
        StoreError: The database cannot be read.

    Example:
        >>> from dlbricks.db import Store
        >>> from dlbricks.models import find_models
        >>> with Store.open("sqlite://") as store:
        ...     (answer,) = estimate(find_models(["squeezenet"]), store=store)
        >>> answer.sums.sequential_ms, answer.parts.coverage.sequences, len(answer.parts.missing) == answer.parts.unique
        (None, 0.0, True)
    """
    if evidence is not None:
        return Estimates(tuple(_estimated(model, evidence) for model in models))
    if store is None:
        raise UsageError("estimates need evidence, or a store to read it from", remedy="give store=Store.open(PATH)")
    requested, cut = asked(query, fields), settings or Cut(granularity, overlap, connected, graph or "source")
    if settings is not None and (granularity, overlap, connected, graph) != (1, False, False, None):
        raise UsageError("settings are given, and a field of them beside", remedy="give all of it in one")
    if settings is None and graph is None and not predict:
        return Estimates(tuple(_as_stored(store, models, requested, cut)[1]))
    return Estimates(tuple(estimates_in(store, models, requested, cut, predict=predict)))


def _as_stored(store: Store, models: Sequence[Model], query: Query, cut: Cut) -> tuple[Cut, list[Estimate]]:
    """Estimate along the graph of which most is stored: the models' own, else one that a runtime executes or fuses.

    A brick of one layer is the same brick in the model's own graph and along fusions, so that a suite along fusions
    also measures a part of the other graph.

    Returns:
        The cut along that graph, and the estimates; those of the models' own graph if no brick is stored.

    Raises:
        AmbiguousQuery: Several stored combinations match.
    """
    cut = cut.of("source")
    decompositions = decompose(models, cut)
    evidence = read_evidence(store, decompositions, query, cut)
    chosen = cut, [construct(model, evidence) for model in decompositions]
    most = _covered(chosen[1])
    for graph in ("runtime", "fused") if most < 1 and store.combinations() else ():
        try:
            settled = settle(store, query, cut.of(graph))
            if settled.why_not is not None:
                continue
            executed = decompose(models, settled.cut)
            executed_evidence = read_evidence(store, executed, settled.query, settled.cut)
        except AmbiguousQuery:
            if evidence.choice is None:
                raise
            continue
        except (BackendUnavailable, UsageError):
            continue  # this graph is unknown here, or in this precision
        if executed_evidence.choice is not None:
            estimates = [construct(model, executed_evidence) for model in executed]
            covered = _covered(estimates)
            if covered > most:
                chosen, most = (settled.cut, estimates), covered
    if most == 0:
        evidence = _to_be_fused(evidence, store, query, cut, models)
        return cut, [construct(model, evidence) for model in decompositions]
    return chosen


def _to_be_fused(evidence: Evidence, store: Store, query: Query, cut: Cut, models: Sequence[Model]) -> Evidence:
    """Return evidence without measurements whose remedy is the default of ``generate``, if the runtime has fusions."""
    fused = Tasks(store, evidence.choice, query, cut.of("fused"))
    if not all(fused.measure(source_of(model)) for model in models):
        return evidence
    return replace(evidence, request=replace(evidence.request, remedies=fused))


def _covered(estimates: Sequence[Estimate]) -> float:
    """Return the measured share of the sequences, the mean over models that can be decomposed; 1 without any."""
    shares = [entry.parts.coverage.sequences for entry in estimates if entry.parts.coverage is not None]
    return fmean(shares) if shares else 1.0


def _estimated(model: Model, evidence: Evidence) -> Estimate:
    if isinstance(model, ModelSource):
        raise UsageError(f"{model.name} is not decomposed", remedy="give what decompose() returns")
    return construct(model, evidence)


def estimates_in(
    store: Store,
    models: Sequence[Model],
    query: Query,
    cut: Cut,
    *,
    predict: bool = False,
) -> list[Estimate]:
    """Decompose models, read their measurements, and estimate them; raises as ``estimate``.

    Args:
        store: Database of brick latencies.
        models: As for ``estimate``.
        query: Requested properties.
        cut: Settings of the decomposition.
        predict: Predict unmeasured bricks.
    """
    settled = settle(store, query, cut)
    if settled.why_not is not None:
        request = request_of(None, store, settled.query, settled.cut)
        return [failed(Failed(source_of(model), settled.why_not), request) for model in models]
    decompositions = decompose(models, settled.cut)
    evidence = read_evidence(store, decompositions, settled.query, settled.cut)
    if predict and evidence.choice is not None:
        evidence = Gaps(readable(decompositions), evidence, learn(store, evidence.choice)).filled(evidence)
    return [construct(model, evidence) for model in decompositions]


# Interpolation of bricks between measured sizes.


_OCTAVES = 3
"""Range of further sizes on both sides of a size, in doublings."""

_ENOUGH = 3
"""Number of measured sizes among the requested ones that makes further sizes unnecessary; each must be decomposed."""


@dataclass(frozen=True, slots=True)
class _Relatives:
    """A model with missing bricks, and the same model at other sizes of one dimension.

    Attributes:
        dimension: The dimension.
        size: The model's own size.
        others: The model at other sizes.
        added: Members of ``others`` that were not requested.
    """

    dimension: str
    size: int
    others: Mapping[int, ModelSource]
    added: tuple[ModelSource, ...]


def estimate_between(
    models: Sequence[ModelSource],
    *,
    store: Store,
    query: Query | None = None,
    granularity: int = 1,
    overlap: bool = False,
    connected: bool = False,
    graph: str | None = None,
    **fields: Unpack[QueryFields],
) -> Estimates:
    """Estimate models; interpolate missing bricks between other sizes of the model (``constructor.interpolation``).

    The sizes are the model's sizes among ``models``. If fewer than three measured sizes surround a missing one, powers
    of two up to a factor of eight are added. The dimension is the only given one, or the only varying one. Arguments
    and errors are as for ``estimate``.

    Args:
        models: The models.
        store: Database of brick latencies.
        query: Requested properties.
        granularity: Most layers in a sequence.
        overlap: Sequences begin at every layer.
        connected: Sequences may be weakly connected windows.
        graph: Graph to decompose; None: as for ``estimate``.
        **fields: Fields of a ``Query``, in place of those of ``query``.
    """
    requested, cut = asked(query, fields), Cut(granularity, overlap, connected, graph or "source")
    estimates = None
    if graph is None:
        cut, estimates = _as_stored(store, models, requested, cut)
    return Estimates(tuple(estimates_between(store, models, requested, cut, estimates)))


def estimates_between(
    store: Store, models: Sequence[ModelSource], query: Query, cut: Cut, estimates: list[Estimate] | None = None
) -> list[Estimate]:
    """Estimate with interpolation, for a query and a cut.

    Args:
        store: Database of brick latencies.
        models: The models.
        query: Requested properties.
        cut: Settings of the decomposition.
        estimates: Estimates without interpolation, if known.
    """
    estimates = estimates_in(store, models, query, cut) if estimates is None else estimates
    relatives_by_source = {
        source: relatives
        for source, entry in zip(models, estimates, strict=True)
        if (relatives := _relatives_of(source, entry, models, estimates)) is not None
    }
    if not relatives_by_source:
        return estimates
    # Other sizes count only if measured under the combination of the first estimates.
    settled = settle(store, _same_combination(query, estimates) or query, cut)
    added = dict.fromkeys(source for relatives in relatives_by_source.values() for source in relatives.added)
    decompositions = decompose([*models, *added], settled.cut)
    evidence = read_evidence(store, decompositions, settled.query, settled.cut)
    here = {model.source: model for model in readable(decompositions)}
    sized = {source: evidence.executed[model.own.key] for source, model in here.items()}
    for source, relatives in relatives_by_source.items():
        if source in here:
            others = [
                Sized(size, here[other], sized[other]) for size, other in relatives.others.items() if other in here
            ]
            target = Sized(relatives.size, here[source], sized[source])
            evidence = read_between(target, others, relatives.dimension, evidence)
    return [construct(model, evidence) for model in decompositions[: len(models)]]


def _same_combination(query: Query, estimates: Sequence[Estimate]) -> Query | None:
    """Return a query for exactly the combination of the estimates; None without one."""
    combination = next((entry.place for entry in estimates if entry.place.system is not None), None)
    if combination is None:
        return None
    threads, cache, dtype = combination.threads, combination.cache, combination.dtype
    return replace(query, system=combination.system, stack=combination.stack, threads=threads, cache=cache, dtype=dtype)


def _relatives_of(
    source: ModelSource, entry: Estimate, models: Sequence[ModelSource], estimates: Sequence[Estimate]
) -> _Relatives | None:
    """Return the model at other sizes; None if the estimate is known, impossible, or without a varying size."""
    missing = entry.parts.missing
    if entry.error is not None or not missing or all(brick.key is None for brick in missing):
        return None
    alike = [
        (model, other)
        for model, other in zip(models, estimates, strict=True)
        if stem_of(other) == stem_of(entry) and other.error is None
    ]
    varied = set[str]().union(*(_varies(other, entry) for _, other in alike))
    names = varied if len(varied) == 1 else {*sizes_of(entry)}
    if len(names) != 1:
        return None
    (name,) = names
    size = sizes_of(entry)[name]
    others = {sizes_of(other)[name]: model for model, other in alike if _varies(other, entry) == {name}}
    added: dict[int, ModelSource] = {}
    measured = [sizes_of(other)[name] for _, other in alike if other.complete and _varies(other, entry) == {name}]
    if len(measured) < _ENOUGH or not min(measured) < size < max(measured):
        powers = [1 << power for power in range(size.bit_length() + _OCTAVES + 1)]
        near = [power for power in powers if size <= power << _OCTAVES and power <= size << _OCTAVES and power != size]
        added = {power: _resized(source, name, power) for power in near if power not in others}
    return _Relatives(name, size, others | added, tuple(added.values()))


def _varies(entry: Estimate, other: Estimate) -> set[str]:
    """Return the dimensions with different sizes."""
    ours, theirs = sizes_of(entry), sizes_of(other)
    return {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}


def _resized(source: ModelSource, dimension: str, size: int) -> ModelSource:
    """Return a model at another size with a unique name."""
    stem = replace(source, name=f"{source.name}, {dimension}={size}")
    if dimension == BATCH:
        return replace(stem, batch=size)
    return replace(stem, dims=tuple((name, size if name == dimension else old) for name, old in source.dims))
