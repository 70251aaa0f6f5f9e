"""Backends that call a GPU library directly: the common part of cuDNN, cuBLAS and CuPy.

A brick is loaded into device memory once; each run enqueues the library's calls in the device's single stream. Memory
is untyped bytes: libraries need addresses, and CuPy need not know bfloat16. CuPy runs the networks that measure the
cost of a call (``clock``), because cuBLAS has no addition and cuDNN would fuse the chain. The cost belongs to the
device: a library's calls have the same events and launches around them.

``measured`` times the library's plans for one brick. Unlike a campaign it uses few executions, between events in the
stream, as one CUDA graph: all plans with hot caches, and the fastest once more in the model's cache state. The option
``plan`` executes one of them in a campaign.
"""

from __future__ import annotations

import math
import statistics
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from ...bricks.reference import CHAIN, OVERHEAD, built_in
from ...db.values import NATIVE
from ...errors import BackendError, BackendUnavailable, UnsupportedBrick
from ...models.skeleton import mark_weight
from ...models.subgraphs import reads
from ..device.device import Device, Run
from ..machine.nvml import lacks_of_gpu
from ..network.network import Network, narrowed_to, relative_difference
from .base import Backend, Executable, Option, PlanTime, Settings, released
from .reports import Wording

Array = npt.NDArray[Any]

_WORD = 4
_ABSENT = 255
"""Byte that fills unwritten memory: NaN in every floating-point type."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A piece of memory.

    Attributes:
        bytes: As an array of CuPy, in whole words.
        size: Bytes that are used.
    """

    bytes: Any
    size: int

    @property
    def address(self) -> int:
        """Address on the device; a multiple of 256."""
        return int(self.bytes.data.ptr)

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Any:
        """Return the same memory as a CuPy array."""
        return self.bytes[: self.size].view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBrick:
    """A brick in memory of the device, ready to be run.

    Attributes:
        run: Enqueues one execution; holds all that it needs.
        inputs: Memory of the inputs.
        outputs: Memory of the outputs.
        read: Copies the outputs to the host, in the network's own types and shapes, in its order.
    """

    run: Run
    inputs: Sequence[Buffer]
    outputs: Sequence[Buffer]
    read: Callable[[], list[Array]]


