"""How quiet the machine is: two short computations of our own, one that calculates and one that reads memory.

What disturbs a machine shows nowhere else: neither in its load, nor in its frequency, nor in steal time. The probes
classify visits; nothing is ever divided by them.
"""

from __future__ import annotations

import time

import numpy as np

__all__ = ["Probe"]

_ELEMENTS = 16_384
"""64 KiB of numbers: arithmetic in a core's own cache, some 20 microseconds."""

_READ_BYTES = 256 << 10
_BUFFER_BYTES = 32 << 20
"""Each probe reads the next 256 KiB of so much memory, which nothing else touches: some 30 microseconds."""

_REPEATS = 2
"""Of which the first finds the caches full of something else, and does not count."""


class Probe:
    """Takes both probes, and remembers the latest."""

    def __init__(self) -> None:
        self._numbers = np.linspace(0.1, 1.0, _ELEMENTS, dtype=np.float32)
        self._result = np.empty_like(self._numbers)
        self._memory = np.ones(_BUFFER_BYTES // 8, dtype=np.int64)
        self._place = 0

    def __call__(self) -> tuple[int, int]:
        """Nanoseconds of arithmetic and of memory, now."""
        compute_ns = 0
        for _ in range(_REPEATS):
            begin = time.perf_counter_ns()
            np.sqrt(self._numbers, out=self._result)
            np.divide(self._numbers, self._result, out=self._result)
            compute_ns = time.perf_counter_ns() - begin
        count = _READ_BYTES // 8
        begin = time.perf_counter_ns()
        int(self._memory[self._place : self._place + count].max())
        memory_ns = time.perf_counter_ns() - begin
        self._place = (self._place + count) % self._memory.size
        return compute_ns, memory_ns
