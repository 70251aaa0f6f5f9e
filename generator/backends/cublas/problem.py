"""One matrix product as cuBLAS is given it; independent of the library, so that what it means can be computed.

cuBLAS has columns one after the other, ONNX rows. What lies in memory as a matrix of rows is for cuBLAS the transposed
matrix; so it is asked for the transposed result, which is the product of the transposed operands the other way round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import onnx
from onnx import helper

from ....bricks.operators import PRODUCTS
from ....errors import UnsupportedBrick
from ....models.names import is_standard
from ....models.shapes import infer_shapes, static_shapes

__all__ = ["Addend", "Matrix", "Problem", "problem_of"]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix in memory, column by column, or a batch of them.

    Attributes:
        value: Name of the value in the network.
        rows: As it lies in memory.
        columns: Likewise.
        transposed: Whether the product reads it the other way round.
        stride: Elements from one of the batch to the next; 0: it is the same one for all.
    """

    value: str
    rows: int
    columns: int
    transposed: bool = False
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Addend:
    """What is added to the product.

    Attributes:
        value: Name of the value in the network.
        shape: Of the value, with two dimensions: rows and columns of the result as the network has it, or ones.
        factor: What it is multiplied by.
    """

    value: str
    shape: tuple[int, int]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Problem:
    """``result = activation(alpha * left * right + addend)``, all column by column.

    Attributes:
        left: First operand of the library's: the network's second.
        right: Second operand of the library's.
        result: Its rows are the columns of the network's result.
        depth: What is summed over.
        batch: Products at once.
        alpha: Factor of the product.
        addend: Or None.
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
        """Whether it is a product and nothing else."""
        return self.addend is None and not self.activation


def problem_of(model: onnx.ModelProto) -> Problem:
    """The one product that a brick is.

    Args:
        model: A brick's network.

    Raises:
        UnsupportedBrick: It is something else; the message names the operator and says why.
    """
    graph = _Graph(model)
    first, *rest = model.graph.node
    if not is_standard(first) or first.op_type not in PRODUCTS:
        raise _refused(first, "is no matrix product")
    found = _gemm(first, graph) if first.op_type == "Gemm" else _matmul(first, graph)
    for node in rest:
        found = _followed(found, node, graph)
    if [value.name for value in model.graph.output] != [found.result.value]:
        raise _refused(first, "has other outputs beside the last one")
    return found


class _Graph:
    """Shapes of the values of a network."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._shapes = static_shapes(infer_shapes(model, strict=True).graph)

    def shape(self, node: onnx.NodeProto, name: str) -> Shape:
        if 0 in self._shapes[name]:
            raise _refused(node, "of nothing")
        return self._shapes[name]


def _matmul(node: onnx.NodeProto, graph: _Graph) -> Problem:
    one, other = (graph.shape(node, name) for name in node.input)
    a = one if len(one) > 1 else (1, *one)
    b = other if len(other) > 1 else (*other, 1)
    (rows, depth), columns = a[-2:], b[-1]
    ahead, behind = math.prod(a[:-2]), math.prod(b[:-2])
    if behind == 1:  # one matrix for all rows of the batch: they are more rows
        rows, ahead = rows * ahead, 1
    batch = max(ahead, behind)
    rank = max(len(a), len(b)) - 2
    whole = tuple(max(sizes) for sizes in zip(_padded(a[:-2], rank), _padded(b[:-2], rank), strict=True))
    if behind != 1 and (math.prod(whole) != batch or {ahead, behind} - {1, batch}):
        raise _refused(node, "is broadcast over a part of its batch")
    return Problem(
        left=Matrix(node.input[1], columns, depth, stride=columns * depth if behind > 1 else 0),
        right=Matrix(node.input[0], depth, rows, stride=rows * depth if ahead > 1 else 0),
        result=Matrix(node.output[0], columns, rows, stride=columns * rows if batch > 1 else 0),
        depth=depth,
        batch=batch,
    )


def _gemm(node: onnx.NodeProto, graph: _Graph) -> Problem:
    a, b = (graph.shape(node, name) for name in node.input[:2])
    given = _attributes(node)
    turned, other_turned = bool(given.get("transA", 0)), bool(given.get("transB", 0))
    depth, rows = a if turned else a[::-1]
    columns = b[0] if other_turned else b[1]
    found = Problem(
        left=Matrix(node.input[1], b[1], b[0], other_turned),
        right=Matrix(node.input[0], a[1], a[0], turned),
        result=Matrix(node.output[0], columns, rows),
        depth=depth,
        alpha=given.get("alpha", 1.0),
    )
    factor = given.get("beta", 1.0)
    if len(node.input) < 3 or not node.input[2] or not factor:
        return found
    shape = _padded(graph.shape(node, node.input[2]), 2)
    return replace(found, addend=Addend(node.input[2], (shape[0], shape[1]), factor))


def _followed(found: Problem, node: onnx.NodeProto, graph: _Graph) -> Problem:
    """The product with one more operator behind it."""
    value = found.result.value
    if list(node.input).count(value) != 1 or found.activation:
        raise _refused(node, "behind a product is nothing that the library does with it")
    result = replace(found.result, value=node.output[0])
    if node.op_type == "Relu":
        return replace(found, result=result, activation="relu")
    if node.op_type == "Gelu":
        if _attributes(node).get("approximate", b"none") != b"tanh":
            raise _refused(node, "is exact, where the library's is an approximation by tanh")
        return replace(found, result=result, activation="gelu")
    if node.op_type != "Add" or found.addend is not None:
        raise _refused(node, "behind a product is nothing that the library does with it")
    other = node.input[1 - list(node.input).index(value)]
    shape, whole = graph.shape(node, other), graph.shape(node, value)
    if math.prod(shape) == math.prod(whole) and graph.shape(node, node.output[0]) == whole:
        rows = math.prod(whole) // found.result.rows
        return replace(found, result=result, addend=Addend(other, (rows, found.result.rows)))
    if math.prod(shape) != found.result.rows or shape[-1] != found.result.rows:
        raise _refused(node, "is broadcast otherwise than as one number per column")
    return replace(found, result=result, addend=Addend(other, (1, found.result.rows)))


def _padded(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def _refused(node: onnx.NodeProto, why: str) -> UnsupportedBrick:
    return UnsupportedBrick(f"cuBLAS: {node.op_type} {why}")
