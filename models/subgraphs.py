"""The bodies of control-flow operators: all there are, what of the graph around them they read, and its renaming."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TypeProto, checker, shape_inference

from ..errors import BrokenModel

# Names in a model: text that a broken file may not keep to, and operators with their domains.


_STANDARD = frozenset({"", "ai.onnx"})
"""Spellings of ONNX's own domain."""


def require_text(*names: object) -> None:
    """Check that names are text; the protobuf parser hands out plain bytes for what is not UTF-8.

    Raises:
        BrokenModel: One is not; the message shows it.
    """
    for name in names:
        if type(name) is not str:
            raise BrokenModel(f"the name {name!r} is not UTF-8")


def plain_domain(domain: str) -> str:
    """A domain in the one spelling that is compared: empty for ONNX's own."""
    return "" if domain in _STANDARD else domain


def is_standard(node: NodeProto) -> bool:
    """Whether a node is of ONNX's own operators."""
    return node.domain in _STANDARD


def kind_of(node: NodeProto) -> str:
    """The operator of a node, behind its domain and a dot where that is not ONNX's own."""
    return node.op_type if node.domain in _STANDARD else f"{node.domain}.{node.op_type}"


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Return the values of a node's attributes by name; text is ``str``."""
    return {attribute.name: _attribute_value(attribute) for attribute in node.attribute}


def attribute_of(node: NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of an attribute, or the default where the node lacks it; text is ``str``."""
    return next((_attribute_value(attribute) for attribute in node.attribute if attribute.name == name), default)


def _attribute_value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# Shapes: those that a graph states, and those that ONNX's inference finds.


Shape = tuple[int, ...]


def infer_shapes(model: ModelProto, *, strict: bool = False, propagate: bool = True) -> ModelProto:
    """A copy of a model with the type of every value that ONNX's shape inference finds, in bodies too.

    Args:
        model: The model; not changed.
        strict: Refuse what cannot be inferred, instead of leaving it without a type.
        propagate: Follow the values of shapes, too, so that what they decide is found.

    Raises:
        BrokenModel: Inference refuses the model as a whole.
    """
    try:
        return shape_inference.infer_shapes(model, strict_mode=strict, data_prop=propagate)
    except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BrokenModel(f"shape inference refuses the model: {first}", remedy="check it with onnx.checker") from error


def declared_shape(kind: TypeProto) -> Shape:
    """The dimensions that a tensor's type states, where all are known to be stated: any other one counts as 0."""
    return tuple([dim.dim_value for dim in kind.tensor_type.shape.dim])


def static_shape(kind: TypeProto) -> Shape | None:
    """The shape of a tensor; None where the rank or a dimension is not stated, or it is no tensor."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    stated = all(dim.HasField("dim_value") for dim in kind.tensor_type.shape.dim)
    return declared_shape(kind) if stated else None


def static_shapes(graph: GraphProto) -> dict[str, Shape]:
    """The shapes of all values that a graph states, by name, initializers included."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.output, *graph.input):
        shape = static_shape(value.type)
        if shape is not None:
            shapes[value.name] = shape
    return shapes


_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def may_have_bodies(node: onnx.NodeProto) -> bool:
    """Whether an operator can carry bodies at all: ONNX's control flow, and whatever other domains define."""
    return node.op_type in _CONTROL_FLOW or not is_standard(node)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among a node's attributes, by attribute name."""
    if not may_have_bodies(node):
        return
    for attribute in sorted(
        node.attribute, key=lambda attribute: str(attribute.name)
    ):  # of a damaged file it may be bytes
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


def drop_unread(graph: onnx.GraphProto) -> None:
    """Remove the initializers that no node and no output reads."""
    read = {name for node in graph.node for name in reads(node)} | {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def given_names(graph: onnx.GraphProto) -> set[str]:
    """Names of the inputs and constants of a graph."""
    names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return names | {sparse.values.name for sparse in graph.sparse_initializer}


def own_names(graph: onnx.GraphProto) -> set[str]:
    """Every name that a graph itself defines; any other name that it uses comes from around it."""
    return given_names(graph) | {name for node in graph.node for name in node.output}


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
    return any(inner.op_type in operators for inner in all_nodes([node]))
