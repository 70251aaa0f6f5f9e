"""PyTorch: the network as straight-line code of PyTorch's functions, run eagerly or compiled.

The availability of a GPU is found without loading PyTorch.
"""
# ruff: noqa: TID251 - part of the backend that runs torch

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ....db.values import NATIVE, KernelView
from ....errors import BackendError, BackendUnavailable, UsageError
from ...device.device import Device, Run
from ...device.host import open_device
from ...machine.nvml import lacks_of_gpu
from ...network.network import Network
from ..base import (
    LAYOUTS,
    TF32,
    Algorithm,
    Backend,
    Executable,
    ExecutedGraph,
    OptimiserTraits,
    Option,
    Settings,
    bind,
    differing,
    released,
)

if TYPE_CHECKING:
    import torch

    from .torch_graph import TorchNetwork

_SWITCH = ("on", "off")

_OPTIONS = (
    Option("mode", "eager", ("eager", "compile"), "run the functions one by one, or compiled by TorchInductor"),
    Option("layout", "contiguous", ("contiguous", "channels_last"), "memory format of images and of their weights"),
    Option("onednn", "on", _SWITCH, "use oneDNN's kernels on the CPU"),
    Option("denormal_as_zero", "off", _SWITCH, "treat denormal numbers as zero"),
    Option("pinning", "on", _SWITCH, "bind the process to the first physical cores"),
)

_CPU = frozenset({"mode", "onednn"})
"""Options that a GPU does not need, or has in another form."""

_GPU_MODE = Option(
    "mode",
    "eager",
    ("eager", "compile", "graph", "compile-graph", "branches"),
    "functions one by one or compiled by TorchInductor, either as a CUDA graph, or one whose branches run side by side",
)

_GPU_OPTIONS = (
    TF32,
    Option("benchmark", "off", ("off", "on"), "convolutions try cuDNN's algorithms once, and take the fastest"),
)
"""Of a GPU alone: on the CPU there is nothing that they would change."""

_ONEDNN = (
    Algorithm("onednn-off", {"onednn": "off"}, "PyTorch's own kernels, without those of oneDNN"),
    Algorithm("onednn-on", {"onednn": "on"}, "oneDNN's kernels"),
)
"""On the CPU alone."""

_COMPILED = frozenset({"compile", "compile-graph"})
"""Modes that TorchInductor compiles for."""

_GRAPHS = frozenset({"graph", "compile-graph", "branches"})
"""Modes of a GPU that launch everything at once."""

_LARGE = 1024
"""Minimum number of elements of an activation; smaller inputs may be sizes or scales with values that matter."""


