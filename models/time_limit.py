"""The time that work on one model may take before anything of it is measured."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from ..errors import OutOfTime

T = TypeVar("T")


class _TimeLimit:
    """A limit in seconds, and the time of each step."""

    def __init__(self, limit_s: float) -> None:
        self._begun = self._last = time.monotonic()
        self._limit_s = limit_s
        self._spent_s: dict[str, float] = {}

    @property
    def left_s(self) -> float:
        return self._begun + self._limit_s - time.monotonic()

    def check(self, doing: str, progress: str) -> None:
        """Count the time since the last check as spent on a step; raise ``OutOfTime`` beyond the limit."""
        now = time.monotonic()
        self._spent_s[doing] = self._spent_s.get(doing, 0.0) + now - self._last
        self._last = now
        if now < self._begun + self._limit_s:
            return
        longest = max(self._spent_s, key=self._spent_s.__getitem__)
        raise OutOfTime(
            f"the budget ended before anything was measured: after {now - self._begun:.1f} s of decomposing, while "
            f"{doing}{progress}; most of it went into {longest}, {self._spent_s[longest]:.1f} s",
            remedy="give a longer --budget; models that are decomposed are kept for the next call",
        )


_LIMIT: ContextVar[_TimeLimit | None] = ContextVar("limit", default=None)


@contextmanager
def limited_to(limit_s: float) -> Iterator[None]:
    """Limit the steps within this context that ask for time; infinity sets none.

    Args:
        limit_s: Seconds from now.
    """
    token = _LIMIT.set(_TimeLimit(limit_s) if math.isfinite(limit_s) else None)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def time_left_s() -> float:
    """Return the seconds that are left; infinity without a limit."""
    limit = _LIMIT.get()
    return math.inf if limit is None else limit.left_s


def require_time(doing: str) -> None:
    """Check the time after a step.

    Args:
        doing: The step in words: ``inferring shapes``.

    Raises:
        OutOfTime: The time is up; the message names the step and the longest one.
    """
    limit = _LIMIT.get()
    if limit is not None:
        limit.check(doing, "")


def in_time(items: Sequence[T], doing: str) -> Iterator[T]:
    """Yield items of a step, and check the time before each; raises as ``require_time``.

    Args:
        items: The items.
        doing: The step in words: ``assembling layers``.
    """
    limit = _LIMIT.get()
    if limit is None:
        yield from items
        return
    for done, item in enumerate(items):
        limit.check(doing, f" ({done:,} of {len(items):,} done)")
        yield item
