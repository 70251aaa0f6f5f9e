"""Demand: indices that outputs need are followed backwards, and work that nobody needs is not done.

A demand says for each axis of a value which indices are needed; an axis that is missing is needed as a whole. Rules by
operator turn the demand of an output into demands of inputs (``_RULES``). Then every node that is needed in part is
written anew for that part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ...bricks.operators import ELEMENTWISE
from .recording import Values, late
from .rewrite import Array, Draft, Rewrite, pick

Indices = npt.NDArray[np.int64]
Demand = Mapping[int, Indices]
"""Needed indices by axis, ascending; an axis that is missing is needed as a whole."""

_WORTH = 0.97
"""Share of a value from which it is computed as a whole."""


@dataclass(frozen=True, slots=True)
class _Part:
    """How a node is computed for a part of its output.

    Attributes:
        wants: Demand of each input, by its slot.
        keeps: Computed part of the output.
        write: Writes the node: draft, node, inputs by slot, name of the output. None: a copy of the node.
    """

    wants: Mapping[int, Demand]
    keeps: Demand
    write: Callable[[Draft, onnx.NodeProto, Mapping[int, str], str], None] | None = None


@dataclass(frozen=True, slots=True)
class _Node:
    """A node as a rule sees it."""

    values: Values
    index: int
    demand: Demand

    @property
    def node(self) -> onnx.NodeProto:
        return self.values.graph.nodes[self.index]

    @property
    def attributes(self) -> dict[str, Any]:
        return self.values.graph.attributes[self.index]

    @property
    def out(self) -> tuple[int, ...]:
        return self.values.shapes[self.node.output[0]]

    def shape(self, slot: int) -> tuple[int, ...]:
        return self.values.shapes[self.node.input[slot]]

    def constant(self, slot: int) -> Array | None:
        return self.values.constant(self.node.input[slot]) if slot < len(self.node.input) else None

    def target(self, keeps: Demand) -> list[int]:
        """Return the shape of a part of the output for a Reshape."""
        whole = self.values.target(self.node.output[0])
        return [len(keeps[axis]) if axis in keeps else size for axis, size in enumerate(whole)]

    def aligned(self, slot: int, demand: Demand) -> Demand:
        """Return a demand of the output as one of an input that broadcasts to it."""
        shape, ahead = self.shape(slot), len(self.out) - len(self.shape(slot))
        return {
            axis - ahead: indices
            for axis, indices in demand.items()
            if axis >= ahead and shape[axis - ahead] == self.out[axis]
        }


_Rule = Callable[[_Node], _Part | None]


def _kept(node: _Node, axes: Sequence[int] | range) -> _Part:
    """Return the part of a node that treats some axes index by index."""
    keeps = {axis: indices for axis, indices in node.demand.items() if axis in axes}
    wants: dict[int, Demand] = {slot: {} for slot, name in enumerate(node.node.input) if name}
    return _Part({**wants, 0: keeps}, keeps)


def _pointwise(node: _Node) -> _Part | None:
    slots = [slot for slot, name in enumerate(node.node.input) if name]
    if node.node.op_type in {"Clip", "Dropout"}:
        return _Part({slot: node.demand if slot == 0 else {} for slot in slots}, node.demand)
    return _Part({slot: node.aligned(slot, node.demand) for slot in slots}, node.demand)


def _selection(node: _Node) -> _Part | None:
    """Return the part of Slice, Gather and Tile: only selected elements are needed."""
    picked = selected(node.values, node.index)
    if picked is None:
        return None
    shape = node.shape(0)
    index = node.constant(1) if node.node.op_type == "Gather" else None
    scalar = index is not None and index.ndim == 0
    axis_gone = next(iter(picked)) if scalar else None
    wants = dict[int, Indices]()
    for axis, size in enumerate(shape):
        indices = picked.get(axis, np.arange(size))
        out_axis = axis - (axis_gone is not None and axis > axis_gone)
        if axis != axis_gone and out_axis in node.demand:
            indices = indices[node.demand[out_axis]]
        if not np.array_equal(indices, np.arange(size)):
            wants[axis] = indices
    sizes = node.target(node.demand)

    def write(draft: Draft, _: onnx.NodeProto, inputs: Mapping[int, str], to: str) -> None:
        result = inputs[0]
        for axis, indices in wants.items():
            there = np.unique(indices)
            if not np.array_equal(there, indices):
                result = draft.op(
                    "Gather", result, draft.constant(np.searchsorted(there, indices), np.int64), axis=axis
                )
        if scalar:
            result = draft.reshape(result, sizes)
        draft.op("Identity", result, to=to)

    return _Part({0: {axis: np.unique(indices) for axis, indices in wants.items()}}, node.demand, write)


def selected(values: Values, index: int) -> dict[int, Indices] | None:
    """Return the indices that a Slice, Gather or Tile takes by axis; None if they are not known."""
    graph, node = values.graph, values.graph.nodes[index]
    attributes, shape = graph.attributes[index], values.shapes.get(node.input[0])
    if shape is None:
        return None
    if node.op_type == "Tile":
        out = values.shapes[node.output[0]]
        pairs = enumerate(zip(shape, out, strict=True))
        return {axis: np.arange(after) % before for axis, (before, after) in pairs if after != before}
    if node.op_type == "Gather":
        indices = values.constant(node.input[1])
        if indices is None or indices.ndim > 1:
            return None
        axis = attributes.get("axis", 0) % len(shape)
        return {axis: np.atleast_1d(np.where(indices < 0, indices + shape[axis], indices)).astype(np.int64)}
    if len(node.input) > 1:
        arrays = [values.constant(name) if name else None for name in node.input[1:]]
        if any(array is None and name for array, name in zip(arrays, node.input[1:], strict=True)):
            return None
        numbers = [None if array is None else array.reshape(-1).tolist() for array in arrays]
    else:
        numbers = [list(attributes["starts"]), list(attributes["ends"]), attributes.get("axes")]
    numbers += [None] * (4 - len(numbers))
    starts, ends, axes, steps = numbers
    assert starts is not None and ends is not None  # noqa: S101, PT018  # Slice has both
    picked = {}
    for start, end, axis, step in zip(
        starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True
    ):
        size = shape[axis]
        stop = None if step < 0 and end < -size else end
        picked[axis % len(shape)] = np.arange(size)[slice(start, stop, step)]
    return {axis: indices for axis, indices in picked.items() if not np.array_equal(indices, np.arange(shape[axis]))}


def _concat(node: _Node) -> _Part | None:
    axis = node.attributes["axis"] % len(node.out)
    needed, offset = node.demand.get(axis, np.arange(node.out[axis])), 0
    wants = dict[int, Demand]()
    for slot in range(len(node.node.input)):
        size = node.shape(slot)[axis]
        inside = needed[(needed >= offset) & (needed < offset + size)] - offset
        offset += size
        if len(inside):
            wants[slot] = {**{a: i for a, i in node.demand.items() if a != axis}, axis: inside}

    def write(draft: Draft, _: onnx.NodeProto, inputs: Mapping[int, str], to: str) -> None:
        parts = [inputs[slot] for slot in wants]
        if len(parts) == 1:
            draft.op("Identity", parts[0], to=to)
        else:
            draft.op("Concat", *parts, axis=axis, to=to)

    return _Part(wants, node.demand, write)


def _transpose(node: _Node) -> _Part | None:
    order = node.attributes.get("perm") or list(range(len(node.out)))[::-1]
    return _Part({0: {order[axis]: indices for axis, indices in node.demand.items()}}, node.demand)


def _reshape(node: _Node) -> _Part | None:
    """Return the part of a view: a kept axis, or a block of axes with a block as the needed part."""
    wants, keeps = dict[int, Indices](), dict[int, Indices]()
    for inside, outside in blocks_of(node.shape(0), node.out):
        block_demand = {axis: node.demand[axis] for axis in outside if axis in node.demand}
        if not block_demand:
            continue
        mask = np.zeros([node.out[axis] for axis in outside], bool)
        mask[np.ix_(*(block_demand.get(axis, np.arange(node.out[axis])) for axis in outside))] = True
        mask = mask.reshape([node.shape(0)[axis] for axis in inside])
        along = [
            np.nonzero(mask.any(tuple(other for other in range(mask.ndim) if other != dim)))[0]
            for dim in range(mask.ndim)
        ]
        if mask.sum() != np.prod([len(indices) for indices in along]):
            continue
        wants.update(
            {axis: indices for axis, indices in zip(inside, along, strict=True) if len(indices) < node.shape(0)[axis]}
        )
        keeps.update(block_demand)
    sizes = {axis: len(indices) for axis, indices in keeps.items()}

    def write(draft: Draft, old: onnx.NodeProto, inputs: Mapping[int, str], to: str) -> None:
        node.values.viewed(draft, old, inputs[0], sizes, to=to)

    return _Part({0: wants}, keeps, write)


def blocks_of(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return groups of axes of two shapes with equal products of sizes."""
    groups, inside, outside = list[tuple[list[int], list[int]]](), list[int](), list[int]()
    i = j = 0
    inside_size = outside_size = 1
    while i < len(before) or j < len(after):
        if (inside_size <= outside_size and i < len(before)) or j >= len(after):
            inside_size *= before[i]
            inside.append(i)
            i += 1
        else:
            outside_size *= after[j]
            outside.append(j)
            j += 1
        if inside_size == outside_size and inside and outside:
            groups.append((inside, outside))
            inside, outside, inside_size, outside_size = [], [], 1, 1
    if groups and (inside or outside):  # trailing axes of size 1
        groups[-1][0].extend(inside)
        groups[-1][1].extend(outside)
    return groups


