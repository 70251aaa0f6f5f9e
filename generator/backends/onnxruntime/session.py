"""Sessions of ONNX Runtime: execution providers, bound inputs and outputs, and the profile.

Providers are the CPU's, and CUDA's with its options; the availability of CUDA is found without loading it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import io
import math
import re
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, parser

from ....db.values import KernelView
from ....errors import BackendError, BackendUnavailable
from ....models.subgraphs import all_nodes, plain_domain
from ...device.host import open_device
from ...machine.nvml import lacks_of_gpu
from ...network.network import HUGE_BYTES, Network
from ..base import Executable, NodeTimes, PackedExecutable, Settings, released
from ..reports import Launch, Wording, kernel_view
from .refusals import clear_refusal, with_places

if TYPE_CHECKING:
    import onnxruntime as ort


CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

Provider = str | tuple[str, dict[str, str]]
"""A provider as a session takes it, with options or without."""

_LIBRARY = "libonnxruntime_providers_cuda.so"


def missing_for_cuda() -> str:
    """Return the missing requirement for an NVIDIA GPU, in one line; empty if none is known."""
    lacks = lacks_of_gpu()
    if not any((folder / "capi" / _LIBRARY).exists() for folder in _folders("onnxruntime")):
        lacks.insert(0, "package onnxruntime-gpu is not installed")
    return "; ".join(lacks)


def providers(settings: Settings) -> list[Provider]:
    """Return a session's providers, best first; on a GPU the CPU computes operators that CUDA's provider lacks."""
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
    """Return the settings without CUDA graphs, which hide nodes from the profile and forbid a fallback."""
    if "mode" not in settings.options:
        return settings
    return replace(settings, options={**settings.options, "mode": "stream"})


def require_cuda() -> None:
    """Load the CUDA provider with a small session.

    Raises:
        BackendUnavailable: This build lacks it, it cannot be loaded, or no GPU was found.
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
        smallest = parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) {y = Relu(x)}'
        )
        session = ort.InferenceSession(smallest.SerializeToString(), providers=chosen, enable_fallback=0)
    except Exception as error:
        raise refused from error
    if CUDA not in session.get_providers():
        raise refused


def _preload(ort: Any) -> None:
    """Load CUDA's libraries from NVIDIA's packages; the runtime prints the names of missing ones."""
    if not hasattr(ort, "preload_dlls"):
        return
    with redirect_stdout(io.StringIO()):
        for folder in sorted(path for package in _folders("nvidia") for path in package.glob("*/lib")):
            ort.preload_dlls(directory=str(folder))
        ort.preload_dlls()


def _folders(package: str) -> Sequence[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations if spec is not None else None) or ()]


def _flag(on: bool) -> str:  # noqa: FBT001
    return "1" if on else "0"


KERNEL = "_kernel_time"
"""Suffix of a node's name in the profile, for the time of its kernel."""

PREFIX = "profile"
"""How the names of profiles begin."""

_MOST_EVENTS = 1_000_000
"""The profiler silently drops events after this number."""

Event = Mapping[str, Any]


class _Timed(TypedDict, total=False):
    """What is read of an event if only times are needed: its arguments are nine tenths of the text."""

    name: str
    cat: str
    ts: float
    dur: float


def read_profile(folder: Path, *, lean: bool = False) -> list[Event]:
    """Read the events of the only profile in a folder; it is complete once its session is closed.

    Args:
        folder: Folder of the profile.
        lean: Read only names, categories and times of events.

    Raises:
        BackendError: The profile is missing or full.
    """
    files = sorted(folder.glob(f"{PREFIX}*.json"))
    if len(files) != 1:
        raise BackendError(f"ONNX Runtime wrote {len(files)} profiles instead of one")
    data = files[0].read_bytes()
    events: list[Event] = msgspec.json.decode(data, type=list[_Timed]) if lean else msgspec.json.decode(data)
    if len(events) >= _MOST_EVENTS:
        raise BackendError(f"ONNX Runtime's profile is full after {len(events)} events")
    return events


