"""Towers: the same operators with the same weights on several values become one pass over a batch of them.

Nodes that compute the same function of different values share a mark. Values of one mark are joined along axis 0, from
the first difference to the first other reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .form import Draft, Rewrite
from .values import POINTWISE, Values

_GAIN = 0.15
"""Predicted share that is saved: weights are read once."""
_LEAST_SHARE = 0.02
_MOST_MEMBERS, _SMALL = 512, 64
_APART = frozenset({
    "AveragePool", "BatchNormalization", "Conv", "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization",
    "MaxPool",
})  # fmt: skip
"""Operators that treat the indices of axis 0 separately."""

_PARTS = frozenset({"Gather", "Slice", "Split"})
"""Operators with parts of one value as outputs: parts of one shape count as inputs of the same kind."""

_VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})

_Members = tuple[str, ...]
"""Values of one mark."""


def towers(values: Values, deadline: float) -> list[Rewrite]:
    """Return one rewrite of all towers into batches."""
    del deadline  # one pass over the nodes
    groups = _groups(values)
    if not groups:
        return []
    writer = _Writer(values)
    for indices in groups:
        writer.add(indices)
    return writer.rewrite()


def _groups(values: Values) -> list[tuple[int, ...]]:
    """Return nodes that compute the same function of different values, in the order of the graph."""
    graph, marks, found = values.graph, dict[str, int](), defaultdict[object, list[int]](list)
    numbers: dict[object, int] = {}

    def numbered(key: object) -> int:
        return numbers.setdefault(key, len(numbers))

    for value in graph.inputs:
        shape = values.shapes.get(value.name)
        marks[value.name] = numbered(("input", shape, str(values.dtypes.get(value.name))))
    for index, node in enumerate(graph.nodes):
        inputs = tuple(
            ("constant", _mark(values, name)) if values.is_constant(name) else ("value", marks.get(name, -1))
            for name in node.input
        )
        key = node.op_type, node.domain, repr(sorted(graph.attributes[index].items())), inputs
        parts = node.op_type in _PARTS and inputs[0][0] == "value"
        for slot, name in enumerate(node.output):
            marks[name] = numbered((inputs[0], values.shapes.get(name)) if parts else (key, slot))
        found[key].append(index)
    members = [tuple(indices) for indices in found.values() if 1 < len(indices) <= _MOST_MEMBERS]
    return sorted(members, key=lambda indices: indices[-1])


def _mark(values: Values, name: str) -> object:
    """Return what a constant is known by: its name, or for a small one its contents."""
    array = values.constant(name)
    return name if array is None or array.size > _SMALL else (array.shape, str(array.dtype), array.tobytes())


class _Writer:
    """Writes groups of nodes as one node each."""

    def __init__(self, values: Values) -> None:
        self._values, self._draft = values, Draft(values.graph)
        self._made: dict[_Members, str] = {}
        self._nodes = list[int]()

    def add(self, indices: Sequence[int]) -> None:
        """Write a group as one node, if the indices of axis 0 are treated separately."""
        graph = self._values.graph
        nodes = [graph.nodes[index] for index in indices]
        first, made = nodes[0], tuple(node.output[0] for node in nodes)
        if len(first.output) > 1 or len(set(made)) < len(made) or not self._is_batched(indices[0], made):
            return
        inputs = list[str]()
        for slot, name in enumerate(first.input):
            members = tuple(node.input[slot] for node in nodes)
            if not name or self._values.is_constant(name):
                inputs.append(name)
            elif len(set(members)) < len(members) or not self._stackable(members):
                return
            else:
                inputs.append("\0".join(members))
        inputs = [self._side_by_side(tuple(name.split("\0"))) if "\0" in name else name for name in inputs]
        attributes: dict[str, Any] = dict(graph.attributes[indices[0]])
        if first.op_type in _VIEWS:
            shape = self._values.shapes[made[0]]
            self._made[made] = self._draft.reshape(inputs[0], [len(made) * shape[0], *shape[1:]])
        else:
            self._made[made] = self._draft.op(first.op_type, *inputs, domain=first.domain, **attributes)
        self._nodes += indices

    def _stackable(self, members: _Members) -> bool:
        shapes = {self._values.shapes.get(name) for name in members}
        shape = shapes.pop()
        return not shapes and shape is not None and len(shape) > 1 and all(map(self._values.is_float, members))

    def _side_by_side(self, members: _Members) -> str:
        if members not in self._made:
            self._made[members] = self._draft.op("Concat", *members, axis=0)
        return self._made[members]

    def _is_batched(self, index: int, made: _Members) -> bool:
        values, graph = self._values, self._values.graph
        node, attributes = graph.nodes[index], graph.attributes[index]
        shapes = [values.shapes.get(name) for name in (made[0], *node.input) if name]
        if any(shape is None for shape in shapes) or not shapes[0] or not values.is_float(made[0]):
            return False
        out, rank = shapes[0], len(shapes[0])
        computed = [values.shapes[name] for name in values.computed(node)]
        if not computed or any(not shape or shape[0] != out[0] for shape in computed):
            return False
        constants = [values.shapes[name] for name in node.input if name and values.is_constant(name)]
        return _rule(node.op_type, attributes, rank, computed, constants)

    def rewrite(self) -> list[Rewrite]:
        """Return the rewrite of all groups; none if they are too little."""
        values, graph = self._values, self._values.graph
        cost_ns = values.cost_of(self._nodes)
        if cost_ns < _LEAST_SHARE * values.total_ns:
            return []
        inside, whole = set(self._nodes), list[str]()
        for members, name in list(self._made.items()):
            if graph.producer.get(members[0]) not in inside:
                continue
            read = any(value in graph.wanted or set(graph.readers[value]) - inside for value in members)
            if read:
                outputs = tuple(members)
                size = values.shapes[members[0]][0]
                sizes = [size] * len(members)
                if graph.opset >= 13:
                    self._draft.ops("Split", (name, self._draft.constant(sizes, np.int64)), outputs, axis=0)
                else:
                    self._draft.ops("Split", (name,), outputs, axis=0, split=sizes)
                whole += outputs
        if not whole:
            return []
        note = f"{len(self._nodes)} operators"
        return [self._draft.rewrite("towers: one batch", whole, graph.names(inside), _GAIN * cost_ns, note)]


def _rule(  # noqa: PLR0911  # one operator each
    operator: str,
    attributes: Mapping[str, Any],
    rank: int,
    computed: Sequence[tuple[int, ...]],
    constants: Sequence[tuple[int, ...]],
) -> bool:
    """Return True if an operator treats the indices of axis 0 separately."""
    if operator in POINTWISE:
        return all(len(shape) == rank for shape in computed) and all(
            len(shape) < rank or shape[0] == 1 for shape in constants
        )
    if operator in _APART:
        return len(computed) == 1
    if operator == "MatMul":
        plain = len(computed) == 1 and all(len(shape) == 2 for shape in constants)
        return plain or (len(computed) == 2 and all(len(shape) == rank >= 3 for shape in computed))
    if operator == "Gemm":
        return len(computed) == 1 and not attributes.get("transA") and all(len(shape) < 3 for shape in constants)
    if operator in {"LayerNormalization", "LogSoftmax", "Softmax"}:
        return len(computed) == 1 and attributes.get("axis", -1) % rank != 0
    if operator == "Transpose":
        return bool(attributes.get("perm")) and attributes["perm"][0] == 0
    if operator == "Concat":
        return bool(attributes["axis"] % rank != 0)
    return operator in _VIEWS and len(computed) == 1
