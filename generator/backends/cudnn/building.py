"""An operation graph while it grows, node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import helper, numpy_helper

from ....errors import UnsupportedBrick
from ....models.shapes import declared_shape
from ....models.skeleton import is_weight
from .operations import Derivation, Operation, OperationGraph, Role, Tensor

__all__ = ["Builder", "Node"]

_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
_MIXING = frozenset({"MatMul", "Gemm", "Softmax", "LayerNormalization", "RMSNormalization"})
"""Where one of these is, a tensor of four dimensions is no image."""
_LEAST_RANK = 3
_IMAGE_RANK = 4

Shape = tuple[int, ...]


class Node:
    """A node of the network while it is translated."""

    def __init__(self, proto: onnx.NodeProto, builder: Builder) -> None:
        self.op_type = proto.op_type
        self.inputs = list(proto.input)
        self.outputs = list(proto.output)
        self.build = builder
        self._attributes = {each.name: helper.get_attribute_value(each) for each in proto.attribute}

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default; text is ``str``."""
        value = self._attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def has(self, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(self.inputs) and bool(self.inputs[index])

    def shape(self, index: int) -> Shape:
        """Shape of an input, as in the network."""
        return self.build.shape(self.inputs[index])

    @property
    def result(self) -> Shape:
        """Shape of the first output, as in the network."""
        return self.build.shape(self.outputs[0])

    def tensor(self, index: int) -> str:
        """The tensor of an input."""
        return self.build.tensor(self.inputs[index])

    def write(self, kind: str, inputs: Mapping[str, str], shape: Shape | None = None, **settings: Any) -> str:
        """Add an operation whose result is this node's, or a step on the way to it.

        Args:
            kind: Of the operation.
            inputs: Parameter to tensor.
            shape: Of the result in cuDNN's dimensions; None: that of the node's first output.
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
        """The error for what cannot be expressed."""
        return UnsupportedBrick(f"cuDNN: {self.op_type} {why}")


class Builder:
    """An operation graph while it grows.

    All tensors of a graph have one rank, since cuDNN broadcasts between equal ranks only: shapes get ones in front,
    as NumPy's broadcasting has it, and images of one axis become images of two.

    Attributes:
        graph: The network.
        rank: Number of dimensions of the value that has most of them, at least three.
        one_axis: Whether its images have one axis, and become images of one row.
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
        """Static shape of a value of the network.

        Raises:
            UnsupportedBrick: It has none.
        """
        if name not in self._shapes:
            raise UnsupportedBrick(f"cuDNN: the shape of {name} is not known")
        return self._shapes[name]

    def lifted(self, shape: Shape) -> Shape:
        """A shape in the rank of all tensors of the graph."""
        whole = (1,) * (self.rank - len(shape)) + tuple(shape)
        return (*whole[:2], 1, *whole[2:]) if self.one_axis else whole

    def axis(self, name: str, axis: int) -> int:
        """A dimension of a value, counted among those of its tensor."""
        rank = len(self.shape(name))
        found = axis % max(rank, 1) + self.rank - rank
        return found + 1 if self.one_axis and found >= 2 else found

    def constant(self, name: str) -> list[float] | None:
        """The elements of a small constant; None for any other value."""
        found = self._constants.get(name)
        return None if found is None else [float(each) for each in numpy_helper.to_array(found).reshape(-1)]

    def tensor(self, name: str) -> str:
        """The tensor of a value of the network, in its lifted shape."""
        if name in self._named:
            return self._named[name]
        numbers = self.constant(name)
        if numbers is not None and len(numbers) == 1:
            return self.scalar(numbers[0])
        return self.read(name, self.lifted(self.shape(name)))

    def read(
        self, name: str, shape: Shape, *, order: Sequence[int] = (), image: bool | None = None, relaid: bool = False
    ) -> str:
        """A tensor that reads an input or a weight of the network in a shape, and in an order in memory, of its own.

        Raises:
            UnsupportedBrick: It holds no floating-point numbers, or another operation computes it.
        """
        self._require_float(name)
        if name in self._named:
            raise UnsupportedBrick("cuDNN: an operand in another shape is the result of an operation of the same graph")
        whole = self._is_image(shape) if image is None else image
        role = Role.WEIGHT if name in self._weights else Role.INPUT
        return self._add(Tensor(tuple(shape), role, tuple(order), (name,), image=whole, relaid=relaid), name)

    def derived(self, derivation: Derivation, sources: Sequence[str], shape: Shape, epsilon: float) -> str:
        """A weight that follows from others.

        Raises:
            UnsupportedBrick: One of them is computed by the graph, or an input of the network.
        """
        if not self._weights.issuperset(sources):
            raise UnsupportedBrick("cuDNN: parameters of a normalization that are no constants")
        found = Tensor(shape, Role.WEIGHT, (), tuple(sources), derivation, epsilon, self._is_image(shape))
        return self._add(found, f"{derivation}({sources[0]})")

    def given(self, name: str) -> bool:
        """Whether a value comes from outside of the graph: an input, a weight or a constant."""
        return not any(name in node.output for node in self.graph.node)

    def readers(self, name: str) -> int:
        """How often nodes read a value."""
        return sum(list(node.input).count(name) for node in self.graph.node)

    def is_wanted(self, name: str) -> bool:
        """Whether a value is read by a node, or an output of the network."""
        return bool(self.readers(name)) or any(name == value.name for value in self.graph.output)

    def scalar(self, value: float) -> str:
        """A number that is passed by value."""
        return self._add(Tensor((1,) * len(self.lifted(())), Role.SCALAR, value=value), f"={value!r}")

    def shape_of(self, tensor: str) -> Shape:
        """Dimensions of a tensor of the graph."""
        return self._tensors[tensor].shape

    def is_scalar(self, tensor: str) -> bool:
        """Whether a tensor is a number passed by value."""
        return self._tensors[tensor].role is Role.SCALAR

    def write(self, kind: str, inputs: Mapping[str, str], shape: Shape, settings: Mapping[str, Any]) -> str:
        """Add an operation; gives the tensor that it writes."""
        found = Tensor(tuple(shape), Role.VIRTUAL, image=self._is_image(shape))
        output = self._add(found, f"%{len(self._operations)}")
        self._operations.append(Operation(kind, dict(inputs), output, dict(settings)))
        return output

    def name(self, value: str, tensor: str) -> None:
        """Let a tensor be a value of the network; later operations read it as that."""
        self._require_float(value)
        if self._tensors[tensor].shape != self.lifted(self.shape(value)) and self.readers(value):
            raise UnsupportedBrick("cuDNN: a result is read in another shape than it is computed in")
        self._named[value] = tensor

    def finish(self) -> OperationGraph:
        """The graph.

        Raises:
            UnsupportedBrick: Nothing is computed, or an output of the network is no result of it.
        """
        if not self._operations:
            raise UnsupportedBrick("cuDNN: nothing is computed, values are passed on")
        written = {operation.output for operation in self._operations}
        outputs = {value.name: self._named.get(value.name, "") for value in self.graph.output}
        for value, tensor in outputs.items():
            if tensor not in written:
                raise UnsupportedBrick(f"cuDNN: output {value} is no result of an operation")
            found = self._tensors[tensor]
            self._tensors[tensor] = Tensor(found.shape, Role.OUTPUT, found.order, image=found.image)
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
