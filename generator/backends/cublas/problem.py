"""One matrix product as a call of cuBLAS, and its operands in memory of a GPU.

A ``ProductProblem`` is independent of the library, so that its meaning can be computed. cuBLAS stores matrices by
columns, ONNX by rows. ONNX's matrix in memory is therefore the transposed matrix for cuBLAS. dlbricks asks for the
transposed result, which is the product of the transposed operands in reverse order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from ....bricks.operators import PRODUCTS
from ....errors import UnsupportedBrick
from ....models.subgraphs import attribute_of, attributes_of, declared_shape, infer_shapes, is_standard, static_shapes
from ...network.network import Network
from ..base import released
from ..library import Buffer, LoadedBrick, Memory, computed_in, described, narrowed, values_of

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix in memory, column by column, or a batch of them.

    Attributes:
        value: Name of the value in the network.
        rows: Rows in memory.
        columns: Columns in memory.
        transposed: The product reads the transposed matrix.
        stride: Elements from one matrix of the batch to the next; 0: one matrix for all.
    """

    value: str
    rows: int
    columns: int
    transposed: bool = False
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Addend:
    """The summand of a product.

    Attributes:
        value: Name of the value in the network.
        shape: Its two dimensions: rows and columns of the network's result, or ones.
        factor: Its factor.
    """

    value: str
    shape: tuple[int, int]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class ProductProblem:
    """``result = activation(alpha * left * right + addend)``, all column by column.

    Attributes:
        left: The library's first operand: the network's second.
        right: The library's second operand.
        result: Its rows are the columns of the network's result.
        depth: Length of the sums.
        batch: Number of products at once.
        alpha: Factor of the product.
        addend: The summand, or None.
        activation: ``relu``, ``gelu`` (by the hyperbolic tangent) or empty.
    """

    left: Matrix
    right: Matrix
    result: Matrix
    depth: int
    batch: int = 1
    alpha: float = 1.0
    addend: Addend | None = None
    activation: str = ""

    @property
    def is_plain(self) -> bool:
        """Return True if it is only a product."""
        return self.addend is None and not self.activation


def problem_of(model: onnx.ModelProto) -> ProductProblem:
    """Translate a brick of one product.

    Raises:
        UnsupportedBrick: The brick is different; the message names the operator and says why.
    """
    graph = _Graph(model)
    first, *rest = model.graph.node
    if not is_standard(first) or first.op_type not in PRODUCTS:
        raise _refused(first, "is no matrix product")
    problem = _gemm(first, graph) if first.op_type == "Gemm" else _matmul(first, graph)
    for node in rest:
        problem = _followed(problem, node, graph)
    if [value.name for value in model.graph.output] != [problem.result.value]:
        raise _refused(first, "has other outputs beside the last one")
    return problem


