"""Operation graphs: their tensors and operations, and the graph while it grows, node by node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from ....errors import UnsupportedBrick
from ....models.skeleton import is_weight
from ....models.subgraphs import attributes_of, declared_shape

# A brick as cuDNN sees it: tensors, and operations of its graph API between them.
#
# Independent of the library, so that what a translation means can be computed and compared without it: ``in_memory``
# and ``from_memory`` say what the tensors hold.
#
# ``merged`` gives fewer dimensions: neighbours in memory that every tensor of a graph treats alike are one dimension.
# An operation graph then says what is computed and no more: the addition of two images is one of two rows of numbers,
# a batch of attention heads is one batch. cuDNN has plans for few shapes of such operations, and for these.


class TensorRole(StrEnum):
    """Roles of a tensor in the graph."""

    INPUT = "input"
    WEIGHT = "weight"
    SCALAR = "scalar"
    """A number that is passed by value."""
    VIRTUAL = "virtual"
    """Written and read inside the graph; a fused plan keeps it out of memory."""
    OUTPUT = "output"


class Derivation(StrEnum):
    """How a weight follows from values of the network; once, ahead of all executions."""

    NONE = ""
    SCALE = "scale"
    """Factor of a batch normalization's input, from scale, mean and variance."""
    SHIFT = "shift"
    """Summand of a batch normalization, from scale, mean, variance and bias."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of an operation graph.

    Attributes:
        shape: Its dimensions as cuDNN requires: at least three, at least four for images.
        role: Its role in the graph.
        order: Dimensions from the slowest to the fastest in the network's memory; empty: in their order.
        relaid: Copied for the library with dimensions in their order.
        sources: Values of the network behind it; without a ``derivation`` the first one, reshaped.
        derivation: Rule that computes it from the sources.
        value: Value of a scalar; epsilon of a derived weight.
        image: Its second dimension has the channels, which may also be the fastest in memory.
    """

    shape: tuple[int, ...]
    role: TensorRole
    order: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    derivation: Derivation = Derivation.NONE
    value: float | None = None
    image: bool = False
    relaid: bool = False

    def strides(self, *, channels_last: bool = False) -> tuple[int, ...]:
        """Return the distance in elements between neighbours along each dimension."""
        order = tuple(range(len(self.shape))) if self.relaid else self.order or tuple(range(len(self.shape)))
        if channels_last and self.image and not self.order:
            order = (0, *range(2, len(self.shape)), 1)
        strides = [1] * len(self.shape)
        step = 1
        for dimension in reversed(order):
            strides[dimension] = step
            step *= self.shape[dimension]
        return tuple(strides)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of cuDNN's graph API.

    Attributes:
        kind: Name of the frontend's method: ``conv_fprop``, ``matmul``, ``add``, ``relu``, ``reduction``, ...
        inputs: Parameter of the method to name of a tensor.
        output: Name of the tensor that it writes.
        settings: Other parameters: numbers, lists of integers, and names of modes.
    """

    kind: str
    inputs: Mapping[str, str]
    output: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperationGraph:
    """A brick.

    Attributes:
        tensors: By name, in the order in which operations mention them.
        operations: In an order in which they can be executed.
        outputs: Values of the network to names of tensors.
    """

    tensors: Mapping[str, Tensor]
    operations: tuple[Operation, ...]
    outputs: Mapping[str, str]

    def of(self, *roles: TensorRole) -> Iterator[tuple[str, Tensor]]:
        """Tensors of some roles."""
        return ((name, tensor) for name, tensor in self.tensors.items() if tensor.role in roles)


_FIXED = frozenset({"conv_fprop", "layernorm", "rmsnorm", "sdpa"})
"""Operations that give each dimension a meaning."""
_LEAST = 3
_LONGEST = 65_535
"""Longest merged dimension. Pointwise kernels launch blocks along it, and CUDA allows so many in y and z. On an H100
one dimension of 524,280 numbers of float16 failed at launch; dimensions of this length need no luck."""


def merged(graph: OperationGraph, *, channels_last: bool = False) -> OperationGraph:
    """Return the graph with the fewest possible dimensions, at least three, none longer than a kernel can launch.

    Args:
        graph: A brick; convolutions and normalizations over rows stay unchanged.
        channels_last: Images have their channels fastest in memory, which changes the neighbours.
    """
    if any(operation.kind in _FIXED for operation in graph.operations):
        return graph
    shapes = {name: _in_memory(tensor, channels_last=channels_last) for name, tensor in graph.tensors.items()}
    rights = {operation.inputs["B"] for operation in graph.operations if operation.kind == "matmul"}
    groups = _groups(list(shapes.values()), matrix_axes=2 if rights else 0)
    if rights and all(set(shapes[name][:-2]) == {1} for name in rights):
        groups = _rows(groups, [shape for name, shape in shapes.items() if name not in rights])
    lengths = [max(math.prod(shape[at] for at in group) for shape in shapes.values()) for group in groups]
    parts = [(length,) if rights and at >= len(groups) - 2 else _parts(length) for at, length in enumerate(lengths)]
    rank = max(_LEAST, sum(map(len, parts)))
    tensors = {}
    for name, tensor in graph.tensors.items():
        sizes: list[int] = []
        for group, part in zip(groups, parts, strict=True):
            size = math.prod(shapes[name][at] for at in group)
            sizes += part if size == math.prod(part) else (1,) * (len(part) - 1) + (size,)
        order = tensor.order
        if order:  # of the operand of a product: its last two dimensions are the other way round
            order = (*range(rank - 2), rank - 1, rank - 2)
        tensors[name] = replace(tensor, shape=(1,) * (rank - len(sizes)) + tuple(sizes), order=order, image=False)
    return OperationGraph(tensors, graph.operations, graph.outputs)


def _parts(length: int) -> tuple[int, ...]:
    """Split a dimension that is too long into two, if a divisor allows it."""
    if length <= _LONGEST:
        return (length,)
    columns = next(size for size in range(_LONGEST, 0, -1) if length % size == 0)
    return (length // columns, columns) if columns > 1 else (length,)


def _in_memory(tensor: Tensor, *, channels_last: bool) -> tuple[int, ...]:
    """Return dimensions from the slowest in memory to the fastest; in their order for a transposed operand."""
    if not (channels_last and tensor.image):
        return tensor.shape
    return (tensor.shape[0], *tensor.shape[2:], tensor.shape[1])


def _groups(shapes: Sequence[Sequence[int]], *, matrix_axes: int) -> list[list[int]]:
    """Dimensions that are merged, in order; the last ``matrix_axes`` stay alone."""
    rank = len(shapes[0])
    groups: list[list[int]] = []
    for at in range(rank - matrix_axes):
        if all(shape[at] == 1 for shape in shapes):
            continue
        if groups and _are_alike(shapes, groups[-1][-1], at):
            groups[-1].append(at)
        else:
            groups.append([at])
    return [*groups, *([at] for at in range(rank - matrix_axes, rank))]


def _rows(groups: Sequence[list[int]], shapes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Turn a batch of products with one matrix into a single product with more rows.

    Args:
        groups: Dimensions merged so far; the last two are rows and columns.
        shapes: Shapes of all tensors except the right matrices, which are not batched.
    """
    *batches, rows, columns = groups
    if not batches or not (
        _are_alike(shapes, batches[-1][-1], rows[0]) or all(shape[rows[0]] == 1 for shape in shapes)
    ):
        return list(groups)
    return [*batches[:-1], [*batches[-1], *rows], columns]


