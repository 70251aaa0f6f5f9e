"""Search for the members that fail: try a group together, and if it fails try each half of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..errors import BackendError

_T = TypeVar("_T")


def halves(parts: Sequence[_T]) -> tuple[Sequence[_T], ...]:
    """Return the two halves of a sequence, the longer one first; nothing for a single element."""
    middle = (len(parts) + 1) // 2
    return (parts[:middle], parts[middle:]) if len(parts) > 1 else ()


def by_halves(
    groups: Sequence[Sequence[_T]], attempt: Callable[[Sequence[_T]], object], *, most: float = math.inf
) -> dict[_T, BackendError]:
    """Try groups, and the halves of each that fails, down to single members.

    Args:
        groups: Tried one after the other; halves are tried after all other groups.
        attempt: Processes a group, or raises ``BackendError``.
        most: Maximum number of attempts; the result omits members left untried.

    Returns:
        The members that fail alone, with their errors.
    """
    failed: dict[_T, BackendError] = {}
    waiting: list[Sequence[_T]] = [group for group in groups if group]
    while waiting and most > 0:
        group = waiting.pop(0)
        most -= 1
        try:
            attempt(group)
        except BackendError as error:
            waiting += halves(group)
            if len(group) == 1:
                failed[group[0]] = error
    return failed
