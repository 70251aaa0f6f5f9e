"""A network as a graph of PyTorch's functions.

Functions of ``operators`` execute it once, node by node, while their calls are recorded. Every shape is known, and
values that depend on no input are computed in advance. Parameters (the target of a Reshape, the axes of a reduction)
are read from the current value, even if an input of the network provides it, because inputs never change.

The record contains calls as they were written (``torch.conv2d``, not the kernels below it). Running the graph therefore
costs the same as a hand-written PyTorch program. Calls that depend on no input are not recorded: their results are
constants.
"""

from __future__ import annotations

import linecache
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, inliner, numpy_helper
from torch import fx
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ....errors import BackendError, UnsupportedBrick
from ....models.subgraphs import attributes_of, is_standard, plain_domain, reads
from ...network.network import Network
from ..reports import Wording
from .operators.arguments import TorchCall, operators
from .operators.moves import GENERATORS

# ruff: noqa: TID251 - part of the backend that runs torch


FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Types that float32 may be computed in, by name."""

_TYPES: dict[int, torch.dtype] = {
    TensorProto.FLOAT: torch.float32, TensorProto.DOUBLE: torch.float64, TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16, TensorProto.FLOAT8E4M3FN: torch.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz, TensorProto.FLOAT8E5M2: torch.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz, TensorProto.BOOL: torch.bool,
    TensorProto.INT4: torch.int8,  # of 4 bits PyTorch knows only packed pairs
    TensorProto.UINT4: torch.uint8, TensorProto.INT8: torch.int8, TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32, TensorProto.INT64: torch.int64, TensorProto.UINT8: torch.uint8,
    TensorProto.UINT16: torch.uint16, TensorProto.UINT32: torch.uint32, TensorProto.UINT64: torch.uint64,
    TensorProto.COMPLEX64: torch.complex64, TensorProto.COMPLEX128: torch.complex128,
}  # fmt: skip
_ELEMENTS = {torch_type: number for number, torch_type in _TYPES.items()}
"""ONNX's number of each type; types of 4 bits are carried in 8 and count as these, which come later."""
_CARRIERS = {1: np.uint8, 2: np.int16}
"""Types of NumPy's own that carry the bytes of one of ml_dtypes', by size."""


def type_of(number: int, float_type: torch.dtype) -> torch.dtype:
    """Return PyTorch's type for ONNX's number of a type.

    Args:
        number: ``TensorProto.DataType``.
        float_type: Type that replaces float32.

    Raises:
        UnsupportedBrick: PyTorch lacks this type.
    """
    torch_type = _TYPES.get(number)
    if torch_type is None:
        raise UnsupportedBrick(f"PyTorch has no tensors of {TensorProto.DataType.Name(number).lower()}")
    return float_type if torch_type is torch.float32 else torch_type


def element_of(torch_type: torch.dtype) -> int:
    """Return ONNX's number of a type of PyTorch."""
    return _ELEMENTS[torch_type]


def tensor_of(array: npt.NDArray[Any], float_type: torch.dtype, device: str) -> torch.Tensor:
    """Return a tensor with the values of an array, on the same memory if type and device allow it.

    Finite values stay finite in a narrower type: masks use the largest float32, and infinity times zero would be NaN.

    Raises:
        UnsupportedBrick: PyTorch lacks this type.
    """
    if array.dtype.kind in "OUS":
        raise UnsupportedBrick("PyTorch has no tensors of string")
    declared = type_of(helper.np_dtype_to_tensor_dtype(array.dtype), torch.float32)
    if array.dtype.name in {"int4", "uint4"}:
        array = array.astype(np.int8 if array.dtype.name == "int4" else np.uint8)
    elif array.dtype.kind not in "biufc":
        array = np.ascontiguousarray(array).view(_CARRIERS[array.dtype.itemsize]).reshape(array.shape)
    with warnings.catch_warnings():
        # Weights are read only, and nothing here writes to a tensor.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(array if all(step >= 0 for step in array.strides) else array.copy())
    if tensor.dtype != declared:
        tensor = tensor.view(declared)
    if declared is torch.float32 and float_type is not torch.float32:
        limits = torch.finfo(float_type)
        narrow = torch.where(torch.isfinite(tensor), torch.clamp(tensor, limits.min, limits.max), tensor)
        tensor = narrow.to(float_type)
    return tensor.to(device)


