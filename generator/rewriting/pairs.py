"""Pairs: sums of products of pairs of vectors, in any spelling, as one product of all vectors with each other.

Leaves of a region of products and sums are vectors of each sample. Its results are fitted to the products of all pairs,
so that the spelling does not matter: the sum over all pairs becomes a square of a sum, other results a batched product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx

from ...bricks.layer import VIEWS
from .form import Array, Draft, Rewrite
from .values import Values, late

_SUMMING = frozenset({"Add", "Concat", "Div", "Neg", "Sub", "Sum"})
_MOVING = VIEWS | {"Transpose"}
_PRODUCTS = frozenset({"MatMul", "Mul"})
_LEAST_NODES, _LEAST_PRODUCTS, _MOST_VECTORS, _MOST_RESULTS, _MOST_RUNS, _MOST_FITS = 12, 6, 48, 4096, 80, 6
_MOST_NODES = 6000
_CLOSE = 2e-5


@dataclass(frozen=True, slots=True)
class _Region:
    """Nodes between vectors and a result.

    Attributes:
        nodes: Indices of the nodes.
        leaves: The values that are multiplied.
        products: Number of products of two computed values.
    """

    nodes: frozenset[int]
    leaves: tuple[str, ...]
    products: int


def pairs(values: Values, deadline: float) -> list[Rewrite]:
    """Return regions that multiply pairs of vectors one by one, as one product."""
    found, covered, fits = list[Rewrite](), set[int](), 0
    for index in reversed(range(len(values.graph.nodes))):
        node = values.graph.nodes[index]
        if late(deadline) or fits == _MOST_FITS:
            break
        if index in covered or node.op_type not in _SUMMING | {"ReduceSum"}:
            continue
        joined = node.op_type == "Concat" and len(node.input) >= _LEAST_PRODUCTS
        begin, end = _multiplied(values, node) if joined else (0, len(node.input))
        region = _region(values, index, node.input[begin:end])
        sizes = {prod(values.shapes[name]) for name in region.leaves}
        if len(region.nodes) < _LEAST_NODES or len(sizes) != 1 or region.products < _LEAST_PRODUCTS:
            continue
        fits += 1
        if rewrite := values.attempt(_fitted, values, index, region, begin, end):
            found.append(rewrite)
            covered |= region.nodes
    return found


def _multiplied(values: Values, node: onnx.NodeProto) -> tuple[int, int]:
    """Return the longest run of inputs of a Concat that are products."""
    best, begin = (0, 0), 0
    for slot, name in enumerate((*node.input, "")):
        maker = values.graph.maker(name)
        while maker is not None and maker.op_type in _MOVING | {"ReduceSum"}:
            maker = values.graph.maker(maker.input[0])
        if maker is None or maker.op_type not in _PRODUCTS:
            best, begin = max(best, (begin, slot), key=lambda run: run[1] - run[0]), slot + 1
    return best


def _is_product(values: Values, place: int) -> bool:
    node = values.graph.nodes[place]
    return node.op_type in _PRODUCTS and not any(map(values.is_constant, node.input))


def _region(values: Values, index: int, names: Sequence[str]) -> _Region:
    """Return the nodes between products and the inputs of a node, and the values that are multiplied."""
    graph, region, leaves, products = values.graph, {index}, dict[str, None](), 0
    waiting = [name for name in names if not values.is_constant(name)]
    while waiting and len(region) < _MOST_NODES:
        name = waiting.pop()
        place = graph.producer.get(name)
        if place in region:
            continue
        if place is None or graph.nodes[place].op_type not in _SUMMING | _MOVING | _PRODUCTS | {"ReduceSum"}:
            leaves[name] = None
            continue
        region.add(place)
        if _is_product(values, place):
            products += 1
            leaves.update(dict.fromkeys(_vector(values, read, region) for read in graph.nodes[place].input))
        else:
            waiting += values.computed(graph.nodes[place])
    return _Region(frozenset(region), tuple(sorted(leaves, key=lambda name: graph.producer.get(name, -1))), products)


def _vector(values: Values, name: str, region: set[int]) -> str:
    """Return the value that a factor is a view of."""
    graph = values.graph
    while (place := graph.producer.get(name)) is not None and graph.nodes[place].op_type in _MOVING:
        source = graph.nodes[place].input[0]
        if sum(size > 1 for size in values.shapes[source]) > 2:
            break
        region.add(place)
        name = source
    return name


def _fitted(values: Values, index: int, region: _Region, begin: int, end: int) -> Rewrite | None:
    """Return the rewrite of a region; of a Concat some inputs alone may be products."""
    graph, node, leaves = values.graph, values.graph.nodes[index], region.leaves
    value, own = node.output[0], values.graph.fresh("pairs")
    last, shape = onnx.NodeProto(), list(values.shapes[value])
    last.CopyFrom(node)
    last.output[0] = own
    if end - begin < len(node.input):
        last.input[:] = node.input[begin:end]
        axis = graph.attributes[index]["axis"] % len(shape)
        shape[axis] = sum(values.shapes[name][axis] for name in last.input)
    shapes = {values.shapes[name] for name in leaves}
    sizes = {prod(own) for own in shapes}
    single = all(values.dtypes[name] == np.float32 for name in leaves)
    if not 2 < len(leaves) <= _MOST_VECTORS or len(sizes) > 1 or not single:
        return None
    samples = next(iter(shapes))[0]
    width, number, results = sizes.pop() // samples, len(leaves), prod(shape) // samples
    if any(other[0] != samples for other in (*shapes, shape)) or not 0 < results <= _MOST_RESULTS:
        return None
    inner = [graph.nodes[place] for place in sorted(region.nodes - {index})]
    function = values.function([*inner, last], dict.fromkeys(leaves, np.float32), [own])
    both = list(itertools.combinations_with_replacement(range(number), 2))

    def sampled(features: Callable[[Array], Array], columns: int) -> Array | None:
        """Return the factors of products of pairs that give the results; None if there are none."""
        inputs, outputs, random = list[Array](), list[Array](), np.random.default_rng(5)
        while sum(map(len, inputs)) < len(both) + 16:
            if len(inputs) > _MOST_RUNS:
                return None
            vectors = random.standard_normal((number, samples, width)).astype(np.float32)
            given = (own.reshape(values.shapes[name]) for own, name in zip(vectors, leaves, strict=True))
            inputs.append(features(vectors.astype(np.float64)))
            outputs.append(function(*given)[0].reshape(-1, columns))
        x, y = np.concatenate(inputs), np.concatenate(outputs).astype(np.float64)
        found = np.linalg.lstsq(x, y, rcond=None)[0]
        good = np.abs(x @ found - y).max() <= _CLOSE * np.abs(y).max()
        rounded: Array = np.where(np.abs(found) > _CLOSE * np.abs(found).max(), found, 0)
        return rounded if good and found.any() else None

    first, second = (np.array(side) for side in zip(*both, strict=True))
    summed = sampled(lambda vectors: np.einsum("psd,psd->sp", vectors[first], vectors[second]), results)
    each = None
    if summed is None and results == width:
        each = sampled(lambda vectors: (vectors[first] * vectors[second]).reshape(len(both), -1).T, 1)
    factors = summed if summed is not None else each
    if factors is None:
        return None
    draft = Draft(graph)
    joined = draft.op("Concat", *(draft.reshape(name, (-1, 1, width)) for name in leaves), axis=1)
    made = _at_once(draft, joined, factors, (first, second), each=each is not None, opset=graph.opset)
    if not made:
        return None
    made = draft.reshape(made, [-1, *shape[1:]])
    if end - begin < len(node.input):
        made = draft.op("Concat", *node.input[:begin], made, *node.input[end:], axis=graph.attributes[index]["axis"])
    draft.finish(made, value)
    return values.cheaper(draft, "products: pairs at once", value, f"{number} vectors")


def _at_once(draft: Draft, joined: str, factors: Array, both: tuple[Array, Array], *, each: bool, opset: int) -> str:
    """Write sums over pairs of vectors with some factors; return an empty name if that is not cheap."""
    first, second = both
    number, results = int(second.max()) + 1, factors.shape[1]
    beside = factors[first != second]
    if results == 1 and np.abs(beside - beside[0]).max() <= _CLOSE and not factors[first == second].any():
        return _square_of_sum(draft, joined, float(beside[0, 0]), each=each, opset=opset)
    if each:
        return ""
    made = draft.op("MatMul", joined, draft.op("Transpose", joined, perm=[0, 2, 1]))
    made, whole = draft.reshape(made, (-1, number * number)), np.zeros((number * number, results))
    whole[first * number + second] = factors
    if ((whole != 0).sum(0) == 1).all() and np.abs(whole.sum(0) - 1).max() < _CLOSE:
        return draft.op("Gather", made, draft.constant(whole.argmax(0), np.int64), axis=1)
    return draft.op("MatMul", made, draft.constant(whole, np.float32))


def _square_of_sum(draft: Draft, joined: str, factor: float, *, each: bool, opset: int) -> str:
    """Write the sum over all pairs, of each element or of their products."""

    def summed(value: str, axis: int) -> str:
        if opset >= 13:
            return draft.op("ReduceSum", value, draft.constant([axis], np.int64), keepdims=0)
        return draft.op("ReduceSum", value, axes=[axis], keepdims=0)

    total = summed(joined, 1)
    squares = summed(draft.op("Mul", joined, joined), 1)
    made = draft.op("Sub", draft.op("Mul", total, total), squares)
    made = made if each else summed(made, 1)
    return draft.op("Mul", made, draft.constant(factor / 2, np.float32))
