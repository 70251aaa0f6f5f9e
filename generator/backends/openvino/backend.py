"""OpenVINO: compiled models with inputs that are written ahead, and executed graphs."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, TensorProto, helper

from ....bricks.encoding import element_number
from ....db.values import NATIVE, KernelView
from ....errors import BackendUnavailable, UnsupportedBrick, UsageError
from ...network.network import Network, narrowed_to
from ..base import MADE_OF, Backend, Executable, ExecutedGraph, Option, Settings, ValueType, bind, released
from ..reports import Launch, Wording, kernel_view, node_name
from . import model as models

if TYPE_CHECKING:
    import openvino


# What OpenVINO executes: which layers it executes together, and its kernels.
#
# An executed graph states for each node the names of the operators that it was made of. OpenVINO's reader names an
# operator as ONNX does, or makes a name up; transformations keep some names and drop others. So every operator is
# named anew once it was read: by the values that ONNX has for it, and what is only on the way to such a value by that
# value. Of which layers no name is kept the dataflow of the model shows (``generator.decomposition.executed``).
# Operators of this graph are OpenVINO's own (``Subgraph``, ``FullyConnected``), and have no form that runs in parts.
#
# Kernels come from OpenVINO's own counters. Each node has a type (``Convolution``, ``Reorder``) and a primitive that
# runs it, such as ``brgconv_avx512_f32``. Node names stay out: they are those of the user's model. Counters are in
# whole microseconds, so that a kernel may take none.


_DOMAIN = "openvino"

_IR_VERSION = 10

_LABEL = re.compile(r"(~+\d+)(?:/.*)?")
"""A name that ``renamed`` gave. OpenVINO adds endings for parts of an operator, such as ``/WithoutBiases``."""

_EDGES = frozenset({"Parameter", "Result"})

_TYPES = {
    "f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16", "boolean": "bool", "i4": "int4",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u4": "uint4", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "f8e4m3": "float8e4m3fn", "f8e5m2": "float8e5m2",
}  # fmt: skip
"""OpenVINO's name of an element type to ONNX's."""


def renamed(model: openvino.Model) -> Mapping[str, tuple[str, ...]]:
    """Name each operator of a model that was just read, in place; inputs keep their names.

    Returns:
        Name to the values of the ONNX model that the operator gives, or that it is on the way to; none for constants.
    """
    operators, prefix = (
        [operator for operator in model.get_ordered_ops() if operator.get_type_name() not in _EDGES],
        _prefix(model),
    )
    for number, operator in enumerate(operators):
        operator.set_friendly_name(f"{prefix}{number}")
    computed = _computed(model)
    values: dict[str, tuple[str, ...]] = {}
    for operator in reversed(operators):
        port_names = sorted(name for port in operator.outputs() for name in port.get_names())
        behind = (values[name] for name in _readers(operator) if name in values)
        if operator.get_friendly_name() in computed:
            values[operator.get_friendly_name()] = tuple(port_names) or next(behind, ())
    return values


def executed_graph(compiled: openvino.CompiledModel, made_of: Mapping[str, tuple[str, ...]]) -> ExecutedGraph:
    """Return a compiled model's executed graph; each node lists the ONNX values that it was made of (``MADE_OF``).

    Values that depend on constants alone are computed when the model is compiled; they are constants here. All values
    except the inputs get new names.
    """
    executed = compiled.get_runtime_model()
    model = onnx.ModelProto(ir_version=_IR_VERSION)
    model.opset_import.extend([helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)])
    graph, computed, prefix = model.graph, _computed(executed), _prefix(executed)
    types: dict[str, ValueType] = {}
    for operator in executed.get_ordered_ops():
        output_types = {_value(port, prefix): _type(port) for port in operator.outputs()}
        static_types = {name: value_type for name, value_type in output_types.items() if value_type is not None}
        kind = operator.get_type_name()
        if kind == "Parameter":
            graph.input.extend(onnx.ValueInfoProto(name=name) for name in output_types)
        elif kind == "Result":
            graph.output.append(onnx.ValueInfoProto(name=_value(operator.input_value(0), prefix)))
        elif operator.get_friendly_name() not in computed:
            graph.initializer.extend(_constant(name, *value_type) for name, value_type in static_types.items())
        else:
            # A constant without a type is that of an operand that is not given.
            read = [
                "" if port.get_element_type().is_dynamic() else _value(port, prefix) for port in operator.input_values()
            ]
            node = graph.node.add(
                op_type=_stated(operator, "layerType"), domain=_DOMAIN, input=read, output=output_types
            )
            node.name = node_name(node)
            labels = (_LABEL.fullmatch(name) for name in _stated(operator, "originalLayersNames").split(","))
            values = {value for label in labels if label for value in made_of.get(label[1], ())}
            node.attribute.append(helper.make_attribute(MADE_OF, sorted(values), attr_type=AttributeProto.STRINGS))
            types |= static_types
    return ExecutedGraph(model, types)


def _computed(model: openvino.Model) -> set[str]:
    """Return the names of operators that depend on an input, or on nothing without being constant (random numbers)."""
    computed: set[str] = set()
    for operator in model.get_ordered_ops():
        ports = operator.input_values()
        constant = operator.get_type_name() == "Constant" or _stated(operator, "layerType") == "Const"
        if any(port.get_node().get_friendly_name() in computed for port in ports) or not (ports or constant):
            computed.add(operator.get_friendly_name())
    return computed


def _readers(operator: openvino.Node) -> Iterator[str]:
    for port in operator.outputs():
        yield from (reader.get_node().get_friendly_name() for reader in port.get_target_inputs())


def _stated(operator: openvino.Node, what: str) -> str:
    """Return a runtime property of an operator in an executed graph; empty if it is missing."""
    stated = operator.get_rt_info()
    return str(stated[what].astype(str)) if what in stated else ""


def _prefix(model: openvino.Model) -> str:
    """Return a prefix for new names that no name of an input or output contains."""
    edge_names = [
        operator.get_friendly_name() for operator in model.get_ordered_ops() if operator.get_type_name() in _EDGES
    ]
    prefix = "~"
    while any(prefix in name for name in edge_names):
        prefix += "~"
    return prefix


def _value(port: openvino.Output, prefix: str) -> str:
    """Return the name of a value: an input's name, or one from its operator's position in the execution order."""
    operator = port.get_node()
    if operator.get_type_name() == "Parameter":
        return str(operator.get_friendly_name())
    return f"{prefix}{_stated(operator, 'execOrder')}.{port.get_index()}"


def _type(port: openvino.Output) -> ValueType | None:
    """Return element type and shape; None if ONNX lacks the type or the shape is not static."""
    element, shape = _TYPES.get(port.get_element_type().get_type_name()), port.get_partial_shape()
    return (element, tuple(shape.to_shape())) if element is not None and shape.is_static else None


def _constant(name: str, element: str, shape: tuple[int, ...]) -> TensorProto:
    """Return a constant without its values."""
    return TensorProto(name=name, data_type=element_number(element), dims=shape, data_location=TensorProto.EXTERNAL)


_SOURCE = "openvino profiling"
_PLACE = "CPU"
"""The only device that networks are compiled for."""
_NS_PER_S = 1_000_000_000


def profiled(
    executable: Executable, counters: Callable[[], Iterable[openvino.ProfilingInfo]], executions: int
) -> KernelView:
    """Run a network that was compiled with counters, and read them after each execution.

    Args:
        executable: The network.
        counters: Returns the latest execution's counters, in the order of the executed graph.
        executions: Number of profiled executions, after one warm-up.

    Raises:
        BackendError: The runtime failed.
    """
    executable.run()
    executable.synchronize()
    launches, walls_ns = [], []
    for _ in range(executions):
        walls_ns.append(executable.timed_ns())
        launches.append([_launch(counter) for counter in counters() if counter.status == counter.Status.EXECUTED])
    return kernel_view(launches, walls_ns, _SOURCE)


def _launch(counter: openvino.ProfilingInfo) -> Launch:
    return counter.exec_type, counter.node_type, _PLACE, round(counter.real_time.total_seconds() * _NS_PER_S)


OPTIONS = (
    Option("pinning", "on", ("on", "off"), "bind the process to the first physical cores, and each thread to one"),
    Option("denormal_as_zero", "off", ("on", "off"), "flush denormal numbers to zero"),
    Option(
        "dynamic_quantization",
        "0",
        help="elements that share a scale where activations that meet compressed weights are quantized; 0: never",
    ),
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


class OpenVinoBackend(Backend):
    """OpenVINO on the CPU: one stream, one request with its inputs written ahead.

    OpenVINO computes 64-bit integers in 32 bits; integers at the network's edges keep their type, so that every brick
    converts them. It would replace double and half precision by single or by the requested precision. A network with
    another floating type than single or the requested precision is therefore refused. OpenVINO offers bfloat16 also on
    CPUs that only emulate it, and is slower there than in single precision.
    """

    name = "openvino"
    dtypes = tuple(_PRECISIONS)
    module = "openvino"
    distributions = ("openvino",)
    install = "pip install openvino"

    def declared(self, device: str) -> Sequence[Option]:  # noqa: ARG002
        """Return the options, which are the same on every device."""
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

    def in_turn(self, options: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Return True: each brick is a separate call (see ``Backend``)."""
        return True

    def prepare_streamed(self, network: Network, settings: Settings) -> _OvExecutable:
        """Prepare a network with inputs and outputs as between the layers of a model (see ``Backend``).

        Its edges have the layout of its computation, and its outputs share memory with other bricks.
        """
        executable = _loaded(network, settings, _properties(settings), inside=True)
        with _WORDING.translating():
            executable.share_outputs(_shared())
        return executable

    def fused_graph(self, network: Network, settings: Settings) -> ExecutedGraph:
        """Its own executed graph, each node with the names that it keeps (see ``Backend``)."""
        core = _core()
        with _WORDING.translating(unsupported=True):
            model = models.read_model(core, network, settings.dtype)
            made_of = renamed(model)
            return executed_graph(core.compile_model(model, "CPU", _properties(settings)), made_of)

    def kernels(self, network: Network, settings: Settings, executions: int) -> KernelView:
        """Its own counters (see ``Backend``)."""
        executable = _loaded(network, settings, {**_properties(settings), "PERF_COUNT": True})
        try:
            return profiled(executable, executable.counters, executions)
        finally:
            executable.close()


