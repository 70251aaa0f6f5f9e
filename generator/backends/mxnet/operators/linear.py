"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .node import Array, Node, Symbol, operator

__all__: list[str] = []


@operator("Gemm")
def _gemm(node: Node) -> Symbol:
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    first = node.sym.transpose(node.symbol(0)) if node.attribute("transA", 0) else node.symbol(0)
    rows_first = bool(node.attribute("transB", 0))
    width = node.shape(1)[0 if rows_first else 1]
    bias = None
    weight = node.constant(1) if _fast(node) else None
    if weight is not None:
        bias = _bias(node, width, beta) if node.has(2) else None
        stored = _stored(node, weight, alpha, rows_first=rows_first)
        parameters = [stored] if bias is None else [stored, bias]
        product = node.sym.FullyConnected(first, *parameters, num_hidden=width, no_bias=bias is None)
    else:
        product = node.sym.linalg_gemm2(first, node.symbol(1), transpose_b=rows_first, alpha=alpha)
    if node.has(2) and bias is None:
        shape = (1,) * (2 - node.rank(2)) + node.shape(2)
        summand = node.reshaped(node.symbol(2), shape)
        product = node.sym.broadcast_add(product, summand if beta == 1.0 else summand * beta)
    return product


def _fast(node: Node) -> bool:
    """Whether oneDNN multiplies it; MXNet's layer for it knows nothing else."""
    return node.dtype() == np.float32


def _bias(node: Node, width: int, beta: float) -> Symbol | None:
    """The summand as one value per column; None where it is something else."""
    shape = node.shape(2)
    if shape not in {(width,), (1, width)}:
        return None
    constant = node.constant(2)
    if constant is None:
        found = node.reshaped(node.symbol(2), (width,)) if len(shape) == 2 else node.symbol(2)
        return found if beta == 1.0 else found * beta
    return node.bind(node.variables.derived(constant, f"bias {beta}", lambda array: array.ravel() * _like(array, beta)))


def _stored(node: Node, weight: Array, alpha: float = 1.0, *, rows_first: bool = False) -> Symbol:
    """A weight as MXNet stores it, one row per column of the product: turned once, while the network is loaded."""
    make: Callable[[Array], Array] = lambda array: (array if rows_first else array.T) * _like(array, alpha)  # noqa: E731
    if rows_first and alpha == 1.0:
        return node.symbol(1)
    return node.bind(node.variables.derived(weight, f"weight {alpha} {rows_first}", make))


def _like(array: Array, value: float) -> Array:
    return np.asarray(value, dtype=array.dtype)


@operator("MatMul")
def _matmul(node: Node) -> Symbol:
    weight = node.constant(1) if _fast(node) else None
    left, right = node.shape(0), node.shape(1)
    if weight is not None and weight.ndim == 2 and len(left) >= 2:
        stored = _stored(node, weight)
        return node.sym.FullyConnected(node.symbol(0), stored, num_hidden=right[1], no_bias=True, flatten=False)
    if len(left) < 2 or len(right) < 2:
        return _vectors(node, left, right)
    if len(right) == 2 and len(left) > 2:
        return node.sym.dot(node.symbol(0), node.symbol(1))
    batch = node.result()[:-2]
    return node.sym.linalg_gemm2(*(_batched(node, index, batch) for index in (0, 1)))


def _vectors(node: Node, left: tuple[int, ...], right: tuple[int, ...]) -> Symbol:
    if len(left) > 2 or len(right) > 2:
        raise node.refusal("of a vector and a stack of matrices")
    first = node.reshaped(node.symbol(0), (1, *left)) if len(left) == 1 else node.symbol(0)
    second = node.reshaped(node.symbol(1), (*right, 1)) if len(right) == 1 else node.symbol(1)
    return node.reshaped(node.sym.dot(first, second), node.result())


def _batched(node: Node, index: int, batch: tuple[int, ...]) -> Symbol:
    """An input with the batch of the product: MXNet repeats nothing by itself."""
    shape = node.shape(index)
    symbol = node.symbol(index)
    aligned = (1,) * (len(batch) + 2 - len(shape)) + shape
    if aligned != shape:
        symbol = node.reshaped(symbol, aligned)
    whole = batch + shape[-2:]
    return symbol if aligned == whole else node.sym.broadcast_to(symbol, shape=whole)


@operator("Einsum")
def _einsum(node: Node) -> Symbol:
    return node.numpy("einsum", node.attribute("equation"), *(node.symbol(index) for index in range(node.count)))
