"""Demand: indices that outputs need are followed backwards, and work that nobody needs is not done.

A demand says for each axis of a value which indices are needed; an axis that is missing is needed as a whole. Rules by
operator turn the demand of an output into demands of inputs (``_RULES``). Then every node that is needed in part is
written anew for that part. With ``zeros``, rows and channels that are multiplied by zero weights, or are zero
themselves, are not needed either. With ``copies``, one of several equal slices is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from .affine import pick
from .form import Array, Draft, Rewrite
from .generic import generic_of
from .values import POINTWISE, Values, late

Indices = npt.NDArray[np.int64]
Demand = Mapping[int, Indices]
"""Needed indices by axis, ascending; an axis that is missing is needed as a whole."""

_WORTH = 0.97
"""Share of a value from which it is computed as a whole."""
_LEAST_MASK, _MOST_USED = 8, 0.7
"""Elements of a mask of channels, and share of them that may not be zero."""
_NONZERO = 0.92
"""Share of rows that are not zero from which the zero ones are left."""


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
    demands: Sequence[Demand | None]
    zeros: bool

    @property
    def node(self) -> onnx.NodeProto:
        return self.values.graph.nodes[self.index]

    @property
    def demand(self) -> Demand:
        return self.demands[0] or {}

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

    def rows(self, weight: Array, axis: int, channels: int) -> Indices | None:
        """Return the inputs that a weight multiplies by anything but zero; None if nearly all.

        Args:
            weight: The weight, with the inputs along the first axis.
            axis: Axis of the inputs in the data.
            channels: Their number.
        """
        if not self.zeros:
            return None
        used = np.abs(weight.reshape(channels, -1)).max(1) > 0
        used[generic_of(self.values).zeros(self.node.input[0], axis)] = False
        if used.mean() > _NONZERO or not used.any():
            return None
        return np.nonzero(used)[0]


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
    part = _Part({slot: node.aligned(slot, node.demand) for slot in slots}, node.demand)
    return (_masked(node, part) if node.zeros and node.node.op_type == "Mul" else None) or part


def _masked(node: _Node, part: _Part) -> _Part | None:
    """Return a product with constants along one axis, zeros around them, as a product without the zeros."""
    slot = next((slot for slot in (0, 1) if node.constant(slot) is not None), None)
    mask = None if slot is None else node.constant(slot)
    other = 1 - (slot or 0)
    maker = node.values.graph.maker(node.node.input[other])
    if mask is None or mask.size < _LEAST_MASK or mask.size != max(mask.shape) or node.shape(other) != node.out:
        return None
    axis, used = len(node.out) - mask.ndim + mask.shape.index(mask.size), np.nonzero(mask.reshape(-1))[0]
    wanted = node.demand.get(axis, np.arange(node.out[axis]))
    kept = np.intersect1d(wanted, used)
    alone = len(node.values.graph.readers[node.node.input[other]]) == 1
    if maker is None or not alone or maker.op_type not in _RULES or not 0 < len(kept) <= _MOST_USED * len(wanted):
        return None
    numbers = mask.reshape(-1)[kept].reshape(-1, *[1] * (len(node.out) - 1 - axis))
    places, around = np.searchsorted(wanted, kept), np.zeros((2, len(node.out)), np.int64)
    if np.ptp(places) != len(kept) - 1:
        return None  # zeros between the others cost more than they save
    around[:, axis] = places[0], len(wanted) - 1 - places[-1]

    def write(draft: Draft, _: onnx.NodeProto, inputs: Mapping[int, str], to: str) -> None:
        made = inputs[other] if (numbers == 1).all() else draft.op("Mul", inputs[other], draft.constant(numbers))
        draft.op("Pad", made, draft.constant(around.reshape(-1)), to=to)

    return _Part({other: {**part.wants[other], axis: kept}}, part.keeps, write)


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
        place = axis - (axis_gone is not None and axis > axis_gone)
        if axis != axis_gone and place in node.demand:
            indices = indices[node.demand[place]]
        if not np.array_equal(indices, np.arange(size)):
            wants[axis] = indices
    sizes = node.target(node.demand)

    def write(draft: Draft, _: onnx.NodeProto, inputs: Mapping[int, str], to: str) -> None:
        made = inputs[0]
        for axis, indices in wants.items():
            there = np.unique(indices)
            if not np.array_equal(there, indices):
                made = draft.op("Gather", made, draft.constant(np.searchsorted(there, indices), np.int64), axis=axis)
        if scalar:
            made = draft.reshape(made, sizes)
        draft.op("Identity", made, to=to)

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
        given = [values.constant(name) if name else None for name in node.input[1:]]
        if any(array is None and name for array, name in zip(given, node.input[1:], strict=True)):
            return None
        numbers = [None if array is None else array.reshape(-1).tolist() for array in given]
    else:
        numbers = [list(attributes["starts"]), list(attributes["ends"]), attributes.get("axes")]
    numbers += [None] * (4 - len(numbers))
    starts, ends, axes, steps = numbers
    assert starts is not None and ends is not None  # noqa: S101, PT018  # Slice has both
    found = {}
    for start, end, axis, step in zip(
        starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True
    ):
        size = shape[axis]
        stop = None if step < 0 and end < -size else end
        found[axis % len(shape)] = np.arange(size)[slice(start, stop, step)]
    return {axis: indices for axis, indices in found.items() if not np.array_equal(indices, np.arange(shape[axis]))}


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
        given = {axis: node.demand[axis] for axis in outside if axis in node.demand}
        if not given:
            continue
        mask = np.zeros([node.out[axis] for axis in outside], bool)
        mask[np.ix_(*(given.get(axis, np.arange(node.out[axis])) for axis in outside))] = True
        mask = mask.reshape([node.shape(0)[axis] for axis in inside])
        along = [
            np.nonzero(mask.any(tuple(other for other in range(mask.ndim) if other != place)))[0]
            for place in range(mask.ndim)
        ]
        if mask.sum() != np.prod([len(indices) for indices in along]):
            continue
        wants.update(
            {axis: indices for axis, indices in zip(inside, along, strict=True) if len(indices) < node.shape(0)[axis]}
        )
        keeps.update(given)
    sizes = {axis: len(indices) for axis, indices in keeps.items()}

    def write(draft: Draft, old: onnx.NodeProto, inputs: Mapping[int, str], to: str) -> None:
        node.values.viewed(draft, old, inputs[0], sizes, to=to)

    return _Part({0: wants}, keeps, write)


def blocks_of(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return groups of axes of two shapes with equal products of sizes."""
    groups, inside, outside = list[tuple[list[int], list[int]]](), list[int](), list[int]()
    i = j = 0
    left = right = 1
    while i < len(before) or j < len(after):
        if (left <= right and i < len(before)) or j >= len(after):
            left *= before[i]
            inside.append(i)
            i += 1
        else:
            right *= after[j]
            outside.append(j)
            j += 1
        if left == right and inside and outside:
            groups.append((inside, outside))
            inside, outside, left, right = [], [], 1, 1
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
    weight = node.constant(1)
    if weight is not None and weight.ndim == 2:
        rows = node.rows(weight[:, second.get(1, slice(None))], len(node.shape(0)) - 1, len(weight))
        if rows is not None:
            first[len(node.shape(0)) - 1] = second[0] = rows
    return _Part({0: first, 1: second}, node.demand)


