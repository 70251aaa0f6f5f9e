"""Folding: the layers that cost nothing at inference, and the values they leave behind.

A layer is folded when it depends on constants only, or when it is a Shape or Size of a value with a static type.
What a folded layer leaves behind is either *known* (exact shape arithmetic, ``arithmetic.py``) and then a constant
like any other, or it is a weight: its type matters, its values do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx

from ...models.names import is_standard
from ...models.skeleton import is_weight
from ...models.subgraphs import captures, contains_operator
from ..constants import Array, tensor_array, tensor_type_of_array
from ..operators import DEQUANTIZE, RANDOM
from ..tensor import TensorType
from .arithmetic import EVALUATED_ELEMENTS, EVALUATED_FLOATS, Unevaluated, evaluate

__all__ = ["Constants", "fold"]

_TRAINING_SLOTS = {"Dropout": 2}


class Constants:
    """The values of a model that do not change from one inference to the next.

    Attributes:
        folded: Indices of the folded nodes, and why each is folded.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.tensors: dict[str, onnx.TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        self.weights: set[str] = {value.name for value in graph.input if is_weight(value)} - self.tensors.keys()
        self.weights.update(tensor.values.name for tensor in graph.sparse_initializer)
        self.arrays: dict[str, Array] = {}
        self.folded: dict[int, str] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a value is constant, with or without known values."""
        return name in self.tensors or name in self.weights or name in self.arrays

    def known(self, name: str) -> bool:
        """Whether the values of a constant are known."""
        return name in self.tensors or name in self.arrays

    def array(self, name: str) -> Array | None:
        """The values of a constant; None where they are not known."""
        known = self.arrays.get(name)
        if known is None and name in self.tensors:
            known = self.arrays[name] = tensor_array(self.tensors[name])
        return known

    @property
    def found(self) -> Mapping[str, Array]:
        """The known values that are not initializers: what folding found."""
        return {name: array for name, array in self.arrays.items() if name not in self.tensors}


def fold(graph: onnx.GraphProto, types: Mapping[str, TensorType], *, dequantise: bool = False) -> Constants:
    """Find the folded nodes of a graph and evaluate what decides shapes.

    Args:
        graph: The skeleton's graph, nodes in topological order.
        types: The static types known so far; a Shape of a value without one is not folded.
        dequantise: Leave DequantizeLinear of constants to the runtime, as runtimes do: quantised weights stay as wide
            as the file has them, and an operator may take their conversion in.

    Returns:
        The constants, with ``folded`` filled in.
    """
    constants = Constants(graph)
    for index, node in enumerate(graph.node):
        if node.op_type in {"Shape", "Size"} and is_standard(node):
            _fold_shape(index, node, constants, types)
        elif dequantise and node.op_type == DEQUANTIZE:
            continue
        elif _depends_on_constants(node, constants):
            constants.folded[index] = "depends on constants only"
            _leave(node, constants, types)
    return constants


def _fold_shape(index: int, node: onnx.NodeProto, constants: Constants, types: Mapping[str, TensorType]) -> None:
    source = types.get(node.input[0]) if node.input else None
    if source is None or not node.output:
        return
    if node.op_type == "Size":
        value = np.asarray(source.elements, np.int64)
    else:
        bounds = {attribute.name: attribute.i for attribute in node.attribute}
        value = np.asarray(source.shape[bounds.get("start", 0) : bounds.get("end")], np.int64)
    constants.folded[index] = f"{node.op_type} of a static shape"
    constants.arrays[node.output[0]] = value


def _depends_on_constants(node: onnx.NodeProto, constants: Constants) -> bool:
    for name in node.input:
        if name and name not in constants:
            return False
    if not any(node.input):  # a source: only ONNX's own constants are known to be constant
        return node.op_type == "Constant" and is_standard(node)
    if any(name not in constants for name in captures(node)):
        return False
    return not contains_operator(node, RANDOM) and not _trains(node, constants)


def _trains(node: onnx.NodeProto, constants: Constants) -> bool:
    """Whether a node draws random numbers because it is in training mode."""
    slot = _TRAINING_SLOTS.get(node.op_type)
    if slot is None or slot >= len(node.input) or not node.input[slot]:
        return False
    mode = constants.array(node.input[slot])
    return mode is None or bool(mode.any())


def _leave(node: onnx.NodeProto, constants: Constants, types: Mapping[str, TensorType]) -> None:
    """Record what a folded node leaves behind: known values where they are shape arithmetic, else weights."""
    names = [name for name in node.output if name]
    try:
        arrays = _values(node, constants, [types.get(name) for name in node.output])
    except Unevaluated:
        constants.weights.update(names)
        return
    for name, array in zip(node.output, arrays, strict=True):
        if name:
            constants.arrays[name] = array


def _values(node: onnx.NodeProto, constants: Constants, outputs: Iterable[TensorType | None]) -> list[Array]:
    if not is_standard(node):
        raise Unevaluated(node.domain)
    wanted = list(outputs)
    for output in wanted:
        if output is not None and not _small(output):
            raise Unevaluated(f"{output.elements} elements")
    inputs: list[Array | None] = []
    for name in node.input:
        array = constants.array(name) if name else None
        if name and (array is None or array.size > EVALUATED_ELEMENTS):
            raise Unevaluated(name)
        inputs.append(array)
    arrays = evaluate(node, inputs)
    if len(arrays) != len(wanted):
        raise Unevaluated(f"{len(arrays)} outputs")
    for array, output in zip(arrays, wanted, strict=True):
        if output is not None and tensor_type_of_array(array) != output:
            raise Unevaluated(f"shape inference says {output}")
    return arrays


def _small(output: TensorType) -> bool:
    floating = "float" in output.dtype or output.dtype == "double"
    return math.prod(output.shape) <= (EVALUATED_FLOATS if floating else EVALUATED_ELEMENTS)
