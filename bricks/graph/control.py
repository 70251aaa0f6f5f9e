"""Expansion of control flow: If, Loop and Scan of known course are replaced by the operators that they execute.

The file fixes some courses, such as conditions that depend only on shapes. The caller states or observes others
(``models.control_flow.read_choices``). An operator of unknown course stays one layer. So does an operator with a fixed
number of iterations that can be a brick: its measurement is exact. A stated or observed course always expands it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import onnx
from onnx import NodeProto

from ...models.control_flow import Course, CourseChoice, How, body_of, chosen, fixed_trips, label_of, unknown_course
from ...models.skeleton import Skeleton
from ...models.subgraphs import all_nodes, bodies, captures, is_standard
from ..encoding import element_number
from ..inference.shapes import Inference, infer_types
from .expansion import Expansion, ExpansionStep

# The size of control flow after expansion, checked in advance.


_LOOP_INPUTS = 2
"""Inputs of a Loop before the carried values."""

_AROUND_BYTES = 128
"""Upper bound on the bytes of an operator that slices or stacks, with its constant, without names from the file."""


def size_of(node: NodeProto, course: Course) -> tuple[int, int, int]:
    """Return upper bounds on the operators that an operator expands to, on their bytes, and on their bodies.

    Operators in nested bodies count once each. Every iteration slices the inputs of a Scan and adds an axis to values
    that are stacked.
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
    inner_bodies = sum(1 for inner in all_nodes(body.node) for _ in bodies(inner))
    return layers, times * int(body.ByteSize()) + layers * (_AROUND_BYTES + 4 * longest), times * inner_bodies


