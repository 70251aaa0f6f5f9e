"""The priority of this process: high while it times networks, as usual while it loads them."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

PRIORITIES = ("high", "fifo", "off")
"""What a user can ask for: the lowest nice value allowed, the real-time class ``SCHED_FIFO``, or nothing."""

USUAL = "usual"
"""The priority of a process that was granted nothing."""

_HIGHEST = -20
"""Lowest nice value of Linux."""

_TASKS = Path("/proc/self/task")
_SESSION = Path("/proc/self/autogroup")
_BY_SESSION = Path("/proc/sys/kernel/sched_autogroup_enabled")


class Priority:
    """The priority of all threads of this process, and of its session.

    Many kernels share the processor out among sessions first (``autogroup``). A nice value then counts within its
    session only, so that the session's nice value is lowered too. Workers have a session of their own.

    Args:
        asked: One of ``PRIORITIES``. It is as high as the system allows.

    Attributes:
        granted: For example ``nice -20``, ``fifo 1`` or ``usual``.
    """

    def __init__(self, asked: str = "high") -> None:
        self._raised = False
        self._threads: Callable[[int], None] | None = None
        self._session: int | None = None
        self.granted = USUAL
        if sys.platform != "linux" or asked == "off":
            return
        self._usual = os.getpriority(os.PRIO_PROCESS, 0)
        soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
        allowed = 20 - soft if 0 <= soft <= 40 else _HIGHEST  # setrlimit(2): the ceiling of nice is 20 minus the limit
        if asked == "fifo" and self._allowed(_fifo):
            self._threads, self.granted = _fifo, "fifo 1"
            return
        for value in (_HIGHEST, allowed):
            if value < self._usual and self._allowed(_nice(value)):
                self._threads, self._session, self.granted = _nice(value), value, f"nice {value}"
                return

    def _allowed(self, change: Callable[[int], None]) -> bool:
        """Try a change on this thread, and take it back."""
        try:
            change(0)
        except OSError:
            return False
        self._lower(0)
        return True

    def high(self) -> None:
        """Raise the priority of all threads that this process has now."""
        if self._raised or self._threads is None:
            return
        self._raised = True
        for thread in _threads():
            _unless_ended(self._threads, thread)
        if self._session is not None:
            _of_session(self._session)

    def usual(self) -> None:
        """Give all threads their usual priority back."""
        if not self._raised:
            return
        self._raised = False
        for thread in _threads():
            _unless_ended(self._lower, thread)
        if self._session is not None:
            _of_session(0)

    def _lower(self, thread: int) -> None:
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, thread, self._usual)


def _fifo(thread: int) -> None:
    os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))


def _nice(value: int) -> Callable[[int], None]:
    return lambda thread: os.setpriority(os.PRIO_PROCESS, thread, value)


def _threads() -> Iterator[int]:
    return (int(task.name) for task in _TASKS.iterdir())


def _unless_ended(change: Callable[[int], None], thread: int) -> None:
    try:
        change(thread)
    except ProcessLookupError:
        return  # the thread ended meanwhile


def _of_session(value: int) -> None:
    """Set the nice value of this process's session, if the kernel schedules by session and allows it.

    A kernel refuses a second change within a tenth of a second to processes without administrator rights. The session
    then keeps its value until the next change.
    """
    try:
        if os.getsid(0) == os.getpid() and _BY_SESSION.read_text().strip() == "1":
            _SESSION.write_text(str(value))
    except OSError:
        return  # such a kernel has nothing to set, or this process may not set it
