"""The interface of a device: one ordered stream of work, and a clock in it.

All timed work goes to one stream and runs in order. Events between work record when the stream reached them. Their
distance is the time of the work between them, without the way from the caller to the device.
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
        stream: Handle of the stream, for libraries that enqueue in it; 0 for the CPU.
        cache_bytes: Size of the last-level cache.
        resolution_ns: Step of the clock of its events in nanoseconds; 0 if it is too fine to matter.
    """

    name: str
    stream: int
    cache_bytes: int
    resolution_ns: float

    def event(self) -> Event:
        """Return a new event; it can be recorded again and again."""

    def record(self, event: Event) -> None:
        """Enqueue an event. During the capture of a graph it becomes part of the graph, and each launch records it."""

    def elapsed_ns(self, begin: Event, end: Event) -> float:
        """Return the nanoseconds between two events that the stream has passed.

        Raises:
            BackendError: One of them was not recorded.
        """

    def synchronize(self) -> None:
        """Wait until all enqueued work is done.

        Raises:
            BackendError: Enqueued work failed; this process cannot use the GPU any more.
        """

    def timed_ns(self, run: Run, synchronize: Run) -> float:
        """Return the duration of the work that ``run`` starts, in nanoseconds.

        On the CPU it is measured by the CPU's clock until ``synchronize`` returns. On a GPU it is the time between two
        events in the stream: it contains waiting for launches, but not the way back to the caller.
        """

    def hold(self, ns: float) -> Over:
        """Keep a GPU waiting for so many nanoseconds, so that the caller gets ahead of it.

        Returns:
            A function that returns True when the wait is over.
        """

    def evict(self) -> None:
        """Enqueue work that evicts all data from the last-level cache."""

    def capture(self, run: Run) -> Run:
        """Capture the work that ``run`` enqueues as one launch of the device's library; the CPU returns ``run`` itself.

        Args:
            run: Enqueues work that needs neither new memory nor the host.

        Raises:
            BackendError: It cannot be captured.
        """

    def limit(self, memory_bytes: int) -> None:
        """Limit the further memory of this process; on a GPU, the memory of the GPU's allocators.

        A limit on the address space of a process would break CUDA.
        """