def _loaded(network: Network, settings: Settings, properties: dict[str, Any], *, inside: bool = False) -> _OvExecutable:
    """Read and compile a network and write its inputs; ``inside``: with the edges that it has in a model."""
    core = _core()
    with _WORDING.translating(unsupported=True):
        model, wide = models.read_model(core, network, settings.dtype), frozenset[int]()
        if settings.dtype != NATIVE:
            model, wide = models.narrow_edges(model, _PRECISIONS[settings.dtype])
    with _WORDING.translating():
        compiled, edges = core.compile_model(model, "CPU", properties), models.Edges({}, {})
        if inside and (edges := models.changed_edges(compiled)):
            laid_out = models.with_edges(model, edges)
            compiled = core.compile_model(laid_out, "CPU", properties)
            if copied := models.copied_outputs(compiled, edges):
                whole = partial(_loaded_as, laid_out, network, properties, wide, edges)
                size = sum(port.get_element_type().size * math.prod(port.shape) for port in compiled.outputs)
                compiled = core.compile_model(models.reading_one_of(laid_out, copied), "CPU", properties)
                return _OvExecutable(compiled.create_infer_request(), network, wide, edges, _WholeNetwork(whole, size))
        return _OvExecutable(compiled.create_infer_request(), network, wide, edges)


