"""The interface of a backend: a runtime that can execute networks.

A backend is a subclass of ``Backend`` in a folder of this room, or named by an entry point of the group
``dlbricks.backends``. Its module is light: it imports the runtime inside methods only, so that listing backends is
cheap and works without any runtime. Methods that take a network, a worker's settings or an execution run inside the
worker; the others, which say what a backend has and can do, run in the parent too.
"""
# ruff: noqa: ARG002 - what a method does by default depends on few of its arguments

from __future__ import annotations

import importlib.util
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import onnx

from ...bricks.graph.model_graph import Layouts
from ...db.values import NATIVE, KernelView, Stack
from ...errors import BackendError, BackendUnavailable, UsageError
from ..device.device import Device, Run
from ..device.host import open_device
from ..machine.cores import pin
from ..machine.nvml import driver_version
from ..network.decoding import DecoderFile
from ..network.network import Network

T = TypeVar("T")

ValueType = tuple[str, tuple[int, ...]]
"""Element type (ONNX's name in lower case) and shape."""

WORKER_COMMAND = (sys.executable, "-P", "-m", "dlbricks.generator.worker")
"""Starts a worker in the environment that dlbricks itself runs in."""


@dataclass(frozen=True, slots=True)
class Availability:
    """The answer to "can this backend run here?".

    Attributes:
        ok: True if it can run on at least one of its devices.
        reason: Why not, in one line; empty if it can.
        versions: Versions of the packages that decide its latencies.
        missing: Missing requirement by device, in one line. A device without an entry lacks nothing that is visible
            without loading the runtime; ``Backend.setup`` decides.
    """

    ok: bool
    reason: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def why_not(self, device: str) -> str:
        """Return why it cannot run on a device, in one line; empty if it can."""
        return self.missing.get(device, "") if self.ok else self.reason


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a backend that can change a latency.

    Attributes:
        name: Name on the command line.
        default: Default value.
        choices: Valid values; empty: any integer from 0.
        help: Its effect, in one line.
        pattern: Matches any further valid value.
    """

    name: str
    default: str
    choices: tuple[str, ...] = ()
    help: str = ""
    pattern: str = ""

    def accepts(self, value: str) -> bool:
        """Return True if a value is valid."""
        if self.choices:
            return value in self.choices or bool(self.pattern and re.fullmatch(self.pattern, value))
        return value.isascii() and value.isdigit()

    def __str__(self) -> str:
        return f"{self.name}={'|'.join((*self.choices, *(['NAME'] if self.pattern else []))) or 'N'}"


TF32 = Option("tf32", "off", ("off", "on"), "products and convolutions of float32 read 10 bits of a fraction, not 23")
"""Of every backend on a GPU that has a choice: stacks with it on are distinguished by this name."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a worker runs its networks.

    Attributes:
        device: One of the backend's devices.
        threads: At least 1.
        options: Every option of the backend with its effective value.
        cores: Physical cores that the process may use, found before binding; a backend that binds its threads uses the
            first ones.
        together: Many networks will run alternately and share threads.
        dtype: Precision: ``float32`` for the network's precision, else one of the backend's.
        memory_reuse: A runtime that plans memory ahead may reuse a tensor's memory for a later one of equal shape.
    """

    device: str
    threads: int
    options: Mapping[str, str]
    cores: tuple[int, ...] = ()
    together: bool = False
    dtype: str = NATIVE
    memory_reuse: bool = True

    @property
    def computing(self) -> int:
        """Threads of the processor that compute; 0 on other devices."""
        return self.threads if self.device == "cpu" else 0


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One of several ways in which a backend can run the same network in the same precision.

    Attributes:
        name: Unique within the backend; measurements record it as their variant.
        options: Options with values that make the difference. All of them take effect when a network is prepared, so
            that one worker can alternate between algorithms.
        help: The difference, in one line.
    """

    name: str
    options: Mapping[str, str]
    help: str = ""