class TorchBackend(Backend):
    """PyTorch on the CPU, or on a GPU through CUDA."""

    name = "torch"
    devices = ("cpu", "cuda")
    dtypes = (NATIVE, "bfloat16", "float16")
    module = "torch"
    distributions = ("torch",)
    install = "pip install torch"
    optimiser = OptimiserTraits(by_threads=False)

    def declared(self, device: str) -> Sequence[Option]:
        """Return its options; some exist on a GPU only."""
        if device != "cuda":
            return _OPTIONS
        return (_GPU_MODE, *(option for option in _OPTIONS if option.name not in _CPU), *_GPU_OPTIONS)

    def missing(self, device: str) -> str:
        """Return the missing part for a GPU: a build with CUDA, or the driver."""
        return missing_for_torch() if device == "cuda" else ""

    def setup(self, settings: Settings) -> None:
        """Bind the process to the first physical cores, as many as there are threads, before any thread starts.

        Raises:
            UsageError: More threads than cores.
            BackendUnavailable: PyTorch cannot be loaded, or lacks the device or the compiler.
            BackendError: The system does not allow it.
        """
        bind(settings)
        try:
            import torch
        except ImportError as error:
            raise BackendUnavailable(f"torch cannot be loaded: {error}") from error
        if settings.device == "cuda":
            allow_tf32(allowed=settings.options["tf32"] == "on")
            torch.backends.cudnn.benchmark = settings.options["benchmark"] == "on"
        if settings.device == "cuda" and not torch.cuda.is_available():
            raise BackendUnavailable(
                f"PyTorch {torch.__version__} finds no CUDA device",
                remedy="use --device cpu, or install a build of torch for CUDA and its driver",
            )
        if settings.options["mode"] in _COMPILED:
            _require_compiler()
        # Before the first threads: they inherit the flag.
        flush = settings.options["denormal_as_zero"] == "on"
        if not torch.set_flush_denormal(flush) and flush:
            raise BackendError(
                "this processor cannot treat denormal numbers as zero", remedy="pass denormal_as_zero=off"
            )
        torch.set_num_threads(settings.threads)
        torch.set_num_interop_threads(1)
        if settings.device == "cuda":
            enter_stream(open_device("cuda"))

    def prepare(self, network: Network, settings: Settings) -> _TorchExecutable:
        """Translate the network, which executes it once (see ``Backend``)."""
        executable = self._prepared(network, settings)
        executable.keeps = True
        if settings.options["mode"] in _GRAPHS:
            executable.as_graph()
        return executable

    def captured(self, run: Run, settings: Settings) -> Run:
        """Return a CUDA graph for ``mode=graph`` (see ``Backend``)."""
        if settings.options["mode"] != "graph":
            return run
        run()
        return as_graph(run)

    def prepare_streamed(self, network: Network, settings: Settings) -> _TorchExecutable:
        """Prepare a network, never as a separate CUDA graph, and without outputs (see ``Backend``)."""
        return self._prepared(network, settings)

    def _prepared(self, network: Network, settings: Settings) -> _TorchExecutable:
        from .torch_graph import FLOATS, CudaStreams, branched, meaning, translated

        translate, compiled = translated, _compiled
        off = settings.options.get("onednn") == "off"
        if off:
            translate, compiled = _without_onednn(translated), _without_onednn(_compiled)
        try:
            torch_network = translate(
                network,
                float_type=FLOATS[settings.dtype],
                device=settings.device,
                channels_last=settings.options["layout"] == "channels_last",
            )
            mode = settings.options["mode"]
            call = compiled(torch_network) if mode in _COMPILED else torch_network.module.forward
            if mode == "branches":
                call = branched(torch_network.module, CudaStreams())
        except Exception as error:  # PyTorch's exceptions share no base class
            raise meaning(error) from error
        return _TorchExecutable(torch_network, _without_onednn(call) if off else call, settings.device)

    def kernels(self, network: Network, settings: Settings, executions: int) -> KernelView:
        """Return the kernels in PyTorch's profile (see ``Backend``)."""
        from .profiled_kernels import profiled

        with _named_kernels(settings):
            executable = self.prepare(network, settings)
        try:
            return profiled(executable, executions)
        finally:
            executable.close()

    def graph_at(self, device: str, dtype: str, options: Mapping[str, str]) -> str:
        """``fused`` unless compiled: TorchInductor does not report what it fuses."""
        effective = self.resolve(device, options)
        return super().graph_at(device, dtype, options) if self.eager(effective) else "source"

    def fused_graph(self, network: Network, settings: Settings) -> ExecutedGraph:
        """Return the operators as written, with strided views in their readers (see ``Backend``).

        Raises:
            UsageError: It is compiled.
        """
        from .strided_views import eager_graph
        from .torch_graph import FLOATS, meaning

        if not self.eager(settings.options):
            raise UsageError("TorchInductor does not report what it fuses", remedy="use --graph source")
        channels_last = settings.options["layout"] == "channels_last"
        try:
            return eager_graph(
                network, float_type=FLOATS[settings.dtype], device=settings.device, channels_last=channels_last
            )
        except Exception as error:  # PyTorch's exceptions share no base class
            raise meaning(error) from error

    def eager(self, options: Mapping[str, str]) -> bool:
        """Unless compiled, operators are executed as they are written."""
        return options["mode"] not in _COMPILED

    def in_turn(self, options: Mapping[str, str]) -> bool:
        """Unless compiled, which takes seconds for each brick in each session, or in branches, which no brick has."""
        return options["mode"] not in {*_COMPILED, "branches"}

    def algorithms(self, device: str, options: Mapping[str, str], dtype: str) -> tuple[Algorithm, ...]:  # noqa: ARG002
        """Return the other layout, and on the CPU the other kernels (see ``Backend``)."""
        return differing((*LAYOUTS, *(_ONEDNN if device == "cpu" else ())), options)


def allow_tf32(*, allowed: bool) -> None:
    """Choose how float32 is computed on a GPU. PyTorch's own choice differs: convolutions may, products may not."""
    import torch

    torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cuda.matmul.allow_tf32 = allowed


