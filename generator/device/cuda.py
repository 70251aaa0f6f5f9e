"""An NVIDIA GPU through CuPy (for CUDA 12 or 13): a separate stream, time stamps in it, and graphs.

Kernels of one thread measure time: they write the GPU's clock (PTX, ``%globaltimer``), eagerly and inside graphs. Its
step depends on the GPU and its driver (32 ns on an H100, a microsecond on others), so another kernel measures it once.
Events of CUDA measure time too, but delay the work after them: on an H100 the distance of two events was 1.3 or 2.4
microseconds, depending on the work around them. The distance of two such kernels equals that of any two kernels in a
row (docs/how-to/gpu.md).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...errors import BackendError, BackendUnavailable
from .device import Over, Run

_EVICTED = 2
"""Caches are evicted by writing so many times their size."""


_SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {}
}
"""


_STAMP = r"""
extern "C" __global__ void stamp(unsigned long long* place) {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    *place = now;
}
"""

_STEP = r"""
extern "C" __global__ void step(unsigned long long* place) {
    unsigned long long last, now, least = ~0ULL;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(last));
    for (int changes = 0; changes < 32;) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (now == last) continue;
        if (now - last < least) least = now - last;
        last = now;
        ++changes;
    }
    *place = least;
}
"""

_PAGE = 1024
"""Stamps that are read from the GPU together."""


@dataclass(slots=True, eq=False)
class _Page:
    """Memory for some stamps.

    Attributes:
        places: Array of CuPy on the GPU.
        used: Number of used places.
        read: Number of the last ``synchronize`` after which the values were read, and these values.
    """

    places: Any
    used: int = 0
    read: tuple[int, Any] = (-1, None)


@dataclass(frozen=True, slots=True, eq=False)
class _Stamp:
    """A point in the stream: the place of its time on the GPU, 0 until it is written."""

    page: _Page
    number: int
    place: Any


class CudaDevice:
    """The first GPU that this process may use (see ``Device``).

    Raises:
        BackendUnavailable: CuPy is not installed, or finds no GPU.
    """

    name = "cuda"

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            raise BackendUnavailable(
                f"CuPy cannot be loaded: {error}", remedy="pip install cupy-cuda12x or cupy-cuda13x"
            ) from error
        try:
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._properties: Mapping[str, Any] = cupy.cuda.runtime.getDeviceProperties(0)
            self._cupy = cupy
            self._page = self._blank()
            self._stamp = cupy.RawKernel(_STAMP, "stamp")
            self.record(self.event())  # a kernel cannot be loaded while a graph is captured
            with self._stream:
                step = cupy.zeros(1, dtype=cupy.uint64)
                cupy.RawKernel(_STEP, "step")((1,), (1,), (step,))
            self._stream.synchronize()
            self.resolution_ns = float(step[0])
        except (cupy.cuda.runtime.CUDARuntimeError, OSError) as error:
            raise BackendUnavailable(f"CUDA finds no GPU: {error}", remedy="use --device cpu") from error
        self.stream: int = self._stream.ptr
        self.cache_bytes: int = self._properties["l2CacheSize"]
        self._waits = 0
        self._ends = self.event(), self.event()
        self._swept: Any = None
        self._spin: Any = None

    def event(self) -> _Stamp:
        """Return a place for a time stamp (see ``Device``)."""
        if self._page.used == _PAGE:
            self._page = self._blank()
        number, self._page.used = self._page.used, self._page.used + 1
        return _Stamp(self._page, number, self._page.places[number:])

    def record(self, event: _Stamp) -> None:
        """Enqueue a kernel that writes the time, in the stream or its captured graph (see ``Device``)."""
        with self._stream:
            self._stamp((1,), (1,), (event.place,))

    def elapsed_ns(self, begin: _Stamp, end: _Stamp) -> float:
        """Return the difference by the GPU's clock (see ``Device``)."""
        first, last = self._time(begin), self._time(end)
        if not (first and last):
            raise BackendError("a time was asked for that the GPU has not written")
        return float(last - first)

    def synchronize(self) -> None:
        """Wait for the stream (see ``Device``)."""
        try:
            self._stream.synchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise BackendError(f"the GPU failed: {error}") from error
        self._waits += 1

    def timed_ns(self, run: Run, synchronize: Run) -> float:  # noqa: ARG002  # the end is a stamp as well
        """Measure between two stamps (see ``Device``)."""
        self.record(self._ends[0])
        run()
        self.record(self._ends[1])
        self.synchronize()
        return self.elapsed_ns(*self._ends)

    def hold(self, ns: float) -> Over:
        """Enqueue one thread that counts cycles (see ``Device``)."""
        if self._spin is None:
            self._spin = self._cupy.RawKernel(_SPIN, "spin")
        cycles = int(ns * self._properties["clockRate"] / 1e6)
        with self._stream:
            self._spin((1,), (1,), (self._cupy.int64(cycles),))
        over = self._cupy.cuda.Event(disable_timing=True)
        over.record(self._stream)
        return lambda: bool(over.done)

    def evict(self) -> None:
        """Write twice the L2 (see ``Device``)."""
        if self._swept is None:
            with self._stream:
                self._swept = self._cupy.zeros(_EVICTED * self.cache_bytes, dtype=self._cupy.uint8)
        with self._stream:
            self._swept += 1

    def capture(self, run: Run) -> Run:
        """Capture a CUDA graph (see ``Device``)."""
        try:
            with self._stream:
                self._stream.begin_capture()
                try:
                    run()
                finally:
                    graph = self._stream.end_capture()
        except (BackendError, MemoryError):
            raise
        except Exception as error:  # CuPy refuses some libraries there, by exceptions of several kinds
            raise BackendError(f"this cannot be captured as a CUDA graph: {' '.join(str(error).split())}") from error

        def launch() -> None:
            graph.launch(self._stream)

        return launch

    def limit(self, memory_bytes: int) -> None:
        """Limit CuPy's allocator, and PyTorch's if it is loaded (see ``Device``)."""
        self._cupy.get_default_memory_pool().set_limit(size=memory_bytes)
        torch = sys.modules.get("torch")
        if torch is not None:
            whole = self._properties["totalGlobalMem"]
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory_bytes / whole))

    def _blank(self) -> _Page:
        with self._stream:
            return _Page(self._cupy.zeros(_PAGE, dtype=self._cupy.uint64))

    def _time(self, stamp: _Stamp) -> int:
        """Return the stamp as written before the last ``synchronize``, in nanoseconds."""
        when, values = stamp.page.read
        if when != self._waits:
            with self._stream:
                values = self._cupy.asnumpy(stamp.page.places)
            stamp.page.read = (self._waits, values)
        return int(values[stamp.number])


@cache
def cuda_device() -> CudaDevice:
    """Return the only device of this process."""
    return CudaDevice()
