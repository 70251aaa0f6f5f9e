"""The stages of a visit, in the order of their value, and the packages that a visit needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WHEELS = (
    "numpy", "onnx", "ml_dtypes", "protobuf", "typing_extensions", "onnx-graphsurgeon", "packaging", "onnxruntime",
    "flatbuffers", "psutil", "sqlalchemy", "msgspec", "networkx", "pytest", "iniconfig", "pluggy", "pygments",
    "hypothesis", "sortedcontainers",
)  # fmt: skip
"""What a machine with PyTorch and CuPy may lack (docs/how-to/gpu.md); the last six are for GPU tests only."""

_GRAPH = {"mode": "graph"}
_TF32 = {"tf32": "on"}
_LAST = {"layout": "channels_last"}
_LIBRARIES = ("cudnn", "cublas", "cupy")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    Attributes:
        name: Name of the stage.
        kind: ``stack``, ``tests`` (of the GPU), ``agreement`` (of bricks with the CPU), ``bricks`` (alternating with
            models), ``kernels`` (of both), ``models`` (alone), ``plans`` (of a library for a brick),
            ``fastest`` (bricks with their fastest plan) or ``ceilings`` (of the machine).
        seconds: Seconds that it may use in a visit while other stages wait.
        dtype: Precision.
        cache: Cache state.
        options: Options of the backend.
        batch: Batch; None: the models' own.
        backend: Backend; None: the visit's.
        models: Measure the models, too; libraries of kernels run bricks alone.
        granularity: Most layers of a brick. Above 1, only fusions of a product, or attention above 3.
        threads: Threads of the processor, for a stage without the GPU; None: the visit's threads and device.
        graph: Graph that the models are cut along: their own, or with strided views in their readers (``fused``).
    """

    name: str
    kind: str
    seconds: float
    dtype: str = "float32"
    cache: str = "model"
    options: Mapping[str, str] = field(default_factory=dict)
    batch: int | None = None
    backend: str | None = None
    models: bool = True
    granularity: int = 1
    threads: int | None = None
    graph: str = "source"


def stages(batches: Sequence[int]) -> list[Stage]:
    """Return all stages, the most valuable first. New measurements come before repeated ones.

    Args:
        batches: Larger batches.
    """
    half: Any = {"dtype": "float16", "options": _GRAPH}
    alone: Any = {"models": False}
    cudnn: Any = {"dtype": "float16", "backend": "cudnn", "models": False}
    return [
        Stage("stack", "stack", 5),
        Stage("tests", "tests", 60),
        *(Stage(f"agreement-{name}", "agreement", 45, backend=name) for name in _LIBRARIES),
        Stage("cudnn-float16", "bricks", 150, options=_GRAPH, **cudnn),
        Stage("float16-channels_last-graph", "bricks", 50, "float16", options={**_LAST, **_GRAPH}),
        Stage("float32-benchmark-graph", "models", 40, options={"benchmark": "on", **_GRAPH}),
        Stage("fused-cudnn-float16", "bricks", 90, options={**_LAST, **_GRAPH}, granularity=3, **cudnn),
        Stage("views-float16-graph", "bricks", 60, graph="fused", **half),
        Stage("fused-float16", "bricks", 60, granularity=3, **half, **alone),
        Stage("attention-cudnn-float16", "bricks", 30, options=_GRAPH, granularity=5, **cudnn),
        Stage("plans-cudnn-float16", "plans", 90, **cudnn),
        Stage("fastest-cudnn-float16", "fastest", 60, options=_GRAPH, **cudnn),
        Stage("plans-cublas-float16", "plans", 20, "float16", backend="cublas", models=False),
        Stage("plans-cudnn-float32", "plans", 40, backend="cudnn", models=False),
        Stage("float16-graph", "bricks", 60, **half),
        Stage("kernels-float16-graph", "kernels", 30, **half),
        Stage("tf32-graph", "bricks", 45, options={**_TF32, **_GRAPH}),
        Stage("kernels-tf32-graph", "kernels", 30, options={**_TF32, **_GRAPH}),
        *(Stage(f"float16-graph-b{batch}", "bricks", 125, batch=batch, **half) for batch in batches),
        Stage("float16-compiled", "models", 171, "float16", options={"mode": "compile-graph"}),
        Stage("bfloat16-graph", "bricks", 54, "bfloat16", options=_GRAPH),
        *(Stage(f"cpu-{threads}", "bricks", 60, backend="onnxruntime", threads=threads) for threads in (4, 16)),
        # What visits before had measured, for another driver or library:
        Stage("float32-graph", "bricks", 60, options=_GRAPH),
        Stage("float32", "bricks", 60),
        *(Stage(f"{name}-float32", "bricks", 60, backend=name, options=_GRAPH, models=False) for name in _LIBRARIES),
        *(Stage(f"ceilings-{dtype}", "ceilings", 15, dtype, cache="hot") for dtype in ("float32", "float16")),
        Stage("ceilings-tf32", "ceilings", 15, options=_TF32, cache="hot"),
        *(Stage(f"{dtype}-branches", "models", 45, dtype, options={"mode": "branches"}) for dtype in
          ("float32", "float16")),
        Stage("float32-compiled", "models", 171, options={"mode": "compile-graph"}),
    ]  # fmt: skip
