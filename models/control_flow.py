"""The course of control flow: the branch of an If, the iterations of a Loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

from ..errors import BrokenModel, UsageError
from .subgraphs import all_graphs, bodies, is_standard

Course = str | int
"""``then`` or ``else`` of an If; the number of iterations of a Loop or Scan."""

BRANCHES = ("then", "else")

OBSERVED = "observed"
"""In place of a course: the course of one execution."""


class How(StrEnum):
    """The source of a control-flow operator's course."""

    RESOLVED = "resolved"
    """The file: condition or number of iterations is constant."""
    GIVEN = "given"
    """The caller."""
    OBSERVED = "observed"
    """One execution with seeded inputs."""
    UNKNOWN = "unknown"
    """Unknown; the operator is one layer."""


@dataclass(frozen=True, slots=True)
class CourseChoice:
    """The course of one operator, or of all of its kind.

    Attributes:
        node: Name of the operator, or of its first output; empty for all operators without another choice.
        course: The course.
        how: Given or observed.
    """

    node: str
    course: Course
    how: How = How.GIVEN


def label_of(node: NodeProto) -> str:
    """Return an operator's name; without one, the name of its first output."""
    return str(node.name or next(filter(None, node.output), ""))


def body_of(node: NodeProto, name: str) -> GraphProto:
    """Return the body of a control-flow operator.

    Raises:
        BrokenModel: The body is missing.
    """
    for attribute in node.attribute:
        if attribute.name == name and attribute.type == AttributeProto.GRAPH:
            body: GraphProto = attribute.g
            return body
    raise BrokenModel(f"{node.op_type} '{label_of(node)}' has no {name}")


def chosen(choices: Sequence[CourseChoice], label: str, *, branch: bool) -> CourseChoice | None:
    """Return the choice for an operator: given before observed, then named before general, then the first.

    Args:
        choices: All choices of a model.
        label: The operator's label.
        branch: True for an If; else the operator iterates.
    """
    fitting = [choice for choice in choices if choice.node in {label, ""} and isinstance(choice.course, str) == branch]
    return min(fitting, key=lambda choice: (choice.how is How.OBSERVED, not choice.node), default=None)


def read_choices(branches: Iterable[str], trips: Iterable[str]) -> tuple[tuple[CourseChoice, ...], bool]:
    """Read courses from command-line texts.

    Args:
        branches: ``then``, ``NODE=else`` or ``observed``.
        trips: ``12``, ``NODE=12`` or ``observed``.

    Returns:
        The choices, and True if other courses are to be observed.

    Raises:
        UsageError: A text is not a course.

    Example:
        >>> read_choices(["speech=then"], ["3"])[0][0].course
        'then'
    """
    choices: list[CourseChoice] = []
    observe = False
    for option, texts in (("--branch", branches), ("--trip", trips)):
        for text in texts:
            node, _, word = text.rpartition("=")
            if word == OBSERVED and not node:
                observe = True
            elif option == "--branch" and word in BRANCHES:
                choices.append(CourseChoice(node, word))
            elif option == "--trip" and word.isdecimal() and len(word) <= len(str(1 << 31)):
                choices.append(CourseChoice(node, int(word)))
            else:
                forms = "then, else, NODE=then" if option == "--branch" else "12, NODE=12"
                raise UsageError(f"{option} {text}: no course of control flow", remedy=f"write {forms} or {OBSERVED}")
    return tuple(choices), observe


# Control flow that takes a given course for any inputs.
#
# The operators and their cost stay. Their condition is computed as before and then overruled by one operator on one
# truth value: ``c == c`` or ``c xor c``. Runtimes do not fold these.


def force(model: ModelProto, choices: Sequence[CourseChoice]) -> None:
    """Let control flow take the chosen courses, in place.

    Args:
        model: The model in normal form, with its weights.
        choices: The courses.
    """
    names = {name for graph in all_graphs(model.graph) for node in graph.node for name in node.output}
    _force(model.graph, choices, names)


def _force(graph: GraphProto, choices: Sequence[CourseChoice], names: set[str]) -> None:
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
    """Change an operator so that it takes a course; return the nodes to insert before it."""
    if isinstance(course, str):
        value = _fresh(f"{label_of(node)}/{course}", names)
        condition = helper.make_node("Equal" if course == "then" else "Xor", [node.input[0]] * 2, [value])
        node.input[0] = value
        return [condition]
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
