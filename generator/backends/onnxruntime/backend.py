"""ONNX Runtime."""

from __future__ import annotations

import ctypes
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....db.values import KernelView
from ....errors import BackendError, BackendUnavailable
from ...network.network import Network
from ..base import (
    AS_GIVEN,
    Algorithm,
    Executable,
    ExecutedGraph,
    NodeTimes,
    Option,
    PackedExecutable,
    Settings,
    bind,
    released,
)
from ..package import PackagedBackend
from ..wording import Wording
from .options import LEVELS, OPTIONS, algorithms
from .profile import PREFIX, node_times, read_profile

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["OrtBackend"]

_INT8 = "int8"
"""Matrix products in eight bits, quantized dynamically (``quantised``)."""

_REORDERS = frozenset({"ReorderInput", "ReorderOutput"})
"""Changes between the network's own layout and the blocked one."""

_SILENT = 4
"""Log severity 'fatal': errors come as exceptions, and only once."""

_WORDING = Wording(
    "ONNX Runtime",
    unsupported=re.compile(
        r"NOT_IMPLEMENTED|INVALID_GRAPH|is not a registered function/op|No Op registered for|Could not find an "
        r"implementation|Type Error|Opset \d+ is under development|Unsupported model IR version|"
        r"No opset import for domain"
    ),
    noise=re.compile(
        r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Exception during initialization: )?|Load model from .+? failed:"
    ),
)


