"""Structure of weights: zeros, blocks, one-hot rows, zero taps, a low rank; and precisions that no kernel has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .affine import grouped, groups_of, pick, taps_of
from .form import Array, Draft, Rewrite
from .generic import generic_of
from .values import Values, late

_LEAST_WEIGHTS, _LEAST_RANK = 64, 24
_RANK_SHARE, _SINGULAR, _RANK_GAIN = 0.7, 1e-5, 0.85
"""Ranks worth trying, as a share of the break-even; singular values that count as zero; multiplications that stay."""
_TAP_GAIN, _MOST_TAPS, _MOST_CHOSEN, _LEAST_WIDTH = 0.9, 16, 6, 32
_BLOCKS = 0.5
"""Share of weights that are not zero from which blocks are not looked for."""
_CLOSE = 1e-5
"""Largest error of a factored matrix, relative to its largest element."""
_HALF_CLOSE = 5e-3
"""Tolerance for the rounding of float16 over several operators."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A node that multiplies with constant weights.

    Attributes:
        values: The graph.
        index: The node.
        weight: Its weights.
        matrix: The same by input and output, for a plain product or a 1 x 1 convolution; None for any other.
    """

    values: Values
    index: int
    weight: Array
    matrix: Array | None

    @property
    def node(self) -> onnx.NodeProto:
        return self.values.graph.nodes[self.index]

    @property
    def x(self) -> str:
        return str(self.node.input[0])

    @property
    def value(self) -> str:
        return str(self.node.output[0])

    @property
    def attributes(self) -> dict[str, Any]:
        return self.values.graph.attributes[self.index]

    def numbers(self, name: str, default: list[int]) -> list[int]:
        """Return a list attribute."""
        found = self.attributes.get(name) or default
        assert isinstance(found, list)  # noqa: S101
        return found

    @property
    def bias(self) -> tuple[str, ...]:
        return tuple(self.node.input[2:])

    def rewrite(self, draft: Draft, kind: str, share: float, note: str = "") -> Rewrite:
        """Return the rewrite that saves a share of the node."""
        names = self.values.graph.names([self.index])
        return draft.rewrite(f"weights: {kind}", [self.value], names, share * self.values.costs[self.index], note)


def weights(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of products by the contents of their weights."""
    found = list[Rewrite]()
    for index in values.dearest:
        found += values.attempt(list, _lookup(values, index)) or []
    for index in values.dearest:
        if late(deadline):
            break
        product = _product(values, index)
        if product is None:
            found += values.attempt(_computed, values, index) or []
            continue
        for search in (_blocks, _one_hot, _running_sum, _banded, _taps, _components, _kronecker, _low_rank, _separable):
            if rewrite := values.attempt(next, search(product), None):
                found.append(rewrite)
                break
    return found


def _computed(values: Values, index: int) -> list[Rewrite]:
    """Return the first rewrite of a product by its left side."""
    searches = (_permuted, _diagonal, _from_left, _lookup)
    found = itertools.chain.from_iterable(search(values, index) for search in searches)
    return list(itertools.islice(found, 1))


def _product(values: Values, index: int) -> _Product | None:
    node, graph = values.graph.nodes[index], values.graph
    if node.op_type not in {"Conv", "Gemm", "MatMul"} or len(node.input) < 2 or node.input[0] not in values.shapes:
        return None
    weight = graph.constants.get(node.input[1])
    if weight is None or values.is_constant(node.input[0]) or weight.size < _LEAST_WEIGHTS or weight.dtype.kind != "f":
        return None
    attributes, matrix = graph.attributes[index], None
    if node.op_type == "MatMul" and weight.ndim == 2:
        matrix = weight
    elif node.op_type == "Gemm" and not attributes.get("transA") and attributes.get("alpha", 1.0) == 1.0:
        matrix = weight.T if attributes.get("transB") else weight
    elif node.op_type == "Conv" and attributes.get("group", 1) == 1 and np.prod(weight.shape[2:]) == 1:
        matrix = weight.reshape(weight.shape[:2]).T
    return _Product(values, index, weight, matrix)


