"""ONNX Runtime and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ....db.values import NATIVE, KernelView
from ....errors import BackendError, BackendUnavailable, UsageError
from ....models.subgraphs import all_nodes
from ...network.decoding import DecoderFile
from ...network.network import Network
from .. import base
from ..custom_ops import CUSTOM_OPS, checked, files_of
from ..reports import own_names
from . import executed_nodes, session

if TYPE_CHECKING:
    import onnxruntime as ort

# Options of ONNX Runtime that can change a latency, the algorithms among them, and what a session is told of them.


LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_SWITCH = ("on", "off")

_LEVEL = base.Option("optimization", "all", tuple(LEVELS), "graph optimisation level")

OPTIONS = (
    _LEVEL,
    base.Option("execution", "sequential", ("sequential", "parallel"), "whether independent nodes run in parallel"),
    base.Option("inter_op", "1", (), "threads for independent nodes, with execution=parallel"),
    base.Option("prepacking", "on", _SWITCH, "store weights as the kernels read them while a network is loaded"),
    base.Option("arena", "on", _SWITCH, "keep freed memory for the next allocation"),
    base.Option("memory_pattern", "on", _SWITCH, "plan all allocations of a run as one block"),
    base.Option("spinning", "on", _SWITCH, "idle threads spin for work before they sleep"),
    base.Option("denormal_as_zero", "off", _SWITCH, "treat denormal numbers as zero"),
    base.Option("pinning", "on", _SWITCH, "bind the threads to the first physical cores"),
    base.Option(
        "binding", "bound", ("bound", "allocated"), "outputs: into buffers bound ahead, or allocated by each run"
    ),
)
"""Part of every stack on the CPU."""

GPU_OPTIONS = (
    _LEVEL,
    base.Option("mode", "stream", ("stream", "graph"), "each run launches its kernels, or a CUDA graph of the session"),
    base.Option("layout", "contiguous", ("contiguous", "channels_last"), "of images, where the provider may choose"),
    base.Option(
        "conv_search",
        "exhaustive",
        ("exhaustive", "heuristic", "default"),
        "cuDNN's algorithm of a convolution: all are tried by the first run, it is asked for, or always the same",
    ),
    base.TF32,
)
"""Part of every stack on a GPU."""

_SHARED = (
    base.Algorithm("unfused", {"optimization": "disabled"}, "as it is written: nothing is optimised"),
    base.Algorithm("basic", {"optimization": "basic"}, "no fused operators: each writes its result for the next"),
)

ALGORITHMS = {
    "cpu": (
        *_SHARED,
        base.Algorithm(
            "extended", {"optimization": "extended"}, "fused operators in the network's own layout, not the blocked one"
        ),
        base.Algorithm("full", {"optimization": "all"}, "fused operators, and convolutions in the blocked layout"),
        base.Algorithm("packed", {"prepacking": "on"}, "matrix products read weights that were packed ahead"),
        base.Algorithm(
            "unpacked", {"prepacking": "off"}, "matrix products read weights as they are stored, and pack as they go"
        ),
    ),
    "cuda": (
        *_SHARED,
        base.Algorithm("full", {"optimization": "all"}, "fused operators"),
        *base.LAYOUTS,
        base.Algorithm(
            "heuristic", {"conv_search": "heuristic"}, "the algorithm that cuDNN suggests for a convolution"
        ),
        base.Algorithm(
            "searched", {"conv_search": "exhaustive"}, "the algorithm that was fastest for a convolution when tried"
        ),
    ),
}
"""Options by device that take effect per session."""

SILENT = 4
"""Log severity 'fatal': errors come as exceptions, and only once."""


def session_options(network: Network, settings: base.Settings) -> ort.SessionOptions:
    """Fresh options for a session of a network."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = SILENT
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level(network, settings)])
    options.intra_op_num_threads = settings.threads
    options.enable_mem_reuse = settings.memory_reuse
    if settings.device == "cpu":
        _configure_cpu(options, settings)
    else:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if has_global_pool(settings):
        options.use_per_session_threads = False
    for path in files_of(settings.options).values():
        options.register_custom_ops_library(path)
    for name, size in network.overrides.items():
        options.add_free_dimension_override_by_name(name, size)
    return options


_UNPACKED_AT_EACH_CALL = frozenset({"MatMulNBits"})
"""Operators that convert all of their weights to floating point in each execution, unless a session packed them.

One token of a decoder of half a billion parameters took 0.9 s so, and 0.05 s with packed weights (EPYC, one thread).
"""


def graph_options(network: Network, settings: base.Settings) -> ort.SessionOptions:
    """Return the options of a session that only has to save its graph.

    It need not pack weights, which took two thirds of the creation time for BERT-base.
    """
    options = session_options(network, settings)
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def _configure_cpu(options: ort.SessionOptions, settings: base.Settings) -> None:
    import onnxruntime as ort

    chosen = settings.options
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
    if cores and not has_global_pool(settings):
        options.add_session_config_entry("session.intra_op_thread_affinities", ";".join(map(str, cores)))


