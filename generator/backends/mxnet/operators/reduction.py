"""Reductions over axes."""

from __future__ import annotations

from .node import Node, Symbol, operator

__all__: list[str] = []

_REDUCTIONS = {"ReduceMax": "max", "ReduceMean": "mean", "ReduceMin": "min", "ReduceProd": "prod", "ReduceSum": "sum"}


@operator(*_REDUCTIONS, "ReduceL1", "ReduceL2", "ReduceSumSquare")
def _reduce(node: Node) -> Symbol:
    axes = node.integers("axes", 1)
    if not axes:
        if node.attribute("noop_with_empty_axes", 0):
            return node.sym.identity(node.symbol())
        axes = tuple(range(node.rank()))
    axes = tuple(sorted(node.axis(axis) for axis in axes))
    if not node.rank():
        raise node.refusal("of a scalar")
    scalar = not node.result()  # MXNet's reductions leave one dimension
    keep = scalar or bool(node.attribute("keepdims", 1))
    reduced = _reduced(node, axes, keep=keep)
    return node.reshaped(reduced, ()) if scalar else reduced


def _reduced(node: Node, axes: tuple[int, ...], *, keep: bool) -> Symbol:
    data = node.symbol()
    if node.op in _REDUCTIONS:
        return getattr(node.sym, _REDUCTIONS[node.op])(data, axis=axes, keepdims=keep)
    if node.op == "ReduceSumSquare":
        return node.sym.sum(node.sym.square(data), axis=axes, keepdims=keep)
    if node.op == "ReduceL1":
        return node.sym.sum(node.sym.abs(data), axis=axes, keepdims=keep)
    if len(axes) == 1:
        return node.sym.norm(data, ord=2, axis=axes, keepdims=keep)
    return node.sym.sqrt(node.sym.sum(node.sym.square(data), axis=axes, keepdims=keep))


@operator("ArgMax", "ArgMin")
def _extreme(node: Node) -> Symbol:
    if node.attribute("select_last_index", 0):
        raise node.refusal("that selects the last of equals")
    found = node.numpy(node.op.lower(), node.symbol(), axis=node.axis(node.attribute("axis", 0)))
    return node.reshaped(found, node.result())


@operator("CumSum")
def _cumulative(node: Node) -> Symbol:
    if node.attribute("exclusive", 0):
        raise node.refusal("with exclusive=1")
    axis = node.axis(int(node.known(1, "as its axis").item()))
    turned = bool(node.attribute("reverse", 0))
    data = node.sym.reverse(node.symbol(), axis=(axis,)) if turned else node.symbol()
    total = node.numpy("cumsum", data, axis=axis)
    return node.sym.reverse(total, axis=(axis,)) if turned else total


@operator("TopK")
def _largest(node: Node) -> list[Symbol]:
    count = node.attribute("k")
    found = node.sym.topk(
        node.symbol(),
        k=int(node.known(1, "as its count").item()) if count is None else count,
        axis=node.axis(node.attribute("axis", -1)),
        ret_typ="both",
        is_ascend=not node.attribute("largest", 1),
        dtype="int64",
    )
    return [found[0], found[1]]
