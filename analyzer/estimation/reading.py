"""Reading of evidence from the database, with three queries of measurements for any number of models.

A fourth query reads earlier measurements of bricks that were measured again after the model (``_twins``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from ...bricks.cutting.fused import fused_sequences
from ...bricks.decomposition import Decomposition, Failed
from ...bricks.graph.boundary import BOUNDARY, USUAL, Caches, typical
from ...bricks.graph.footprint import LEVELS, is_level, level_name, nearest_levels
from ...bricks.reference import OVERHEAD, built_in_key
from ...constructor.choice import COLD, MODEL, Choice, Query, in_parallel, narrows
from ...constructor.coverage import missing_of
from ...constructor.evidence import MOST_RIVALS, REACH, EstimateRequest, Evidence, Table, Twin, bricks_of, twin_of
from ...constructor.interventions import Interventions, as_written, intervened, intervened_in, state_of
from ...constructor.measurements import BrickMeasurements
from ...constructor.roofline import Ceilings, ceilings_of, networks_of
from ...constructor.uncertainty.interval import Uncertainty
from ...constructor.uncertainty.pairing import FUSION
from ...db import Conditions, Failure, Measurement, Run, Stack, Store, Subject, System
from ...db.queries import Filter
from ...db.values import HOST, INNER, NATIVE, PARTS, PROFILED_CACHE
from ...errors import DlbricksError
from ...generator.decomposition.cut import Cut
from ...generator.decomposition.decompose import readable
from ...generator.decomposition.executed import ExecutedGraphs
from ...generator.machine.cache_reach import noted_caches
from .query import choose, executes_as_written, filter_of, matching, stored_under, why_not_here
from .tasks import Tasks

SINGLE = Cut(1)
"""The model's own graph, layer by layer."""

_VARIANTS = frozenset({"", INNER, HOST, *BOUNDARY, *FUSION})
"""Variants read for the combination's own stack."""

_NO_LATENCIES = (*PARTS, *BOUNDARY)
"""Variants that do not compete in bounds, because they are parts of a brick or positions; the others are algorithms."""


def read_evidence(
    store: Store, models: Sequence[Decomposition | Failed], query: Query | None = None, cut: Cut = SINGLE
) -> Evidence:
    """Read the measurements of some models under the one combination that matches a query.

    If no brick is measured, the combination is that of the models themselves.

    Args:
        store: The database.
        models: The models as ``decompose`` returns them.
        query: Requested properties; None if only one combination is stored.
        cut: Settings of the decomposition.

    Raises:
        AmbiguousQuery: Several combinations match; the message lists them with their distinguishing options.
        UsageError: No stored system or stack has the given key prefix.
        StoreError: The database cannot be read.
    """
    requested, decompositions = query or Query(), readable(models)
    choice = choose(store, {part.key for model in decompositions for part in model.sequences}, requested)
    if choice is not None:
        return evidence_under(choice, decompositions, store, requested, cut)
    whole = matching(store, {model.own.key for model in decompositions}, requested, Subject.MODEL)
    executed = {model.own.key: Interventions(reason="nothing is stored") for model in decompositions}
    return evidence_under(whole[0] if len(whole) == 1 else None, decompositions, store, requested, cut, executed)


def missing(models: Sequence[Decomposition | Failed], evidence: Evidence) -> list[Decomposition | Failed]:
    """Return the models with a missing measurement of the model or of a brick.

    Models that cannot be decomposed are included: measuring reports the reason.

    Args:
        models: The models as ``decompose`` returns them.
        evidence: Their measurements.
    """
    return [model for model in models if isinstance(model, Failed) or _lacks(model, evidence)]


def _lacks(model: Decomposition, evidence: Evidence) -> bool:
    if model.own.key not in evidence.truths:
        return True
    bricks = evidence.bricks_in(model.own.key, state_of(model, evidence.choice))
    lacking = missing_of(model, model.sequences, bricks, evidence.request.remedies)
    return any(brick.remedy is not None for brick in lacking)


def request_of(choice: Choice | None, store: Store, query: Query, cut: Cut) -> EstimateRequest:
    """Return the request for estimates.

    Args:
        choice: The combination; None if no measurement matches.
        store: The database.
        query: Requested properties.
        cut: Settings of the decomposition.
    """
    requested = Query(None, None, query.backend, query.device, query.threads, query.cache, query.dtype)
    return EstimateRequest(cut, requested, Tasks(store, choice, query, cut))