def runs(events: Sequence[Event]) -> list[list[Event]]:
    """Return the kernels of each execution, in the order of their starts."""
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("name") == "model_run")
    kernels = sorted(
        (event for event in events if event.get("cat") == "Node" and event["name"].endswith(KERNEL)),
        key=itemgetter("ts"),
    )
    begun = [kernel["ts"] for kernel in kernels]
    return [kernels[bisect_left(begun, begin) : bisect_right(begun, end)] for begin, end in spans]


def node_times(events: Sequence[Event], nodes: Collection[str]) -> NodeTimes:
    """Return the time of each node in each execution; the profile has whole microseconds.

    Args:
        events: Events of the profile.
        nodes: Names of the nodes to report; the body of a node is part of its time.

    Raises:
        BackendError: An execution lacks a node that another one has.
    """
    executions = [
        [kernel for kernel in execution if kernel["name"].removesuffix(KERNEL) in nodes] for execution in runs(events)
    ]
    names = [kernel["name"].removesuffix(KERNEL) for kernel in executions[0]] if executions else []
    places = {name: column for column, name in enumerate(names)}
    times = np.zeros((len(executions), len(names)))
    for execution, row in zip(executions, times, strict=True):
        if len(execution) != len(names):
            raise BackendError(f"ONNX Runtime's profile lost {abs(len(names) - len(execution))} nodes")
        for kernel in execution:
            row[places[kernel["name"].removesuffix(KERNEL)]] = 1e3 * kernel["dur"]
    return NodeTimes(tuple(names), times)


WORDING = Wording(
    "ONNX Runtime",
    unsupported=re.compile(
        r"NOT_IMPLEMENTED|INVALID_GRAPH|is not a registered function/op|No Op registered for|Could not find an "
        r"implementation|Type Error|Opset \d+ is under development|Unsupported model IR version|"
        r"No opset import for domain|cannot use the graph capture feature"
    ),
    memory=re.compile(r"STATUS_ALLOC_FAILED|is smaller than requested bytes"),
    noise=re.compile(
        r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Exception during initialization: )?|Load model from .+? failed:"
    ),
)


_NIBBLES = frozenset({"int4", "uint4", "float4_e2m1fn"})


def loaded(network: Network, settings: Settings, options: ort.SessionOptions) -> Executable:
    """Load a session on the CPU with its inputs bound."""
    session, weights = created(network, options, [CPU])
    with WORDING.translating():
        if reads_strings(network):
            return OrtStrings(session, network, weights)
        return OrtExecutable(session, network, weights, bound=settings.options["binding"] == "bound")


def loaded_profiled(network: Network, settings: Settings, options: ort.SessionOptions) -> PackedExecutable:
    """Load a session that profiles itself, with its inputs bound."""
    options.enable_profiling = True
    folder = tempfile.TemporaryDirectory(prefix="dlbricks-profile-")
    options.profile_file_prefix = str(Path(folder.name) / PREFIX)
    try:
        session, weights = created(network, options, [CPU])
        return _OrtProfiled(session, network, weights, bound=settings.options["binding"] == "bound", folder=folder)
    except BaseException:
        folder.cleanup()
        raise


def save_graph(options: ort.SessionOptions, target: Path, side: str, *, least: int) -> None:
    """Make a session write its graph while it is created.

    Args:
        options: Options of the session.
        target: File for the graph.
        side: File for large initializers, in the same folder.
        least: Smallest size of a large initializer, in bytes.
    """
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", side)
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(least))


def reads_strings(network: Network) -> bool:
    """Return True if an input of a network has strings."""
    return any(array.dtype == object for array in network.feeds.values())


