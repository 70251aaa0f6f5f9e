"""Attention: a key that a constant mask hides from every query of a block need not be multiplied.

Queries are cut into blocks, and each block meets the keys that any of its queries sees: a window, a segment, or all
keys but those of padding.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from .form import Array, Draft, Rewrite
from .values import Values, late

_LEAST_BLOCK, _MOVES, _HIDDEN = 16, 24, -1e3
"""Queries of a block at least; work on one key of a block, as that of so many queries; a number that hides a key."""
_MASKING = frozenset({"Add", "Div", "Mul", "Where"})


def attention(values: Values, deadline: float) -> list[Rewrite]:
    """Return attentions without masked keys."""
    graph, found = values.graph, list[Rewrite]()
    for index, node in enumerate(graph.nodes):
        if late(deadline):
            break
        readers = graph.readers[node.output[0]] if node.op_type == "Softmax" else []
        reader = graph.nodes[readers[0]] if len(readers) == 1 else None
        if reader is not None and reader.op_type == "MatMul" and reader.input[0] == node.output[0]:
            found += filter(None, [values.attempt(_unmasked, values, index, readers[0])])
    return found


def _unmasked(values: Values, softmax: int, product: int) -> Rewrite | None:
    """Return the attention of blocks of queries to the keys that a constant mask leaves to any of them."""
    graph, value = values.graph, values.graph.nodes[product].output[0]
    scores = graph.nodes[softmax].input[0]
    if len(values.shapes[scores]) < 3:
        return None
    (*lead, tokens, keys), rank = values.shapes[scores], len(values.shapes[scores]) - 2
    found = _scores(values, scores)
    maker = None if found is None else graph.maker(found[0])
    if found is None or maker is None or maker.op_type != "MatMul":
        return None
    name, chain, masked = found
    probable = (run[graph.nodes[softmax].output[0]][..., masked] for run in values.runs)
    if not masked.any() or masked.all(1).any() or any(array.any() for array in probable):
        return None
    size, rows = min(_blocks(masked), key=lambda block: block[0])[1:]
    number, most = len(rows), max(map(len, rows))
    keep = np.array([[*row, *[row[0]] * (most - len(row))] for row in rows])
    added = np.array([[place >= len(row) for place in range(most)] for row in rows])[:, None]

    def blocks_of(array: Array, node: onnx.NodeProto) -> Array:
        """Return a constant of queries and keys for each block; added keys are hidden."""
        wide = np.broadcast_to(array, (*array.shape[:-2], tokens, keys))
        split = wide.reshape(*wide.shape[:-2], number, size, keys)
        own = np.take_along_axis(split, np.broadcast_to(keep[:, None], (*split.shape[:-1], most)), -1)
        hides = wide.min() if array.dtype != np.bool_ else float(np.max(values.constant(node.input[1]) or 0)) < _HIDDEN
        made: Array = np.where(added, hides, own).astype(array.dtype)
        return made

    draft, inner = Draft(graph), [0] * len(lead)
    query = draft.reshape(maker.input[0], [*inner, number, size, values.shapes[maker.input[0]][-1]])
    key = draft.op("Gather", maker.input[1], draft.constant(keep, np.int64), axis=rank + 1)
    key = draft.op("Transpose", key, perm=[*range(rank), rank + 1, rank, rank + 2])
    made = draft.op("MatMul", query, key)
    for place in chain:
        node, names = graph.nodes[place], {name: made}
        for read in node.input:
            array = values.constant(read) if read != name else None
            if array is not None and array.size > 1:
                names[read] = draft.constant(blocks_of(array, node))
        made, name = draft.copy(node, names, to=graph.fresh("block")), node.output[0]
    v = draft.op("Gather", graph.nodes[product].input[1], draft.constant(keep, np.int64), axis=rank)
    made = draft.op("MatMul", draft.op("Softmax", made, axis=-1), v)
    draft.reshape(made, [*inner, tokens, values.shapes[value][-1]], to=value)
    return values.cheaper(draft, "attention: masked keys left out", value, f"{most} of {keys} keys")


def _scores(values: Values, name: str) -> tuple[str, list[int], Array] | None:
    """Return the unmasked scores, the nodes after them, and for each query the keys that constants hide."""
    graph, shape, chain = values.graph, values.shapes[name], list[int]()
    heads, masked = tuple(range(len(shape) - 2)), np.zeros(shape[-2:], np.bool_)
    while (place := graph.producer.get(name)) is not None and graph.nodes[place].op_type in _MASKING:
        node = graph.nodes[place]
        reads = values.computed(node)
        if len(reads) != 1 or values.shapes.get(reads[0]) != shape or len(graph.readers[name]) > 1:
            return None
        fixed = {read: array for read in node.input if (array := values.constant(read)) is not None}
        if node.op_type == "Add":
            masked |= np.broadcast_to(next(iter(fixed.values())) < _HIDDEN, shape).all(heads)
        elif node.op_type == "Where":
            if reads[0] == node.input[0]:
                return None
            first, second = (read in fixed and float(fixed[read].max()) < _HIDDEN for read in node.input[1:])
            taken = np.broadcast_to(fixed[node.input[0]], shape)
            masked |= ((taken & first) | (~taken & second)).all(heads)
        elif any(array.size > 1 for array in fixed.values()):
            return None
        chain.insert(0, place)
        name = reads[0]
    return name, chain, masked


def _blocks(masked: Array) -> Iterator[tuple[float, int, list[list[int]]]]:
    """Yield the cost, the number of queries in a block, and the keys of each block."""
    tokens, keys = masked.shape
    for size in range(1, tokens + 1):
        if tokens % size == 0 and (size == tokens or size >= _LEAST_BLOCK):
            rows = [np.nonzero(~block.all(0))[0].tolist() for block in masked.reshape(-1, size, keys)]
            most = max(map(len, rows))
            yield float(tokens * most + _MOVES * len(rows) * most), size, rows
