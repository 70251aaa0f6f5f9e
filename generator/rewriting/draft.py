"""A model that is being changed: values are made anew under their names, and what nobody reads any more goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...errors import ModelError
from ...models.names import plain_domain
from ...models.subgraphs import reads

__all__ = ["Draft"]

_MICROSOFT = "com.microsoft"


class Draft:
    """A model under change.

    Args:
        model: It is changed in place.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._nodes = list(model.graph.node)
        self._names = {name for node in self._nodes for name in (*node.input, *node.output)}
        self._names |= {value.name for value in model.graph.input} | {one.name for one in model.graph.initializer}
        self._makers = {name: node for node in self._nodes for name in node.output if name}

    @property
    def opset(self) -> int:
        """Of ONNX's own operators."""
        return next((one.version for one in self.model.opset_import if not plain_domain(one.domain)), 1)

    def node(self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> onnx.NodeProto:
        """A node of one output, which gets a new name where it has none; ``domain`` is one of the attributes."""
        name = output or self.fresh(operator.lower())
        label = self.fresh(f"rewritten_{operator}")
        made: onnx.NodeProto = helper.make_node(operator, list(inputs), [name], name=label, **attributes)
        if made.domain == _MICROSOFT and not any(one.domain == _MICROSOFT for one in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))
        return made

    def fresh(self, stem: str) -> str:
        """A name that nothing has yet."""
        number = 0
        while f"{stem}_{number}" in self._names:
            number += 1
        self._names.add(f"{stem}_{number}")
        return f"{stem}_{number}"

    def constant(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], stem: str) -> str:
        """A new constant; its name."""
        name = self.fresh(stem)
        self.model.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def initializer(self, name: str) -> onnx.TensorProto | None:
        """A constant of the model by its name."""
        return next((one for one in self.model.graph.initializer if one.name == name), None)

    def maker(self, value: str) -> onnx.NodeProto:
        """The node that makes a value.

        Raises:
            ModelError: There is none.
        """
        if value not in self._makers:
            raise ModelError(f"no node of the model makes '{value}'")
        found: onnx.NodeProto = self._makers[value]
        return found

    def redefine(self, value: str, nodes: Sequence[onnx.NodeProto]) -> None:
        """Have other nodes make a value; all that read it go on to do so.

        Args:
            value: A value that a node makes.
            nodes: Their last makes the value; what they read may stand behind it in the model.
        """
        before = self.maker(value)
        slot = list(before.output).index(value)
        before.output[slot] = self.fresh("replaced")
        self._makers[before.output[slot]] = before
        place = next(index for index, node in enumerate(self._nodes) if node is before) + 1
        self._nodes[place:place] = nodes
        self._makers |= {name: node for node in nodes for name in node.output if name}

    def forget_type(self, value: str) -> None:
        """Drop what the model states of a value's type, which is another one now."""
        _keep(self.model.graph.value_info, {one.name for one in self.model.graph.value_info} - {value})

    def finish(self) -> onnx.ModelProto:
        """The model in topological order, without what nobody reads.

        Raises:
            ModelError: Nodes wait for each other.
        """
        graph = self.model.graph
        wanted, needed = [value.name for value in graph.output], set[int]()
        while wanted:
            node = self._makers.get(wanted.pop())
            if node is not None and id(node) not in needed:
                needed.add(id(node))
                wanted += reads(node)
        kept = _ordered([node for node in self._nodes if id(node) in needed])
        del graph.node[:]
        graph.node.extend(kept)
        read = {name for node in kept for name in reads(node)} | {value.name for value in graph.output}
        _keep(graph.initializer, read)
        made = {name for node in kept for name in node.output}
        _keep(graph.value_info, made)
        return self.model


def _keep(entries: object, names: set[str]) -> None:
    """Drop the entries of a repeated field whose names are not wanted."""
    assert isinstance(entries, Sequence)  # noqa: S101  # protobuf's containers have no common type
    for position in reversed(range(len(entries))):
        if entries[position].name not in names:
            del entries[position]  # type: ignore[attr-defined]


def _ordered(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Nodes so that each stands behind those that it reads from, otherwise in the order given."""
    import networkx as nx

    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    graph.add_edges_from(
        (makers[name], index) for index, node in enumerate(nodes) for name in reads(node) if name in makers
    )
    try:
        return [nodes[index] for index in nx.lexicographical_topological_sort(graph)]
    except nx.NetworkXUnfeasible as error:
        raise ModelError("a rewrite made nodes that wait for each other") from error
