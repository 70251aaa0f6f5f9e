"""The CPU as a device: the calling thread is the stream, and everything is done when its call returns."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...db.values import evicted_bytes
from ...errors import BackendError, UsageError
from ..machine.cores import allowed, last_level_bytes, limit_memory, pin, private_cache_bytes
from ..machine.nvml import gpu_state
from .device import Device, Over, Run

# The device of a name, and its state.


def open_device(name: str, cores: tuple[int, ...] = ()) -> Device:
    """Return the device of a name, for this process.

    Args:
        name: ``cpu`` or ``cuda``.
        cores: Processors; ``evict`` of the CPU sweeps their private caches. Empty: those of the thread's own core.

    Raises:
        UsageError: The name is unknown.
        BackendUnavailable: CuPy is not installed, or finds no GPU.
    """
    if name == "cpu":
        return HostDevice(cores)
    if name == "cuda":
        from .cuda import cuda_device

        return cuda_device()
    raise UsageError(f"there is no device {name!r}", remedy="use cpu or cuda")


def state_of(name: str) -> Mapping[str, Any]:
    """Return clocks, power, temperature and reasons for held clocks, without opening the device; empty if unknown."""
    return gpu_state() if name == "cuda" else {}


class HostDevice:
    """The calling thread (see ``Device``)."""

    name = "cpu"
    stream = 0
    resolution_ns = 0.0

    def __init__(self, cores: tuple[int, ...] = ()) -> None:
        self.cache_bytes = last_level_bytes()
        self._cores = cores
        self._evictor: Evictor | None = None

    def event(self) -> list[int]:
        """Return a place for a reading of the clock (see ``Device``)."""
        return []

    def record(self, event: list[int]) -> None:
        """Read the clock (see ``Device``)."""
        event[:] = [time.perf_counter_ns()]

    def elapsed_ns(self, begin: list[int], end: list[int]) -> float:
        """Return the time between two readings (see ``Device``)."""
        if not (begin and end):
            raise BackendError("an event was not recorded")
        return float(end[0] - begin[0])

    def synchronize(self) -> None:
        """Do nothing: all work is done already (see ``Device``)."""

    def timed_ns(self, run: Run, synchronize: Run) -> float:
        """Measure by the clock, until the end (see ``Device``)."""
        begin = time.perf_counter_ns()
        run()
        synchronize()
        return float(time.perf_counter_ns() - begin)

    def hold(self, ns: float) -> Over:  # noqa: ARG002
        """Do nothing: the caller is the device (see ``Device``)."""
        return _over

    def evict(self) -> None:
        """Stream through a buffer (see ``Evictor``)."""
        if self._evictor is None:
            self._evictor = Evictor(self._cores)
        self._evictor()

    def capture(self, run: Run) -> Run:
        """Return ``run`` itself: a launch saves nothing here (see ``Device``)."""
        return run

    def limit(self, memory_bytes: int) -> None:
        """Limit the private memory (see ``Device``)."""
        limit_memory(memory_bytes)


def _over() -> bool:
    return True


class Evictor:
    """A buffer that evicts the data in the caches of some cores, by streaming through it.

    The buffer is twice the last-level cache if this has at most 64 MiB. Larger caches are shared: streaming through
    2 x 260 MiB would take 100 ms per sample and evict the neighbours' data as well. Then the buffer is four times the
    private cache, and 'cold' means: not in the core's private caches.

    Args:
        cores: Logical processors. The calling thread evicts the private caches of each, and returns to its earlier
            processors. Empty: only the caches of its present core.
    """

    def __init__(self, cores: tuple[int, ...] = ()) -> None:
        size = evicted_bytes(last_level_bytes(), private_cache_bytes())
        self._buffer = np.ones(size // 8, dtype=np.int64)
        self._cores = cores
        self._home = tuple(sorted(allowed())) if cores else ()

    @property
    def nbytes(self) -> int:
        """Size of the buffer."""
        return self._buffer.nbytes

    def __call__(self) -> None:
        """Evict now."""
        for core in reversed(self._cores):
            pin((core,))
            np.add(self._buffer, 1, out=self._buffer)
        if self._cores:
            pin(self._home)
        else:
            np.add(self._buffer, 1, out=self._buffer)