def _gemm(node: _Node) -> _Part | None:
    across, turned = node.attributes.get("transA", 0), node.attributes.get("transB", 0)
    first, second = dict[int, Indices](), dict[int, Indices]()
    if 0 in node.demand:
        first[1 if across else 0] = node.demand[0]
    if 1 in node.demand:
        second[0 if turned else 1] = node.demand[1]
    weight = node.constant(1)
    if weight is not None and not across:
        matrix = weight.T if turned else weight
        rows = node.rows(matrix[:, node.demand.get(1, slice(None))], 1, len(matrix))
        if rows is not None:
            first[1] = second[1 if turned else 0] = rows
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
    if groups == 1:
        rows = node.rows(np.moveaxis(weight[filters.get(0, slice(None))], 1, 0), 1, channels)
        if rows is not None:
            data[1] = filters[1] = rows
    spatial = weight.ndim - 2
    strides = list(node.attributes.get("strides") or [1] * spatial)
    dilations = list(node.attributes.get("dilations") or [1] * spatial)
    pads = list(node.attributes.get("pads") or [0] * 2 * spatial)
    automatic = node.attributes.get("auto_pad", "NOTSET") != "NOTSET"
    changed = False
    for place in range(spatial):
        axis = place + 2
        needed = node.demand.get(axis, np.arange(node.out[axis]))
        sparse = len(needed) == 1 and dilations[place] > 1
        if automatic or (len(needed) > _WORTH * node.out[axis] and not sparse):
            continue
        step = int(needed[1] - needed[0]) if len(needed) > 1 else 1
        if len(needed) > 1 and not (np.diff(needed) == step).all():
            step, needed = 1, np.arange(needed.min(), needed.max() + 1)
        begin = int(needed[0]) * strides[place] - pads[place]
        end = begin + (len(needed) - 1) * step * strides[place] + (weight.shape[axis] - 1) * dilations[place] + 1
        low, high = max(0, begin), min(node.shape(0)[axis], end)
        if high <= low:
            continue
        reach = dilations[place] if weight.shape[axis] > 1 else 0
        apart = math.gcd(reach, step * strides[place]) if len(needed) > 1 else reach
        if apart > 1 and (low, high) == (begin, end):  # the inputs in between are not read
            data[axis], changed = np.arange(begin, end, apart), True
            if axis in node.demand:
                keeps[axis] = needed
            pads[place] = pads[place + spatial] = 0
            dilations[place], strides[place] = max(1, reach // apart), max(1, step * strides[place] // apart)
            continue
        if high - low < node.shape(0)[axis]:
            data[axis] = np.arange(low, high)
        keeps[axis] = needed
        pads[place], pads[place + spatial], strides[place] = low - begin, end - high, step * strides[place]
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
    alike = [place for place, size in enumerate(node.out) if {node.shape(slot)[place] for slot in slots} == {size}]
    keeps = {place: indices for place, indices in node.demand.items() if place in alike and place != axis}
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
    return _kept(node, [place for place in range(rank) if (place != axis if newer else place < axis)])


def _reduction(node: _Node) -> _Part | None:
    axes = node.attributes.get("axes")
    if axes is None and len(node.node.input) > 1:
        given = node.constant(1)
        axes = None if given is None else given.tolist()
    if axes is None:
        return None
    rank = len(node.shape(0))
    reduced = {axis % rank for axis in axes}
    if node.attributes.get("keepdims", 1):
        return _kept(node, [axis for axis in range(rank) if axis not in reduced])
    left = [axis for axis in range(rank) if axis not in reduced]
    part = _kept(node, range(len(left)))
    return _Part({**part.wants, 0: {left[axis]: indices for axis, indices in part.keeps.items()}}, part.keeps)


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
    **dict.fromkeys(POINTWISE, _pointwise),
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


_PROBE = np.array([0, 1, 3])


def index_by_index(values: Values, index: int, axis: int) -> dict[int, int] | None:
    """Return the axis of each input that a node reads index by index for an axis of its output, by slot.

    Other inputs are read as a whole. The answer is None for a node that mixes indices.
    """
    node, shapes, attributes = values.graph.nodes[index], values.shapes, values.graph.attributes[index]
    if any(name not in shapes for name in (*node.input, *node.output) if name) or node.domain not in {"", "ai.onnx"}:
        return None
    if node.op_type == "Split":
        return None if attributes.get("axis", 0) % len(shapes[node.input[0]]) == axis else {0: axis}
    single = node.op_type in _RULES and len(node.output) < 2 and attributes.get("group", 1) < 2
    if not single or shapes[node.output[0]][axis] <= _PROBE[-1]:
        return None
    part, whole = (_RULES[node.op_type](_Node(values, index, [wanted], zeros=False)) for wanted in ({axis: _PROBE}, {}))
    if part is None or whole is None or not np.array_equal(part.keeps.get(axis, ()), _PROBE):
        return None
    found = dict[int, int]()
    for slot, wanted in part.wants.items():
        for own, indices in wanted.items():
            every = whole.wants[slot].get(own, np.arange(shapes[node.input[slot]][own]))
            if not np.array_equal(indices, every):
                if slot in found or not np.array_equal(indices, _PROBE):
                    return None
                found[slot] = own
    return found


class _Demands:
    """The demands of all values of a graph.

    Args:
        values: The graph.
        zeros: Zero weights count.
        copies: Equal slices by value and axis, as ``Generic.copies``.
    """

    def __init__(self, values: Values, *, zeros: bool, copies: Mapping[str, Mapping[int, Indices]]) -> None:
        self.values, self.copies, self._zeros = values, copies, zeros
        self.of: dict[str, Demand] = {name: {} for name in values.graph.wanted}
        self.parts: dict[int, _Part] = {}
        self.splits: dict[int, dict[str, Demand]] = {}
        self.directions: dict[int, int] = {}
        self.ends: dict[int, Indices] = {}
        for index in reversed(range(len(values.graph.nodes))):
            self._follow(index)

    def _once(self, name: str, demand: Demand) -> Demand:
        """Return a demand with one of several equal slices."""
        equal = self.copies.get(name)
        if not equal:
            return demand
        firsts = {axis: np.unique(first[demand.get(axis, slice(None))]) for axis, first in equal.items()}
        return {**demand, **firsts}

    def _want(self, name: str, demand: Demand) -> None:
        known = self.of.get(name)
        if known is None:
            self.of[name] = demand
        else:
            self.of[name] = {axis: np.union1d(known[axis], demand[axis]) for axis in known if axis in demand}

    def _follow(self, index: int) -> None:
        graph, node = self.values.graph, self.values.graph.nodes[index]
        demands = [self.of.get(name) if name else None for name in node.output]
        if all(demand is None for demand in demands):
            return
        if (steps := _few_steps(self.values, index, demands)) is not None:
            self.ends[index] = steps
        elif node.op_type in _RECURRENT and (direction := _only_direction(self.values, index, demands)) is not None:
            self.directions[index] = direction
        known = all(name in self.values.shapes for name in (*node.input, *node.output) if name)
        part = None
        if node.op_type == "Split" and known:
            own = _split_demands(self.values, index, demands)
            self.splits[index] = own
            self._want(node.input[0], _united(own.values(), self.values.shapes[node.input[0]]))
            return
        if known and node.op_type in _RULES and node.domain in {"", "ai.onnx"} and len(node.output) == 1:
            demands = [self._once(node.output[0], demands[0] or {})]
            part = self.values.attempt(_RULES[node.op_type], _Node(self.values, index, demands, self._zeros))
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
            if index in self.directions or index in self.ends:
                saving += self.values.costs[index] / 2
                nodes.append(index)
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
    offset, found = 0, dict[str, Demand]()
    for name, demand in zip(node.output, demands, strict=True):
        width = values.shapes[name][axis]
        if demand is not None:
            found[name] = {**demand, axis: offset + demand.get(axis, np.arange(width))}
        offset += width
    return found


_RECURRENT = {"LSTM": "ifoc", "GRU": "zrh", "RNN": "h"}


def _only_direction(values: Values, index: int, demands: Sequence[Demand | None]) -> int | None:
    """Return the only direction of a bidirectional operator that is needed; None if both are."""
    node, attributes = values.graph.nodes[index], values.graph.attributes[index]
    weights = all(name in values.graph.constants for name in node.input[1:4] if name)
    if attributes.get("direction") != "bidirectional" or attributes.get("layout", 0) or not weights:
        return None
    needed = set[int]()
    for slot, demand in enumerate(demands):
        if demand is not None:
            needed.update(demand.get(1 if slot == 0 else 0, np.arange(2)).tolist())
    return needed.pop() if len(needed) == 1 else None


def _few_steps(values: Values, index: int, demands: Sequence[Demand | None]) -> Indices | None:
    """Return the needed steps of a bidirectional operator, if one direction needs few of its inputs for them."""
    node, attributes = values.graph.nodes[index], values.graph.attributes[index]
    if node.op_type not in _RECURRENT or any(demand is not None for demand in demands[1:]) or demands[0] is None:
        return None
    lengths = len(node.input) > 4 and node.input[4]
    if attributes.get("direction") != "bidirectional" or attributes.get("layout", 0) or lengths or 1 in demands[0]:
        return None
    if any(name and name not in values.graph.constants for name in node.input[1:4]):
        return None
    steps, count = demands[0].get(0), values.shapes[node.input[0]][0]
    return steps if steps is not None and min(steps.max() + 1, count - steps.min()) < count / 2 else None


def _united(demands: Iterable[Demand], shape: Sequence[int]) -> Demand:
    """Return the union of demands."""
    total: Demand | None = None
    for own in demands:
        total = own if total is None else {axis: np.union1d(total[axis], own[axis]) for axis in total if axis in own}
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
        for index in sorted(
            demands.parts.keys() | demands.splits.keys() | demands.directions.keys() | demands.ends.keys()
        ):
            node = self._values.graph.nodes[index]
            if index in demands.directions:
                self._one_direction(index, demands.directions[index])
                continue
            if index in demands.ends:
                self._few_steps(index, demands.ends[index])
                continue
            if index in self._demands.splits:
                self._split(node.input[0], self._demands.splits[index])
                continue
            part = self._demands.parts[index]
            shrinks = any(part.wants.values()) or bool(part.keeps)
            dropped = node.op_type == "Concat" and len(part.wants) < len(node.input)
            if not shrinks and not dropped and not any(name in self._new for name in node.input):
                continue
            self._write(node, part)
        return self._draft, self._whole

    def _one_direction(self, index: int, direction: int) -> None:
        """Write one direction of a recurrent operator in place of both."""
        node = self._values.graph.nodes[index]
        outputs = self._direction(index, direction, self._part_of(node.input[0], {}))
        for slot, (name, made) in enumerate(zip(node.output, outputs, strict=True)):
            if name:
                self._new[name] = made, {1 if slot == 0 else 0: np.array([direction])}

    def _few_steps(self, index: int, steps: Indices) -> None:
        """Write both directions of a recurrent operator up to the last step that each needs."""
        node, draft, sides = self._values.graph.nodes[index], self._draft, list[str]()
        source, count = node.input[0], self._values.shapes[node.input[0]][0]
        from_end = steps.min() >= count / 2  # counted from there, a last step is the last one of any sequence
        for direction, begin, end in ((0, 0, steps.max() + 1), (1, steps.min(), count)):
            own = np.arange(begin, end)
            if from_end and len(own) < count and source not in self._new:
                x = draft.op("Gather", source, draft.constant(own - count, np.int64), axis=0)
            else:
                x = self._part_of(source, {0: own})
            states = self._direction(index, direction, x)[0]
            wanted = draft.constant(steps - (end if from_end else begin), np.int64)
            sides.append(draft.op("Gather", states, wanted, axis=0))
        self._new[node.output[0]] = draft.op("Concat", *sides, axis=1), {0: steps}

    def _direction(self, index: int, direction: int, x: str) -> Sequence[str]:
        """Write one direction of a recurrent operator and return its outputs."""
        node, attributes = self._values.graph.nodes[index], dict(self._values.graph.attributes[index])
        attributes["direction"] = ("forward", "reverse")[direction]
        for name in ("activations", "activation_alpha", "activation_beta"):
            if len(given := attributes.get(name) or ()) > 1:
                half = len(given) // 2
                attributes[name] = given[direction * half : (direction + 1) * half]
        own = np.array([direction])
        inputs = [
            name if not name or slot in {0, 4} else self._part_of(name, {0: own})
            for slot, name in enumerate(node.input)
        ]
        outputs = [name and self._values.graph.fresh("direction") for name in node.output]
        return self._draft.ops(node.op_type, [x, *inputs[1:]], outputs, **attributes)

    def _spread(self, node: onnx.NodeProto, part: _Part) -> dict[int, set[int]]:
        """Return the axes along which inputs may stay of size 1, since another input is as wide as the result."""
        copies, narrow = self._demands.copies, dict[int, set[int]]()
        product = node.op_type == "MatMul"
        if not copies or not (product or node.op_type in POINTWISE):
            return narrow
        rank = len(self._values.shapes[node.output[0]])
        for axis in range(rank - 2 * product):
            wide, single = 0, list[tuple[int, int]]()
            for slot in part.wants:
                name = node.input[slot]
                shape = self._values.shapes[name]
                own = axis - rank + len(shape)
                if own < 0 or shape[own] == 1:
                    continue
                first = copies.get(name, {}).get(own)
                if first is not None and not first.any() and len(self._new.get(name, ("", {}))[1].get(own, ())) == 1:
                    single.append((slot, own))
                else:
                    wide += 1
            for slot, own in single if wide else single[1:]:
                narrow.setdefault(slot, set()).add(own)
        return narrow

    def _restore(self, value: str, keeps: Demand) -> None:
        """Write a value as a whole from one of several equal slices, if something else reads it."""
        graph, equal = self._values.graph, self._demands.copies.get(value, {})
        others = [index for index in graph.readers[value] if index not in self._demands.parts]
        if (value not in graph.wanted and not others) or any(
            axis not in equal or not np.isin(equal[axis], indices).all() for axis, indices in keeps.items()
        ):
            return
        self._draft.op("Identity", self._part_of(value, {}), to=value)
        self._whole.append(value)

    def _write(self, node: onnx.NodeProto, part: _Part) -> None:
        value, draft = node.output[0], self._draft
        narrow = self._spread(node, part)
        inputs = {
            slot: self._part_of(node.input[slot], demand, narrow.get(slot, ())) for slot, demand in part.wants.items()
        }
        to = value if not part.keeps else self._values.graph.fresh("part")
        if part.write is not None:
            part.write(draft, node, inputs, to)
        else:
            made = draft.copy(node, {}, to=to)
            for slot, name in inputs.items():
                draft.nodes[-1].input[slot] = name
            assert made == to  # noqa: S101
        if part.keeps:
            self._new[value] = to, part.keeps
            self._restore(value, part.keeps)
        else:
            self._whole.append(value)

    def _split(self, source: str, outputs: Mapping[str, Demand]) -> None:
        if source not in self._new and not any(self._demands.of[name] for name in outputs):
            return
        for name, wanted in outputs.items():
            made, kept = self._part_of(source, wanted), self._demands.of[name]
            if kept:
                self._new[name] = made, kept
            else:
                self._draft.op("Identity", made, to=name)
                self._whole.append(name)

    def _part_of(self, name: str, wanted: Demand, narrow: Collection[int] = ()) -> str:
        """Return a value cut to its demand; along some axes one of its equal slices is enough."""
        shape = self._values.shapes[name]
        wanted = {axis: indices for axis, indices in wanted.items() if len(indices) < shape[axis]}
        if name in self._values.graph.constants:
            array = self._values.graph.constants[name]
            for axis, indices in wanted.items():
                array = np.take(array, indices, axis)
            return self._draft.constant(array) if wanted else name
        made, there = self._new.get(name, (name, {}))
        equal = self._demands.copies.get(name, {})
        for axis in sorted((wanted.keys() | there.keys()) - set(narrow)):
            indices = wanted.get(axis, np.arange(shape[axis]))
            if axis in equal and axis in there:
                indices = equal[axis][indices]
            places = np.searchsorted(there[axis], indices) if axis in there else indices
            size = len(there[axis]) if axis in there else shape[axis]
            if len(places) == size and np.array_equal(places, np.arange(size)):
                continue
            key = made, axis, places.tobytes()
            if key not in self._cut:
                other = self._values.other.get(name)
                if axis not in there and other is not None and other.shape[axis] != size:
                    places = np.where(places < size / 2, places, places - size)  # the last index of any length
                    self._cut[key] = self._draft.op("Gather", made, self._draft.constant(places, np.int64), axis=axis)
                else:
                    self._cut[key] = pick(self._draft, made, places, axis)
            made = self._cut[key]
        return made


def demand(values: Values, deadline: float) -> list[Rewrite]:
    """Return one rewrite each for partly needed values, for zeros, and for equal slices."""
    found, seen = list[Rewrite](), list[list[int]]()
    for kind, (zeros, equal) in _KINDS.items():
        if late(deadline):
            break
        demands = _Demands(values, zeros=zeros, copies=generic_of(values).copies if equal else {})
        saving_ns, nodes = demands.saving_ns()
        if not nodes or nodes in seen:
            continue
        seen.append(nodes)
        draft, whole = _Writer(demands).write()
        if whole:
            note = f"{len(nodes)} operators are needed in part"
            found.append(draft.rewrite(f"demand: {kind}", whole, values.graph.names(nodes), saving_ns, note))
    return found


_KINDS = {
    "only what is needed": (False, False),
    "zero weights and channels": (True, False),
    "equal slices computed once": (False, True),
}
"""Flags of each search: zeros count, equal slices count."""
