"""Parts: a product with a sum or Concat of copied values is the sum of products with the values before they are copied.

The input of a product is read as a sum of terms: a source, the moves that copy it, and the weights that it meets. Equal
terms are added. Every source is multiplied, and the result is moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx

from .demand import blocks_of, selected
from .form import Array, Draft, Rewrite
from .generic import generic_of
from .values import Values

_SMALLER, _SHARE, _MOST_TERMS, _MOST_READS = 0.6, 0.96, 24, 80
_PLAIN = frozenset({"Identity", "Squeeze", "Transpose", "Unsqueeze"})
_VIEWS = frozenset({"Flatten", "Reshape"})


@dataclass(frozen=True, slots=True)
class _Term:
    """A value that is multiplied.

    Attributes:
        source: The value.
        axis: Its axis along which the product sums.
        weight: The weights, that axis first.
        moves: Nodes that move the source, the nearest first, each with the axis after it.
    """

    source: str
    axis: int
    weight: Array
    moves: tuple[tuple[int, int], ...]


class _TooManyError(Exception):
    """A product's input is a sum of too many values."""


class _Reader:
    """A reader of a product's input.

    Args:
        values: The graph.
        by_place: The product works on each place of all other axes alone; otherwise on each sample alone.
    """

    def __init__(self, values: Values, *, by_place: bool) -> None:
        self._values, self._by_place, self._reads = values, by_place, 0
        self.added = list[tuple[Array, Array]]()
        """Constants of the input's whole shape that are multiplied as well, with their weights."""

    def terms(self, name: str, axis: int, weight: Array, moves: tuple[tuple[int, int], ...] = ()) -> list[_Term]:
        """Return a value as terms."""
        values, place = self._values, self._values.graph.producer.get(name)
        self._reads += 1
        if self._reads > _MOST_READS:
            raise _TooManyError
        found, node = list[_Term](), None if place is None else values.graph.nodes[place]
        known = name in values.shapes and values.is_float(name) and not values.is_constant(name)
        if place is not None and node is not None and known and node.domain in {"", "ai.onnx"} and all(
            read in values.shapes for read in node.input if read
        ):  # fmt: skip
            before = values.shapes[node.input[0]] if node.input[0] else ()
            if node.op_type in {"Expand", "Tile"} and _copies_one(before, values.shapes[name], axis):
                found = self._once(node.input[0], axis, weight, moves)
            elif node.op_type in {"Gather", "Slice"} and list(picked := selected(values, place) or {}) == [axis] and (
                len(before) == len(values.shapes[name])
            ):  # fmt: skip
                whole = np.zeros((before[axis], *weight.shape[1:]), weight.dtype)
                np.add.at(whole, picked[axis], weight)
                found = self.terms(node.input[0], axis, whole, moves)
            elif node.op_type == "Concat":
                found = self._joined(place, name, axis, weight, moves)
            elif node.op_type in {"Add", "Div", "Mul", "Neg", "Sub"}:
                found = self._sides(node, name, axis, weight, moves)
            elif (earlier := self._before(place, axis)) is not None:
                found = self.terms(node.input[0], earlier, weight, ((place, axis), *moves))
        return found or [self._narrowed(_Term(name, axis, weight, moves))]

    def _narrowed(self, term: _Term) -> _Term:
        """Return a term with one of several equal slices as its source."""
        shape = self._values.shapes.get(term.source, ())
        alone = self._others(len(shape), term.axis)
        if term.moves or self._values.is_constant(term.source):
            return term
        alone += [term.axis] * (shape[term.axis] < _MOST_TERMS)
        equal = [axis for axis in alone if shape[axis] > 1 and generic_of(self._values).is_one_slice(term.source, axis)]
        weight = term.weight.sum(0, keepdims=True) if term.axis in equal else term.weight
        return _Term(term.source, term.axis, weight, tuple((-1 - axis, term.axis) for axis in equal))

    def _once(self, read: str, axis: int, weight: Array, moves: tuple[tuple[int, int], ...]) -> list[_Term]:
        """Return a value of one slice that meets all weights."""
        return self.terms(read, axis, weight.sum(0, keepdims=True), moves)

    def _others(self, rank: int, axis: int) -> list[int]:
        """Return the axes along which values may be copied."""
        return [place for place in range(rank) if place != axis and (self._by_place or place == 0)]

    def _joined(
        self, place: int, name: str, axis: int, weight: Array, moves: tuple[tuple[int, int], ...]
    ) -> list[_Term]:
        values, node = self._values, self._values.graph.nodes[place]
        if values.graph.attributes[place]["axis"] % len(values.shapes[name]) != axis:
            return []
        found, offset = list[_Term](), 0
        for part in node.input:
            width = values.shapes[part][axis]
            found += self.terms(part, axis, weight[offset : offset + width], moves)
            offset += width
        return found

    def _sides(
        self, node: onnx.NodeProto, name: str, axis: int, weight: Array, moves: tuple[tuple[int, int], ...]
    ) -> list[_Term]:
        """Return the terms of a sum, or of a product with constants along the summed axis alone."""
        values, shape = self._values, self._values.shapes[name]
        around = (-1, *[1] * (weight.ndim - 1))
        if node.op_type in {"Div", "Mul"}:
            fixed = [values.constant(read) for read in node.input]
            slot = 1 if fixed[1] is not None or node.op_type == "Div" else 0
            factor, x = fixed[slot], node.input[1 - slot]
            own = None if factor is None else (1,) * (len(shape) - factor.ndim) + factor.shape
            if factor is None or own is None or prod(own) not in {1, own[axis]}:
                return []
            numbers = (1 / factor if node.op_type == "Div" else factor).reshape(around)
            if _copies_one(values.shapes[x], shape, axis):
                return self._once(x, axis, weight * numbers, moves)
            if values.shapes[x] != shape:
                return []
            return self.terms(x, axis, weight * numbers, moves)
        found = list[_Term]()
        signs = {"Neg": (-1,), "Sub": (1, -1)}.get(node.op_type, (1, 1))
        for sign, read in zip(signs, node.input, strict=True):
            own, ahead = values.shapes[read], len(shape) - len(values.shapes[read])
            wide = (1,) * ahead + own
            copied = [place for place in range(len(shape)) if wide[place] != shape[place]]
            summand = values.constant(read)
            if summand is not None and not moves and not self._by_place and values.target(name) == list(shape):
                self.added.append((np.broadcast_to(summand, shape), sign * weight))
                continue
            if copied == [axis] and axis >= ahead:
                found += self._once(read, axis - ahead, sign * weight, moves)
                continue
            if axis < ahead or axis in copied or (moves and copied) or not set(copied) <= {
                *self._others(len(shape), axis)
            }:  # fmt: skip
                return []
            found += self.terms(read, axis - ahead, sign * weight, moves)
        return found

    def _before(self, place: int, axis: int) -> int | None:  # noqa: PLR0911  # one operator each
        """Return the summed axis before a move; None for any other node."""
        values, node = self._values, self._values.graph.nodes[place]
        kind, attributes = node.op_type, values.graph.attributes[place]
        before, after = values.shapes[node.input[0]], values.shapes[node.output[0]]
        if kind == "Gather":
            along = attributes.get("axis", 0) % len(before)
            number = len(values.shapes[node.input[1]])
            if along <= axis < along + number or not (self._by_place or (along == 0 and number == 1)):
                return None
            return axis if axis < along else axis - number + 1
        if kind in {"Expand", "Tile"}:
            own, ahead = (1,) * (len(after) - len(before)) + before, len(after) - len(before)
            copied = [other for other in range(len(after)) if own[other] != after[other]]
            fits = axis >= ahead and set(copied) <= {*self._others(len(after), axis)} and (self._by_place or not ahead)
            return axis - ahead if fits else None
        if kind == "Slice":
            picked = selected(values, place)
            return axis if picked is not None and self._by_place and axis not in picked else None
        if not self._by_place:
            return axis if kind == "Identity" else None
        if kind == "Resize" and attributes.get("mode", "nearest") != "cubic" and len(node.input) > 2:
            fixed = all(not name or values.is_constant(name) for name in node.input[1:])
            return axis if fixed and before[axis] == after[axis] else None
        if kind == "Transpose":
            return int((attributes.get("perm") or list(range(len(after)))[::-1])[axis])
        if kind in _VIEWS | _PLAIN:
            groups = [inside for inside, outside in blocks_of(before, after) if outside == [axis] and len(inside) == 1]
            return groups[0][0] if groups and after[axis] > 1 else None
        return None


