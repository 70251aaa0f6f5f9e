"""Which of the stored combinations of system, stack and conditions an estimate is made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TypedDict

from ...bricks.graph.footprint import is_level
from ...constructor.choice import MODEL, Choice
from ...db import Combination, Stack, Store, Subject, System
from ...db.queries import Filter
from ...errors import AmbiguousQuery, BackendUnavailable, DlbricksError, UsageError
from ...generator.backends.registry import get, names
from ...generator.decomposition.executed import instruction_set

_SHOWN = 8
"""Characters of a key in messages, more where two begin alike."""
_LISTED = 12


@dataclass(frozen=True, slots=True)
class Query:
    """Which of the stored measurements an answer is made from; None leaves a property open.

    Attributes:
        system: Key of the system, or its beginning.
        stack: Key of the stack, or its beginning.
        backend: Name of the backend.
        device: Its device.
        threads: Threads; 0 stands for the most that are stored of a system, up to one per physical core: a run takes
            as many as its process may use, which only the database knows afterwards.
        cache: Cache state: ``model``, ``hot``, ``cold``, or the name of one level.
        dtype: Precision.
    """

    system: str | None = None
    stack: str | None = None
    backend: str | None = None
    device: str | None = None
    threads: int | None = None
    cache: str | None = None
    dtype: str | None = None


class QueryFields(TypedDict, total=False):
    """The fields of a ``Query`` as keywords of the functions that take one."""

    system: str | None
    stack: str | None
    backend: str | None
    device: str | None
    threads: int | None
    cache: str | None
    dtype: str | None


def asked(query: Query | None, fields: QueryFields) -> Query:
    """What the caller asked for: a query, but for the fields that are given beside it."""
    return replace(query or Query(), **fields)


def choose(store: Store, keys: Collection[str], query: Query) -> Choice | None:
    """The one stored combination that matches; never a guess among several.

    Combinations that hold none of the bricks are left out, since they could answer nothing.

    Args:
        store: The database.
        keys: Bricks of the models.
        query: What the caller asked for.

    Returns:
        None where nothing that matches is stored.

    Raises:
        AmbiguousQuery: Several match; the message lists each with the options that only it has.
        UsageError: No stored system, or stack, has a key that begins as asked.
    """
    return require_one(matching(store, keys, query))


def matching(
    store: Store, keys: Collection[str] | None, query: Query, subject: Subject = Subject.BRICK
) -> list[Choice]:
    """The stored combinations that match.

    The levels of reuse distance at one place are one combination, with the cache state ``model``, unless one level is
    asked for by name.

    Args:
        store: The database.
        keys: Bricks of which at least one is measured there; None for any.
        query: What the caller asked for.
        subject: What the keys are of, where not of bricks.

    Raises:
        UsageError: No stored system, or stack, has a key that begins as asked.
    """
    systems, stacks = store.systems(), store.stacks()
    _known("system", query.system, systems)
    _known("stack", query.stack, stacks)

    def wanted(combination: Combination) -> bool:
        return _matches(_choice(combination, systems, stacks), query)

    among = filter_of(query, systems, stacks)
    joined = _joined(store, store.combinations(subject, keys, variant="", among=among), keys, query, wanted)
    found = [_choice(combination, systems, stacks) for combination in joined if wanted(combination)]
    return _all_cores(found) if query.threads == 0 else found


def filter_of(query: Query, systems: Iterable[str], stacks: Iterable[str]) -> Filter:
    """What of a query the database can tell before it counts anything.

    Args:
        query: What the caller asked for.
        systems: Keys of all stored systems.
        stacks: Keys of all stored stacks.
    """

    def only(prefix: str | None, stored: Iterable[str]) -> str | None:
        found = [] if prefix is None else [key for key in stored if key.startswith(prefix)]
        return found[0] if len(found) == 1 else None

    return Filter(
        system=only(query.system, systems),
        stack=only(query.stack, stacks),
        backend=query.backend,
        device=query.device,
        threads=query.threads or None,
        cache=None if query.cache == MODEL else query.cache,
        dtype=query.dtype,
    )


def require_one(found: Collection[Choice]) -> Choice | None:
    """The only one; None where there is none.

    Raises:
        AmbiguousQuery: There are several; the message lists each with the options that only it has.
    """
    if len(found) > 1:
        lines = [f"{_options(choice, found)} ({_describe(choice, found)})" for choice in list(found)[:_LISTED]]
        rest = f", and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise AmbiguousQuery(
            f"{len(found)} stored combinations match: {', '.join(lines)}{rest}",
            remedy="add the options of the one you mean",
        )
    return next(iter(found), None)


def stored_under(choice: Choice) -> Filter:
    """What is stored under a combination, in whatever cache state."""
    conditions = choice.conditions
    return Filter(system=choice.system_key, stack=choice.stack_key, threads=conditions.threads, dtype=conditions.dtype)


def _joined(
    store: Store,
    found: Iterable[Combination],
    keys: Collection[str] | None,
    query: Query,
    wanted: Callable[[Combination], bool],
) -> list[Combination]:
    """The combinations, those that differ in their level only as one; of these only the wanted, which are counted."""
    if query.cache is not None and is_level(query.cache):
        return list(found)
    joined: list[Combination] = []
    levels: defaultdict[Combination, list[Combination]] = defaultdict(list)
    for combination in found:
        if is_level(combination.conditions.cache):
            levels[replace(combination, conditions=replace(combination.conditions, cache=MODEL), count=0)].append(
                combination
            )
        else:
            joined.append(combination)
    for whole, members in levels.items():
        if not wanted(whole):
            continue
        known = set[str]()
        for member in members:
            known |= store.measured_keys(member.system, member.stack, member.conditions, Subject.BRICK)
        joined.append(replace(whole, count=len(known if keys is None else known.intersection(keys))))
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


def _all_cores(found: Collection[Choice]) -> list[Choice]:
    """Of each system, the combinations with the most threads that have a core each."""
    fitting = [choice for choice in found if choice.conditions.threads <= choice.system.physical_cores]
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
    """The options in which the combinations differ, with this one's values; ``--stack`` where they do not suffice."""
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
    """The shortest beginning of a key that only it has, of a least length."""
    length = _SHOWN
    while length < len(key) and len({other[:length] for other in among}) < len(set(among)):
        length += 1
    return key[:length]


