"""Pairs: sums of products of pairs of vectors, in any spelling, as one product of all vectors with each other.

Leaves of a region of products and sums are vectors of each sample. Its results are fitted to the products of all pairs,
so that the spelling does not matter: the sum over all pairs becomes a square of a sum, other results a batched product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from .form import Array, Draft, Rewrite
from .values import Values, late

_SUMMING = frozenset({"Add", "Concat", "Div", "Neg", "Sub", "Sum"})
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_PRODUCTS = frozenset({"MatMul", "Mul"})
_LEAST_NODES, _LEAST_PRODUCTS, _MOST_VECTORS, _MOST_RESULTS, _MOST_RUNS, _MOST_FITS = 12, 6, 48, 4096, 80, 6
_MOST_NODES = 6000
_CLOSE = 2e-5


def pairs(values: Values, deadline: float) -> list[Rewrite]:
    """Return regions that multiply pairs of vectors one by one, as one product."""
    found, covered, fits = list[Rewrite](), set[int](), 0
    for index in reversed(range(len(values.graph.nodes))):
        node = values.graph.nodes[index]
        if late(deadline) or fits == _MOST_FITS:
            break
        if index in covered or node.op_type not in _SUMMING | {"ReduceSum"} or len(node.input) < 1:
            continue
        region, leaves = _region(values, index)
        multiplied = [
            place for place in region
            if values.graph.nodes[place].op_type in _PRODUCTS
            and not any(map(values.is_constant, values.graph.nodes[place].input))
        ]  # fmt: skip
        sizes = {prod(values.shapes[name]) for name in leaves}
        if len(region) < _LEAST_NODES or len(sizes) > 1 or len(multiplied) < _LEAST_PRODUCTS:
            continue
        fits += 1
        if rewrite := values.attempt(_fitted, values, index, region, leaves):
            found.append(rewrite)
            covered |= region
    return found


def _region(values: Values, index: int) -> tuple[set[int], list[str]]:
    """Return the nodes between products and a node, and the values that are multiplied."""
    graph, region, leaves, waiting = values.graph, set[int](), dict[str, None](), [index]
    while waiting:
        place = waiting.pop()
        if place in region:
            continue
        if len(region) > _MOST_NODES:
            return set(), []
        region.add(place)
        reads = values.computed(graph.nodes[place])
        squared = graph.nodes[place].op_type in _PRODUCTS and not any(map(values.is_constant, graph.nodes[place].input))
        if squared:
            leaves.update(dict.fromkeys(_vector(values, name, region) for name in graph.nodes[place].input))
            continue
        for name in reads:
            maker = graph.producer.get(name)
            kind = "" if maker is None else graph.nodes[maker].op_type
            if maker is not None and kind in _SUMMING | _VIEWS | _PRODUCTS | {"ReduceSum"}:
                waiting.append(maker)
            else:
                leaves[name] = None
    return region, sorted(leaves, key=lambda name: graph.producer.get(name, -1))


def _vector(values: Values, name: str, region: set[int]) -> str:
    """Return the value that a factor is a view of."""
    graph = values.graph
    while (place := graph.producer.get(name)) is not None and graph.nodes[place].op_type in _VIEWS:
        source = graph.nodes[place].input[0]
        if sum(size > 1 for size in values.shapes[source]) > 2:
            break
        region.add(place)
        name = source
    return name


def _fitted(values: Values, index: int, region: set[int], leaves: Sequence[str]) -> Rewrite | None:
    graph, value = values.graph, values.graph.nodes[index].output[0]
    shapes = {values.shapes[name] for name in leaves}
    sizes = {prod(shape) for shape in shapes}
    if (
        not 2 < len(leaves) <= _MOST_VECTORS
        or len(sizes) > 1
        or any(values.dtypes[name] != np.float32 for name in leaves)
    ):
        return None
    samples = next(iter(shapes))[0]
    width, number, results = sizes.pop() // samples, len(leaves), prod(values.shapes[value]) // samples
    if any(shape[0] != samples for shape in (*shapes, values.shapes[value])) or not 0 < results <= _MOST_RESULTS:
        return None
    function = values.function(
        [graph.nodes[place] for place in sorted(region)], dict.fromkeys(leaves, np.float32), [value]
    )
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
    beside = factors[first != second]
    if factors.shape[1] == 1 and np.abs(beside - beside[0]).max() <= _CLOSE and not factors[first == second].any():
        made = _square_of_sum(draft, joined, float(beside[0, 0]), each=each is not None, opset=graph.opset)
    elif summed is not None:
        made = draft.op("MatMul", joined, draft.op("Transpose", joined, perm=[0, 2, 1]))
        made, whole = draft.reshape(made, (-1, number * number)), np.zeros((number * number, results))
        whole[first * number + second] = summed
        single = ((whole != 0).sum(0) == 1).all() and np.abs(whole.sum(0) - 1).max() < _CLOSE
        if single:
            made = draft.op("Gather", made, draft.constant(whole.argmax(0), np.int64), axis=1)
        else:
            made = draft.op("MatMul", made, draft.constant(whole, np.float32))
    else:
        return None
    draft.finish(draft.reshape(made, values.target(value)), value)
    return values.cheaper(draft, "products: pairs at once", value, f"{number} vectors")


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
