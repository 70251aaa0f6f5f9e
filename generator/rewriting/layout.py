"""Layout: moves are carried forward until they meet their inverse.

Every value after a Transpose is also known in the order of axes before it. Nodes that can work in that order use it,
with axes and constants permuted. A value returns to its own order only for readers that need it. Elementwise nodes work
in any order of elements, so that moves of every kind are carried through them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from .affine import move, narrowed
from .form import Array, Draft, Rewrite
from .values import MOVED_NS, POINTWISE, Values, late

_Order = tuple[int, ...]
"""For each axis of a value, the axis of the value in its earlier order."""

_LEAST_SHARE = 0.005
_LARGEST = 1 << 21
"""Elements of a value whose moves are followed."""
_VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_SHUFFLES = frozenset({"DepthToSpace", "SpaceToDepth"})
_ALONG = frozenset({"Concat", "LogSoftmax", "Softmax", "Split"})
"""Operators with one axis."""
_REDUCING = frozenset({"ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare"})


def layout(values: Values, deadline: float) -> list[Rewrite]:
    """Return one rewrite that carries all Transposes forward, and one for moves through elementwise nodes."""
    writers: list[_Elements | _Writer] = [_Elements(values)]
    if any(node.op_type == "Transpose" for node in values.graph.nodes):
        writers.append(_Writer(values))
    for writer in writers:
        for index in itertools.takewhile(lambda _: not late(deadline), range(len(values.graph.nodes))):
            values.attempt(writer.follow, index)
    return [rewrite for writer in writers for rewrite in writer.rewrite()]


@dataclass(frozen=True, slots=True)
class _Moved:
    """A value whose elements are those of another one in other places.

    Attributes:
        base: The other value.
        shape: Its shape.
        where: For each element of the value, its place in the other one.
        nodes: Nodes between the two.
        worked: Elementwise nodes are among them.
    """

    base: str
    shape: tuple[int, ...]
    where: Array
    nodes: frozenset[int]
    worked: bool = False


class _Elements:
    """Writes elementwise nodes for the values before moves of elements."""

    def __init__(self, values: Values) -> None:
        self._values, self._draft = values, Draft(values.graph)
        self._moved: dict[str, _Moved] = {}

    def follow(self, index: int) -> None:
        """Note a move, or write an elementwise node before its moves."""
        values, node = self._values, self._values.graph.nodes[index]
        reads, value = values.computed(node), node.output[0]
        if node.domain not in {"", "ai.onnx"} or len(node.output) > 1 or value not in values.shapes or not reads:
            return
        if node.op_type in _VIEWS | _SHUFFLES and reads == [node.input[0]]:
            self._note(index, node)
        elif node.op_type in POINTWISE - {"Dropout"} and all(name in self._moved for name in reads):
            self._write(index, node, [self._moved[name] for name in reads])

    def _note(self, index: int, node: onnx.NodeProto) -> None:
        values, x, value = self._values, node.input[0], node.output[0]
        shape = values.shapes[x]
        size = int(np.prod(shape))
        if not values.is_float(x) or not 1 < size < _LARGEST:
            return
        known = self._moved.get(x) or _Moved(x, shape, np.arange(size, dtype=np.int32).reshape(shape), frozenset())
        if node.op_type == "Transpose":
            where = known.where.transpose(values.graph.attributes[index].get("perm"))
        elif node.op_type in _VIEWS:
            where = known.where.reshape(values.shapes[value])
        else:
            run = values.function([node], {x: np.float32}, [value])
            where = np.round(run(known.where.astype(np.float32))[0]).astype(np.int32)
        self._moved[value] = replace(known, where=where, nodes=known.nodes | {index})

    def _write(self, index: int, node: onnx.NodeProto, sides: Sequence[_Moved]) -> None:
        values, first, value = self._values, sides[0], node.output[0]
        if first.where.shape != values.shapes[value] or any(
            side.shape != first.shape or not np.array_equal(side.where, first.where) for side in sides[1:]
        ):
            return
        names = {name: self._moved[name].base for name in values.computed(node)}
        for name in node.input:
            array = values.constant(name) if name and values.is_constant(name) else None
            if array is not None and array.size > 1:
                turned = np.empty(first.where.size, array.dtype)
                turned[first.where.reshape(-1)] = np.broadcast_to(array, first.where.shape).reshape(-1)
                names[name] = self._draft.constant(narrowed(turned.reshape(first.shape)))
        made = self._draft.copy(node, names, to=values.graph.fresh("earlier"))
        nodes = frozenset({index}.union(*(side.nodes for side in sides)))
        self._moved[value] = _Moved(made, first.shape, first.where, nodes, worked=True)

    def rewrite(self) -> list[Rewrite]:
        """Return the rewrite of all elementwise nodes behind moves; none if no move is saved."""
        values, graph, draft, whole, gone = self._values, self._values.graph, self._draft, list[str](), set[int]()
        for name, moved in self._moved.items():
            readers = [graph.nodes[reader].output[0] for reader in graph.readers[name]]
            if moved.worked and (name in graph.wanted or any(reader not in self._moved for reader in readers)):
                if np.array_equal(moved.where.reshape(-1), np.arange(moved.where.size)):
                    draft.reshape(moved.base, values.target(name), to=name)
                elif move(draft, moved.where, moved.shape, moved.base, name) is None:
                    continue
                whole.append(name)
                gone |= moved.nodes
        if not whole:
            return []
        read = {name for node in draft.nodes for name in node.input}
        old = graph.unneeded(whole, read)
        shapes = {moved.base: moved.shape for moved in self._moved.values()}
        saving = values.cost_of(old) - values.cost_of_new(draft, shapes | {name: values.shapes[name] for name in whole})
        if saving < _LEAST_SHARE * values.total_ns:
            return []
        return [draft.rewrite("layout: moves undone", whole, graph.names(gone), saving, f"{len(gone)} operators")]


class _Writer:
    """Writes nodes in the order of axes before the Transposes that they read."""

    def __init__(self, values: Values) -> None:
        self._values, self._draft = values, Draft(values.graph)
        self._earlier: dict[str, tuple[str, _Order]] = {}
        self._done = set[int]()

    def follow(self, index: int) -> None:
        """Write a node in the earlier order, if that is possible."""
        values, node = self._values, self._values.graph.nodes[index]
        if any(name not in values.shapes for name in (*node.input, *node.output) if name):
            return
        if node.op_type == "Transpose":
            rank = len(values.shapes[node.input[0]])
            perm = values.graph.attributes[index].get("perm") or list(range(rank))[::-1]
            base, order = self._earlier.get(node.input[0], (node.input[0], tuple(range(rank))))
            if values.shapes[node.input[0]] and values.is_float(node.output[0]) and not values.is_constant(base):
                self._earlier[node.output[0]] = base, tuple(order[axis] for axis in perm)
                self._done.add(index)
            return
        moved = [name for name in values.computed(node) if name in self._earlier]
        rule = _rule(node)
        if not moved or rule is None or node.domain not in {"", "ai.onnx"}:
            return
        order = self._earlier[moved[0]][1]
        if order == tuple(range(len(order))):
            return
        rank = len(order)
        if node.op_type not in _REDUCING and any(len(values.shapes[name]) != rank for name in node.output):
            return
        rule(self, index, node, order)

    def _side(self, name: str, order: _Order) -> str | None:
        """Return an input in the earlier order; None if that takes a Transpose of something large."""
        values, rank = self._values, len(order)
        if name in self._earlier:
            base, own = self._earlier[name]
            return base if own == order else None
        shape = values.shapes[name]
        if np.prod(shape) == 1 and len(shape) <= rank:
            return name
        wide = (1,) * (rank - len(shape)) + shape
        inverse = [order.index(axis) for axis in range(rank)]
        if values.is_constant(name):
            array = values.constant(name)
            assert array is not None  # noqa: S101  # it is constant
            return self._draft.constant(array.reshape(wide).transpose(inverse))
        if sum(size > 1 for size in shape) <= 1:
            return self._draft.reshape(name, [wide[axis] for axis in inverse])
        return None

    def _write(self, index: int, inputs: Sequence[str], order: _Order, changed: Mapping[str, Any]) -> None:
        node = self._values.graph.nodes[index]
        attributes = {**self._values.graph.attributes[index], **changed}
        outputs = [name and self._values.graph.fresh("earlier") for name in node.output]
        self._draft.ops(node.op_type, inputs, outputs, domain=node.domain, **attributes)
        self._done.add(index)
        for name, made in zip(node.output, outputs, strict=True):
            if name:
                self._earlier[name] = made, order

    def pointwise(self, index: int, node: onnx.NodeProto, order: _Order) -> None:
        """Write an elementwise operator."""
        if node.op_type in {"Clip", "Dropout"}:
            sides: list[str | None] = [self._earlier[node.input[0]][0], *node.input[1:]]
        else:
            sides = [self._side(name, order) if name else "" for name in node.input]
        if all(side is not None for side in sides):
            self._write(index, [side for side in sides if side is not None], order, {})

    def along(self, index: int, node: onnx.NodeProto, order: _Order) -> None:
        """Write an operator with one axis."""
        number = len(node.input) if node.op_type == "Concat" else 1
        sides = [self._side(name, order) for name in node.input[:number]]
        default = 0 if node.op_type == "Split" else -1
        axis = self._values.graph.attributes[index].get("axis", default) % len(order)
        if self._values.graph.opset >= 13 and all(side is not None for side in sides):
            inputs = [*(side for side in sides if side is not None), *node.input[number:]]
            self._write(index, inputs, order, {"axis": order[axis]})

    def reduction(self, index: int, node: onnx.NodeProto, order: _Order) -> None:
        """Write a reduction that keeps its axes, or the order of the remaining axes."""
        attributes = self._values.graph.attributes[index]
        given = None if len(node.input) < 2 else self._values.constant(node.input[1])
        axes = attributes.get("axes") if given is None else given.tolist()
        if axes is None:
            return
        old = [axis % len(order) for axis in axes]
        new = [order[axis] for axis in old]
        source = self._earlier[node.input[0]][0]
        inputs = [source] if given is None else [source, self._draft.constant(new, np.int64)]
        changed = {"axes": new} if given is None else {}
        if attributes.get("keepdims", 1):
            self._write(index, inputs, order, changed)
            return
        left = [order[axis] for axis in range(len(order)) if axis not in old]
        self._write(index, inputs, tuple(sorted(left).index(axis) for axis in left), changed)

    def padding(self, index: int, node: onnx.NodeProto, order: _Order) -> None:
        """Write a Pad of all axes."""
        amounts = self._values.constant(node.input[1]) if len(node.input) > 1 else None
        if amounts is None or len(amounts) != 2 * len(order):
            return
        inverse = [order.index(axis) for axis in range(len(order))]
        new = self._draft.constant(amounts.reshape(2, -1)[:, inverse].reshape(-1))
        self._write(index, [self._earlier[node.input[0]][0], new, *node.input[2:]], order, {})

    def rewrite(self) -> list[Rewrite]:
        """Return the rewrite of all nodes; none if no Transpose is saved."""
        values, graph, draft = self._values, self._values.graph, self._draft
        whole = list[str]()
        before = sum(values.costs[index] for index in self._done if graph.nodes[index].op_type == "Transpose")
        after = 0.0
        for name, (base, order) in self._earlier.items():
            outside = name in graph.wanted or any(index not in self._done for index in graph.readers[name])
            if not outside:
                continue
            if order == tuple(range(len(order))):
                draft.op("Identity", base, to=name)
            else:
                draft.op("Transpose", base, perm=list(order), to=name)
                after += float(np.prod(values.shapes[name])) * MOVED_NS
            whole.append(name)
        saving = before - after
        if not whole or saving < _LEAST_SHARE * values.total_ns:
            return []
        gone = graph.names(self._done)
        return [draft.rewrite("layout: Transposes carried forward", whole, gone, saving, f"{len(gone)} operators")]


def _rule(node: onnx.NodeProto) -> Callable[[_Writer, int, onnx.NodeProto, _Order], None] | None:
    if node.op_type in POINTWISE:
        return _Writer.pointwise
    if node.op_type in _ALONG:
        return _Writer.along
    if node.op_type in _REDUCING:
        return _Writer.reduction
    return _Writer.padding if node.op_type == "Pad" else None
