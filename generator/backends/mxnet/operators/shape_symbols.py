"""Operators that move elements without computing: shapes, order, repetition, and reads at given places.

MXNet does not refuse an index out of range. Indices that are known when the network is loaded are checked then.
"""

from __future__ import annotations

from itertools import accumulate

from .....errors import BackendError
from .translation import Array, OnnxNode, Symbol, operator


@operator("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(node: OnnxNode) -> Symbol:
    return node.reshaped(node.symbol(), node.result())


@operator("Transpose")
def _transpose(node: OnnxNode) -> Symbol:
    if node.dtype().kind == "b":
        raise node.refusal("of truth values")
    if not node.rank():
        return node.sym.identity(node.symbol())
    order = node.attribute("perm", tuple(reversed(range(node.rank()))))
    return node.sym.transpose(node.symbol(), axes=tuple(order))


@operator("Concat")
def _concat(node: OnnxNode) -> Symbol:
    symbols = [node.symbol(index) for index in range(node.count)]
    axis = node.axis(node.attribute("axis", 1))
    if len(symbols) == 1:
        return node.sym.identity(symbols[0])
    if node.dtype().kind == "b":
        import mxnet as mx

        parts = [symbol.as_np_ndarray() for symbol in symbols]
        return mx.sym.np.concatenate(parts, axis=axis).as_nd_ndarray()
    return node.sym.concat(*symbols, dim=axis)


@operator("Split")
def _split(node: OnnxNode) -> list[Symbol]:
    count = len(node.proto.output)
    axis = node.axis(node.attribute("axis", 0))
    sizes = node.integers("split", 1)
    if sizes is None:
        part = -(-node.shape()[axis] // count)
        sizes = (*(part,) * (count - 1), node.shape()[axis] - part * (count - 1))
    if count == 1:
        return [node.sym.identity(node.symbol())]
    if 0 in sizes:
        raise node.refusal("into an empty part")
    parts = node.sym.split_v2(node.symbol(), indices_or_sections=tuple(accumulate(sizes[:-1])), axis=axis)
    return [parts[index] for index in range(count)]


@operator("Slice")
def _slice(node: OnnxNode) -> Symbol:
    shape = node.shape()
    starts, ends = node.integers("starts", 1), node.integers("ends", 2)
    axes = node.integers("axes", 3)
    steps = node.integers("steps", 4)
    if starts is None or ends is None:
        raise node.refusal("without bounds")
    begin: list[int | None] = [None] * len(shape)
    end: list[int | None] = [None] * len(shape)
    step: list[int | None] = [None] * len(shape)
    for index, (start, stop) in enumerate(zip(starts, ends, strict=True)):
        axis = node.axis(axes[index] if axes is not None else index)
        stride = steps[index] if steps is not None else 1
        first, last, _ = slice(start, stop, stride).indices(shape[axis])
        if not range(first, last, stride):
            raise node.refusal("of an empty range")
        begin[axis], step[axis] = first, stride
        end[axis] = last if last >= 0 else None  # towards the front, beyond the first element
    return node.sym.slice(node.symbol(), begin=tuple(begin), end=tuple(end), step=tuple(step))


@operator("Expand")
def _expand(node: OnnxNode) -> Symbol:
    target = node.result()
    symbol = node.symbol()
    aligned = (1,) * (len(target) - node.rank()) + node.shape()
    if aligned != node.shape():
        symbol = node.reshaped(symbol, aligned)
    return node.sym.identity(symbol) if aligned == target else node.sym.broadcast_to(symbol, shape=target)


@operator("Tile")
def _tile(node: OnnxNode) -> Symbol:
    return node.sym.tile(node.symbol(), reps=tuple(int(count) for count in node.known(1, "as its repeats").ravel()))


@operator("Pad")
def _pad(node: OnnxNode) -> Symbol:
    pads = node.integers("pads", 1)
    if pads is None:
        pads = node.integers("paddings", 1) or ()
    axes = tuple(range(node.rank()))
    if node.has(3):
        axes = tuple(node.axis(int(axis)) for axis in node.known(3, "as its axes").ravel())
    if min(pads, default=0) < 0:
        raise node.refusal("by negative amounts")
    mode = node.attribute("mode", "constant")
    if mode not in {"constant", "edge", "reflect"}:
        raise node.refusal(f"in mode {mode}")
    width = [(0, 0)] * node.rank()
    for index, axis in enumerate(axes):
        width[axis] = (pads[index], pads[index + len(axes)])
    filler = node.known(2, "as its value").item() if node.has(2) else node.attribute("value", 0.0)
    return node.padded(node.symbol(), width, mode, filler)


@operator("Trilu")
def _triangle(node: OnnxNode) -> Symbol:
    offset = int(node.known(1, "as its diagonal").item()) if node.has(1) else 0
    if node.attribute("upper", 1):
        raise node.refusal("of the upper triangle")
    return node.numpy("tril", node.symbol(), k=offset)


@operator("DepthToSpace", "SpaceToDepth")
def _blocks(node: OnnxNode) -> Symbol:
    if node.attribute("mode", "DCR") != "DCR":
        raise node.refusal(f"in mode {node.attribute('mode')}")
    move = node.sym.depth_to_space if node.op == "DepthToSpace" else node.sym.space_to_depth
    return move(node.symbol(), block_size=node.attribute("blocksize"))


@operator("Range")
def _range(node: OnnxNode) -> Symbol:
    start, stop, step = (node.known(index, "as a bound").item() for index in (0, 1, 2))
    return node.sym.arange(start, stop, step, dtype=node.dtype().name)


@operator("ConstantOfShape")
def _filled(node: OnnxNode) -> Symbol:
    value = node.attribute("value")
    filler, kind = 0.0, "float32"
    if value is not None:
        import onnx.numpy_helper

        array = onnx.numpy_helper.to_array(value)
        filler, kind = array.item(), array.dtype.name
    return node.sym.full(node.result(), filler, dtype=kind)


@operator("Gather")
def _gather(node: OnnxNode) -> Symbol:
    axis = node.axis(node.attribute("axis", 0))
    return node.sym.take(node.symbol(0), node.symbol(1), axis=axis, mode=_mode(node, node.shape()[axis]))


@operator("GatherND")
def _gather_tuples(node: OnnxNode) -> Symbol:
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
def _one_hot(node: OnnxNode) -> Symbol:
    if node.attribute("axis", -1) not in (-1, node.rank()):
        raise node.refusal("on an inner axis")
    depth = int(node.known(1, "as its depth").item())
    off, on = node.known(2, "as its values").ravel().tolist()
    if _mode(node, depth, index=0) == "wrap":
        raise node.refusal("of negative indices")
    return node.sym.one_hot(node.symbol(0), depth=depth, on_value=on, off_value=off, dtype=node.dtype(2).name)


def _mode(node: OnnxNode, size: int, *, each: tuple[int, ...] = (), index: int = 1) -> str:
    """Return MXNet's mode for reading the indices: ``wrap`` if some may count from the end.

    Raises:
        BackendError: An index is out of range.
    """
    values = _values(node, index)
    if values is None:
        return "wrap"
    for component, limit in enumerate(each or (size,)):
        column = values[..., component] if each else values
        wrong = column[(column < -limit) | (column >= limit)]
        if wrong.size:
            raise BackendError(f"{node.op}: index {wrong.ravel()[0]} is out of range for {limit} elements")
    return "wrap" if (values < 0).any() else "clip"


def _values(node: OnnxNode, index: int) -> Array | None:
    name = node.proto.input[index]
    return node.constants.get(name, node.feeds.get(name))