def created(
    network: Network, options: ort.SessionOptions, providers: Sequence[Provider]
) -> tuple[ort.InferenceSession, dict[str, ort.OrtValue]]:
    """Create a session, and return it with the weights that it reads: these must outlive it.

    The runtime copies weights into its memory, like the weights of a model's file. On a CPU it reads huge weights of an
    optimised network in place, or packs them. They are not aligned like its own, which does not show.

    Raises:
        UnsupportedBrick: The runtime cannot express the network.
        BackendError: The runtime failed.
        MemoryError: Not enough memory.
    """
    import onnxruntime as ort

    weights = {name: value_of(array) for name, array in network.weights.items()}
    source = str(network.path) if network.model is None else network.model.SerializeToString()
    with WORDING.translating(spell=partial(clear_refusal, network.structure, ort.__version__)):
        if weights:
            options.add_external_initializers(list(weights), list(weights.values()))
        if network.as_is and [*providers] == [CPU]:
            for name in (name for name, array in network.weights.items() if array.nbytes >= HUGE_BYTES):
                options.add_initializer(name, weights[name])
        return ort.InferenceSession(source, options, providers=providers, enable_fallback=0), weights


class OrtExecutable(Executable):
    """A session. The first run lets the runtime allocate the outputs; they are then bound for all later ones.

    Inputs never change, so that neither do the shapes of outputs.
    """

    def __init__(self, session: ort.InferenceSession, network: Network, weights: Any, *, bound: bool) -> None:
        self._session = session
        self._weights = weights
        self._structure = network.structure
        self._names = network.outputs
        self._binding = session.io_binding()
        self._inputs: Any = self._bind_inputs(network)
        self._places = self._output_places()
        shared = network.shared if isinstance(self._inputs, dict) else {}
        for name in self._names:
            if name in shared:
                self._binding.bind_ortvalue_output(name, self._inputs[shared[name]])
            else:
                self._binding.bind_output(name, self._places[name])
        unshared_names = [name for name in self._names if name not in shared]
        self._repeat: Callable[[], None] = partial(session.run_with_iobinding, self._binding)
        self._step = self._first if bound else partial(self._anew, unshared_names)

    def _bind_inputs(self, network: Network) -> Any:
        """Bind all inputs; the result must live as long as they are bound."""
        values = {name: value_of(array) for name, array in network.feeds.items()}
        for name, value in values.items():
            self._binding.bind_ortvalue_input(name, value)
        self._feeds = [array for array in network.feeds.values() if array.dtype.kind == "f" and array.flags.writeable]
        return values

    def _output_places(self) -> Mapping[str, str]:
        """Return the device and place of each output."""
        return dict.fromkeys(self._names, "cpu")

    def refresh(self) -> None:
        """Write the inputs (see ``Executable``); they share the memory of the feeds."""
        for array in self._feeds:
            np.multiply(array, 1, out=array)

    def run(self) -> None:
        """Execute once (see ``Executable``)."""
        try:
            self._step()
        except Exception as error:  # the runtime's exceptions share no base class
            raise WORDING.meaning(error, spell=partial(with_places, self._structure)) from error

    def synchronize(self) -> None:
        """Wait for the outputs (see ``Executable``)."""
        self._binding.synchronize_outputs()

    def outputs(self) -> list[npt.NDArray[Any]]:
        """Return copies of the outputs (see ``Executable``)."""
        return [array_of(value) for value in self._binding.get_outputs()]

    def output_bytes(self) -> int:
        """Of tensors (see ``Executable``)."""
        return sum(bytes_of(value) for value in self._binding.get_outputs() if value.is_tensor())

    def close(self) -> None:
        """Free the session (see ``Executable``)."""
        self._step = self._repeat = released
        self._structure = onnx.ModelProto
        del self._binding, self._session, self._inputs, self._weights

    def _first(self) -> None:
        self._repeat()
        declared = {output.name: output.shape for output in self._session.get_outputs()}
        loose: list[str] = []
        for name, value in zip(self._names, self._binding.get_outputs(), strict=True):
            if not value.is_tensor() or value.data_type() == "tensor(string)":
                continue
            if _fits(value.shape(), declared[name]):
                self._binding.bind_ortvalue_output(name, value)
            else:
                loose.append(name)
        self._step = partial(self._anew, loose) if loose else self._repeat

    def _anew(self, loose: Sequence[str]) -> None:
        """Let the runtime allocate some outputs again, since a binding keeps the last run's outputs."""
        for name in loose:
            self._binding.bind_output(name, self._places[name])
        self._repeat()


