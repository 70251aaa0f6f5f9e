"""Functions of one integer, such as a byte's code as a vector of zeros and a one and its product: rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .enumeration import ByElement, batches
from .evaluation import Unclear
from .recording import Values, late
from .rewrite import Array, Draft, Rewrite

_MOST_BYTES = 16 << 20
"""Limit on one table."""
_NS_PER_BYTE = 0.1
_LEAST_OPSET = 12
"""The first in which Clip takes integers."""


def lookup(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of functions of one integer as lookups in a table of their results."""
    rewrites, graph = list[Rewrite](), values.graph
    sources = dict.fromkeys(
        name for node in graph.nodes for name in node.input
        if name in values.dtypes and values.dtypes[name].kind in "iu" and not values.is_constant(name)
    )  # fmt: skip
    for name in sources if graph.opset >= _LEAST_OPSET else ():
        if late(deadline):
            break
        rewrites += values.attempt(list, _of(values, name)) or []
    return rewrites


def _of(values: Values, name: str) -> Iterator[Rewrite]:
    """Yield the rewrite of a function of a value that saves most, if any does."""
    graph = values.graph
    fixed = {**values.runs[0], **graph.constants}
    constants = {
        value: array for value, array in fixed.items() if values.is_constant(value) or value in values.of_shapes
    }
    by_element, region = ByElement(name, values.dtypes[name], values.shapes, constants), list[int]()
    for index, node in enumerate(graph.nodes):
        tracked = any(operand in by_element.values for operand in node.input)
        if tracked and node.output[0] not in constants and by_element.follow(node):
            region.append(index)
    best = max((_Table.of(values, by_element, region, graph.nodes[index].output[0]) for index in region),
               key=lambda table: 0.0 if table is None else table.saving_ns, default=None)  # fmt: skip
    if best is not None and best.saving_ns > 0:
        yield best.rewrite(values)


@dataclass(frozen=True, slots=True)
class _Table:
    """A value as rows of a table.

    Attributes:
        source: The integer value.
        value: The value.
        cases: Integers of the rows, in order.
        legal: The source is an index already.
        axes: Leading axes of the value that number the elements of the source.
        nodes: The nodes in between.
        gone: Those of them that are no longer needed.
        saving_ns: Predicted saving.
    """

    source: str
    value: str
    cases: Array
    legal: bool
    axes: int
    nodes: tuple[int, ...]
    gone: tuple[int, ...]
    saving_ns: float

    @classmethod
    def of(cls, values: Values, by_element: ByElement, region: Sequence[int], value: str) -> _Table | None:
        """Return a value as rows of a table; None if it cannot be."""
        graph, name, needed, inside = values.graph, by_element.name, {value}, list[int]()
        for index in reversed(region):
            if not needed.isdisjoint(graph.nodes[index].output):
                inside.insert(0, index)
                needed.update(graph.reads[index])
        subset = ByElement(name, by_element.kind, by_element.shapes, by_element.constants)
        for index in inside:
            subset.follow(graph.nodes[index])
        shape, x, axes = values.shapes[value], values.shapes[name], subset.split(values.shapes[value])
        if values.dtypes[value].kind != "f" or axes is None or not np.prod(x):
            return None
        if x + shape[axes:] != shape and values.is_dynamic:
            return None
        try:
            cases = np.arange(subset.rows, dtype=subset.kind) if subset.rows else subset.cases()
        except Unclear:
            return None
        if len(cases) * np.prod(shape[axes:]) * values.dtypes[value].itemsize > _MOST_BYTES:
            return None
        gone = graph.removable(inside, value, read=[name])
        saving_ns = values.cost_of(gone) - _NS_PER_BYTE * np.prod(shape) * values.dtypes[value].itemsize
        return cls(name, value, cases, bool(subset.rows), axes, tuple(inside), tuple(gone), float(saving_ns))

    def rewrite(self, values: Values) -> Rewrite:
        """Return the rewrite."""
        graph, shape = values.graph, values.shapes[self.value]
        draft, index, row = Draft(graph), self.source, shape[self.axes :]
        rows = draft.constant(self._rows(values).reshape(len(self.cases), *row))
        if not self.legal:
            low, high = (draft.constant(end, self.cases.dtype) for end in (self.cases[0], self.cases[-1]))
            index = draft.op("Sub", draft.op("Clip", index, low, high), low)
        result = draft.op("Gather", rows, index, axis=0)
        if values.shapes[self.source] + row != shape:
            result = draft.reshape(result, shape)
        draft.finish(result, self.value)
        note = f"{len(self.cases)} rows"
        return draft.rewrite("lookup: rows of a table", [self.value], graph.names(self.gone), self.saving_ns, note)

    def _rows(self, values: Values) -> Array:
        """Return the results for all cases, one row each."""
        nodes, shape = [values.graph.nodes[index] for index in self.nodes], values.shapes[self.source]
        call, size = values.function(nodes, {self.source: self.cases.dtype}, [self.value]), int(np.prod(shape))
        return np.concatenate([call(x)[0].reshape(size, -1) for x in batches(self.cases, shape)])[: len(self.cases)]
