"""Control flow written out: If, Loop and Scan whose course is known stand for the operators that they execute.

The course comes from the file where that fixes it, as a condition that only depends on shapes does; else from what the
caller said or observed (``models.control.choices``). An operator of unknown course stays one layer. One that iterates a
fixed number of times and can be a brick as it stands does so too: that is measured exactly, and nothing is gained by
parts; a course that was said or observed writes it out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import onnx
from onnx import NodeProto

from ...models.control import Course, CourseChoice, How, body_of, chosen, label_of
from ...models.skeleton import Skeleton
from ...models.subgraphs import all_nodes, captures, is_standard
from ..constants import element_number, tensor_array
from ..inference.shapes import Inference, infer_types
from .expansion import Carried, Expansion, ExpansionStep

# How large control flow becomes where it is written out, which is asked before it is done.


_LOOP_INPUTS = 2
"""Inputs of a Loop before those that it carries."""

_AROUND_BYTES = 128
"""The most of an operator that slices or stacks and of its constant, beside names that the file gives."""


def size_of(node: NodeProto, course: Course) -> tuple[int, int]:
    """The most operators that an operator becomes, those in bodies in its body counted once each; and their bytes.

    Each iteration slices what a Scan reads, and gives what is stacked an axis more.
    """
    if isinstance(course, str):
        body, times, around = body_of(node, f"{course}_branch"), 1, 0
    else:
        body, times = body_of(node, "body"), course
        scanned = _scanned(node)
        stacked = node.output[max(0, len(node.input) - (scanned if node.op_type == "Scan" else _LOOP_INPUTS)) :]
        around = max(0, scanned) + sum(1 for name in stacked if name)
    layers = times * (1 + around + sum(1 for _ in all_nodes(body.node))) + len(node.output)
    longest = max(len(name) for name in (node.name, *node.input, *node.output))
    return layers, times * int(body.ByteSize()) + layers * (_AROUND_BYTES + 4 * longest)


def _scanned(node: NodeProto) -> int:
    """How many inputs an operator reads a slice of in each iteration."""
    return int(next((attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs"), 0))


_OPERATORS = frozenset({"If", "Loop", "Scan"})

_MOST_LAYERS = 20_000
"""Operators that a model may become: beyond it nobody wants to wait, and a file may ask for any number."""

_MOST_BYTES = 256 << 20
"""Likewise, of bodies with large attributes."""

_MOST_ROUNDS = 100
"""Bodies in bodies, each round one level."""


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """One control-flow operator of a model, and what became of it.

    Attributes:
        name: Its name in the file, or that of its first output.
        op_type: If, Loop or Scan.
        how: Where its course is known from: ``resolved``, ``given``, ``observed`` or ``unknown``.
        course: ``then``, ``else`` or the number of iterations; empty where it is not known.
        times: How often it is executed.
        layers: Operators that it became, all executions together; 0 where it stays one layer.
        reason: Why it stays one layer; or why its own cost, beyond its bodies, is not part of the model.
    """

    name: str
    op_type: str
    how: str
    course: str
    times: int = 1
    layers: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenOut:
    """A model without the control flow whose course is known.

    Attributes:
        model: The model.
        control: What became of each operator of control flow that it executes.
        rounds: What was done, to be done to the same model with its weights (``Expansion.apply``).
    """

    model: onnx.ModelProto
    control: tuple[ControlFlow, ...] = ()
    rounds: tuple[tuple[ExpansionStep, ...], ...] = ()


def write_out(skeleton: Skeleton) -> WrittenOut:
    """Write out the control flow of a model whose course is known; its skeleton stays as it is.

    Args:
        skeleton: The model, with what was said of its control flow.

    Raises:
        BrokenModel: An operator has no body, or shape inference refuses the model.
    """
    if skeleton.control is None or not any(_is_control(node) for node in skeleton.model.graph.node):
        return WrittenOut(skeleton.model)
    contested: frozenset[_Operator] = frozenset()
    while True:
        written = _written_out(skeleton, contested)
        if not (more := _contested(written.control)):
            return written
        contested |= more


_Operator = tuple[str, bool]
"""What a given course holds for, in all its executions: the operators of a name, and whether these are Ifs."""


def _contested(control: Iterable[ControlFlow]) -> frozenset[_Operator]:
    """Operators with a given course that the file has take another one in other executions."""
    given = {_operator(flow): flow.course for flow in control if flow.how == How.GIVEN and flow.layers}
    return frozenset(
        operator
        for flow in control
        if flow.how == How.RESOLVED and given.get(operator := _operator(flow), flow.course) != flow.course
    )


def _operator(flow: ControlFlow) -> _Operator:
    return flow.name, flow.op_type == "If"


def _written_out(skeleton: Skeleton, contested: Collection[_Operator]) -> WrittenOut:
    model = onnx.ModelProto()
    model.CopyFrom(skeleton.model)
    expansion = Expansion(model)
    labels: dict[str, str] = {}
    bare: set[str] = set()
    done: list[ControlFlow] = []
    refused: dict[str, str] = {}
    rounds: list[tuple[ExpansionStep, ...]] = []
    while True:
        decisions = _Decisions(model, skeleton, labels, refused, bare, contested=contested)
        if not decisions.steps or len(rounds) == _MOST_ROUNDS:
            why = f"control flow is nested more than {_MOST_ROUNDS} deep"
            left = [*decisions.left, *(replace(flow, reason=why) for flow in decisions.known.values())]
            return WrittenOut(model, _merged([*done, *left]), tuple(rounds))
        found = expansion.apply(decisions.steps)
        if succeeded := tuple(step for step in decisions.steps if not found[step.output].problem):
            rounds.append(succeeded)
        for step in decisions.steps:
            expanded = found[step.output]
            if expanded.problem:
                refused[step.output] = expanded.problem
                continue
            labels.update(expanded.inner)
            bare.add(expanded.bare)
            done.append(replace(decisions.known[step.output], layers=expanded.layers))


def given_courses(control: Iterable[ControlFlow]) -> list[CourseChoice]:
    """The courses that hold because the caller said so: the model itself may take others."""
    return [
        CourseChoice(flow.name, flow.course if flow.op_type == "If" else int(flow.course))
        for flow in control
        if flow.how == How.GIVEN and flow.layers
    ]


def _is_control(node: onnx.NodeProto) -> bool:
    return node.op_type in _OPERATORS and is_standard(node) and any(node.output)


class _Decisions:
    """What is to be done to the control flow of a model's own graph as it stands.

    Attributes:
        steps: What to write out.
        known: What is said of these, by first output.
        left: The others.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        skeleton: Skeleton,
        labels: Mapping[str, str],
        refused: Mapping[str, str],
        idle: Collection[str],
        *,
        contested: Collection[_Operator],
    ) -> None:
        self._inference: Inference = infer_types(model)
        self._choices = skeleton.control or ()
        self._contested = contested
        self.known: dict[str, ControlFlow] = {}
        self.left: list[ControlFlow] = []
        steps: list[ExpansionStep] = []
        self._layers = len(model.graph.node)
        self._bytes = 0
        for index, node in enumerate(model.graph.node):
            if not _is_control(node) or index in self._inference.constants.folded:
                continue
            output = next(filter(None, node.output))
            if output in idle:
                continue
            flow, course = self._decide(node, labels.get(output) or label_of(node))
            why = refused.get(output, "")
            if course is not None and not why:
                why = self._too_large(node, course)
            if course is None or why:
                self.left.append(replace(flow, reason=why or flow.reason))
                continue
            bare = self._carried(node) if flow.how is not How.RESOLVED or node.op_type != "If" else None
            executed = flow.how is not How.RESOLVED or node.op_type != "If"
            unmeasured = executed and bare is None
            reason = "what it takes beyond its body is not measured: it reads constants alone" if unmeasured else ""
            self.known[output] = replace(flow, reason=reason)
            steps.append(ExpansionStep(output, course, bare))
        self.steps = tuple(steps)

    def _too_large(self, node: onnx.NodeProto, course: Course) -> str:
        """Why an operator is not written out beside the others; empty where it can be, and is then counted."""
        layers, size = size_of(node, course)
        if self._layers + layers > _MOST_LAYERS:
            return f"written out it would be more than {_MOST_LAYERS} layers"
        if self._bytes + size > _MOST_BYTES:
            return f"written out it would take more than {_MOST_BYTES >> 20} MiB"
        self._layers += layers
        self._bytes += size
        return ""

    def _decide(self, node: onnx.NodeProto, label: str) -> tuple[ControlFlow, Course | None]:
        """What is known of an operator, and the course to write it out along; None where it stays one layer."""
        branch = node.op_type == "If"
        fixed = self._fixed(node)
        choice = chosen(self._choices, label, branch=branch)
        if fixed is not None:
            flow = ControlFlow(label, node.op_type, How.RESOLVED, _spelled(fixed))
            if branch or choice is not None or not self._stands_alone(node):
                return flow, fixed
            return replace(flow, reason="measured whole: it is a brick as it stands"), None
        if choice is not None and (label, branch) in self._contested:
            why = f"the file has some of its executions take another course than {choice.course}, which would force all"
            return ControlFlow(label, node.op_type, How.UNKNOWN, "", reason=why), None
        if choice is not None:
            return ControlFlow(label, node.op_type, choice.how, _spelled(choice.course)), choice.course
        option = "--branch" if branch else "--trip"
        why = f"its {'condition' if branch else 'number of iterations'} is not constant; {option} says it"
        if node.op_type == "Scan":
            why = "the shape that it scans is not known"
        return ControlFlow(label, node.op_type, How.UNKNOWN, "", reason=why), None

    def _fixed(self, node: onnx.NodeProto) -> Course | None:
        """The course that the file fixes."""
        if node.op_type == "If":
            taken = self._scalar(node.input[0] if node.input else "")
            return None if taken is None else "then" if taken else "else"
        if node.op_type == "Loop":
            return self._fixed_trips(node)
        scanned = _scanned(node)
        if not 0 < scanned <= len(node.input):
            return None
        axes = next((list(attribute.ints) for attribute in node.attribute if attribute.name == "scan_input_axes"), [0])
        kind = self._inference.types.get(node.input[len(node.input) - scanned])
        if kind is None or not axes or not -len(kind.shape) <= axes[0] < len(kind.shape):
            return None
        return kind.shape[axes[0]]

    def _fixed_trips(self, node: onnx.NodeProto) -> int | None:
        """Iterations of a Loop that counts to a constant and never ends before."""
        if len(node.input) < 2 or not node.input[0]:
            return None
        trips = self._scalar(node.input[0])
        begun = self._scalar(node.input[1]) if node.input[1] else 1
        if begun == 0:
            return 0
        body = body_of(node, "body")
        if trips is None or begun is None or len(body.input) < 2 or not body.output:
            return None
        made = {name: inner for inner in body.node for name in inner.output}
        known = {tensor.name: tensor for tensor in body.initializer}
        name = body.output[0].name
        for _ in range(len(body.node)):
            if name in made and made[name].op_type == "Identity" and made[name].input:
                name = made[name].input[0]
        if name == body.input[1].name:
            return max(0, trips)
        constant = known.get(name)
        if name in made and made[name].op_type == "Constant":
            constant = next((attribute.t for attribute in made[name].attribute if attribute.name == "value"), None)
        if constant is not None:
            array = tensor_array(constant)
            return max(0, trips) if array.size == 1 and bool(array.item()) else None
        outer = self._scalar(name) if name not in made and name not in known else None
        return max(0, trips) if outer else None

    def _scalar(self, name: str) -> int | None:
        """A constant of one element; None where it is not known."""
        array = self._inference.constants.array(name) if self._inference.constants.known(name) else None
        return int(array.item()) if array is not None and array.size == 1 and array.dtype.kind in "biu" else None

    def _stands_alone(self, node: onnx.NodeProto) -> bool:
        """Whether an operator can leave its model as it stands."""
        inference = self._inference
        if any(not inference.constants.known(name) for name in captures(node)):
            return False
        return all(name in inference.types for name in (*node.input, *node.output) if name)

    def _carried(self, node: onnx.NodeProto) -> Carried | None:
        """What the bare operator reads: the condition; or the smallest value that is computed."""
        inference = self._inference
        names = node.input[:1] if node.op_type == "If" else (*node.input, *captures(node))
        found = [
            (kind.elements, place, name)
            for place, name in enumerate(names)
            if name not in inference.constants and (kind := inference.types.get(name)) is not None
        ]
        if not found:
            return None
        _, _, name = min(found)
        kind = inference.types[name]
        return Carried(name, element_number(kind.dtype), kind.shape)


def _spelled(course: Course) -> str:
    return course if isinstance(course, str) else str(course)


def _merged(flows: list[ControlFlow]) -> tuple[ControlFlow, ...]:
    """One entry for all executions of an operator that took the same course."""
    merged: dict[tuple[str, ...], ControlFlow] = {}
    for flow in flows:
        key = (flow.name, flow.op_type, flow.how, flow.course, flow.reason)
        known = merged.get(key)
        merged[key] = (
            flow if known is None else replace(known, times=known.times + 1, layers=known.layers + flow.layers)
        )
    return tuple(merged.values())
