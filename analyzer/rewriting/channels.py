"""Channels of convolutions, padded with zeros to a multiple that the runtime's kernels process at once.

A convolution with more channels computes zeros in them. Its readers have zero weights for them, so that finite results
of operators in between do not count. A convolution stays unchanged if a reader cannot take more channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from ...bricks.operators import ELEMENTWISE, PRODUCTS, VIEWS, Kind, Trait, having, named
from .recording import Values, late
from .rewrite import Array, Draft, Rewrite

_Mask = npt.NDArray[np.bool_]
"""For each channel of a padded value: True for the model's own channels."""

_MULTIPLES = (16, 8)
_READ: _Mask = np.zeros(0, bool)
"""Of a node that reads all channels and hands none on."""
_PASSING = named(Kind.POOL | Kind.GLOBAL_POOL | Kind.RESAMPLING, Trait.SHRINKS) | named(
    Kind.NORMALISATION, Trait.AFFINE
)
_GAIN = 0.2


@dataclass(frozen=True, slots=True)
class _Padded:
    """Which values are padded, how, and by which convolutions."""

    masks: dict[str, _Mask]
    makers: dict[str, frozenset[int]]
    touched: list[int]
    refused: set[int]


def channels(values: Values, deadline: float) -> list[Rewrite]:
    """Return one rewrite of all convolutions for each number of channels that kernels take at once."""
    rewrites = list[Rewrite]()
    for multiple in _MULTIPLES:
        if late(deadline):
            break
        wide = {index for index in range(len(values.graph.nodes)) if _can_make_more(values, index, multiple)}
        while wide:
            padded = _follow(values, wide, multiple)
            if not padded.refused:
                rewrites.append(_written(values, padded, multiple))
                break
            wide -= padded.refused
    return rewrites


def _can_make_more(values: Values, index: int, multiple: int) -> bool:
    node, attributes = values.graph.nodes[index], values.graph.attributes[index]
    if node.op_type != "Conv" or attributes.get("group", 1) != 1:
        return False
    shape = values.shapes.get(node.output[0], ())
    constant = all(not name or name in values.graph.constants for name in node.input[1:])
    return constant and len(shape) == 4 and shape[1] % multiple > 0


