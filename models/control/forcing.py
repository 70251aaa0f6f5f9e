"""Control flow that takes a given course, whatever the inputs are.

The operators stay, and so does what they cost; what decides them is computed as before and then overruled, by one
operator on one truth value: ``c == c`` or ``c xor c``. No runtime knows beforehand what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from ..names import is_standard
from ..subgraphs import all_graphs, bodies
from .choices import Choice, Course, body_of, chosen, label_of

__all__ = ["force"]


def force(model: ModelProto, choices: Sequence[Choice]) -> None:
    """Let control flow take the courses that were chosen, in place.

    Args:
        model: In normal form, with its weights.
        choices: The courses.
    """
    names = {name for graph in all_graphs(model.graph) for node in graph.node for name in node.output}
    _force(model.graph, choices, names)


def _force(graph: GraphProto, choices: Sequence[Choice], names: set[str]) -> None:
    nodes: list[NodeProto] = []
    for node in graph.node:
        for body in bodies(node):
            _force(body, choices, names)
        choice = None
        if is_standard(node) and node.op_type in {"If", "Loop"}:
            choice = chosen(choices, label_of(node), branch=node.op_type == "If")
        if choice is not None:
            nodes += _overruled(graph, node, choice.course, names)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _overruled(graph: GraphProto, node: NodeProto, course: Course, names: set[str]) -> list[NodeProto]:
    """What stands before an operator so that it takes a course; the operator is changed in place."""
    if isinstance(course, str):
        value = _fresh(f"{label_of(node)}/{course}", names)
        made = helper.make_node("Equal" if course == "then" else "Xor", [node.input[0]] * 2, [value])
        node.input[0] = value
        return [made]
    trips = numpy_helper.from_array(np.array(course, np.int64), _fresh(f"{label_of(node)}/trips", names))
    graph.initializer.append(trips)
    node.input[0], node.input[1] = trips.name, ""
    body = body_of(node, "body")
    goes_on = body.output[0]
    value = _fresh(f"{label_of(node)}/goes_on", names)
    body.node.append(helper.make_node("Equal", [goes_on.name] * 2, [value]))
    goes_on.name = value
    return []


def _fresh(name: str, names: set[str]) -> str:
    while name in names:
        name += "#"
    names.add(name)
    return name
