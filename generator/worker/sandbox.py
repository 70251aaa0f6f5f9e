"""What a worker does to its own process before it touches anything untrusted."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

__all__ = ["confine", "shed_variables", "take_streams"]

_PR_SET_PDEATHSIG = 1

_TUNING = (
    "OMP_", "GOMP_", "KMP_", "TBB_", "MKL_", "MKLDNN_", "DNNL_", "ONEDNN_", "OPENBLAS_", "GOTO_", "BLIS_",
    "ORT_", "OV_", "OPENVINO_", "MXNET_", "TVM_", "ATEN_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_",
    "LRU_CACHE_CAPACITY", "CUBLAS_", "CUBLASLT_", "CUDNN_", "CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip
"""Environment variables by which runtimes and the libraries inside them choose threads, kernels and precisions."""

_KEPT = frozenset({"ORT_DISABLE_TELEMETRY"})
"""Of these, what changes no latency but says a user's will."""


def confine() -> None:
    """Leave Ctrl-C to the parent, write no core files, and die with the parent's thread that started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def shed_variables() -> None:
    """Drop the environment variables that tune a runtime, before one is loaded.

    They change latencies, and no stack records them: what is to take effect is an option of the backend.
    """
    for name in [name for name in os.environ if name.startswith(_TUNING) and name not in _KEPT]:
        del os.environ[name]


@contextmanager
def take_streams() -> Iterator[tuple[IO[str], IO[str]]]:
    """The protocol's streams, moved off descriptors 0 and 1.

    Afterwards descriptor 0 is empty and descriptor 1 is standard error: a library that prints, from Python or from
    C++, cannot break a reply.
    """
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    with os.fdopen(requests, encoding="utf-8") as source, os.fdopen(replies, "w", encoding="utf-8") as sink:
        yield source, sink