def has_global_pool(settings: base.Settings) -> bool:
    """Return True if all sessions share one thread pool: separate pools would spin against each other.

    The threads of the shared pool always spin. Without spinning, separate pools do not disturb each other. Threads are
    not bound one by one; the process is bound to one core per thread.
    """
    return settings.together and settings.threads > 1 and settings.options.get("spinning", "on") == "on"


def level(network: Network, settings: base.Settings) -> str:
    """Return the level of graph optimisation: none for optimised networks."""
    return "disabled" if network.as_is and not executed_nodes.is_left(network) else settings.options["optimization"]


def _pool_cores(settings: base.Settings) -> list[int]:
    """Logical processors, counted from 1, of the pool's threads: all but the calling one; empty: not bound."""
    if settings.options["pinning"] == "off" or settings.options["execution"] == "parallel":
        return []
    return [core + 1 for core in settings.cores[1 : settings.threads]]


_INT8 = "int8"
"""Matrix products in eight bits, quantized dynamically (``quantised_network``)."""

_FLOAT16 = "float16"
"""All numbers of float32 in 16 bits (``float16_network``)."""

_FIRST_RUNS = 3
"""Runs after which nothing changes any more: cuDNN's algorithms are chosen, outputs bound, a graph captured."""


class OrtBackend(base.Backend):
    """ONNX Runtime on the CPU, or on a GPU through CUDA: sessions with bound inputs and outputs."""

    name = "onnxruntime"
    devices = ("cpu", "cuda")
    dtypes = (NATIVE, _INT8, _FLOAT16)
    module = "onnxruntime"
    distributions = (
        "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-qnn",
    )  # fmt: skip
    install = "pip install onnxruntime"
    optimiser = executed_nodes.TRAITS

    def declared(self, device: str) -> Sequence[base.Option]:
        """Return the options of the device: threads and memory of the CPU, or settings of the CUDA provider."""
        return GPU_OPTIONS if device == "cuda" else OPTIONS

    def resolve(self, device: str, options: Mapping[str, str]) -> dict[str, str]:
        """Resolve options; ``custom_ops`` appears only with libraries, so that other stacks keep their keys."""
        named = {name: checked(value) for name, value in options.items() if name == CUSTOM_OPS and value}
        plain = {name: value for name, value in options.items() if name != CUSTOM_OPS}
        return super().resolve(device, plain) | named

    def missing(self, device: str) -> str:
        """Return the missing part for a GPU: a build with CUDA, CuPy, or the driver."""
        return session.missing_for_cuda() if device == "cuda" else ""

    def dtypes_on(self, device: str) -> tuple[str, ...]:
        """Matrix products in eight bits on the CPU alone, 16 bits on a GPU alone (see ``Backend``)."""
        return tuple(dtype for dtype in self.dtypes if dtype != (_FLOAT16 if device == "cpu" else _INT8))

    def algorithms(self, device: str, options: Mapping[str, str], dtype: str) -> tuple[base.Algorithm, ...]:  # noqa: ARG002
        """Levels of optimisation, and layouts of weights or images (see ``Backend``)."""
        return base.differing(ALGORITHMS[device], options)

    def setup(self, settings: base.Settings) -> None:
        """Bind the calling thread to the first physical core; the pool's threads get the next ones.

        With ``execution=parallel`` all threads share all cores: the second pool's threads cannot be bound one by one,
        and would inherit the calling thread's core.

        Raises:
            UsageError: More threads than cores, which would then share one core; or the device lacks the precision.
            BackendUnavailable: The runtime cannot be loaded, or not with CUDA.
            BackendError: The system does not allow it.
        """
        self.require_dtype(settings.dtype, settings.device)
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
            base.bind(settings, cores)
        if has_global_pool(settings):
            ort.set_global_thread_pool_sizes(settings.threads, max(int(settings.options.get("inter_op", "1")), 1))
        if settings.device == "cuda":
            session.require_cuda()

    def prepare(self, network: Network, settings: base.Settings) -> base.Executable:
        """Create a session and bind its inputs (see ``Backend``)."""
        network = _in_precision(network, settings)
        return _load(network, settings, session_options(network, settings))

    def prepare_streamed(self, network: Network, settings: base.Settings) -> base.Executable:
        """Prepare, and run until algorithms are chosen and a graph is captured (see ``Backend``).

        A pass is never captured: sessions allocate, and with ``mode=graph`` each session launches a separate graph.
        """
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

    def kernels(self, network: Network, settings: base.Settings, executions: int) -> KernelView:
        """Its own profile, on a GPU without the times of kernels (see ``Backend``)."""
        network, settings = _in_precision(network, settings), session.streaming(settings)
        return session.profiled(session_options(network, settings), partial(_load, network, settings), executions)

    def calls(self, network: Network, settings: base.Settings) -> dict[str, int]:
        """From its own profile (see ``Backend``)."""
        network = replace(network, as_is=True)
        return session.traced(session_options(network, settings), partial(_load, network, settings))

    def decoding(self, decoder: DecoderFile, settings: base.Settings) -> base.TokenLoop:
        """Load a decoder with open lengths, on the CPU in its own precision (see ``Backend``)."""
        from .token_loop import OrtTokenLoop

        if settings.device != "cpu" or settings.dtype != NATIVE:
            raise UsageError(
                "the loop of a decoder runs on the CPU, in the precision of its file", remedy="add --no-loop"
            )
        network = Network(None, Path(decoder.path), {}, {}, ())
        return OrtTokenLoop(decoder, session_options(network, settings))

    def prepare_packed(self, network: Network, settings: base.Settings) -> base.PackedExecutable:
        """Return a session that profiles itself (see ``Backend``)."""
        return session.loaded_profiled(network, settings, session_options(network, settings))

    def edges(self, network: Network) -> frozenset[int]:
        """Return the reorders at its edges and the poolings behind blocked summands (see ``Backend``)."""
        outside = {*network.feeds, *network.outputs}
        last = executed_nodes.channels_last_values(network.brick.graph.node)
        indices: set[int] = set()
        for index, node in enumerate(network.brick.graph.node):
            changes = node.op_type in executed_nodes.REORDERS or (
                node.op_type == "Transpose" and not last.isdisjoint((node.input[0], node.output[0]))
            )
            if changes and outside.intersection((node.input[0], node.output[0])):
                indices.add(index)
                outside.update(node.output if node.input[0] in network.feeds else ())
            elif executed_nodes.is_idle_pooling(node) and node.input[0] in outside:
                indices.add(index)
        return frozenset(indices)

    def optimised_bricks(self, network: Network, settings: base.Settings) -> Network:
        """Fused as in a model: outputs are read, summands blocked, poolings of bytes laid out (see ``Backend``)."""
        read = executed_nodes.with_read_outputs(network)
        optimised = self.optimised(read, settings)
        blocked = executed_nodes.with_blocked_summands(read, optimised)
        optimised = optimised if blocked is None else self.optimised(blocked, settings)
        return executed_nodes.with_pools_channels_last(executed_nodes.without_readers(optimised, network))

    def executed_graph(self, network: Network, settings: base.Settings) -> base.ExecutedGraph:
        """Return the graph of a session like that of ``prepare``, mostly without packed weights (see ``Backend``)."""
        return self.sized_graphs([network], settings)[0]

    def sized_graphs(self, networks: Sequence[Network], settings: base.Settings) -> list[base.ExecutedGraph]:
        """Return the graph of one session, if a file has open dimensions (see ``Backend``)."""
        network = networks[0]
        if any(other.path is None or other.path != network.path or other.overrides for other in networks[1:]):
            return super().sized_graphs(networks, settings)
        settings = session.streaming(settings)
        packed = not _UNPACKED_AT_EACH_CALL.isdisjoint(
            node.op_type for node in all_nodes(network.structure().graph.node)
        )
        make_options = partial(session_options if packed else graph_options, network, settings)
        with session.WORDING.translating(spell=lambda text: own_names(network.structure().graph.node, text)):
            return executed_nodes.executed_graphs(
                networks, make_options, level=level(network, settings), providers=session.providers(settings)
            )

    def in_turn(self, options: Mapping[str, str]) -> bool:
        """Unless nodes run in parallel: bricks would then run at once."""
        return options.get("execution", "sequential") == "sequential" or int(options["inter_op"]) <= 1

    def optimised(self, network: Network, settings: base.Settings) -> Network:
        """Return the graph that a session saved (see ``Backend``).

        On a GPU, a graph that no session can read back is left to the session that runs it.
        """
        network, settings = _in_precision(network, settings), session.streaming(settings)
        try:
            optimised = executed_nodes.optimised_network(
                network, graph_options(network, settings), session.providers(settings)
            )
            if settings.device != "cpu":
                session.created(optimised, session_options(optimised, settings), session.providers(settings))
        except Exception as error:  # the runtime's exceptions share no base class
            meaning = session.WORDING.meaning(error)
            if settings.device != "cpu" and network.model is not None and isinstance(meaning, BackendError):
                return executed_nodes.left_to_session(network)
            raise meaning from error
        return optimised


def _in_precision(network: Network, settings: base.Settings) -> Network:
    """Return the network in the requested precision; an optimised network has it already."""
    if settings.dtype == NATIVE or network.as_is:
        return network
    if settings.dtype == _INT8:
        from .precision import quantised_network

        return quantised_network(network)
    from .precision import float16_network

    return float16_network(network)


def _load(network: Network, settings: base.Settings, options: ort.SessionOptions) -> base.Executable:
    """Load a session on the device of the settings, with its inputs bound."""
    if settings.device == "cpu":
        return session.loaded(network, settings, options)
    from .cuda_provider import loaded_on_gpu

    return loaded_on_gpu(network, settings, options)
