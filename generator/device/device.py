"""What a device is: one ordered stream of work, and a clock in it.

Everything that is timed goes to one stream. What is enqueued there runs in order; events between show when the stream
came to them, so that their distance is the time of what stands between, without the way from the caller to the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Event = Any
"""A point in the stream, as the device's library has it."""

Run = Callable[[], None]

Over = Callable[[], bool]


class Device(Protocol):
    """One ordered stream of work on a device.

    Attributes:
        name: ``cpu`` or ``cuda``.
        stream: Handle of the stream, for libraries that are to enqueue in it; 0 where there is none.
        cache_bytes: Size of the last-level cache.
    """

    name: str
    stream: int
    cache_bytes: int

    def event(self) -> Event:
        """A new event; it can be recorded again and again."""

    def record(self, event: Event) -> None:
        """Enqueue an event; while a graph is captured, as part of it, to be recorded by each launch."""

    def elapsed_ns(self, begin: Event, end: Event) -> float:
        """Nanoseconds between two events that the stream has passed.

        Raises:
            BackendError: One of them was not recorded.
        """

    def synchronize(self) -> None:
        """Wait until everything that was enqueued is done.

        Raises:
            BackendError: Something that was enqueued failed; on a GPU nothing works any more in this process.
        """

    def timed_ns(self, run: Run, synchronize: Run) -> float:
        """Nanoseconds of what ``run`` starts: on the CPU by its own clock, to the end of ``synchronize``.

        On a GPU between two events around it in the stream: as long as the GPU waits for its launches or works on
        them, without the way back to the caller.
        """

    def hold(self, ns: float) -> Over:
        """Enqueue what keeps a GPU waiting for so many nanoseconds, so that the caller gets ahead of it.

        Returns:
            A function that returns whether the wait is over.
        """

    def evict(self) -> None:
        """Enqueue what takes everything out of the last-level cache."""

    def capture(self, run: Run) -> Run:
        """What ``run`` enqueues as one launch, by the device's own library; on the CPU ``run`` itself.

        Args:
            run: Enqueues only what needs neither new memory nor the host.

        Raises:
            BackendError: It cannot be captured.
        """

    def limit(self, memory_bytes: int) -> None:
        """Let this process take at most so much memory beyond what it has; on a GPU, of the GPU's, by its allocators.

        A limit on the address space of a process would break CUDA.
        """