def _blocks(product: _Product) -> Iterator[Rewrite]:
    """Rewrite a convolution with block-diagonal weights as a grouped one."""
    if product.node.op_type != "Conv" or product.attributes.get("group", 1) != 1:
        return
    groups = groups_of(product.weight)
    if groups > 1:
        draft = Draft(product.values.graph)
        weight = draft.constant(grouped(product.weight, groups))
        draft.op("Conv", product.x, weight, *product.bias, to=product.value, **{**product.attributes, "group": groups})
        yield product.rewrite(draft, "grouped convolution", 1 - 1 / groups, f"{groups} groups")


def _one_hot(product: _Product) -> Iterator[Rewrite]:
    """Rewrite a product with one input per output as a selection, perhaps with factors."""
    matrix, node = product.matrix, product.node
    if matrix is None or not ((matrix != 0).sum(0) == 1).all():
        return
    spatial = product.weight.ndim - 2 if node.op_type == "Conv" else 0
    if spatial and (set(product.numbers("strides", [1])) != {1} or any(product.numbers("pads", [0]))):
        return
    rows = (matrix != 0).argmax(0)
    factors = matrix[rows, np.arange(matrix.shape[1])]
    axis = 1 if spatial else len(product.values.shapes[product.x]) - 1
    around = (-1, *[1] * spatial)
    draft, made = Draft(product.values.graph), product.x
    if not np.array_equal(rows, np.arange(len(matrix))):
        made = pick(draft, made, rows, axis)
    if (factors != 1).any():
        made = draft.op("Mul", made, draft.constant(factors.reshape(around)))
    if product.bias and product.bias[0]:
        bias = product.values.constant(product.bias[0])
        if bias is None or product.attributes.get("beta", 1.0) != 1.0:
            return
        made = draft.op("Add", made, draft.constant(bias.reshape(around) if spatial else bias))
    draft.finish(made, product.value)
    yield product.rewrite(draft, "selection", 0.7)


def _taps(product: _Product) -> Iterator[Rewrite]:
    """Zeros around a kernel make it smaller; zeros between its taps make it dilated."""
    weight, spatial = product.weight, product.weight.ndim - 2
    if product.node.op_type != "Conv" or np.prod(weight.shape[2:]) == 1:
        return
    if product.attributes.get("auto_pad", "NOTSET") != "NOTSET" or not weight.any():
        return
    pads, dilations = product.numbers("pads", [0] * 2 * spatial), product.numbers("dilations", [1] * spatial)
    cuts, new_pads, new_dilations = list[slice](), [0] * 2 * spatial, list[int]()
    for axis, taps in enumerate(taps_of(weight)):
        cuts.append(slice(taps.start, taps.stop, taps.step))
        new_pads[axis] = pads[axis] - taps.start * dilations[axis]
        new_pads[axis + spatial] = pads[axis + spatial] - (weight.shape[2 + axis] - taps.stop) * dilations[axis]
        new_dilations.append(dilations[axis] * taps.step)
    small = weight[(slice(None), slice(None), *cuts)]
    if small.size > _TAP_GAIN * weight.size or min(new_pads) < 0:
        return
    draft = Draft(product.values.graph)
    shape = {"kernel_shape": list(small.shape[2:]), "pads": new_pads, "dilations": new_dilations}
    draft.op(
        "Conv", product.x, draft.constant(small), *product.bias, to=product.value, **{**product.attributes, **shape}
    )
    yield product.rewrite(draft, "smaller kernel", 1 - small.size / weight.size)


