"""OpenVINO."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from ....db.values import NATIVE, KernelView
from ....errors import BackendUnavailable, UnsupportedBrick, UsageError
from ...network.network import Network
from ...network.types import narrowed_to
from ..base import ExecutedGraph, Option, Settings, bind, released
from ..calling import CallingBackend
from ..huge_pages import HUGE_PAGES
from ..wording import Wording
from .layout import Edges, changed_edges, copied_outputs, reading_one_of, with_edges
from .memory import SharedMemory
from .model import input_names, narrow_edges, probe_model, read_model

if TYPE_CHECKING:
    import openvino

__all__ = ["OpenVinoBackend"]

OPTIONS = (
    Option("pinning", "on", ("on", "off"), "bind the process to the first physical cores, and each thread to one"),
    Option("denormal_as_zero", "off", ("on", "off"), "flush denormal numbers to zero"),
    Option(
        "dynamic_quantization",
        "0",
        help="elements that share a scale where activations that meet compressed weights are quantized; 0: never",
    ),
    HUGE_PAGES,
)

_PRECISIONS = {NATIVE: "f32", "bfloat16": "bf16", "float16": "f16"}
"""Precision to OpenVINO's name of it."""

_NARROW = {"bf16": TensorProto.BFLOAT16, "f16": TensorProto.FLOAT16}
"""OpenVINO's name of a type that single precision is narrowed to, to ONNX's number."""

_FEW_OUTPUTS = 4
"""A synchronous execution makes an array and a key of each output, which costs about a microsecond and more the more
there are; handing the execution over to a thread of the runtime costs five, however many there are."""

_WORDING = Wording(
    "OpenVINO",
    unsupported=re.compile(
        r"OpConversionFailure|OpValidationFailure|NotImplemented|does not support|doesn't support|[Uu]nsupported|"
        r"not supported|not implemented|hasn't been implemented|[Cc]an'?t convert|[Cc]annot create|"
        r"No primitive descriptors"
    ),
    # The last is a thread whose stack finds no room.
    memory=re.compile(r"Failed to serialize proto|Resource temporarily unavailable"),
    noise=re.compile(
        r"Exception from \S+?:\d+:|Check '[^']*' failed(?: at \S+?:\d+:)?|"
        r"(?:at )?(?:\.{0,2}/)?(?:src|thirdparty)/\S+?:\d+:?|FrontEnd API failed with \w+:|"
        r"Model wasn't fully converted\. (?:Summary:|Failed operations detailed log:)(?: --)?|"
        r"While validating ONNX node '[^']*':|While validating node '.*?' with friendly_name '[^']*':|"
        r"Summary: -- Conversion is failed for: .*|To facilitate the conversion.*|"
        r"(?<![\w.])/(?:[\w.@+-]+/)+[\w.@+-]*"
    ),
)


class OpenVinoBackend(CallingBackend):
    """OpenVINO on the CPU: one stream, one request with its inputs written ahead.

    OpenVINO computes 64-bit integers in 32 bits; those at the network's edges keep their type, so that every brick
    converts them there. It would compute double and half precision in single precision, or in the one that is asked
    for: a network that computes in another floating type than single precision is refused, unless it is that one. It
    offers bfloat16 also on CPUs that only emulate it, where it is slower than single precision.
    """

    name = "openvino"
    dtypes = tuple(_PRECISIONS)
    module = "openvino"
    distributions = ("openvino",)
    install = "pip install openvino"

    def declared(self, device: str) -> Sequence[Option]:  # noqa: ARG002
        """The same on every device."""
        return OPTIONS

    def setup(self, settings: Settings) -> None:
        """Bind the process to the first physical cores, then load the runtime: it takes its cores from there.

        Raises:
            UsageError: More threads than cores: OpenVINO would use fewer without a word.
            BackendUnavailable: The runtime cannot be loaded, or this CPU cannot compute in the precision.
            BackendError: The system does not allow it.
        """
        bind(settings)
        _require_as_asked(settings)

    def prepare(self, network: Network, settings: Settings) -> _OvExecutable:
        """Read, compile, and write the inputs of one request (see ``Backend``)."""
        return _loaded(network, settings, _properties(settings))

    def prepare_streamed(self, network: Network, settings: Settings) -> _OvExecutable:
        """As ``prepare``, with what it reads and gives as between the layers of a model (see ``StreamBackend``).

        Its edges have the layout that it is computed in, and its outputs are in memory that other bricks write as well.
        """
        executable = _loaded(network, settings, _properties(settings), inside=True)
        try:
            executable.share_outputs(_shared())
        except Exception as error:  # the runtime's exceptions share no base class
            raise _WORDING.meaning(error) from error
        return executable

    def fused_graph(self, network: Network, settings: Settings) -> ExecutedGraph:
        """Its own executed graph, each node with the names that it keeps (see ``FusingBackend``)."""
        from .graph import executed_graph, renamed

        core = _core()
        try:
            model = read_model(core, network, settings.dtype)
            made_of = renamed(model)
            return executed_graph(core.compile_model(model, "CPU", _properties(settings)), made_of)
        except Exception as error:  # the runtime's exceptions share no base class
            raise _WORDING.meaning(error, unsupported=True) from error

    def kernels(self, network: Network, settings: Settings, executions: int) -> KernelView:
        """Its own counters (see ``ProfilingBackend``)."""
        from .kernels import profiled

        executable = _loaded(network, settings, {**_properties(settings), "PERF_COUNT": True})
        try:
            return profiled(executable, executable.counters, executions)
        finally:
            executable.close()


