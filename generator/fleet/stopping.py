"""Ending on SIGTERM and SIGINT: whoever waits is woken, and what runs is interrupted once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

__all__ = ["Stopping", "stopping_on_signals"]


class Stopping:
    """Whether the end was asked for.

    Attributes:
        asked: Whether it was.
    """

    def __init__(self) -> None:
        self.asked = False
        self._child: int | None = None
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)

    def ask(self) -> None:
        """Ask for the end: a child is interrupted, whoever waits goes on."""
        if self.asked:
            return
        self.asked = True
        os.write(self._wakes, b"\n")
        if self._child is not None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self._child, signal.SIGINT)

    def wait(self, seconds: float) -> None:
        """Sleep, or until the end is asked for."""
        import select

        select.select([self._woken], [], [], max(0.0, seconds))

    @contextmanager
    def passed_on_to(self, child: int) -> Iterator[None]:
        """Interrupt a child process when the end is asked for."""
        self._child = child
        try:
            if self.asked:  # before we knew it
                os.kill(child, signal.SIGINT)
            yield
        finally:
            self._child = None

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self._woken)
        os.close(self._wakes)


@contextmanager
def stopping_on_signals() -> Iterator[Stopping]:
    """Ask for the end on SIGTERM and SIGINT, in place of what they did."""
    stopping = Stopping()

    def ask(_number: int, _frame: FrameType | None) -> None:
        stopping.ask()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stopping.close()