def _describe(choice: Choice, among: Collection[Choice]) -> str:
    """Machine, versions, and the backend's own options in which others of the same backend and device differ."""
    machine = ", ".join((choice.system.cpu, *(choice.system.gpus if choice.stack.device != "cpu" else ())))
    versions = " ".join(f"{name} {version}" for name, version in choice.stack.versions)
    place = (choice.stack.backend, choice.stack.device)
    others = [dict(other.stack.options) for other in among if (other.stack.backend, other.stack.device) == place]
    options = [
        f"{name}={value}" for name, value in choice.stack.options if any(other.get(name) != value for other in others)
    ]
    stack = " ".join((versions or choice.stack.backend, *options))
    return f"{machine}; {stack}; {choice.count} of these bricks"


# Which stack's runtime can be asked here for the graphs that it executes.


@dataclass(frozen=True, slots=True)
class ChosenStack:
    """A stack whose graphs are wanted.

    Attributes:
        stack: The stack.
        threads: Threads to run it with.
        why_not: Why it cannot be asked here; None where it can.
    """

    stack: Stack
    threads: int
    why_not: str | None = None


def why_not_here(stack: Stack, system: System) -> str | None:
    """Why the graphs that a stack executes on a system cannot be had here; None where they can."""
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
    """Whether a stack runs a model's operators one by one, as they are written: no fusion, no layout of its own.

    False where its backend is not known here. An option that an older version stored it without is as it comes.
    """
    if stack.backend not in names():
        return False
    try:
        backend = get(stack.backend)
    except BackendUnavailable:
        return False
    if stack.device not in backend.devices:
        return False
    return backend.eager(backend.resolve(stack.device, {}) | dict(stack.options))


def chosen_stack(store: Store, query: Query, *, at_home: bool = False) -> ChosenStack:
    """Of the stored stacks that match, the one that is installed here, and threads to run it with.

    Which bricks an executed graph has is known only when the stack is: a stack cannot be chosen by its bricks.

    Args:
        store: The database.
        query: What the caller asked for.
        at_home: Where none of the stored stacks is installed here, take the one that a run here would store.

    Returns:
        The stack; where nothing that matches is stored, the one that a run would store; where none of those that do is
        installed here, the first of them, and why not.

    Raises:
        AmbiguousQuery: Several stored stacks are installed here.
        UsageError: No stored system, or stack, has a key that begins as asked.
        BackendUnavailable: The stack of a run here is wanted, and the backend is not installed.
    """
    found = matching(store, None, query)
    places = {(choice.stack_key, choice.system_key): (choice.stack, choice.system) for choice in found}
    why_not = {keys: why_not_here(*place) for keys, place in places.items()}
    here = [choice for choice in found if why_not[choice.stack_key, choice.system_key] is None]
    if len({choice.stack_key for choice in here}) > 1:
        require_one(here)
    if here:
        return ChosenStack(here[0].stack, here[0].conditions.threads)
    if found and not at_home:
        first = found[0]
        return ChosenStack(first.stack, first.conditions.threads, why_not[first.stack_key, first.system_key])
    return ChosenStack(get(query.backend or "onnxruntime").stack(query.device or "cpu", {}), query.threads or 1)


def _spelt(stack: Stack) -> str:
    return " ".join(f"{name} {version}" for name, version in stack.versions) or stack.backend