def _matmul(node: _Node) -> _Part | None:
    if len(node.shape(0)) < 2 or len(node.shape(1)) < 2:
        return None
    rank = len(node.out)
    first, second = ({} if len(node.shape(slot)) < 2 else dict(node.aligned(slot, {
        axis: indices for axis, indices in node.demand.items() if axis < rank - 2
    })) for slot in (0, 1))  # fmt: skip
    if rank - 2 in node.demand:
        first[len(node.shape(0)) - 2] = node.demand[rank - 2]
    if rank - 1 in node.demand:
        second[len(node.shape(1)) - 1] = node.demand[rank - 1]
    return _Part({0: first, 1: second}, node.demand)


def _gemm(node: _Node) -> _Part | None:
    across, turned = node.attributes.get("transA", 0), node.attributes.get("transB", 0)
    first, second = dict[int, Indices](), dict[int, Indices]()
    if 0 in node.demand:
        first[1 if across else 0] = node.demand[0]
    if 1 in node.demand:
        second[0 if turned else 1] = node.demand[1]
    wants: dict[int, Demand] = {0: first, 1: second}
    if len(node.node.input) > 2 and node.node.input[2]:
        wants[2] = node.aligned(2, node.demand)
    return _Part(wants, node.demand)


def _conv(node: _Node) -> _Part | None:  # noqa: PLR0912, PLR0915  # one branch per axis and input
    weight = node.constant(1)
    if weight is None:
        return None
    groups, channels = node.attributes.get("group", 1), node.shape(0)[1]
    depthwise = groups > 1 and groups == channels == node.out[1]
    data, filters, keeps = dict[int, Indices](), dict[int, Indices](), dict[int, Indices]()
    if 0 in node.demand:
        data[0] = keeps[0] = node.demand[0]
    if 1 in node.demand and (groups == 1 or depthwise):
        filters[0] = keeps[1] = node.demand[1]
        if depthwise:
            data[1] = node.demand[1]
    spatial = weight.ndim - 2
    strides = list(node.attributes.get("strides") or [1] * spatial)
    dilations = list(node.attributes.get("dilations") or [1] * spatial)
    pads = list(node.attributes.get("pads") or [0] * 2 * spatial)
    automatic = node.attributes.get("auto_pad", "NOTSET") != "NOTSET"
    changed = False
    for dim in range(spatial):
        axis = dim + 2
        needed = node.demand.get(axis, np.arange(node.out[axis]))
        sparse = len(needed) == 1 and dilations[dim] > 1
        if automatic or (len(needed) > _WORTH * node.out[axis] and not sparse):
            continue
        step = int(needed[1] - needed[0]) if len(needed) > 1 else 1
        if len(needed) > 1 and not (np.diff(needed) == step).all():
            step, needed = 1, np.arange(needed.min(), needed.max() + 1)
        begin = int(needed[0]) * strides[dim] - pads[dim]
        end = begin + (len(needed) - 1) * step * strides[dim] + (weight.shape[axis] - 1) * dilations[dim] + 1
        low, high = max(0, begin), min(node.shape(0)[axis], end)
        if high <= low:
            continue
        reach = dilations[dim] if weight.shape[axis] > 1 else 0
        apart = math.gcd(reach, step * strides[dim]) if len(needed) > 1 else reach
        if apart > 1 and (low, high) == (begin, end):  # the inputs in between are not read
            data[axis], changed = np.arange(begin, end, apart), True
            if axis in node.demand:
                keeps[axis] = needed
            pads[dim] = pads[dim + spatial] = 0
            dilations[dim], strides[dim] = max(1, reach // apart), max(1, step * strides[dim] // apart)
            continue
        if high - low < node.shape(0)[axis]:
            data[axis] = np.arange(low, high)
        keeps[axis] = needed
        pads[dim], pads[dim + spatial], strides[dim] = low - begin, end - high, step * strides[dim]
        changed = True
    wants: dict[int, Demand] = {0: data, 1: filters}
    if len(node.node.input) > 2 and node.node.input[2]:
        wants[2] = {0: keeps[1]} if 1 in keeps else {}
    new: dict[str, Any] = {"group": len(keeps[1])} if depthwise and 1 in keeps else {}
    if changed:
        new |= {"dilations": dilations, "pads": pads, "strides": strides}

    def write(draft: Draft, old: onnx.NodeProto, inputs: Mapping[int, str], to: str) -> None:
        attributes = {**node.attributes, **new}
        draft.op("Conv", *(inputs.get(slot, name) for slot, name in enumerate(old.input)), to=to, **attributes)

    return _Part(wants, keeps, write)


def _transposed_conv(node: _Node) -> _Part | None:
    """Return the part of a ConvTranspose: some samples, and some channels without groups."""
    plain = node.attributes.get("group", 1) == 1
    keeps = {axis: indices for axis, indices in node.demand.items() if axis == 0 or (axis == 1 and plain)}
    channels = {1: keeps[1]} if 1 in keeps else {}
    biases = {2: {0: keeps[1]} if channels else {}} if len(node.node.input) > 2 and node.node.input[2] else {}
    return _Part({0: {0: keeps[0]} if 0 in keeps else {}, 1: channels, **biases}, keeps)


def _elements(node: _Node) -> _Part | None:
    """Return the part of a GatherElements or ScatterElements along all axes but the one of its indices."""
    axis, slots = node.attributes.get("axis", 0) % len(node.out), range(len(node.node.input))
    alike = [dim for dim, size in enumerate(node.out) if {node.shape(slot)[dim] for slot in slots} == {size}]
    keeps = {dim: indices for dim, indices in node.demand.items() if dim in alike and dim != axis}
    return _Part(dict.fromkeys(slots, keeps), keeps)


def _batch_normalization(node: _Node) -> _Part | None:
    channels: Demand = {0: node.demand[1]} if 1 in node.demand else {}
    return _Part({0: node.demand, **dict.fromkeys(range(1, len(node.node.input)), channels)}, node.demand)


def _instance_normalization(node: _Node) -> _Part | None:
    part = _kept(node, (0, 1))
    channels: Demand = {0: node.demand[1]} if 1 in node.demand else {}
    return _Part({**part.wants, 1: channels, 2: channels}, part.keeps)


def _layer_normalization(node: _Node) -> _Part | None:
    return _kept(node, range(node.attributes.get("axis", -1) % len(node.out)))


def _softmax(node: _Node) -> _Part | None:
    newer, rank = node.values.graph.opset >= 13, len(node.out)
    axis = node.attributes.get("axis", -1 if newer else 1) % rank
    return _kept(node, [dim for dim in range(rank) if (dim != axis if newer else dim < axis)])


def _reduction(node: _Node) -> _Part | None:
    axes = node.attributes.get("axes")
    if axes is None and len(node.node.input) > 1:
        array = node.constant(1)
        axes = None if array is None else array.tolist()
    if axes is None:
        return None
    rank = len(node.shape(0))
    reduced = {axis % rank for axis in axes}
    if node.attributes.get("keepdims", 1):
        return _kept(node, [axis for axis in range(rank) if axis not in reduced])
    remaining = [axis for axis in range(rank) if axis not in reduced]
    part = _kept(node, range(len(remaining)))
    return _Part({**part.wants, 0: {remaining[axis]: indices for axis, indices in part.keeps.items()}}, part.keeps)


def _pool(node: _Node) -> _Part | None:
    return None if len([name for name in node.node.output if name]) > 1 else _kept(node, (0, 1))


def _expand(node: _Node) -> _Part | None:
    wants, ahead = dict[int, Indices](), len(node.out) - len(node.shape(0))
    for axis, indices in node.demand.items():
        if axis >= ahead and node.shape(0)[axis - ahead] == node.out[axis]:
            wants[axis - ahead] = indices
        elif axis >= ahead and node.shape(0)[axis - ahead] != 1:
            return None
    sizes = {axis: len(indices) for axis, indices in node.demand.items()}

    def write(draft: Draft, old: onnx.NodeProto, inputs: Mapping[int, str], to: str) -> None:
        draft.op("Expand", inputs[0], node.values.shape_of_copies(draft, old, sizes), to=to)

    return _Part({0: wants}, node.demand, write)


def _pad(node: _Node) -> _Part | None:
    amounts = node.constant(1)
    rank = len(node.out)
    if node.attributes.get("mode", "constant") != "constant" or amounts is None or len(amounts) != 2 * rank:
        return None
    return _kept(node, [axis for axis in range(rank) if amounts[axis] == 0 == amounts[axis + rank]])


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(ELEMENTWISE, _pointwise),
    **dict.fromkeys(("Gather", "Slice", "Tile"), _selection),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("LayerNormalization", "SimplifiedLayerNormalization"), _layer_normalization),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _softmax),
    **dict.fromkeys(("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare"), _reduction),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"), _pool),
    "BatchNormalization": _batch_normalization,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _transposed_conv,
    "GatherElements": _elements,
    "ScatterElements": _elements,
    "Expand": _expand,
    "Gemm": _gemm,
    "InstanceNormalization": _instance_normalization,
    "MatMul": _matmul,
    "Pad": _pad,
    "Transpose": _transpose,
}