LAYOUTS = (
    Algorithm("channels_last", {"layout": "channels_last"}, "images with their channels last"),
    Algorithm("contiguous", {"layout": "contiguous"}, "images with their channels first"),
)
"""Algorithms of backends with an option ``layout``."""


def differing(algorithms: Iterable[Algorithm], options: Mapping[str, str]) -> tuple[Algorithm, ...]:
    """Return the algorithms that differ from the effective options, sorted by name."""
    alternatives = (
        algorithm
        for algorithm in algorithms
        if any(options.get(name) != value for name, value in algorithm.options.items())
    )
    return tuple(sorted(alternatives, key=lambda algorithm: algorithm.name))


@dataclass(frozen=True, slots=True)
class PlanTime:
    """One of several ways in which a library can execute one brick, with its result.

    Attributes:
        name: Engine and knobs as one word: the value of the option ``plan`` that executes it.
        engine: Number of the engine or algorithm, for this brick and version of the library.
        knobs: Name and value of each, sorted.
        modes: Heuristics that offer it, or the part of the library that has it.
        rank: Position in the list of the library's first heuristic, from 0; None if that does not offer it.
        notes: Numerical notes.
        behavior: Behaviour notes.
        workspace_bytes: Extra memory in bytes; None if unknown.
        ns: Nanoseconds of one execution on the device's clock, median of a few, caches hot; None if it failed.
        model_ns: The same in a model's cache state; None if it is neither the first nor among the fastest.
        error: Largest difference to the outputs of the first plan that ran, as a share of their largest value.
        reason: Why it was not timed; empty if it was.
    """

    name: str
    engine: int
    knobs: tuple[tuple[str, int], ...] = ()
    modes: tuple[str, ...] = ()
    rank: int | None = None
    notes: tuple[str, ...] = ()
    behavior: tuple[str, ...] = ()
    workspace_bytes: int | None = None
    ns: float | None = None
    model_ns: float | None = None
    error: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OptimiserTraits:
    """Rules that match the operators of an optimised graph with their origins in the source graph.

    Attributes:
        layouts: The runtime's layouts as they appear in a graph.
        transposing: Operators that absorb a transposition before or after them; layout changes do as well.
        prefixes: Prefixes for the name of an operator that the runtime fused or laid out anew.
        blocked: Matches the name of an operator in another layout. The group ``value`` is the source value, which may
            end in the group ``step``. None: the runtime gives no names of this kind.
        renamed: Matches the name of an operator that was copied or laid out anew. The group ``name`` is its earlier
            name. None: the runtime renames nothing.
        summands: The first input slot with a summand, by operator.
        by_threads: True if another number of threads may execute another graph.
    """

    layouts: Layouts = field(default_factory=Layouts)
    transposing: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    blocked: re.Pattern[str] | None = None
    summands: int = 0
    renamed: re.Pattern[str] | None = None
    by_threads: bool = True

    def stands_for(self, name: str) -> tuple[str, str] | None:
        """Return the values in an operator's name, the likelier one first; None if it kept its name."""
        match = self.blocked.fullmatch(name) if self.blocked is not None else None
        return None if match is None else (match["value"] + (match["step"] or ""), match["value"])

    def plain(self, name: str) -> str:
        """Return the name of an operator before it was copied or laid out anew."""
        match = self.renamed.fullmatch(name) if self.renamed is not None else None
        return name if match is None else match["name"]

    def family(self, kind: str) -> str:
        """Return the common name of operators that differ only in layout or in the operators fused to them."""
        name = kind.rpartition(".")[2]
        for prefix in self.prefixes:
            name = name.removeprefix(prefix)
        return name


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedGraph:
    """The graph that a runtime executes for a network.

    Attributes:
        model: Its operators in order. Constants are initializers; large ones are marked external and have no payload.
        types: Types of computed values; values without a static type are missing.
        stages: The graph at earlier levels of optimisation, nearest to the network first: values keep their names
            from stage to stage better than over all of them.
    """

    model: onnx.ModelProto
    types: Mapping[str, ValueType]
    stages: tuple[onnx.ModelProto, ...] = ()


