"""A network as ONNX Runtime has optimised it, without the changes of layout at its edges.

ONNX Runtime runs convolutions and pooling in a blocked layout. A model changes the layout once around many of them; a
brick does so at each of its edges. The inner network of a brick is what lies between these changes: it reads and
writes blocked values. What the whole takes longer is the time of the layout changes at the edges.

A sum is fused into a convolution where both summands are blocked. In a brick the other summand is an input, and plain;
what a model's neighbour would have handed on is had by a pooling of one element, which does nothing but in the blocked
layout, and is taken off again together with the reorder before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from ....bricks.subgraphs import captures
from ...network.network import Network

__all__ = ["inner_network", "with_blocked_summands"]

Array = npt.NDArray[Any]

_REORDERS = frozenset({"ReorderInput", "ReorderOutput"})
_SUMS = frozenset({"Add", "Sum"})
_IMAGE = 4
"""Dimensions of what can be blocked."""

_BLOCKED = "@blocked:"
"""Prefix of the values that the poolings write."""


def with_blocked_summands(network: Network, optimised: Network) -> Network | None:
    """Put a pooling of one element behind the inputs that are added to what was blocked.

    Args:
        network: A brick.
        optimised: What the runtime makes of it.

    Returns:
        A network that computes the same; None where there is no such input.
    """
    graph = _graph(optimised)
    reordered = {node.output[0] for node in graph.node if node.op_type == "ReorderOutput"}
    plain = [
        value
        for node in graph.node
        if node.op_type in _SUMS and not reordered.isdisjoint(node.input)
        for value in node.input
        if value in optimised.feeds and optimised.feeds[value].ndim == _IMAGE
    ]
    if not plain or any(map(_is_idle, _graph(network).node)):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    for node in model.graph.node:
        node.input[:] = [_BLOCKED + value if value in plain else value for value in node.input]
    for place, value in enumerate(dict.fromkeys(plain)):
        pooling = helper.make_node("MaxPool", [value], [_BLOCKED + value], kernel_shape=[1, 1])
        model.graph.node.insert(place, pooling)
    return replace(network, model=model)


def _is_idle(node: onnx.NodeProto) -> bool:
    """Whether a node is a pooling of one element, which hands on what it reads."""
    given = {attribute.name: list(attribute.ints) for attribute in node.attribute if attribute.ints}
    if node.op_type != "MaxPool" or given.get("kernel_shape") != [1, 1]:
        return False
    return set(given.get("strides", [1])) == {1} and set(given.get("pads", [0])) == {0}


def inner_network(
    network: Network, optimised: Network, compute: Callable[[Network], Mapping[str, Array]]
) -> Network | None:
    """Take the layout changes at the edges of a network off.

    Args:
        network: A brick.
        optimised: What the runtime makes of it.
        compute: Executes a network once and gives its outputs by name; it finds the blocked inputs.

    Returns:
        A network that is fed with blocked values and exposes such; None where there is no layout change to take off,
        or nothing between them, or where a pooling of ``with_blocked_summands`` stays.
    """
    assert network.model is not None  # noqa: S101  # a brick, never a file
    assert optimised.model is not None  # noqa: S101
    graph = optimised.model.graph
    kinds = set(_REORDERS)
    if all(node.op_type != "Transpose" for node in network.model.graph.node):
        kinds.add("Transpose")  # the runtime put it in
    changes = [node for node in graph.node if node.op_type in kinds]
    read = Counter(value for node in graph.node for value in (*node.input, *captures(node)))
    outputs = {value.name for value in graph.output}
    entering = [node for node in changes if node.input[0] in optimised.feeds and node.output[0] not in outputs]
    added = not any(map(_is_idle, _graph(network).node))
    if added:
        behind = {node.output[0] for node in entering}
        entering += [node for node in graph.node if _is_idle(node) and node.input[0] in behind]
    leaving = {
        node.output[0]: node.input[0]
        for node in changes
        if node.output[0] in outputs and not read[node.output[0]] and node.input[0] not in optimised.feeds
    }
    taken = {node.output[0] for node in entering} | set(leaving)
    nodes = [node for node in graph.node if node.output[0] not in taken]
    if not taken or not nodes or (added and any(map(_is_idle, nodes))):
        return None
    feeds = compute(_alone(optimised, entering)) if entering else {}
    return _put_together(optimised, nodes, feeds, leaving)


def _alone(optimised: Network, nodes: Collection[onnx.NodeProto]) -> Network:
    """The network of the layout changes behind the inputs."""
    model = _emptied(optimised)
    read = {node.input[0] for node in nodes}
    for value in _graph(optimised).input:
        if value.name in read & optimised.feeds.keys():
            model.graph.input.append(value)
    model.graph.node.extend(nodes)
    model.graph.output.extend(helper.make_empty_tensor_value_info(node.output[0]) for node in nodes)
    return replace(
        optimised,
        model=model,
        weights={},
        feeds={name: array for name, array in optimised.feeds.items() if name in read},
        outputs=tuple(node.output[0] for node in nodes),
    )


def _put_together(
    optimised: Network,
    nodes: Collection[onnx.NodeProto],
    blocked: Mapping[str, Array],
    leaving: Mapping[str, str],
) -> Network:
    """The inner network: its nodes, fed with blocked values too, and exposing them in place of those that left."""
    source = _graph(optimised)
    model = _emptied(optimised)
    read = {value for node in nodes for value in (*node.input, *captures(node))}
    feeds = {name: array for name, array in {**optimised.feeds, **blocked}.items() if name in read}
    declared = {value.name: value for value in source.input}
    for name, array in feeds.items():
        element = helper.np_dtype_to_tensor_dtype(np.dtype(array.dtype))
        model.graph.input.append(declared.get(name) or helper.make_tensor_value_info(name, element, array.shape))
    for tensor in source.initializer:
        if tensor.name in read:
            model.graph.initializer.append(tensor)
    model.graph.node.extend(nodes)
    exposed: dict[str, onnx.ValueInfoProto] = {}
    for value in source.output:
        inner = leaving.get(value.name)
        if inner is None:
            exposed.setdefault(value.name, value)
        else:
            exposed.setdefault(inner, helper.make_empty_tensor_value_info(inner))
    model.graph.output.extend(exposed.values())
    return replace(
        optimised,
        model=model,
        weights={name: array for name, array in optimised.weights.items() if name in read},
        feeds=feeds,
        outputs=tuple(exposed),
    )


def _graph(network: Network) -> onnx.GraphProto:
    assert network.model is not None  # noqa: S101  # a brick, never a file
    return network.model.graph


def _emptied(network: Network) -> onnx.ModelProto:
    assert network.model is not None  # noqa: S101  # a brick, never a file
    model = onnx.ModelProto(ir_version=network.model.ir_version, opset_import=network.model.opset_import)
    model.graph.name = "inner"
    return model