class _Demands:
    """The demands of all values of a graph.

    Args:
        values: The graph.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self.of: dict[str, Demand] = {name: {} for name in values.graph.wanted}
        self.parts: dict[int, _Part] = {}
        self.splits: dict[int, dict[str, Demand]] = {}
        for index in reversed(range(len(values.graph.nodes))):
            self._follow(index)

    def _want(self, name: str, demand: Demand) -> None:
        previous = self.of.get(name)
        if previous is None:
            self.of[name] = demand
        else:
            self.of[name] = {axis: np.union1d(previous[axis], demand[axis]) for axis in previous if axis in demand}

    def _follow(self, index: int) -> None:
        graph, node = self.values.graph, self.values.graph.nodes[index]
        demands = [self.of.get(name) if name else None for name in node.output]
        if all(demand is None for demand in demands):
            return
        has_shapes = all(name in self.values.shapes for name in (*node.input, *node.output) if name)
        part = None
        if node.op_type == "Split" and has_shapes:
            demands_by_output = _split_demands(self.values, index, demands)
            self.splits[index] = demands_by_output
            self._want(node.input[0], _united(demands_by_output.values(), self.values.shapes[node.input[0]]))
            return
        if has_shapes and node.op_type in _RULES and node.domain in {"", "ai.onnx"} and len(node.output) == 1:
            part = self.values.attempt(_RULES[node.op_type], _Node(self.values, index, demands[0] or {}))
        if part is None:
            for name in graph.reads[index]:
                self._want(name, {})
            return
        self.parts[index] = part
        for slot, demand in part.wants.items():
            self._want(node.input[slot], demand)

    def saving_ns(self) -> tuple[float, list[int]]:
        """Return the predicted saving, and the nodes that are needed in part."""
        saving, nodes = 0.0, list[int]()
        for index, node in enumerate(self.values.graph.nodes):
            part = self.parts.get(index)
            if part is None:
                continue
            share = 1.0
            for axis, indices in part.keeps.items():
                share *= len(indices) / max(1, self.values.shapes[node.output[0]][axis])
            if node.op_type in {"Conv", "Gemm", "MatMul"}:
                axis = 1 if node.op_type != "MatMul" else len(self.values.shapes[node.input[0]]) - 1
                if axis in part.wants[0] and axis not in part.keeps:
                    share *= len(part.wants[0][axis]) / self.values.shapes[node.input[0]][axis]
            if share < _WORTH:
                saving += (1 - share) * self.values.costs[index]
                nodes.append(index)
        return saving, nodes


def _split_demands(values: Values, index: int, demands: Sequence[Demand | None]) -> dict[str, Demand]:
    """Return the demand of a Split's input by the output that it comes from."""
    node = values.graph.nodes[index]
    axis = values.graph.attributes[index].get("axis", 0) % len(values.shapes[node.input[0]])
    offset, demands_by_output = 0, dict[str, Demand]()
    for name, demand in zip(node.output, demands, strict=True):
        width = values.shapes[name][axis]
        if demand is not None:
            demands_by_output[name] = {**demand, axis: offset + demand.get(axis, np.arange(width))}
        offset += width
    return demands_by_output


