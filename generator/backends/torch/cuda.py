"""PyTorch on a GPU: whether it can be used, found without loading it; the stream that it works in; graphs of it."""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import importlib.util
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from ....errors import BackendError
from ...device.device import Device, Run
from ...machine.nvidia import lacks_of_gpu

__all__ = ["as_graph", "built_without_cuda", "enter_stream", "missing_for_torch"]

_CUDA = re.compile(r"^cuda\b[^=\n]*=(.*)$", re.MULTILINE)


def built_without_cuda(version: Path) -> bool:
    """Whether a build of PyTorch has no CUDA.

    The versions of its packages do not always show it: the index that one came from decides. Its build writes down what
    it was built for.

    Args:
        version: Its file ``torch/version.py``; where it cannot be read, or does not say, the answer is no.
    """
    try:
        found = _CUDA.search(version.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False
    return found is not None and found.group(1).strip() == "None"


def missing_for_torch() -> str:
    """What the installed PyTorch lacks to run on an NVIDIA GPU here, in one line; empty where nothing is known to."""
    spec = importlib.util.find_spec("torch")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    lacks = lacks_of_gpu()
    if any(built_without_cuda(Path(folder) / "version.py") for folder in folders):
        lacks.insert(0, "built without CUDA")
    return "; ".join(lacks)


def enter_stream(device: Device) -> None:
    """Have PyTorch enqueue in a device's stream from now on, in this thread."""
    import torch

    torch.cuda.set_stream(torch.cuda.ExternalStream(device.stream))


def as_graph(run: Run) -> Run:
    """What ``run`` enqueues in the current stream, as one CUDA graph.

    PyTorch captures it itself, so that its allocator keeps the graph's memory apart.

    Args:
        run: It was run before: nothing is compiled, chosen or allocated by the driver any more.

    Raises:
        BackendError: Something in it cannot be captured, such as a copy to the host.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        run()
    except BaseException as error:
        _abandon(graph)
        if isinstance(error, BackendError | MemoryError):
            raise
        raise BackendError(f"this cannot be captured as a CUDA graph: {' '.join(str(error).split())}") from error
    graph.capture_end()

    def launch() -> None:
        graph.replay()

    return launch


def _abandon(graph: Any) -> None:
    """End a capture that failed: the stream cannot be used before."""
    with suppress(Exception):  # it says once more that the capture failed
        graph.capture_end()
