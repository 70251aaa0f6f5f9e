"""Which stack's runtime can be asked here for the graphs that it executes."""

from __future__ import annotations

from dataclasses import dataclass

from ...db import Stack, Store, System
from ...errors import BackendUnavailable, DlbricksError
from ...generator.backends.base import EagerBackend
from ...generator.backends.registry import get, names
from ...generator.decomposition.executed import instruction_set
from .query import Query, matching, require_one

__all__ = ["Place", "chosen_stack", "executes_as_written", "why_not_here"]


@dataclass(frozen=True, slots=True)
class Place:
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
    if not isinstance(backend, EagerBackend) or stack.device not in backend.devices:
        return False
    return backend.eager(backend.resolve(stack.device, {}) | dict(stack.options))


def chosen_stack(store: Store, query: Query, *, at_home: bool = False) -> Place:
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
    places = {(one.stack_key, one.system_key): (one.stack, one.system) for one in found}
    why_not = {keys: why_not_here(*place) for keys, place in places.items()}
    here = [one for one in found if why_not[one.stack_key, one.system_key] is None]
    if len({one.stack_key for one in here}) > 1:
        require_one(here)
    if here:
        return Place(here[0].stack, here[0].conditions.threads)
    if found and not at_home:
        first = found[0]
        return Place(first.stack, first.conditions.threads, why_not[first.stack_key, first.system_key])
    return Place(get(query.backend or "onnxruntime").stack(query.device or "cpu", {}), query.threads or 1)


def _spelt(stack: Stack) -> str:
    return " ".join(f"{name} {version}" for name, version in stack.versions) or stack.backend