def _fits(shape: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    """Return True if an output has the declared size; the runtime computes other sizes but cannot bind them.

    Some sizes depend on the values of inputs; some outputs, for example numbers, have no declared size.
    """
    sizes_agree = len(shape) == len(declared) and all(
        not isinstance(said, int) or said == size for size, said in zip(shape, declared, strict=True)
    )
    return sizes_agree or not declared


class _OrtProfiled(OrtExecutable, PackedExecutable):
    """A session that profiles itself into a separate folder."""

    def __init__(
        self,
        session: ort.InferenceSession,
        network: Network,
        weights: Any,
        *,
        bound: bool,
        folder: tempfile.TemporaryDirectory[str],
    ) -> None:
        super().__init__(session, network, weights, bound=bound)
        self._nodes = frozenset(node.name for node in network.brick.graph.node)
        self._folder: tempfile.TemporaryDirectory[str] | None = folder

    def end(self) -> NodeTimes:
        assert self._folder is not None  # noqa: S101  # it ends once
        self._session.end_profiling()
        try:
            return node_times(read_profile(Path(self._folder.name), lean=True), self._nodes)
        finally:
            self._drop()

    def close(self) -> None:
        super().close()  # which ends the profile, where nobody asked for it
        self._drop()

    def _drop(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class OrtStrings(Executable):
    """A session that reads strings, which cannot be bound: inputs and outputs are converted by each run."""

    def __init__(self, session: ort.InferenceSession, network: Network, weights: Any) -> None:
        self._weights = weights
        self._latest: list[npt.NDArray[Any]] = []
        self._call: Callable[[], Any] = partial(session.run, list(network.outputs), dict(network.feeds))

    def run(self) -> None:
        """Execute once, and wait (see ``Executable``)."""
        try:
            self._latest = self._call()
        except Exception as error:  # the runtime's exceptions share no base class
            raise WORDING.meaning(error) from error

    def outputs(self) -> list[npt.NDArray[Any]]:
        """Of the last run (see ``Executable``)."""
        return [np.asarray(value) for value in self._latest]

    def output_bytes(self) -> int:
        """Of the last run (see ``Executable``)."""
        return sum(array.nbytes for array in self.outputs())

    def close(self) -> None:
        """Free the session (see ``Executable``)."""
        self._call = released
        self._latest = []


def value_of(array: npt.NDArray[Any]) -> ort.OrtValue:
    """Return an array as a runtime value, without a copy if the runtime can read the array."""
    import onnxruntime as ort

    if _is_plain(array.dtype):
        return ort.OrtValue.ortvalue_from_numpy(array)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, helper.np_dtype_to_tensor_dtype(array.dtype))


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Return True for NumPy's types, which the runtime converts without help."""
    return dtype.isbuiltin == 1 and dtype.kind in "biufcO"


def bytes_of(value: ort.OrtValue) -> int:
    """Of a tensor; types of four bits share bytes (ONNX Runtime says it itself since 1.22)."""
    dtype = helper.tensor_dtype_to_np_dtype(value.element_type())
    bits = 4 if dtype.name in _NIBBLES else 8 * dtype.itemsize
    return -(-int(math.prod(value.shape())) * bits // 8)


def array_of(value: ort.OrtValue) -> npt.NDArray[Any]:
    """Return a copy of a tensor, in NumPy's or ml_dtypes' type."""
    if not value.is_tensor():
        raise BackendError(f"an output is a {value.data_type()}, not a tensor")
    dtype = helper.tensor_dtype_to_np_dtype(value.element_type())
    if _is_plain(dtype):
        return np.array(value.numpy())
    data = ctypes.string_at(value.data_ptr(), bytes_of(value))
    return np.frombuffer(data, dtype=dtype).reshape(value.shape())


# The kernels that ONNX Runtime executes, from its own profile.
#
# The profile names nodes by operator, not by domain; two kernels of one operator, such as the plain and the blocked
# convolution, are distinguished by the optimised model that the session saves beside it. Node names stay out: they are
# those of the user's model.
#
# On a GPU the profile has the time of launching a kernel, not of the kernel: that is no time of a kernel, and left out.


_SOURCE = "onnxruntime profiling"
_INLINE_BYTES = 1024
_NS_PER_US = 1000

_CONTAINERS = frozenset({"If", "Loop", "Scan"})
"""Control flow: the profile lists the nodes in its bodies, too."""


def profiled(
    options: ort.SessionOptions, load: Callable[[ort.SessionOptions], Executable], executions: int
) -> KernelView:
    """Load a network with profiling on, run it, and read the profile.

    Args:
        options: Options of the session; profiling is switched on in it.
        load: Creates the session.
        executions: Number of profiled executions, after one warm-up.

    Raises:
        BackendError: The profile is missing, or the runtime failed.
        UnsupportedBrick: The runtime cannot express the network.
        MemoryError: Not enough memory.
    """
    with _profile(options) as folder:
        model = folder / "optimised.onnx"
        save_graph(options, model, "weights", least=_INLINE_BYTES)
        executable = load(options)
        try:
            domains = _domains(onnx.load(str(model), load_external_data=False).graph)
            executable.run()
            executable.synchronize()
            walls_ns = [executable.timed_ns() for _ in range(executions)]
        finally:
            executable.close()  # with the session its profile ends
        events = read_profile(folder)
    return kernel_view([launches(nodes, domains) for nodes in runs(events)[-executions:]], walls_ns, _SOURCE)


@contextmanager
def _profile(options: ort.SessionOptions) -> Iterator[Path]:
    """Switch profiling on in the options of a session, and return the folder of the profile."""
    with tempfile.TemporaryDirectory(prefix="dlbricks-profile-") as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / PREFIX)
        yield Path(folder)


def traced(options: ort.SessionOptions, load: Callable[[ort.SessionOptions], Executable]) -> dict[str, int]:
    """Load a network with profiling on, run it once, and count the calls of its nodes by their names.

    Raises:
        As ``profiled``.
    """
    with _profile(options) as folder:
        executable = load(options)
        try:
            executable.run()
        finally:
            executable.close()  # with the session its profile ends
        executions = runs(read_profile(folder))
    if not executions:
        raise BackendError("ONNX Runtime's profile has no execution")
    return dict(Counter(node["name"].removesuffix(KERNEL) for node in executions[-1]))


def launches(nodes: Sequence[Mapping[str, Any]], domains: Mapping[str, Mapping[str, str]]) -> list[Launch]:
    """Return the kernels of one execution."""
    kernels: list[Launch] = []
    for node in nodes:
        operator, provider = node["args"]["op_name"], node["args"]["provider"]
        if operator in _CONTAINERS:
            continue
        domains_by_node = domains.get(operator, {})
        domain = domains_by_node.get(node["name"].removesuffix(KERNEL), "")
        if len(set(domains_by_node.values())) == 1:
            (domain,) = set(domains_by_node.values())
        name = f"{domain}.{operator}" if domain else operator
        kernels.append((name, operator, provider, node["dur"] * _NS_PER_US if provider == CPU else None))
    return kernels


def _domains(graph: onnx.GraphProto) -> dict[str, dict[str, str]]:
    """Per operator the domain of each node of it, by the node's name."""
    domains: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for node in all_nodes(graph.node):
        domains[node.op_type][node.name] = plain_domain(node.domain)
    return dict(domains)
