"""Attention by value: any spelling of softmax(scale Q K^T + mask) V of split heads becomes one operator.

The contents of recorded values identify queries, keys and values, so that the order of splitting, transposing and
scaling does not matter.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx

from .form import MICROSOFT, Array, Draft, Rewrite
from .values import Values, apart, late

_MOST_STEPS = 14
_CLOSE = 2e-5
_LEAST_BLOCK, _MOVES, _HIDDEN = 16, 24, -1e3
"""Queries of a block at least; work on one key of a block, as that of so many queries; a number that hides a key."""
_MASKING = frozenset({"Add", "Div", "Mul", "Where"})
_GAIN = 0.25
"""Predicted share that is saved."""


def attention(values: Values, deadline: float) -> list[Rewrite]:
    """Return attentions of ONNX Runtime's own operator."""
    graph, found = values.graph, list[Rewrite]()
    for index, node in enumerate(graph.nodes):
        if late(deadline):
            break
        shape = values.shapes.get(node.output[0]) if node.op_type == "Softmax" else None
        if shape is None or len(shape) != 4 or values.dtypes[node.output[0]] != np.float32:
            continue
        readers = graph.readers[node.output[0]]
        reader = graph.nodes[readers[0]] if len(readers) == 1 else None
        if reader is not None and reader.op_type == "MatMul" and reader.input[0] == node.output[0]:
            found += filter(None, [values.attempt(_unmasked, values, index, readers[0])])
            found += values.attempt(list, itertools.islice(_around(values, index, readers[0]), 1)) or []
    return found


def _unmasked(values: Values, softmax: int, product: int) -> Rewrite | None:
    """Return the attention of blocks of queries to the keys that a constant mask leaves to any of them."""
    graph, value = values.graph, values.graph.nodes[product].output[0]
    scores = graph.nodes[softmax].input[0]
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


def _heads(array: Array, heads: int) -> Array:
    batch, tokens, width = array.shape
    return array.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3).astype(np.float64)


def _upstream(values: Values, value: str, width: int) -> Iterator[str]:
    """Yield values of batch, tokens and width that one comes from, the nearest first."""
    waiting, seen = [value], {value}
    while waiting and len(seen) < _MOST_STEPS:
        index = values.graph.producer.get(waiting.pop(0))
        for name in () if index is None else values.graph.reads[index]:
            if name in seen or values.is_constant(name):
                continue
            seen.add(name)
            shape = values.shapes.get(name, ())
            if len(shape) == 3 and shape[2] == width and values.dtypes[name] == np.float32:
                yield name
            else:
                waiting.append(name)


def _around(values: Values, softmax: int, product: int) -> Iterator[Rewrite]:
    graph, run = values.graph, values.runs[0]
    scores_name = graph.nodes[softmax].input[0]
    _, heads, tokens, keys = values.shapes[scores_name]
    value_input, made = graph.nodes[product].input[1], graph.nodes[product].output[0]
    merged = _merged(values, made)
    if merged is None or len(values.shapes[value_input]) != 4:
        return
    width = heads * values.shapes[value_input][-1]
    for value in _upstream(values, value_input, width):
        if apart(_heads(run[value], heads), run[value_input]) > _CLOSE:
            continue
        for query, key, scale, mask in _scored(values, scores_name, heads):
            draft = Draft(graph)
            inputs = [query, key, value]
            if mask:
                inputs += ["", "", _expanded(values, draft, mask, (tokens, keys))]
            draft.op("MultiHeadAttention", *inputs, domain=MICROSOFT, num_heads=heads, scale=scale, to=merged)
            gone = graph.unneeded([merged], [name for name in inputs if name in graph.producer])
            saving_ns = _GAIN * values.cost_of(gone)
            yield draft.rewrite("attention: one operator", [merged], graph.names(gone), saving_ns, f"{heads} heads")


def _merged(values: Values, made: str) -> str | None:
    """Return the value in which the heads are side by side again."""
    run = values.runs[0]
    wanted = run[made].transpose(0, 2, 1, 3)
    wanted = wanted.reshape(*wanted.shape[:2], -1)
    name = made
    for _ in range(4):
        readers = values.graph.readers[name]
        if len(readers) != 1:
            return None
        name = values.graph.nodes[readers[0]].output[0]
        array = run.get(name)
        if array is None:
            return None
        if array.shape == wanted.shape:
            return name if np.array_equal(array, wanted) else None
    return None


def _scored(values: Values, name: str, heads: int) -> Iterator[tuple[str, str, float, str]]:
    """Yield query, key, scale and mask (empty for none) that make the scores."""
    run, maker = values.runs[0], values.graph.maker(name)
    scores = run[name].astype(np.float64)
    batch, _, tokens, _ = scores.shape
    masks = [""]
    if maker is not None and maker.op_type == "Add":
        masks += [
            source for source in maker.input if source in values.shapes and _fits(values.shapes[source], scores.shape)
        ]
    widths = {shape[2] for shape in values.shapes.values() if len(shape) == 3 and shape[2] % heads == 0}
    for width in sorted(widths):
        near = list(_upstream(values, name, width))[:4]
        for query, key in itertools.product(near, near):
            if values.shapes[query][:2] != (batch, tokens) or values.shapes[key][:2] != (batch, scores.shape[3]):
                continue
            plain = _heads(run[query], heads) @ _heads(run[key], heads).swapaxes(-1, -2)
            for mask in masks:
                added = 0.0 if not mask else _array(values, mask).astype(np.float64)
                rest = scores - added
                scale = float((plain * rest).sum() / ((plain**2).sum() + 1e-30))
                if scale and np.abs(scale * plain - rest).max() <= _CLOSE * (np.abs(rest).max() + 1e-12):
                    yield query, key, scale, mask


def _array(values: Values, name: str) -> Array:
    return values.graph.constants[name] if name in values.graph.constants else values.runs[0][name]


def _fits(shape: tuple[int, ...], scores: tuple[int, ...]) -> bool:
    padded = (1,) * (len(scores) - len(shape)) + shape
    return len(shape) <= len(scores) and all(size in {1, full} for size, full in zip(padded, scores, strict=True))


def _expanded(values: Values, draft: Draft, mask: str, wanted: tuple[int, int]) -> str:
    shape = values.shapes[mask]
    padded = (1,) * (4 - len(shape)) + shape
    target = (*padded[:2], *wanted)
    return mask if shape == target else draft.op("Expand", mask, draft.constant(list(target), np.int64))