def array_of(tensor: torch.Tensor, number: int) -> npt.NDArray[Any]:
    """Return a copy of a tensor, in the type that ONNX declares (0: in the tensor's type)."""
    dtype = helper.tensor_dtype_to_np_dtype(number) if number else None
    values = tensor.to(type_of(number, torch.float32)) if number else tensor
    values = values.detach().to("cpu", memory_format=torch.contiguous_format)
    if dtype is None or dtype.kind in "biufc":
        return np.array(values.numpy())
    if dtype.name in {"int4", "uint4"}:
        return np.asarray(values.numpy().astype(dtype))
    carrier = torch.uint8 if dtype.itemsize == 1 else torch.int16
    return np.array(values.contiguous().view(carrier).numpy()).view(dtype)


_FACTORIES = frozenset({torch.zeros, torch.ones, torch.full, torch.arange, torch.eye, torch.randn, torch.rand})
"""Make tensors of numbers alone."""


class GraphRecorder(TorchFunctionMode):  # type: ignore[misc]  # PyTorch is not typed here
    """A recorder of calls while it is active (``with recorder:``); tensors are real, and all calls are executed.

    Attributes:
        label: Name of the calls recorded from now on.
        generating: Record tensors that are made of numbers alone, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.label = ""
        self.generating = False
        self._graph = fx.Graph()
        self._nodes = WeakTensorKeyDictionary()
        self._constants: dict[str, torch.Tensor] = {}

    def input(self, tensor: torch.Tensor) -> None:
        """Declare the next input of the graph."""
        self._nodes[tensor] = self._graph.placeholder(f"input_{len(self._nodes)}")

    def is_constant(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor depends on no input of the graph."""
        node = self._nodes.get(tensor)
        return node is None or node.op == "get_attr"

    def finish(self, outputs: Iterable[torch.Tensor]) -> fx.GraphModule:
        """Return the recorded module, with constants as plain attributes, which are faster to find than buffers."""
        self._graph.output(tuple(self._node(tensor) for tensor in outputs))
        module = fx.GraphModule(self._constants, self._graph, "Network")
        for name, tensor in self._constants.items():
            delattr(module, name)
            module.__dict__[name] = tensor
        return module

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        result = func(*args, **named)
        leaves: list[Any] = []
        map_aggregate((args, dict(named)), leaves.append)
        operands = [value for value in leaves if isinstance(value, torch.Tensor)]
        constant = all(self.is_constant(tensor) for tensor in operands)
        if constant and not (self.generating and func in _FACTORIES):
            return result
        results = result if isinstance(result, tuple | list) else (result,)
        fresh = [value for value in results if isinstance(value, torch.Tensor)]
        if not fresh or any(value is tensor for value in fresh for tensor in operands):
            return result  # a number, or a call that changes nothing (to the type that a tensor has already)
        self._record(func, args, named, result)
        return result

    def _record(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        positional = map_aggregate(args, self._node)
        named = map_aggregate(dict(kwargs), self._node)
        node = self._graph.create_node("call_function", func, positional, named, self.label)
        if isinstance(result, torch.Tensor):
            self._nodes[result] = node
            return
        for index, value in enumerate(result):
            self._nodes[value] = self._graph.create_node(
                "call_function", operator.getitem, (node, index), {}, self.label
            )

    def _node(self, value: Any) -> Any:
        """Return the node of a tensor; return other values unchanged."""
        if not isinstance(value, torch.Tensor):
            return value
        node = self._nodes.get(value)
        if node is None:
            name = f"constant_{len(self._constants)}"
            self._constants[name] = value
            node = self._nodes[value] = self._graph.create_node("get_attr", name)
        return node


_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "ConvInteger"})
_WITHOUT_PLACE = frozenset({"MatMul", "Gemm", "Einsum", "Softmax", "LayerNormalization", "RMSNormalization"})
"""Operators that do not read images: a model would not store their inputs with channels last."""

_GENERATED = "<eval_with_key>"
"""PyTorch's name for the file of a graph's code."""

