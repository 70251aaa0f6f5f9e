"""Networks computed in the process of a test, which is never bound to a core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from dlbricks.generator.backends.base import Backend, Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.machine.cores import physical_cores
from dlbricks.generator.network.network import Network
from working import UNPINNED

Array = np.ndarray[Any, Any]


def settings(
    backend: Backend | None = None, *, threads: int = 1, dtype: str = "float32", together: bool = False, **options: str
) -> Settings:
    """Settings for the CPU, of ONNX Runtime unless another backend is given."""
    effective = (backend or OrtBackend()).resolve("cpu", {**UNPINNED, **options})
    return Settings("cpu", threads, effective, physical_cores(), dtype=dtype, together=together)


def computed(network: Network, backend: Backend | None = None, chosen: Settings | None = None) -> list[Array]:
    """What a backend computes: outputs are bound after the first run, and later runs must write the same."""
    backend = backend or OrtBackend()
    executable = backend.prepare(network, chosen or settings(backend))
    try:
        for _ in range(2):
            executable.run()
        executable.synchronize()
        found = executable.outputs()
        assert (executable.output_bytes() > 0) == any(one.nbytes for one in found)
        return found
    finally:
        executable.close()


def by_name(network: Network, backend: Backend | None = None) -> dict[str, Array]:
    """What a backend computes, by the names of the outputs."""
    return dict(zip(network.outputs, computed(network, backend), strict=True))


def session(model: onnx.ModelProto | bytes | Path, **options: Any) -> ort.InferenceSession:
    """A session of ONNX Runtime itself, quiet, with options by name."""
    chosen = ort.SessionOptions()
    for name, value in {"log_severity_level": 4, **options}.items():
        setattr(chosen, name, value)
    given = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return ort.InferenceSession(given, chosen, providers=["CPUExecutionProvider"])


def assert_alike(found: Sequence[Array], expected: Sequence[Array], limit: float = 1e-5) -> None:
    """As many arrays, of the same shapes and types, each as near as a share of its largest value."""
    assert [(one.shape, one.dtype) for one in found] == [(one.shape, one.dtype) for one in expected]
    for one, other in zip(found, expected, strict=True):
        if other.dtype.kind not in "fV":
            np.testing.assert_array_equal(one, other)
            continue
        exact = other.astype(np.float64)
        largest = np.abs(exact).max(initial=0)
        np.testing.assert_allclose(one.astype(np.float64), exact, rtol=0, atol=limit * largest)


def operators(network: Network) -> list[str]:
    """The operators of a network, in order."""
    assert network.model is not None
    return [node.op_type for node in network.model.graph.node]