def _are_alike(shapes: Sequence[Sequence[int]], axis: int, other: int) -> bool:
    """Return True if each tensor either has both dimensions or is broadcast over both."""
    return all((shape[axis] > 1) == (shape[other] > 1) for shape in shapes)


Array = npt.NDArray[Any]


def in_memory(tensor: Tensor, values: Mapping[str, Array], *, channels_last: bool) -> Array:
    """Return the elements of an input or a weight in memory order.

    Args:
        tensor: The translated tensor before its dimensions were merged: merging moves nothing.
        values: Values of the network, by name.
        channels_last: Images have their channels fastest in memory.
    """
    if tensor.derivation is not Derivation.NONE:
        return _laid_out(tensor, _derived(tensor, values), channels_last=channels_last)
    array = values[tensor.sources[0]]
    if not tensor.order:
        return _laid_out(tensor, array.reshape(tensor.shape), channels_last=channels_last)
    if not tensor.relaid:
        return array.reshape(-1)  # the order is that of the network
    ordered = array.reshape([tensor.shape[at] for at in tensor.order])
    return np.ascontiguousarray(ordered.transpose(np.argsort(tensor.order)))


def from_memory(tensor: Tensor, flat: Array, shape: tuple[int, ...], *, channels_last: bool) -> Array:
    """Return the value of an output."""
    if not (channels_last and tensor.image):
        return flat.reshape(shape)
    ordered = flat.reshape((tensor.shape[0], *tensor.shape[2:], tensor.shape[1]))
    return np.ascontiguousarray(np.moveaxis(ordered, -1, 1)).reshape(shape)