def _united(demands: Iterable[Demand], shape: Sequence[int]) -> Demand:
    """Return the union of demands."""
    total: Demand | None = None
    for output_demand in demands:
        total = (
            output_demand
            if total is None
            else {axis: np.union1d(total[axis], output_demand[axis]) for axis in total if axis in output_demand}
        )
    return {axis: indices for axis, indices in (total or {}).items() if len(indices) < shape[axis]}


class _Writer:
    """Writes every node that is needed in part for that part."""

    def __init__(self, demands: _Demands) -> None:
        self._demands, self._values = demands, demands.values
        self._draft = Draft(demands.values.graph)
        self._new: dict[str, tuple[str, Demand]] = {}
        self._cut: dict[tuple[str, int, bytes], str] = {}
        self._whole = list[str]()

    def write(self) -> tuple[Draft, list[str]]:
        """Return the new nodes, and the values that they compute as a whole."""
        demands = self._demands
        for index in sorted(demands.parts.keys() | demands.splits.keys()):
            node = self._values.graph.nodes[index]
            if index in demands.splits:
                self._split(node.input[0], demands.splits[index])
                continue
            part = demands.parts[index]
            shrinks = any(part.wants.values()) or bool(part.keeps)
            dropped = node.op_type == "Concat" and len(part.wants) < len(node.input)
            if shrinks or dropped or any(name in self._new for name in node.input):
                self._write(node, part)
        return self._draft, self._whole

    def _write(self, node: onnx.NodeProto, part: _Part) -> None:
        value, draft = node.output[0], self._draft
        inputs = {slot: self._part_of(node.input[slot], demand) for slot, demand in part.wants.items()}
        to = value if not part.keeps else self._values.graph.fresh("part")
        if part.write is not None:
            part.write(draft, node, inputs, to)
        else:
            draft.copy(node, {}, to=to)
            for slot, name in inputs.items():
                draft.nodes[-1].input[slot] = name
        if part.keeps:
            self._new[value] = to, part.keeps
        else:
            self._whole.append(value)

    def _split(self, source: str, outputs: Mapping[str, Demand]) -> None:
        if source not in self._new and not any(self._demands.of[name] for name in outputs):
            return
        for name, source_demand in outputs.items():
            value, output_demand = self._part_of(source, source_demand), self._demands.of[name]
            if output_demand:
                self._new[name] = value, output_demand
            else:
                self._draft.op("Identity", value, to=name)
                self._whole.append(name)

    def _part_of(self, name: str, needed: Demand) -> str:
        """Return a value cut to its demand."""
        shape = self._values.shapes[name]
        needed = {axis: indices for axis, indices in needed.items() if len(indices) < shape[axis]}
        if name in self._values.graph.constants:
            array = self._values.graph.constants[name]
            for axis, indices in needed.items():
                array = np.take(array, indices, axis)
            return self._draft.constant(array) if needed else name
        value, there = self._new.get(name, (name, {}))
        for axis in sorted(needed.keys() | there.keys()):
            indices = needed.get(axis, np.arange(shape[axis]))
            places = np.searchsorted(there[axis], indices) if axis in there else indices
            size = len(there[axis]) if axis in there else shape[axis]
            if len(places) == size and np.array_equal(places, np.arange(size)):
                continue
            key = value, axis, places.tobytes()
            if key not in self._cut:
                other = self._values.other.get(name)
                if axis not in there and other is not None and other.shape[axis] != size:
                    places = np.where(places < size / 2, places, places - size)  # the last index of any length
                    self._cut[key] = self._draft.op("Gather", value, self._draft.constant(places, np.int64), axis=axis)
                else:
                    self._cut[key] = pick(self._draft, value, places, axis)
            value = self._cut[key]
        return value


def demand(values: Values, deadline: float) -> list[Rewrite]:
    """Return the rewrite of all values that are needed in part."""
    demands = _Demands(values)
    saving_ns, nodes = demands.saving_ns()
    if not nodes or late(deadline):
        return []
    draft, whole = _Writer(demands).write()
    note = f"{len(nodes)} operators are needed in part"
    names = values.graph.names(nodes)
    return [draft.rewrite("unused: parts that no output needs", whole, names, saving_ns, note)] if whole else []
