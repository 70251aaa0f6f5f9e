"""The time of a visit, which an alarm holds to: whatever is being measured then stops, and what is committed stays."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_PLANNED = 0.92
"""Part of the time that is given to stages; they may take longer than they were given, until the alarm."""

STAGES, TABLES = 0.95, 0.99
"""Parts of the time after which the stages are stopped, and then the tables that are made of them."""


class TimeUp(KeyboardInterrupt):
    """The time is up; an interrupt, so that nothing takes it for an error."""


class Terminated(TimeUp):
    """The process was asked to end."""


class Clock:
    """The time of a visit.

    Args:
        total_s: The whole visit.
        began: ``time.monotonic()`` at its beginning; default now.
    """

    def __init__(self, total_s: float, *, began: float | None = None) -> None:
        self.total_s = total_s
        self._began = time.monotonic() if began is None else began

    @property
    def spent_s(self) -> float:
        """Since the visit began."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        """What may still be given to a stage."""
        return max(0.0, self.total_s * _PLANNED - self.spent_s)

    @property
    def least_s(self) -> float:
        """Nothing is begun that has less: a worker could not even load a framework."""
        return max(2.0, 0.03 * self.total_s)

    @contextmanager
    def alarm(self, part: float = STAGES) -> Iterator[None]:
        """Raise ``TimeUp`` inside, when a part of the time is over, or on SIGTERM."""
        handlers = {number: signal.signal(number, _end) for number in (signal.SIGALRM, signal.SIGTERM)}
        signal.setitimer(signal.ITIMER_REAL, max(0.001, self.total_s * part - self.spent_s))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> NoReturn:
    if number == signal.SIGTERM:
        raise Terminated("terminated")
    raise TimeUp("the time was up")