@dataclass(frozen=True, slots=True)
class _StreamHandle:
    """A stream by its handle, in the protocol of CUDA's Python packages."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class Memory:
    """Memory of a network.

    Args:
        device: A GPU; all copies and kernels are enqueued in its stream.
    """

    def __init__(self, device: Device) -> None:
        import cupy

        self._cupy = cupy
        self._device = device
        self.stream = cupy.cuda.Stream.from_external(_StreamHandle(device.stream))

    def holding(self, values: Array) -> Buffer:
        """Memory with the elements of an array, row by row."""
        buffer = self.empty(values.nbytes)
        if values.nbytes:
            flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            with self.stream:
                buffer.bytes[: buffer.size].set(flat)
            self._device.synchronize()  # the array may go when this returns
        return buffer

    def empty(self, size: int) -> Buffer:
        """Memory for so many bytes.

        Raises:
            MemoryError: The device has not enough.
        """
        words = max(math.ceil(size / _WORD), _WORD)
        with self.stream:
            return Buffer(self._cupy.empty(_WORD * words, dtype=self._cupy.uint8), size)

    def read(self, buffer: Buffer, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """Return a copy of its elements on the host, after all enqueued work."""
        if not buffer.size:
            return np.zeros(shape, dtype)
        with self.stream:
            raw_bytes = self._cupy.asnumpy(buffer.bytes[: buffer.size])
        return np.asarray(raw_bytes).view(dtype).reshape(shape)

    def erase(self, buffer: Buffer) -> None:
        """Enqueue a fill with NaN, so that a missing write becomes visible."""
        with self.stream:
            buffer.bytes.fill(_ABSENT)

    def rewrite(self, buffer: Buffer) -> None:
        """Enqueue a kernel that reads every word and writes it back."""
        with self.stream:
            words = buffer.bytes.view(self._cupy.uint32)
            self._cupy.bitwise_xor(words, self._cupy.uint32(0), out=words)


def narrowed(values: Array, dtype: str) -> Array:
    """Return an array in the computing precision; only float32 is changed.

    Finite values stay finite: masks use the largest float32, which other types cannot represent.
    """
    if values.dtype != np.float32 or dtype == "float32":
        return values
    import ml_dtypes

    return narrowed_to(values, np.float16 if dtype == "float16" else ml_dtypes.bfloat16)


_FUNCTIONS = {"Abs": "absolute", "Add": "add"}
"""By operator: the function of CuPy that it is."""


def clock(network: Network, memory: Memory) -> LoadedBrick | None:
    """One of the built-in networks of one operation or a chain of them, each a kernel; None for any other network."""
    model = network.model
    if model is None or _nodes(model) not in _known():
        return None
    import cupy

    buffers = {name: memory.holding(array) for name, array in network.feeds.items()}
    first = next(iter(network.feeds.values()))
    kind, shape = first.dtype, first.shape
    steps = []
    for node in model.graph.node:
        to = buffers[node.output[0]] = memory.empty(first.nbytes)
        operands = [buffers[name].array(kind, shape) for name in node.input]
        steps.append((getattr(cupy, _FUNCTIONS[node.op_type]), operands, to.array(kind, shape)))
    outputs = [buffers[name] for name in network.outputs]

    def run() -> None:
        with memory.stream:
            for function, operands, to in steps:
                function(*operands, out=to)

    inputs = [buffers[name] for name in network.feeds]
    return LoadedBrick(run, inputs, outputs, lambda: [memory.read(each, kind, shape) for each in outputs])


@cache
def _known() -> frozenset[tuple[bytes, ...]]:
    models = (built_in(name) for name in (OVERHEAD, CHAIN))
    return frozenset(_nodes(model) for model in models if model is not None)


def _nodes(model: onnx.ModelProto) -> tuple[bytes, ...]:
    return tuple(node.SerializeToString(deterministic=True) for node in model.graph.node)


_SAMPLES = 5
_SAMPLE_NS = 5e5
"""About as long as one sample shall be: many times the resolution of events, which is half a microsecond."""
_MOST_COPIES = 32
_AGAIN = 5
"""Plans that are timed in the model's state too: the fastest with hot caches, and the library's first."""
_PASSES = 8
_GONE = "not tried: the GPU failed in a plan before"


PlanCandidate = tuple[PlanTime, Callable[[], tuple[Run, int]]]
"""A plan without a time, and a function that builds it: its run, and the bytes of its workspace."""


def measured(
    candidates: Iterable[PlanCandidate],
    loaded: LoadedBrick,
    memory: Memory,
    device: Device,
    reason_of: Callable[[Exception], str],
    *,
    most: int,
    footprint: int,
) -> tuple[PlanTime, ...]:
    """Build, execute and time each plan.

    Args:
        candidates: The plans in the library's order.
        loaded: The brick in memory; its ``run`` is not used.
        memory: Memory of the brick.
        device: The device.
        reason_of: Returns one line for an exception of the library.
        most: Maximum number of executed plans; later plans get no row.
        footprint: Bytes that the model touches between two uses of the brick's weights.
    """
    rows: list[PlanTime] = []
    runs: dict[int, Run] = {}
    first: list[Array] = []
    built_count = 0
    gone = ""
    for candidate, start in candidates:
        if built_count == most:
            break
        row = candidate
        if row.reason or gone:
            rows.append(replace(row, reason=row.reason or gone))
            continue
        try:
            run, workspace = start()
            row = replace(row, workspace_bytes=workspace)
            built_count += 1
            for buffer in loaded.outputs:
                memory.erase(buffer)
            run()
            device.synchronize()
            outputs = loaded.read()
            first = first or outputs
            error = max(map(relative_difference, outputs, first), default=0.0)
            hot_ns = _time_ns(run, device)
            rows.append(replace(row, ns=hot_ns, error=error))
            runs[len(rows) - 1] = run
            fastest = sorted(runs, key=lambda at: rows[at].ns or 0.0)[:_AGAIN]
            runs = {at: runs[at] for at in {min(runs), *fastest}}  # the others need not keep their workspaces
        except Exception as error:  # noqa: BLE001  # the exceptions of libraries share no base class; a row has the reason
            rows.append(replace(row, reason=reason_of(error)))
            gone = _GONE if _is_gone(device) else ""
    passed: list[Buffer] = []
    for at, run in sorted(runs.items()) if not gone else ():
        try:
            passed = passed or [memory.empty(footprint)]
            rows[at] = replace(rows[at], model_ns=_model_ns(run, [*passed, *loaded.inputs], memory, device))
        except Exception as error:  # noqa: BLE001  # as above
            rows[at] = replace(rows[at], reason=reason_of(error))
    return tuple(rows)


def _model_ns(run: Run, touched: Sequence[Buffer], memory: Memory, device: Device) -> float:
    """Nanoseconds of one execution in a model's cache state.

    Args:
        run: Enqueues one execution.
        touched: Memory that is rewritten before each: as much as the model touches in between, then the inputs.
        memory: Memory of the brick.
        device: The device. Every other pass executes nothing, which shows the cost of the events.
    """
    ends = [(device.event(), device.event()) for _ in range(2 * _PASSES)]

    def enqueue() -> None:
        for at, (begin, end) in enumerate(ends):
            for buffer in touched:
                memory.rewrite(buffer)
            device.record(begin)
            if at % 2:
                run()
            device.record(end)

    enqueue()  # a kernel cannot be loaded while a graph is captured
    device.synchronize()
    launch = device.capture(enqueue)
    samples = []
    for _ in range(1 + _SAMPLES):
        launch()
        device.synchronize()
        spent = [device.elapsed_ns(begin, end) for begin, end in ends]
        samples.append(statistics.fmean(spent[1::2]) - statistics.fmean(spent[::2]))
    return max(statistics.median(samples[1:]), 0.0)


def _time_ns(run: Run, device: Device) -> float:
    """Nanoseconds of one execution."""
    run()
    device.synchronize()
    once = device.timed_ns(run, device.synchronize)
    copies = int(min(max(_SAMPLE_NS / max(once, 1.0), 1), _MOST_COPIES))

    def repeat() -> None:
        for _ in range(copies):
            run()

    launch = device.capture(repeat)
    launch()
    device.synchronize()
    samples: Sequence[float] = [device.timed_ns(launch, device.synchronize) for _ in range(_SAMPLES)]
    return statistics.median(samples) / copies


def _is_gone(device: Device) -> bool:
    """Return True if the device's context is lost, for example after an illegal address in a kernel."""
    try:
        device.synchronize()
    except BackendError:
        return True
    return False