MADE_OF = "made_of"
"""An attribute of nodes that are the runtime's own: the values of the network that each was made of, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeTimes:
    """The time of every node of a network in every execution.

    Attributes:
        names: Of the nodes.
        times: Nanoseconds, executions by nodes; the clock's own cost is part of them.
    """

    names: tuple[str, ...]
    times: npt.NDArray[np.float64]


class Executable(ABC):
    """A network loaded by a runtime, with its inputs bound."""

    @abstractmethod
    def run(self) -> None:
        """Execute once. On a device that works asynchronously, only ``synchronize`` waits for the end.

        Raises:
            BackendError: The execution failed.
            MemoryError: There was not enough memory.
        """

    def synchronize(self) -> None:  # noqa: B027  # many runtimes have nothing left to wait for
        """Wait until everything that was started is done."""

    def timed_ns(self) -> int:
        """Return the nanoseconds of one execution, to its end."""
        begin = time.perf_counter_ns()
        self.run()
        self.synchronize()
        return time.perf_counter_ns() - begin

    def refresh(self) -> None:  # noqa: B027
        """Enqueue a rewrite of the inputs, like the previous layer in a model; their values stay."""

    def share(self, inputs_by_form: MutableMapping[object, Any]) -> None:  # noqa: B027
        """Use known inputs of the same form instead of its own; add inputs of new forms.

        Only on a GPU, because the values of large inputs do not change a latency there.
        """

    @abstractmethod
    def outputs(self) -> list[npt.NDArray[Any]]:
        """Return the outputs of the last execution, in the order of ``Network.outputs``."""

    @abstractmethod
    def output_bytes(self) -> int:
        """Bytes of the outputs of the last execution."""

    @abstractmethod
    def close(self) -> None:
        """Free the runtime's resources; the object cannot be used afterwards."""


class TokenLoop(ABC):
    """A decoder loaded by a runtime, with its caches."""

    @abstractmethod
    def begin(self, *, batch: int, past: int, first: int, new: int) -> None:
        """Draw random tokens, and random keys and values for what is cached before.

        Args:
            batch: Sequences at once.
            past: Cached positions of each.
            first: Tokens that the first execution reads; every further one reads the token that was chosen.
            new: Executions at most.
        """

    @abstractmethod
    def step(self) -> None:
        """Execute once, to the end; what it reads and writes is bound before.

        Raises:
            BackendError: The execution failed.
            MemoryError: There was not enough memory.
        """

    @abstractmethod
    def choose(self) -> list[int]:
        """Return the token with the highest score of each sequence, and read it next."""

    @abstractmethod
    def end(self) -> None:
        """Free keys, values and inputs, until ``begin`` draws others."""

    @abstractmethod
    def close(self) -> None:
        """Free the runtime's resources; the object cannot be used afterwards."""


class PackedExecutable(Executable):
    """A packed network with a runtime that records the time of every node until ``end``."""

    @abstractmethod
    def end(self) -> NodeTimes:
        """Return the executions so far and stop recording.

        Raises:
            BackendError: The runtime lost a part of the record.
        """


class _Refreshed(Executable):
    """A network of a runtime that waits for its end, with inputs in memory that is ours as well."""

    def __init__(self, executable: Executable, network: Network) -> None:
        self._executable = executable
        self._feeds = [array for array in network.feeds.values() if array.dtype.kind == "f" and array.flags.writeable]

    def run(self) -> None:
        self._executable.run()
        self._executable.synchronize()

    def refresh(self) -> None:
        for array in self._feeds:
            np.multiply(array, 1, out=array)

    def outputs(self) -> list[npt.NDArray[Any]]:
        return self._executable.outputs()

    def output_bytes(self) -> int:
        return self._executable.output_bytes()

    def close(self) -> None:
        self._executable.close()


_NO_GRAPH = ("does not report the graph that it executes", "use --graph source")

