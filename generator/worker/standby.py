"""A worker that starts when it is first needed, again after one that died, and ends with its context."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ...db.values import NATIVE

if TYPE_CHECKING:
    from .client import Worker

__all__ = ["MODEL_MEMORY_BYTES", "Standby"]

MODEL_MEMORY_BYTES = 16 << 30
"""Memory limit of a worker that loads whole models."""


class Standby:
    """Keeps one worker from one question to the next; ``close`` and ``kill`` end it, and the next starts another.

    Args:
        backend: Name of the runtime.
        device: One of its devices.
        options: Its own options.
        threads: Of the runtime; 0: all physical cores.
        memory_bytes: Limit of the worker.
        dtype: Precision that it computes in.
    """

    def __init__(
        self,
        backend: str = "onnxruntime",
        *,
        device: str = "cpu",
        options: Mapping[str, str] | None = None,
        threads: int = 1,
        memory_bytes: int = MODEL_MEMORY_BYTES,
        dtype: str = NATIVE,
    ) -> None:
        self._backend = backend
        self._device = device
        self._options = dict(options or {})
        self._threads = threads
        self._memory_bytes = memory_bytes
        self._dtype = dtype
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        """The worker, greeted; started now where there is none.

        Raises:
            UsageError: An option has a wrong value, or no backend has the name.
            BackendUnavailable: The runtime cannot be used here.
            WorkerError: It could not be started.
        """
        if self._worker is None:
            self._worker = self._started()
        return self._worker

    def _started(self) -> Worker:
        """A new worker, greeted."""
        from ..backends.registry import get  # most models are decomposed without a worker: keep its imports away
        from .client import Worker

        return Worker.start(
            self._backend,
            device=self._device,
            options=self._options,
            threads=self._threads,
            memory_bytes=self._memory_bytes,
            dtype=self._dtype,
            command=get(self._backend).command(),
        )

    def close(self) -> None:
        """End the worker in order."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def kill(self) -> None:
        """End the worker now."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()