class OrtBackend(PackagedBackend):
    """ONNX Runtime on the CPU: sessions with bound inputs and outputs."""

    name = "onnxruntime"
    dtypes = (AS_GIVEN, _INT8)
    module = "onnxruntime"
    distributions = (
        "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-qnn",
    )  # fmt: skip
    install = "pip install onnxruntime"

    def declared(self, device: str) -> Sequence[Option]:  # noqa: ARG002
        """The same on every device."""
        return OPTIONS

    def algorithms(self, device: str, options: Mapping[str, str], dtype: str) -> tuple[Algorithm, ...]:  # noqa: ARG002
        """Levels of optimisation, weights packed ahead or not, and padded channels (see ``AlgorithmBackend``)."""
        return algorithms(options)

    def setup(self, settings: Settings) -> None:
        """Bind the calling thread to the first physical core; the pool's threads get the next ones.

        With ``execution=parallel`` all threads share all cores: those of the second pool cannot be bound one by one,
        and would inherit the core that the calling thread is bound to.

        Raises:
            UsageError: More threads than cores: all that are left over would share one core.
            BackendUnavailable: The runtime cannot be loaded.
            BackendError: The system does not allow it.
        """
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise BackendUnavailable(f"onnxruntime cannot be loaded: {error}") from error
        ort.set_default_logger_severity(_SILENT)
        cores = settings.cores[:1]
        if settings.options["execution"] == "parallel":
            cores = settings.cores
        elif _global_pool(settings):
            cores = settings.cores[: settings.threads]
        bind(settings, cores)
        if _global_pool(settings):
            ort.set_global_thread_pool_sizes(settings.threads, max(int(settings.options["inter_op"]), 1))

    def prepare(self, network: Network, settings: Settings) -> Executable:
        """Create a session and bind its inputs (see ``Backend``)."""
        network = _in_precision(network, settings)
        return _loaded(network, settings, self._session_options(network, settings))

    def kernels(self, network: Network, settings: Settings, executions: int) -> KernelView:
        """Its own profile (see ``ProfilingBackend``)."""
        from .kernels import profiled

        network = _in_precision(network, settings)
        options = self._session_options(network, settings)
        return profiled(options, partial(_loaded, network, settings), executions)

    def prepare_packed(self, network: Network, settings: Settings) -> PackedExecutable:
        """A session that profiles itself (see ``PackingBackend``)."""
        options = self._session_options(network, settings)
        options.enable_profiling = True
        folder = tempfile.TemporaryDirectory(prefix="dlbricks-profile-")
        options.profile_file_prefix = str(Path(folder.name) / PREFIX)
        try:
            session, weights = _session(network, options)
            bound = settings.options["binding"] == "bound"
            return _OrtProfiled(session, network, weights, bound=bound, folder=folder)
        except BaseException:
            folder.cleanup()
            raise

    def edges(self, network: Network) -> frozenset[int]:
        """The reorders at its edges, and the poolings behind blocked summands (see ``PackingBackend``)."""
        from .summands import is_idle_pooling

        assert network.model is not None  # noqa: S101  # a brick, never a file
        outside = {*network.feeds, *network.outputs}
        found: set[int] = set()
        for place, node in enumerate(network.model.graph.node):
            if node.op_type in _REORDERS and outside.intersection((node.input[0], node.output[0])):
                found.add(place)
                outside.update(node.output if node.input[0] in network.feeds else ())
            elif is_idle_pooling(node) and node.input[0] in outside:
                found.add(place)
        return frozenset(found)

    def optimised_bricks(self, network: Network, settings: Settings) -> Network:
        """With sums fused into convolutions as in a model (see ``PackingBackend``)."""
        from .summands import with_blocked_summands

        optimised = self.optimised(network, settings)
        blocked = with_blocked_summands(network, optimised)
        return optimised if blocked is None else self.optimised(blocked, settings)

    def executed_graph(self, network: Network, settings: Settings) -> ExecutedGraph:
        """Of the very session that ``prepare`` creates (see ``GraphBackend``)."""
        from .graph import executed_graph

        weights = {name: _value(array) for name, array in network.weights.items()}
        feeds = {name: _value(array) for name, array in network.feeds.items()}
        make_options = partial(self._session_options, network, settings)
        try:
            return executed_graph(network, weights, feeds, make_options, _level(network, settings))
        except Exception as error:  # the runtime's exceptions share no base class
            raise _WORDING.meaning(error) from error

    def in_turn(self, options: Mapping[str, str]) -> bool:
        """Unless nodes run in parallel: bricks would then run at once."""
        return options["execution"] == "sequential" or int(options["inter_op"]) <= 1

    def optimised(self, network: Network, settings: Settings) -> Network:
        """Saved by a session and read back (see ``OptimisingBackend``)."""
        from .optimised import optimised_network

        network = _in_precision(network, settings)
        weights = {name: _value(array) for name, array in network.weights.items()}
        try:
            return optimised_network(network, weights, partial(self._session_options, network, settings))
        except Exception as error:  # the runtime's exceptions share no base class
            raise _WORDING.meaning(error) from error

    def _session_options(self, network: Network, settings: Settings) -> ort.SessionOptions:
        import onnxruntime as ort

        chosen = settings.options
        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[_level(network, settings)])
        options.intra_op_num_threads = settings.threads
        options.inter_op_num_threads = max(int(chosen["inter_op"]), 1)
        if chosen["execution"] == "parallel":
            options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        options.enable_cpu_mem_arena = chosen["arena"] == "on"
        options.enable_mem_pattern = chosen["memory_pattern"] == "on"
        spinning = "1" if chosen["spinning"] == "on" else "0"
        options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        options.add_session_config_entry("session.inter_op.allow_spinning", spinning)
        if chosen["denormal_as_zero"] == "on":
            options.add_session_config_entry("session.set_denormal_as_zero", "1")
        if chosen["prepacking"] == "off":
            options.add_session_config_entry("session.disable_prepacking", "1")
        cores = _pool_cores(settings)
        if _global_pool(settings):
            options.use_per_session_threads = False
        elif cores:
            options.add_session_config_entry("session.intra_op_thread_affinities", ";".join(map(str, cores)))
        for name, size in network.overrides.items():
            options.add_free_dimension_override_by_name(name, size)
        return options


def _loaded(network: Network, settings: Settings, options: ort.SessionOptions) -> Executable:
    """A session with its inputs bound."""
    session, weights = _session(network, options)
    try:
        if any(array.dtype == object for array in network.feeds.values()):
            return _OrtStrings(session, network, weights)
        return _OrtExecutable(session, network, weights, bound=settings.options["binding"] == "bound")
    except Exception as error:  # the runtime's exceptions share no base class
        raise _WORDING.meaning(error) from error


def _session(network: Network, options: ort.SessionOptions) -> tuple[ort.InferenceSession, dict[str, ort.OrtValue]]:
    """A session, and the weights that it reads: they are handed over, not copied, and must live as long as it."""
    import onnxruntime as ort

    weights = {name: _value(array) for name, array in network.weights.items()}
    source = str(network.path) if network.model is None else network.model.SerializeToString()
    try:
        if weights:
            options.add_external_initializers(list(weights), list(weights.values()))
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]), weights
    except Exception as error:  # the runtime's exceptions share no base class
        raise _WORDING.meaning(error) from error


