"""Products of one input as one product, and branches that are always taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from ...bricks.operators import PRODUCTS
from ...models.subgraphs import attribute_of, may_have_bodies, rename
from .recording import Values, late
from .rewrite import Draft, Rewrite

_GAIN_SIDE_BY_SIDE = 0.15
"""Predicted share that is saved."""


def repetition(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of repeated work."""
    rewrites = list[Rewrite]()
    for search in (_branches, _side_by_side):
        proposed: list[Rewrite] = values.attempt(list, search(values)) or []
        for rewrite in proposed:
            if late(deadline):
                return rewrites
            rewrites.append(rewrite)
    return rewrites


def _constant_inputs(values: Values, node: onnx.NodeProto) -> bool:
    return all(not name or name in values.graph.constants for name in node.input[1:])


# Products with one input: one product with the weights side by side.


def _side_by_side(values: Values) -> Iterator[Rewrite]:
    graph = values.graph
    groups = defaultdict[tuple[object, ...], list[int]](list)
    for index, node in enumerate(graph.nodes):
        if node.op_type not in PRODUCTS | {"Conv"} or len(node.input) < 2 or not _constant_inputs(values, node):
            continue
        attributes = graph.attributes[index]
        weight = graph.constants[node.input[1]]
        if values.is_constant(node.input[0]) or attributes.get("group", 1) != 1:
            continue
        if weight.ndim != 2 and node.op_type != "Conv":
            continue
        depth = weight.shape[1:] if node.op_type == "Conv" or attributes.get("transB") else weight.shape[:1]
        key = node.op_type, node.input[0], depth, len(node.input), repr(sorted(attributes.items())), weight.dtype
        groups[key].append(index)
    for indices in groups.values():
        if len(indices) > 1 and (rewrite := _joined(values, indices)):
            yield rewrite


def _joined(values: Values, indices: Sequence[int]) -> Rewrite | None:
    graph = values.graph
    nodes = [graph.nodes[index] for index in indices]
    first, attributes = nodes[0], graph.attributes[indices[0]]
    axis = 0 if first.op_type == "Conv" or attributes.get("transB") else 1
    weights = [graph.constants[node.input[1]] for node in nodes]
    draft = Draft(graph)
    inputs = [first.input[0], draft.constant(np.concatenate(weights, axis))]
    if len(first.input) > 2 and first.input[2]:
        biases = [graph.constants[node.input[2]] for node in nodes]
        if any(bias.shape != (weight.shape[axis],) for bias, weight in zip(biases, weights, strict=True)):
            return None
        inputs.append(draft.constant(np.concatenate(biases)))
    product = draft.op(first.op_type, *inputs, **attributes)
    along = 1 if first.op_type == "Conv" else len(values.shapes[first.output[0]]) - 1
    outputs = [node.output[0] for node in nodes]
    sizes = [weight.shape[axis] for weight in weights]
    if graph.opset >= 13:
        draft.ops("Split", (product, draft.constant(sizes, np.int64)), outputs, axis=along)
    else:
        draft.ops("Split", (product,), outputs, axis=along, split=sizes)
    saving_ns = _GAIN_SIDE_BY_SIDE * values.cost_of(indices)
    return draft.rewrite(
        "repetition: products of one input", outputs, graph.names(indices), saving_ns, f"{len(nodes)} of one input"
    )


# Branches that are always taken.


def _branches(values: Values) -> Iterator[Rewrite]:
    graph = values.graph
    for index, node in enumerate(graph.nodes):
        condition = values.constant(node.input[0]) if node.op_type == "If" else None
        if condition is None:
            continue
        body = attribute_of(node, "then_branch" if condition.reshape(-1)[0] else "else_branch")
        if any(map(may_have_bodies, body.node)):
            continue
        draft = Draft(graph)
        names = {tensor.name: draft.constant(numpy_helper.to_array(tensor)) for tensor in body.initializer}
        for inner in body.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(inner)
            copy.name = graph.fresh("branch")
            names |= {name: graph.fresh("branch") for name in inner.output if name}
            rename(copy, names)
            draft.nodes.append(copy)
        outputs = [
            (names.get(value.name, value.name), name) for value, name in zip(body.output, node.output, strict=True)
        ]
        done = [draft.op("Identity", name, to=output) for name, output in outputs if output]
        yield draft.rewrite("repetition: only branch", done, [node.name], values.costs[index])
