"""What the database says about the bricks of some models, asked in a handful of queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from ...bricks.graph.boundary import BOUNDARY
from ...bricks.graph.footprint import nearest_levels
from ...bricks.reference import OVERHEAD, built_in_key
from ...constructor.choice import COLD, MODEL, Choice, in_parallel, narrows
from ...constructor.roofline.ceilings import Ceilings, ceilings_of, networks_of
from ...constructor.stored import BrickMeasurements, Stored, Twin
from ...constructor.uncertainty.interval import Uncertainty
from ...constructor.uncertainty.pairing import FUSION
from ...db import Conditions, Failure, Measurement, Store, Subject
from ...db.filter import Filter
from ...db.values import DATA, HOST, INNER, PARTS
from ...generator.measurement.data.data_effects import stored_data_effects
from ...generator.measurement.profiling import PROFILED_CACHE
from .query import Query, stored_under
from .runtime import executes_as_written

__all__ = ["UNFUSED", "Wanted", "find_ceilings", "look_up"]

UNFUSED, _FUSED = FUSION

_NO_LATENCIES = (*PARTS, *BOUNDARY, DATA)
"""Variants that are no ways to run the brick, and so no bound for it; all others are algorithms."""

_REACH = 1.5
"""How many times the lowest latency one may be that could be the lowest but for chance."""

_MOST_RIVALS = 6
"""Of a brick: of many that are about as fast, such as a dozen versions of a runtime, the others are seldom the lowest,
and each is one more to read and to draw errors of."""


@dataclass(slots=True)
class Wanted:
    """Keys of bricks to look up in one cache state.

    Attributes:
        bricks: Whose measurements are wanted.
        competing: Of which only the lowest latency is.
        views: Of both those that end in a rearrangement: where operators are executed as they are written, that is left
            to whoever reads the result, and a latency without it is no bound.
        windows: Of which the latencies with and without fusion are wanted.
        boundary: Those that stand at a model's own inputs and outputs.
    """

    bricks: set[str] = field(default_factory=set)
    competing: set[str] = field(default_factory=set)
    views: set[str] = field(default_factory=set)
    windows: set[str] = field(default_factory=set)
    boundary: set[str] = field(default_factory=set)


def look_up(
    store: Store,
    query: Query,
    choice: Choice | None,
    *,
    bricks: Mapping[str, Wanted],
    models: Collection[str],
) -> Stored:
    """Read what is stored under a combination.

    Args:
        store: The database.
        query: What the caller asked for.
        choice: The combination; None where none matches.
        bricks: What is wanted, by cache state.
        models: Keys of whole models.
    """
    if choice is None:
        # Nothing was measured, but it may have been tried.
        every = {key for wanted in bricks.values() for key in wanted.bricks}
        state = None if query.cache == MODEL else query.cache
        failed = store.failures(
            keys=[*every, *models], backend=query.backend, device=query.device, cache=state, dtype=query.dtype,
        )  # fmt: skip
        failures = {failure.key: failure for failure in failed}
        known = BrickMeasurements(failures=failures, outdated=_outdated(store, every))
        return Stored(bricks=dict.fromkeys(bricks, known), model_failures=failures)
    by_state = {state: _bricks_in(store, choice, state, wanted) for state, wanted in bricks.items()}
    truths, model_failures = _whole_models(store, choice, models)
    overheads = _references(store, choice, OVERHEAD, {"hot", *bricks})
    measured = [
        measurement
        for known in by_state.values()
        for kind in (known.latest, known.inner, known.host, *known.boundary.values())
        for measurement in kind.values()
    ]
    measured += [one for known in by_state.values() for both in known.fusion.values() for one in both]
    measured += [one for known in by_state.values() for some in known.rivals.values() for one in some]
    data = stored_data_effects(
        store,
        models,
        system=choice.system_key,
        stack=choice.stack_key,
        threads=choice.conditions.threads,
        dtype=choice.conditions.dtype,
    )
    twins = _twins(store, measured, choice.stack_key, {truth.run for truth in truths.values()})
    measured += [*overheads.values(), *data.values(), *truths.values(), *twins.values()]
    taken = store.blocks_of([measurement.id for measurement in measured if measurement.variant != DATA])
    uncertainty = Uncertainty(measured, taken, store.stacks())
    ceilings = find_ceilings(store, choice)
    kernels = _kernel_names(store, choice, {key for wanted in bricks.values() for key in wanted.bricks})
    return Stored(choice, by_state, truths, data, model_failures, overheads, uncertainty, ceilings, twins, kernels)


def _twins(
    store: Store, measured: Sequence[Measurement], stack: str, runs: AbstractSet[str]
) -> dict[Twin, Measurement]:
    """Of bricks that were measured again since: what the runs took of them in which whole models were measured.

    These runs were of one stack: what others measured has no twin in them.
    """
    again: dict[tuple[str, Conditions, str], set[str]] = {}
    for one in measured:
        if one.stack == stack and runs - {one.run}:
            again.setdefault((one.system, one.conditions, one.variant), set()).add(one.key)
    found: dict[Twin, Measurement] = {}
    for (system, conditions, variant), keys in again.items():
        wanted = Filter(Subject.BRICK, keys, system, stack, conditions, variant=variant)
        for one in store.measurements(wanted, latest=False):
            if one.run in runs:
                found[one.run, one.key, one.conditions.cache, one.variant] = one
    return found


def _conditions(choice: Choice, state: str) -> Conditions:
    return replace(choice.conditions, cache=state)


def _bricks_in(store: Store, choice: Choice, state: str, wanted: Wanted) -> BrickMeasurements:
    conditions = _conditions(choice, state)
    where = Filter(Subject.BRICK, wanted.bricks, choice.system_key, choice.stack_key, conditions)

    def found(variant: str, every: AbstractSet[str] = wanted.bricks) -> dict[str, Measurement]:
        """In this state; in the nearest footprint class that a brick was measured in, where it was not in this one."""
        known: dict[str, Measurement] = {}
        for place in nearest_levels(state):
            keys = every - known.keys()
            if keys:
                at = replace(conditions, cache=place)
                measured = store.measurements(where, keys=keys, conditions=at, variant=variant)
                known |= {measurement.key: measurement for measurement in measured}
        return known

    failed = store.failures(where)
    plain, fused = found(UNFUSED, wanted.windows), found(_FUSED, wanted.windows)
    bricks = found("")
    return BrickMeasurements(
        latest=bricks,
        inner=found(INNER),
        host=found(HOST),
        boundary={variant: found(variant, wanted.boundary) for variant in BOUNDARY if wanted.boundary},
        failures={failure.key: failure for failure in failed},
        rivals=_rivals(store, choice, state, wanted, bricks),
        fusion={key: (plain[key], fused[key]) for key in plain.keys() & fused.keys()},
        outdated=_outdated(store, wanted.bricks - bricks.keys()),
    )


def _outdated(store: Store, keys: AbstractSet[str]) -> AbstractSet[str]:
    return store.outdated_keys(keys) if keys else frozenset()


def _rivals(
    store: Store, choice: Choice, state: str, wanted: Wanted, own: Mapping[str, Measurement]
) -> dict[str, tuple[Measurement, ...]]:
    """The lowest latencies over the stacks that may compete, and those that may be lower but for chance.

    All of a brick are of one cache state: of that which the brick itself was found in, else of the nearest in which
    any was measured.
    """
    stacks = store.stacks()
    without: set[str] = set()
    if not in_parallel(choice.stack):
        without = {key for key, stack in stacks.items() if in_parallel(stack)}
    if not narrows(choice.stack):
        without |= {key for key, stack in stacks.items() if narrows(stack)}
    eager = {key for key, stack in stacks.items() if executes_as_written(stack)}
    found: dict[str, tuple[Measurement, ...]] = {}
    for place in nearest_levels(state):
        keys = (wanted.bricks | wanted.competing) - found.keys()
        here = {key for key in keys if key not in own or own[key].conditions.cache == place}
        conditions = _conditions(choice, place)
        found |= _lowest(store, choice, conditions, here - wanted.views, without)
        found |= _lowest(store, choice, conditions, here & wanted.views, without | eager)
    return found


def _lowest(
    store: Store, choice: Choice, conditions: Conditions, keys: Collection[str], without: Collection[str]
) -> dict[str, tuple[Measurement, ...]]:
    """Lowest latencies, without those variants that are no ways to run the brick."""
    if not keys:
        return {}
    where = Filter(Subject.BRICK, keys, choice.system_key, conditions=conditions, variant=None)
    found = store.contenders(
        where, device=choice.stack.device, without=without, parts=_NO_LATENCIES, reach=_REACH, most=_MOST_RIVALS
    )
    places: dict[tuple[str, str], set[str]] = {}
    for rivals in found.values():
        for one in rivals:
            places.setdefault((one.stack, one.variant), set()).add(one.key)
    measured: dict[str, list[Measurement]] = {}
    for (stack, variant), some in places.items():
        for taken in store.measurements(where, keys=some, stack=stack, variant=variant):
            measured.setdefault(taken.key, []).append(taken)
    order = {(one.key, one.stack, one.variant): rank for rivals in found.values() for rank, one in enumerate(rivals)}
    return {
        key: tuple(sorted(some, key=lambda one: order[one.key, one.stack, one.variant]))
        for key, some in measured.items()
    }


def _whole_models(
    store: Store, choice: Choice, keys: Collection[str]
) -> tuple[dict[str, Measurement], dict[str, Failure]]:
    """Ground truth: a model that is repeated is in its own state, so that ``hot`` and ``model`` are the same of it."""
    states = [COLD] if choice.conditions.cache == COLD else ["hot", MODEL]
    started = {run.id: run.started for run in store.runs()}
    found: dict[str, Measurement] = {}
    failed: dict[str, Failure] = {}
    for state in states:
        where = Filter(Subject.MODEL, keys, choice.system_key, choice.stack_key, _conditions(choice, state))
        for measurement in store.measurements(where):
            known = found.get(measurement.key)
            found[measurement.key] = measurement if known is None else _later(started, known, measurement)
        failed |= {failure.key: failure for failure in store.failures(where)}
    return found, failed


def _later(started: Mapping[str, str], one: Measurement, other: Measurement) -> Measurement:
    """Of two measurements that of the run that began later, by when each run did."""
    return other if started.get(other.run, "") >= started.get(one.run, "") else one


def _references(store: Store, choice: Choice, name: str, states: Iterable[str]) -> dict[str, Measurement]:
    """Latest measurements of a network of our own, by cache state."""
    found = store.measurements(stored_under(choice), subject=Subject.REFERENCE, keys=[built_in_key(name)])
    return {one.conditions.cache: one for one in found if one.conditions.cache in states}


def find_ceilings(store: Store, choice: Choice) -> Ceilings:
    """The ceilings of a combination (``constructor.roofline.ceilings``), over all stacks.

    Args:
        store: The database.
        choice: The combination.
    """
    names = {built_in_key(name): name for name in networks_of(choice)}
    found: defaultdict[tuple[str, str], dict[str, Measurement]] = defaultdict(dict)
    for one in store.measurements(
        subject=Subject.REFERENCE,
        keys=list(names),
        system=choice.system_key,
        threads=choice.conditions.threads,
        cache="hot",
        device=choice.stack.device,
    ):
        found[one.stack, one.conditions.dtype][names[one.key]] = one
    return ceilings_of(found, store.stacks(), choice)


def _kernel_names(store: Store, choice: Choice, keys: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The kernels of each brick by its key, the longest first; without the bricks of which no view is stored.

    Args:
        store: The database.
        choice: The combination; kernels run whatever the caches hold.
        keys: The bricks.
    """
    views = store.kernels(stored_under(choice), subject=Subject.BRICK, keys=keys, cache=PROFILED_CACHE)
    return {
        identity.key: tuple(
            dict.fromkeys(one.name for one in sorted(view.kernels, key=lambda kernel: -(kernel.time_ns or 0)))
        )
        for identity, view in views.items()
    }