_LACKS = {
    "algorithms": (
        "offers no choice of algorithms",
        "leave out --algorithms; its options, if it has any, are stacks of their own (--option)",
    ),
    "calls": ("does not report which operators it executes", "use backend onnxruntime"),
    "executed_graph": _NO_GRAPH,
    "fused_graph": _NO_GRAPH,
    "decoding": ("does not run the loop of a decoder", "leave the loop out with --no-loop"),
    "in_turn": ("cannot measure in cache mode 'model'", "use --cache hot or --cache cold"),
    "kernels": ("does not report the kernels that it executes", "leave out --kernels"),
    "plans": ("offers no choice of plans", "use backend cudnn or cublas"),
    "prepare_packed": ("does not report the time of every node", "load its bricks one by one"),
}
"""For each optional method of ``Backend``: the missing ability, and the remedy."""


_NVIDIA = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
"""Packages with the libraries that compute on a GPU for every backend; without them a runtime has its own copies."""


class Backend(ABC):
    """A runtime that can execute networks.

    A subclass names its package and has ``setup`` and ``prepare``. Every other method has a default; ``offers`` returns
    True for overridden methods.

    Attributes:
        name: Name of the backend.
        devices: Devices that it can use.
        dtypes: Precisions that it can compute a network in, ``NATIVE`` first.
        module: Module to import.
        distributions: Packages that contain it; the installed one decides the latency.
        install: Command that installs it.
        environment: The ``environments.Environment`` of its packages; None: the environment of dlbricks.
        optimiser: Traces of its optimiser in the graph of ``executed_graph``.
    """

    name: str
    devices: tuple[str, ...] = ("cpu",)
    dtypes: tuple[str, ...] = (NATIVE,)
    module: str
    distributions: tuple[str, ...]
    install: str
    environment: object | None = None
    optimiser = OptimiserTraits()

    def offers(self, method: Callable[..., Any]) -> bool:
        """Return True if it overrides an optional method, for example ``Backend.kernels``."""
        return getattr(type(self), method.__name__) is not method

    def require(self, method: Callable[..., Any]) -> Self:
        """Return the backend if it overrides an optional method.

        Raises:
            UsageError: It does not; the message names the missing ability.
        """
        if not self.offers(method):
            raise self._lacks(method)
        return self

    def _lacks(self, method: Callable[..., Any]) -> UsageError:
        what, remedy = _LACKS[method.__name__]
        return UsageError(f"backend {self.name} {what}", remedy=remedy)

    # What is known without loading the runtime

    def declared(self, device: str) -> Sequence[Option]:
        """Return its options on a device."""
        return ()

    def missing(self, device: str) -> str:
        """Return the missing requirement on a device, in one line; empty if none is known. Load nothing."""
        return ""

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return the installed packages of ``distributions`` with their versions, sorted."""
        if importlib.util.find_spec(self.module) is None:
            return ()
        return installed(self.distributions)

    def probe(self) -> Availability:
        """Find out if the runtime can run here; never raise, import nothing heavy."""
        versions = self.versions()
        if not versions:
            return Availability(ok=False, reason=f"not installed; {self.install}")
        missing = {device: lack for device in self.devices if (lack := self.missing(device))}
        return Availability(ok=True, versions=dict(versions), missing=missing)

    def command(self) -> Sequence[str]:
        """Program and arguments that start a worker for it (``WORKER_COMMAND`` in this environment)."""
        return WORKER_COMMAND

    def resolve(self, device: str, options: Mapping[str, str]) -> dict[str, str]:
        """Return every option with its effective value.

        Raises:
            UsageError: The device or an option is unknown, or has a wrong value; the message lists what is valid.
        """
        if device not in self.devices:
            raise UsageError(
                f"backend {self.name} has no device {device!r}", remedy=f"it has {', '.join(self.devices)}"
            )
        declared = self.declared(device)
        options_by_name = {option.name: option for option in declared}
        for name, value in options.items():
            if name not in options_by_name:
                raise UsageError(
                    f"backend {self.name} has no option {name!r}",
                    remedy=f"it has {', '.join(str(option) for option in declared)}",
                )
            if not options_by_name[name].accepts(value):
                raise UsageError(
                    f"option {name} of backend {self.name} cannot be {value!r}", remedy=f"use {options_by_name[name]}"
                )
        return {option.name: options.get(option.name, option.default) for option in declared}

    def stack(self, device: str, options: Mapping[str, str]) -> Stack:
        """Backend, device, versions of installed packages and every option with its effective value.

        On a GPU the versions include NVIDIA's libraries and driver.

        Raises:
            UsageError: As ``resolve``.
            BackendUnavailable: The runtime is not installed.
        """
        effective = self.resolve(device, options)
        versions = self.versions()
        if not versions:
            raise BackendUnavailable(f"{self.name} is not installed", remedy=self.install)
        if device == "cuda":
            driver = driver_version()
            versions += (*installed(_NVIDIA), *((("nvidia-driver", driver),) if driver else ()))
        return Stack(self.name, device, tuple(sorted({*versions})), tuple(sorted(effective.items())))

    def dtypes_on(self, device: str) -> tuple[str, ...]:
        """Return its precisions on a device."""
        return self.dtypes

    def require_dtype(self, dtype: str, device: str = "") -> None:
        """Make sure that it can compute in a precision.

        Raises:
            UsageError: It cannot; the message lists its precisions.
        """
        dtypes, where, there = self.dtypes, "", ""
        if dtype in dtypes and device:
            dtypes, where, there = self.dtypes_on(device), f" on device {device!r}", " there"
        if dtype not in dtypes:
            raise UsageError(
                f"backend {self.name} does not compute in {dtype!r}{where}", remedy=f"it has {', '.join(dtypes)}{there}"
            )

    # Execution of one network

    @abstractmethod
    def setup(self, settings: Settings) -> None:
        """Prepare the worker's process, once, before the first network: pinning, thread pools.

        Raises:
            BackendUnavailable: The runtime cannot be loaded.
            BackendError: The process cannot be set up as asked.
        """

    @abstractmethod
    def prepare(self, network: Network, settings: Settings) -> Executable:
        """Load a network.

        Raises:
            UnsupportedBrick: The runtime cannot express it.
            BackendError: The runtime failed.
            MemoryError: There was not enough memory.
        """

    # What it reports of an execution: each of these raises as ``prepare``

    @property
    def graph(self) -> str:
        """The most exact graph that bricks can be cut along: ``runtime``, ``fused`` or ``source``."""
        if self.offers(Backend.executed_graph):
            return "runtime"
        return "fused" if self.offers(Backend.fused_graph) else "source"

    def graph_at(self, device: str, dtype: str, options: Mapping[str, str]) -> str:
        """``graph`` where the executed graph has bricks: on the CPU, in the types of the model; else ``source``."""
        return self.graph if device == "cpu" and dtype == NATIVE else "source"

    def executed_graph(self, network: Network, settings: Settings) -> ExecutedGraph:
        """Return the graph that ``prepare`` would execute with these settings; not every runtime reports it.

        Nodes of the network are named after their first output (``node_name``), so that they can be found again.
        """
        raise self._lacks(Backend.executed_graph)

    def sized_graphs(self, networks: Sequence[Network], settings: Settings) -> list[ExecutedGraph]:
        """Return ``executed_graph`` of one model with inputs of several sizes; it may be loaded once for all."""
        return [self.executed_graph(network, settings) for network in networks]

    def fused_graph(self, network: Network, settings: Settings) -> ExecutedGraph:
        """Return the graph like ``executed_graph``, without stages; each node has the attribute ``MADE_OF``.

        For a runtime that exposes no graph that could run in parts. Bricks can be cut along its fusions
        (``--graph fused``), but not of its operators.
        """
        raise self._lacks(Backend.fused_graph)

    def kernels(self, network: Network, settings: Settings, executions: int) -> KernelView:
        """Load a network, run it once to warm up and then under the runtime's profiler, and close it.

        The result names operators and kernels, never a model's nodes or values.
        """
        raise self._lacks(Backend.kernels)

    def calls(self, network: Network, settings: Settings) -> dict[str, int]:
        """Load a network without optimising it, run it once, and close it.

        Returns:
            How often each operator was executed, by the names of nodes, those in bodies of control flow too.
        """
        raise self._lacks(Backend.calls)

    def decoding(self, decoder: DecoderFile, settings: Settings) -> TokenLoop:
        """Load a decoder, to run it token by token; raise like ``prepare``."""
        raise self._lacks(Backend.decoding)

    # Bricks that are run one by one as a model runs its layers: the cache mode ``model``

    def in_turn(self, options: Mapping[str, str]) -> bool:
        """Return True if it runs operators separately, one after the other, with these effective options."""
        return False

    def require_in_turn(self, options: Mapping[str, str]) -> None:
        """Make sure that it can measure in the cache mode ``model`` with these effective options.

        Raises:
            UsageError: It cannot.
        """
        if not self.require(Backend.in_turn).in_turn(options):
            raise UsageError(
                f"backend {self.name} cannot measure in cache mode 'model' with these options: it would run bricks at "
                "once, compile each for seconds whenever it is loaded, or look for branches, which only whole models "
                "have",
                remedy="use --cache hot or --cache cold, or measure whole models alone",
            )

    def optimised(self, network: Network, settings: Settings) -> Network:
        """Return the optimised network with its weights, to be run unchanged; raise like ``prepare``.

        The default is the network itself, for runtimes that optimise each brick when they load it.
        """
        return replace(network, as_is=True)

    def eager(self, options: Mapping[str, str]) -> bool:
        """Return True if it executes operators as written, without fusion, removal or other layouts."""
        return False

    # Many bricks in one network (``network.packed``), whose runtime reports the time of every node

    def packs(self, settings: Settings) -> bool:
        """Return True if it runs many bricks in one network: only on the CPU, with a profile that has a clock."""
        return settings.device == "cpu" and self.offers(Backend.prepare_packed)

    def prepare_packed(self, network: Network, settings: Settings) -> PackedExecutable:
        """Load a packed network; raises as ``prepare``."""
        raise self._lacks(Backend.prepare_packed)

    def optimised_bricks(self, network: Network, settings: Settings) -> Network:
        """Return optimised bricks; fusions that the layout at their edges prevents are made as in a model."""
        return self.optimised(network, settings)

    def edges(self, network: Network) -> frozenset[int]:
        """Return the indices of nodes that change the layout of a brick's inputs and outputs; few in a model."""
        return frozenset()

    # Bricks that are enqueued in the stream of a device, where events between them measure their times

    def prepare_streamed(self, network: Network, settings: Settings) -> Executable:
        """Load a network of a pass, and run it as often as it must be run before it can be captured.

        Its ``run`` only enqueues. By default it waits, and the inputs are written in the memory of the network's feeds.

        Raises as ``prepare``.
        """
        return _Refreshed(self.prepare(network, settings), network)

    def device(self, settings: Settings) -> Device:
        """Return the device of this process, after ``setup``. On the CPU: the cores that the process is bound to."""
        bound = settings.options.get("pinning") == "on"
        name = settings.device if self.offers(Backend.prepare_streamed) else "cpu"
        return open_device(name, settings.cores[: settings.threads] if bound else ())

    def captured(self, run: Run, settings: Settings) -> Run:
        """Return a pass as the options require: one launch of everything that ``run`` enqueues, or ``run`` itself.

        Raises:
            BackendError: The pass cannot be captured.
        """
        return run

    # Choices between several ways to run the same network

    def algorithms(self, device: str, options: Mapping[str, str], dtype: str) -> tuple[Algorithm, ...]:
        """Return the algorithms that differ from the effective options, sorted by name."""
        return ()

    def require_algorithms(
        self, device: str, options: Mapping[str, str], dtype: str, names: Collection[str] = ()
    ) -> tuple[Algorithm, ...]:
        """Return the algorithms other than the one that these effective options choose.

        Args:
            device: Its device.
            options: Effective options.
            dtype: Precision.
            names: Names of the wanted algorithms; empty: all.

        Raises:
            UsageError: It offers no choice, or a name is unknown.
        """
        algorithms = self.require(Backend.algorithms).algorithms(device, options, dtype)
        if not algorithms:
            raise UsageError(
                f"backend {self.name} offers no choice of algorithms in {dtype} with these options",
                remedy="leave out --algorithms",
            )
        unknown = sorted({*names} - {algorithm.name for algorithm in algorithms})
        if unknown:
            raise UsageError(
                f"backend {self.name} has no algorithm {unknown[0]!r} here",
                remedy=f"it has {', '.join(algorithm.name for algorithm in algorithms)}",
            )
        return tuple(algorithm for algorithm in algorithms if not names or algorithm.name in names)

    def with_algorithm(self, settings: Settings, name: str) -> Settings:
        """Return the settings with one of its algorithms.

        Raises:
            UsageError: The name is unknown with these settings.
        """
        algorithms = self.algorithms(settings.device, settings.options, settings.dtype)
        chosen = next((algorithm for algorithm in algorithms if algorithm.name == name), None)
        if chosen is None:
            names = ", ".join(algorithm.name for algorithm in algorithms) or "none"
            raise UsageError(f"backend {self.name} has no algorithm {name!r} here", remedy=f"it has {names}")
        return replace(settings, options={**settings.options, **chosen.options})

    def plans(self, network: Network, settings: Settings, most: int, footprint: int) -> tuple[PlanTime, ...]:
        """Build and time the library's plans for one brick, in the library's order; after ``setup``.

        Args:
            network: Network of one brick, one copy.
            settings: Settings of ``prepare``; the option ``plan`` has no effect.
            most: Maximum number of plans.
            footprint: Bytes that the model touches between two uses of the brick's weights.

        Returns:
            One row per plan. A plan that cannot be built, runs out of memory or fails is a row with its reason.

        Raises like ``prepare`` if no plan is offered.
        """
        raise self._lacks(Backend.plans)


