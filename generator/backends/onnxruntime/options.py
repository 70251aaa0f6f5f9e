"""Options of ONNX Runtime that can change a latency, and which of them are algorithms."""

from __future__ import annotations

from collections.abc import Mapping

from ..algorithms import PADDED, Algorithm
from ..base import TF32, Option
from ..huge_pages import HUGE_PAGES

__all__ = ["GPU_OPTIONS", "LEVELS", "OPTIONS", "algorithms"]

LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_SWITCH = ("on", "off")

_LEVEL = Option("optimization", "all", tuple(LEVELS), "graph optimisation level")

OPTIONS = (
    _LEVEL,
    Option("execution", "sequential", ("sequential", "parallel"), "whether independent nodes run in parallel"),
    Option("inter_op", "1", (), "threads for independent nodes, with execution=parallel"),
    Option("prepacking", "on", _SWITCH, "store weights as the kernels read them while a network is loaded"),
    Option("arena", "on", _SWITCH, "keep freed memory for the next allocation"),
    Option("memory_pattern", "on", _SWITCH, "plan all allocations of a run as one block"),
    Option("spinning", "on", _SWITCH, "idle threads spin for work before they sleep"),
    Option("denormal_as_zero", "off", _SWITCH, "treat denormal numbers as zero"),
    Option("pinning", "on", _SWITCH, "bind the threads to the first physical cores"),
    Option("binding", "bound", ("bound", "allocated"), "outputs: into buffers bound ahead, or allocated by each run"),
    HUGE_PAGES,
)
"""Part of every stack on the CPU."""

GPU_OPTIONS = (
    _LEVEL,
    Option("mode", "stream", ("stream", "graph"), "each run launches its kernels, or a CUDA graph of the session"),
    Option("layout", "contiguous", ("contiguous", "channels_last"), "of images, where the provider may choose"),
    Option(
        "conv_search",
        "exhaustive",
        ("exhaustive", "heuristic", "default"),
        "cuDNN's algorithm of a convolution: all are tried by the first run, it is asked for, or always the same",
    ),
    TF32,
)
"""Part of every stack on a GPU."""

_UNFUSED = ("unfused", "optimization", "disabled", "as it is written: nothing is optimised")
_PLAIN = ("basic", "optimization", "basic", "no fused operators: each writes its result for the next")

_ALGORITHMS = {
    "cpu": (
        _UNFUSED,
        _PLAIN,
        ("extended", "optimization", "extended", "fused operators in the network's own layout, not the blocked one"),
        ("full", "optimization", "all", "fused operators, and convolutions in the blocked layout"),
        ("packed", "prepacking", "on", "matrix products read weights that were packed ahead"),
        ("unpacked", "prepacking", "off", "matrix products read weights as they are stored, and pack as they go"),
    ),
    "cuda": (
        _UNFUSED,
        _PLAIN,
        ("full", "optimization", "all", "fused operators"),
        ("channels_last", "layout", "channels_last", "images with their channels last"),
        ("contiguous", "layout", "contiguous", "images with their channels first"),
        ("heuristic", "conv_search", "heuristic", "the algorithm that cuDNN suggests for a convolution"),
        ("searched", "conv_search", "exhaustive", "the algorithm that was fastest for a convolution when tried"),
    ),
}
"""Per device name, option, value and what is different: options that take effect for each session by itself."""


def algorithms(device: str, options: Mapping[str, str]) -> tuple[Algorithm, ...]:
    """Those that differ from what the effective options choose already, sorted by name."""
    found = (
        Algorithm(name, {option: value}, text)
        for name, option, value, text in _ALGORITHMS[device]
        if options[option] != value
    )
    return tuple(sorted((*found, *PADDED), key=lambda algorithm: algorithm.name))