def _loaded(network: Network, settings: Settings, properties: dict[str, Any], *, inside: bool = False) -> _OvExecutable:
    """A network that was read and compiled, with its inputs written; ``inside``: its edges are those in a model."""
    core = _core()
    try:
        model, wide = read_model(core, network, settings.dtype), frozenset[int]()
        if settings.dtype != NATIVE:
            model, wide = narrow_edges(model, _PRECISIONS[settings.dtype])
    except Exception as error:  # the runtime's exceptions share no base class
        raise _WORDING.meaning(error, unsupported=True) from error
    try:
        compiled, edges = core.compile_model(model, "CPU", properties), Edges({}, {})
        if inside and (edges := changed_edges(compiled)):
            laid_out = with_edges(model, edges)
            compiled = core.compile_model(laid_out, "CPU", properties)
            if copied := copied_outputs(compiled, edges):
                whole = partial(_loaded_as, laid_out, network, properties, wide, edges)
                size = sum(port.get_element_type().size * math.prod(port.shape) for port in compiled.outputs)
                compiled = core.compile_model(reading_one_of(laid_out, copied), "CPU", properties)
                return _OvExecutable(compiled.create_infer_request(), network, wide, edges, _Whole(whole, size))
        return _OvExecutable(compiled.create_infer_request(), network, wide, edges)
    except Exception as error:  # the runtime's exceptions share no base class
        raise _WORDING.meaning(error) from error


def _loaded_as(
    model: openvino.Model, network: Network, properties: dict[str, Any], wide: frozenset[int], edges: Edges
) -> _OvExecutable:
    """A network as a model that was made of it."""
    return _OvExecutable(_core().compile_model(model, "CPU", properties).create_infer_request(), network, wide, edges)


@dataclass(frozen=True, slots=True)
class _Whole:
    """The whole of a network of which a request gives some outputs in part.

    Attributes:
        load: Loads it with all of its outputs.
        output_bytes: The size of these.
    """

    load: Callable[[], _OvExecutable]
    output_bytes: int


class _OvExecutable:
    """A request whose inputs lie in the runtime's own, aligned memory; outputs are written over by each run.

    Args:
        request: The request.
        network: What it runs.
        wide: Outputs that are of single precision in the network, whatever the request computes them in.
        edges: Inputs and outputs that have another layout than in the network.
        whole: The same network with all of its outputs, where the request gives of some one element only.
    """

    def __init__(
        self,
        request: openvino.InferRequest,
        network: Network,
        wide: Collection[int],
        edges: Edges,
        whole: _Whole | None = None,
    ) -> None:
        self._request = request
        self._whole = whole
        self._wide = wide
        self._edges = edges
        self._activations: list[npt.NDArray[Any]] = []
        for index, name in enumerate(input_names(network)):
            _write(request, index, edges.taken(index, network.feeds[name]))
            tensor = request.get_input_tensor(index)
            if tensor.element_type.is_real():
                self._activations.append(_as_integers(tensor.data))
        self._outputs = tuple(range(len(network.outputs)))
        # The methods of the base class: those of the wrapper look for new inputs first.
        bare: Any = super(type(request), request)
        self._infer: Callable[[], object] = partial(bare.infer, {}, True, True)  # noqa: FBT003  # takes no keywords
        self._start: Callable[[], object] = partial(bare.start_async, {}, None)
        self._step = self._infer if len(self._outputs) <= _FEW_OUTPUTS else self._start_and_wait

    def run(self) -> None:
        try:
            self._step()
        except Exception as error:  # the runtime's exceptions share no base class
            raise _WORDING.meaning(error) from error

    def share_outputs(self, memory: SharedMemory) -> None:
        """Write the outputs where other networks write theirs; until the next of these runs, they are there."""
        for index in self._outputs:
            tensor = self._request.get_output_tensor(index)
            if tensor.byte_size:
                self._request.set_output_tensor(index, memory.tensor(index, tensor))

    def refresh(self) -> None:
        for array in self._activations:
            np.multiply(array, 1, out=array)

    def synchronize(self) -> None:
        pass

    def outputs(self) -> list[npt.NDArray[Any]]:
        if self._whole is not None:
            whole = self._whole.load()
            whole.run()
            return whole.outputs()
        tensors = ((index, self._request.get_output_tensor(index)) for index in self._outputs)
        found = [self._edges.given(index, _array(tensor)) for index, tensor in tensors]
        return [array.astype(np.float32) if index in self._wide else array for index, array in enumerate(found)]

    def output_bytes(self) -> int:
        if self._whole is not None:
            return self._whole.output_bytes
        return sum(self._request.get_output_tensor(index).byte_size for index in self._outputs)

    def counters(self) -> Sequence[openvino.ProfilingInfo]:
        """What each node of the executed graph took in the last execution, where that was asked for."""
        found: Sequence[openvino.ProfilingInfo] = self._request.profiling_info
        return found

    def close(self) -> None:
        self._step = self._infer = self._start = released
        self._activations.clear()
        del self._request

    def _start_and_wait(self) -> None:
        self._start()
        self._request.wait()