class _Graph:
    """Shapes of the values of a network."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._shapes = static_shapes(infer_shapes(model, strict=True).graph)

    def shape(self, node: onnx.NodeProto, name: str) -> Shape:
        if 0 in self._shapes[name]:
            raise _refused(node, "of nothing")
        return self._shapes[name]


def _matmul(node: onnx.NodeProto, graph: _Graph) -> ProductProblem:
    first_shape, second_shape = (graph.shape(node, name) for name in node.input)
    a = first_shape if len(first_shape) > 1 else (1, *first_shape)
    b = second_shape if len(second_shape) > 1 else (*second_shape, 1)
    (rows, depth), columns = a[-2:], b[-1]
    ahead, behind = math.prod(a[:-2]), math.prod(b[:-2])
    if behind == 1:  # one matrix for all rows of the batch: they are more rows
        rows, ahead = rows * ahead, 1
    batch = max(ahead, behind)
    rank = max(len(a), len(b)) - 2
    whole = tuple(max(sizes) for sizes in zip(_padded(a[:-2], rank), _padded(b[:-2], rank), strict=True))
    if behind != 1 and (math.prod(whole) != batch or {ahead, behind} - {1, batch}):
        raise _refused(node, "is broadcast over a part of its batch")
    return ProductProblem(
        left=Matrix(node.input[1], columns, depth, stride=columns * depth if behind > 1 else 0),
        right=Matrix(node.input[0], depth, rows, stride=rows * depth if ahead > 1 else 0),
        result=Matrix(node.output[0], columns, rows, stride=columns * rows if batch > 1 else 0),
        depth=depth,
        batch=batch,
    )


def _gemm(node: onnx.NodeProto, graph: _Graph) -> ProductProblem:
    a, b = (graph.shape(node, name) for name in node.input[:2])
    attributes = attributes_of(node)
    turned, other_turned = bool(attributes.get("transA", 0)), bool(attributes.get("transB", 0))
    depth, rows = a if turned else a[::-1]
    columns = b[0] if other_turned else b[1]
    problem = ProductProblem(
        left=Matrix(node.input[1], b[1], b[0], other_turned),
        right=Matrix(node.input[0], a[1], a[0], turned),
        result=Matrix(node.output[0], columns, rows),
        depth=depth,
        alpha=attributes.get("alpha", 1.0),
    )
    factor = attributes.get("beta", 1.0)
    if len(node.input) < 3 or not node.input[2] or not factor:
        return problem
    shape = _padded(graph.shape(node, node.input[2]), 2)
    return replace(problem, addend=Addend(node.input[2], (shape[0], shape[1]), factor))


def _followed(problem: ProductProblem, node: onnx.NodeProto, graph: _Graph) -> ProductProblem:
    """Return the product with one more operator after it."""
    value = problem.result.value
    if list(node.input).count(value) != 1 or problem.activation:
        raise _refused(node, "behind a product is nothing that the library does with it")
    result = replace(problem.result, value=node.output[0])
    if node.op_type == "Relu":
        return replace(problem, result=result, activation="relu")
    if node.op_type == "Gelu":
        if attribute_of(node, "approximate") != "tanh":
            raise _refused(node, "is exact, where the library's is an approximation by tanh")
        return replace(problem, result=result, activation="gelu")
    if node.op_type != "Add" or problem.addend is not None:
        raise _refused(node, "behind a product is nothing that the library does with it")
    other = node.input[1 - list(node.input).index(value)]
    shape, whole = graph.shape(node, other), graph.shape(node, value)
    if math.prod(shape) == math.prod(whole) and graph.shape(node, node.output[0]) == whole:
        rows = math.prod(whole) // problem.result.rows
        return replace(problem, result=result, addend=Addend(other, (rows, problem.result.rows)))
    if math.prod(shape) != problem.result.rows or shape[-1] != problem.result.rows:
        raise _refused(node, "is broadcast otherwise than as one number per column")
    return replace(problem, result=result, addend=Addend(other, (1, problem.result.rows)))


def _padded(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape


def _refused(node: onnx.NodeProto, why: str) -> UnsupportedBrick:
    return UnsupportedBrick(f"cuBLAS: {node.op_type} {why}")


Array = npt.NDArray[Any]


class Operands:
    """Operands and result of a brick of one product.

    Attributes:
        problem: The product.
        dtype: Precision of all of them in memory.
        left: The library's first operand.
        right: The library's second operand.
        result: The library's result.
        matrix: Summand per element; None without one.
        vector: Summand per column of the network's result; None without one.
        beta: Factor of ``matrix``.

    Raises:
        UnsupportedBrick: The library lacks this product.
        MemoryError: Not enough memory.
    """

    def __init__(self, network: Network, dtype: str, memory: Memory) -> None:
        self.problem = problem_of(described(network))
        self.dtype = computed_in(network, dtype, "cuBLAS")
        self._memory = memory
        self._network = network
        values = values_of(network)
        buffers = {
            name: memory.holding(narrowed(values[name], self.dtype))
            for name in sorted({self.problem.left.value, self.problem.right.value})
        }
        self._inputs = [buffer for name, buffer in buffers.items() if name in network.feeds]
        self.left, self.right = buffers[self.problem.left.value], buffers[self.problem.right.value]
        size = self.problem.batch * self.problem.result.rows * self.problem.result.columns
        self.result = memory.empty(size * self._type.itemsize)
        self.matrix: Buffer | None = None
        self.vector: Buffer | None = None
        self.beta = 0.0
        if self.problem.addend is not None:
            self._add(self.problem.addend, values)

    def loaded(self) -> LoadedBrick:
        """Return the brick in memory; its ``run`` is still to be chosen."""
        return LoadedBrick(released, self._inputs, [self.result], self._results)

    @property
    def _type(self) -> np.dtype[Any]:
        return narrowed(np.zeros(0, np.float32), self.dtype).dtype

    def _add(self, addend: Addend, values: Mapping[str, Array]) -> None:
        fixed = addend.value not in self._network.feeds
        array, self.beta = added(self.problem, addend, values[addend.value], fixed=fixed)
        buffer = self._memory.holding(narrowed(array, self.dtype))
        if not fixed:
            self._inputs.append(buffer)
        if self.beta:
            self.matrix = buffer
        else:
            self.vector = buffer

    def _results(self) -> list[Array]:
        declared = self._network.brick.graph.output[0].type
        shape = declared_shape(declared)
        elements = self._memory.read(self.result, self._type, (math.prod(shape),))
        kind = helper.tensor_dtype_to_np_dtype(declared.tensor_type.elem_type)
        return [elements.reshape(shape).astype(kind)]


def added(problem: ProductProblem, addend: Addend, array: Array, *, fixed: bool) -> tuple[Array, float]:
    """Return the summand for the library and its factor: 0 for a vector (one number per column).

    Args:
        problem: The product.
        addend: Its summand.
        array: The summand's value in the network.
        fixed: The value is a weight, which may be changed once.

    Raises:
        UnsupportedBrick: An input of the network would have to be changed in each execution.
    """
    whole = problem.result.columns * problem.batch, problem.result.rows
    if addend.shape == whole and whole[0] > 1:
        return array, addend.factor
    is_vector = addend.shape == (1, whole[1])
    if not fixed and not (is_vector and addend.factor == 1.0):
        raise UnsupportedBrick("cuBLAS: a bias that is an input and no vector of one number per column")
    scaled = array.reshape(addend.shape).astype(np.float64) * addend.factor
    if addend.shape[0] == 1:
        return np.broadcast_to(scaled, (1, whole[1])).reshape(-1).astype(array.dtype), 0.0
    return np.ascontiguousarray(np.broadcast_to(scaled, whole)).astype(array.dtype), 1.0
