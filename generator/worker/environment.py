"""The environment of a worker: what changes a latency and is recorded nowhere stays out of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["worker_environment"]

_RUNTIMES = (
    "OMP_", "GOMP_", "KMP_", "LIBOMP_", "TBB_", "MKL_", "MKLDNN_", "DNNL_", "ONEDNN_", "OPENBLAS_", "GOTO_", "BLIS_",
    "ORT_", "OV_", "OPENVINO_", "MXNET_", "TVM_", "ATEN_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "PYTORCH_",
    "TRITON_", "LRU_CACHE_CAPACITY", "NPY_", "NUMPY_MADVISE_",
)  # fmt: skip
"""By these, runtimes and the libraries inside them choose threads, kernels, precisions and pages."""

_GPU = (
    "CUBLAS_", "CUBLASLT_", "CUDNN_", "CUPY_TF32", "CUPY_ACCELERATORS", "NVIDIA_TF32_OVERRIDE", "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "CUDA_FORCE_PTX_JIT", "CUDA_DISABLE_PTX_JIT",
    "CUDA_INJECTION", "NVTX_INJECTION",
)  # fmt: skip
"""Likewise on a GPU; the last two load a profiler into the process. Which GPU is seen stays the user's choice."""

_ALLOCATORS = ("MALLOC_", "GLIBC_TUNABLES", "TCMALLOC_", "JEMALLOC_", "_RJEM_MALLOC_", "MIMALLOC_")
"""How memory is taken and given back: arenas, thresholds of mmap and trim, huge pages, checks of every block."""

_LOADER = "LD_"
"""Of the dynamic linker: libraries loaded before all others (another allocator, a tracer), when symbols are bound."""

_PYTHON = (
    "PYTHONMALLOC", "PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONPERFSUPPORT", "PYTHON_PERF_JIT_SUPPORT",
    "PYTHON_JIT", "PYTHON_GIL",
)  # fmt: skip
"""What slows or changes the interpreter that calls the runtime."""

_DROPPED = (*_RUNTIMES, *_GPU, *_ALLOCATORS, _LOADER, *_PYTHON)

_KEPT = frozenset({
    "ORT_DISABLE_TELEMETRY", "LD_LIBRARY_PATH", "KMP_DUPLICATE_LIB_OK", "TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH",
    "CUDNN_PATH",
})  # fmt: skip
"""Of these, a user's will that changes no latency, and without which a runtime may not load."""

_PAGES = {"NUMPY_MADVISE_HUGEPAGE": "0"}
"""NumPy asks for huge pages under its arrays, where a kernel grants them on request. A runtime's weights may come to
lie on them by accident, where it takes memory that an array has left, and not in a model that it loads by itself: of a
decoder that reads its weights for one token pages decide a quarter of the time (docs/measuring.md)."""

_QUIET = {"ORT_DISABLE_TELEMETRY": "1"}
"""Unless the user says otherwise. ONNX Runtime else writes an identity of the machine and a database of what it ran
into the home folder, as soon as it is imported."""


def worker_environment(
    temporary: Path, *, given: Mapping[str, str] | None = None, own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What a worker is started with.

    A measurement must say what it was taken under, and no stack records these variables: what is to take effect is an
    option of the backend. They are left out before the worker exists, since the C library, the dynamic linker and the
    interpreter read theirs once, at the start.

    Args:
        temporary: The worker's own temporary folder, so that what a runtime leaves there goes with it.
        given: The variables to choose from; None: those of this process.
        own: Those that an option of the backend stands for.
    """
    variables = os.environ if given is None else given
    kept = {name: value for name, value in variables.items() if name in _KEPT or not name.startswith(_DROPPED)}
    return {**_QUIET, **kept, **_PAGES, **(own or {}), "TMPDIR": str(temporary)}