_WORDING = Wording(
    "PyTorch",
    unsupported=re.compile(r"not implemented|not supported|unsupported|is only implemented|expected \w+ dtype", re.I),
)


@dataclass(frozen=True, slots=True, eq=False)
class TorchNetwork:
    """A network in PyTorch.

    Attributes:
        module: Straight-line code from the inputs to a tuple of the outputs.
        inputs: Values of the inputs.
        types: ONNX's number of each output's type; 0 if the network does not state it.
    """

    module: fx.GraphModule
    inputs: tuple[torch.Tensor, ...]
    types: tuple[int, ...]


Observer: TypeAlias = Callable[[onnx.NodeProto, Sequence[torch.Tensor | None], Sequence[torch.Tensor]], None]
"""Called with each node of a network (not of bodies), its inputs and its results, right after its execution."""


def translated(
    network: Network, *, float_type: torch.dtype, device: str, channels_last: bool, observe: Observer | None = None
) -> TorchNetwork:
    """Translate a network.

    Args:
        network: A brick, or a whole model with its file.
        float_type: Type that replaces float32.
        device: The device.
        channels_last: Store images and the weights of convolutions with channels last.
        observe: Sees the nodes that are executed with an input of the network.

    Raises:
        UnsupportedBrick: An operator, an attribute or a type of it cannot be expressed; the message names it.
        BackendError: PyTorch failed in an operator.
        MemoryError: Not enough memory.
    """
    model = network.loaded()
    if model.functions:
        model = inliner.inline_local_functions(model)
    recorder = GraphRecorder()
    opset = next((entry.version for entry in model.opset_import if not plain_domain(entry.domain)), 1)
    images = _images(model.graph) if channels_last else frozenset()
    walk = _Translation(recorder, opset, float_type, device, images)
    constants = network.constants(model)
    values: dict[str, torch.Tensor | None] = {name: walk.tensor(name, array) for name, array in constants.items()}
    inputs = []
    with torch.inference_mode():
        for name, array in network.feeds.items():
            values[name] = tensor = walk.tensor(name, array)
            recorder.input(tensor)
            inputs.append(tensor)
        with recorder:
            outputs = walk.run(model.graph, values, network.outputs, observe)
    module = recorder.finish(outputs)
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    return TorchNetwork(module, tuple(inputs), tuple(types.get(name, 0) for name in network.outputs))


@dataclass(frozen=True, slots=True, eq=False)
class _Translation:
    """The execution of nodes in order, with a record of their calls.

    Attributes:
        recorder: The recorder.
        opset: Version of ONNX's operator set.
        float_type: Type that replaces float32.
        device: The device.
        images: Inputs and weights of the network with channels last.
    """

    recorder: GraphRecorder
    opset: int
    float_type: torch.dtype
    device: str
    images: frozenset[str]

    def tensor(self, name: str, array: npt.NDArray[Any]) -> torch.Tensor:
        """Return an input or a weight of the network."""
        tensor = tensor_of(array, self.float_type, self.device)
        return tensor.to(memory_format=torch.channels_last) if name in self.images and tensor.ndim == 4 else tensor

    def run(
        self,
        graph: onnx.GraphProto,
        values: dict[str, torch.Tensor | None],
        outputs: Sequence[str],
        observe: Observer | None = None,
    ) -> list[torch.Tensor]:
        """Return the values of the outputs; drop values after their last reader."""
        pending_reads = _readers(graph, outputs)
        for node in graph.node:
            inputs = [values[name] if name else None for name in node.input]
            wanted_outputs = tuple(bool(name) and pending_reads.get(name, 0) > 0 for name in node.output)
            results = self._execute(node, inputs, wanted_outputs, values)
            if observe is not None and not all(map(self.recorder.is_constant, results)):
                observe(node, inputs, results)
            values.update(
                (name, value) for name, value in zip(node.output, results, strict=False) if pending_reads.get(name)
            )
            for name in reads(node):
                pending_reads[name] -= 1
                if not pending_reads[name]:
                    values.pop(name, None)
        missing = [name for name in outputs if values.get(name) is None]
        if missing:
            raise BackendError(f"output {missing[0]} of the network is not computed")
        return [values[name] for name in outputs]

    def _execute(
        self,
        node: onnx.NodeProto,
        inputs: list[torch.Tensor | None],
        wanted_outputs: tuple[bool, ...],
        outer: Mapping[str, torch.Tensor | None],
    ) -> Sequence[torch.Tensor]:
        if node.op_type == "Constant" and is_standard(node):
            return (tensor_of(_constant(node), self.float_type, self.device),)
        function = operators().get(node.op_type) if is_standard(node) else None
        if function is None:
            raise UnsupportedBrick(f"PyTorch has no {f'{node.domain}.' if node.domain else ''}{node.op_type}")
        constant = tuple(value is None or self.recorder.is_constant(value) for value in inputs)
        body = partial(self._body, outer=outer)
        dtype_of = partial(type_of, float_type=self.float_type)
        call = TorchCall(node.op_type, self.opset, attributes_of(node), wanted_outputs, constant, dtype_of, body)
        self.recorder.label = node.op_type
        self.recorder.generating = node.op_type in GENERATORS and not (constant and all(constant))
        try:
            result = function(call, *inputs)
        except Exception as error:  # PyTorch's exceptions share no base class
            raise meaning(error, node.op_type) from error
        self.recorder.generating = False
        return result if isinstance(result, tuple | list) else (result,)

    def _body(
        self, graph: onnx.GraphProto, inputs: Sequence[torch.Tensor], outer: Mapping[str, torch.Tensor | None]
    ) -> list[torch.Tensor]:
        values = dict(outer)
        for tensor in graph.initializer:
            values[tensor.name] = tensor_of(numpy_helper.to_array(tensor), self.float_type, self.device)
        values.update(zip((value.name for value in graph.input), inputs, strict=True))
        return self.run(graph, values, [value.name for value in graph.output])


