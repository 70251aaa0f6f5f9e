"""Sessions on an NVIDIA GPU: inputs and outputs are bound in its memory, and runs only enqueue in the device's stream.

Values that a session reads or writes on the host, for example shapes, are bound there without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from onnx import helper

from ....errors import BackendError, UnsupportedBrick
from ...device.device import Device
from ...device.host import open_device
from ...network.network import Network
from ..base import Executable, Settings
from . import session as sessions

if TYPE_CHECKING:
    import onnxruntime as ort

_HOST = frozenset({"Cpu", "CudaPinned"})
"""Memory of the host, as the runtime calls it."""

_SKIP, _ONLY = "-1", "0"
"""Numbers of CUDA graphs: none, and the one of a session."""


def loaded_on_gpu(network: Network, settings: Settings, options: ort.SessionOptions) -> Executable:
    """Load a session on the GPU with its inputs bound.

    Raises:
        UnsupportedBrick: The runtime cannot express the network, or cannot capture the requested CUDA graph.
        BackendError: The runtime failed, or did not use the GPU.
        MemoryError: Not enough memory.
    """
    session, weights = sessions.created(network, options, sessions.providers(settings))
    if sessions.CUDA not in session.get_providers():
        raise BackendError("ONNX Runtime could not start its CUDA provider for this network, and left it to the CPU")
    with sessions.WORDING.translating():
        if sessions.reads_strings(network):
            return sessions.OrtStrings(session, network, weights)
        return CudaExecutable(session, network, weights, open_device("cuda"), graph=settings.options["mode"] == "graph")


class CudaExecutable(sessions.OrtExecutable):
    """A session on the GPU (see ``Executable``).

    As a CUDA graph, its first run finds the outputs, the second one captures, and all later ones replay.

    Args:
        session: Session with the CUDA provider, which enqueues in the stream of the device.
        network: The loaded network.
        weights: Memory that the session reads and that must outlive it.
        device: The GPU.
        graph: The provider captures a graph.
    """

    def __init__(
        self, session: ort.InferenceSession, network: Network, weights: Any, device: Device, *, graph: bool
    ) -> None:
        self._device = device
        self._copies: list[tuple[int, int, int]] = []
        super().__init__(session, network, weights, bound=True)
        self._repeat = partial(session.run_with_iobinding, self._binding, _enqueueing(_SKIP if graph else _ONLY))
        self._graph = partial(session.run_with_iobinding, self._binding, _enqueueing(_ONLY)) if graph else None

    def refresh(self) -> None:
        """Enqueue a copy of each input of floating-point numbers from a twin (see ``Executable``)."""
        from cupy.cuda import runtime

        for target, source, size in self._copies:
            runtime.memcpyAsync(target, source, size, runtime.memcpyDeviceToDevice, self._device.stream)

    def synchronize(self) -> None:
        """Wait for the stream (see ``Executable``)."""
        self._device.synchronize()

    def outputs(self) -> list[npt.NDArray[Any]]:
        """Return copies on the host (see ``Executable``)."""
        self._device.synchronize()
        values = zip(self._names, self._binding.get_outputs(), strict=True)
        return [
            sessions.array_of(value) if self._places[name] == "cpu" else self._fetched(value) for name, value in values
        ]

    def close(self) -> None:
        """Wait for the stream, and free the session and the inputs (see ``Executable``)."""
        with suppress(BackendError):  # of what was enqueued: nobody asks for it any more
            self._device.synchronize()
        self._copies, self._graph = [], None
        super().close()

    def _bind_inputs(self, network: Network) -> Any:
        """Bind inputs on the GPU, except for values that the session reads on the host."""
        input_devices = _places(self._session.get_inputs(), getattr(self._session, "get_input_memory_infos", None))
        alive: list[Any] = []
        for name, array in network.feeds.items():
            if input_devices[name] == "cpu":
                alive.append(sessions.value_of(array))
                self._binding.bind_ortvalue_input(name, alive[-1])
                continue
            memory = self._sent(array)
            alive.append(memory)
            number = int(helper.np_dtype_to_tensor_dtype(array.dtype))
            self._binding.bind_input(name, "cuda", 0, number, list(array.shape), memory.ptr)
            if array.dtype.kind == "f" and array.size:
                alive.append(self._sent(array))
                self._copies.append((memory.ptr, alive[-1].ptr, array.nbytes))
        self._device.synchronize()
        return alive

    def _output_places(self) -> Mapping[str, str]:
        return _places(self._session.get_outputs(), getattr(self._session, "get_output_memory_infos", None))

    def _first(self) -> None:
        super()._first()
        if self._graph is None:
            return
        if self._step is not self._repeat:
            raise UnsupportedBrick(
                "ONNX Runtime cannot replay a CUDA graph of it: the size of an output depends on values",
                remedy="pass --option mode=stream",
            )
        self._step = self._repeat = self._graph

    def _sent(self, array: npt.NDArray[Any]) -> Any:
        """Copy an array to the GPU's memory; it must live until the device has been waited for."""
        import cupy

        memory = cupy.cuda.alloc(max(array.nbytes, 1))
        if array.size:
            source = np.ascontiguousarray(array)
            runtime = cupy.cuda.runtime
            runtime.memcpyAsync(
                memory.ptr, source.ctypes.data, array.nbytes, runtime.memcpyHostToDevice, self._device.stream
            )
            if source is not array:
                self._device.synchronize()
        return memory

    def _fetched(self, value: ort.OrtValue) -> npt.NDArray[Any]:
        from cupy.cuda import runtime

        if not value.is_tensor():
            raise BackendError(f"an output is a {value.data_type()}, not a tensor")
        dtype = helper.tensor_dtype_to_np_dtype(value.element_type())
        data = np.empty(sessions.bytes_of(value), dtype=np.uint8)
        if data.size:
            stream = self._device.stream
            runtime.memcpyAsync(data.ctypes.data, value.data_ptr(), data.nbytes, runtime.memcpyDeviceToHost, stream)
            self._device.synchronize()
        return data.view(dtype).reshape(value.shape())


def _enqueueing(graph: str) -> ort.RunOptions:
    """Options of a run that waits for nothing.

    Args:
        graph: Number of the CUDA graph that it captures or replays, of a session that has them.
    """
    import onnxruntime as ort

    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    options.add_run_config_entry("gpu_graph_id", graph)
    return options


def _places(values: Any, memory_infos: Any) -> dict[str, str]:
    """Return the devices of a session's inputs or outputs; the GPU if the runtime is too old to report them."""
    names = [value.name for value in values]
    if memory_infos is None:
        return dict.fromkeys(names, "cuda")
    devices = (("cpu" if info.name in _HOST else "cuda") for info in memory_infos())
    return dict(zip(names, devices, strict=True))