def _low_rank(product: _Product) -> Iterator[Rewrite]:
    """Rewrite a product with a matrix of low rank as two smaller products."""
    matrix, node = product.matrix, product.node
    if matrix is None or min(matrix.shape) < _LEAST_RANK:
        return
    inputs, outputs = matrix.shape
    found = factored(matrix, int(_RANK_SHARE * inputs * outputs / (inputs + outputs)))
    if found is None:
        return
    first, second = (side.astype(matrix.dtype) for side in found)
    rank = len(second)
    draft = Draft(product.values.graph)
    if node.op_type == "Conv":
        around = product.weight.shape[2:]
        kept: dict[str, Any] = {name: product.attributes.get(name) for name in ("strides", "pads", "auto_pad")}
        made = draft.op("Conv", product.x, draft.constant(first.T.reshape(rank, inputs, *around)), **kept)
        draft.op(
            "Conv", made, draft.constant(second.T.reshape(outputs, rank, *around)), *product.bias, to=product.value
        )
    else:
        made = draft.op("MatMul", product.x, draft.constant(first))
        operator = "MatMul" if node.op_type == "MatMul" else "Gemm"
        beta: dict[str, Any] = {} if operator == "MatMul" else {"beta": product.attributes.get("beta")}
        draft.op(operator, made, draft.constant(second), *product.bias, to=product.value, **beta)
    share = rank * (inputs + outputs) / (inputs * outputs)
    yield product.rewrite(draft, "low rank", 1 - share, f"rank {rank} of {inputs} x {outputs}")


def factored(matrix: Array, most: int) -> tuple[Array, Array] | None:
    """Return two factors of a matrix of a low rank; None if its rank is above a limit."""
    exact, random = matrix.astype(np.float64), np.random.default_rng(0)
    most = min(most, min(matrix.shape) - 1)
    some = exact[np.ix_(*(random.permutation(size)[: most + 1] for size in matrix.shape))]
    pivots = np.abs(np.diag(np.linalg.qr(some, mode="r"))) if some.size else np.zeros(1)
    if pivots.min() > _SINGULAR * pivots.max():
        return None  # some of its rows and columns alone have a larger rank
    number = 8
    while most > 0:
        number = min(number, most + 1)
        left, singular, _ = np.linalg.svd(exact @ random.standard_normal((exact.shape[1], number)), full_matrices=False)
        rank = max(1, int((singular > _SINGULAR * singular[0]).sum()))
        if rank < number:
            second = left[:, :rank].T @ exact
            error = np.abs(left[:, :rank] @ second - exact).max()
            return (left[:, :rank], second) if error < _CLOSE * np.abs(exact).max() else None
        if number > most:
            return None
        number *= 4
    return None


def _separable(product: _Product) -> Iterator[Rewrite]:
    """Rewrite a convolution with weights of low rank as one over rows, and one over columns or single pixels."""
    weight, attributes = product.weight, product.attributes
    if product.node.op_type != "Conv" or weight.ndim not in {3, 4} or np.prod(weight.shape[2:]) == 1:
        return
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return
    groups, alone = attributes.get("group", 1), weight.shape[1] == 1
    options = list[tuple[int, Array, Array]]()
    if alone and weight.ndim == 4:
        options += _by_axes(weight)
    if groups == 1 and not alone:
        options += _across(weight)
    least = min((option for option in options), key=lambda option: option[0], default=None)
    if least is None or least[0] > _RANK_GAIN * weight.size:
        return
    cost, first, second = least
    spatial = weight.ndim - 2
    pads, draft = product.numbers("pads", [0] * 2 * spatial), Draft(product.values.graph)
    made = product.x
    for step, kernel in enumerate((first, second)):
        own: dict[str, Any] = {"group": groups, "kernel_shape": list(kernel.shape[2:])}
        real = [kernel.shape[2 + axis] > 1 or (step == 1 and first.shape[2 + axis] == 1) for axis in range(spatial)]
        for name, default in (("strides", 1), ("dilations", 1)):
            given = product.numbers(name, [default] * spatial)
            own[name] = [number if use else default for number, use in zip(given, real, strict=True)]
        own["pads"] = [pad if real[place % spatial] else 0 for place, pad in enumerate(pads)]
        inputs = [made, draft.constant(kernel, weight.dtype), *(product.bias if step else ())]
        made = draft.op("Conv", *inputs, to=product.value if step else "", **own)
    yield product.rewrite(draft, "separable kernel", 1 - cost / weight.size, f"{first.shape} and {second.shape}")


