"""An NVIDIA GPU through CuPy: a stream of its own, events in it, graphs of it.

CuPy is that of CUDA 12 or of CUDA 13. It has no external event records, which tell the time inside of a graph: the
driver is asked for these (CUDA Driver API, ``cuEventRecordWithFlags``).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ...errors import BackendError, BackendUnavailable
from ..machine.nvidia import DRIVER_LIBRARY
from ..machine.nvml import gpu_state
from .device import Run

__all__ = ["CudaDevice", "cuda_device"]

_EXTERNAL = 1
"""``CU_EVENT_RECORD_EXTERNAL``."""

_NS_PER_MS = 1e6

_EVICTED = 2
"""Caches are evicted by writing so many times their size."""


_SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {}
}
"""


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
            driver = ctypes.CDLL(DRIVER_LIBRARY)
        except (cupy.cuda.runtime.CUDARuntimeError, OSError) as error:
            raise BackendUnavailable(f"CUDA finds no GPU: {error}", remedy="use --device cpu") from error
        self._cupy = cupy
        self._record: Callable[..., int] = driver.cuEventRecordWithFlags
        self._record.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
        self.stream: int = self._stream.ptr
        self.cache_bytes: int = self._properties["l2CacheSize"]
        self._swept: Any = None
        self._spin: Any = None

    def event(self) -> Any:
        """A CUDA event with a time (see ``Device``)."""
        return self._cupy.cuda.Event()

    def record(self, event: Any) -> None:
        """In the stream, or in the graph that is captured of it (see ``Device``)."""
        if not self._stream.is_capturing():
            event.record(self._stream)
            return
        status = self._record(event.ptr, self.stream, _EXTERNAL)
        if status:
            raise BackendError(f"CUDA cannot record an event in a graph: error {status}")

    def passed(self, event: Any) -> bool:
        """CUDA tells without waiting (see ``Device``)."""
        return bool(event.done)

    def elapsed_ns(self, begin: Any, end: Any) -> float:
        """CUDA tells it to half a microsecond (see ``Device``)."""
        try:
            return float(self._cupy.cuda.get_elapsed_time(begin, end)) * _NS_PER_MS
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise BackendError(f"CUDA cannot tell the time between two events: {error}") from error

    def synchronize(self) -> None:
        """Wait for the stream (see ``Device``)."""
        try:
            self._stream.synchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise BackendError(f"the GPU failed: {error}") from error

    def timed_ns(self, run: Run, synchronize: Run) -> float:  # noqa: ARG002  # the end is an event as well
        """Between two events (see ``Device``)."""
        begin, end = self.event(), self.event()
        self.record(begin)
        run()
        self.record(end)
        self.synchronize()
        return self.elapsed_ns(begin, end)

    def hold(self, ns: float) -> None:
        """One thread that counts cycles (see ``Device``)."""
        if self._spin is None:
            self._spin = self._cupy.RawKernel(_SPIN, "spin")
        cycles = int(ns * self._properties["clockRate"] / 1e6)
        with self._stream:
            self._spin((1,), (1,), (self._cupy.int64(cycles),))

    def evict(self) -> None:
        """Write twice the L2 (see ``Device``)."""
        if self._swept is None:
            with self._stream:
                self._swept = self._cupy.zeros(_EVICTED * self.cache_bytes, dtype=self._cupy.uint8)
        with self._stream:
            self._swept += 1

    def capture(self, run: Run) -> Run:
        """A CUDA graph (see ``Device``)."""
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
        """Of CuPy's allocator, and of PyTorch's where it is loaded (see ``Device``)."""
        self._cupy.get_default_memory_pool().set_limit(size=memory_bytes)
        torch = sys.modules.get("torch")
        if torch is not None:
            whole = self._properties["totalGlobalMem"]
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory_bytes / whole))

    def state(self) -> Mapping[str, Any]:
        """What NVML tells (see ``Device``)."""
        return gpu_state()


@cache
def cuda_device() -> CudaDevice:
    """The one device of this process."""
    return CudaDevice()