def _scanned(node: NodeProto) -> int:
    """Return the number of inputs that an operator slices in each iteration."""
    return int(next((attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs"), 0))


_MOST_LAYERS = 20_000
"""Maximum number of operators after expansion; files may request any number."""

_MOST_BYTES = 256 << 20
"""Maximum bytes after expansion, for bodies with large attributes."""

_MOST_SEEN = 20_000_000
"""Maximum product of operators and bodies after expansion: inference copies the names that each body sees, in each
round."""

_MOST_ROUNDS = 100
"""Maximum nesting of bodies; one round expands one level."""


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """A control-flow operator of a model, and its expansion.

    Attributes:
        name: Its name in the file, or the name of its first output.
        op_type: If, Loop or Scan.
        how: The source of its course: ``resolved``, ``given``, ``observed`` or ``unknown``.
        course: ``then``, ``else`` or the number of iterations; empty if unknown.
        times: The number of its executions.
        layers: Operators after expansion, over all executions; 0 if it stays one layer.
        reason: Why it stays one layer; or why its cost beyond its bodies is not part of the model.
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
    """A model after expansion of control flow of known course.

    Attributes:
        model: The model.
        control: The expansion of each executed control-flow operator.
        rounds: The steps, to repeat on the same model with its weights (``Expansion.apply``).
    """

    model: onnx.ModelProto
    control: tuple[ControlFlow, ...] = ()
    rounds: tuple[tuple[ExpansionStep, ...], ...] = ()


def write_out(skeleton: Skeleton) -> WrittenOut:
    """Expand the control flow of known course in a model; its skeleton is not changed.

    Args:
        skeleton: The model, with the stated courses of its control flow.

    Raises:
        BrokenModel: An operator lacks its body, or shape inference refuses the model.
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
"""Identity of a given course: a name, and True for Ifs. The course applies to all executions."""


def _contested(control: Iterable[ControlFlow]) -> frozenset[_Operator]:
    """Return operators with a given course, if the file fixes another course for other executions."""
    courses_by_operator = {_operator(flow): flow.course for flow in control if flow.how == How.GIVEN and flow.layers}
    return frozenset(
        operator
        for flow in control
        if flow.how == How.RESOLVED and courses_by_operator.get(operator := _operator(flow), flow.course) != flow.course
    )


def _operator(flow: ControlFlow) -> _Operator:
    return flow.name, flow.op_type == "If"


def _written_out(skeleton: Skeleton, contested: Collection[_Operator]) -> WrittenOut:
    model = onnx.ModelProto()
    model.CopyFrom(skeleton.model)
    expansion = Expansion(model)
    labels: dict[str, str | None] = {}  # by first output; None for bare operators, which stay
    done: list[ControlFlow] = []
    refused: dict[str, str] = {}
    rounds: list[tuple[ExpansionStep, ...]] = []
    while True:
        decisions = _Decisions(model, skeleton, labels, refused, contested)
        if not decisions.steps or len(rounds) == _MOST_ROUNDS:
            why = f"control flow is nested more than {_MOST_ROUNDS} deep"
            remaining_flows = [*decisions.left, *(replace(flow, reason=why) for flow in decisions.known.values())]
            return WrittenOut(model, _merged([*done, *remaining_flows]), tuple(rounds))
        results = expansion.apply(decisions.steps)
        if succeeded := tuple(step for step in decisions.steps if not isinstance(results[step[0]], str)):
            rounds.append(succeeded)
        for output, *_ in decisions.steps:
            expanded = results[output]
            if isinstance(expanded, str):
                refused[output] = expanded
                continue
            labels.update(expanded.inner)
            labels[expanded.bare] = None
            done.append(replace(decisions.known[output], layers=len(expanded.nodes)))


def given_courses(control: Iterable[ControlFlow]) -> list[CourseChoice]:
    """Return the courses that the caller stated: the model itself may take others."""
    return [
        CourseChoice(flow.name, flow.course if flow.op_type == "If" else int(flow.course))
        for flow in control
        if flow.how == How.GIVEN and flow.layers
    ]


def _is_control(node: onnx.NodeProto) -> bool:
    return node.op_type in {"If", "Loop", "Scan"} and is_standard(node) and any(node.output)


class _Decisions:
    """Decisions about the control flow in a model's main graph.

    Attributes:
        steps: Operators to expand.
        known: Results for these, by first output.
        left: Results for the others.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        skeleton: Skeleton,
        labels: Mapping[str, str | None],
        refused: Mapping[str, str],
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
        self._bodies = sum(1 for node in all_nodes(model.graph.node) for _ in bodies(node))
        for index, node in enumerate(model.graph.node):
            if not _is_control(node) or index in self._inference.constants.folded:
                continue
            output = next(filter(None, node.output))
            label = labels.get(output, label_of(node))
            if label is None:
                continue
            flow, course = self._decide(node, label)
            why = refused.get(output, "")
            if course is not None and not why:
                why = self._too_large(node, course)
            if course is None or why:
                self.left.append(replace(flow, reason=why or flow.reason))
                continue
            executed = flow.how is not How.RESOLVED or node.op_type != "If"
            bare = self._carried(node) if executed else None
            unmeasured = executed and bare is None
            reason = "its overhead beyond the body is not measured: it reads constants only" if unmeasured else ""
            self.known[output] = replace(flow, reason=reason)
            steps.append((output, course, bare))
        self.steps = tuple(steps)

    def _too_large(self, node: onnx.NodeProto, course: Course) -> str:
        """Return why an operator is too large to expand together with the others; else count it and return ""."""
        layers, size, inner_bodies = size_of(node, course)
        if self._layers + layers > _MOST_LAYERS:
            return f"it would expand to more than {_MOST_LAYERS} layers"
        if self._bytes + size > _MOST_BYTES:
            return f"it would expand to more than {_MOST_BYTES >> 20} MiB"
        if inner_bodies and (self._bodies + inner_bodies) * (self._layers + layers) > _MOST_SEEN:
            return f"it would expand to {inner_bodies} bodies, which take too long to analyse"
        self._bodies += inner_bodies
        self._layers += layers
        self._bytes += size
        return ""

    def _decide(self, node: onnx.NodeProto, label: str) -> tuple[ControlFlow, Course | None]:
        """Return the control flow of an operator and its course; None if it stays one layer."""
        branch = node.op_type == "If"
        fixed = self._fixed(node)
        choice = chosen(self._choices, label, branch=branch)
        if fixed is not None:
            flow = ControlFlow(label, node.op_type, How.RESOLVED, _spelled(fixed))
            if branch or choice is not None or not self._stands_alone(node):
                return flow, fixed
            return replace(flow, reason="measured whole: it is a brick"), None
        if choice is not None and (label, branch) in self._contested:
            why = f"the file fixes another course than {choice.course} for some of its executions"
            return ControlFlow(label, node.op_type, How.UNKNOWN, "", reason=why), None
        if choice is not None:
            return ControlFlow(label, node.op_type, choice.how, _spelled(choice.course)), choice.course
        scans = node.op_type == "Scan"
        why = "the shape of its scanned input is not known" if scans else unknown_course(node.op_type)
        return ControlFlow(label, node.op_type, How.UNKNOWN, "", reason=why), None

    def _fixed(self, node: onnx.NodeProto) -> Course | None:
        """Return the course that the file fixes."""
        if node.op_type == "If":
            taken = self._inference.constants.scalar(node.input[0] if node.input else "")
            return None if taken is None else "then" if taken else "else"
        if node.op_type == "Loop":
            return fixed_trips(node, self._inference.constants.scalar)
        scanned = _scanned(node)
        if not 0 < scanned <= len(node.input):
            return None
        axes = next((list(attribute.ints) for attribute in node.attribute if attribute.name == "scan_input_axes"), [0])
        kind = self._inference.types.get(node.input[len(node.input) - scanned])
        if kind is None or not axes or not -len(kind.shape) <= axes[0] < len(kind.shape):
            return None
        return kind.shape[axes[0]]

    def _stands_alone(self, node: onnx.NodeProto) -> bool:
        """Return True if an operator can leave its model unchanged."""
        inference = self._inference
        if any(not inference.constants.known(name) for name in captures(node)):
            return False
        return all(name in inference.types for name in (*node.input, *node.output) if name)

    def _carried(self, node: onnx.NodeProto) -> onnx.ValueInfoProto | None:
        """Return the input of the bare operator: the condition, or the smallest computed value."""
        inference = self._inference
        names = node.input[:1] if node.op_type == "If" else (*node.input, *captures(node))
        candidates = [
            (kind.elements, position, name)
            for position, name in enumerate(names)
            if name not in inference.constants and (kind := inference.types.get(name)) is not None
        ]
        if not candidates:
            return None
        _, _, name = min(candidates)
        kind = inference.types[name]
        return onnx.helper.make_tensor_value_info(name, element_number(kind.dtype), kind.shape)


def _spelled(course: Course) -> str:
    return course if isinstance(course, str) else str(course)


def _merged(flows: list[ControlFlow]) -> tuple[ControlFlow, ...]:
    """Merge all executions of an operator with the same course into one entry."""
    merged: dict[tuple[str, ...], ControlFlow] = {}
    for flow in flows:
        key = (flow.name, flow.op_type, flow.how, flow.course, flow.reason)
        earlier = merged.get(key)
        merged[key] = (
            flow if earlier is None else replace(earlier, times=earlier.times + 1, layers=earlier.layers + flow.layers)
        )
    return tuple(merged.values())
