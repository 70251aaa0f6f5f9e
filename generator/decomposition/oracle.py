"""The shape oracle: one execution in a worker finds the types that inference does not."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import onnx

from ...bricks.tensor import ELEMENT_BITS, TensorType
from ...errors import BackendError, WorkerError
from ...models.subgraphs import all_graphs, all_nodes
from ..backends.custom_ops import asked
from ..worker.standby import Standby, start_worker

__all__ = ["WorkerOracle"]

_MEMORY_BYTES = 8 << 30
_RUNTIME = "onnxruntime"
"""Whose custom operators it knows."""


class WorkerOracle(Standby):
    """A ``ShapeOracle`` that executes a model once, with seeded weights and inputs, in a worker.

    The worker starts with the first question and ends with the context. A model that cannot be executed, or ends its
    worker, leaves its shapes unknown: ``problems`` says why, and the layers are reported as skipped.

    Args:
        backend: Name of the runtime.
        memory_bytes: Limit of the worker.
        timeout_s: Limit of one execution, loading included.
    """

    def __init__(self, *, backend: str = _RUNTIME, memory_bytes: int = _MEMORY_BYTES, timeout_s: float = 60.0) -> None:
        options = asked() if backend == _RUNTIME else None
        super().__init__(partial(start_worker, backend, options=options, memory_bytes=memory_bytes))
        self._timeout_s = timeout_s
        self.problems: list[str] = []

    def __call__(self, model: onnx.ModelProto, names: Sequence[str]) -> Mapping[str, TensorType]:
        """Types of the named values; those that could not be found, or that nothing needs, are missing."""
        names = _worth_running(model.graph, names)
        if not names:
            return {}
        with tempfile.TemporaryDirectory(prefix="dlbricks-oracle-") as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.SerializeToString())
            try:
                found = self.worker.values(path, names, timeout_s=self._timeout_s).types
            except (BackendError, WorkerError) as error:
                self.problems.append(str(error))
                return {}
        return {
            name: TensorType(dtype, tuple(shape)) for name, (dtype, shape) in found.items() if dtype in ELEMENT_BITS
        }


def _worth_running(graph: onnx.GraphProto, names: Sequence[str]) -> list[str]:
    """The names without optional outputs that nothing reads, such as the masks of Dropout."""
    read = {value.name for one in all_graphs(graph) for value in one.output}
    read.update(name for node in all_nodes(graph.node) for name in node.input)
    idle = {
        output
        for node in graph.node
        if any(output in read for output in node.output)
        for output in node.output
        if output not in read
    }
    return [name for name in names if name not in idle]
