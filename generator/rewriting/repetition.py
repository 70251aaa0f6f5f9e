"""Repetition: products that could be one, copies that need not be made, loops and branches that are known."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from ...models.subgraphs import attribute_of, may_have_bodies, rename
from .form import Array, Draft, Rewrite
from .values import Values, late

_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_MOST_BODY_NODES, _MOST_STEPS = 3000, 12
_GAIN_SIDE_BY_SIDE, _GAIN_HEADS = 0.15, 0.4
"""Predicted shares that are saved."""


def repetition(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of repeated work."""
    found = list[Rewrite]()
    for search in (_side_by_side, _copied_heads):
        rewrites: list[Rewrite] = values.attempt(list, search(values)) or []
        for rewrite in rewrites:
            if late(deadline):
                return found
            found.append(rewrite)
    return found


def _constant_inputs(values: Values, node: onnx.NodeProto) -> bool:
    return all(not name or name in values.graph.constants for name in node.input[1:])


# Products with one input: one product with the weights side by side.


def _side_by_side(values: Values) -> Iterator[Rewrite]:
    graph = values.graph
    groups = defaultdict[tuple[object, ...], list[int]](list)
    for index, node in enumerate(graph.nodes):
        if node.op_type not in _PRODUCTS or len(node.input) < 2 or not _constant_inputs(values, node):
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
    made = draft.op(first.op_type, *inputs, **attributes)
    along = 1 if first.op_type == "Conv" else len(values.shapes[first.output[0]]) - 1
    outputs = [node.output[0] for node in nodes]
    sizes = [weight.shape[axis] for weight in weights]
    if graph.opset >= 13:
        draft.ops("Split", (made, draft.constant(sizes, np.int64)), outputs, axis=along)
    else:
        draft.ops("Split", (made,), outputs, axis=along, split=sizes)
    saving_ns = _GAIN_SIDE_BY_SIDE * values.cost_of(indices)
    return draft.rewrite(
        "repetition: products of one input", outputs, graph.names(indices), saving_ns, f"{len(nodes)} of one input"
    )


# Heads that are copied for several queries: the queries are stacked in front of each head instead.


def _copied_heads(values: Values) -> Iterator[Rewrite]:
    graph = values.graph
    for index, node in enumerate(graph.nodes):
        if node.op_type != "MatMul" or any(values.is_constant(name) for name in node.input):
            continue
        query, key = node.input
        shape, other = values.shapes.get(query), values.shapes.get(key)
        if shape is None or other is None or len(shape) != len(other) or len(shape) < 3 or shape[:-2] != other[:-2]:
            continue
        axis = len(shape) - 3
        copies = _copies(values, key, axis)
        if copies is None:
            continue
        draft, heads = Draft(graph), other[axis] // copies
        base = _before_copies(values, draft, key, axis, copies)
        narrow = (*other[:axis], heads, *other[axis + 1 :])
        if values.shapes.get(base) != narrow:
            sizes = values.target(key)
            base = draft.reshape(base, [*sizes[:axis], heads, *sizes[axis + 1 :]])
        stacked = draft.reshape(query, (*[0] * axis, heads, -1, 0))  # 0 keeps a size
        draft.reshape(draft.op("MatMul", stacked, base), (*[0] * axis, shape[axis], -1, 0), to=node.output[0])
        read = {name for made in draft.nodes for name in made.input}
        gone = graph.unneeded([node.output[0]], read & set(graph.producer))
        names = graph.names({*gone, index})
        kind = "repetition: heads are not copied"
        yield draft.rewrite(
            kind, node.output, names, _GAIN_HEADS * values.cost_of({*gone, index}), f"{copies} equal copies"
        )