def _by_axes(weight: Array) -> Iterator[tuple[int, Array, Array]]:
    """Yield the weights of a kernel for each channel as rows and columns, with the number of weights."""
    channels, _, high, wide = weight.shape
    left, singular, right = np.linalg.svd(weight[:, 0].astype(np.float64), full_matrices=False)
    rank = max(1, int((singular > _SINGULAR * singular[:, :1]).sum(1).max()))
    rows = (left[:, :, :rank] * singular[:, None, :rank]).transpose(0, 2, 1).reshape(channels * rank, 1, high, 1)
    yield rows.size + channels * rank * wide, rows, right[:, :rank].reshape(channels, rank, 1, wide)


def _across(weight: Array) -> Iterator[tuple[int, Array, Array]]:
    """Yield two convolutions that a dense one may be, with the number of weights."""
    outputs, inputs, *sizes = weight.shape
    last = len(sizes) - 1
    for cut in range(len(sizes) + 1):  # kernel axes before the cut go with the inputs
        if last == 0 and cut == 0:
            continue
        before, after = sizes[:cut], sizes[cut:]
        order = [1, *range(2, 2 + cut), 0, *range(2 + cut, weight.ndim)]
        matrix = weight.transpose(order).reshape(inputs * int(np.prod(before)), outputs * int(np.prod(after)))
        most = int(_RANK_GAIN * weight.size / sum(matrix.shape))
        if (found := factored(matrix, most)) is None:
            continue
        rank = len(found[1])
        around = [1] * len(after)
        first = found[0].T.reshape(rank, inputs, *before, *around)
        second = np.moveaxis(found[1].reshape(rank, outputs, *[1] * len(before), *after), 0, 1)
        yield first.size + second.size, first, second


def _components(product: _Product) -> Iterator[Rewrite]:
    """Rewrite a product with independent groups of inputs and outputs, in any order."""
    matrix, node = product.matrix, product.node
    if matrix is None or node.op_type == "Conv" or (matrix != 0).mean() > _BLOCKS:
        return
    inputs, outputs = matrix.shape
    rows, columns = _connected(matrix != 0)
    number = len(rows)
    if number < 2 or len({len(row) for row in rows}) > 1 or len({len(column) for column in columns}) > 1:
        return
    blocks = np.stack([matrix[np.ix_(row, column)] for row, column in zip(rows, columns, strict=True)])
    order, places = np.concatenate(rows), np.argsort(np.concatenate(columns))
    shape, draft = product.values.shapes[product.x], Draft(product.values.graph)
    made, last = product.x, len(shape) - 1
    if not np.array_equal(order, np.arange(inputs)):
        made = draft.op("Gather", made, draft.constant(order, np.int64), axis=last)
    count = int(np.prod(shape[:-1]))
    equal = not (blocks != blocks[:1]).any()
    made = draft.reshape(made, (count, number, blocks.shape[1]))
    if equal:
        made = draft.op("MatMul", made, draft.constant(blocks[0]))
    else:
        made = draft.op("MatMul", draft.op("Transpose", made, perm=[1, 0, 2]), draft.constant(blocks))
        made = draft.op("Transpose", made, perm=[1, 0, 2])
    made = draft.reshape(made, (*shape[:-1], outputs))
    if not np.array_equal(places, np.arange(outputs)):
        made = draft.op("Gather", made, draft.constant(places, np.int64), axis=last)
    if product.bias and product.bias[0]:
        if product.attributes.get("beta", 1.0) != 1.0:
            return
        made = draft.op("Add", made, product.bias[0])
    draft.finish(made, product.value)
    yield product.rewrite(draft, "blocks", 1 - 1 / number, f"{number} blocks")


def _connected(links: Array) -> tuple[list[Array], list[Array]]:
    """Return the groups of rows and of columns that are linked; one group of each if a row or column has no links."""
    from scipy.sparse import bmat, csr_matrix
    from scipy.sparse.csgraph import connected_components

    if not links.any(0).all() or not links.any(1).all():
        return [np.arange(len(links))], [np.arange(links.shape[1])]
    linked = csr_matrix(links)
    number, labels = connected_components(bmat([[None, linked], [linked.T, None]]), directed=False)
    rows, columns = labels[: len(links)], labels[len(links) :]
    return [np.nonzero(rows == name)[0] for name in range(number)], [
        np.nonzero(columns == name)[0] for name in range(number)
    ]


