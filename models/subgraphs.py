"""The bodies of control-flow operators: all there are, what of the graph around them they read, and its renaming."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx

from .names import is_standard

__all__ = [
    "all_graphs",
    "all_nodes",
    "bodies",
    "captures",
    "contains_operator",
    "may_have_bodies",
    "outer_values",
    "own_names",
    "reads",
    "rename",
]

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def may_have_bodies(node: onnx.NodeProto) -> bool:
    """Whether an operator can carry bodies at all: ONNX's control flow, and whatever other domains define."""
    return node.op_type in _CONTROL_FLOW or not is_standard(node)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among a node's attributes, by attribute name."""
    if not may_have_bodies(node):
        return
    for attribute in sorted(node.attribute, key=lambda one: str(one.name)):  # of a damaged file it may be bytes
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, each before those of its bodies."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from all_nodes(body.node)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and the bodies in it, however deep."""
    yield graph
    for node in all_nodes(graph.node):
        yield from bodies(node)


def own_names(graph: onnx.GraphProto) -> set[str]:
    """Every name that a graph itself defines; any other name that it uses comes from around it."""
    names = {value.name for value in graph.input}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(sparse.values.name for sparse in graph.sparse_initializer)
    names.update(name for node in graph.node for name in node.output)
    return names


def reads(node: onnx.NodeProto) -> list[str]:
    """Names of the values that a node reads, those that its bodies capture included."""
    return [name for name in (*node.input, *captures(node)) if name]


def captures(node: onnx.NodeProto) -> tuple[str, ...]:
    """Names of the outer values that a node's bodies read, each once, in the order they are read."""
    if not may_have_bodies(node):
        return ()
    return tuple(dict.fromkeys(name for body in bodies(node) for name in outer_values(body)))


def outer_values(body: onnx.GraphProto) -> tuple[str, ...]:
    """Names of the outer values that a body, or one in it, reads, each once, in the order they are read."""
    found: dict[str, None] = {}
    _collect(body, frozenset(), found)
    return tuple(found)


def _collect(body: onnx.GraphProto, outer: frozenset[str], found: dict[str, None]) -> None:
    known = set(outer)
    known.update(value.name for value in body.input)
    known.update(tensor.name for tensor in body.initializer)
    known.update(tensor.values.name for tensor in body.sparse_initializer)
    for node in body.node:
        for name in node.input:
            if name and name not in known:
                found.setdefault(name)
        for inner in bodies(node):
            _collect(inner, frozenset(known), found)
        known.update(node.output)
    for value in body.output:  # a body may return a captured value directly
        if value.name and value.name not in known:
            found.setdefault(value.name)


def rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Give values other names in a node and its bodies, but for values of a body that only share a name, in place."""
    node.input[:] = [names.get(value, value) for value in node.input]
    node.output[:] = [names.get(value, value) for value in node.output]
    for body in bodies(node):
        inside = own_names(body)
        outer = {name: other for name, other in names.items() if name not in inside}
        for inner in body.node:
            rename(inner, outer)
        for value in body.output:
            value.name = outer.get(value.name, value.name)


def contains_operator(node: onnx.NodeProto, operators: frozenset[str]) -> bool:
    """Whether a node, or any node of its bodies, is one of the named operators."""
    return any(one.op_type in operators for one in all_nodes([node]))