def _copies_one(before: Sequence[int], after: Sequence[int], axis: int) -> bool:
    """Return True if a shape differs from another one in a size of 1 along one axis alone."""
    return len(before) == len(after) and before[axis] == 1 < after[axis] and all(
        size == other for place, (size, other) in enumerate(zip(before, after, strict=True)) if place != axis
    )  # fmt: skip


class _Writer:
    """Writes the product of terms.

    Args:
        values: The graph.
        node: The product.
        attributes: Its attributes.
        width: Width of the result.
    """

    def __init__(self, values: Values, node: onnx.NodeProto, attributes: dict[str, Any], width: int) -> None:
        self._values, self._node, self._attributes, self._width = values, node, attributes, width
        self.draft = Draft(values.graph)

    def term(self, sources: Sequence[_Term], *, broadcast: bool) -> str:
        """Write the product of sources that are moved alike, and its moves; the last copies may be left to the sum."""
        term, draft = sources[0], self.draft
        made, moves = term.source, list(term.moves)
        while moves and moves[0][0] < 0:
            axis = -1 - moves.pop(0)[0]
            made = draft.op("Slice", made, *(draft.constant([number], np.int64) for number in (0, 1, axis)))
        if len(sources) > 1:
            made = draft.op("Concat", *(own.source for own in sources), axis=term.axis)
        rank = len(self._values.shapes[term.source])
        made = self._product(made, rank, term.axis, np.concatenate([own.weight for own in sources]))
        for number, (place, axis) in enumerate(moves):
            if broadcast and number == len(moves) - 1 and self._is_broadcast(place):
                break
            made = self._moved(made, place, axis)
        return made

    def with_constants(self, total: str, added: Sequence[tuple[Array, Array]], bias: Array | None) -> str:
        """Write a sum with constants that are multiplied, too, and with a bias; return its name."""
        draft = self.draft
        for array, own in added:
            made = draft.op("Conv", draft.constant(array), draft.constant(np.moveaxis(own, 0, 1)), **self._attributes)
            total = draft.op("Add", total, made)
        if bias is not None and draft.nodes[-1].op_type == "Conv":
            draft.nodes[-1].input.append(draft.constant(bias))
        elif bias is not None:
            rank = len(self._values.shapes[self._node.output[0]]) - 2
            around = (-1,) if self._node.op_type != "Conv" else (-1, *[1] * rank)
            total = draft.op("Add", total, draft.constant(bias.reshape(around)))
        return total

    def _is_broadcast(self, place: int) -> bool:
        """Return True for a node that copies along axes of size 1 alone."""
        node, shapes = self._values.graph.nodes[place], self._values.shapes
        before, after = shapes[node.input[0]], shapes[node.output[0]]
        pairs = zip((1,) * (len(after) - len(before)) + before, after, strict=True)
        return node.op_type in {"Expand", "Tile"} and all(own in {1, size} for own, size in pairs)

    def _product(self, x: str, rank: int, axis: int, weight: Array) -> str:
        draft = self.draft
        if weight.ndim > 2:
            return draft.op("Conv", x, draft.constant(np.moveaxis(weight, 0, 1)), **self._attributes)
        if self._node.op_type == "Conv" and axis == 1 and rank == len(self._values.shapes[self._node.input[0]]):
            return draft.op("Conv", x, draft.constant(weight.T.reshape(*weight.T.shape, *[1] * (rank - 2))))
        if axis == rank - 1:
            return draft.op("MatMul", x, draft.constant(weight))
        if axis == rank - 2:
            return draft.op("MatMul", draft.constant(weight.T), x)
        order = [*(place for place in range(rank) if place != axis), axis]
        made = draft.op("MatMul", draft.op("Transpose", x, perm=order), draft.constant(weight))
        return draft.op("Transpose", made, perm=[order.index(place) for place in range(rank)])

    def _moved(self, made: str, place: int, axis: int) -> str:
        values, node, draft = self._values, self._values.graph.nodes[place], self.draft
        value = node.output[0]
        if node.op_type == "Expand":
            return draft.op("Expand", made, values.shape_of_copies(draft, node, {axis: 1}))
        if node.op_type == "Resize" and len(node.input) > 3:
            sizes = [self._width if place == axis else size for place, size in enumerate(values.shapes[value])]
            return draft.op("Resize", made, "", "", draft.constant(sizes, np.int64), **values.graph.attributes[place])
        if node.op_type in _VIEWS:
            return values.viewed(draft, node, made, {axis: self._width})
        return draft.copy(node, {node.input[0]: made}, to=values.graph.fresh("moved"))