def _running(matrix: Array) -> tuple[float, int, int] | None:
    """Return the factor, the direction and the exclusiveness of a triangle of equal numbers; None for any other."""
    number = matrix.shape[0]
    factor = matrix[matrix != 0][:1]
    if matrix.shape != (number, number) or number < _LEAST_RANK or not factor.size:
        return None
    ones = np.ones((number, number), matrix.dtype) * factor
    for reverse, exclusive in itertools.product((0, 1), (0, 1)):
        triangle = np.tril(ones, -exclusive) if reverse else np.triu(ones, exclusive)
        if np.array_equal(matrix, triangle):
            return float(factor[0]), reverse, exclusive
    return None


def _running_sum(product: _Product) -> Iterator[Rewrite]:
    """Rewrite a product with a triangle of equal numbers as a running sum."""
    node, matrix = product.node, product.matrix
    if matrix is None or node.op_type != "MatMul" or (found := _running(matrix)) is None:
        return
    draft = Draft(product.values.graph)
    made = _sum_along(draft, product.x, len(product.values.shapes[product.x]) - 1, found, matrix.dtype)
    draft.finish(made, product.value)
    yield product.rewrite(draft, "running sum", 0.8)


def _sum_along(draft: Draft, x: str, axis: int, found: tuple[float, int, int], dtype: np.dtype[Any]) -> str:
    factor, reverse, exclusive = found
    made = draft.op("CumSum", x, draft.constant(axis, np.int64), reverse=reverse, exclusive=exclusive)
    return made if factor == 1 else draft.op("Mul", made, draft.constant(factor, dtype))


def _from_left(values: Values, index: int) -> Iterator[Rewrite]:
    """Rewrite a product with a constant matrix on the left: a running sum, or a low rank."""
    node = values.graph.nodes[index]
    if node.op_type != "MatMul" or values.is_constant(node.input[1]):
        return
    matrix, shape = values.constant(node.input[0]), values.shapes.get(node.input[1], ())
    if matrix is None or matrix.ndim != 2 or len(shape) < 2 or matrix.dtype.kind != "f":
        return
    draft, kind, share = Draft(values.graph), "", 0.0
    if (sums := _running(matrix.T)) is not None:
        draft.finish(_sum_along(draft, node.input[1], len(shape) - 2, sums, matrix.dtype), node.output[0])
        kind, share = "running sum", 0.8
    elif min(matrix.shape) >= _LEAST_RANK:
        most = int(_RANK_SHARE * matrix.size / sum(matrix.shape))
        if (found := factored(matrix, most)) is None:
            return
        made = draft.op("MatMul", draft.constant(found[1], matrix.dtype), node.input[1])
        draft.op("MatMul", draft.constant(found[0], matrix.dtype), made, to=node.output[0])
        kind, share = "low rank", 1 - len(found[1]) * sum(matrix.shape) / matrix.size
    if kind:
        yield draft.rewrite(f"weights: {kind}", node.output, [node.name], share * values.costs[index])


def _permuted(values: Values, index: int) -> Iterator[Rewrite]:
    """Rewrite a product with a constant matrix of few elements in each row on the left as a sum of chosen rows."""
    node = values.graph.nodes[index]
    if node.op_type != "MatMul" or values.is_constant(node.input[1]):
        return
    matrix = values.constant(node.input[0])
    shape = values.shapes.get(node.input[1], ())
    if matrix is None or matrix.ndim != 2 or len(shape) < 2 or not matrix.any():
        return
    number = int((matrix != 0).sum(1).max())
    if number > _MOST_CHOSEN or matrix.shape[1] < _LEAST_WIDTH * (number - 1):
        return
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :number]
    draft, total = Draft(values.graph), ""
    for rows in order.T:
        made, factors = node.input[1], matrix[np.arange(len(matrix)), rows][:, None]
        if not np.array_equal(rows, np.arange(shape[-2])):
            made = pick(draft, made, rows, len(shape) - 2)
        if (factors != 1).any():
            made = draft.op("Mul", made, draft.constant(factors))
        total = draft.op("Add", total, made) if total else made
    draft.finish(total, node.output[0])
    yield from filter(None, [values.cheaper(draft, "weights: selection", node.output[0], f"{number} in each row")])


