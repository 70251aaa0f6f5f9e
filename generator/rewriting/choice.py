"""Choice: rows that an input or another part of the model chooses are chosen before the work on all rows, not after it.

An axis is followed backwards from the choice through nodes that work on it index by index, up to values that something
else reads, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from .affine import pick
from .demand import index_by_index, selected
from .form import Array, Draft, Rewrite
from .generic import generic_of
from .values import POINTWISE, Values

_FEWER = 0.6
"""Share of the rows that may be chosen."""
_VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True, slots=True)
class _Choice:
    """A choice of rows.

    Attributes:
        source: The value that has all rows.
        axis: Its axis of rows.
        number: Number of chosen rows.
        rows: Value with their indices.
        column: Element of the last axis of ``rows`` that is the index; None if each element is an index.
    """

    source: str
    axis: int
    number: int
    rows: str
    column: int | None = None

    def indices(self, draft: Draft) -> str:
        """Write the indices as a value of one axis."""
        made = self.rows
        if self.column is not None:
            made = draft.op("Gather", made, draft.constant(self.column, np.int64), axis=-1)
        return draft.reshape(made, [-1])


def everywhere(values: Values, index: int) -> Rewrite | None:
    """Return boolean indexing as a Where: elementwise nodes on chosen elements work on all, and the mask selects."""
    graph, node, draft = values.graph, values.graph.nodes[index], Draft(values.graph)
    mask, known = _mask_of(values, node.input[1]) if node.op_type == "ScatterND" else "", dict[str, str]()
    shape, attributes = values.shapes.get(node.input[0]), graph.attributes[index]
    if not mask or values.shapes[mask] != shape or attributes.get("reduction", "none") not in {"none", b"none"}:
        return None

    def whole(name: str) -> str:
        """Write the value for all elements that has some of them; return an empty name if that is not possible."""
        place = graph.producer.get(name)
        if values.is_constant(name) and prod(values.shapes[name]) == 1:
            return name
        if name in known or place is None:
            return known.get(name, "")
        maker = graph.nodes[place]
        source = maker.input[0]
        if maker.op_type == "GatherND" and _mask_of(values, maker.input[1]) == mask and values.shapes[source] == shape:
            known[name] = source
        elif all(source in run and np.array_equal(run[source], run[name]) for run in values.runs):
            known[name] = whole(source)
        elif maker.op_type in POINTWISE:
            inputs = {read: whole(read) for read in maker.input if read}
            known[name] = draft.copy(maker, inputs, to=graph.fresh("whole")) if all(inputs.values()) else ""
        return known.get(name, "")

    if not (made := whole(node.input[2])):
        return None
    draft.op("Where", mask, made, node.input[0], to=node.output[0])
    return values.cheaper(draft, "order: all elements, and a Where", node.output[0])


def _mask_of(values: Values, indices: str) -> str:
    """Return the mask whose true elements have these indices; an empty name if there is none."""
    turned = values.graph.maker(indices)
    found = values.graph.maker(turned.input[0]) if turned is not None and turned.op_type == "Transpose" else None
    if found is None or found.op_type != "NonZero" or len(values.shapes.get(found.input[0], ())) < 2:
        return ""
    mask = found.input[0]
    while (maker := values.graph.maker(mask)) is not None and maker.op_type in {"Expand", "Identity"}:
        if values.shapes[maker.input[0]] != values.shapes[mask]:
            break
        mask = maker.input[0]
    return mask if values.dtypes[mask] == np.bool_ else ""


def chosen_first(values: Values, index: int) -> Rewrite | None:
    """Return the rewrite that chooses rows before the nodes that work on each row alone."""
    graph, value = values.graph, values.graph.nodes[index].output[0]
    choice = _choice(values, index)
    if choice is None or choice.number > _FEWER * values.shapes[choice.source][choice.axis]:
        return None
    axes, inside = _followed(values, index, choice)
    if not inside or any(run[value].shape != values.shapes[value] for run in values.runs):
        return None
    draft = Draft(graph)
    writer = _Writer(values, draft, choice, axes)
    for place in sorted(inside):
        writer.write(place)
    draft.reshape(writer.row(choice.source), values.target(value), to=value)
    note = f"{choice.number} of {values.shapes[choice.source][choice.axis]}"
    return values.cheaper(draft, "order: rows chosen first", value, note)


def _choice(values: Values, index: int) -> _Choice | None:
    """Return the choice that a node makes along one axis; None if it makes none."""
    node, shapes = values.graph.nodes[index], values.shapes
    reader = _READERS.get(node.op_type)
    if reader is None or any(name not in shapes for name in node.input):
        return None
    if not shapes[node.input[0]] or not values.is_float(node.input[0]) or values.is_constant(node.input[0]):
        return None
    return reader(values, index)


def _gather(values: Values, index: int) -> _Choice | None:
    source, rows = values.graph.nodes[index].input
    axis = values.graph.attributes[index].get("axis", 0) % len(values.shapes[source])
    chosen = values.shapes[rows]
    known = values.is_constant(rows) and len(chosen) < 2  # what is known is found by demand
    return None if known else _Choice(source, axis, prod(chosen), rows)


def _gather_nd(values: Values, index: int) -> _Choice | None:
    source, rows = values.graph.nodes[index].input
    chosen = values.shapes[rows]
    axis = values.graph.attributes[index].get("batch_dims", 0) + chosen[-1] - 1
    plain = prod(values.shapes[source][:axis]) == 1
    return _Choice(source, axis, prod(chosen[:-1]), rows, chosen[-1] - 1) if plain else None


def _gather_elements(values: Values, index: int) -> _Choice | None:
    """Return the choice of a GatherElements whose indices are equal along all other axes."""
    source, rows = values.graph.nodes[index].input
    shape, chosen = values.shapes[source], values.shapes[rows]
    axis = values.graph.attributes[index].get("axis", 0) % len(shape)
    if values.is_constant(rows) or any(
        shape[place] != chosen[place] for place in range(len(shape)) if place != axis
    ):  # fmt: skip
        return None
    for run in generic_of(values).runs:  # what recorded indices have in common need not hold for others
        if rows not in run:
            return None
        turned = np.moveaxis(run[rows], axis, -1).reshape(-1, chosen[axis])
        if not (turned == turned[:1]).all():
            return None
    if prod(chosen) == chosen[axis]:
        return _Choice(source, axis, chosen[axis], rows)
    by_rows = prod(shape[:axis]) == 1 == prod(shape[axis + 1 : -1])
    return _Choice(source, axis, chosen[axis], rows, 0) if by_rows else None


_READERS = {"Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd}


def _followed(values: Values, index: int, choice: _Choice) -> tuple[dict[str, int], set[int]]:
    """Return the axis of rows by value, and the nodes that work on each row alone for the choice and nobody else."""
    graph, axes, inside, waiting = values.graph, {choice.source: choice.axis}, {index}, {choice.source}
    while waiting:
        name = max(waiting, key=lambda name: graph.producer.get(name, -1))
        waiting.discard(name)
        place = graph.producer.get(name)
        if (
            place is None
            or values.is_constant(name)
            or name in graph.wanted
            or not inside.issuperset(graph.readers[name])
        ):
            continue
        read = index_by_index(values, place, axes[name])
        if read is None or any(axes.get(graph.nodes[place].input[slot], axis) != axis for slot, axis in read.items()):
            continue
        inside.add(place)
        axes.update({graph.nodes[place].input[slot]: axis for slot, axis in read.items()})
        waiting.update(graph.nodes[place].input[slot] for slot in read)
    return axes, inside - {index}


class _Writer:
    """Writes nodes for the chosen rows."""

    def __init__(self, values: Values, draft: Draft, choice: _Choice, axes: dict[str, int]) -> None:
        self._values, self._draft, self._choice, self._axes = values, draft, choice, axes
        self._indices = choice.indices(draft)
        self._new: dict[str, str] = {}

    def row(self, name: str) -> str:
        """Return the chosen rows of a value, or all of a value without rows."""
        if name not in self._axes:
            return name
        if name not in self._new:
            self._new[name] = self._draft.op("Gather", name, self._indices, axis=self._axes[name])
        return self._new[name]

    def write(self, place: int) -> None:
        """Write a node."""
        node, draft = self._values.graph.nodes[place], self._draft
        value = node.output[0]
        if node.op_type == "Expand":
            target = self._values.shape_of_copies(draft, node, {self._axes[value]: self._choice.number})
            self._new[value] = draft.op("Expand", self.row(node.input[0]), target)
            return
        if node.op_type in _VIEWS:
            source, sizes = self.row(node.input[0]), {self._axes[value]: self._choice.number}
            self._new[value] = self._values.viewed(draft, node, source, sizes)
            return
        inputs = {name: self.row(name) for name in node.input if name}
        self._new[value] = draft.copy(node, inputs, to=self._values.graph.fresh("row"))
        for slot, name in enumerate(node.output[1:], start=1):
            self._axes[name] = self._axes.get(name, self._axes[node.input[0]])
            self._new[name] = draft.nodes[-1].output[slot] = self._values.graph.fresh("row")


_DEEPEST, _FEWER_MOVES = 60, 0.99
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})


class _Reorder:
    """Writes values in another order of the elements along one axis.

    Args:
        values: The graph.
        draft: The new nodes.
        order: For each index of a new value, the index of the old one.
    """

    def __init__(self, values: Values, draft: Draft, order: Array) -> None:
        self._values, self._draft, self._order = values, draft, order
        self._reverse = np.array_equal(order, np.arange(len(order))[::-1])
        self._made: dict[tuple[str, int], str] = {}

    def value(self, name: str, axis: int, depth: int = 0) -> str:
        """Write a value in the other order and return its name."""
        if (name, axis) not in self._made:
            self._made[name, axis] = self._written(name, axis, depth)
        return self._made[name, axis]

    def _written(self, name: str, axis: int, depth: int) -> str:
        values, draft = self._values, self._draft
        place, array = values.graph.producer.get(name), values.constant(name)
        if array is not None:
            return name if array.shape[axis] == 1 else draft.constant(array.take(self._order, axis))
        if place is None or depth > _DEEPEST:
            return pick(draft, name, self._order, axis)
        node = values.graph.nodes[place]
        chosen = permuted(values, place)
        if chosen is not None and chosen[0] == axis:
            both = chosen[1][self._order]
            plain = np.array_equal(both, np.arange(len(both)))
            return node.input[0] if plain else pick(draft, node.input[0], both, axis)
        if self._reverse and (made := self._mirrored(place, name, axis, depth)):
            return made
        read = index_by_index(values, place, axis) if len(node.output) < 2 else None
        if not read:
            return pick(draft, name, self._order, axis)
        made = draft.copy(node, {}, to=values.graph.fresh("ordered"))
        copy = draft.nodes.pop()
        for slot, own in read.items():
            copy.input[slot] = self.value(node.input[slot], own, depth + 1)
        draft.nodes.append(copy)
        return made

    def _mirrored(self, place: int, name: str, axis: int, depth: int) -> str | None:
        """Write a convolution, a pool or a recurrent operator from the other end; return None for any other node."""
        values, draft = self._values, self._draft
        node, attributes = values.graph.nodes[place], dict(values.graph.attributes[place])
        kind, rank = node.op_type, len(values.shapes[name])
        if kind in _RECURRENT and axis == 0 and name == node.output[0] and not attributes.get("layout", 0):
            ways = {"forward": "reverse", "reverse": "forward"}
            others = [value for value in node.output[1:] if value and values.graph.readers[value]]
            way = attributes.get("direction", "forward")
            if way not in ways or others or (len(node.input) > 4 and node.input[4]):
                return None
            x = self.value(node.input[0], 0, depth + 1)
            return draft.op(kind, x, *node.input[1:], **{**attributes, "direction": ways[way]})
        if kind not in {"AveragePool", "Conv", "MaxPool"} or axis < 2 or len(node.output) > 1:
            return None
        weight = values.constant(node.input[1]) if kind == "Conv" else None
        size = weight.shape[axis] if weight is not None else (attributes.get("kernel_shape") or [0] * rank)[axis - 2]
        spatial = rank - 2
        pads = list(attributes.get("pads") or [0] * 2 * spatial)
        stride, dilation = ((attributes.get(key) or [1] * spatial)[axis - 2] for key in ("strides", "dilations"))
        begin, end = axis - 2, axis - 2 + spatial
        left = values.shapes[node.input[0]][axis] + pads[begin] + pads[end] - dilation * (size - 1) - 1
        unclear = attributes.get("auto_pad", "NOTSET") != "NOTSET" or attributes.get("ceil_mode", 0)
        if not size or unclear or left % stride or (kind == "Conv" and weight is None):
            return None
        pads[begin], pads[end] = pads[end], pads[begin]
        weights = [] if weight is None else [draft.constant(np.flip(weight, axis)), *node.input[2:]]
        return draft.op(kind, self.value(node.input[0], axis, depth + 1), *weights, **{**attributes, "pads": pads})


def permuted(values: Values, index: int) -> tuple[int, Array] | None:
    """Return the axis along which a node only changes the order, with the order; None for any other node."""
    node = values.graph.nodes[index]
    picked = selected(values, index) if node.op_type in {"Gather", "Slice"} and node.domain in {"", "ai.onnx"} else None
    if picked is None or len(picked) != 1 or node.output[0] not in values.shapes:
        return None
    ((axis, order),) = picked.items()
    size = values.shapes[node.input[0]][axis]
    alike = len(order) == size > 1 and len(values.shapes[node.output[0]]) == len(values.shapes[node.input[0]])
    return (axis, order) if alike and np.array_equal(np.sort(order), np.arange(size)) else None


def reordered(values: Values, index: int) -> Rewrite | None:
    """Return the rewrite that carries another order of an axis back until it meets its inverse or constants."""
    found, value = permuted(values, index), values.graph.nodes[index].output[0]
    if found is None or values.is_constant(value):
        return None
    draft, source = Draft(values.graph), values.graph.nodes[index].input[0]
    draft.finish(_Reorder(values, draft, found[1]).value(source, found[0]), value)
    return values.cheaper(draft, "order: no other order needed", value, share=_FEWER_MOVES)