def evidence_under(  # noqa: PLR0917
    choice: Choice | None,
    models: Sequence[Decomposition],
    store: Store,
    query: Query,
    cut: Cut,
    executed: Mapping[str, Interventions] | None = None,
) -> Evidence:
    """Read the measurements of some models under one combination.

    Args:
        choice: The combination; None if no measurement matches.
        models: The decomposed models.
        store: The database.
        query: Requested properties, for failures without a measurement.
        cut: Settings of the decomposition.
        executed: Executed graphs of the models, if an earlier reading found them.
    """
    request = request_of(choice, store, query, cut)
    executed = _executed_graphs(models, store, choice) if executed is None else executed
    keys = {model.own.key for model in models}
    asked = {part.key for model in models for part in model.sequences}
    bricks = asked | {part.key for graph in executed.values() for part in graph.parts}
    if choice is None:
        return _failed(request, models, executed, _failures_asked(store, query, bricks | keys))
    windows = {window.key for model in models for window in model.windows}
    units = {part.key for graph in executed.values() for part in graph.units or ()}
    states = {state_of(model, choice) for model in models} | {graph.level for graph in executed.values()} - {""}
    stacks = store.stacks()
    measurements = store.measurements(
        stored_under(choice), keys=bricks | units | keys | {built_in_key(OVERHEAD)}, variant=_VARIANTS,
        cache=_caches(states),
    )  # fmt: skip
    of = {subject: [measured for measured in measurements if measured.subject is subject] for subject in Subject}
    failures = store.failures(stored_under(choice), keys=bricks | keys)
    eager = {key for key, stack in stacks.items() if executes_as_written(stack)}
    rivals = store.contenders(
        subject=Subject.BRICK, keys=asked | windows, system=choice.system_key, device=choice.stack.device,
        threads=choice.conditions.threads, dtype=choice.conditions.dtype, variant=None, cache=_caches(states),
        without=_apart_from(choice, stacks), parts=_NO_LATENCIES, apart=eager, reach=REACH, most=MOST_RIVALS,
    )  # fmt: skip
    runs = {run.id: run for run in store.runs()}
    table = Table(of[Subject.BRICK], rivals, failures, eager, _caches_of(of[Subject.BRICK], runs, choice.system))
    brick_measurements = {
        (model.own.key, state): measured
        for model in models
        for state, measured in bricks_of(model, executed[model.own.key], choice, table).items()
    }
    started = {id_: run.started for id_, run in runs.items()}
    states_of_models = {COLD} if choice.conditions.cache == COLD else {"hot", MODEL}
    whole: defaultdict[str, list[Measurement]] = defaultdict(list)
    for measured in of[Subject.MODEL]:
        if measured.variant == "":
            whole[measured.key].append(measured)
    truths = {
        key: max(here, key=lambda measured: (started.get(measured.run, ""), measured.conditions.cache == MODEL))
        for key, several in whole.items()
        if (here := [measured for measured in several if measured.conditions.cache in states_of_models])
    }
    overheads = {
        measured.conditions.cache: measured
        for measured in of[Subject.REFERENCE]
        if measured.conditions.cache in {"hot", COLD}
    }
    members = [*{measured.id: measured for some in brick_measurements.values() for measured in some.members()}.values()]
    twins = _twins(store, members, choice.stack_key, {truth.run for truth in truths.values()})
    members += [*overheads.values(), *truths.values(), *twins.values()]
    taken = store.blocks_of([measured.id for measured in members])
    views = store.kernels(stored_under(choice), keys=bricks | keys, cache=PROFILED_CACHE)
    return Evidence(
        request,
        choice=choice,
        bricks=brick_measurements,
        executed=executed,
        models={key: tuple(several) for key, several in whole.items()},
        truths=truths,
        model_failures={
            failure.key: failure
            for failure in failures
            if failure.subject is Subject.MODEL and failure.conditions.cache in states_of_models
        },
        overheads=overheads,
        uncertainty=Uncertainty(members, taken, stacks),
        ceilings=find_ceilings(store, choice, stacks),
        twins=twins,
        views={identity.key: view for identity, view in views.items()},
        runs=runs,
    )


def _failures_asked(store: Store, query: Query, keys: Collection[str]) -> dict[str, Failure]:
    """Return failures by key if no measurement matches."""
    failed = store.failures(filter_of(query, store.systems(), store.stacks()), keys=keys)
    return {failure.key: failure for failure in failed}


def _failed(
    request: EstimateRequest,
    models: Iterable[Decomposition],
    executed: Mapping[str, Interventions],
    failures: Mapping[str, Failure],
) -> Evidence:
    """Return the evidence without any measurement."""
    unmeasured = BrickMeasurements(failures=failures)
    bricks = {(model.own.key, state_of(model, None)): unmeasured for model in models}
    return Evidence(request, bricks=bricks, executed=executed, model_failures=failures)


def _caches(states: Iterable[str]) -> frozenset[str]:
    """Return the cache states with possible replacements of some states, or with related measurements."""
    caches = {level for state in states for level in nearest_levels(state)} | {"hot", COLD, MODEL}
    if any(is_level(state) for state in states):
        caches |= {level_name(level) for level in LEVELS}
    return frozenset(caches)


def _apart_from(choice: Choice, stacks: Mapping[str, Stack]) -> set[str]:
    """Return the stacks that do not compete: with parallel branches or TF32, unless the combination has them too."""
    parallel = set() if in_parallel(choice.stack) else {key for key, stack in stacks.items() if in_parallel(stack)}
    narrow = set() if narrows(choice.stack) else {key for key, stack in stacks.items() if narrows(stack)}
    return parallel | narrow


