"""The course of a model's control flow, seen in one execution with the inputs of its measurement."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx

from ...bricks.graph.control import ControlFlow, given_courses, write_out
from ...db.values import Runtime
from ...errors import BackendError, DlbricksError, WorkerError
from ...models import ModelSource
from ...models.control_flow import CourseChoice, How, chosen, force, label_of
from ...models.runnable import Runnable
from ...models.skeleton import Skeleton
from ...models.subgraphs import all_graphs, all_nodes, bodies, is_constant, is_standard
from ..backends.custom_ops import asked
from ..worker.client import Timeouts, Workers, file_of, start_worker
from ..worker.messages import Place

# Whole models along the given courses of their control flow, which estimates assume as well.


def run_as_given(source: ModelSource, folder: Path, control: Iterable[ControlFlow]) -> Runnable:
    """Return a model for execution along its given courses: a changed copy if courses are given.

    Raises:
        ModelError: It cannot be read, bound or written.
    """
    courses = given_courses(control)
    return source.runnable(folder, edit=partial(force, choices=courses) if courses else None)


def observe(sources: Sequence[ModelSource], *, backend: str = "onnxruntime") -> list[ModelSource]:
    """Execute each model that has control flow once, and note the courses that were not given.

    It runs in a worker, from its own file, along the given courses, and with the seeded inputs that ``measure`` uses.
    An operator that took both branches, or that did not run, stays without a course.

    Args:
        sources: The models; one without control flow is not executed.
        backend: A runtime that reports which operators it executes.

    Returns:
        The models with the observed courses (``ModelSource.control``), in their order; a model that cannot be executed
        has a ``problem``.

    Raises:
        UsageError: The backend cannot report its operators.
        BackendUnavailable: The runtime cannot be used here.
    """
    observed_models = []
    options = asked() if backend == "onnxruntime" else None
    place = Place(Runtime.of(backend, options=options))
    with Workers(start_worker) as workers:
        for source in sources:
            try:
                observed_models.append(_observed(source, workers, place))
            except (BackendError, WorkerError) as error:
                workers.close()
                reason = f"{source.name} cannot be executed to see its control flow: {error.message}"
                problem = BackendError(reason, remedy="say it with --branch and --trip")
                observed_models.append(replace(source, problem=problem))
            except DlbricksError as error:
                observed_models.append(replace(source, problem=error))
    return observed_models


def _observed(source: ModelSource, workers: Workers[Place], place: Place) -> ModelSource:
    if source.path is None or source.problem is not None:
        return source
    skeleton = source.skeleton()
    if not any(_is_control(node) for graph in all_graphs(skeleton.model.graph) for node in graph.node):
        return source
    seen: list[tuple[str, onnx.NodeProto]] = []
    choices = _given(skeleton, source.control)

    def prepare(model: onnx.ModelProto) -> None:
        force(model, choices)
        seen.extend(_numbered(model))

    with tempfile.TemporaryDirectory(prefix="dlbricks-observed-") as folder:
        runnable = source.runnable(Path(folder), edit=prepare)
        calls = workers.at(place).trace(file_of(runnable), timeout_s=Timeouts.optimising(skeleton.weight_bytes))
    courses = [(label, _course(node, calls)) for label, node in seen]
    noted = [CourseChoice(label, course, How.OBSERVED) for label, course in courses if course is not None]
    return replace(source, control=(*source.control, *noted))


def _given(skeleton: Skeleton, choices: Sequence[CourseChoice]) -> list[CourseChoice]:
    """Return the given courses that hold; operators that the file decides are left to it."""
    control = write_out(skeleton).control
    reached = {(flow.name, flow.op_type): flow.layers for flow in control}
    courses = given_courses(control)
    nodes = list(filter(_is_control, all_nodes(skeleton.model.graph.node)))
    whole = [node for node in nodes if reached.get((label_of(node), node.op_type)) == 0]
    for inner in (inside for node in whole for body in bodies(node) for inside in all_nodes(body.node)):
        choice = chosen(choices, label_of(inner), branch=inner.op_type == "If") if _is_control(inner) else None
        if choice is not None and choice.how is How.GIVEN and (label_of(inner), inner.op_type) not in reached:
            courses.append(CourseChoice(label_of(inner), choice.course))  # the file may decide it; not known yet
    return courses


def _is_control(node: onnx.NodeProto) -> bool:
    return is_standard(node) and node.op_type in {"If", "Loop"}


def _numbered(model: onnx.ModelProto) -> list[tuple[str, onnx.NodeProto]]:
    """Name all nodes by their numbers; return the operators of control flow, with their labels from before."""
    labels = []
    for number, node in enumerate(all_nodes(model.graph.node)):
        labels.append(label_of(node))
        node.name = str(number)
    return [(labels[int(node.name)], node) for node in all_nodes(model.graph.node) if _is_control(node)]


def _course(node: onnx.NodeProto, calls: Mapping[str, int]) -> str | int | None:
    """Return an operator's course in one execution; None if it had several, or none that can be counted."""
    runs, inside = calls.get(node.name, 0), dict[str, int | None]()
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            counted = (calls.get(inner.name, 0) for inner in attribute.g.node if not is_constant(inner))
            inside[attribute.name] = max(counted, default=None)
    if not runs:
        return None
    if node.op_type == "Loop":
        trips, rest = divmod(inside.get("body") or 0, runs)
        return None if rest or inside.get("body") is None else trips  # iterations without operators are not counted
    then, other = inside.get("then_branch") or 0, inside.get("else_branch") or 0
    if not then and not other:
        return None  # neither has an operator that is counted
    then = runs if then and not other else runs - other  # a branch of constants shows by the other's absence
    return "then" if then == runs else "else" if not then else None
