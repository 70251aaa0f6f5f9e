"""cuDNN: convolutions and their fusions, products, norms, attention, pointwise operations and reductions.

A brick is one operation graph, executed by one of the library's plans. Operators that the graph API lacks are refused;
no operator is ever replaced by another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper

from ....errors import BackendError, DlbricksError, UnsupportedBrick
from ....models.subgraphs import declared_shape
from ...device.device import Device, Run
from ...network.network import Network
from .. import library
from ..base import LAYOUTS, TF32, Algorithm, Option, PlanTime, Settings, differing, released
from ..reports import Wording
from .lowering import translate
from .operations import OperationGraph, TensorRole, from_memory, in_memory, merged
from .plans import (
    DESELECTED,
    FOREIGN,
    MODES,
    OF_THE_LIBRARY,
    UNSUPPORTED,
    Target,
    engine_notes,
    listed,
    names_of,
    planned,
    reason_of,
)

# A brick in cuDNN on a GPU: its graph, its plans, and its tensors in memory.


Array = npt.NDArray[Any]

_LEFT_OUT = "cuDNN: left out, since it multiplies float32 in TF32 or narrower; tf32=on allows it"


class Execution:
    """A brick in memory, ready for a plan.

    Raises:
        UnsupportedBrick: cuDNN's graph API or all engines lack it.
        BackendError: The library failed.
        MemoryError: Not enough memory for its tensors.
    """

    def __init__(
        self, network: Network, settings: Settings, memory: library.Memory, device: Device, handle: Any
    ) -> None:
        dtype = library.computed_in(network, settings.dtype, "cuDNN")
        exact = dtype == "float32" and settings.options[TF32.name] == "off"
        self._target = Target(dtype, settings.options["layout"] == "channels_last", {"handle": handle}, exact)
        self._memory = memory
        self._device = device
        self._handle = handle
        whole = translate(library.described(network))
        self._graph = merged(whole, channels_last=self._target.channels_last)
        self._built = self._offered()
        self._numbers: list[Array] = []  # scalars, which the library reads on the host
        self._buffers = self._filled(whole, network)
        self._pack = {self._uid(name): self._address(name) for name in self._bound(whole)}
        self._outputs = _outputs(whole, network)
        self._whole = whole

    def loaded(self, plan: str) -> library.LoadedBrick:
        """Return the brick with one of its plans.

        Args:
            plan: Its name; or ``0``, for the first one that can be built.

        Raises:
            UnsupportedBrick: The plan is not offered, or no plan can be built.
            MemoryError: Not enough memory for its workspace.
        """
        reasons: list[str] = []
        for index, name in enumerate(names_of(self._built)):
            if plan not in {library.FIRST, name}:
                continue
            try:
                size = self._workspace_of(index)
            except Exception as error:  # noqa: BLE001  # the library's exceptions share no base class; the next one may do
                reasons.append(_reason(error))
                continue
            return replace(self._loaded(), run=self._run(index, size))
        raise UnsupportedBrick((reasons or ["cuDNN: it offers no such plan for this brick"])[0])

    def plans(self, most: int, footprint: int) -> tuple[PlanTime, ...]:
        """Every plan with its time (see ``Backend``)."""
        rows = listed(self._built, self._graph, self._target)
        examples = {row.engine: row.name for row in reversed(rows) if not row.reason}
        timed = library.measured(
            ((row, partial(self._start, at)) for at, row in enumerate(rows)),
            self._loaded(),
            self._memory,
            self._device,
            _reason,
            most=most,
            footprint=footprint,
        )
        notes = engine_notes(self._graph, examples, self._target)
        return tuple(replace(row, notes=notes.get(row.engine, ())) for row in timed)

    def _start(self, index: int) -> tuple[Run, int]:
        size = self._workspace_of(index)
        return self._run(index, size), size

    def _offered(self) -> Any:
        """Return the library's graph with the plans of all heuristics."""
        try:
            return planned(self._graph, MODES, self._target)
        except DlbricksError:
            raise  # it is the translation that is wrong
        except Exception as error:  # the library's exceptions share no base class
            reason = reason_of(error)
            raise (UnsupportedBrick if reason == UNSUPPORTED else BackendError)(reason) from error

    def _workspace_of(self, index: int) -> int:
        """Build a plan; gives the bytes of its workspace."""
        if not OF_THE_LIBRARY.match(names_of(self._built)[index]):
            raise UnsupportedBrick(FOREIGN)
        self._built.build_plan_at_index(index)
        return max(int(self._built.get_workspace_size_plan_at_index(index)), 0)

    def _run(self, index: int, size: int) -> Run:
        """Return a function that enqueues one execution of a plan and keeps its workspace."""
        workspace = self._memory.empty(size)
        execute, pack, handle = self._built.execute_plan_at_index, self._pack, self._handle

        def run() -> None:
            execute(pack, workspace.address, index, handle=handle)

        return run

    def _loaded(self) -> library.LoadedBrick:
        inputs = [self._buffers[name] for name, _ in self._whole.of(TensorRole.INPUT)]
        outputs = [self._buffers[tensor] for tensor, *_ in self._outputs]
        return library.LoadedBrick(released, inputs, outputs, self._read)

    def _read(self) -> list[Array]:
        arrays = []
        for name, shape, declared_type in self._outputs:
            tensor = self._whole.tensors[name]
            buffer = self._buffers[name]
            kind = library.narrowed(np.zeros(0, np.float32), self._target.dtype).dtype
            flat = self._memory.read(buffer, kind, (buffer.size // kind.itemsize,))
            value = from_memory(tensor, flat, shape, channels_last=self._target.channels_last)
            arrays.append(value.astype(declared_type))
        return arrays

    def _filled(self, whole: OperationGraph, network: Network) -> dict[str, library.Buffer]:
        values = library.values_of(network)
        buffers: dict[str, library.Buffer] = {}
        for name, tensor in whole.of(TensorRole.INPUT, TensorRole.WEIGHT):
            array = in_memory(tensor, values, channels_last=self._target.channels_last)
            buffers[name] = self._memory.holding(library.narrowed(array, self._target.dtype))
        itemsize = library.narrowed(np.zeros(0, np.float32), self._target.dtype).dtype.itemsize
        for name, tensor in whole.of(TensorRole.OUTPUT):
            buffers[name] = self._memory.empty(int(np.prod(tensor.shape)) * itemsize)
        return buffers

    def _bound(self, whole: OperationGraph) -> list[str]:
        """Return the tensors of an execution; values that no operation reads are not in the library's graph."""
        read = {name for operation in whole.operations for name in operation.inputs.values()}
        roles = (TensorRole.INPUT, TensorRole.WEIGHT, TensorRole.SCALAR, TensorRole.OUTPUT)
        return [name for name, tensor in whole.of(*roles) if tensor.role is TensorRole.OUTPUT or name in read]

    def _address(self, name: str) -> int:
        tensor = self._graph.tensors[name]
        if tensor.role is not TensorRole.SCALAR:
            return self._buffers[name].address
        # A number of float32 stays finite in the precision of the tensors, as those of the network do.
        number = library.narrowed(np.array([tensor.value], np.float32), self._target.dtype).astype(np.float32)
        self._numbers.append(number)
        return int(number.ctypes.data)

    def _uid(self, name: str) -> int:
        return int(self._built.find_tensor(name).get_uid())


def _outputs(whole: OperationGraph, network: Network) -> list[tuple[str, tuple[int, ...], Any]]:
    """Per output of the network its tensor, shape and type."""
    declared = {value.name: value.type for value in network.brick.graph.output}
    outputs = []
    for name in network.outputs:
        kind = helper.tensor_dtype_to_np_dtype(declared[name].tensor_type.elem_type)
        outputs.append((whole.outputs[name], declared_shape(declared[name]), kind))
    return outputs


def _reason(error: Exception) -> str:
    return _LEFT_OUT if DESELECTED in str(error) else reason_of(error)


_OPTIONS = (
    Option("layout", "contiguous", ("contiguous", "channels_last"), "memory format of images and of their weights"),
    library.MODE,
    library.PLAN,
    TF32,
)


class CudnnBackend(library.LibraryBackend):
    """cuDNN through its Python frontend, on memory of CuPy."""

    name = "cudnn"
    module = "cudnn"
    distributions = ("nvidia-cudnn-frontend", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", *library.CUPY)
    install = "pip install nvidia-cudnn-frontend nvidia-cudnn-cu13 cupy-cuda13x"
    wording = Wording(
        "cuDNN",
        unsupported=re.compile(r"no engine|not.support|no valid engine|no plan|is not supported", re.I),
        memory=re.compile(r"ALLOC_FAILED"),
    )

    def declared(self, device: str) -> Sequence[Option]:  # noqa: ARG002
        """Return the options of its only device."""
        return _OPTIONS

    def algorithms(self, device: str, options: Mapping[str, str], dtype: str) -> tuple[Algorithm, ...]:  # noqa: ARG002
        """Return the other layout (see ``Backend``)."""
        return differing(LAYOUTS, options)

    def open(self) -> None:
        """Load the frontend, which loads the library."""
        import cudnn

        if not cudnn.backend_version():
            raise ImportError("the frontend finds no libcudnn.so.9")

    def load(self, network: Network, settings: Settings, memory: library.Memory, device: Device) -> library.LoadedBrick:
        """Load the brick with the plan that the options choose (see ``LibraryBackend``)."""
        execution = Execution(network, settings, memory, device, _handle(device.stream))
        return execution.loaded(settings.options[library.PLAN.name])

    def plans(self, network: Network, settings: Settings, most: int, footprint: int) -> tuple[PlanTime, ...]:
        """All plans of all heuristics (see ``Backend``)."""
        if network.model is None or network.unroll > 1:
            raise UnsupportedBrick("cuDNN: plans are those of one brick")
        device = self.device(settings)
        with self.wording.translating():
            execution = Execution(network, settings, library.Memory(device), device, _handle(device.stream))
            return execution.plans(most, footprint)


@cache
def _handle(stream: int) -> Any:
    """Return the handle of this process: the library enqueues in the stream."""
    import cudnn

    handle = cudnn.create_handle()
    cudnn.set_stream(handle, stream)
    return handle
