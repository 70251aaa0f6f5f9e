"""Products and sums of computed values, in any spelling and order, as sums of products by letters.

A region of products, sums, squares and moves of axes is read as terms. Each term is a factor times values with a letter
per axis, summed over letters that the result lacks, as in Einsum. Every term is then multiplied pair by pair in the
cheapest order: (Q K^T) V becomes Q (K^T V), and a sum of squared differences becomes three products.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx

from ...models.subgraphs import attribute_of
from .form import Array, Draft, Rewrite
from .pairs import pairs
from .values import MACS_PER_NS, Values, late

_ROOTS = frozenset({"Einsum", "MatMul", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare"})
_CHEAPER = 0.85
"""Predicted share of the old nodes that the new ones may take."""
_MOST_TERMS, _MOST_FACTORS, _MOST_DEPTH, _MOST_LETTERS = 8, 5, 12, 24
_LEAST_SHARE = 0.004
_ELEMENT_NS, _THIN_NS = 1.2, 0.2
_LARGEST_CHOICE, _LARGEST_CONSTANT, _MOST_READS = 1 << 18, 1 << 25, 200

_Axes = tuple[str, ...]
"""Letters of each axis of a value: none for an axis of size 1, several for one that is split later."""


@dataclass(frozen=True, slots=True)
class _Factor:
    """A value with letters, its reciprocal, or a matrix of zeros and ones.

    Attributes:
        name: The value; empty for a matrix.
        axes: Its letters.
        inverse: The reciprocal.
        chosen: Index that each row of the matrix chooses.
        size: Number of columns of the matrix.
    """

    name: str
    axes: _Axes
    inverse: bool = False
    chosen: tuple[int, ...] = ()
    size: int = 0

    @property
    def letters(self) -> str:
        return "".join(self.axes)


@dataclass(frozen=True, slots=True)
class _Term:
    """A number times values, to be summed over the letters that the result lacks."""

    number: float
    factors: tuple[_Factor, ...]


class _TooMuchError(Exception):
    """A region has too many terms, factors or letters, or a part other than a product."""


@dataclass(slots=True)
class _Reader:
    """A reader of a region, backwards from its last node, as terms.

    Attributes:
        values: The graph.
        sums: Read sums and differences, too; otherwise they are factors.
        depth: Maximum number of nodes between a value and the region's end.
        sizes: Size by letter.
        nodes: Indices of the nodes that were read.
        changing: Letters whose sizes change in a dynamic model.
        reads: Number of values that were read, each as often as a path leads to it.
    """

    values: Values
    sums: bool
    depth: int
    sizes: dict[str, int] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)
    changing: set[str] = field(default_factory=set)
    reads: int = 0

    def fresh(self, size: int) -> str:
        """Return a new letter; none for size 1."""
        if size == 1:
            return ""
        if len(self.sizes) >= _MOST_LETTERS:
            raise _TooMuchError
        letter = "abcdefghijklmnopqrstuvwxyz"[len(self.sizes)]
        self.sizes[letter] = size
        return letter

    def terms(self, name: str, axes: _Axes, depth: int = 0) -> list[_Term]:
        """Return a value as terms with the letters of its axes."""
        self.reads += 1
        other = self.values.other.get(name)
        if other is not None and other.ndim == len(axes):
            sizes = zip(axes, self.values.shapes[name], other.shape, strict=True)
            self.changing.update(letters for letters, size, another in sizes if size != another and len(letters) == 1)
        if self.reads > _MOST_READS:
            raise _TooMuchError
        index = self.values.graph.producer.get(name)
        leaf = [_Term(1.0, (_Factor(name, axes),))]
        constant = self.values.constant(name)
        if constant is not None and constant.size == 1:
            return [_Term(float(constant.reshape(-1)[0]), ())]
        if index is None or constant is not None or depth > self.depth or not self.values.is_float(name):
            return leaf
        node = self.values.graph.nodes[index]
        if node.domain not in {"", "ai.onnx"} or any(read not in self.values.shapes for read in node.input if read):
            return leaf
        found = self._node(index, node, axes, depth + 1)
        if found is None:
            return leaf
        self.nodes.add(index)
        if len(found) > _MOST_TERMS or any(len(term.factors) > _MOST_FACTORS for term in found):
            raise _TooMuchError
        return found

    def _node(  # noqa: PLR0911  # one operator each
        self, index: int, node: onnx.NodeProto, axes: _Axes, depth: int
    ) -> list[_Term] | None:
        kind, shape = node.op_type, self.values.shapes[node.input[0]]
        if kind == "Identity":
            return self.terms(node.input[0], axes, depth)
        if kind == "Transpose":
            order = self.values.graph.attributes[index].get("perm") or list(range(len(shape)))[::-1]
            return self.terms(node.input[0], tuple(axes[order.index(axis)] for axis in range(len(shape))), depth)
        if kind in {"Reshape", "Squeeze", "Unsqueeze", "Flatten"}:
            before = self._before_split(shape, axes)
            return None if before is None else self.terms(node.input[0], before, depth)
        if kind == "Expand":
            return self.terms(node.input[0], self._narrow(shape, axes), depth)
        if kind == "Gather":
            return self._chosen(index, node, axes, depth)
        if kind in {"Mul", "Div", "Neg", "Pow"}:
            return self._product(node, axes, depth)
        if kind in {"Add", "Sub"} and self.sums:
            first, second = (self._side(name, axes, depth) for name in node.input)
            sign = 1.0 if kind == "Add" else -1.0
            return [*first, *(_Term(sign * term.number, term.factors) for term in second)]
        if kind in _ROOTS - {"ReduceL2"}:
            return self.root(index, node, axes, depth)
        return self._by_place(index, node, axes, depth) if kind == "Conv" else None

    def _by_place(self, index: int, node: onnx.NodeProto, axes: _Axes, depth: int) -> list[_Term] | None:
        """Return a convolution of each place alone as a product of channels."""
        weight, attributes = self.values.constant(node.input[1]), self.values.graph.attributes[index]
        padded = any(attributes.get("pads") or ()) or set(attributes.get("strides") or [1]) != {1}
        if weight is None or prod(weight.shape[2:]) > 1 or padded or attributes.get("group", 1) != 1:
            return None
        biased = len(node.input) > 2 and bool(node.input[2])
        if biased and not self.sums:
            return None
        summed = self.fresh(weight.shape[1])
        factor = _Factor(node.input[1], (axes[1], summed, *[""] * (len(axes) - 2)))
        found = _times([_Term(1.0, (factor,))], self.terms(node.input[0], (axes[0], summed, *axes[2:]), depth))
        return [*found, _Term(1.0, (_Factor(node.input[2], axes[1:2]),))] if biased else found

    def _before_split(self, shape: Sequence[int], axes: _Axes) -> _Axes | None:
        """Return the letters of a value whose axes are split; None if axes are joined."""
        letters, found = list("".join(axes)), list[str]()
        for size in shape:
            own, known = "", 1
            while known < size and letters:
                own += letters.pop(0)
                known *= self.sizes[own[-1]]
            if known != size:
                return None
            found.append(own)
        return tuple(found)

    def _narrow(self, shape: Sequence[int], axes: _Axes) -> _Axes:
        """Return the letters of a value that is broadcast."""
        ahead = len(axes) - len(shape)
        return tuple(axes[ahead + place] if size > 1 else "" for place, size in enumerate(shape))

    def _chosen(self, index: int, node: onnx.NodeProto, axes: _Axes, depth: int) -> list[_Term] | None:
        """Return a value with rows chosen more than once as a product with a matrix of zeros and ones."""
        rows, shape = self.values.constant(node.input[1]), self.values.shapes[node.input[0]]
        axis = self.values.graph.attributes[index].get("axis", 0) % len(shape)
        size = shape[axis]
        if rows is None or rows.ndim != 1 or not 1 < size < len(rows) or len(rows) * size > _LARGEST_CHOICE:
            return None
        letter = self.fresh(size)
        choice = _Factor("", (axes[axis], letter), chosen=tuple(int(row) % size for row in rows), size=size)
        inner = (*axes[:axis], letter, *axes[axis + 1 :])
        return _times([_Term(1.0, (choice,))], self.terms(node.input[0], inner, depth))

    def _side(self, name: str, axes: _Axes, depth: int) -> list[_Term]:
        return self.terms(name, self._narrow(self.values.shapes[name], axes), depth)

    def _product(self, node: onnx.NodeProto, axes: _Axes, depth: int) -> list[_Term] | None:
        if node.op_type == "Neg":
            return [_Term(-term.number, term.factors) for term in self.terms(node.input[0], axes, depth)]
        if node.op_type == "Pow":
            power = self.values.constant(node.input[1])
            if power is None or power.size != 1 or float(power.reshape(-1)[0]) != 2.0:
                return None
            return _times(*(self.terms(node.input[0], axes, depth) for _ in range(2)))
        first = self._side(node.input[0], axes, depth)
        if node.op_type == "Mul":
            return _times(first, self._side(node.input[1], axes, depth))
        other = self.values.constant(node.input[1])
        if other is not None and other.size == 1:
            return [_Term(term.number / float(other.reshape(-1)[0]), term.factors) for term in first]
        below = _Factor(node.input[1], self._narrow(self.values.shapes[node.input[1]], axes), inverse=True)
        return _times(first, [_Term(1.0, (below,))])

    def root(self, index: int, node: onnx.NodeProto, axes: _Axes, depth: int) -> list[_Term] | None:
        """Return a node that sums as terms."""
        shapes = [self.values.shapes[name] for name in node.input if name]
        if node.op_type == "MatMul":
            if min(len(shape) for shape in shapes) < 2:
                return None
            summed = self.fresh(shapes[0][-1])
            lead, row, column = axes[:-2], axes[-2], axes[-1]
            sides = [
                self.terms(name, (*self._narrow(shape[:-2], lead), *letters), depth)
                for name, shape, letters in zip(node.input, shapes, ((row, summed), (summed, column)), strict=True)
            ]
            return self._summed(_times(*sides), (summed,))
        if node.op_type == "Einsum":
            return self._einsum(node, shapes, axes, depth)
        reduced = _reduced(self.values, index, node)
        if reduced is None:
            return None
        keeps, remaining = self.values.graph.attributes[index].get("keepdims", 1), list(axes)
        inner, summed_letters = list[str](), list[str]()
        for axis, size in enumerate(shapes[0]):
            if axis in reduced:
                inner.append(self.fresh(size))
                summed_letters.append(inner[-1])
            if axis not in reduced or keeps:
                letter = remaining.pop(0)
                if axis not in reduced:
                    inner.append(letter)
        found = self.terms(node.input[0], tuple(inner), depth)
        if node.op_type in {"ReduceSumSquare", "ReduceL2"}:
            found = _times(found, self.terms(node.input[0], tuple(inner), depth))
        count = prod(shapes[0][axis] for axis in reduced) if node.op_type == "ReduceMean" else 1
        return self._summed([_Term(term.number / count, term.factors) for term in found], summed_letters)

    def _einsum(
        self, node: onnx.NodeProto, shapes: Sequence[tuple[int, ...]], axes: _Axes, depth: int
    ) -> list[_Term] | None:
        equation = str(attribute_of(node, "equation", b"")).replace(" ", "")
        if "." in equation or "->" not in equation:
            return None
        reads, result = equation.split("->")
        sides = reads.split(",")
        if any(len(set(side)) < len(side) for side in (*sides, result)):
            return None
        letters = dict(zip(result, axes, strict=True))
        summed = list[str]()
        for side, shape in zip(sides, shapes, strict=True):
            for old, size in zip(side, shape, strict=True):
                if old not in letters or (not letters[old] and size > 1 and old not in result):
                    letters[old] = self.fresh(size)
                    summed.append(letters[old])
        found = [_Term(1.0, ())]
        for name, side, shape in zip(node.input, sides, shapes, strict=True):
            own = tuple(letters[old] if size > 1 else "" for old, size in zip(side, shape, strict=True))
            found = _times(found, self.terms(name, own, depth))
        return self._summed(found, summed)

    def _summed(self, terms: Sequence[_Term], letters: Sequence[str]) -> list[_Term]:
        """Return terms after a sum; one without a letter of the sum counts as often as the letter is long."""
        return [
            _Term(
                term.number
                * prod(self.sizes[letter] for letter in letters if letter and letter not in _letters(term.factors)),
                term.factors,
            )
            for term in terms
        ]


def _array(values: Values, factor: _Factor) -> Array | None:
    """Return a constant factor without its axes of size 1; None for a computed one."""
    if factor.chosen:
        return np.eye(factor.size, dtype=np.float32)[list(factor.chosen)]
    array = values.constant(factor.name)
    if array is None:
        return None
    array = np.squeeze(array).astype(np.float32)
    return 1 / array if factor.inverse else array


def _paired(values: Values, term: _Term) -> list[_Term]:
    """Return a sum over pairs of one value's rows as the square of the sum and the sum of squares.

    That is possible if a symmetric matrix of constants with equal elements beside its diagonal joins the rows.
    """
    arrays = {factor: array for factor in term.factors if (array := _array(values, factor)) is not None}
    others = [factor for factor in term.factors if factor not in arrays]
    split = any(array.ndim != len(factor.letters) for factor, array in arrays.items())
    if not arrays or split or len(others) != 2 or others[0].name != others[1].name or others[0].inverse:
        return [term]
    pairs = {pair for pair in zip(others[0].axes, others[1].axes, strict=True) if pair[0] != pair[1]}
    equation = ",".join(factor.letters for factor in arrays)
    row, column = pairs.pop() if len(pairs) == 1 else ("", "")
    outside = set(equation) & (set(others[0].letters) - {row})
    if others[1].inverse or not row or not column or {row, column} - set(equation) or outside:
        return [term]
    whole = np.einsum(f"{equation}->{row}{column}", *arrays.values(), optimize=True).astype(np.float64)
    whole = term.number * (whole + whole.T) / 2
    beside, diagonal = whole[0, -1], np.diagonal(whole)
    if np.abs(whole - np.diag(diagonal - beside) - beside).max() > _CLOSE * np.abs(whole).max() or np.ptp(diagonal):
        return [term]
    return [_Term(float(beside), tuple(others)), _Term(float(diagonal[0] - beside), (others[0], others[0]))]


def _times(first: Sequence[_Term], second: Sequence[_Term]) -> list[_Term]:
    made = [_Term(a.number * b.number, a.factors + b.factors) for a in first for b in second]
    together = dict[tuple[_Factor, ...], float]()
    for term in made:
        key = tuple(sorted(term.factors, key=lambda factor: (factor.name, factor.axes)))
        together[key] = together.get(key, 0.0) + term.number
    return [_Term(number, factors) for factors, number in together.items()]


def _letters(factors: Sequence[_Factor]) -> str:
    return "".join(dict.fromkeys(letter for factor in factors for letter in factor.axes))


def _reduced(values: Values, index: int, node: onnx.NodeProto) -> set[int] | None:
    axes = values.graph.attributes[index].get("axes")
    rank = len(values.shapes[node.input[0]])
    if axes is None and len(node.input) > 1 and node.input[1]:
        given = values.constant(node.input[1])
        if given is None:
            return None
        axes = [int(axis) for axis in given.reshape(-1)]
    return {axis % rank for axis in axes} if axes else set(range(rank))


class _Writer:
    """Writes terms as products of pairs in the cheapest order.

    Args:
        values: The graph.
        sizes: Size by letter.
        changing: Letters whose sizes change in a dynamic model.
    """

    def __init__(self, values: Values, sizes: Mapping[str, int], changing: Collection[str]) -> None:
        self._values, self._sizes, self._changing = values, sizes, changing
        self.draft = Draft(values.graph)
        self._known: dict[object, str] = {}

    def _viewed(self, name: str, axes: Sequence[Sequence[str]]) -> str:
        """Write a value with axes of these letters."""
        sizes = [-1 if set(axis) & set(self._changing) else prod(self._sizes[own] for own in axis) for axis in axes]
        if sizes.count(-1) > 1:
            raise _TooMuchError
        return self.draft.reshape(name, sizes)

    def _size(self, letters: str) -> float:
        return prod(self._sizes[letter] for letter in letters)

    def order(
        self, sides: tuple[str, ...], fixed: tuple[bool, ...], result: str
    ) -> tuple[float, list[tuple[int, int]]]:
        """Return the predicted nanoseconds of the cheapest order of pairs, and the pairs.

        Args:
            sides: Letters of each factor.
            fixed: For each factor, True if it is constant.
            result: Letters of the result.
        """
        if len(sides) < 2:
            extra = self._size(sides[0]) * _ELEMENT_NS if sides and set(sides[0]) - set(result) else 0.0
            return extra, []
        best: tuple[float, list[tuple[int, int]]] = (float("inf"), [])
        for i, j in itertools.combinations(range(len(sides)), 2):
            others = [k for k in range(len(sides)) if k not in {i, j}]
            needed = set(result).union(*(sides[k] for k in others))
            first, second = (
                "".join(letter for letter in sides[own] if letter in needed or letter in sides[other])
                for own, other in ((i, j), (j, i))
            )
            both = "".join(dict.fromkeys(first + second))
            kept = "".join(letter for letter in both if letter in needed)
            constant = fixed[i] and fixed[j]
            if constant and self._size(both) > _LARGEST_CONSTANT:
                continue
            own = 0.0 if constant else self._size(both) / MACS_PER_NS + self._size(kept) * _ELEMENT_NS
            rest = self.order((*(sides[k] for k in others), kept), (*(fixed[k] for k in others), constant), result)
            if own + rest[0] < best[0]:
                best = own + rest[0], [(i, j), *rest[1]]
        return best

    def term(self, term: _Term, result: str) -> tuple[str, str]:
        """Write a term and return its value with its letters."""
        sides = [self.plain(factor) for factor in term.factors]
        sides.sort(key=lambda side: side[0])
        fixed = tuple(side[0] in self.draft.constants for side in sides)
        _, pairs = self.order(tuple(side[1] for side in sides), fixed, result)
        for i, j in pairs:
            others = [side for place, side in enumerate(sides) if place not in {i, j}]
            needed = set(result).union(*(side[1] for side in others))
            sides = [*others, self._pair(sides[i], sides[j], needed)]
        ((name, letters),) = sides
        if set(letters) - set(result):
            name, letters = self._sum(name, letters, set(result))
        if term.number != 1.0:
            name = self.draft.op("Mul", name, self.draft.constant(term.number, np.float32))
        return name, letters

    def plain(self, factor: _Factor) -> tuple[str, str]:
        """Return a factor without its axes of size 1."""
        key = factor
        if key not in self._known:
            name, sizes = factor.name, [self._sizes[letter] for letter in factor.letters]
            array = _array(self._values, factor)
            if array is not None:
                name = self.draft.constant(array.reshape(sizes))
            else:
                if any(len(axis) != 1 for axis in factor.axes):
                    name = self._viewed(name, factor.letters)
                if factor.inverse:
                    name = self.draft.op("Reciprocal", name)
            self._known[key] = name
        return self._known[key], factor.letters

    def _sum(self, name: str, letters: str, needed: set[str]) -> tuple[str, str]:
        axes = [place for place, letter in enumerate(letters) if letter not in needed]
        left = "".join(letter for letter in letters if letter in needed)
        key = "sum", name, tuple(axes)
        if key not in self._known:
            if self._values.graph.opset >= 13:
                self._known[key] = self.draft.op("ReduceSum", name, self.draft.constant(axes, np.int64), keepdims=0)
            else:
                self._known[key] = self.draft.op("ReduceSum", name, axes=axes, keepdims=0)
        return self._known[key], left

    def _pair(self, first: tuple[str, str], second: tuple[str, str], needed: set[str]) -> tuple[str, str]:
        """Write a product of two values, summed over the letters that nobody needs."""
        sides = []
        for (name, letters), (_, other) in ((first, second), (second, first)):
            alone = set(letters) - set(other) - needed
            sides.append(self._sum(name, letters, needed | set(other)) if alone else (name, letters))
        (one, a), (two, b) = sides
        if one in self.draft.constants and two in self.draft.constants:
            kept = "".join(letter for letter in dict.fromkeys(a + b) if letter in needed)
            arrays = (self.draft.constants[name].astype(np.float64) for name in (one, two))
            return self.draft.constant(np.einsum(f"{a},{b}->{kept}", *arrays), np.float32), kept
        both = [letter for letter in a if letter in b]
        summed = [letter for letter in both if letter not in needed]
        batch = [letter for letter in both if letter in needed]
        rows, columns = [letter for letter in a if letter not in b], [letter for letter in b if letter not in a]
        one_moves, two_moves = (name not in self.draft.constants for name in (one, two))
        if two_moves * _moved(b, batch, columns, summed) + one_moves * _moved(a, batch, summed, rows) < (
            one_moves * _moved(a, batch, rows, summed) + two_moves * _moved(b, batch, summed, columns)
        ):
            (one, a), (two, b), rows, columns = (two, b), (one, a), columns, rows
        if not summed or (not rows and not columns):
            return self._elementwise((one, a), (two, b), needed)
        left = self._arranged(one, a, (batch, rows, summed))
        right = self._arranged(two, b, (batch, summed, columns))
        made, letters = self.draft.op("MatMul", left, right), "".join((*batch, *rows, *columns))
        if len(rows) != 1 or len(columns) != 1 or len(batch) > 2:
            made = self._viewed(made, letters)
        return made, letters

    def _elementwise(self, first: tuple[str, str], second: tuple[str, str], needed: set[str]) -> tuple[str, str]:
        one, two = (first, second) if len(first[1]) >= len(second[1]) else (second, first)
        letters = one[1] + "".join(letter for letter in two[1] if letter not in one[1])
        made = self.draft.op("Mul", *(self.aligned(*side, letters) for side in (one, two)))
        return self._sum(made, letters, needed) if set(letters) - needed else (made, letters)

    def aligned(self, name: str, letters: str, wanted: str) -> str:
        """Return a value with an axis for each wanted letter, of size 1 for missing letters."""
        order = [letters.index(letter) for letter in wanted if letter in letters]
        if order != sorted(order):
            name = self.draft.op("Transpose", name, perm=order)
        left = wanted.lstrip("".join(set(wanted) - set(letters)))
        if any(letter not in letters for letter in left):
            name = self._viewed(name, [letter if letter in letters else "" for letter in left])
        return name

    def _arranged(self, value: str, letters: str, groups: Sequence[Sequence[str]]) -> str:
        """Return a value with axes for the batch, and one each for two groups of letters."""
        wanted = "".join(letter for group in groups for letter in group)
        if wanted != letters:
            key = "turned", value, letters, wanted
            if key not in self._known:
                order = [letters.index(letter) for letter in wanted]
                array = self.draft.constants.get(value)
                self._known[key] = (
                    self.draft.op("Transpose", value, perm=order)
                    if array is None
                    else self.draft.constant(np.ascontiguousarray(array.transpose(order)))
                )
            value = self._known[key]
        batch, *others = groups
        if all(len(group) == 1 for group in others) and len(batch) <= 2:
            return value
        return self._viewed(value, [*(batch if len(batch) <= 2 else [batch]), *others])


def _moved(letters: str, *groups: Sequence[str]) -> bool:
    """Return True if an operand needs a Transpose for axes in these groups."""
    return letters != "".join(letter for group in groups for letter in group)


def products(values: Values, deadline: float) -> list[Rewrite]:
    """Return regions of products and sums in a cheaper order."""
    found, covered = pairs(values, deadline), set[int]()
    gone = {name for rewrite in found for name in rewrite.replaces}
    for index in reversed(range(len(values.graph.nodes))):
        node = values.graph.nodes[index]
        if late(deadline):
            break
        if index in covered or node.name in gone or node.op_type not in _ROOTS or not _is_plain(values, node):
            continue
        if rewrite := values.attempt(_cheapest, values, index, deadline):
            found.append(rewrite)
            covered.update(values.graph.producer[name] for name in rewrite.values)
    others = (
        values.attempt(search, values, index)
        for index in range(len(values.graph.nodes)) if not late(deadline) for search in (_mixed, _modulated, _picked)
    )  # fmt: skip
    return [*_expectations(values, deadline), *found, *(rewrite for rewrite in others if rewrite is not None)]


def _expectations(values: Values, deadline: float) -> list[Rewrite]:
    """Return sums of one value times several constants as one product."""
    groups, graph = defaultdict[tuple[str, int], list[tuple[int, Array]]](list), values.graph
    for index, node in enumerate(graph.nodes):
        plain = node.op_type in {"ReduceMean", "ReduceSum"} and _is_plain(values, node)
        if plain and not late(deadline) and (found := values.attempt(_expectation, values, index)):
            groups[found[:2]].append((index, found[2]))
    rewrites = list[Rewrite]()
    for (name, depth), members in groups.items():
        if len(members) < 2:
            continue
        draft, whole = Draft(graph), [graph.nodes[index].output[0] for index, _ in members]
        weights = draft.constant(np.stack([array for _, array in members], 1), np.float32)
        made = draft.op("MatMul", draft.reshape(name, [-1, depth]), weights)
        for place, value in enumerate(whole):
            column = draft.op("Gather", made, draft.constant([place], np.int64), axis=1)
            draft.reshape(column, values.target(value), to=value)
        gone = graph.unneeded(whole, [name])
        rows = float(prod(values.shapes[name]))
        saving_ns = values.cost_of(gone) - rows * len(members) / MACS_PER_NS - rows * _THIN_NS
        if saving_ns > _LEAST_SHARE * values.total_ns:
            names = graph.names(gone)
            rewrites.append(draft.rewrite("products: sums of one value at once", whole, names, saving_ns))
    return rewrites


def _expectation(values: Values, index: int) -> tuple[str, int, Array] | None:
    """Return a value, the number of its last elements that are summed, and their constant factors."""
    node, reader = values.graph.nodes[index], _Reader(values, sums=False, depth=_MOST_DEPTH)
    axes = tuple(reader.fresh(size) for size in values.shapes[node.output[0]])
    terms = reader.root(index, node, axes, 0)
    if terms is None or len(terms) != 1:
        return None
    fixed = {factor: array for factor in terms[0].factors if (array := _array(values, factor)) is not None}
    others, kept = [factor for factor in terms[0].factors if factor not in fixed], "".join(axes)
    sides = list[tuple[str, Array]]()
    for factor, array in fixed.items():
        letters, own = factor.letters, array
        for place in reversed(range(len(letters))):
            if letters[place] in kept and (own == own.take([0], place)).all():
                letters, own = letters[:place] + letters[place + 1 :], own.take(0, place)
        sides.append((letters, own))
    if len(others) != 1 or others[0].inverse or not fixed or not others[0].letters.startswith(kept):
        return None
    summed = others[0].letters[len(kept) :]
    used = {letter for letters, _ in sides for letter in letters}
    if not summed or used - set(summed):
        return None
    ones = [np.ones(reader.sizes[letter]) for letter in summed if letter not in used]
    equation = ",".join([*(letters for letters, _ in sides), *(letter for letter in summed if letter not in used)])
    whole = terms[0].number * np.einsum(f"{equation}->{summed}", *(array for _, array in sides), *ones)
    return others[0].name, whole.size, whole.reshape(-1)


def _picked(values: Values, index: int) -> Rewrite | None:
    """Return sums of elementwise products for a few elements of a product, its diagonal perhaps, in any spelling."""
    graph, node = values.graph, values.graph.nodes[index]
    value, x = node.output[0], ""
    regions = values.regions(value, lambda place: graph.nodes[place].op_type in _PICKING, most_nodes=8)
    for region in regions:
        maker = graph.maker(region.reads[0])
        if maker is not None and maker.op_type == "MatMul" and _is_plain(values, maker):
            x = region.reads[0]
            break
    else:
        return None
    shape, sides = values.shapes[x], [list(values.shapes[name]) for name in maker.input]
    if len(shape) < 2 or any(len(side) != len(shape) or side[:-2] != list(shape[:-2]) for side in sides):
        return None
    if prod(shape) >= 1 << 24 or prod(values.shapes[value]) > _FEW * prod(shape) or values.target(x) != list(shape):
        return None
    part, random = values.part(region, value), np.random.default_rng(3)
    places = np.rint(part(np.arange(prod(shape), dtype=np.float32).reshape(shape))[0]).astype(np.int64)
    sample = random.standard_normal(shape).astype(np.float32)
    inside = ((places >= 0) & (places < prod(shape))).all()
    if not inside or not np.array_equal(part(sample)[0], sample.reshape(-1)[places]):
        return None
    places = np.array(np.unravel_index(places.reshape(-1), shape))
    batch = places[:-2]
    draft, vectors = Draft(graph), list[str]()
    for side, name in enumerate(maker.input):
        turned = (
            draft.op("Transpose", name, perm=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]) if side else name
        )
        flat = np.ravel_multi_index((*batch, places[-2 + side]), (*shape[:-2], shape[-2 + side]))
        rows = draft.reshape(turned, [-1, sides[0][-1]])
        whole = np.array_equal(flat, np.arange(prod(shape[:-2]) * shape[-2 + side]))
        vectors.append(rows if whole else draft.op("Gather", rows, draft.constant(flat, np.int64), axis=0))
    axes = draft.constant([-1], np.int64)
    product = draft.op("Mul", *vectors)
    total = draft.op("ReduceSum", product, axes) if graph.opset >= 13 else draft.op("ReduceSum", product, axes=[-1])
    draft.reshape(total, values.target(value), to=value)
    return values.cheaper(draft, "products: only the elements that are read", value)


def _modulated(values: Values, index: int) -> Rewrite | None:
    """Return a convolution with weights that are scaled at run time as one with constant weights and scaled channels.

    The samples of a batch may be groups, each with its own weights.
    """
    node, attributes = values.graph.nodes[index], values.graph.attributes[index]
    computed = node.op_type == "Conv" and not values.is_constant(node.input[1])
    if not computed or values.dtypes.get(node.output[0]) != np.float32:
        return None
    reader, shape, groups = _Reader(values, sums=False, depth=_MOST_DEPTH), values.shapes[node.input[1]], 1
    groups = attributes.get("group", 1)
    samples, outputs = reader.fresh(groups), reader.fresh(shape[0] // groups)
    inputs, *kernel = (reader.fresh(size) for size in shape[1:])
    terms = reader.terms(node.input[1], (samples + outputs, inputs, *kernel))
    if len(terms) != 1 or not inputs or not outputs:
        return None
    fixed = {factor: array for factor in terms[0].factors if (array := _array(values, factor)) is not None}
    scales = [factor for factor in terms[0].factors if factor not in fixed]
    sides = [[factor for factor in scales if set(factor.letters) <= {*samples, side}] for side in (inputs, outputs)]
    if not fixed or not scales or any(not any(factor in side for side in sides) for factor in scales):
        return None
    if any(set(factor.letters) & set(samples) for factor in fixed):
        return None
    letters = outputs + inputs + "".join(kernel)
    equation = ",".join(factor.letters for factor in fixed)
    if set(letters) != set(equation) - {","}:
        return None
    whole = terms[0].number * np.einsum(f"{equation}->{letters}", *fixed.values())
    writer = _Writer(values, reader.sizes, reader.changing)
    draft, spatial, x = writer.draft, len(shape) - 2, node.input[0]

    def scaled(value: str, factors: Sequence[_Factor], side: str) -> str:
        for factor in factors:
            name, own = writer.plain(factor)
            sizes = [reader.sizes[letter] if letter and letter in own else 1 for letter in (samples, side)]
            value = draft.op("Mul", value, draft.reshape(name, [*sizes, *[1] * spatial]))
        return value

    if groups > 1:
        x = draft.reshape(x, [groups, shape[1], *values.target(x)[2:]])
    weight = draft.constant(whole.reshape(shape[0] // groups, *shape[1:]), np.float32)
    made = draft.op("Conv", scaled(x, sides[0], inputs), weight, **{**attributes, "group": 1})
    made = scaled(made, [factor for factor in sides[1] if factor not in sides[0]], outputs)
    if groups > 1:
        made = draft.reshape(made, [1, shape[0], *values.target(node.output[0])[2:]])
    if len(node.input) > 2 and node.input[2]:
        made = draft.op("Add", made, draft.reshape(node.input[2], [1, -1, *[1] * spatial]))
    draft.finish(made, node.output[0])
    return values.cheaper(draft, "products: channels scaled in place of weights", node.output[0])


def _mixed(values: Values, index: int) -> Rewrite | None:
    """Return convolutions of one value, mixed by computed numbers, as one convolution with mixed weights."""
    graph, node = values.graph, values.graph.nodes[index]
    value = node.output[0]
    shape = values.shapes.get(value, ())
    if node.op_type not in {"Add", "ReduceSum", "Sum"} or not shape or values.dtypes[value] != np.float32:
        return None
    reader = _Reader(values, sums=True, depth=_MOST_DEPTH)
    axes = tuple(reader.fresh(size) for size in shape)
    try:
        terms = reader.terms(value, axes)
    except _TooMuchError:
        return None
    numbers, made = list[tuple[float, list[str]]](), list[onnx.NodeProto]()
    for term in terms:
        whole = [factor for factor in term.factors if factor.letters == "".join(axes) and not factor.inverse]
        others = [factor for factor in term.factors if factor not in whole]
        maker = graph.maker(whole[0].name) if len(whole) == 1 else None
        if maker is None or maker.op_type != "Conv" or any(other.letters or other.inverse for other in others):
            return None
        numbers.append((term.number, [other.name for other in others]))
        made.append(maker)
    weights = [
        [array for name in maker.input[1:] if name and (array := values.constant(name)) is not None] for maker in made
    ]
    alike = {
        (maker.input[0], repr(graph.attributes[graph.producer[maker.output[0]]]), *(array.shape for array in own))
        for maker, own in zip(made, weights, strict=True)
    }
    if len(made) < 2 or len(alike) > 1 or any(len(own) + 1 < len(made[0].input) for own in weights):
        return None
    draft, gates = Draft(graph), list[str]()
    for number, names in numbers:
        gate = draft.constant([[number]], np.float32)
        for name in names:
            gate = draft.op("Mul", gate, draft.reshape(name, [1, 1]))
        gates.append(gate)
    mixture, inputs = draft.op("Concat", *gates, axis=1), [made[0].input[0]]
    for arrays in zip(*weights, strict=True):
        flat = draft.constant(np.stack([array.reshape(-1) for array in arrays]))
        inputs.append(draft.reshape(draft.op("MatMul", mixture, flat), arrays[0].shape))
    draft.op("Conv", *inputs, to=value, **graph.attributes[graph.producer[made[0].output[0]]])
    return values.cheaper(draft, "products: weights mixed first", value, f"{len(made)} convolutions")


def _is_plain(values: Values, node: onnx.NodeProto) -> bool:
    named = all(name in values.shapes for name in (*node.input, *node.output) if name)
    return named and values.dtypes[node.output[0]] == np.float32 and bool(values.computed(node))


def _cheapest(values: Values, index: int, deadline: float) -> Rewrite | None:
    """Return the cheapest rewrite of a region that ends in a node; None if none is cheaper than the region."""
    best: Rewrite | None = None
    for sums, depth in ((True, _MOST_DEPTH), (False, _MOST_DEPTH), (True, 4), (False, 4), (False, 1)):
        if late(deadline):
            break
        try:
            rewrite = _rewritten(values, index, _Reader(values, sums, depth))
        except _TooMuchError:
            continue
        if rewrite is not None and (best is None or rewrite.saving_ns > best.saving_ns):
            best = rewrite
    return best


def _rewritten(values: Values, index: int, reader: _Reader) -> Rewrite | None:
    node = values.graph.nodes[index]
    value = node.output[0]
    shape = values.shapes[value]
    axes = tuple(reader.fresh(size) for size in shape)
    read = reader.root(index, node, axes, 0)
    if not read or any(not 0 < len(term.factors) <= _MOST_FACTORS + 1 for term in read):
        return None
    terms = [part for term in read for part in _paired(values, term)]
    region = {*reader.nodes, index}
    gone = values.graph.removable(sorted(region), value, kept=[
        factor.name for term in terms for factor in term.factors if factor.name
    ])  # fmt: skip
    before = values.cost_of(gone)
    if before < _LEAST_SHARE * values.total_ns or (len(gone) < 2 and node.op_type not in {"Einsum", "MatMul"}):
        return None
    result = "".join(axes)
    writer = _Writer(values, reader.sizes, reader.changing)
    predicted = sum(
        writer.order(
            tuple(factor.letters for factor in term.factors),
            tuple(bool(factor.chosen) or values.is_constant(factor.name) for factor in term.factors), result,
        )[0]
        for term in terms
    )  # fmt: skip
    if predicted > before:
        return None
    draft, total = writer.draft, ""
    written = sorted((writer.term(term, result) for term in terms), key=lambda entry: -len(entry[1]))
    if len(written) == 1 and set(written[0][1]) != set(result):
        return None
    for name, letters in written:
        side = writer.aligned(name, letters, result)
        total = draft.op("Add", total, side) if total else side
    if node.op_type == "ReduceL2":
        total = draft.op("Sqrt", draft.op("Max", total, draft.constant(0.0, np.float32)))
    if [size for size in shape if size > 1] != list(shape):
        total = draft.reshape(total, values.target(value))
    draft.finish(total, value)
    after = values.priced(draft, value, _CLOSE)
    if after is None or after > _CHEAPER * before:
        return None
    kind = _KINDS.get(node.op_type, _SUM if len(terms) < 2 else _SQUARES)
    kind = _PAIRS if len(terms) > len(read) else kind
    return draft.rewrite(f"products: {kind}", [value], values.graph.names(gone), before - after, f"{len(terms)} terms")


_PICKING = frozenset({
    "Einsum", "Flatten", "Gather", "GatherElements", "GatherND", "Mul", "ReduceSum", "Reshape", "Slice", "Squeeze",
    "Transpose", "Unsqueeze", "Where",
})  # fmt: skip
_FEW = 0.1
"""Share of a product's elements that are computed one by one."""
_CLOSE = 5e-5
_KINDS = {"Einsum": "Einsum as MatMul", "MatMul": "products in a cheaper order"}
_PAIRS = "pairs as the square of a sum"
_SUM, _SQUARES = "broadcast sum as MatMul", "sum of differences as products"
