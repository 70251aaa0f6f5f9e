"""Fewer dimensions: neighbours in memory that every tensor of a graph treats alike are one dimension.

An operation graph then says what is computed and no more: the addition of two images is one of two rows of numbers,
a batch of attention heads is one batch. cuDNN has plans for few shapes of such operations, and for these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from .operations import OperationGraph, Tensor

__all__ = ["merged"]

_FIXED = frozenset({"conv_fprop", "layernorm", "rmsnorm", "sdpa"})
"""Operations whose dimensions have a meaning each."""
_LEAST = 3


def merged(graph: OperationGraph, *, channels_last: bool = False) -> OperationGraph:
    """The graph with as few dimensions as it can have, at least three.

    Args:
        graph: A brick; one with a convolution or a normalization over rows stays as it is.
        channels_last: Whether images have their channels fastest in memory: neighbours are then others.
    """
    if any(operation.kind in _FIXED for operation in graph.operations):
        return graph
    shapes = {name: _in_memory(tensor, channels_last=channels_last) for name, tensor in graph.tensors.items()}
    rights = {operation.inputs["B"] for operation in graph.operations if operation.kind == "matmul"}
    groups = _groups(list(shapes.values()), kept=2 if rights else 0)
    if rights and all(set(shapes[name][:-2]) == {1} for name in rights):
        groups = _rows(groups, [shape for name, shape in shapes.items() if name not in rights])
    ones = (1,) * max(_LEAST - len(groups), 0)
    tensors = {}
    for name, tensor in graph.tensors.items():
        sizes = tuple(math.prod(shapes[name][at] for at in group) for group in groups)
        order = tensor.order
        if order:  # of the operand of a product: its last two dimensions are the other way round
            rank = len(ones) + len(groups)
            order = (*range(rank - 2), rank - 1, rank - 2)
        tensors[name] = replace(tensor, shape=ones + sizes, order=order, image=False)
    return OperationGraph(tensors, graph.operations, graph.outputs)


def _in_memory(tensor: Tensor, *, channels_last: bool) -> tuple[int, ...]:
    """Dimensions from the slowest in memory to the fastest; of a transposed operand, as they stand."""
    if not (channels_last and tensor.image):
        return tensor.shape
    return (tensor.shape[0], *tensor.shape[2:], tensor.shape[1])


def _groups(shapes: Sequence[Sequence[int]], *, kept: int) -> list[list[int]]:
    """Dimensions that are merged, in order; the last ``kept`` stay alone."""
    rank = len(shapes[0])
    groups: list[list[int]] = []
    for at in range(rank - kept):
        if all(shape[at] == 1 for shape in shapes):
            continue
        if groups and _are_alike(shapes, groups[-1][-1], at):
            groups[-1].append(at)
        else:
            groups.append([at])
    return [*groups, *([at] for at in range(rank - kept, rank))]


def _rows(groups: Sequence[list[int]], shapes: Sequence[Sequence[int]]) -> list[list[int]]:
    """One product in place of a batch of products with the same matrix: the batch is more rows.

    Args:
        groups: Dimensions as they are merged so far; the last two are rows and columns.
        shapes: Of all tensors but the matrices on the right, which have no batch.
    """
    *batches, rows, columns = groups
    if not batches or not (
        _are_alike(shapes, batches[-1][-1], rows[0]) or all(shape[rows[0]] == 1 for shape in shapes)
    ):
        return list(groups)
    return [*batches[:-1], [*batches[-1], *rows], columns]


def _are_alike(shapes: Sequence[Sequence[int]], one: int, other: int) -> bool:
    """Whether each tensor either has both dimensions or is broadcast over both."""
    return all((shape[one] > 1) == (shape[other] > 1) for shape in shapes)
