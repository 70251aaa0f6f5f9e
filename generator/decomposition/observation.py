"""Which course the control flow of a model takes: seen in one execution, with the inputs that it is measured with."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import onnx

from ...bricks.graph.control import given_courses, write_out
from ...errors import BackendError, DlbricksError, WorkerError
from ...models import ModelSource
from ...models.constants import is_constant
from ...models.control.choices import Choice, How, chosen, label_of
from ...models.control.forcing import force
from ...models.names import is_standard
from ...models.skeleton import Skeleton
from ...models.subgraphs import all_graphs, all_nodes, bodies
from ..backends.custom_ops import asked
from ..worker.client import Timeouts
from ..worker.replies import Traced
from ..worker.requests import Trace
from ..worker.standby import Standby, start_worker

__all__ = ["observe"]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A control-flow operator, by the names under which its calls and those of its bodies are counted."""

    label: str
    branch: bool
    own: str
    bodies: Mapping[str, tuple[str, ...]]


def observe(
    sources: Sequence[ModelSource], *, backend: str = "onnxruntime", device: str = "cpu", seed: int = 0
) -> list[ModelSource]:
    """Execute each model that has control flow once, and note the courses that nobody gave.

    It runs in a worker, from its own file, along the courses that were given, and with the seeded inputs that
    ``measure`` uses. An operator that took both
    branches, or that did not run, stays without a course.

    Args:
        sources: The models; one without control flow is not executed.
        backend: A runtime that reports which operators it executes.
        device: One of its devices.
        seed: Of inputs.

    Returns:
        The models with what was seen (``ModelSource.control``), in their order; one that cannot be executed has a
        ``problem``.

    Raises:
        UsageError: The backend cannot report it.
        BackendUnavailable: The runtime cannot be used here.
    """
    found = []
    options = asked() if backend == "onnxruntime" else None
    with Standby(partial(start_worker, backend, device=device, options=options)) as standby:
        for source in sources:
            try:
                found.append(_observed(source, standby, seed))
            except (BackendError, WorkerError) as error:
                standby.close()
                reason = f"{source.name} cannot be executed to see its control flow: {error.message}"
                problem = BackendError(reason, remedy="say it with --branch and --trip")
                found.append(replace(source, problem=problem))
            except DlbricksError as error:
                found.append(replace(source, problem=error))
    return found


def _observed(source: ModelSource, standby: Standby, seed: int) -> ModelSource:
    if source.path is None or source.problem is not None:
        return source
    skeleton = source.skeleton()
    if not any(_is_control(node) for graph in all_graphs(skeleton.model.graph) for node in graph.node):
        return source
    seen: list[_Seen] = []
    given = _given(skeleton, source.control)

    def prepare(model: onnx.ModelProto) -> None:
        force(model, given)
        seen.extend(_numbered(model))

    with tempfile.TemporaryDirectory(prefix="dlbricks-observed-") as folder:
        runnable = source.runnable(Path(folder), edit=prepare)
        request = Trace(
            path=str(runnable.path.resolve()),
            synthetic=runnable.synthetic,
            overrides=runnable.overrides,
            inputs=runnable.inputs,
            seed=seed,
        )
        calls = standby.worker.ask(request, Traced, Timeouts.optimising(skeleton.weight_bytes)).calls
    courses = [(one.label, _course(one, calls)) for one in seen]
    noted = [Choice(label, course, How.OBSERVED) for label, course in courses if course is not None]
    return replace(source, control=(*source.control, *noted))


def _given(skeleton: Skeleton, choices: Sequence[Choice]) -> list[Choice]:
    """The given courses that hold: where the file decides, it is left to."""
    control = write_out(skeleton).control
    reached = {(flow.name, flow.op_type): flow.layers for flow in control}
    given = given_courses(control)
    nodes = list(filter(_is_control, all_nodes(skeleton.model.graph.node)))
    whole = [node for node in nodes if reached.get((label_of(node), node.op_type)) == 0]
    for inner in (one for node in whole for body in bodies(node) for one in all_nodes(body.node)):
        choice = chosen(choices, label_of(inner), branch=inner.op_type == "If") if _is_control(inner) else None
        if choice is not None and choice.how is How.GIVEN and (label_of(inner), inner.op_type) not in reached:
            given.append(Choice(label_of(inner), choice.course))  # the file may decide it; nobody knows yet
    return given


def _is_control(node: onnx.NodeProto) -> bool:
    return is_standard(node) and node.op_type in {"If", "Loop"}


def _numbered(model: onnx.ModelProto) -> list[_Seen]:
    """Give every node a name of its own, and list the control flow by these."""
    labels = {}
    for number, node in enumerate(all_nodes(model.graph.node)):
        labels[number] = label_of(node)
        node.name = str(number)
    return [
        _Seen(
            labels[int(node.name)],
            node.op_type == "If",
            node.name,
            {
                attribute.name: tuple(inner.name for inner in attribute.g.node if not is_constant(inner))
                for attribute in node.attribute
                if attribute.type == onnx.AttributeProto.GRAPH
            },
        )
        for node in all_nodes(model.graph.node)
        if _is_control(node)
    ]


def _course(seen: _Seen, calls: Mapping[str, int]) -> str | int | None:
    """The course of an operator; None where it did not run, or not the same way each time."""
    own = calls.get(seen.own, 0)
    inside = {name: max((calls.get(node, 0) for node in nodes), default=0) for name, nodes in seen.bodies.items()}
    if not own:
        return None
    if not seen.branch:
        if not seen.bodies.get("body"):
            return None  # iterations that execute nothing do not show
        trips, rest = divmod(inside.get("body", 0), own)
        return None if rest else trips
    then, other = inside.get("then_branch", 0), inside.get("else_branch", 0)
    if not then and not other:
        return None  # neither has an operator that shows
    then = own if then and not other else own - other  # a branch of constants shows by the other's absence
    return "then" if then == own else "else" if not then else None
