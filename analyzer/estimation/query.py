"""Selection of the stored combination of system, stack and conditions for an estimate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TypedDict

from ...bricks.graph.footprint import is_level
from ...constructor.choice import MODEL, Choice, Query
from ...db import Combination, Stack, Store, Subject, System
from ...db.queries import Filter
from ...errors import AmbiguousQuery, BackendUnavailable, DlbricksError, UsageError
from ...generator.backends.base import Backend
from ...generator.backends.registry import get, names
from ...generator.decomposition.cut import instruction_set

_SHOWN = 8
"""Least number of characters of a key in messages."""
_LISTED = 12


class QueryFields(TypedDict, total=False):
    """The fields of a ``Query`` as keywords."""

    system: str | None
    stack: str | None
    backend: str | None
    device: str | None
    threads: int | None
    cache: str | None
    dtype: str | None


def asked(query: Query | None, fields: QueryFields) -> Query:
    """Return a query with some fields replaced."""
    return replace(query or Query(), **fields)


def choose(store: Store, keys: Collection[str], query: Query) -> Choice | None:
    """Return the only stored combination that matches a query, without guessing.

    Combinations without any of the bricks are ignored.

    Args:
        store: The database.
        keys: Bricks of the models.
        query: Requested properties.

    Returns:
        None if no combination matches.

    Raises:
        AmbiguousQuery: Several match; the message lists them with their distinguishing options.
        UsageError: No stored system or stack has the given key prefix.
    """
    return require_one(matching(store, keys, query))


def matching(
    store: Store, keys: Collection[str] | None, query: Query, subject: Subject = Subject.BRICK
) -> list[Choice]:
    """Return the stored combinations that match a query.

    All levels of reuse distance are one combination with cache state ``model``, unless one level is requested.

    Args:
        store: The database.
        keys: Bricks; at least one must be measured. None for any.
        query: Requested properties.
        subject: Subject of the keys, if not bricks.

    Raises:
        UsageError: No stored system or stack has the given key prefix.
    """
    systems, stacks = store.systems(), store.stacks()
    _known("system", query.system, systems)
    _known("stack", query.stack, stacks)

    def wanted(combination: Combination) -> bool:
        return _matches(_choice(combination, systems, stacks), query)

    among = filter_of(query, systems, stacks)
    joined = _joined(store, store.combinations(subject, keys, variant="", among=among), keys, query, wanted)
    choices = [_choice(combination, systems, stacks) for combination in joined if wanted(combination)]
    return _all_cores(choices) if query.threads == 0 else choices


def filter_of(query: Query, systems: Iterable[str], stacks: Iterable[str]) -> Filter:
    """Return the part of a query that the database can filter by.

    Args:
        query: Requested properties.
        systems: Keys of all stored systems.
        stacks: Keys of all stored stacks.
    """

    def only(prefix: str | None, stored: Iterable[str]) -> str | None:
        keys = [] if prefix is None else [key for key in stored if key.startswith(prefix)]
        return keys[0] if len(keys) == 1 else None

    return Filter(
        system=only(query.system, systems),
        stack=only(query.stack, stacks),
        backend=query.backend,
        device=query.device,
        threads=query.threads or None,
        cache=None if query.cache == MODEL else query.cache,
        dtype=query.dtype,
    )


def require_one(choices: Collection[Choice]) -> Choice | None:
    """Return the only combination; None if there are none.

    Raises:
        AmbiguousQuery: There are several; the message lists them with their distinguishing options.
    """
    if len(choices) > 1:
        lines = [f"{_options(choice, choices)} ({_describe(choice, choices)})" for choice in list(choices)[:_LISTED]]
        rest = f", and {len(choices) - _LISTED} more" if len(choices) > _LISTED else ""
        raise AmbiguousQuery(
            f"{len(choices)} stored combinations match: {', '.join(lines)}{rest}",
            remedy="add the options of the one you mean",
        )
    return next(iter(choices), None)


def stored_under(choice: Choice) -> Filter:
    """Return the filter of a combination in all cache states."""
    conditions = choice.conditions
    return Filter(system=choice.system_key, stack=choice.stack_key, threads=conditions.threads, dtype=conditions.dtype)


def _joined(
    store: Store,
    combinations: Iterable[Combination],
    keys: Collection[str] | None,
    query: Query,
    is_wanted: Callable[[Combination], bool],
) -> list[Combination]:
    """Merge combinations that differ in their level only, and count the wanted ones."""
    if query.cache is not None and is_level(query.cache):
        return list(combinations)
    joined: list[Combination] = []
    levels: defaultdict[Combination, list[Combination]] = defaultdict(list)
    for combination in combinations:
        if is_level(combination.conditions.cache):
            levels[replace(combination, conditions=replace(combination.conditions, cache=MODEL), count=0)].append(
                combination
            )
        else:
            joined.append(combination)
    for whole, members in levels.items():
        if not is_wanted(whole):
            continue
        measured_keys = set[str]()
        for member in members:
            measured_keys |= store.measured_keys(member.system, member.stack, member.conditions, Subject.BRICK)
        joined.append(replace(whole, count=len(measured_keys if keys is None else measured_keys.intersection(keys))))
    return joined


def _choice(combination: Combination, systems: dict[str, System], stacks: dict[str, Stack]) -> Choice:
    return Choice(
        system_key=combination.system,
        stack_key=combination.stack,
        system=systems[combination.system],
        stack=stacks[combination.stack],
        conditions=combination.conditions,
        count=combination.count,
    )


def _known(kind: str, prefix: str | None, stored: Iterable[str]) -> None:
    if prefix is not None and not any(key.startswith(prefix) for key in stored):
        keys = ", ".join(sorted(key[:_SHOWN] for key in stored)) or "none"
        raise UsageError(f"no stored {kind} has a key that begins with '{prefix}'", remedy=f"stored: {keys}")


def _all_cores(choices: Collection[Choice]) -> list[Choice]:
    """Return the combinations of each system with the most threads up to one per core."""
    fitting = [choice for choice in choices if choice.conditions.threads <= choice.system.physical_cores]
    most: dict[str, int] = {}
    for choice in fitting:
        most[choice.system_key] = max(choice.conditions.threads, most.get(choice.system_key, 0))
    return [choice for choice in fitting if choice.conditions.threads == most[choice.system_key]]


def _matches(choice: Choice, query: Query) -> bool:
    return (
        choice.system_key.startswith(query.system or "")
        and choice.stack_key.startswith(query.stack or "")
        and query.backend in (None, choice.stack.backend)
        and query.device in (None, choice.stack.device)
        and query.threads in (None, 0, choice.conditions.threads)
        and query.cache in (None, choice.conditions.cache)
        and query.dtype in (None, choice.conditions.dtype)
    )


_OPTIONS: dict[str, Callable[[Choice], object]] = {
    "--system": lambda choice: choice.system_key,
    "--backend": lambda choice: choice.stack.backend,
    "--device": lambda choice: choice.stack.device,
    "--threads": lambda choice: choice.conditions.threads,
    "--cache": lambda choice: choice.conditions.cache,
    "--dtype": lambda choice: choice.conditions.dtype,
}


def _options(choice: Choice, among: Collection[Choice]) -> str:
    """Return this combination's values of the options that differ, or ``--stack`` if these do not suffice."""
    differing = [name for name, value in _OPTIONS.items() if len({value(other) for other in among}) > 1]
    words = [
        f"{name} {_short(str(value), [str(_OPTIONS[name](other)) for other in among]) if name == '--system' else value}"
        for name, value in ((name, _OPTIONS[name](choice)) for name in differing)
    ]
    alike = [other for other in among if all(_OPTIONS[n](other) == _OPTIONS[n](choice) for n in differing)]
    if len(alike) > 1:
        words.append(f"--stack {_short(choice.stack_key, [other.stack_key for other in alike])}")
    return " ".join(words)


