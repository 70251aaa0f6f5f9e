"""ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ....db.values import KernelView
from ....errors import BackendUnavailable
from ...network.network import Network
from ..algorithms import Algorithm
from ..base import AS_GIVEN, Executable, ExecutedGraph, Option, PackedExecutable, Settings, bind
from ..package import PackagedBackend
from .options import LEVELS, OPTIONS, algorithms
from .session import WORDING, loaded, loaded_profiled, value_of

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["OrtBackend"]

_INT8 = "int8"
"""Matrix products in eight bits, quantized dynamically (``quantised``)."""

_REORDERS = frozenset({"ReorderInput", "ReorderOutput"})
"""Changes between the network's own layout and the blocked one."""

_SILENT = 4
"""Log severity 'fatal': errors come as exceptions, and only once."""


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
        return loaded(network, settings, self._session_options(network, settings))

    def kernels(self, network: Network, settings: Settings, executions: int) -> KernelView:
        """Its own profile (see ``ProfilingBackend``)."""
        from .kernels import profiled

        network = _in_precision(network, settings)
        options = self._session_options(network, settings)
        return profiled(options, partial(loaded, network, settings), executions)

    def prepare_packed(self, network: Network, settings: Settings) -> PackedExecutable:
        """A session that profiles itself (see ``PackingBackend``)."""
        return loaded_profiled(network, settings, self._session_options(network, settings))

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

        weights = {name: value_of(array) for name, array in network.weights.items()}
        feeds = {name: value_of(array) for name, array in network.feeds.items()}
        make_options = partial(self._session_options, network, settings)
        try:
            return executed_graph(network, weights, feeds, make_options, _level(network, settings))
        except Exception as error:  # the runtime's exceptions share no base class
            raise WORDING.meaning(error) from error

    def in_turn(self, options: Mapping[str, str]) -> bool:
        """Unless nodes run in parallel: bricks would then run at once."""
        return options["execution"] == "sequential" or int(options["inter_op"]) <= 1

    def optimised(self, network: Network, settings: Settings) -> Network:
        """Saved by a session and read back (see ``OptimisingBackend``)."""
        from .optimised import optimised_network

        network = _in_precision(network, settings)
        weights = {name: value_of(array) for name, array in network.weights.items()}
        try:
            return optimised_network(network, weights, partial(self._session_options, network, settings))
        except Exception as error:  # the runtime's exceptions share no base class
            raise WORDING.meaning(error) from error

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
        options.enable_mem_reuse = settings.memory_reuse
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
