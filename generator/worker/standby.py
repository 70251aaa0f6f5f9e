"""A worker that starts when it is first needed, again after one that failed, and ends with its context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ...db.values import NATIVE

if TYPE_CHECKING:
    from .client import Worker

__all__ = ["MODEL_MEMORY_BYTES", "Standby", "start_worker"]

MODEL_MEMORY_BYTES = 16 << 30
"""Memory limit of a worker that loads whole models."""


def start_worker(
    backend: str = "onnxruntime",
    *,
    device: str = "cpu",
    options: Mapping[str, str] | None = None,
    threads: int = 1,
    memory_bytes: int = MODEL_MEMORY_BYTES,
    together: bool = False,
    dtype: str = NATIVE,
    command: Sequence[str] | None = None,
) -> Worker:
    """A worker, greeted.

    Args:
        backend: Name of the runtime.
        device: One of its devices.
        options: Its own options.
        threads: Of the runtime; 0: all physical cores.
        memory_bytes: Limit of the worker.
        together: Whether its networks are visited in turn: they share threads.
        dtype: Precision that it computes in.
        command: Starts the process; None: as the backend says.

    Raises:
        UsageError: An option has a wrong value, or no backend has the name.
        BackendUnavailable: The runtime cannot be used here.
        WorkerError: It could not be started.
    """
    from ..backends.registry import get  # most models are decomposed without a worker: keep its imports away
    from .client import Worker

    return Worker.start(
        backend,
        device=device,
        options=options,
        threads=threads,
        memory_bytes=memory_bytes,
        together=together,
        dtype=dtype,
        command=get(backend).command() if command is None else command,
    )


class Standby:
    """Keeps one worker from one question to the next.

    Where a worker died, hung or hit its memory limit (``Worker.failed``), the next question finds another one; so it
    does after ``close`` and ``kill``.

    Args:
        start: Gives a new worker, ready to be asked.
    """

    def __init__(self, start: Callable[[], Worker]) -> None:
        self._start = start
        self._kept: Worker | None = None

    @property
    def worker(self) -> Worker:
        """The worker; started now where there is none, which raises as ``start_worker``."""
        if self._kept is not None and self._kept.failed:
            self.kill()
        if self._kept is None:
            self._kept = self._start()
        return self._kept

    def close(self) -> None:
        """End the worker in order."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def kill(self) -> None:
        """End the worker now."""
        if self._kept is not None:
            self._kept.kill()
            self._kept = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()
