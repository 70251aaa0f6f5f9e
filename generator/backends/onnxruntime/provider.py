"""ONNX Runtime's execution providers: the CPU's, and CUDA's with its options; whether the latter can be used here."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper

from ....errors import BackendUnavailable
from ...device.opening import open_device
from ...machine.nvidia import lacks_of_gpu
from ..base import Settings

__all__ = ["CPU", "CUDA", "Provider", "cuda_options", "missing_for_cuda", "providers", "require_cuda", "streaming"]

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

Provider = str | tuple[str, dict[str, str]]
"""A provider as a session takes it, with options or without."""

_LIBRARY = "libonnxruntime_providers_cuda.so"


def missing_for_cuda() -> str:
    """What the installed package lacks to run on an NVIDIA GPU here, in one line; empty where nothing is known to."""
    lacks = lacks_of_gpu()
    if not any((folder / "capi" / _LIBRARY).exists() for folder in _folders("onnxruntime")):
        lacks.insert(0, "package onnxruntime-gpu is not installed")
    return "; ".join(lacks)


def providers(settings: Settings) -> list[Provider]:
    """Those of a session, best first; on a GPU what CUDA's cannot compute falls back to the CPU's."""
    if settings.device == "cpu":
        return [CPU]
    return [(CUDA, cuda_options(settings.options, open_device("cuda").stream)), CPU]


def cuda_options(options: Mapping[str, str], stream: int) -> dict[str, str]:
    """Options of the CUDA provider.

    Args:
        options: Effective ones of the backend.
        stream: Handle of the stream that the session is to enqueue in.
    """
    return {
        "device_id": "0",
        "user_compute_stream": str(stream),
        "arena_extend_strategy": "kSameAsRequested",  # many sessions share the GPU: none takes twice what it needs
        "use_tf32": _flag(options["tf32"] == "on"),
        "prefer_nhwc": _flag(options["layout"] == "channels_last"),
        "cudnn_conv_algo_search": options["conv_search"].upper(),
        "enable_cuda_graph": _flag(options["mode"] == "graph"),
    }


def streaming(settings: Settings) -> Settings:
    """The settings without CUDA graphs, which hide nodes from the profile and demand that none falls back."""
    if "mode" not in settings.options:
        return settings
    return replace(settings, options={**settings.options, "mode": "stream"})


def require_cuda() -> None:
    """Load the CUDA provider, with a session of its own.

    Raises:
        BackendUnavailable: This build has none, it cannot be loaded, or there is no GPU.
    """
    import onnxruntime as ort

    stream = open_device("cuda").stream
    if CUDA not in ort.get_available_providers():
        raise BackendUnavailable(
            f"ONNX Runtime {ort.__version__} is built without CUDA",
            remedy="pip uninstall onnxruntime, then pip install onnxruntime-gpu",
        )
    _preload(ort)
    refused = BackendUnavailable(
        f"ONNX Runtime {ort.__version__} cannot load its CUDA provider",
        remedy=f"install CUDA {getattr(ort, 'cuda_version', '')} and cuDNN 9, such as with "
        "pip install 'onnxruntime-gpu[cuda,cudnn]'",
    )
    chosen = [(CUDA, {"user_compute_stream": str(stream)}), CPU]
    try:
        session = ort.InferenceSession(_smallest(), providers=chosen, enable_fallback=0)
    except Exception as error:
        raise refused from error
    if CUDA not in session.get_providers():
        raise refused


def _preload(ort: Any) -> None:
    """Load CUDA's libraries from NVIDIA's packages, wherever these are; the runtime prints what it does not find."""
    if not hasattr(ort, "preload_dlls"):
        return
    with redirect_stdout(io.StringIO()):
        for folder in sorted(path for package in _folders("nvidia") for path in package.glob("*/lib")):
            ort.preload_dlls(directory=str(folder))
        ort.preload_dlls()


def _folders(package: str) -> Sequence[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations if spec is not None else None) or ()]


def _smallest() -> bytes:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "smallest", value[:1], value[1:])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = model.SerializeToString()
    return data


def _flag(on: bool) -> str:  # noqa: FBT001
    return "1" if on else "0"