def _copies(values: Values, name: str, axis: int) -> int | None:
    """Return how many neighbours along an axis are equal in every run; None if none are."""
    size = values.shapes[name][axis]
    for copies in range(size, 1, -1):
        if size % copies:
            continue
        blocks = [np.moveaxis(run[name], axis, 0).reshape(size // copies, copies, -1) for run in values.runs]
        if all((block == block[:, :1]).all() for block in blocks):
            return copies
    return None


def _before_copies(values: Values, draft: Draft, name: str, axis: int, copies: int) -> str:
    """Return the value that was copied, perhaps transposed anew; a selection of one copy if it is not found."""
    wanted = values.runs[0][name].take(range(0, values.shapes[name][axis], copies), axis)
    waiting, seen = [name], set[str]()
    while waiting and len(seen) < _MOST_STEPS:
        maker = values.graph.maker(waiting.pop(0))
        for source in () if maker is None else maker.input:
            array = values.runs[0].get(source)
            if source in seen or array is None:
                continue
            seen.add(source)
            waiting.append(source)
            if array.size != wanted.size or array.dtype != wanted.dtype or array.ndim > 5:
                continue
            for order in itertools.permutations(range(array.ndim)):
                if np.array_equal(array.transpose(order).reshape(-1), wanted.reshape(-1)):
                    plain = order == tuple(range(array.ndim))
                    return source if plain else draft.op("Transpose", source, perm=list(order))
    picked = np.arange(0, values.shapes[name][axis], copies)
    return draft.op("Gather", name, draft.constant(picked, np.int64), axis=axis)


# A loop whose number of rounds is known, written out.


def loops(values: Values) -> list[Rewrite]:
    """Return loops and scans with a known number of rounds, and branches that are always taken, written out."""
    kinds = {"If": _taken, "Loop": _loop, "Scan": _scan}
    found = [
        values.attempt(kinds[node.op_type], values, index, node)
        for index, node in enumerate(values.graph.nodes) if node.op_type in kinds
    ]  # fmt: skip
    return [rewrite for rewrite in found if rewrite is not None]


class _Rounds:
    """Writes the body of a loop again and again.

    Args:
        values: The graph.
        body: The body.
    """

    def __init__(self, values: Values, body: onnx.GraphProto) -> None:
        self.draft, self._graph, self._body = Draft(values.graph), values.graph, body
        self._constants = {
            tensor.name: self.draft.constant(numpy_helper.to_array(tensor)) for tensor in body.initializer
        }

    def write(self, inputs: Sequence[str]) -> list[str]:
        """Write the body once with some inputs, and return its outputs."""
        names = {**self._constants, **dict(zip((value.name for value in self._body.input), inputs, strict=True))}
        for inner in self._body.node:
            made = onnx.NodeProto()
            made.CopyFrom(inner)
            made.name = self._graph.fresh("round")
            names |= {name: self._graph.fresh("round") for name in inner.output if name}
            rename(made, names)
            self.draft.nodes.append(made)
        return [names.get(value.name, value.name) for value in self._body.output]

    def stack(self, rows: Sequence[str], axis: int, to: str) -> str:
        """Join one value of each round along a new axis."""
        if self._graph.opset >= 13:
            axes = self.draft.constant([axis], np.int64)
            wide = [self.draft.op("Unsqueeze", name, axes) for name in rows]
        else:
            wide = [self.draft.op("Unsqueeze", name, axes=[axis]) for name in rows]
        return self.draft.op("Concat", *wide, axis=axis, to=to)


def _fits(body: onnx.GraphProto, number: int) -> bool:
    return 0 < number * len(body.node) <= _MOST_BODY_NODES and not any(map(may_have_bodies, body.node))


def _loop(values: Values, index: int, node: onnx.NodeProto) -> Rewrite | None:
    rounds = values.constant(node.input[0]) if node.input[0] else None
    goes_on = values.constant(node.input[1]) if len(node.input) > 1 and node.input[1] else np.ones(1, np.bool_)
    body = attribute_of(node, "body")
    if rounds is None or goes_on is None or not goes_on.all() or not _always_on(body):
        return None
    number = int(rounds.reshape(-1)[0])
    if not _fits(body, number):
        return None
    writer, states = _Rounds(values, body), list(node.input[2:])
    scans: list[list[str]] = [[] for _ in body.output[1 + len(states) :]]
    on = writer.draft.constant(np.ones((), np.bool_))
    for count in range(number):
        outputs = writer.write([writer.draft.constant(count, np.int64), on, *states])
        states = outputs[1 : 1 + len(states)]
        for scan, name in zip(scans, outputs[1 + len(states) :], strict=True):
            scan.append(name)
    done = [writer.draft.op("Identity", state, to=to) for state, to in zip(states, node.output, strict=False) if to]
    stacks = zip(scans, node.output[len(states) :], strict=False)
    done += [writer.stack(scan, 0, output) for scan, output in stacks if output]
    kind = "repetition: loop written out"
    return writer.draft.rewrite(kind, done, [node.name], values.costs[index], f"{number} rounds") if done else None


def _scan(values: Values, index: int, node: onnx.NodeProto) -> Rewrite | None:
    attributes, body = values.graph.attributes[index], attribute_of(node, "body")
    number = int(attributes["num_scan_inputs"])
    kept, read = list(node.input[:-number]), list(node.input[-number:])
    made = len(body.output) - len(kept)
    axes, ways = (attributes.get(f"scan_input_{name}") or [0] * number for name in ("axes", "directions"))
    out_axes, out_ways = (attributes.get(f"scan_output_{name}") or [0] * made for name in ("axes", "directions"))
    rounds = values.shapes[read[0]][axes[0]]
    if not _fits(body, rounds) or min(*axes, *out_axes, 0) < 0:
        return None
    writer, scans = _Rounds(values, body), list[list[str]]()
    for count in range(rounds):
        rows = [
            writer.draft.op(
                "Gather", name, writer.draft.constant(rounds - 1 - count if way else count, np.int64), axis=axis
            )
            for name, axis, way in zip(read, axes, ways, strict=True)
        ]
        outputs = writer.write([*kept, *rows])
        kept = outputs[: len(kept)]
        scans.append(outputs[len(kept) :])
    done = [writer.draft.op("Identity", state, to=to) for state, to in zip(kept, node.output, strict=False) if to]
    for place, output in enumerate(node.output[len(kept) :]):
        column = [row[place] for row in scans]
        if output:
            done.append(writer.stack(column[::-1] if out_ways[place] else column, out_axes[place], output))
    kind = "repetition: scan written out"
    return writer.draft.rewrite(kind, done, [node.name], values.costs[index], f"{rounds} rounds") if done else None


def _taken(values: Values, index: int, node: onnx.NodeProto) -> Rewrite | None:
    condition = values.constant(node.input[0])
    if condition is None:
        return None
    body = attribute_of(node, "then_branch" if condition.reshape(-1)[0] else "else_branch")
    if any(map(may_have_bodies, body.node)):
        return None
    writer = _Rounds(values, body)
    pairs = zip(writer.write([]), node.output, strict=True)
    done = [writer.draft.op("Identity", name, to=output) for name, output in pairs if output]
    return writer.draft.rewrite("repetition: only branch", done, [node.name], values.costs[index])


def _always_on(body: onnx.GraphProto) -> bool:
    """Return True if a loop's body never ends the loop."""
    makers = {name: node for node in body.node for name in node.output}
    constants: dict[str, Array] = {tensor.name: numpy_helper.to_array(tensor) for tensor in body.initializer}
    name = body.output[0].name
    for _ in range(_MOST_STEPS):
        if name == body.input[1].name:
            return True
        if name in constants:
            return bool(constants[name].all())
        node = makers.get(name)
        if node is None:
            return False
        if node.op_type == "Constant":
            tensor = attribute_of(node, "value")
            return tensor is not None and bool(numpy_helper.to_array(tensor).all())
        if node.op_type != "Identity":
            return False
        name = node.input[0]
    return False