def _short(key: str, among: Collection[str]) -> str:
    """Return the shortest unique prefix of a key."""
    length = _SHOWN
    while length < len(key) and len({other[:length] for other in among}) < len(set(among)):
        length += 1
    return key[:length]


def _describe(choice: Choice, among: Collection[Choice]) -> str:
    """Return machine, versions, and the options that differ between stacks of the same backend and device."""
    machine = ", ".join((choice.system.cpu, *(choice.system.gpus if choice.stack.device != "cpu" else ())))
    versions = " ".join(f"{name} {version}" for name, version in choice.stack.versions)
    runtime = (choice.stack.backend, choice.stack.device)
    others = [dict(other.stack.options) for other in among if (other.stack.backend, other.stack.device) == runtime]
    options = [
        f"{name}={value}" for name, value in choice.stack.options if any(other.get(name) != value for other in others)
    ]
    stack = " ".join((versions or choice.stack.backend, *options))
    return f"{machine}; {stack}; {choice.count} of these bricks"


# Selection of the stack for executed graphs.


@dataclass(frozen=True, slots=True)
class ChosenStack:
    """The stack of executed graphs.

    Attributes:
        stack: The stack.
        threads: Threads to run it with.
        why_not: Reason why it cannot run here, if it cannot.
    """

    stack: Stack
    threads: int
    why_not: str | None = None