def _kronecker(product: _Product) -> Iterator[Rewrite]:
    """Rewrite a product with a Kronecker product of two matrices as two products."""
    matrix = product.matrix
    if matrix is None or product.node.op_type != "MatMul" or min(matrix.shape) < _LEAST_RANK:
        return
    best: tuple[int, Array, Array] | None = None
    for high, wide in itertools.product(*(_divisors(size) for size in matrix.shape)):
        low, thin = matrix.shape[0] // high, matrix.shape[1] // wide
        blocks = matrix.reshape(high, low, wide, thin)
        at = np.unravel_index(np.abs(blocks).argmax(), blocks.shape)
        outer, inner = blocks[:, at[1], :, at[3]], blocks[at[0], :, at[2], :] / blocks[at]
        cost = min(matrix.shape[0] * thin + high * thin * wide, matrix.shape[0] * wide + low * wide * thin)
        if best is not None and cost >= best[0]:
            continue
        some = np.einsum("hw,lt->hlwt", outer[:4, :4], inner[:4, :4])
        if np.abs(some - blocks[:4, :4, :4, :4]).max() > _CLOSE * np.abs(blocks[at]):
            continue
        if np.abs(np.kron(outer, inner) - matrix).max() <= _CLOSE * np.abs(blocks[at]):
            best = cost, outer, inner
    if best is None:
        return
    _, outer, inner = best
    draft, shape = Draft(product.values.graph), product.values.target(product.value)
    made = draft.reshape(product.x, [*shape[:-1], len(outer), len(inner)])
    made = draft.op("MatMul", made, draft.constant(inner, matrix.dtype))
    made = draft.op("MatMul", draft.constant(outer.T, matrix.dtype), made)
    draft.reshape(made, shape, to=product.value)
    yield from filter(None, [product.values.cheaper(draft, "weights: Kronecker product", product.value)])


