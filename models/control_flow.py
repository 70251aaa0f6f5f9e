"""The course of control flow: the branch of an If, the iterations of a Loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..errors import BrokenModel, UnsupportedModel, UsageError
from .subgraphs import all_graphs, bodies, constant_tensors, is_standard

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


def unknown_course(op_type: str) -> str:
    """Return why the course of an If or Loop is not known, and the option that states it."""
    what, option = ("condition", "--branch") if op_type == "If" else ("number of iterations", "--trip")
    return f"its {what} is not constant; state it with {option}, or see what one execution takes: {option} {OBSERVED}"


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


# Loops whose iterations the file fixes, and a bound on their work before anything executes them.


_LOOP_INPUTS = 2
"""Inputs of a Loop before the carried values."""

_MOST_EXECUTED = 500_000_000
"""Operators in one execution. ONNX Runtime takes 0.3 us for the least one in a body: 150 s, and workers get 120."""

_LEAST_S = 3e-7
"""Seconds of one operator."""


def fixed_trips(node: NodeProto, scalar: Callable[[str], int | None]) -> int | None:
    """Return the iterations of a Loop with a constant count and no early end; None if they are not fixed.

    Args:
        node: The Loop.
        scalar: Returns a constant of one element by name; None if unknown.

    Raises:
        BrokenModel: The body is missing.
    """
    if len(node.input) < _LOOP_INPUTS or not node.input[0]:
        return None
    trips, begun = scalar(node.input[0]), _begun(node, scalar)
    if begun == 0:
        return 0
    return max(0, trips) if trips is not None and begun and _goes_on(node, scalar) else None


def _begun(node: NodeProto, scalar: Callable[[str], int | None]) -> int | None:
    return scalar(node.input[1]) if node.input[1] else 1


def _goes_on(node: NodeProto, scalar: Callable[[str], int | None]) -> bool:
    """Return True if each iteration of a Loop is sure to leave its condition true."""
    body = body_of(node, "body")
    if len(body.input) < _LOOP_INPUTS or not body.output:
        return False
    producers = {name: inner for inner in body.node for name in inner.output}
    name = body.output[0].name
    for _ in range(len(body.node)):
        if name in producers and producers[name].op_type == "Identity" and producers[name].input:
            name = producers[name].input[0]
    if name == body.input[1].name:
        return True
    inside = constant_tensors(body)
    return bool(_number(inside[name]) if name in inside else scalar(name) if name not in producers else None)


def _number(tensor: TensorProto) -> int | None:
    """Return the integer or truth value in a tensor of one element; None for another tensor."""
    external = tensor.data_location == TensorProto.EXTERNAL
    if external or tensor.data_type not in _WHOLE or math.prod(tensor.dims) != 1:
        return None
    try:
        return int(numpy_helper.to_array(tensor).item())
    except (ValueError, TypeError):
        return None  # broken; reported where its values are used


_WHOLE = frozenset({TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64})


def require_bounded(graph: GraphProto, given: Mapping[str, int]) -> None:
    """Refuse a model if a loop cannot end within the limits of a worker, before it begins.

    Args:
        graph: The model's graph.
        given: Known values of its inputs of one element.

    Raises:
        UnsupportedModel: The fixed iterations of a Loop, with those in its body, execute too many operators, or it has
            no end.
        BrokenModel: A body is missing.
    """
    for node, count in _executions(graph, given):
        if count == math.inf:
            raise UnsupportedModel(
                f"Loop '{label_of(node)}' never ends: it has no number of iterations, and its condition stays true",
                remedy="give it one",
            )
        if count > _MOST_EXECUTED:
            raise UnsupportedModel(
                f"Loop '{label_of(node)}' executes {count:.0e} operators with the iterations in its body, which takes "
                f"about {_duration(count)}",
                remedy="give it fewer iterations",
            )


def _executions(graph: GraphProto, outer: Mapping[str, int]) -> Iterator[tuple[NodeProto, float]]:
    """Yield each Loop of a graph with the least number of operators that it executes; infinite for one without end."""
    loops = [node for node in graph.node if node.op_type == "Loop" and is_standard(node)]
    if not loops:
        return
    tensors = constant_tensors(graph)
    known = {**outer, **{name: value for name in tensors if (value := _number(tensors[name])) is not None}}
    for node in loops:
        endless = len(node.input) >= _LOOP_INPUTS and not node.input[0] and _begun(node, known.get)
        if endless and _goes_on(node, known.get):
            yield node, math.inf
        else:
            trips = fixed_trips(node, known.get)
            yield node, trips * _least(body_of(node, "body"), known) if trips else 0


def _least(graph: GraphProto, outer: Mapping[str, int]) -> float:
    """Return the least number of operators that one execution of a graph takes: branches of an If count nothing."""
    return len(graph.node) + sum(count for _, count in _executions(graph, outer))


def _duration(operators: float) -> str:
    seconds = operators * _LEAST_S
    for unit, length in (("years", 3.2e7), ("days", 86400), ("hours", 3600)):
        if seconds > 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 60:.0f} minutes"


# Control flow that takes a given course for any inputs.
#
# The operators and their cost stay. Their condition is computed as before and then overruled by one operator on one
# truth value: ``c == c`` or ``c xor c``. Runtimes do not fold these.


def force(model: ModelProto, choices: Sequence[CourseChoice]) -> None:
    """Let control flow take the chosen courses, in place."""
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