def _follow(values: Values, wide: set[int], multiple: int) -> _Padded:
    """Follow the channels of widened convolutions through the graph."""
    padded = _Padded({}, {}, [], set())
    for index, node in enumerate(values.graph.nodes):
        read = [name for name in values.graph.reads[index] if name in padded.masks]
        makers = frozenset[int]().union(*(padded.makers[name] for name in read))
        passed = _passed(values, index, padded.masks) if read else _READ
        if passed is None:
            padded.refused.update(makers)
            continue
        if read or index in wide:
            padded.touched.append(index)
        if index in wide:
            count = values.shapes[node.output[0]][1]
            passed, makers = np.arange(-(-count // multiple) * multiple) < count, frozenset({index})
        if passed.size:
            padded.masks[node.output[0]], padded.makers[node.output[0]] = passed, makers
    for name in values.graph.wanted:
        padded.refused.update(padded.makers.get(name, ()))
    return padded


def _passed(values: Values, index: int, masks: Mapping[str, _Mask]) -> _Mask | None:
    """Return the channels that a node passes on; empty if it consumes all, None if it cannot read them."""
    node, graph = values.graph.nodes[index], values.graph
    shape = values.shapes.get(node.output[0])
    if node.domain not in {"", "ai.onnx"} or shape is None or any(node.output[1:]):
        return None
    if node.op_type in ELEMENTWISE - having(Trait.UNBOUNDED):
        return _through_pointwise(values, node, masks)
    if node.op_type == "Concat":
        if graph.attributes[index]["axis"] % len(shape) != 1:
            return None
        return np.concatenate([masks.get(name, np.ones(values.shapes[name][1], bool)) for name in node.input])
    others = [name for name in graph.reads[index] if name in masks and name != node.input[0]]
    rule = _rule(node.op_type)
    return None if others or rule is None or node.input[0] not in masks else rule(values, index, masks[node.input[0]])


def _through_pointwise(values: Values, node: onnx.NodeProto, masks: Mapping[str, _Mask]) -> _Mask | None:
    shape = values.shapes[node.output[0]]
    mask = next(masks[name] for name in node.input if name in masks)
    if len(shape) < 2 or shape[1] != mask.sum():
        return None
    for name in filter(None, node.input):
        sizes = values.shapes.get(name)
        if name in masks:
            passes = np.array_equal(masks[name], mask) and sizes is not None and len(sizes) == len(shape)
        else:
            passes = sizes is not None and (name in values.graph.constants or _across(sizes, len(shape)) == 1)
        if not passes:
            return None
    return mask


def _across(shape: Sequence[int], rank: int) -> int:
    """Return the size along the channels after broadcasting a value."""
    axis = 1 - rank + len(shape)
    return shape[axis] if axis >= 0 else 1


def _constants(values: Values, index: int) -> bool:
    node = values.graph.nodes[index]
    return all(not name or name in values.graph.constants for name in node.input[1:])


def _convolution(values: Values, index: int, mask: _Mask) -> _Mask | None:
    node, group = values.graph.nodes[index], values.graph.attributes[index].get("group", 1)
    if not _constants(values, index):
        return None
    if group == 1:
        return _READ
    weight = values.graph.constants[node.input[1]]
    return mask if group == mask.sum() == len(weight) and weight.shape[1] == 1 else None


def _product(values: Values, index: int, _: _Mask) -> _Mask | None:
    node, attributes = values.graph.nodes[index], values.graph.attributes[index]
    flat = len(values.shapes[node.input[0]]) == 2 and not attributes.get("transA")
    return _READ if flat and _constants(values, index) else None


def _flat(values: Values, index: int, mask: _Mask) -> _Mask | None:
    node = values.graph.nodes[index]
    before, after = values.shapes[node.input[0]], values.shapes[node.output[0]]
    inner = int(np.prod(before[2:]))
    if len(after) == 2 and after == (before[0], before[1] * inner):
        return np.repeat(mask, inner)
    return None


def _passing(values: Values, index: int, mask: _Mask) -> _Mask | None:
    node = values.graph.nodes[index]
    sizes = node.op_type == "Resize" and len(node.input) > 3
    return mask if _constants(values, index) and not sizes else None


_Rule = Callable[[Values, int, _Mask], _Mask | None]


def _rule(operator: str) -> _Rule | None:
    """Return how the padded channels of its data pass through an operator; None if that is not known."""
    if operator in PRODUCTS:
        return _product
    if operator in VIEWS:
        return _flat
    if operator in _PASSING:
        return _passing
    return _convolution if operator == "Conv" else None


def _written(values: Values, padded: _Padded, multiple: int) -> Rewrite:
    graph, draft, whole = values.graph, Draft(values.graph), list[str]()
    names = {name: graph.fresh("padded") for name in padded.masks}
    for index in padded.touched:
        node = graph.nodes[index]
        value, in_mask = node.output[0], padded.masks.get(node.input[0])
        out_mask = padded.masks.get(value)
        if value not in names:
            whole.append(value)
        inputs = [names.get(name, name) for name in node.input]
        for slot, places in _rooms(values, index, in_mask, out_mask, padded.masks).items():
            array = graph.constants[node.input[slot]]
            for axis, mask, fill in places:
                array = _spread(array, axis, mask, fill)
            inputs[slot] = draft.constant(array)
        if node.op_type == "Reshape" and out_mask is not None:
            inputs[1] = draft.constant([values.shapes[value][0], len(out_mask)], np.int64)
        attributes = dict(graph.attributes[index])
        if attributes.get("group", 1) > 1 and out_mask is not None:
            attributes["group"] = len(out_mask)
        draft.op(node.op_type, *inputs, to=names.get(value, value), **attributes)
    saving_ns = _GAIN * values.cost_of(padded.touched)
    touched = graph.names(padded.touched)
    return draft.rewrite(f"channels: multiples of {multiple}", whole, touched, saving_ns, "padded with zeros")


_Room = tuple[int, _Mask, float]
"""Axis along which a constant is padded, the mask, and the padding's number."""


def _rooms(
    values: Values, index: int, in_mask: _Mask | None, out_mask: _Mask | None, masks: Mapping[str, _Mask]
) -> dict[int, list[_Room]]:
    """Return which constants of a node get room for more channels, by slot."""
    node, attributes = values.graph.nodes[index], values.graph.attributes[index]
    rooms = dict[int, list[_Room]]()
    if node.op_type == "Conv":
        alone = attributes.get("group", 1) > 1
        rooms[1] = [
            (axis, mask, 0.0) for axis, mask in ((0, out_mask), (1, None if alone else in_mask)) if mask is not None
        ]
        if out_mask is not None and len(node.input) > 2 and node.input[2]:
            rooms[2] = [(0, out_mask, 0.0)]
    elif node.op_type in {"Gemm", "MatMul"} and in_mask is not None:
        rooms[1] = [(1 if attributes.get("transB") else 0, in_mask, 0.0)]
    elif node.op_type == "BatchNormalization" and out_mask is not None:
        rooms = {slot: [(0, out_mask, float(slot == 4))] for slot in (1, 2, 3, 4)}
    elif node.op_type in ELEMENTWISE and out_mask is not None:
        rank = len(values.shapes[node.output[0]])
        for slot, name in enumerate(node.input):
            if name in values.graph.constants and name not in masks:
                shape = values.shapes[name]
                if _across(shape, rank) != 1:
                    rooms[slot] = [(1 - rank + len(shape), out_mask, 0.0)]
    return rooms


def _spread(array: Array, axis: int, mask: _Mask, fill: float) -> Array:
    wide = np.full((*array.shape[:axis], len(mask), *array.shape[axis + 1 :]), fill, array.dtype)
    np.moveaxis(wide, axis, 0)[mask] = np.moveaxis(array, axis, 0)
    return wide