class _TorchExecutable(Executable):
    """A translated network. Its outputs are allocated by each run, as PyTorch does.

    Attributes:
        keeps: Keep the outputs of the last run; otherwise the next network may use their memory.
    """

    keeps = False

    def __init__(self, torch_network: TorchNetwork, call: Callable[..., Any], device: str) -> None:
        import torch

        self._types = torch_network.types
        self._inputs = torch_network.inputs
        self._guard = torch.inference_mode
        self._call = call
        self._graph: Run | None = None
        self._latest: Sequence[torch.Tensor] = ()
        self._wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None

    def run(self) -> None:
        try:
            if self._graph is not None:
                self._graph()
                return
            with self._guard():
                latest = self._call(*self._inputs)
            if self.keeps:
                self._latest = latest
        except Exception as error:  # PyTorch's exceptions share no base class
            from .torch_graph import meaning

            raise meaning(error) from error

    def as_graph(self) -> None:
        """Let ``run`` launch a CUDA graph of it from now on."""
        self.run()
        self._graph = as_graph(self.run)

    def share(self, inputs_by_form: MutableMapping[object, torch.Tensor]) -> None:
        """Read floating-point inputs from memory that is shared with other inputs of the same form.

        In a model, the allocator also gives freed memory to the next layer of that size.
        """
        seen: Counter[object] = Counter()
        shared = []
        for tensor in self._inputs:
            form = (tensor.dtype, tensor.shape, tensor.stride())
            seen[form] += 1
            large = tensor.is_floating_point() and tensor.numel() >= _LARGE
            shared.append(inputs_by_form.setdefault((form, seen[form]), tensor) if large else tensor)
        self._inputs = tuple(shared)

    def refresh(self) -> None:
        with self._guard():
            for tensor in self._inputs:
                if tensor.is_floating_point():
                    tensor.mul_(1)

    def synchronize(self) -> None:

        try:
            self._wait()
        except Exception as error:  # as above
            from .torch_graph import meaning

            raise meaning(error) from error

    def outputs(self) -> list[npt.NDArray[Any]]:
        from .torch_graph import array_of

        return [array_of(tensor, number) for tensor, number in zip(self._latest, self._types, strict=True)]

    def output_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._latest)

    def close(self) -> None:
        self._call = released
        self._graph = None
        self._inputs = self._latest = ()


def _without_onednn(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call with oneDNN switched off around it; the switch is global, and other networks need it on."""
    import torch

    switch = torch._C._set_mkldnn_enabled  # noqa: SLF001  # the public context manager warns, and takes microseconds

    def switched(*arguments: Any, **named: Any) -> Any:
        switch(False)  # noqa: FBT003
        try:
            return call(*arguments, **named)
        finally:
            switch(True)  # noqa: FBT003

    return switched


def _compiled(torch_network: TorchNetwork) -> Callable[..., Any]:
    """Compile, for these very shapes; the first call does it."""
    import torch

    _require_compiler()
    _compiler_cache()
    torch._inductor.config.compile_threads = 1  # noqa: SLF001  # in this process: it has the worker's limits
    compiled: Callable[..., Any] = torch.compile(torch_network.module.forward, fullgraph=True, dynamic=False)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's, about its own code
        compiled(*torch_network.inputs)
    return compiled


def _named_kernels(settings: Settings) -> AbstractContextManager[object]:
    """Have the kernels that TorchInductor writes in this context report their names to the profiler."""
    if settings.options["mode"] not in _COMPILED:
        return nullcontext()
    import torch

    patched: AbstractContextManager[object] = torch._inductor.config.patch(  # noqa: SLF001
        {"cpp.enable_kernel_profile": True}
    )
    return patched


def _require_compiler() -> None:
    """Make sure that TorchInductor finds a C++ compiler.

    Raises:
        BackendUnavailable: No compiler was found.
    """
    names = [os.environ.get("CXX", ""), "g++", "clang++"]
    if not any(shutil.which(name) for name in names if name):
        raise BackendUnavailable(
            "mode=compile of backend torch needs a C++ compiler", remedy="install g++, or pass --option mode=eager"
        )


@cache
def _compiler_cache() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for the compiler's files that is deleted with this process, so that the home folder stays clean.

    A folder named in ``DLBRICKS_COMPILED`` is kept, and nothing is compiled twice. PyTorch's variable cannot serve for
    this, because PyTorch sets it.
    """
    folder = tempfile.TemporaryDirectory(prefix="dlbricks-torch-")
    cache_path = os.environ.get("DLBRICKS_COMPILED") or folder.name
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"] = cache_path
    return folder


_CUDA = re.compile(r"^cuda\b[^=\n]*=(.*)$", re.MULTILINE)


def built_without_cuda(version: Path) -> bool:
    """Return True if a build of PyTorch lacks CUDA.

    Package versions do not always show this, because the package index decides the build. The build records its target.

    Args:
        version: Its file ``torch/version.py``; an unreadable or silent file counts as a build with CUDA.
    """
    try:
        match = _CUDA.search(version.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False
    return match is not None and match.group(1).strip() == "None"


def missing_for_torch() -> str:
    """Return the missing requirement for an NVIDIA GPU, in one line; empty if none is known."""
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
    """Capture everything that ``run`` enqueues in the current stream, as one CUDA graph.

    PyTorch captures it, so that its allocator separates the graph's memory.

    Args:
        run: A function that ran before, so that nothing is compiled, chosen or allocated by the driver any more.

    Raises:
        BackendError: A part cannot be captured, for example a copy to the host.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        run()
    except BaseException as error:
        with suppress(Exception):  # the stream needs this end; it says once more that the capture failed
            graph.capture_end()
        if isinstance(error, BackendError | MemoryError):
            raise
        raise BackendError(f"this cannot be captured as a CUDA graph: {' '.join(str(error).split())}") from error
    graph.capture_end()

    replay: Run = graph.replay
    return replay
