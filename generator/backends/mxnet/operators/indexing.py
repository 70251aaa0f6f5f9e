"""Operators that read elements at given places.

MXNet does not refuse an index that is out of range. Those that are known when the network is loaded are checked then.
"""

from __future__ import annotations

from .....errors import BackendError
from .node import Array, Node, Symbol, operator

__all__: list[str] = []


@operator("Gather")
def _gather(node: Node) -> Symbol:
    axis = node.axis(node.attribute("axis", 0))
    return node.sym.take(node.symbol(0), node.symbol(1), axis=axis, mode=_mode(node, node.shape()[axis]))


@operator("GatherND")
def _gather_tuples(node: Node) -> Symbol:
    if node.attribute("batch_dims", 0):
        raise node.refusal("with batch_dims")
    depth = node.shape(1)[-1]
    sizes = node.shape()[:depth]
    if _mode(node, min(sizes), each=sizes) == "wrap" and _values(node, 1) is not None:
        raise node.refusal("with negative indices")
    rank = node.rank(1)
    indices = node.symbol(1)
    if rank > 1:  # MXNet wants a tuple's elements apart
        indices = node.sym.transpose(indices, axes=(rank - 1, *range(rank - 1)))
    return node.sym.gather_nd(node.symbol(0), indices)


@operator("OneHot")
def _one_hot(node: Node) -> Symbol:
    if node.attribute("axis", -1) not in (-1, node.rank()):
        raise node.refusal("on an inner axis")
    depth = int(node.known(1, "as its depth").item())
    off, on = node.known(2, "as its values").ravel().tolist()
    if _mode(node, depth, index=0) == "wrap":
        raise node.refusal("of negative indices")
    return node.sym.one_hot(node.symbol(0), depth=depth, on_value=on, off_value=off, dtype=node.dtype(2).name)


def _mode(node: Node, size: int, *, each: tuple[int, ...] = (), index: int = 1) -> str:
    """How MXNet has to read the indices: ``wrap`` where some may count from the end.

    Raises:
        BackendError: One is out of range.
    """
    values = _values(node, index)
    if values is None:
        return "wrap"
    for place, limit in enumerate(each or (size,)):
        column = values[..., place] if each else values
        wrong = column[(column < -limit) | (column >= limit)]
        if wrong.size:
            raise BackendError(f"{node.op}: index {wrong.ravel()[0]} is out of range for {limit} elements")
    return "wrap" if (values < 0).any() else "clip"


def _values(node: Node, index: int) -> Array | None:
    name = node.proto.input[index]
    return node.constants.get(name, node.feeds.get(name))
