"""Large constants of subgraphs, which become constants of the model around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, MutableSequence
from typing import TypeVar

from onnx import GraphProto, NodeProto

from .constants import Constant, graph_constants, is_constant
from .subgraphs import bodies, rename

__all__ = ["hoist_constants"]

_Message = TypeVar("_Message")


def hoist_constants(
    nodes: Iterable[NodeProto], defined: set[str], definitions: Counter[str]
) -> list[tuple[str, Constant]]:
    """Take the large constants out of the subgraphs of a model's nodes, in place.

    A subgraph sees the values of the model around it by name, so that its large constants can be the model's own: as
    such they need no payload. Small ones stay where they are.

    Args:
        nodes: The nodes of the model's graph.
        defined: Every name that the model's graph defines; the new ones are added.
        definitions: How often each name is defined in subgraphs, all of them together.

    Returns:
        Name in the model and value, of each constant that was taken out.
    """
    hoist = _Hoist(defined, definitions)
    for node in nodes:
        for graph in bodies(node):
            hoist.take(graph)
    return hoist.taken


class _Hoist:
    def __init__(self, defined: set[str], definitions: Counter[str]) -> None:
        self.taken: list[tuple[str, Constant]] = []
        self._defined = defined
        self._definitions = definitions

    def take(self, graph: GraphProto) -> None:
        for node in graph.node:
            for nested in bodies(node):
                self.take(nested)
        large = {name: constant for name, constant in graph_constants(graph) if constant.tensor is None}
        if not large:
            return
        _replace(graph.initializer, [tensor for tensor in graph.initializer if tensor.name not in large])
        _replace(graph.sparse_initializer, [s for s in graph.sparse_initializer if s.values.name not in large])
        nodes = [node for node in graph.node if not (is_constant(node) and node.output and node.output[0] in large)]
        handed_out = {value.name for value in graph.output}
        for name, constant in large.items():
            outer = name
            if name in handed_out or name in self._defined or self._definitions[name] > 1:
                outer = self._fresh(name)
                for node in nodes:
                    rename(node, {name: outer})
            if name in handed_out:  # a subgraph may hand out only what it makes itself
                nodes.insert(0, NodeProto(op_type="Identity", input=[outer], output=[name]))
            self._defined.add(outer)
            self.taken.append((outer, constant))
        _replace(graph.node, nodes)

    def _fresh(self, name: str) -> str:
        number = 1
        while (fresh := f"{name}__{number}") in self._defined or fresh in self._definitions:
            number += 1
        return fresh


def _replace(field: MutableSequence[_Message], items: list[_Message]) -> None:
    del field[:]
    field.extend(items)