def _twins(
    store: Store, measured: Sequence[Measurement], stack: str, runs: AbstractSet[str]
) -> dict[Twin, Measurement]:
    """Return earlier measurements of bricks in the runs that measured whole models.

    Only measurements on the stack of these runs are returned.
    """
    again: dict[tuple[str, Conditions, str], set[str]] = {}
    for later in measured:
        if later.stack == stack and runs - {later.run}:
            again.setdefault((later.system, later.conditions, later.variant), set()).add(later.key)
    twins: dict[Twin, Measurement] = {}
    for (system, conditions, variant), keys in again.items():
        selection = Filter(Subject.BRICK, keys, system, stack, conditions, variant=variant)
        for twin in store.measurements(selection, latest=False):
            if twin.run in runs:
                twins[twin_of(twin, twin.run)] = twin
    return twins


def find_ceilings(store: Store, choice: Choice, stacks: Mapping[str, Stack]) -> Ceilings:
    """Return the ceilings of a combination (``constructor.roofline``) over all stacks.

    Args:
        store: The database.
        choice: The combination.
        stacks: All stacks, by key.
    """
    names = {built_in_key(name): name for name in networks_of(choice)}
    references: defaultdict[tuple[str, str], dict[str, Measurement]] = defaultdict(dict)
    for measured in store.measurements(
        subject=Subject.REFERENCE,
        keys=list(names),
        system=choice.system_key,
        threads=choice.conditions.threads,
        cache="hot",
        device=choice.stack.device,
    ):
        references[measured.stack, measured.conditions.dtype][names[measured.key]] = measured
    return ceilings_of(references, stacks, choice)


def _caches_of(bricks: Iterable[Measurement], runs: Mapping[str, Run], system: System) -> Caches:
    """Return what the caches of the bricks' machine hold, as the latest run with variants of bricks found it.

    Before there is such a run, the latest run of the system decides, or what the system reports.
    """
    with_variants = {brick.run for brick in bricks if brick.variant in BOUNDARY}
    if with_variants:
        return noted_caches(runs[id_] for id_ in with_variants) or USUAL
    noted = noted_caches(run for run in runs.values() if run.system == system.key)
    return noted or typical(max((size for _, size in system.cache_bytes), default=0))


# Executed graphs of the models.


def _executed_graphs(models: Sequence[Decomposition], store: Store, choice: Choice | None) -> dict[str, Interventions]:
    """Return the executed graph of each model by its key.

    A runtime without fusion executes the model's own graph. Other graphs are asked for only where an estimate can use
    them: bricks of them may be stored in the model's cache state, or bricks with layout changes at their edges are. A
    worker loads the model then, unless an earlier command kept the answer: an estimate never depends on that.
    """
    if choice is not None and executes_as_written(choice.stack):
        return {model.own.key: as_written(model.own) for model in models}
    executed = {model.own.key: intervened_in(model) for model in models if model.executed is not None}
    rest = [model for model in models if model.executed is None]
    reason = "nothing is stored" if choice is None else _why_not(choice)
    if rest and choice is not None and reason is None:
        source_keys = {part.key for model in models for part in model.sequences}
        states = {COLD} if choice.conditions.cache == COLD else {model.level for model in rest}
        others = any(keys - source_keys for keys in _measured_keys(store, choice, states))
        at_edges = any(not keys.isdisjoint(source_keys) for keys in _measured_keys(store, choice, states, INNER))
        if not (others or at_edges or _any_unfused(rest, store, choice)):
            reason = "no brick of the executed graph is measured as the model is"
    if not rest or reason is not None or choice is None:
        return executed | {model.own.key: Interventions(reason=reason or "") for model in rest}
    unfused = _any_unfused(rest, store, choice)
    with ExecutedGraphs(choice.stack.runtime, choice.conditions.threads) as graphs:
        for model in rest:
            executed[model.own.key] = _intervened(model, graphs, unfused=unfused)
    return executed


def _intervened(model: Decomposition, graphs: ExecutedGraphs, *, unfused: bool) -> Interventions:
    try:
        executed = graphs.of(model.source, model.source.skeleton(), model.own)
        units = tuple(fused_sequences(executed, 1)) if unfused else None
    except DlbricksError as error:
        return Interventions(reason=str(error))
    return replace(intervened(executed), units=units)


def _any_unfused(models: Sequence[Decomposition], store: Store, choice: Choice) -> bool:
    """Return True if bricks are measured without fusion."""
    states = {state_of(model, choice) for model in models}
    return any(_measured_keys(store, choice, states, FUSION[0]))


def _measured_keys(store: Store, choice: Choice, states: Iterable[str], variant: str = "") -> Iterator[set[str]]:
    """Yield the keys of the measured bricks of each cache state."""
    for state in states:
        conditions = replace(choice.conditions, cache=state)
        yield store.measured_keys(choice.system_key, choice.stack_key, conditions, Subject.BRICK, variant)


def _why_not(choice: Choice) -> str | None:
    """Return why a combination has no executed graphs; None if it can have them."""
    if choice.conditions.dtype != NATIVE:
        return f"the graph that the runtime executes in {choice.conditions.dtype} is not known"
    return why_not_here(choice.stack, choice.system)
