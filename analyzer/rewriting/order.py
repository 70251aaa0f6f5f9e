"""Another order of operators: those that shrink values first, those that copy values last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from ...bricks.operators import Trait, having
from ...models.subgraphs import attribute_of
from .recording import Values, late, predicted_ns
from .rewrite import Draft, Rewrite

_SHRINKING = having(Trait.SHRINKS)
_SMALLER, _CHEAPER, _LEAST_SHARE = 0.6, 0.9, 0.005
_LONGEST = 6


def order(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of runs of operators that each read one value."""
    rewrites = list[Rewrite]()
    for index in values.dearest:
        if late(deadline):
            break
        if rewrite := values.attempt(_swapped, values, index):
            rewrites.append(rewrite)
    return rewrites


def _only(values: Values, node: onnx.NodeProto) -> str | None:
    """Return the one value that a node of one output reads; None if it reads several."""
    read = values.computed(node)
    plain = len(node.output) == 1 == len(read) and not any(attribute.HasField("g") for attribute in node.attribute)
    return read[0] if plain else None


def _run_before(values: Values, index: int) -> list[int]:
    """Return the nodes before one, as far back as each is read by the next alone."""
    graph, run = values.graph, list[int]()
    while len(run) < _LONGEST:
        value = _only(values, graph.nodes[run[0] if run else index])
        maker = None if value is None else graph.producer.get(value)
        if maker is None or value is None or len(graph.readers[value]) != 1 or value in graph.wanted:
            return run
        if _only(values, graph.nodes[maker]) is None:
            return run
        run.insert(0, maker)
    return run


def _swapped(values: Values, index: int) -> Rewrite | None:
    """Return the rewrite that puts a node before the run of nodes that leads to it."""
    graph, last, shapes = values.graph, values.graph.nodes[index], values.shapes
    run, value = _run_before(values, index), last.output[0]
    for begin in range(len(run)):
        members = [graph.nodes[earlier] for earlier in run[begin:]]
        x = _only(values, members[0])
        shrinks = last.op_type in _SHRINKING and np.prod(shapes[value]) < _SMALLER * np.prod(shapes[last.input[0]])
        copies = members[0].op_type in having(Trait.REPEATS) and len(members) == 1
        before = values.cost_of([*run[begin:], index])
        if x is None or not (shrinks or copies) or not values.is_float(x) or before < _LEAST_SHARE * values.total_ns:
            continue
        draft = Draft(graph)
        names = {str(_only(values, last)): x, **_sizes_before(values, draft, last, members)}
        result = draft.copy(last, names, to=graph.fresh("early"))
        for node in members:
            result = draft.copy(node, {str(_only(values, node)): result}, to=graph.fresh("moved"))
        draft.finish(result, value)
        after = values.attempt(_cost_if_alike, values, draft, x, value)
        if after is None or after > _CHEAPER * before:
            continue
        kind = f"order: {last.op_type} first" if shrinks else f"order: {members[0].op_type} last"
        return draft.rewrite(kind, [value], graph.names([*run[begin:], index]), before - after)
    return None


def _sizes_before(
    values: Values, draft: Draft, last: onnx.NodeProto, members: Sequence[onnx.NodeProto]
) -> dict[str, str]:
    """Return the scales and sizes of a Resize in the order of axes before Transposes, by their old names."""
    perms = [attribute_of(node, "perm") for node in members if node.op_type == "Transpose"]
    if last.op_type != "Resize" or not perms or any(perm is None for perm in perms):
        return {}
    axes, new_names = np.arange(len(perms[0])), dict[str, str]()
    for perm in perms:
        axes = axes[list(perm)]
    for name in last.input[2:]:
        array = values.constant(name) if name else None
        if array is not None and len(array) == len(axes):
            new_names[name] = draft.constant(array[np.argsort(axes)])
    return new_names


def _cost_if_alike(values: Values, draft: Draft, x: str, value: str) -> float | None:
    """Return the predicted cost of new nodes; None if they compute another recorded value."""
    outputs = [node.output[0] for node in draft.nodes]
    run = values.runs[0]
    arrays = dict(
        zip(outputs, values.function(draft.nodes, {x: run[x].dtype}, outputs, draft.constants)(run[x]), strict=True)
    )
    if arrays[value].shape != run[value].shape or not np.allclose(
        arrays[value], run[value], 1e-3, 1e-3, equal_nan=True
    ):
        return None
    shapes = {**values.shapes, **{name: array.shape for name, array in arrays.items()}}
    shapes |= {name: array.shape for name, array in draft.constants.items()}
    return sum(predicted_ns(node, shapes) for node in draft.nodes)
