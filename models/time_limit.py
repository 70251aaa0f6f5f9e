"""The time that work on one model may take before anything of it is measured."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from ..errors import OutOfTime, UsageError

T = TypeVar("T")


VARIABLE = "DLBRICKS_DECOMPOSE_S"
"""Environment variable with the seconds that one model may take to decompose where there is no budget."""

_MOST_S = 300.0
"""Its default: twenty thousand nodes take 22 s, on a busy machine three times as long; a runtime may take 220 s to load
2 GB."""

_LONGER = "give a longer --budget; models that are decomposed are kept for the next call"
_MORE = f"set {VARIABLE} to more seconds, or to inf"


class _TimeLimit:
    """A limit in seconds, and the time of each step.

    Args:
        limit_s: Seconds from now.
        reached: What the error says first.
        remedy: What the error advises.
    """

    def __init__(self, limit_s: float, reached: str, remedy: str) -> None:
        self._begun = self._last = time.monotonic()
        self._limit_s = limit_s
        self._reached, self._remedy = reached, remedy
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
            f"{self._reached}: after {now - self._begun:.1f} s of decomposing, while {doing}{progress}; most of it "
            f"went into {longest}, {self._spent_s[longest]:.1f} s",
            remedy=self._remedy,
        )


_LIMIT: ContextVar[_TimeLimit | None] = ContextVar("limit", default=None)


@contextmanager
def limited_to(budget_s: float, most_s: float = math.inf) -> Iterator[None]:
    """Limit the steps within this context that ask for time.

    Args:
        budget_s: Seconds from now; infinity for none.
        most_s: Seconds of one model (``model_limit_s``).
    """
    if budget_s <= most_s:
        limit = _TimeLimit(budget_s, "the budget ended before anything was measured", _LONGER)
    else:
        limit = _TimeLimit(most_s, f"one model may take {most_s:g} s to decompose", _MORE)
    token = _LIMIT.set(limit if math.isfinite(min(budget_s, most_s)) else None)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def model_limit_s() -> float:
    """Return the seconds that one model may take to decompose.

    Raises:
        UsageError: The environment's value is no number of seconds.
    """
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or _MOST_S)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise UsageError(f"{VARIABLE} cannot be {text!r}", remedy="use seconds, or inf for no limit")
    return seconds


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