def _laid_out(tensor: Tensor, array: Array, *, channels_last: bool) -> Array:
    if not (channels_last and tensor.image):
        return np.ascontiguousarray(array)
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def _derived(tensor: Tensor, values: Mapping[str, Array]) -> Array:
    """Of a batch normalization (https://onnx.ai/onnx/operators/onnx__BatchNormalization.html), in its own precision."""
    scale, mean, variance, *bias = (values[name].astype(np.float64) for name in tensor.sources)
    factor = scale / np.sqrt(variance + (tensor.value or 0.0))
    weight = factor if tensor.derivation is Derivation.SCALE else bias[0] - mean * factor
    return weight.astype(values[tensor.sources[0]].dtype).reshape(tensor.shape)


_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
_MIXING = frozenset({"MatMul", "Gemm", "Softmax", "LayerNormalization", "RMSNormalization"})
"""Operators that mark a brick's tensors of four dimensions as other data than images."""
_LEAST_RANK = 3
_IMAGE_RANK = 4

Shape = tuple[int, ...]


class CudnnNode:
    """A node of the network while it is translated."""

    def __init__(self, proto: onnx.NodeProto, builder: Builder) -> None:
        self.op_type = proto.op_type
        self.inputs = list(proto.input)
        self.outputs = list(proto.output)
        self.build = builder
        self._attributes = attributes_of(proto)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default; text is ``str``."""
        return self._attributes.get(name, default)

    def has(self, index: int) -> bool:
        """Return True if an optional input is present."""
        return index < len(self.inputs) and bool(self.inputs[index])

    def shape(self, index: int) -> Shape:
        """Shape of an input, as in the network."""
        return self.build.shape(self.inputs[index])

    @property
    def result(self) -> Shape:
        """Shape of the first output, as in the network."""
        return self.build.shape(self.outputs[0])

    def tensor(self, index: int) -> str:
        """Return the tensor of an input."""
        return self.build.tensor(self.inputs[index])

    def write(self, kind: str, inputs: Mapping[str, str], shape: Shape | None = None, **settings: Any) -> str:
        """Add an operation that computes this node's result or a step towards it.

        Args:
            kind: Kind of the operation.
            inputs: Tensors by parameter.
            shape: Shape of the result in cuDNN's dimensions; None: the shape of the node's first output.
            **settings: Other parameters.

        Returns:
            The tensor that it writes.
        """
        return self.build.write(kind, inputs, self.build.lifted(self.result) if shape is None else shape, settings)

    def give(self, tensor: str) -> None:
        """Make a tensor the node's first output.

        Raises:
            UnsupportedBrick: Another output is wanted too.
        """
        if any(self.build.is_wanted(name) for name in self.outputs[1:] if name):
            raise self.refuse("has more than one output that is wanted")
        self.build.name(self.outputs[0], tensor)

    def refuse(self, why: str) -> UnsupportedBrick:
        """Return the error for a part that cannot be expressed."""
        return UnsupportedBrick(f"cuDNN: {self.op_type} {why}")


class Builder:
    """An operation graph while it grows.

    All tensors of a graph have one rank, since cuDNN broadcasts between equal ranks only. Shapes get leading ones, as
    in NumPy's broadcasting, and images of one axis become images of two.

    Attributes:
        graph: The network.
        rank: Largest number of dimensions of a value, at least three.
        one_axis: Its images have one axis, and become images of one row.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        values = [*model.graph.input, *model.graph.value_info, *model.graph.output]
        self._shapes = {value.name: declared_shape(value.type) for value in values}
        self._types = {value.name: value.type.tensor_type.elem_type for value in values}
        self._constants = {each.name: each for each in model.graph.initializer}
        for name, constant in self._constants.items():
            self._shapes[name], self._types[name] = tuple(constant.dims), constant.data_type
        inputs = {value.name: value for value in model.graph.input}
        self._weights = {name for name, value in inputs.items() if is_weight(value)} | self._constants.keys()
        kinds = {node.op_type for node in model.graph.node}
        widest = max((len(shape) for shape in self._shapes.values()), default=0)
        self.rank = max(_LEAST_RANK, widest)
        self.one_axis = "Conv" in kinds and self.rank == _LEAST_RANK
        self._images = "Conv" in kinds or not kinds & _MIXING
        self._tensors: dict[str, Tensor] = {}
        self._named: dict[str, str] = {}
        self._operations: list[Operation] = []

    def shape(self, name: str) -> Shape:
        """Return the static shape of a value of the network.

        Raises:
            UnsupportedBrick: The shape is not static.
        """
        if name not in self._shapes:
            raise UnsupportedBrick(f"cuDNN: the shape of {name} is not known")
        return self._shapes[name]

    def lifted(self, shape: Shape) -> Shape:
        """Return a shape in the rank of all tensors of the graph."""
        whole = (1,) * (self.rank - len(shape)) + tuple(shape)
        return (*whole[:2], 1, *whole[2:]) if self.one_axis else whole

    def axis(self, name: str, axis: int) -> int:
        """Return the index of a value's dimension among its tensor's dimensions."""
        rank = len(self.shape(name))
        index = axis % max(rank, 1) + self.rank - rank
        return index + 1 if self.one_axis and index >= 2 else index

    def constant(self, name: str) -> list[float] | None:
        """Return the elements of a small constant; None for any other value."""
        initializer = self._constants.get(name)
        return None if initializer is None else [float(each) for each in numpy_helper.to_array(initializer).reshape(-1)]

    def tensor(self, name: str) -> str:
        """Return the tensor of a value of the network, in its lifted shape."""
        if name in self._named:
            return self._named[name]
        numbers = self.constant(name)
        if numbers is not None and len(numbers) == 1:
            return self.scalar(numbers[0])
        return self.read(name, self.lifted(self.shape(name)))

    def read(
        self, name: str, shape: Shape, *, order: Sequence[int] = (), image: bool | None = None, relaid: bool = False
    ) -> str:
        """Return a tensor that reads an input or a weight of the network in another shape and memory order.

        Raises:
            UnsupportedBrick: The value is not floating-point, or another operation computes it.
        """
        self._require_float(name)
        if name in self._named:
            raise UnsupportedBrick("cuDNN: an operand in another shape is the result of an operation of the same graph")
        whole = self._is_image(shape) if image is None else image
        role = TensorRole.WEIGHT if name in self._weights else TensorRole.INPUT
        return self._add(Tensor(tuple(shape), role, tuple(order), (name,), image=whole, relaid=relaid), name)

    def derived(self, derivation: Derivation, sources: Sequence[str], shape: Shape, epsilon: float) -> str:
        """Return a weight derived from others.

        Raises:
            UnsupportedBrick: A source is computed by the graph, or an input of the network.
        """
        if not self._weights.issuperset(sources):
            raise UnsupportedBrick("cuDNN: parameters of a normalization that are no constants")
        tensor = Tensor(shape, TensorRole.WEIGHT, (), tuple(sources), derivation, epsilon, self._is_image(shape))
        return self._add(tensor, f"{derivation}({sources[0]})")

    def given(self, name: str) -> bool:
        """Return True if a value comes from outside of the graph: an input, a weight or a constant."""
        return not any(name in node.output for node in self.graph.node)

    def readers(self, name: str) -> int:
        """How often nodes read a value."""
        return sum(list(node.input).count(name) for node in self.graph.node)

    def is_wanted(self, name: str) -> bool:
        """Return True if a node reads a value, or if it is an output of the network."""
        return bool(self.readers(name)) or any(name == value.name for value in self.graph.output)

    def scalar(self, value: float) -> str:
        """Return the tensor of a number that is passed by value."""
        return self._add(Tensor((1,) * len(self.lifted(())), TensorRole.SCALAR, value=value), f"={value!r}")

    def shape_of(self, tensor: str) -> Shape:
        """Dimensions of a tensor of the graph."""
        return self._tensors[tensor].shape

    def is_scalar(self, tensor: str) -> bool:
        """Return True if a tensor is a number passed by value."""
        return self._tensors[tensor].role is TensorRole.SCALAR

    def write(self, kind: str, inputs: Mapping[str, str], shape: Shape, settings: Mapping[str, Any]) -> str:
        """Add an operation; gives the tensor that it writes."""
        tensor = Tensor(tuple(shape), TensorRole.VIRTUAL, image=self._is_image(shape))
        output = self._add(tensor, f"%{len(self._operations)}")
        self._operations.append(Operation(kind, dict(inputs), output, dict(settings)))
        return output

    def name(self, value: str, tensor: str) -> None:
        """Let a tensor be a value of the network; later operations read it as that."""
        self._require_float(value)
        if self._tensors[tensor].shape != self.lifted(self.shape(value)) and self.readers(value):
            raise UnsupportedBrick("cuDNN: a result is read in another shape than it is computed in")
        self._named[value] = tensor

    def finish(self) -> OperationGraph:
        """Return the graph.

        Raises:
            UnsupportedBrick: It computes nothing, or does not compute an output of the network.
        """
        if not self._operations:
            raise UnsupportedBrick("cuDNN: nothing is computed, values are passed on")
        written = {operation.output for operation in self._operations}
        outputs = {value.name: self._named.get(value.name, "") for value in self.graph.output}
        for value, tensor in outputs.items():
            if tensor not in written:
                raise UnsupportedBrick(f"cuDNN: output {value} is no result of an operation")
            result = self._tensors[tensor]
            self._tensors[tensor] = Tensor(result.shape, TensorRole.OUTPUT, result.order, image=result.image)
        return OperationGraph(dict(self._tensors), tuple(self._operations), outputs)

    def _add(self, tensor: Tensor, name: str) -> str:
        unique, count = name, 1
        while unique in self._tensors and self._tensors[unique] != tensor:
            count += 1
            unique = f"{name}#{count}"
        self._tensors[unique] = tensor
        return unique

    def _require_float(self, name: str) -> None:
        kind = self._types.get(name, onnx.TensorProto.UNDEFINED)
        if kind not in _FLOATS:
            text = onnx.TensorProto.DataType.Name(kind).lower()
            raise UnsupportedBrick(f"cuDNN: a value of type {text}; only float32, float16 and bfloat16 are translated")

    def _is_image(self, shape: Shape) -> bool:
        return self._images and len(shape) >= _IMAGE_RANK