class _OrtExecutable:
    """A session. The first run lets the runtime allocate the outputs; they are then bound for all later ones.

    Inputs never change, so that neither do the shapes of outputs.
    """

    def __init__(self, session: ort.InferenceSession, network: Network, weights: Any, *, bound: bool) -> None:
        self._session = session
        self._weights = weights
        self._names = network.outputs
        self._binding = session.io_binding()
        self._inputs = {name: _value(array) for name, array in network.feeds.items()}
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name in self._names:
            self._binding.bind_output(name, "cpu")
        self._repeat: Callable[[], None] = partial(session.run_with_iobinding, self._binding)
        self._step = self._first if bound else self._repeat

    def run(self) -> None:
        try:
            self._step()
        except Exception as error:  # the runtime's exceptions share no base class
            raise _WORDING.meaning(error) from error

    def synchronize(self) -> None:
        self._binding.synchronize_outputs()

    def outputs(self) -> list[npt.NDArray[Any]]:
        return [_array(value) for value in self._binding.get_outputs()]

    def output_bytes(self) -> int:
        return sum(value.tensor_size_in_bytes() for value in self._binding.get_outputs() if value.is_tensor())

    def close(self) -> None:
        self._step = self._repeat = released
        del self._binding, self._session, self._inputs, self._weights

    def _first(self) -> None:
        self._repeat()
        for name, value in zip(self._names, self._binding.get_outputs(), strict=True):
            if value.is_tensor() and value.data_type() != "tensor(string)":
                self._binding.bind_ortvalue_output(name, value)
        self._step = self._repeat


class _OrtProfiled(_OrtExecutable):
    """A session that profiles itself into a folder of its own."""

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
        assert network.model is not None  # noqa: S101  # a pack, never a file
        self._nodes = frozenset(node.name for node in network.model.graph.node)
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


class _OrtStrings:
    """A session that reads strings, which cannot be bound: inputs and outputs are converted by each run."""

    def __init__(self, session: ort.InferenceSession, network: Network, weights: Any) -> None:
        self._weights = weights
        self._latest: list[npt.NDArray[Any]] = []
        self._call: Callable[[], Any] = partial(session.run, list(network.outputs), dict(network.feeds))

    def run(self) -> None:
        try:
            self._latest = self._call()
        except Exception as error:  # the runtime's exceptions share no base class
            raise _WORDING.meaning(error) from error

    def synchronize(self) -> None:
        pass

    def outputs(self) -> list[npt.NDArray[Any]]:
        return [np.asarray(value) for value in self._latest]

    def output_bytes(self) -> int:
        return sum(array.nbytes for array in self.outputs())

    def close(self) -> None:
        self._call = released
        self._latest = []


def _global_pool(settings: Settings) -> bool:
    """Whether all sessions share one pool of threads: pools of their own would spin against each other.

    The threads of the shared pool always spin; those that are not to spin do not mind each other. They are not bound
    one by one; the process is bound to as many cores as it has threads.
    """
    return settings.together and settings.threads > 1 and settings.options["spinning"] == "on"


def _in_precision(network: Network, settings: Settings) -> Network:
    """The network in the precision that was asked for; what runs as it stands is so already."""
    if settings.dtype == AS_GIVEN or network.as_is:
        return network
    from .quantised import quantised_network

    return quantised_network(network)


def _level(network: Network, settings: Settings) -> str:
    """The level of graph optimisation: none for what has been optimised."""
    return "disabled" if network.as_is else settings.options["optimization"]


def _pool_cores(settings: Settings) -> list[int]:
    """Logical processors, counted from 1, of the pool's threads: all but the calling one; empty: not bound."""
    if settings.options["pinning"] == "off" or settings.options["execution"] == "parallel":
        return []
    return [core + 1 for core in settings.cores[1 : settings.threads]]


def _value(array: npt.NDArray[Any]) -> ort.OrtValue:
    """Hand an array over, without a copy where the runtime can read it."""
    import onnxruntime as ort
    from onnx import helper

    if array.dtype.kind in "biufcO":
        return ort.OrtValue.ortvalue_from_numpy(array)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, helper.np_dtype_to_tensor_dtype(array.dtype))


def _array(value: ort.OrtValue) -> npt.NDArray[Any]:
    """A copy of a tensor, in NumPy's or ml_dtypes' type."""
    from onnx import helper

    if not value.is_tensor():
        raise BackendError(f"an output is a {value.data_type()}, not a tensor")
    dtype = helper.tensor_dtype_to_np_dtype(value.element_type())
    if dtype.kind in "biufcO":
        return np.array(value.numpy())
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(data, dtype=dtype).reshape(value.shape())
