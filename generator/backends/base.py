"""What a backend is: a runtime that can execute networks.

A backend is a class named by an entry point of the group ``dlbricks.backends``. Its module is light: the runtime
itself is imported inside methods only, so that listing backends costs nothing and works where none is installed.
All but ``probe``, ``command``, ``resolve`` and ``stack`` run inside the worker.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt
import onnx

from ...db.values import NATIVE, KernelView, Stack
from ...errors import BackendError, UsageError
from ..machine.cores import pin
from ..network.network import Network
from .optimiser import OptimiserTraits

__all__ = [
    "MADE_OF",
    "TF32",
    "WORKER_COMMAND",
    "Availability",
    "Backend",
    "DeviceDtypesBackend",
    "EagerBackend",
    "Executable",
    "ExecutedGraph",
    "FusingBackend",
    "GraphBackend",
    "NodeTimes",
    "OptimisingBackend",
    "Option",
    "PackedExecutable",
    "PackingBackend",
    "ProfilingBackend",
    "Settings",
    "TracingBackend",
    "ValueType",
    "bind",
    "is_packing",
    "node_name",
    "released",
]

ValueType = tuple[str, tuple[int, ...]]
"""Element type (ONNX's name in lower case) and shape."""

WORKER_COMMAND = (sys.executable, "-P", "-m", "dlbricks.generator.worker")
"""Starts a worker in the environment that dlbricks itself runs in."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can run here.

    Attributes:
        ok: Whether it can, on one of its devices at least.
        reason: Why not, in one line; empty where it can.
        versions: Package to version of what decides its latencies.
        missing: Device to what it lacks there, in one line; a device that is not named lacks nothing that is known
            without loading the runtime: whether it can be used, ``Backend.setup`` finds out.
    """

    ok: bool
    reason: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def why_not(self, device: str) -> str:
        """Why it cannot run on a device, in one line; empty where it can."""
        return self.missing.get(device, "") if self.ok else self.reason


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a backend that can change a latency.

    Attributes:
        name: As given by the user.
        default: Value where it is not given.
        choices: The values it takes; empty: any integer from 0.
        help: What it does, in one line.
        later: Whether a stack names it only where it is not the default: those that were stored before there was this
            option stay what they are.
    """

    name: str
    default: str
    choices: tuple[str, ...] = ()
    help: str = ""
    later: bool = False

    def accepts(self, value: str) -> bool:
        """Whether a value is valid."""
        return value in self.choices if self.choices else value.isascii() and value.isdigit()

    def __str__(self) -> str:
        return f"{self.name}={'|'.join(self.choices) or 'N'}"


TF32 = Option("tf32", "off", ("off", "on"), "products and convolutions of float32 read 10 bits of a fraction, not 23")
"""Of every backend on a GPU that has a choice: stacks with it on are distinguished by this name."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a worker runs its networks.

    Attributes:
        device: One of the backend's devices.
        threads: At least 1.
        options: Every option of the backend with its effective value.
        cores: Physical cores that the process may use, found before anything was bound to one of them; a backend
            that binds its threads takes the first ones.
        together: Whether many networks will be run in turn: they share threads.
        dtype: Precision to compute in: ``float32`` for that of the network itself, else one of the backend's.
        channels: A multiple that the channels of bricks are padded to before a backend sees them; 1: as they are.
        memory_reuse: Whether a runtime that plans memory ahead may keep a tensor's for a later one of the same shape.
    """

    device: str
    threads: int
    options: Mapping[str, str]
    cores: tuple[int, ...] = ()
    together: bool = False
    dtype: str = NATIVE
    channels: int = 1
    memory_reuse: bool = True


class Executable(Protocol):
    """A network loaded by a runtime, with its inputs bound."""

    def run(self) -> None:
        """Execute once. On a device that works asynchronously, only ``synchronize`` waits for the end.

        Raises:
            BackendError: The execution failed.
            MemoryError: There was not enough memory.
        """

    def synchronize(self) -> None:
        """Wait until everything that was started is done."""

    def outputs(self) -> list[npt.NDArray[Any]]:
        """Outputs of the last execution, in the order of ``Network.outputs``."""

    def output_bytes(self) -> int:
        """Bytes of the outputs of the last execution."""

    def close(self) -> None:
        """Free what the runtime holds; the object cannot be used afterwards."""


@runtime_checkable
class Backend(Protocol):
    """A runtime that can execute networks."""

    name: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    """Precisions that it can compute a network in, ``NATIVE`` first."""

    def probe(self) -> Availability:
        """Whether the runtime can run here; never raises, imports nothing heavy."""

    def command(self) -> Sequence[str]:
        """Program and arguments that start a worker for it (``WORKER_COMMAND`` in this environment)."""

    def resolve(self, device: str, options: Mapping[str, str]) -> dict[str, str]:
        """Every option with its effective value.

        Raises:
            UsageError: The device or an option is unknown, or has a wrong value.
        """

    def stack(self, device: str, options: Mapping[str, str]) -> Stack:
        """Backend, device, versions and every option with its effective value.

        Raises:
            UsageError: As ``resolve``.
            BackendUnavailable: The runtime is not installed.
        """

    def setup(self, settings: Settings) -> None:
        """Prepare the worker's process, once, before the first network: pinning, thread pools.

        Raises:
            BackendUnavailable: The runtime cannot be loaded.
            BackendError: The process cannot be set up as asked.
        """

    def prepare(self, network: Network, settings: Settings) -> Executable:
        """Load a network.

        Raises:
            UnsupportedBrick: The runtime cannot express it.
            BackendError: The runtime failed.
            MemoryError: There was not enough memory.
        """


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedGraph:
    """The graph that a runtime executes for a network.

    Attributes:
        model: Its operators in order. Constants are initializers; large ones are marked external and have no payload.
        types: Value to type, of what its operators compute; one without a static type is missing.
        stages: The graph at earlier levels of optimisation, nearest to the network first: values keep their names
            from stage to stage better than over all of them.
    """

    model: onnx.ModelProto
    types: Mapping[str, ValueType]
    stages: tuple[onnx.ModelProto, ...] = ()


@runtime_checkable
class GraphBackend(Backend, Protocol):
    """A backend that reports the graph that it executes; not every runtime can."""

    optimiser: OptimiserTraits
    """What its optimiser leaves in that graph."""

    def executed_graph(self, network: Network, settings: Settings) -> ExecutedGraph:
        """The graph that ``prepare`` would execute for a network with these settings.

        Nodes of the network are named after their first output (``node_name``), so that those that survive are known.

        Raises:
            UnsupportedBrick: The runtime cannot express it.
            BackendError: The runtime failed.
            MemoryError: There was not enough memory.
        """


MADE_OF = "made_of"
"""An attribute of nodes that are the runtime's own: the values of the network that each was made of, by name."""


@runtime_checkable
class FusingBackend(Backend, Protocol):
    """A backend that reports which layers it executes together, but hands nothing out that could be run in parts.

    Bricks can be cut along its fusions (``--graph fused``), while there are none of its own operators.
    """

    def fused_graph(self, network: Network, settings: Settings) -> ExecutedGraph:
        """As ``executed_graph`` of ``GraphBackend``, without stages; each node has the attribute ``MADE_OF``."""


@runtime_checkable
class ProfilingBackend(Backend, Protocol):
    """A backend that reports the kernels that it executes, in a pass apart from timing."""

    def kernels(self, network: Network, settings: Settings, executions: int) -> KernelView:
        """Load a network, run it once to warm up and then under the runtime's profiler, and close it.

        Names are those of operators and kernels, never of a model's nodes or values.

        Raises:
            UnsupportedBrick: The runtime cannot express it.
            BackendError: The runtime failed.
            MemoryError: There was not enough memory.
        """


@runtime_checkable
class TracingBackend(Backend, Protocol):
    """A backend that reports how often it executes each operator, those in bodies of control flow too."""

    def calls(self, network: Network, settings: Settings) -> dict[str, int]:
        """Load a network without optimising it, run it once, and close it; calls by the names of nodes.

        Raises:
            As ``ProfilingBackend.kernels``.
        """


@runtime_checkable
class OptimisingBackend(Backend, Protocol):
    """A backend whose bricks can be run one by one as a model runs its layers: the cache mode ``model``."""

    def in_turn(self, options: Mapping[str, str]) -> bool:
        """Whether it runs operators one after the other with these effective options, and keeps them apart."""

    def optimised(self, network: Network, settings: Settings) -> Network:
        """The network as the runtime optimises it, to be run as it stands, with its weights.

        Raises:
            UnsupportedBrick: The runtime cannot express it.
            BackendError: The runtime failed.
            MemoryError: There was not enough memory.
        """


@dataclass(frozen=True, slots=True, eq=False)
class NodeTimes:
    """The time of every node of a network in every execution.

    Attributes:
        names: Of the nodes.
        times: Nanoseconds, executions by nodes; the clock's own cost is part of them.
    """

    names: tuple[str, ...]
    times: npt.NDArray[np.float64]


class PackedExecutable(Executable, Protocol):
    """A packed network whose runtime records the time of every node until ``end``."""

    def end(self) -> NodeTimes:
        """The executions so far; those that follow are not watched.

        Raises:
            BackendError: The runtime lost some of it.
        """


@runtime_checkable
class PackingBackend(OptimisingBackend, Protocol):
    """A backend that can run many bricks in one network (``network.packed``) and report the time of every node."""

    def optimised_bricks(self, network: Network, settings: Settings) -> Network:
        """As ``optimised``, of bricks: what the layout at their edges keeps from being fused is fused as in a model."""

    def edges(self, network: Network) -> frozenset[int]:
        """Places of the nodes that change the layout of what a brick reads and gives; a model has few of them.

        Args:
            network: A brick of ``optimised_bricks``.
        """

    def prepare_packed(self, network: Network, settings: Settings) -> PackedExecutable:
        """Load a packed network; raises as ``prepare``."""


def is_packing(backend: Backend, settings: Settings) -> TypeGuard[PackingBackend]:
    """Whether a backend runs many bricks in one network there: on the CPU alone, where its profile has a clock."""
    return settings.device == "cpu" and isinstance(backend, PackingBackend)


@runtime_checkable
class DeviceDtypesBackend(Backend, Protocol):
    """A backend that does not have all of its precisions on every device."""

    def dtypes_on(self, device: str) -> tuple[str, ...]:
        """Those of ``dtypes`` that it has on a device."""


@runtime_checkable
class EagerBackend(Backend, Protocol):
    """A backend that may execute a network's operators one by one, as they are written."""

    def eager(self, options: Mapping[str, str]) -> bool:
        """Whether it does with these effective options: nothing is fused, removed or laid out anew."""


def bind(settings: Settings, cores: Sequence[int] | None = None) -> None:
    """Bind the calling thread, and those that it starts from now on, where the option ``pinning`` is on.

    Args:
        settings: How the worker runs; the backend has an option ``pinning``.
        cores: Where to; None: the first physical cores, as many as there are threads.

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


def node_name(node: onnx.NodeProto) -> str:
    """The name that identifies a node of a network through the runtime's optimisation."""
    return next((f"~{value}" for value in node.output if value), "")
