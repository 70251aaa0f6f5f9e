"""Backends that call a library of a GPU directly: what those of cuDNN, cuBLAS and CuPy have in common.

A brick is loaded into memory of the device once; each run enqueues the library's calls in the device's one stream.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ...db.values import NATIVE
from ...errors import BackendError, BackendUnavailable, UnsupportedBrick
from ...models.skeleton import mark_weight
from ...models.subgraphs import reads
from ..device.device import Device, Run
from ..device.opening import open_device
from ..machine.nvidia import lacks_of_gpu
from ..network.network import Network
from .algorithms import PADDED, Algorithm
from .base import Option, Settings
from .calling import CallingBackend
from .clock import clock
from .memory import Loaded, Memory
from .wording import Wording

__all__ = ["CUPY", "MODE", "PLAN", "LibraryBackend", "computed_in", "described", "later_plans", "values_of"]

Array = npt.NDArray[Any]

CUPY = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
"""Packages that bring CuPy."""

MODE = Option("mode", "stream", ("stream", "graph"), "enqueue each call, or launch them as one CUDA graph")
PLAN = Option("plan", "0", (), "which of the library's plans for a brick is executed, in the library's order")

_LATER_PLANS = 3

_FLOATS = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}


class LibraryBackend(CallingBackend):
    """A library that is given addresses on a GPU (see ``Backend``, ``StreamBackend``).

    Attributes:
        wording: What the library's exceptions mean.
    """

    devices: tuple[str, ...] = ("cuda",)
    dtypes: tuple[str, ...] = (NATIVE, "float16", "bfloat16")
    wording: Wording

    @abstractmethod
    def open(self) -> None:
        """Load the library; raises ``ImportError`` or ``OSError`` where that cannot be done."""

    @abstractmethod
    def load(self, network: Network, settings: Settings, memory: Memory, device: Device) -> Loaded:
        """Load one copy of a brick; the network has a model. May raise whatever the library raises."""

    def others(self, options: Mapping[str, str]) -> Sequence[Algorithm]:  # noqa: ARG002
        """Algorithms of the library's own beside what the effective options choose."""
        return ()

    def algorithms(self, device: str, options: Mapping[str, str], dtype: str) -> tuple[Algorithm, ...]:  # noqa: ARG002
        """The library's own, and padded channels (see ``AlgorithmBackend``)."""
        return tuple(sorted((*self.others(options), *PADDED), key=lambda algorithm: algorithm.name))

    def missing(self, device: str) -> str:  # noqa: ARG002
        """CuPy or the driver (see ``PackagedBackend``)."""
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

    def device(self, settings: Settings) -> Device:  # noqa: ARG002
        """The GPU (see ``StreamBackend``)."""
        return open_device("cuda")

    def captured(self, run: Run, settings: Settings) -> Run:
        """As one CUDA graph with ``mode=graph`` (see ``StreamBackend``)."""
        return self.device(settings).capture(run) if settings.options[MODE.name] == "graph" else run

    def prepare(self, network: Network, settings: Settings) -> LibraryExecutable:
        """Load a brick and run it once; with ``mode=graph`` its run is captured (see ``Backend``)."""
        executable = self.prepare_streamed(network, settings)
        executable.capture(lambda run: self.captured(run, settings))
        return executable

    def prepare_streamed(self, network: Network, settings: Settings) -> LibraryExecutable:
        """Load a brick and run it once: what libraries load or compile late is there then (see ``StreamBackend``)."""
        device = self.device(settings)
        memory = Memory(device)
        try:
            parts = [
                clock(copy, memory) or self.load(copy, settings, memory, device)
                for copy in _copies(network, self.wording.runtime)
            ]
            executable = LibraryExecutable(parts, memory, device, self.wording)
            executable.run()
            executable.refresh()
            executable.synchronize()
        except Exception as error:  # the exceptions of libraries share no base class
            raise self.wording.meaning(error) from error
        return executable


class LibraryExecutable:
    """A brick, or copies of one, in memory of a GPU (see ``StreamedExecutable``)."""

    def __init__(self, parts: Sequence[Loaded], memory: Memory, device: Device, wording: Wording) -> None:
        self._parts = tuple(parts)
        self._memory = memory
        self._device = device
        self._wording = wording
        self._run: Run = self._parts[0].run if len(self._parts) == 1 else self._all

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:  # as above
            raise self._wording.meaning(error) from error

    def refresh(self) -> None:
        for part in self._parts:
            for buffer in part.inputs:
                self._memory.rewrite(buffer)

    def synchronize(self) -> None:
        self._device.synchronize()

    def outputs(self) -> list[Array]:
        self._device.synchronize()
        return [value for part in self._parts for value in part.read()]

    def output_bytes(self) -> int:
        return sum(buffer.size for part in self._parts for buffer in part.outputs)

    def capture(self, captured: Callable[[Run], Run]) -> None:
        """Run from now on as ``captured`` makes it of a run."""
        self._run = captured(self._run)

    def close(self) -> None:
        self._device.synchronize()
        self._run, self._parts = _released, ()

    def _all(self) -> None:
        for part in self._parts:
            part.run()


def later_plans(options: Mapping[str, str]) -> list[Algorithm]:
    """The library's next plans for each brick, as algorithms; a brick that has fewer is refused by the others."""
    first = int(options[PLAN.name]) + 1
    return [
        Algorithm(f"plan-{place}", {PLAN.name: str(place)}, f"the library's plan {place} for each brick, from 0")
        for place in range(first, first + _LATER_PLANS)
    ]


def described(network: Network) -> onnx.ModelProto:
    """The model of a network whose weights are marked inputs again: nothing refers to values that are not in it."""
    model = deepcopy(network.brick)
    kept = [each for each in model.graph.initializer if each.name not in network.weights]
    for each in model.graph.initializer:
        if each.name in network.weights:
            value = helper.make_tensor_value_info(each.name, each.data_type, list(each.dims))
            model.graph.input.append(mark_weight(value))
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def values_of(network: Network) -> dict[str, Array]:
    """Values of inputs, weights and constants by name."""
    inline = (each for each in network.brick.graph.initializer if each.name not in network.weights)
    return {
        **{each.name: numpy_helper.to_array(each) for each in inline},
        **network.weights,
        **network.feeds,
    }


def computed_in(network: Network, dtype: str, runtime: str) -> str:
    """The precision of all values of floating point: that of the settings in place of float32, else their own.

    Raises:
        UnsupportedBrick: There are several.
    """
    graph = network.brick.graph
    kinds = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    kinds |= {each.data_type for each in graph.initializer}
    floats = {_FLOATS[kind] for kind in kinds if kind in _FLOATS} or {NATIVE}
    if len(floats) > 1:
        raise UnsupportedBrick(f"{runtime}: values of several precisions: {', '.join(sorted(floats))}")
    found = floats.pop()
    return dtype if found == NATIVE else found


def _copies(network: Network, runtime: str) -> list[Network]:
    """The copies that a network is made of, each as a network of its own.

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
    """What a copy has of something that all have alike, one copy after the other."""
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


def _released() -> None:
    raise RuntimeError("this network was released")
