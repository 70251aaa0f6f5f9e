"""Products of two computed values, in any spelling, as one MatMul: Einsum, and sums over a product that broadcasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import onnx

from ...models.subgraphs import attribute_of
from .form import Draft, Rewrite
from .values import Values, late

_GAIN_EINSUM, _GAIN_BROADCAST = 0.3, 0.8
"""Predicted shares that are saved."""
_FEWEST_MACS = 512


@dataclass(frozen=True, slots=True)
class _Contraction:
    """A sum of products by letters.

    Attributes:
        first: Letters of the first value's axes.
        second: Letters of the second value's axes.
        result: Letters of the result's axes.
        sizes: Size by letter.
    """

    first: str
    second: str
    result: str
    sizes: Mapping[str, int]

    @property
    def parts(self) -> tuple[str, str, str, str] | None:
        """Letters of the batch, of the rows, of what is summed, and of the columns; None if it is no MatMul."""
        one, two, made = set(self.first), set(self.second), set(self.result)
        if len(one) < len(self.first) or len(two) < len(self.second) or made - (one | two):
            return None
        if (one ^ two) - made:
            return None  # a letter of one value alone that is summed
        both = one & two
        batch = "".join(letter for letter in self.result if letter in both)
        rows = "".join(letter for letter in self.result if letter in one - two)
        columns = "".join(letter for letter in self.result if letter in two - one)
        summed = "".join(letter for letter in self.first if letter in both - made)
        return (batch, rows, summed, columns) if summed else None

    def write(self, draft: Draft, first: str, second: str, to: str) -> bool:
        """Write it as a MatMul; False if it is none."""
        parts = self.parts
        if parts is None:
            return False
        batch, rows, summed, columns = parts
        left = self._arranged(draft, first, self.first, (batch, rows, summed))
        right = self._arranged(draft, second, self.second, (batch, summed, columns))
        made, letters = draft.op("MatMul", left, right), batch + rows + columns
        if len(rows) != 1 or len(columns) != 1 or len(batch) > 2:
            made = draft.reshape(made, [self.sizes[letter] for letter in letters])
        if letters != self.result:
            made = draft.op("Transpose", made, perm=[letters.index(letter) for letter in self.result])
        draft.finish(made, to)
        return True

    def _arranged(self, draft: Draft, value: str, letters: str, groups: tuple[str, str, str]) -> str:
        """Return a value with axes for the batch, and one each for two groups of letters."""
        wanted = "".join(groups)
        if wanted != letters:
            value = draft.op("Transpose", value, perm=[letters.index(letter) for letter in wanted])
        batch, *others = groups
        if all(len(group) == 1 for group in others) and len(batch) <= 2:
            return value
        lead = [self.sizes[letter] for letter in batch]
        lead = lead if len(lead) <= 2 else [prod(lead)]
        return draft.reshape(value, [*lead, *(prod(self.sizes[letter] for letter in group) for group in others)])


def products(values: Values, deadline: float) -> list[Rewrite]:
    """Return products in any spelling as a MatMul."""
    found = list[Rewrite]()
    for index in range(len(values.graph.nodes)):
        if late(deadline):
            break
        for search in (_einsum, _broadcast):
            found += values.attempt(list, search(values, index)) or []
    return found


def _einsum(values: Values, index: int) -> Iterator[Rewrite]:
    node = values.graph.nodes[index]
    if node.op_type != "Einsum" or len(node.input) != 2 or any(name not in values.shapes for name in node.input):
        return
    equation = str(attribute_of(node, "equation", "")).replace(" ", "")
    if "." in equation or "->" not in equation:
        return
    reads, result = equation.split("->")
    first, second = reads.split(",")
    shapes = [values.shapes[name] for name in node.input]
    sizes = dict(zip(second, shapes[1], strict=False)) | dict(zip(first, shapes[0], strict=False))
    draft = Draft(values.graph)
    if _Contraction(first, second, result, sizes).write(draft, node.input[0], node.input[1], node.output[0]):
        saving_ns = _GAIN_EINSUM * values.costs[index]
        yield draft.rewrite("products: Einsum as MatMul", node.output, [node.name], saving_ns, equation)


def _broadcast(values: Values, index: int) -> Iterator[Rewrite]:
    """A ReduceSum of a Mul whose inputs broadcast against each other."""
    graph, node = values.graph, values.graph.nodes[index]
    if node.op_type != "ReduceSum" or node.output[0] not in values.shapes:
        return
    product = graph.maker(node.input[0])
    alone = len(graph.readers[node.input[0]]) == 1 and node.input[0] not in graph.wanted
    if product is None or product.op_type != "Mul" or not alone or product.input[0] == product.input[1]:
        return
    shape, axes = values.shapes[node.input[0]], _axes(values, index, node)
    shapes = [values.shapes.get(name) for name in product.input]
    if axes is None or len(shape) > 8 or any(own is None for own in shapes):
        return
    letters = "abcdefgh"[: len(shape)]
    sides, sources = list[str](), list[str]()
    draft = Draft(graph)
    for name, own in zip(product.input, shapes, strict=True):
        assert own is not None  # noqa: S101  # looked at above
        ahead = len(shape) - len(own)
        real = [axis for axis, size in enumerate(own) if size > 1 or shape[axis + ahead] == 1]
        sides.append("".join(letters[axis + ahead] for axis in real))
        sources.append(name if len(real) == len(own) else draft.reshape(name, [own[axis] for axis in real]))
    summed = {letters[axis % len(shape)] for axis in axes}
    result = "".join(letter for letter in letters if letter not in summed)
    sizes = dict(zip(letters, shape, strict=True))
    contraction = _Contraction(sides[0], sides[1], result, sizes)
    if prod(shape) < _FEWEST_MACS or set(sides[0]) == set(sides[1]):
        return
    made = graph.fresh("product")
    if contraction.write(draft, sources[0], sources[1], made):
        if values.shapes[node.output[0]] != tuple(sizes[letter] for letter in result):
            draft.reshape(made, values.target(node.output[0]), to=node.output[0])
        else:
            draft.finish(made, node.output[0])
        gone = [graph.producer[node.input[0]], index]
        saving_ns = _GAIN_BROADCAST * values.cost_of(gone)
        yield draft.rewrite("products: broadcast sum as MatMul", node.output, graph.names(gone), saving_ns)


def _axes(values: Values, index: int, node: onnx.NodeProto) -> Sequence[int] | None:
    axes = values.graph.attributes[index].get("axes")
    if axes is None and len(node.input) > 1:
        given = values.constant(node.input[1])
        axes = None if given is None else [int(axis) for axis in given.reshape(-1)]
    return axes