@cache
def _shared() -> SharedMemory:
    """Of the bricks that this process runs in turn."""
    return SharedMemory()


@cache
def _core() -> openvino.Core:
    """The runtime, loaded once.

    Importing OpenVINO sends an event over the network and writes to the home folder, unless its package for that is
    missing: then it says nothing. To this process it is missing.

    Raises:
        BackendUnavailable: It cannot be loaded.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: an import fails
    try:
        import openvino
    except ImportError as error:
        raise BackendUnavailable(f"openvino cannot be loaded: {error}") from error
    return openvino.Core()


def _properties(settings: Settings) -> dict[str, Any]:
    """How a network is compiled. No folder for a cache is set: each network is compiled anew."""
    chosen = settings.options
    return {
        # Left alone, OpenVINO computes in bfloat16 wherever the CPU can (AMX, AVX512-BF16), without a word.
        "INFERENCE_PRECISION_HINT": _PRECISIONS[settings.dtype],
        # Left alone, it quantizes the activations that meet weights of 8 bits or less in groups of 32.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": int(chosen["dynamic_quantization"]),
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": settings.threads,
        # One thread needs no binding beside that of the process; OpenVINO's would take two system calls per run.
        "ENABLE_CPU_PINNING": chosen["pinning"] == "on" and settings.threads > 1,
        # Threads keep the mode that they started with: it is that of the first network of a process.
        "CPU_DENORMALS_OPTIMIZATION": chosen["denormal_as_zero"] == "on",
    }


def _require_as_asked(settings: Settings) -> None:
    """Make sure that OpenVINO does what it is asked for: it falls back to less without a word.

    Raises:
        UsageError: It uses fewer threads.
        BackendUnavailable: It computes in another precision.
    """
    core = _core()
    compiled = core.compile_model(core.read_model(probe_model()), "CPU", _properties(settings))
    precision = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if precision != _PRECISIONS[settings.dtype]:
        raise BackendUnavailable(
            f"OpenVINO does not compute in {settings.dtype} on this CPU, but in {precision}",
            remedy=f"leave out --dtype {settings.dtype}",
        )
    threads = compiled.get_property("INFERENCE_NUM_THREADS")
    if threads != settings.threads:
        raise UsageError(
            f"OpenVINO uses {threads} thread(s) where {settings.threads} are asked for",
            remedy="use as many threads as there are physical cores, or fewer",
        )


def _write(request: openvino.InferRequest, index: int, array: npt.NDArray[Any]) -> None:
    tensor = request.get_input_tensor(index)
    target, kind = tensor.data, tensor.element_type.get_type_name()
    if array.dtype == np.float32 and kind in _NARROW:
        array = narrowed_to(array, helper.tensor_dtype_to_np_dtype(_NARROW[kind]))
    if target.dtype.itemsize != array.dtype.itemsize or target.shape != array.shape:
        raise UnsupportedBrick(f"OpenVINO has no input of type {array.dtype} and shape {list(array.shape)}")
    target[...] = array.view(target.dtype)


def _as_integers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory as integers, which NumPy writes at the same speed in every precision."""
    return array.view(f"u{array.dtype.itemsize}")


def _array(tensor: openvino.Tensor) -> npt.NDArray[Any]:
    """A copy of a tensor, in NumPy's or ml_dtypes' type."""
    kind = tensor.element_type.get_type_name()
    array = np.array(tensor.data)
    carried = {
        "bf16": TensorProto.BFLOAT16,
        "f8e4m3": TensorProto.FLOAT8E4M3FN,
        "f8e5m2": TensorProto.FLOAT8E5M2,
    }
    return array.view(helper.tensor_dtype_to_np_dtype(carried[kind])) if kind in carried else array