CUPY = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
"""Packages that bring CuPy."""

MODE = Option("mode", "stream", ("stream", "graph"), "enqueue each call, or launch them as one CUDA graph")
FIRST = "0"
"""The library's first plan, under the name that stacks have had from the beginning."""
PLAN = Option("plan", FIRST, (FIRST,), "the library's first plan for each brick, or the one of a name", r"\w[\w=,.-]*")

_FLOATS = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}


class LibraryBackend(Backend):
    """A library that works on addresses on a GPU (see ``Backend``)."""

    devices: tuple[str, ...] = ("cuda",)
    dtypes: tuple[str, ...] = (NATIVE, "float16", "bfloat16")
    wording: Wording

    @abstractmethod
    def open(self) -> None:
        """Load the library; raise ``ImportError`` or ``OSError`` if that fails."""

    @abstractmethod
    def load(self, network: Network, settings: Settings, memory: Memory, device: Device) -> LoadedBrick:
        """Load one copy of a brick; the network has a model. May raise any exception of the library."""

    def missing(self, device: str) -> str:  # noqa: ARG002
        """CuPy or the driver (see ``Backend``)."""
        return "; ".join(lacks_of_gpu("pip install cupy-cuda13x"))

    def setup(self, settings: Settings) -> None:
        """Open the GPU and load the library (see ``Backend``)."""
        self.device(settings)
        try:
            self.open()
        except (ImportError, OSError) as error:
            raise BackendUnavailable(
                f"{self.wording.runtime} cannot be loaded: {error}", remedy=self.install
            ) from error

    def in_turn(self, options: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Return True: each brick is a separate call (see ``Backend``)."""
        return True

    def captured(self, run: Run, settings: Settings) -> Run:
        """As one CUDA graph with ``mode=graph`` (see ``Backend``)."""
        return self.device(settings).capture(run) if settings.options[MODE.name] == "graph" else run

    def prepare(self, network: Network, settings: Settings) -> LibraryExecutable:
        """Load a brick and run it once; with ``mode=graph`` its run is captured (see ``Backend``)."""
        executable = self.prepare_streamed(network, settings)
        executable.capture(lambda run: self.captured(run, settings))
        return executable

    def prepare_streamed(self, network: Network, settings: Settings) -> LibraryExecutable:
        """Load a brick and run it once, so that late loading and compiling is done (see ``Backend``)."""
        device = self.device(settings)
        memory = Memory(device)
        with self.wording.translating():
            parts = [
                clock(copy, memory) or self.load(copy, settings, memory, device)
                for copy in _copies(network, self.wording.runtime)
            ]
            executable = LibraryExecutable(parts, memory, device, self.wording)
            executable.run()
            executable.refresh()
            executable.synchronize()
        return executable


class LibraryExecutable(Executable):
    """A brick, or copies of one, in memory of a GPU (see ``Executable``)."""

    def __init__(self, parts: Sequence[LoadedBrick], memory: Memory, device: Device, wording: Wording) -> None:
        self._parts = tuple(parts)
        self._memory = memory
        self._device = device
        self._wording = wording
        self._run: Run = self._parts[0].run if len(self._parts) == 1 else self._all

    def run(self) -> None:
        """Enqueue one execution."""
        try:
            self._run()
        except Exception as error:  # as above
            raise self._wording.meaning(error) from error

    def refresh(self) -> None:
        """Enqueue a rewrite of the inputs with their values."""
        for part in self._parts:
            for buffer in part.inputs:
                self._memory.rewrite(buffer)

    def synchronize(self) -> None:
        """Wait for the device."""
        self._device.synchronize()

    def outputs(self) -> list[Array]:
        """Return copies of the outputs on the host."""
        self._device.synchronize()
        return [value for part in self._parts for value in part.read()]

    def output_bytes(self) -> int:
        """Return the bytes of the outputs."""
        return sum(buffer.size for part in self._parts for buffer in part.outputs)

    def capture(self, captured: Callable[[Run], Run]) -> None:
        """Run from now on as ``captured`` makes it of a run."""
        self._run = captured(self._run)

    def close(self) -> None:
        """Free the memory of the device."""
        self._device.synchronize()
        self._run, self._parts = released, ()

    def _all(self) -> None:
        for part in self._parts:
            part.run()


def described(network: Network) -> onnx.ModelProto:
    """Return the model of a network with weights as marked inputs again, without references to external values."""
    model = deepcopy(network.brick)
    constants = [each for each in model.graph.initializer if each.name not in network.weights]
    for each in model.graph.initializer:
        if each.name in network.weights:
            value = helper.make_tensor_value_info(each.name, each.data_type, list(each.dims))
            model.graph.input.append(mark_weight(value))
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    return model


def values_of(network: Network) -> dict[str, Array]:
    """Values of inputs, weights and constants by name."""
    return {**network.constants(network.brick), **network.feeds}


def computed_in(network: Network, dtype: str, runtime: str) -> str:
    """Return the precision of all floating-point values; the settings' precision replaces float32.

    Raises:
        UnsupportedBrick: The values have several precisions.
    """
    graph = network.brick.graph
    kinds = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    kinds |= {each.data_type for each in graph.initializer}
    floats = {_FLOATS[kind] for kind in kinds if kind in _FLOATS} or {NATIVE}
    if len(floats) > 1:
        raise UnsupportedBrick(f"{runtime}: values of several precisions: {', '.join(sorted(floats))}")
    precision = floats.pop()
    return dtype if precision == NATIVE else precision


def _copies(network: Network, runtime: str) -> list[Network]:
    """Split a network into its copies, each a separate network.

    Raises:
        UnsupportedBrick: It is a model file.
    """
    if network.model is None:
        raise UnsupportedBrick(f"{runtime} executes bricks, no model files")
    if network.unroll == 1:
        return [network]
    graph = network.model.graph
    return [
        _copy(network, *(_share(every, at, network.unroll) for every in (graph.node, graph.input, graph.output)))
        for at in range(network.unroll)
    ]


def _share(every: Sequence[Any], at: int, parts: int) -> Sequence[Any]:
    """Return a copy's part of a list that has equal parts for all copies, one after the other."""
    size, rest = divmod(len(every), parts)
    if rest:
        raise BackendError(f"{parts} copies cannot share {len(every)} values")
    return every[at * size : (at + 1) * size]


def _copy(
    network: Network,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> Network:
    model = deepcopy(network.brick)
    used: Iterable[str] = {name for node in nodes for name in reads(node)}
    constants = [each for each in network.brick.graph.initializer if each.name in used]
    for field, values in (("node", nodes), ("input", inputs), ("output", outputs), ("initializer", constants)):
        model.graph.ClearField(field)
        getattr(model.graph, field).extend(values)
    return replace(
        network,
        model=model,
        weights={each.name: network.weights[each.name] for each in constants if each.name in network.weights},
        feeds={value.name: network.feeds[value.name] for value in inputs},
        outputs=tuple(value.name for value in outputs),
        unroll=1,
    )
