"""The sides of comparisons: stored combinations, runs of one combination, or variants, and their results."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from ...bricks.graph.boundary import BOUNDARY
from ...constructor.choice import COLD, MODEL, Choice, Query
from ...constructor.uncertainty.calibration import scatters
from ...constructor.uncertainty.interval import Uncertainty
from ...db import Measurement, Store, Subject
from ...db.samples.statistics import Baseline, alike, low_probes
from ...db.values import PARTS, Block, Run, Stack
from ...errors import AmbiguousQuery, UsageError
from ...tabular import Row
from ..estimation.query import matching, require_one, stored_under
from .difference import welch

# What a machine may have done between two measurements.
#
# What one run visited in turn met the same machine. All else is compared by what it is on a quiet machine, which
# repeats better than means do (docs/results/README.md), with what runs differ by in doubt: that holds for two runs,
# and for what one run did one after the other, whose machine drifts as well. Where one of them was never seen quiet,
# and probes say that the machine was another at its best moments, means are compared, and by how much they were
# disturbed is in doubt too.


class Compared(NamedTuple):
    """How two measurements are compared.

    Attributes:
        apart: Relative standard deviation of changes of the machine between both.
        undisturbed: True for latencies on a quiet machine, false for means.
    """

    apart: float
    undisturbed: bool


def latency_ns(measurement: Measurement, *, undisturbed: bool) -> float:
    """Return the latency of a measurement on a quiet machine, or its mean."""
    return measurement.undisturbed_ns or 0.0 if undisturbed else measurement.latency_ns


class Timeline:
    """The runs of a database in time.

    Args:
        store: The database.
    """

    def __init__(self, store: Store) -> None:
        self._runs: Mapping[str, Run] = {run.id: run for run in store.runs()}
        self._stacks = store.stacks()

    def started(self, measurement: Measurement) -> str:
        """When the run of a measurement began."""
        return self._runs[measurement.run].started

    def between(
        self, base: Measurement, other: Measurement, blocks: tuple[Sequence[Block], Sequence[Block]], *, in_turn: bool
    ) -> Compared:
        """How two measurements of one kind are compared, by the raw samples of each."""
        if in_turn:
            return Compared(0.0, undisturbed=False)
        same = bool(base.quiet and other.quiet) or alike(*(low_probes(side) for side in blocks))
        if same and base.undisturbed_ns and other.undisturbed_ns:
            return Compared(_of_runs(base, other, self._stacks), undisturbed=True)
        return Compared(_apart(base, other, self._stacks), undisturbed=False)

    def apart(self, base: Measurement, other: Measurement, *, in_turn: bool) -> float:
        """Return the standard deviation between two means because of the machine; 0 for alternating visits."""
        if in_turn:
            return 0.0
        return _apart(base, other, self._stacks)

    def undisturbed_error(
        self, base: Measurement, other: Measurement, uncertainty: Uncertainty
    ) -> tuple[float, float] | None:
        """Return the standard error of the log ratio of two undisturbed latencies, and its degrees of freedom.

        None if one of them is unknown.
        """
        first, second = (
            uncertainty.undisturbed_error(side.id, Baseline.of_run(self._runs[side.run])) for side in (base, other)
        )
        return None if first is None or second is None else welch(first, second)

    def known(self, *measurements: Measurement) -> bool:
        """Return true if the scatter of runs is calibrated for the stacks and threads of some measurements."""
        return all(scatters(self._stacks, measurement).known for measurement in measurements)


def visited_in_turn(base: Measurement, other: Measurement, ours: Sequence[Block], theirs: Sequence[Block]) -> bool:
    """Return true if one run visited both in the same minutes, in all sessions of either.

    Successive sessions may meet a different machine, as may visits without a time: neither counts as alternating.

    Args:
        base: One measurement.
        other: Another one.
        ours: Raw samples of the first.
        theirs: Raw samples of the other.
    """
    if base.run != other.run or not ours:
        return False
    our_blocks, their_blocks = ({(block.process, block.round): block for block in side} for side in (ours, theirs))
    return our_blocks.keys() == their_blocks.keys() and all(
        block.beside(their_blocks[session]) for session, block in our_blocks.items()
    )


def _of_runs(base: Measurement, other: Measurement, stacks: Mapping[str, Stack]) -> float:
    return math.hypot(*(scatters(stacks, side).run_sd for side in (base, other)))


def _apart(base: Measurement, other: Measurement, stacks: Mapping[str, Stack]) -> float:
    return math.hypot(_of_runs(base, other, stacks), _disturbance(base) / 2, _disturbance(other) / 2)


def _disturbance(measurement: Measurement) -> float:
    """How much slower visits were than quiet ones."""
    if not measurement.undisturbed_ns:
        return 0.0
    return max(0.0, measurement.latency_ns / measurement.undisturbed_ns - 1)


_SHOWN = 8
"""Characters of a key in names."""

_NO_LATENCIES = {*PARTS, *BOUNDARY}
"""Variants that are no ways to run anything."""


class By(StrEnum):
    """Kinds of sides."""

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
        name: Its distinguishing name.
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
        """True if all caches are evicted before each execution."""
        return self.choice.conditions.cache == COLD


def place_record(choice: Choice, *keys: str) -> Row:
    """Return the keys of a combination in JSON: all of them, or some."""
    stack = choice.stack
    row = {
        "system": choice.system_key,
        "stack": choice.stack_key,
        "backend": stack.backend,
        "device": stack.device,
        "versions": dict(stack.versions),
        "options": dict(stack.options),
        **asdict(choice.conditions),
    }
    return {key: row[key] for key in keys or row}


def find_sides(
    store: Store, query: Query, bricks: Collection[str], models: Collection[str], by: By, *, merged: bool = False
) -> list[Side]:
    """Return the sides with results of some models, in the order of their first measurement.

    Args:
        store: The database.
        query: What the caller asked for.
        bricks: Keys of the models' bricks.
        models: Keys of the models.
        by: Kind of side.
        merged: Merge combinations that differ only in the cache state of bricks (``hot`` or ``model``).

    Raises:
        AmbiguousQuery: Runs or variants are asked for, and several combinations match.
        UsageError: No stored system, or stack, has a key with this beginning.
    """
    choices = _places(store, query, bricks, models)
    if by is By.COMBINATION:
        choices = _merged(choices) if merged else choices
        runs = store.runs()
        first = {(run.system, run.stack): run.started for run in reversed(runs)}
        choices.sort(
            key=lambda choice: (first.get((choice.system_key, choice.stack_key), ""), choice.conditions.threads)
        )
        return _named([Side("", choice) for choice in choices])
    choice = require_one(choices)
    if choice is None:
        return []
    here = stored_under(choice).but(variant="" if by is By.RUN else None)
    cold = choice.conditions.cache == COLD
    measurements = [
        measurement
        for subject, keys in ((Subject.BRICK, bricks), (Subject.MODEL, models))
        for measurement in store.measurements(here, subject=subject, keys=keys, latest=False)
        if (measurement.conditions.cache == COLD) == cold and measurement.variant not in _NO_LATENCIES
    ]
    if by is By.VARIANT:
        return _named(
            [Side("", choice, variant=name) for name in sorted({measurement.variant for measurement in measurements})]
        )
    ran = {measurement.run for measurement in measurements}
    return _named([Side("", choice, run) for run in store.runs() if run.id in ran])


def _places(store: Store, query: Query, bricks: Collection[str], models: Collection[str]) -> list[Choice]:
    """Return combinations with bricks, and combinations with whole models only.

    For a repeated model, ``hot`` and ``model`` are the same cache state.
    """
    choices = matching(store, bricks, query)
    combinations = {_apart_from_cache(choice) for choice in choices}
    for choice in matching(store, models, replace(query, cache=None), Subject.MODEL):
        cache_matches = query.cache is None or (query.cache == COLD) == (choice.conditions.cache == COLD)
        if cache_matches and _apart_from_cache(choice) not in combinations:
            combinations.add(_apart_from_cache(choice))
            choices.append(choice)
    return choices


def _merged(choices: Sequence[Choice]) -> list[Choice]:
    """Choose one of the combinations that differ in ``hot`` and ``model`` only.

    First choice: most bricks; then the cache state of most combinations, to compare like with like; then ``model``.
    """
    ways: defaultdict[tuple[object, ...], list[Choice]] = defaultdict(list)
    for choice in choices:
        ways[_apart_from_cache(choice)].append(choice)
    common = Counter(choice.conditions.cache for choice in choices)

    def rank(choice: Choice) -> tuple[int, int, bool]:
        state = choice.conditions.cache
        return choice.count, common[state], state == MODEL

    return [max(members, key=rank) for members in ways.values()]


def _apart_from_cache(choice: Choice) -> tuple[str, str, int, str, bool]:
    conditions = choice.conditions
    return choice.system_key, choice.stack_key, conditions.threads, conditions.dtype, conditions.cache == COLD


def find_side(sides: Sequence[Side], text: str) -> Side:
    """Return the side with a name, a unique property, or the beginning of a key.

    Raises:
        UsageError: No side matches.
        AmbiguousQuery: Several sides match.
    """
    exact = [side for side in sides if side.name == text]
    matches = exact or [
        side
        for side in sides
        if text in _properties(side).values()
        or text in _options(side)
        or any(key.startswith(text) for key in _keys(side))
    ]
    names = "; ".join(side.name for side in matches or sides)
    if not matches:
        raise UsageError(f"no side of the comparison is {text!r}", remedy=f"sides: {names}")
    if len(matches) > 1:
        raise AmbiguousQuery(f"{text!r} is several sides of the comparison: {names}", remedy="give more of the name")
    return matches[0]


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
    """Return the sides, each named by the properties that differ between sides; else by the backend."""
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
    choice = side.choice
    if kind == "versions":
        return " ".join(version for _, version in choice.stack.versions)
    return (choice.stack_key if kind == "stack" else choice.system_key)[:_SHOWN]


def _own_options(side: Side, sides: Sequence[Side]) -> list[str]:
    """Options in which sides of the same backend differ."""
    stack = side.choice.stack
    alike = [dict(other.choice.stack.options) for other in sides if other.choice.stack.backend == stack.backend]
    return [
        f"{name}={value}" for name, value in stack.options if len({options.get(name) for options in alike}) > 1
    ]  # fmt: skip