def meaning(error: Exception, operator: str = "") -> Exception:
    """Translate an exception of PyTorch; its traceback names a missing ``operator``."""
    where = operator or _failing(error.__traceback__) or "the network"
    return _WORDING.meaning(error, where=where, unsupported=isinstance(error, NotImplementedError))


def _failing(traceback: TracebackType | None) -> str:
    """Return the operator of the line in a graph's code that raised an exception; empty outside of a graph."""
    op_type = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename.startswith(_GENERATED):
            line = linecache.getline(code.co_filename, traceback.tb_lineno)
            op_type = re.sub(r"_\d+$", "", line.partition("=")[0].strip())
        traceback = traceback.tb_next
    return op_type


def _images(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the inputs and weights with four axes that are stored with channels last.

    An Identity passes the property on.
    """
    weights = {tensor.name for tensor in graph.initializer}
    images = {value.name for value in graph.input} - weights
    same: dict[str, str] = {}
    filters: set[str] = set()
    for node in graph.node:
        reads = [same.get(name, name) for name in node.input]
        if node.op_type == "Identity":
            same[node.output[0]] = reads[0]
        elif node.op_type in _WITHOUT_PLACE:
            images.difference_update(reads)
        elif node.op_type in _CONVOLUTIONS:
            filters.add(reads[1])
    return frozenset(images | filters)


def _readers(graph: onnx.GraphProto, outputs: Iterable[str]) -> dict[str, int]:
    """How often each value is read; outputs once more than that."""
    read_counts = dict.fromkeys(outputs, 1)
    for node in graph.node:
        for name in reads(node):
            read_counts[name] = read_counts.get(name, 0) + 1
    return read_counts


def _constant(node: onnx.NodeProto) -> Any:
    ((name, value),) = attributes_of(node).items()
    if name == "value":
        return numpy_helper.to_array(value)
    types = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if name not in types:
        raise UnsupportedBrick(f"PyTorch has no Constant with {name}")
    return np.array(value, dtype=types[name])


# A network whose independent branches run side by side on a GPU: a stream for each, forks and joins by events.
#
# What a critical path promises is what a GPU could gain if branches never shared it. This runs them in streams of their
# own, which as one CUDA graph are its branches, so that the promise can be measured.


# ruff: noqa: TID251 - part of the backend that runs torch


MOST_LANES = 8
"""Streams at most: the branches of one module of a CNN are fewer."""


Lane: TypeAlias = tuple[int, tuple[int, ...]]
"""The number of an operation's stream (0 is the caller's), and the operations of other lanes that it waits for."""


def lanes(reads: Sequence[Sequence[int]], most: int = MOST_LANES) -> list[Lane]:
    """Assign a lane to each operation: the lane of an operand if it has no later operation, else a free one.

    Args:
        reads: Indices of each operation's operands; operations are in an executable order.
        most: Maximum number of lanes.

    Returns:
        One lane per operation. A chain stays in one lane.
    """
    pending_reads = [0] * len(reads)
    for before in reads:
        for operand in {*before}:
            pending_reads[operand] += 1
    tails: list[int | None] = [None]
    assignments: list[Lane] = []
    for index, before in enumerate(reads):
        for operation in {*before}:
            pending_reads[operation] -= 1
        operand_lane = next(
            (assignments[operation][0] for operation in before if tails[assignments[operation][0]] == operation), None
        )
        lane = _free(tails, pending_reads, most) if operand_lane is None else operand_lane
        waits = tuple(sorted({operation for operation in before if assignments[operation][0] != lane}))
        tails[lane] = index
        assignments.append((lane, waits))
    return assignments


def _free(tails: list[int | None], pending_reads: Sequence[int], most: int) -> int:
    """Return a lane with no pending reader of its last operation; else a new lane, or the least recently used."""
    for lane, tail in enumerate(tails):
        if tail is None or not pending_reads[tail]:
            return lane
    if len(tails) < most:
        tails.append(None)
        return len(tails) - 1
    return min(range(len(tails)), key=lambda lane: tails[lane] or 0)


class CudaStreams:
    """Streams of the GPU by the numbers of their lanes; lane 0 is the current stream."""

    def __init__(self) -> None:
        self._others = [torch.cuda.Stream() for _ in range(MOST_LANES - 1)]

    def entered(self, lane: int) -> AbstractContextManager[Any]:
        """Send the calls inside the context to a lane."""
        context: AbstractContextManager[Any] = torch.cuda.stream(self._stream(lane))
        return context

    def mark(self, lane: int) -> Any:
        """Record an event at the present end of a lane."""
        return self._stream(lane).record_event()

    def wait(self, lane: int, event: Any) -> None:
        """Have a lane wait for an event."""
        self._stream(lane).wait_event(event)

    def _stream(self, lane: int) -> Any:
        return self._others[lane - 1] if lane else torch.cuda.current_stream()


def branched(module: fx.GraphModule, streams: CudaStreams) -> Callable[..., tuple[Any, ...]]:
    """Return a call of the module with a separate stream for each branch.

    All values live until the call returns, so that no stream overwrites another stream's operand.
    """
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    numbers = {node: index for index, node in enumerate(nodes)}
    reads = [[numbers[each] for each in node.all_input_nodes if each in numbers] for node in nodes]
    places = lanes(reads)
    awaited = {operation for _, waits in places for operation in waits}
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    constants = {node: getattr(module, node.target) for node in module.graph.nodes if node.op == "get_attr"}
    (end,) = (node for node in module.graph.nodes if node.op == "output")

    def call(*tensors: torch.Tensor) -> tuple[Any, ...]:
        values: dict[fx.Node, Any] = {**constants, **dict(zip(inputs, tensors, strict=True))}
        marks: dict[int, Any] = {}
        forked = {0}
        begin = streams.mark(0)
        for number, (node, (lane, waits)) in enumerate(zip(nodes, places, strict=True)):
            if lane not in forked:
                forked.add(lane)
                streams.wait(lane, begin)
            for operation in waits:
                streams.wait(lane, marks[operation])
            with streams.entered(lane):
                values[node] = node.target(*_given(node.args, values), **_given(node.kwargs, values))
            if number in awaited:
                marks[number] = streams.mark(lane)
        for lane in forked - {0}:
            streams.wait(0, streams.mark(lane))
        outputs: tuple[Any, ...] = _given(end.args[0], values)
        return outputs

    return call


def _given(arguments: Any, values: Mapping[fx.Node, Any]) -> Any:
    return fx.node.map_arg(arguments, lambda node: values[node])