def _divisors(number: int) -> list[int]:
    return [size for size in range(2, number // 2 + 1) if number % size == 0]


def _banded(product: _Product) -> Iterator[Rewrite]:
    """Rewrite a product with the same few numbers around each diagonal element as a convolution."""
    matrix = product.matrix
    if matrix is None or product.node.op_type != "MatMul" or min(matrix.shape) < _LEAST_RANK:
        return
    rows, columns = np.nonzero(matrix)
    low, high = int((rows - columns).min(initial=0)), int((rows - columns).max(initial=0))
    if high - low + 1 > _BLOCKS * _BLOCKS * len(matrix) or not len(rows):
        return
    taps = np.array([matrix.diagonal(-step).max() + matrix.diagonal(-step).min() for step in range(low, high + 1)]) / 2
    whole = sum(
        np.eye(len(matrix), matrix.shape[1], -step) * tap for step, tap in zip(range(low, high + 1), taps, strict=True)
    )
    if np.abs(whole - matrix).max() > _CLOSE * np.abs(matrix).max():
        return
    draft, shape = Draft(product.values.graph), product.values.target(product.value)
    pads = [-low, high + matrix.shape[1] - len(matrix)]
    if min(pads) < 0:
        return
    made = draft.reshape(product.x, [-1, 1, len(matrix)])
    made = draft.op("Conv", made, draft.constant(taps.reshape(1, 1, -1), matrix.dtype), pads=pads)
    draft.reshape(made, shape, to=product.value)
    yield from filter(None, [product.values.cheaper(draft, "weights: band as a convolution", product.value)])


def _diagonal(values: Values, index: int) -> Iterator[Rewrite]:
    """Rewrite a product with a computed diagonal matrix as factors of rows or columns."""
    graph, node = values.graph, values.graph.nodes[index]
    for slot, name in enumerate(node.input if node.op_type == "MatMul" else ()):
        shape = values.shapes.get(name, ())
        if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < _LEAST_RANK or values.is_constant(name):
            continue
        runs = [run.get(name) for run in (*values.runs, *generic_of(values).runs)]
        if any(array is None or (array * (1 - np.eye(shape[-1], dtype=array.dtype))).any() for array in runs):
            continue
        draft, axis = Draft(graph), -1 - slot
        if graph.opset >= 13:
            factors = draft.op("ReduceSum", name, draft.constant([axis], np.int64))
        else:
            factors = draft.op("ReduceSum", name, axes=[axis])
        draft.op("Mul", node.input[1 - slot], factors, to=node.output[0])
        if rewrite := values.cheaper(draft, "weights: diagonal matrix as factors", node.output[0]):
            yield rewrite
            return


def _lookup(values: Values, index: int) -> Iterator[Rewrite]:
    """Rewrite a product with a one-hot left side, computed from indices, as a lookup."""
    graph, node = values.graph, values.graph.nodes[index]
    weight = graph.constants.get(node.input[1]) if node.op_type in {"Conv", "MatMul"} else None
    if weight is None or (node.op_type == "MatMul" and weight.ndim != 2):
        return
    rows, bag = node.input[0], graph.maker(node.input[0])
    name = _indices_of(values, rows, 1 if node.op_type == "Conv" else -1)
    if name is None and bag is not None and bag.op_type in {"ReduceMean", "ReduceSum"} and node.op_type == "MatMul":
        rows = bag.input[0]
        name = _indices_of(values, rows, -1)
    if name is None:
        return
    draft, note = Draft(graph), "indices out of range fail, where the product gave zeros"
    if node.op_type == "Conv":
        if _taps_looked_up(values, index, draft, name, weight):
            yield from filter(None, [values.cheaper(draft, "weights: lookup", node.output[0], note)])
        return
    made = draft.op("Gather", node.input[1], name, axis=0)
    if rows != node.input[0] and bag is not None and values.shapes[name] == values.shapes[rows][:-1]:
        draft.copy(bag, {rows: made}, to=node.output[0])
        yield from filter(None, [values.cheaper(draft, "weights: lookup", node.output[0], note)])
        return
    if values.shapes[name] != values.shapes[node.output[0]][:-1]:
        made = draft.reshape(made, values.target(node.output[0]))
    draft.finish(made, node.output[0])
    gone = graph.unneeded(node.output, [name])
    yield draft.rewrite("weights: lookup", node.output, graph.names(gone), values.cost_of(gone), note)


def _indices_of(values: Values, rows: str, axis: int) -> str | None:
    """Return the upstream value with the indices of one-hot vectors along an axis; None if they are not one-hot."""
    if any(rows not in run for run in values.runs):
        return None
    hot = [np.moveaxis(run[rows], axis, -1) for run in values.runs]
    if hot[0].shape[-1] < 4 or not all(
        ((array != 0).sum(-1) == 1).all() and (array.max(-1) == 1).all() for array in hot
    ):
        return None
    picked = [array.argmax(-1) for array in hot]
    region = next(iter(values.regions(rows, lambda _: True, most_nodes=12)), None)
    for name in _upstream(values, rows, 12) if region and picked[0].size else ():
        kind = values.dtypes.get(name)
        if kind is not None and kind.kind in "iu" and all(
            np.array_equal(run[name].reshape(-1), index.reshape(-1))
            for run, index in zip(values.runs, picked, strict=True)
        ):  # fmt: skip
            return name
    return None


def _taps_looked_up(values: Values, index: int, draft: Draft, name: str, weight: Array) -> bool:
    """Write a convolution of one-hot channels as the sum of lookups, one for each tap; return False if it is not one.

    A place beyond the border reads a row of zeros.
    """
    node, attributes, spatial = values.graph.nodes[index], values.graph.attributes[index], weight.ndim - 2
    size, taps = weight.shape[1], list(np.ndindex(*weight.shape[2:]))
    plain = attributes.get("group", 1) == 1 and attributes.get("auto_pad", "NOTSET") == "NOTSET"
    if not plain or len(taps) > _MOST_TAPS or len(values.shapes[name]) != spatial + 1:
        return False
    strides, dilations = (attributes.get(key) or [1] * spatial for key in ("strides", "dilations"))
    pads, places = attributes.get("pads") or [0] * 2 * spatial, values.shapes[node.output[0]][2:]
    if any(pads):
        around = draft.constant([0, *pads[:spatial], 0, *pads[spatial:]], np.int64)
        name = draft.op("Pad", name, around, draft.constant(size, values.dtypes[name]))
    total, axes = "", draft.constant(range(1, spatial + 1), np.int64)
    for tap in taps:
        begins = [place * step for place, step in zip(tap, dilations, strict=True)]
        ends = [low + (number - 1) * step + 1 for low, number, step in zip(begins, places, strides, strict=True)]
        bounds = [
            draft.constant(begins, np.int64),
            draft.constant(ends, np.int64),
            axes,
            draft.constant(strides, np.int64),
        ]
        table = np.concatenate([weight[(slice(None), slice(None), *tap)].T, np.zeros((1, len(weight)), weight.dtype)])
        made = draft.op("Gather", draft.constant(table), draft.op("Slice", name, *bounds), axis=0)
        total = draft.op("Add", total, made) if total else made
    if len(node.input) > 2 and node.input[2]:
        total = draft.op("Add", total, node.input[2])
    draft.op("Transpose", total, perm=[0, spatial + 1, *range(1, spatial + 1)], to=node.output[0])
    return True


def _upstream(values: Values, value: str, most: int) -> list[str]:
    """Return the values that one comes from, the nearest first."""
    found, waiting = dict[str, None](), [value]
    while waiting and len(found) < most:
        index = values.graph.producer.get(waiting.pop(0))
        for name in () if index is None else values.graph.reads[index]:
            if name not in found and name in values.runs[0]:
                found[name] = None
                waiting.append(name)
    return list(found)


# Precision: float64, and float16 without kernels of its own, in float32.


def precision(values: Values, deadline: float) -> list[Rewrite]:
    """Return one rewrite each for float64 and float16 that computes in float32 instead."""
    kinds = (np.dtype(np.float64), "float64"), (np.dtype(np.float16), "float16")
    return [rewrite for dtype, name in kinds if not late(deadline) and (rewrite := _in_float32(values, dtype, name))]


def _in_float32(values: Values, dtype: np.dtype[np.generic], name: str) -> Rewrite | None:
    graph, draft = values.graph, Draft(values.graph)
    old, new = helper.np_dtype_to_tensor_dtype(dtype), TensorProto.FLOAT
    renamed, whole, gone = dict[str, str](), list[str](), list[int]()

    def is_old(value: str) -> bool:
        return value in values.dtypes and values.dtypes[value] == dtype

    def read(value: str) -> str:
        if not value or not is_old(value):
            return value
        if value not in renamed:
            if value in graph.constants:
                renamed[value] = draft.constant(graph.constants[value].astype(np.float32))
            else:
                renamed[value] = draft.op("Cast", value, to=graph.fresh("single"))
                draft.nodes[-1].attribute.append(helper.make_attribute("to", new))
        return renamed[value]

    for index, node in enumerate(graph.nodes):
        if not any(map(is_old, (*node.input, *node.output))):
            continue
        if node.attribute and any(attribute.HasField("g") for attribute in node.attribute):
            return None
        gone.append(index)
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.name = graph.fresh("single")
        made.input[:] = [read(value) for value in node.input]
        for slot, value in enumerate(node.output):
            if is_old(value):
                renamed[value] = made.output[slot] = graph.fresh("single")
            elif value:
                whole.append(value)
        for attribute in made.attribute:
            if attribute.name in {"dtype", "to"} and attribute.i == old:
                attribute.i = new
            if attribute.HasField("t") and attribute.t.data_type == old:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float32)))
        draft.nodes.append(made)
    for value in graph.wanted:
        if value in renamed and value in graph.producer:
            draft.op("Cast", renamed[value], to=value)
            draft.nodes[-1].attribute.append(helper.make_attribute("to", old))
            whole.append(value)
    if not gone or not whole:
        return None
    rewrite = draft.rewrite(f"precision: {name} in float32", whole, graph.names(gone), values.cost_of(gone) / 2)
    return replace(rewrite, close=_HALF_CLOSE) if dtype == np.float16 else rewrite