def why_not_here(stack: Stack, system: System) -> str | None:
    """Return why a stack's executed graphs are not available here; None if they are."""
    text = f"the stored stack {stack.key[:8]} ({_spelt(stack)})"
    try:
        here = get(stack.backend).stack(stack.device, dict(stack.options))
    except DlbricksError as error:
        return f"{text} cannot be used here: {error}"
    if here.versions != stack.versions:
        return f"{text} is not the one that is installed here ({_spelt(here)})"
    if here != stack:
        return f"{text} has other options than the one that is installed here"
    if instruction_set(system) != instruction_set():
        return f"{text} was measured on {system.cpu}, whose instruction sets are not those of this machine"
    return None


def executes_as_written(stack: Stack) -> bool:
    """Return True if a stack runs a model's operators one by one, without fusion and layout changes.

    False for a backend that is unknown here. Options missing in an older version's record have their defaults.
    """
    backend = _backend_of(stack)
    return backend is not None and backend.eager(backend.resolve(stack.device, {}) | dict(stack.options))


def runs_in_packs(stack: Stack) -> bool:
    """Return True if a stack runs many bricks in one network, as in a model; False for a backend unknown here."""
    backend = _backend_of(stack)
    return backend is not None and stack.device == "cpu" and backend.offers(Backend.prepare_packed)


def _backend_of(stack: Stack) -> Backend | None:
    """Return the backend of a stack if it is here and has its device."""
    if stack.backend not in names():
        return None
    try:
        backend = get(stack.backend)
    except BackendUnavailable:
        return None
    return backend if stack.device in backend.devices else None


def chosen_stack(store: Store, query: Query, *, at_home: bool = False) -> ChosenStack:
    """Return the matching stored stack that is installed here, and its threads.

    The stack must be known before the bricks of its executed graphs, so bricks cannot select it.

    Args:
        store: The database.
        query: Requested properties.
        at_home: Fall back to the stack of a run here if no stored stack is installed here.

    Returns:
        The stack. If no stored stack matches: the stack of a run here. If no matching stack is installed here: the
        first of them with the reason.

    Raises:
        AmbiguousQuery: Several stored stacks are installed here.
        UsageError: No stored system or stack has the given key prefix.
        BackendUnavailable: A run here would need a backend that is not installed.
    """
    choices = matching(store, None, query)
    candidates = {(choice.stack_key, choice.system_key): (choice.stack, choice.system) for choice in choices}
    why_not = {keys: why_not_here(*candidate) for keys, candidate in candidates.items()}
    here = [choice for choice in choices if why_not[choice.stack_key, choice.system_key] is None]
    if len({choice.stack_key for choice in here}) > 1:
        require_one(here)
    if here:
        return ChosenStack(here[0].stack, here[0].conditions.threads)
    if choices and not at_home:
        first = choices[0]
        return ChosenStack(first.stack, first.conditions.threads, why_not[first.stack_key, first.system_key])
    backend, device = get(query.backend or "onnxruntime"), query.device or "cpu"
    if at_home and backend.probe().why_not(device):
        device = "cpu"  # bricks for it are cut here all the same
    return ChosenStack(backend.stack(device, {}), query.threads or 1)


def _spelt(stack: Stack) -> str:
    return " ".join(f"{name} {version}" for name, version in stack.versions) or stack.backend
