"""Layout: elementwise nodes work in any order of elements, so that moves are carried through them.

Moves meet their inverse, or one move is left behind the elementwise nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from .affine import move, narrowed
from .form import Array, Draft, Rewrite
from .values import POINTWISE, Values, late

_LEAST_SHARE = 0.005
_LARGEST = 1 << 21
"""Elements of a value whose moves are followed."""
_VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_SHUFFLES = frozenset({"DepthToSpace", "SpaceToDepth"})


def layout(values: Values, deadline: float) -> list[Rewrite]:
    """Return one rewrite for all moves through elementwise nodes; the runtime itself carries Transposes elsewhere."""
    writer = _Elements(values)
    for index in itertools.takewhile(lambda _: not late(deadline), range(len(values.graph.nodes))):
        values.attempt(writer.follow, index)
    return writer.rewrite()


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