def _loaded_as(
    model: openvino.Model, network: Network, properties: dict[str, Any], wide: frozenset[int], edges: models.Edges
) -> _OvExecutable:
    """Load a model that was made of a network."""
    return _OvExecutable(_core().compile_model(model, "CPU", properties).create_infer_request(), network, wide, edges)


@dataclass(frozen=True, slots=True)
class _WholeNetwork:
    """The complete form of a network with a request that returns some outputs in part.

    Attributes:
        load: Loads it with all of its outputs.
        output_bytes: Their size in bytes.
    """

    load: Callable[[], _OvExecutable]
    output_bytes: int


class _OvExecutable(Executable):
    """A request with inputs in the runtime's aligned memory; each run overwrites the outputs.

    Args:
        request: The request.
        network: The network that it runs.
        wide: Outputs of single precision in the network; the request may compute them in another precision.
        edges: Inputs and outputs with another layout than in the network.
        whole: The same network with all of its outputs, if the request returns one element of some only.
    """

    def __init__(
        self,
        request: openvino.InferRequest,
        network: Network,
        wide: Collection[int],
        edges: models.Edges,
        whole: _WholeNetwork | None = None,
    ) -> None:
        self._request = request
        self._whole = whole
        self._wide = wide
        self._edges = edges
        self._activations: list[npt.NDArray[Any]] = []
        for index, name in enumerate(models.input_names(network)):
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
        """Write the outputs to memory shared with other networks; they are valid until the next of these runs."""
        for index in self._outputs:
            tensor = self._request.get_output_tensor(index)
            if tensor.byte_size:
                self._request.set_output_tensor(index, memory.tensor(index, tensor))

    def refresh(self) -> None:
        for array in self._activations:
            np.multiply(array, 1, out=array)

    def outputs(self) -> list[npt.NDArray[Any]]:
        if self._whole is not None:
            whole = self._whole.load()
            whole.run()
            return whole.outputs()
        tensors = ((index, self._request.get_output_tensor(index)) for index in self._outputs)
        arrays = [self._edges.given(index, _array(tensor)) for index, tensor in tensors]
        return [array.astype(np.float32) if index in self._wide else array for index, array in enumerate(arrays)]

    def output_bytes(self) -> int:
        if self._whole is not None:
            return self._whole.output_bytes
        return sum(self._request.get_output_tensor(index).byte_size for index in self._outputs)

    def counters(self) -> Sequence[openvino.ProfilingInfo]:
        """Return the time of each node of the executed graph in the last execution, if counters are on."""
        counters: Sequence[openvino.ProfilingInfo] = self._request.profiling_info
        return counters

    def close(self) -> None:
        self._step = self._infer = self._start = released
        self._activations.clear()
        del self._request

    def _start_and_wait(self) -> None:
        self._start()
        self._request.wait()