def registering(table: dict[str, T]) -> Callable[..., Callable[[T], T]]:
    """Return a decorator that enters a function in a table under the operators that the decorator names."""

    def operator(*op_types: str) -> Callable[[T], T]:
        def register(function: T) -> T:
            table.update(dict.fromkeys(op_types, function))
            return function

        return register

    return operator


def installed(distributions: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Those packages that are installed, with their versions, sorted."""
    versions = []
    for distribution in distributions:
        try:
            versions.append((distribution, version(distribution)))
        except PackageNotFoundError:
            continue
    return tuple(sorted(versions))


def bind(settings: Settings, cores: Sequence[int] | None = None) -> None:
    """Bind the calling thread and its future threads to cores, if the option ``pinning`` is on.

    Args:
        settings: Settings of the worker; the backend has an option ``pinning``.
        cores: The cores; None: the first physical cores, one per thread.

    Raises:
        UsageError: More threads than cores: some would share one.
        BackendError: The system does not allow it.
    """
    if settings.options["pinning"] == "off":
        return
    if settings.threads > len(settings.cores):
        raise UsageError(
            f"{settings.threads} threads cannot be bound to {len(settings.cores)} physical core(s)",
            remedy="use fewer threads, or pass --option pinning=off",
        )
    if not pin(tuple(settings.cores[: settings.threads] if cores is None else cores)):
        raise BackendError("the system does not allow to bind threads to cores", remedy="pass pinning=off")


def released(*_: object) -> None:
    """In place of the execution of a network that was closed."""
    raise RuntimeError("this network was released")
