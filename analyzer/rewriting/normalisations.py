"""Local response normalisations without powers, and additions that a fused normalisation makes slower."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .recording import Values, late
from .rewrite import Draft, Rewrite

_ROOTS = (0.5, 0.75)
_LRN_NS = 15.0
"""Predicted saving by element."""


def normalisations(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of normalisations."""
    rewrites = list[Rewrite]()
    for index, node in enumerate(values.graph.nodes):
        if late(deadline):
            break
        if node.op_type == "LRN":
            rewrites += values.attempt(list, _local_response(values, index)) or []
        if node.op_type == "LayerNormalization":
            rewrites += values.attempt(list, _kept_apart(values, index)) or []
    return rewrites


def _kept_apart(values: Values, index: int) -> Iterator[Rewrite]:
    """Write an addition before a LayerNormalization as Sum.

    ONNX Runtime fuses Add with it into SkipLayerNormalization, which is slower than both on CPUs.
    """
    graph = values.graph
    node, x = graph.maker(graph.nodes[index].input[0]), graph.nodes[index].input[0]
    if node is None or node.op_type != "Add" or len(values.computed(node)) != 2:
        return
    if any(values.shapes.get(name) != values.shapes[x] for name in node.input):
        return
    draft = Draft(graph)
    draft.op("Sum", *node.input, to=x)
    saving_ns = float(np.prod(values.shapes[x]))
    yield draft.rewrite("normalisations: addition kept apart", [x], [node.name], saving_ns)


def _local_response(values: Values, index: int) -> Iterator[Rewrite]:
    """Rewrite LRN: its power becomes square roots, and its sum over channels a convolution with banded weights."""
    graph, node, attributes = values.graph, values.graph.nodes[index], values.graph.attributes[index]
    shape, size = values.shapes.get(node.input[0]), int(attributes.get("size", 0))
    alpha, beta, bias = (float(attributes.get(name, number)) for name, number in
                         (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))  # fmt: skip
    if shape is None or len(shape) != 4 or size % 2 == 0 or beta not in _ROOTS:
        return
    channels, x = shape[1], node.input[0]
    distance = np.abs(np.subtract.outer(np.arange(channels), np.arange(channels)))
    band = np.where(distance <= size // 2, alpha / size, 0.0).reshape(channels, channels, 1, 1)
    draft = Draft(graph)
    weights = (draft.constant(band, np.float32), draft.constant(np.full(channels, bias), np.float32))
    root = draft.op("Sqrt", draft.op("Conv", draft.op("Mul", x, x), *weights, kernel_shape=[1, 1]))
    if beta == _ROOTS[1]:
        root = draft.op("Mul", root, draft.op("Sqrt", root))
    draft.op("Div", x, root, to=node.output[0])
    yield draft.rewrite("normalisations: local response", node.output, [node.name], _LRN_NS * float(np.prod(shape)))
