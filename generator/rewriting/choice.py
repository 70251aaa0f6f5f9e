"""Choice: rows that an input or another part of the model chooses are chosen before the work on all rows, not after it.

An axis is followed backwards from the choice through nodes that work on it index by index, up to values that something
else reads, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from .demand import index_by_index
from .form import Draft, Rewrite
from .values import Values

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
    for run in values.runs:
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
        if node.op_type in _VIEWS | {"Expand"}:
            sizes = [
                self._choice.number if axis == self._axes[value] else size
                for axis, size in enumerate(self._values.target(value))
            ]
            source, target = self.row(node.input[0]), draft.constant(sizes, np.int64)
            self._new[value] = draft.op("Expand" if node.op_type == "Expand" else "Reshape", source, target)
            return
        inputs = {name: self.row(name) for name in node.input if name}
        self._new[value] = draft.copy(node, inputs, to=self._values.graph.fresh("row"))
        for slot, name in enumerate(node.output[1:], start=1):
            self._axes[name] = self._axes.get(name, self._axes[node.input[0]])
            self._new[name] = draft.nodes[-1].output[slot] = self._values.graph.fresh("row")