@cache
def _shared() -> SharedMemory:
    """Memory shared by the bricks that this process runs alternately."""
    return SharedMemory()


@cache
def _core() -> openvino.Core:
    """Load the runtime once.

    Importing OpenVINO sends an event over the network and writes to the home folder, unless its telemetry package is
    missing. This process hides that package.

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
    """Make sure that OpenVINO obeys the settings, since it falls back silently.

    Raises:
        UsageError: It uses fewer threads.
        BackendUnavailable: It computes in another precision.
    """
    core = _core()
    compiled = core.compile_model(core.read_model(models.probe_model()), "CPU", _properties(settings))
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
    """Return the same memory as integers, which NumPy writes equally fast in every precision."""
    return array.view(f"u{array.dtype.itemsize}")


def _array(tensor: openvino.Tensor) -> npt.NDArray[Any]:
    """Return a copy of a tensor, in NumPy's or ml_dtypes' type."""
    kind = tensor.element_type.get_type_name()
    array = np.array(tensor.data)
    carried = {"bf16": TensorProto.BFLOAT16, "f8e4m3": TensorProto.FLOAT8E4M3FN, "f8e5m2": TensorProto.FLOAT8E5M2}
    return array.view(helper.tensor_dtype_to_np_dtype(carried[kind])) if kind in carried else array


_LINE = 64
"""Bytes that OpenVINO aligns its own memory to."""


class SharedMemory:
    """Memory for outputs, one block for all outputs of about one size.

    In a model OpenVINO plans the memory of all layers together: a layer writes to memory that another layer of about
    its size used a moment before. Separately compiled networks have separate memory, untouched since their last run.
    They would miss the cache that a layer of a model hits.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], npt.NDArray[Any]] = {}

    def tensor(self, index: int, like: openvino.Tensor) -> openvino.Tensor:
        """Return a tensor of the same type and shape in shared memory.

        Args:
            index: Index among the outputs of the network, which do not share memory with each other.
            like: The tensor that the runtime allocated, of at least one byte.
        """
        from openvino import Tensor

        size = 1 << (like.byte_size - 1).bit_length()
        block = self._places.get((index, size))
        if block is None:
            room = np.zeros(size + _LINE, np.uint8)
            begin = -room.ctypes.data % _LINE
            block = self._places[index, size] = room[begin : begin + size]
        return Tensor(block[: like.byte_size], like.shape, like.element_type)
