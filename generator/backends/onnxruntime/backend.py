"""ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ....db.values import NATIVE, KernelView
from ....errors import BackendError, BackendUnavailable
from ...device.device import Device, Run
from ...device.opening import open_device
from ...network.network import Network
from ..algorithms import Algorithm
from ..base import Executable, ExecutedGraph, Option, PackedExecutable, Settings, bind
from ..custom_ops import CUSTOM_OPS, checked
from ..package import PackagedBackend
from ..requirements import require_dtype
from ..streams import StreamedExecutable
from .configuration import SILENT, graph_options, has_global_pool, level, session_options
from .optimiser import REORDERS, TRAITS, channels_last_values
from .options import GPU_OPTIONS, OPTIONS, algorithms
from .provider import missing_for_cuda, providers, require_cuda, streaming
from .session import WORDING, OrtExecutable, OrtStrings, created, loaded, loaded_profiled, value_of

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["OrtBackend"]

_INT8 = "int8"
"""Matrix products in eight bits, quantized dynamically (``quantised``)."""

_FLOAT16 = "float16"
"""All numbers of float32 in 16 bits (``float16``)."""

_FIRST_RUNS = 3
"""Runs after which nothing changes any more: cuDNN's algorithms are chosen, outputs bound, a graph captured."""


class OrtBackend(PackagedBackend):
    """ONNX Runtime on the CPU, or on a GPU through CUDA: sessions with bound inputs and outputs."""

    name = "onnxruntime"
    devices = ("cpu", "cuda")
    dtypes = (NATIVE, _INT8, _FLOAT16)
    module = "onnxruntime"
    distributions = (
        "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-qnn",
    )  # fmt: skip
    install = "pip install onnxruntime"
    optimiser = TRAITS

    def declared(self, device: str) -> Sequence[Option]:
        """Those of the device: threads and memory of the CPU, or what the CUDA provider can be set to."""
        return GPU_OPTIONS if device == "cuda" else OPTIONS

    def resolve(self, device: str, options: Mapping[str, str]) -> dict[str, str]:
        """With ``custom_ops`` only where libraries are named: other stacks are what they were before there was any."""
        named = {name: checked(value) for name, value in options.items() if name == CUSTOM_OPS and value}
        plain = {name: value for name, value in options.items() if name != CUSTOM_OPS}
        return super().resolve(device, plain) | named

    def missing(self, device: str) -> str:
        """A build with CUDA, CuPy, or the driver, where a GPU is asked for."""
        return missing_for_cuda() if device == "cuda" else ""

    def dtypes_on(self, device: str) -> tuple[str, ...]:
        """Matrix products in eight bits on the CPU alone, 16 bits on a GPU alone (see ``dtypes_on``)."""
        return tuple(dtype for dtype in self.dtypes if dtype != (_FLOAT16 if device == "cpu" else _INT8))

    def algorithms(self, device: str, options: Mapping[str, str], dtype: str) -> tuple[Algorithm, ...]:  # noqa: ARG002
        """Levels of optimisation, layouts of weights or images, and padded channels (see ``AlgorithmBackend``)."""
        return algorithms(device, options)

    def setup(self, settings: Settings) -> None:
        """Bind the calling thread to the first physical core; the pool's threads get the next ones.

        With ``execution=parallel`` all threads share all cores: those of the second pool cannot be bound one by one,
        and would inherit the core that the calling thread is bound to.

        Raises:
            UsageError: More threads than cores: all that are left over would share one core; or the device does not
                have the precision.
            BackendUnavailable: The runtime cannot be loaded, or not with CUDA.
            BackendError: The system does not allow it.
        """
        require_dtype(self, settings.dtype, settings.device)
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise BackendUnavailable(f"onnxruntime cannot be loaded: {error}") from error
        ort.set_default_logger_severity(SILENT)
        if settings.device == "cpu":
            cores = settings.cores[:1]
            if settings.options["execution"] == "parallel":
                cores = settings.cores
            elif has_global_pool(settings):
                cores = settings.cores[: settings.threads]
            bind(settings, cores)
        if has_global_pool(settings):
            ort.set_global_thread_pool_sizes(settings.threads, max(int(settings.options.get("inter_op", "1")), 1))
        if settings.device == "cuda":
            require_cuda()

    def prepare(self, network: Network, settings: Settings) -> Executable:
        """Create a session and bind its inputs (see ``Backend``)."""
        network = _in_precision(network, settings)
        return _load(network, settings, session_options(network, settings))

    def device(self, settings: Settings) -> Device:
        """Whose stream all sessions enqueue in (see ``StreamBackend``)."""
        bound = settings.options.get("pinning") == "on"
        return open_device(settings.device, settings.cores[: settings.threads] if bound else ())

    def prepare_streamed(self, network: Network, settings: Settings) -> StreamedExecutable:
        """As ``prepare``, and run until algorithms are chosen and a graph is captured (see ``StreamBackend``)."""
        network = _in_precision(network, settings)
        executable = _load(network, settings, session_options(network, settings))
        try:
            for _ in range(_FIRST_RUNS):
                executable.run()
            executable.synchronize()
        except BaseException:
            executable.close()
            raise
        return executable

    def captured(self, run: Run, settings: Settings) -> Run:  # noqa: ARG002
        """The pass itself: sessions allocate, and with ``mode=graph`` each one launches a graph of its own."""
        return run

    def kernels(self, network: Network, settings: Settings, executions: int) -> KernelView:
        """Its own profile, on a GPU without the times of kernels (see ``ProfilingBackend``)."""
        from .kernels import profiled

        network, settings = _in_precision(network, settings), streaming(settings)
        return profiled(session_options(network, settings), partial(_load, network, settings), executions)

    def calls(self, network: Network, settings: Settings) -> dict[str, int]:
        """From its own profile (see ``TracingBackend``)."""
        from .kernels import traced

        network = replace(network, as_is=True)
        return traced(session_options(network, settings), partial(_load, network, settings))

    def prepare_packed(self, network: Network, settings: Settings) -> PackedExecutable:
        """A session that profiles itself (see ``PackingBackend``)."""
        return loaded_profiled(network, settings, session_options(network, settings))

    def edges(self, network: Network) -> frozenset[int]:
        """The reorders at its edges, and the poolings behind blocked summands (see ``PackingBackend``)."""
        from .summands import is_idle_pooling

        assert network.model is not None  # noqa: S101  # a brick, never a file
        outside = {*network.feeds, *network.outputs}
        last = channels_last_values(network.model.graph.node)
        found: set[int] = set()
        for place, node in enumerate(network.model.graph.node):
            changes = node.op_type in REORDERS or (
                node.op_type == "Transpose" and not last.isdisjoint((node.input[0], node.output[0]))
            )
            if changes and outside.intersection((node.input[0], node.output[0])):
                found.add(place)
                outside.update(node.output if node.input[0] in network.feeds else ())
            elif is_idle_pooling(node) and node.input[0] in outside:
                found.add(place)
        return frozenset(found)

    def optimised_bricks(self, network: Network, settings: Settings) -> Network:
        """With sums fused into convolutions, and poolings of bytes laid out, as in a model (see ``PackingBackend``)."""
        from .channels_last import with_pools_channels_last
        from .summands import with_blocked_summands

        optimised = self.optimised(network, settings)
        blocked = with_blocked_summands(network, optimised)
        return with_pools_channels_last(optimised if blocked is None else self.optimised(blocked, settings))

    def executed_graph(self, network: Network, settings: Settings) -> ExecutedGraph:
        """Of a session like that of ``prepare``, but for packed weights (see ``GraphBackend``)."""
        from .graph import executed_graph

        weights = {name: value_of(array) for name, array in network.weights.items()}
        feeds = {name: value_of(array) for name, array in network.feeds.items()}
        settings = streaming(settings)
        make_options = partial(graph_options, network, settings)
        try:
            return executed_graph(
                network, weights, feeds, make_options, level=level(network, settings), providers=providers(settings)
            )
        except Exception as error:  # the runtime's exceptions share no base class
            raise WORDING.meaning(error) from error

    def in_turn(self, options: Mapping[str, str]) -> bool:
        """Unless nodes run in parallel: bricks would then run at once."""
        return options.get("execution", "sequential") == "sequential" or int(options["inter_op"]) <= 1

    def optimised(self, network: Network, settings: Settings) -> Network:
        """Saved by a session and read back (see ``OptimisingBackend``).

        On a GPU, what no session can read back is left to be optimised by the session that runs it.
        """
        from .optimised import left_to_session, optimised_network

        network, settings = _in_precision(network, settings), streaming(settings)
        weights = {name: value_of(array) for name, array in network.weights.items()}
        make_options = partial(graph_options, network, settings)
        try:
            found = optimised_network(network, weights, make_options, providers(settings))
            if settings.device != "cpu":
                created(found, session_options(found, settings), providers(settings))
        except Exception as error:  # the runtime's exceptions share no base class
            meaning = WORDING.meaning(error)
            if settings.device != "cpu" and network.model is not None and isinstance(meaning, BackendError):
                return left_to_session(network)
            raise meaning from error
        return found


def _in_precision(network: Network, settings: Settings) -> Network:
    """The network in the precision that was asked for; what runs as it stands is so already."""
    if settings.dtype == NATIVE or network.as_is:
        return network
    if settings.dtype == _INT8:
        from .quantised import quantised_network

        return quantised_network(network)
    from .float16 import float16_network

    return float16_network(network)


def _load(network: Network, settings: Settings, options: ort.SessionOptions) -> OrtExecutable | OrtStrings:
    """A session on the device of the settings, with its inputs bound."""
    if settings.device == "cpu":
        return loaded(network, settings, options)
    from .cuda import loaded_on_gpu

    return loaded_on_gpu(network, settings, options)
