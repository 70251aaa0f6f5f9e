"""The shape oracle: what inference cannot tell, one execution in a worker does."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import onnx

from ..bricks.tensor import TensorType
from ..errors import BackendError, WorkerError
from .backends.registry import get
from .client import Worker

__all__ = ["WorkerOracle"]

_MEMORY_BYTES = 8 << 30


class WorkerOracle:
    """A ``ShapeOracle`` that executes a model once, with seeded weights and inputs, in a worker.

    The worker starts with the first question and ends with the context. A model that cannot be executed, or ends its
    worker, leaves its shapes unknown: ``problems`` tells why, and the layers are reported as skipped.

    Args:
        backend: Name of the runtime.
        memory_bytes: Limit of the worker.
        timeout_s: Limit of one execution, loading included.
    """

    def __init__(
        self, *, backend: str = "onnxruntime", memory_bytes: int = _MEMORY_BYTES, timeout_s: float = 60.0
    ) -> None:
        self._backend = backend
        self._memory_bytes = memory_bytes
        self._timeout_s = timeout_s
        self._worker: Worker | None = None
        self.problems: list[str] = []

    def __call__(self, model: onnx.ModelProto, names: Sequence[str]) -> Mapping[str, TensorType]:
        """Types of the named values; those that could not be found are missing."""
        with tempfile.TemporaryDirectory(prefix="dlbricks-oracle-") as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.SerializeToString())
            try:
                if self._worker is None:
                    self._worker = self._start()
                found = self._worker.values(path, names, timeout_s=self._timeout_s).types
            except BackendError as error:
                self.problems.append(str(error))
                return {}
            except WorkerError as error:
                self.problems.append(str(error))
                self.close()
                return {}
        return {name: TensorType(dtype, tuple(shape)) for name, (dtype, shape) in found.items()}

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> Worker:
        return Worker.start(self._backend, memory_bytes=self._memory_bytes, command=get(self._backend).command())