def by_parts(values: Values, index: int) -> Rewrite | None:  # noqa: PLR0911  # one reason each
    """Return the product of a sum or Concat of copied values as a sum of products with the values before the copies."""
    node, attributes = values.graph.nodes[index], values.graph.attributes[index]
    weight = values.constant(node.input[1]) if node.op_type in {"Conv", "Gemm", "MatMul"} else None
    x, value = node.input[0] if node.input else "", node.output[0]
    if weight is None or value not in values.shapes or values.is_constant(x) or len(values.shapes.get(x, ())) < 2:
        return None
    shape, plain, vector = values.shapes[x], node.op_type != "Conv", weight.ndim == 1
    weight = weight[:, None] if vector else weight
    axis = _summed_axis(node, attributes, weight, len(shape) - 1 if plain else 1, len(shape))
    if axis is None or (node.op_type == "Gemm" and attributes.get("beta", 1.0) != 1.0):
        return None
    by_place = plain or _is_by_place(attributes, weight)
    first = np.moveaxis(weight, axis, 0)
    first = first.reshape(first.shape[:2]) if not plain and by_place else first
    reader = _Reader(values, by_place=by_place)
    try:
        terms = reader.terms(x, len(shape) - 1 if plain else 1, first)
    except _TooManyError:
        return None
    rows, together = prod(shape) // len(first), dict[tuple[str, int, tuple[tuple[int, int], ...]], Array]()
    for term in terms:
        key = term.source, term.axis, term.moves
        together[key] = together[key] + term.weight if key in together else term.weight
    merged = [_Term(source, along, own, moves) for (source, along, moves), own in together.items()]
    groups, small = dict[object, list[_Term]](), 0
    for term in merged:
        number = prod(values.shapes[term.source]) // len(term.weight)
        copied = (
            number < _SMALLER * rows or values.is_constant(term.source) or bool(term.moves and term.moves[0][0] < 0)
        )
        small += copied
        groups.setdefault(term.source if copied else (term.axis, term.moves, values.shapes[term.source]), []).append(
            term
        )
    depth = sum(len(term.weight) for term in merged)
    if not (small or depth < _SMALLER * len(first)) or not 0 < len(merged) <= _MOST_TERMS:
        return None
    if len(merged) == 1 and merged[0].source == x and not merged[0].moves:
        return None
    alone = [[term] for group in groups.values() for term in group] if small == len(merged) else list(groups.values())
    bias = node.input[2] if len(node.input) > 2 else ""
    if bias and not values.is_constant(bias):
        return None
    for broadcast in (True, False):
        writer = _Writer(values, node, dict(attributes), first.shape[1])
        total, draft = "", writer.draft
        for group in alone:
            made = writer.term(group, broadcast=broadcast)
            total = draft.op("Add", total, made) if total else made
        total = writer.with_constants(total, reader.added, values.constant(bias) if bias else None)
        draft.finish(draft.reshape(total, values.target(value)) if vector else total, value)
        rewrite = values.attempt(_priced, values, draft, value, f"{len(terms)} parts")
        if rewrite is not None:
            return rewrite
    return None


def _priced(values: Values, draft: Draft, value: str, note: str) -> Rewrite | None:
    return values.cheaper(draft, "order: product before copies", value, note, share=_SHARE)


def _summed_axis(node: onnx.NodeProto, attributes: dict[str, Any], weight: Array, axis: int, rank: int) -> int | None:
    """Return the axis of the weights along which a product sums, if that is an axis of its first input; else None."""
    if node.op_type == "Conv":
        return 1 if attributes.get("group", 1) == 1 and axis == 1 else None
    if axis != rank - 1:
        return None
    if node.op_type == "Gemm":
        plain = not attributes.get("transA") and attributes.get("alpha", 1.0) == 1.0
        return int(attributes.get("transB", 0)) if plain else None
    return 0 if node.op_type == "MatMul" and weight.ndim == 2 else None


def _is_by_place(attributes: dict[str, Any], weight: Array) -> bool:
    """Return True for a convolution that works on each place alone."""
    single = prod(weight.shape[2:]) == 1 and set(attributes.get("strides") or [1]) == {1}
    return bool(single and not any(attributes.get("pads") or ()))
