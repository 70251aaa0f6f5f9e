"""Sums that ONNX Runtime fuses into a convolution where both summands are in its blocked layout.

In a brick the other summand is an input, and plain: the sum then runs by itself. What a model's neighbour would have
handed on is had by a pooling of one element behind that input, which does nothing but in the blocked layout. Its time
and that of the reorder before it are those of a layout change at the brick's edge.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import onnx
from onnx import helper

from ...network.network import Network
from .optimiser import FROM_BLOCKED

__all__ = ["is_idle_pooling", "with_blocked_summands"]

_SUMS = frozenset({"Add", "Sum"})
_IMAGE = 4
"""Dimensions of what can be blocked."""

_BLOCKED = "@blocked:"
"""Prefix of the values that the poolings write."""


def with_blocked_summands(network: Network, optimised: Network) -> Network | None:
    """Put a pooling of one element behind the inputs that are added to what was blocked.

    Args:
        network: A brick, or several that share nothing.
        optimised: What the runtime makes of it.

    Returns:
        A network that computes the same; None where there is no such input.
    """
    if network.model is None or optimised.model is None or any(map(is_idle_pooling, network.model.graph.node)):
        return None
    graph = optimised.model.graph
    reordered = {node.output[0] for node in graph.node if node.op_type == FROM_BLOCKED}
    plain = [
        value
        for node in graph.node
        if node.op_type in _SUMS and not reordered.isdisjoint(node.input)
        for value in node.input
        if value in optimised.feeds and optimised.feeds[value].ndim == _IMAGE
    ]
    if not plain:
        return None
    model = deepcopy(network.model)
    for node in model.graph.node:
        if node.op_type in _SUMS:
            node.input[:] = [_BLOCKED + value if value in plain else value for value in node.input]
    for place, value in enumerate(dict.fromkeys(plain)):
        pooling = helper.make_node("MaxPool", [value], [_BLOCKED + value], kernel_shape=[1, 1])
        model.graph.node.insert(place, pooling)
    return replace(network, model=model)


def is_idle_pooling(node: onnx.NodeProto) -> bool:
    """Whether a node is a pooling of one element, which hands on what it reads."""
    given = {attribute.name: list(attribute.ints) for attribute in node.attribute if attribute.ints}
    if node.op_type != "MaxPool" or given.get("kernel_shape") != [1, 1]:
        return False
    return set(given.get("strides", [1])) == {1} and set(given.get("pads", [0])) == {0}
