"""What can be compared: stored combinations, runs of one of them, or variants within one; and what each holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ...bricks.graph.boundary import BOUNDARY
from ...constructor.choice import COLD, MODEL, Choice
from ...db import Failure, Measurement, Run, Store, Subject
from ...db.values import DATA, PARTS
from ...errors import AmbiguousQuery, UsageError
from ..estimation.query import Query, matching, require_one, stored_under
from .timeline import Timeline

__all__ = ["By", "Side", "SideResults", "find_sides", "pick", "read_side"]

_SHOWN = 8
"""Characters of a key in names."""

_NO_LATENCIES = {*PARTS, *BOUNDARY, DATA}
"""Variants that are no ways to run anything."""


class By(StrEnum):
    """What the sides of a comparison are."""

    COMBINATION = "combination"
    """Stored combinations of system, stack and conditions."""
    RUN = "run"
    """Runs of one combination: before and after a change."""
    VARIANT = "variant"
    """Algorithms within one combination."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    Attributes:
        name: What distinguishes it from the others.
        choice: System, stack and conditions.
        run: The run; None for the latest measurement of everything.
        variant: The algorithm; empty for the runtime's own choice.
    """

    name: str
    choice: Choice
    run: Run | None = None
    variant: str = ""

    @property
    def cold(self) -> bool:
        """Whether everything is evicted before each execution."""
        return self.choice.conditions.cache == COLD


@dataclass(frozen=True, slots=True)
class SideResults:
    """What is stored of one side.

    Attributes:
        truths: Measurement of each whole model, by its key.
        bricks: Measurement of each brick, by cache state and key.
        model_failures: Why a model could not be measured, by its key.
        failures: Why a brick could not be, by cache state and key.
    """

    truths: Mapping[str, Measurement] = field(default_factory=dict)
    bricks: Mapping[tuple[str, str], Measurement] = field(default_factory=dict)
    model_failures: Mapping[str, Failure] = field(default_factory=dict)
    failures: Mapping[tuple[str, str], Failure] = field(default_factory=dict)


def find_sides(
    store: Store, query: Query, *, bricks: Collection[str], models: Collection[str], by: By, merged: bool = False
) -> list[Side]:
    """The sides that hold anything of some models, in the order in which they were first measured.

    Args:
        store: The database.
        query: What the caller asked for.
        bricks: Keys of the models' bricks.
        models: Keys of the models.
        by: What a side is.
        merged: Whether combinations that differ only in where bricks read from (``hot`` or ``model``) are one side.

    Raises:
        AmbiguousQuery: Runs or variants are asked for, and several combinations match.
        UsageError: No stored system, or stack, has a key that begins as asked.
    """
    places = _places(store, query, bricks, models)
    if by is By.COMBINATION:
        places = _merged(places) if merged else places
        runs = store.runs()
        first = {(run.system, run.stack): run.started for run in reversed(runs)}
        places.sort(key=lambda one: (first.get((one.system_key, one.stack_key), ""), one.conditions.threads))
        return _named([Side("", place) for place in places])
    place = require_one(places)
    if place is None:
        return []
    here = stored_under(place).but(variant="" if by is By.RUN else None)
    found = [
        one
        for subject, keys in ((Subject.BRICK, bricks), (Subject.MODEL, models))
        for one in store.measurements(here, subject=subject, keys=keys, latest=False)
        if (one.conditions.cache == COLD) == (place.conditions.cache == COLD) and one.variant not in _NO_LATENCIES
    ]
    if by is By.VARIANT:
        return _named([Side("", place, variant=name) for name in sorted({one.variant for one in found})])
    ran = {one.run for one in found}
    return _named([Side("", place, run) for run in store.runs() if run.id in ran])


def _places(store: Store, query: Query, bricks: Collection[str], models: Collection[str]) -> list[Choice]:
    """Combinations that hold bricks, and those that hold whole models only.

    A model that is repeated is in its own cache state: ``hot`` and ``model`` are the same of it.
    """
    places = matching(store, bricks, query)
    known = {_apart_from_cache(place) for place in places}
    for place in matching(store, models, replace(query, cache=None), Subject.MODEL):
        wanted = query.cache is None or (query.cache == COLD) == (place.conditions.cache == COLD)
        if wanted and _apart_from_cache(place) not in known:
            known.add(_apart_from_cache(place))
            places.append(place)
    return places


def _merged(places: Sequence[Choice]) -> list[Choice]:
    """One combination of those that differ in ``hot`` and ``model`` only: they are one way to run a model.

    That with most of the bricks is taken; else in the cache state that most ways have, so that like is seen beside
    like; else as a model runs them.
    """
    ways: defaultdict[tuple[object, ...], list[Choice]] = defaultdict(list)
    for place in places:
        ways[_apart_from_cache(place)].append(place)
    common = Counter(place.conditions.cache for place in places)

    def rank(place: Choice) -> tuple[int, int, bool]:
        state = place.conditions.cache
        return place.count, common[state], state == MODEL

    return [max(members, key=rank) for members in ways.values()]


def _apart_from_cache(place: Choice) -> tuple[str, str, int, str, bool]:
    conditions = place.conditions
    return place.system_key, place.stack_key, conditions.threads, conditions.dtype, conditions.cache == COLD


def read_side(
    store: Store, timeline: Timeline, side: Side, *, bricks: Mapping[str, Collection[str]], models: Collection[str]
) -> SideResults:
    """What is stored of a side.

    Args:
        store: The database.
        timeline: Of the same database.
        side: The side.
        bricks: Keys of the bricks that are wanted, by cache state.
        models: Keys of the models that are.
    """
    place, latest = side.choice, side.run is None
    conditions = place.conditions

    def of_run(found: Iterable[Measurement]) -> list[Measurement]:
        return [one for one in found if latest or (side.run is not None and one.run == side.run.id)]

    here = stored_under(place).but(variant=side.variant)
    whole = here.but(subject=Subject.MODEL, keys=models)
    truths = [
        one for one in of_run(store.measurements(whole, latest=latest)) if (one.conditions.cache == COLD) == side.cold
    ]
    failed = store.failures(whole)
    stored: dict[tuple[str, str], Measurement] = {}
    failures: dict[tuple[str, str], Failure] = {}
    for state, keys in bricks.items():
        where = here.but(subject=Subject.BRICK, keys=keys, conditions=replace(conditions, cache=state))
        stored |= {(state, one.key): one for one in of_run(store.measurements(where, latest=latest))}
        refused = store.failures(where)
        failures |= {(state, one.key): one for one in refused if latest or one.run == getattr(side.run, "id", None)}
    return SideResults(
        # Measured hot and as part of a run at reuse distances: the later one stands.
        truths={one.key: one for one in sorted(truths, key=timeline.started)},
        bricks=stored,
        model_failures={one.key: one for one in failed if (one.conditions.cache == COLD) == side.cold},
        failures=failures,
    )


def pick(sides: Sequence[Side], text: str) -> Side:
    """The side that a user means: by its name, by anything that only it has, or by the beginning of a key.

    Raises:
        UsageError: No side is meant.
        AmbiguousQuery: Several are.
    """
    exact = [side for side in sides if side.name == text]
    found = exact or [
        side
        for side in sides
        if text in _properties(side).values()
        or text in _options(side)
        or any(key.startswith(text) for key in _keys(side))
    ]
    names = "; ".join(side.name for side in found or sides)
    if not found:
        raise UsageError(f"no side of the comparison is {text!r}", remedy=f"sides: {names}")
    if len(found) > 1:
        raise AmbiguousQuery(f"{text!r} is several sides of the comparison: {names}", remedy="give more of the name")
    return found[0]


def _keys(side: Side) -> list[str]:
    return [side.run.id] if side.run is not None else [side.choice.stack_key, side.choice.system_key]


def _options(side: Side) -> list[str]:
    return [text for name, value in side.choice.stack.options for text in (f"{name}={value}", value)]


_PROPERTIES: Mapping[str, Callable[[Side], str]] = {
    "system": lambda side: side.choice.system.cpu,
    "backend": lambda side: side.choice.stack.backend,
    "device": lambda side: side.choice.stack.device,
    "threads": lambda side: _counted(side.choice.conditions.threads),
    "cache": lambda side: side.choice.conditions.cache,
    "dtype": lambda side: side.choice.conditions.dtype,
    "run": lambda side: "" if side.run is None else f"{side.run.started[:19].replace('T', ' ')} {side.run.id[:_SHOWN]}",
    "variant": lambda side: side.variant or "default",
}


def _properties(side: Side) -> dict[str, str]:
    return {name: value(side) for name, value in _PROPERTIES.items()}


def _counted(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _named(sides: Sequence[Side]) -> list[Side]:
    """The sides, each named by what the others do not all share; by the backend where there is nothing of the kind."""
    differing = [name for name, value in _PROPERTIES.items() if len({value(side) for side in sides}) > 1]
    names = [" ".join([_PROPERTIES[name](side) for name in differing] + _own_options(side, sides)) for side in sides]
    names = [name or side.choice.stack.backend for name, side in zip(names, sides, strict=True)]
    for kind in ("versions", "stack", "system"):
        if len(set(names)) == len(names):
            break
        names = [
            f"{name} {_identity(kind, side)}" if names.count(name) > 1 else name
            for name, side in zip(names, sides, strict=True)
        ]
    return [replace(side, name=name) for side, name in zip(sides, names, strict=True)]


def _identity(kind: str, side: Side) -> str:
    place = side.choice
    if kind == "versions":
        return " ".join(version for _, version in place.stack.versions)
    return (place.stack_key if kind == "stack" else place.system_key)[:_SHOWN]


def _own_options(side: Side, sides: Sequence[Side]) -> list[str]:
    """Options in which sides of the same backend differ."""
    stack = side.choice.stack
    alike = [dict(other.choice.stack.options) for other in sides if other.choice.stack.backend == stack.backend]
    return [
        f"{name}={value}" for name, value in stack.options if len({options.get(name) for options in alike}) > 1
    ]  # fmt: skip
