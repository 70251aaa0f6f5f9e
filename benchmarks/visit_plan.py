"""The stages of a visit, in the order of their value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_GRAPH = {"mode": "graph"}
_BRANCHES = {"mode": "branches"}
_TF32 = {"tf32": "on"}
_LAST = {"layout": "channels_last"}
_PRECISIONS: Any = (("float32", "float32", {}), ("float16", "float16", {}), ("tf32", "float32", _TF32))
"""Name, type and options of the precisions of a GPU's libraries."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    Attributes:
        name: Name of the stage.
        kind: ``stack``, ``agreement`` (of bricks), ``bricks`` (alternating with the models), ``kernels`` (of these),
            ``models`` (alone), ``plans`` (all plans of a library for a brick), ``findings`` (remedies tried on the
            models) or ``ceilings`` (of the machine).
        share: Share of the visit that it may use while other stages wait.
        dtype: Precision.
        cache: Cache state.
        options: Options of the backend.
        batch: Batch; None: the models' own.
        backend: Backend; None: the visit's.
        models: Measure the models, too; libraries of kernels run bricks alone.
        algorithms: Measure bricks with each algorithm of the backend as well.
    """

    name: str
    kind: str
    share: float
    dtype: str = "float32"
    cache: str = "model"
    options: Mapping[str, str] = field(default_factory=dict)
    batch: int | None = None
    backend: str | None = None
    models: bool = True
    algorithms: bool = False


def stages(batches: Sequence[int], device: str) -> list[Stage]:
    """Return all stages, the most valuable first; kernels and findings follow the stage that they belong to.

    Args:
        batches: Larger batches.
        device: The device; stages for GPUs are left out on the CPU.
    """
    dtypes = ("float32", "bfloat16", "float16")
    return [
        Stage("stack", "stack", 0.05),
        *(_gpu(batches) if device == "cuda" else ()),
        *(Stage(f"agreement-{dtype}", "agreement", 0.12, dtype) for dtype in dtypes),
        Stage("float32", "bricks", 0.25),
        *([] if device == "cuda" else [Stage("ceilings", "ceilings", 0.1, cache="hot")]),
        Stage("findings-float32", "findings", 0.2),
        Stage("float32-hot", "bricks", 0.25, cache="hot"),
        Stage("bfloat16", "bricks", 0.2, "bfloat16"),
        Stage("float16", "bricks", 0.2, "float16"),
        Stage("tf32", "bricks", 0.2, options=_TF32),
        Stage("float32-channels_last", "bricks", 0.2, options=_LAST),
        Stage("bfloat16-channels_last", "bricks", 0.2, "bfloat16", options=_LAST),
        *(Stage(f"kernels-{dtype}", "kernels", 0.15, dtype) for dtype in dtypes),
        *(Stage(f"{dtype}-b{batch}", "bricks", 0.2, dtype, batch=batch) for batch in batches for dtype in dtypes),
        *(Stage(f"{dtype}-compile", "models", 0.3, dtype, options={"mode": "compile"}) for dtype in dtypes[:2]),
    ]


def _gpu(batches: Sequence[int]) -> list[Stage]:
    """Return the stages for GPUs only: CUDA graphs, and libraries of kernels."""
    libraries = [
        Stage(f"{name}-{dtype}", "bricks", 0.15, dtype, backend=name, models=False, options=_GRAPH)
        for dtype in ("float32", "float16")
        for name in ("cudnn", "cublas", "cupy")
    ]
    plans = [
        Stage(f"plans-{name}-{label}", "plans", 0.12, dtype, backend=name, models=False, options=options)
        for label, dtype, options in _PRECISIONS
        for name in ("cudnn", "cublas")
    ]
    compiled = [
        Stage(f"{label}-compiled", "models", 0.25, dtype, options={**options, "mode": "compile-graph"})
        for label, dtype, options in _PRECISIONS
    ]
    return [
        Stage("float32-graph", "bricks", 0.28, options=_GRAPH),
        Stage("float32-branches", "models", 0.1, options=_BRANCHES),
        Stage("onnxruntime-float32", "models", 0.1, options=_GRAPH, backend="onnxruntime"),
        Stage("float16-graph", "bricks", 0.28, "float16", options=_GRAPH),
        Stage("float16-branches", "models", 0.1, "float16", options=_BRANCHES),
        Stage("tf32-graph", "bricks", 0.28, options={**_TF32, **_GRAPH}),
        *(Stage(f"ceilings-{dtype}", "ceilings", 0.05, dtype, cache="hot") for dtype in ("float32", "float16")),
        Stage("ceilings-tf32", "ceilings", 0.05, options=_TF32, cache="hot"),
        Stage("findings-float32-graph", "findings", 0.2, options=_GRAPH),
        Stage("findings-float16-graph", "findings", 0.2, "float16", options=_GRAPH),
        compiled[0],
        Stage("float32", "bricks", 0.28),
        *libraries[:3],
        *plans[:2],
        Stage("bfloat16-graph", "bricks", 0.28, "bfloat16", options=_GRAPH),
        *plans[2:4],
        Stage("onnxruntime-float16", "models", 0.1, "float16", options=_GRAPH, backend="onnxruntime"),
        Stage("onnxruntime-tf32", "models", 0.1, options={**_TF32, **_GRAPH}, backend="onnxruntime"),
        *(stage for batch in batches for stage in _larger(batch)),
        *compiled[1:],
        Stage("agreement-bfloat16", "agreement", 0.12, "bfloat16"),
        *(Stage(f"agreement-{name}", "agreement", 0.12, backend=name) for name in ("cudnn", "cublas", "cupy")),
        *plans[4:],
        Stage("float32-channels_last-graph", "bricks", 0.2, options={**_LAST, **_GRAPH}),
        Stage("float16-channels_last-graph", "bricks", 0.2, "float16", options={**_LAST, **_GRAPH}),
        Stage("float32-benchmark-graph", "models", 0.1, options={"benchmark": "on", **_GRAPH}),
        Stage("kernels-float32-graph", "kernels", 0.15, options=_GRAPH),
        *libraries[3:],
        Stage("onnxruntime-stream", "bricks", 0.3, backend="onnxruntime"),
    ]


def _larger(batch: int) -> list[Stage]:
    """Return the stages of one larger batch."""
    half: Any = {"dtype": "float16", "batch": batch}
    return [
        Stage(f"float16-graph-b{batch}", "bricks", 0.3, options=_GRAPH, **half),
        Stage(f"tf32-graph-b{batch}", "bricks", 0.3, options={**_TF32, **_GRAPH}, batch=batch),
        Stage(f"float16-channels_last-graph-b{batch}", "models", 0.1, options={**_LAST, **_GRAPH}, **half),
        Stage(f"tf32-channels_last-graph-b{batch}", "models", 0.1, options={**_TF32, **_LAST, **_GRAPH}, batch=batch),
        Stage(f"onnxruntime-float16-b{batch}", "models", 0.1, backend="onnxruntime", options=_GRAPH, **half),
        *(
            Stage(f"plans-{name}-float16-b{batch}", "plans", 0.15, backend=name, models=False, **half)
            for name in ("cudnn", "cublas")
        ),
        Stage(f"float32-graph-b{batch}", "bricks", 0.3, options=_GRAPH, batch=batch),
    ]
