"""Equality of values: values that are always equal are computed once, in any spelling; constants never.

Recorded contents give the candidates. Two values that are equal there need not be equal for other inputs (a Clip of
small numbers), so that both are computed again from numbers of every size.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from .form import Array, Draft, Rewrite
from .generic import generic_of, is_exact
from .values import Feeds, Region, Values, apart, late

_LEAST_ELEMENTS, _SAMPLE = 16, 20_000
_NEIGHBOURS = 12
"""Values with close fingerprints that a value is compared with."""
_MOST_NODES, _MOST_TESTS = 60, 6
_LEAST_SHARE = 0.002
"""Predicted share of the model that a value saves at least."""
_CLOSE = 2e-6
_LEAST_FINITE = 0.3
_FEWEST = 6
"""Nodes that a constant for each sample replaces at least: it takes four nodes itself."""
_MOST_BYTES = 64 << 20
"""Limit on one computed constant."""

_SPELLINGS = frozenset({"Cast", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def constants(values: Values, deadline: float) -> list[Rewrite]:
    """Return values that depend on constants alone as constants, and sums and products without what changes nothing."""
    graph, found = values.graph, list[Rewrite]()
    known = values.shape_only
    for node in graph.nodes:
        if late(deadline):
            break
        draft, made = Draft(graph), list[str]()
        for name in node.output:
            array = values.runs[0].get(name)
            needed = name in graph.wanted or any(
                graph.nodes[reader].output[0] not in known for reader in graph.readers[name]
            )
            if name and name in known and needed and array is not None and array.nbytes <= _MOST_BYTES:
                draft.op("Identity", draft.constant(array), to=name)
                made.append(name)
        if made:
            gone = graph.unneeded(made, ())
            found.append(draft.rewrite("constants: computed once", made, graph.names(gone), values.cost_of(gone)))
    found += _for_each_sample(values)
    sums = (_nothing_added(values, index) for index in range(len(graph.nodes)))
    return [*found, *(rewrite for rewrite in sums if rewrite is not None)]


def _for_each_sample(values: Values) -> list[Rewrite]:
    """Return values that are the same constant for each index of a dynamic axis as that constant, expanded."""
    graph, found = values.graph, list[Rewrite]()
    for index, node in enumerate(graph.nodes):
        value = node.output[0]
        inside = value not in graph.wanted and all(
            graph.nodes[reader].output[0] in values.of_shapes for reader in graph.readers[value]
        )
        if inside or value not in values.of_shapes - values.shape_only or not values.is_float(value):
            continue
        array, other = values.runs[0][value], values.other[value]
        axes = [axis for axis in range(min(array.ndim, other.ndim)) if array.shape[axis] != other.shape[axis]]
        if len(axes) != 1 or not min(array.size, other.size):
            continue
        (axis,) = axes
        once, source = array.take([0], axis), _as_long(values, value, axis)
        if source is None or any(apart(own, np.broadcast_to(once, own.shape)) > _CLOSE for own in (array, other)):
            continue
        draft = Draft(graph)
        size = draft.op("Gather", draft.op("Shape", source[0]), draft.constant([source[1]], np.int64))
        sizes = [draft.constant([1], np.int64) if place != axis else size for place in range(array.ndim)]
        draft.op("Expand", draft.constant(once), draft.op("Concat", *sizes, axis=0), to=value)
        gone = graph.unneeded([value], [source[0]])
        if len(gone) > _FEWEST and values.cost_of(gone) > 2 * values.costs[index]:
            kind = "constants: computed once for all samples"
            found.append(draft.rewrite(kind, [value], graph.names(gone), values.cost_of(gone)))
    return found


def _as_long(values: Values, value: str, axis: int) -> tuple[str, int] | None:
    """Return an input and its axis that is as long as a value's axis at both shapes; None without a single one."""
    wanted, found, names = (values.shapes[value][axis], values.other[value].shape[axis]), None, set[str]()
    for entry in values.graph.inputs:
        dims = entry.type.tensor_type.shape.dim
        for place, sizes in enumerate(zip(values.shapes[entry.name], values.other[entry.name].shape, strict=True)):
            if sizes == wanted:
                found = found or (entry.name, place)
                names.add(dims[place].dim_param or f"{entry.name} {place}")
    return found if len(names) == 1 else None


def shapes_of_inputs(values: Values) -> list[Rewrite]:
    """Return one rewrite that reads all shapes from inputs, so that a shape does not need the value that has it."""
    graph, draft, known, made = values.graph, Draft(values.graph), dict[object, str](), dict[str, str]()

    def once(key: object, operator: str, *inputs: str, **attributes: Any) -> str:
        if key not in known:
            known[key] = draft.op(operator, *inputs, **attributes)
        return known[key]

    for index, node in enumerate(graph.nodes):
        name = node.input[0] if node.op_type == "Shape" and not graph.attributes[index] else ""
        if not name or name in graph.given or name not in values.other or name not in values.shapes:
            continue
        sizes = list(zip(values.shapes[name], values.other[name].shape, strict=False))
        sources = [None if own == other else _as_long(values, name, axis) for axis, (own, other) in enumerate(sizes)]
        if not any(sources) or any(
            not source and own != other for source, (own, other) in zip(sources, sizes, strict=True)
        ):
            continue
        parts = [
            once(source, "Gather", once(source[0], "Shape", source[0]), draft.constant([source[1]], np.int64))
            if source else draft.constant([own], np.int64)
            for source, (own, _) in zip(sources, sizes, strict=True)
        ]  # fmt: skip
        key = tuple(source or own for source, (own, _) in zip(sources, sizes, strict=True))
        made[node.output[0]] = once(key, "Concat", *parts, axis=0)
    for value, source in made.items():
        draft.op("Identity", source, to=value)
    gone = [graph.producer[value] for value in made]
    return [draft.rewrite("constants: shapes of inputs", made, graph.names(gone), 0.0)] if made else []


_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}


def _nothing_added(values: Values, index: int) -> Rewrite | None:
    """Return a sum without a summand of zeros, or one that they multiply; a product without a factor of ones."""
    graph, node = values.graph, values.graph.nodes[index]
    for slot in ((0, 1) if node.op_type in {"Add", "Mul"} else (1,)) if node.op_type in _NEUTRAL else ():
        name, other = node.input[slot], node.input[1 - slot]
        maker, array = graph.maker(name), values.constant(name)
        if values.is_constant(other) or values.shapes.get(other) != values.shapes.get(node.output[0]):
            continue
        arrays, neutral = [array], _NEUTRAL[node.op_type]
        if not neutral and maker is not None and maker.op_type == "Mul":
            arrays += [values.constant(read) for read in maker.input]
        if any(array is not None and array.size and (array == neutral).all() for array in arrays):
            draft = Draft(graph)
            draft.finish(draft.op("Identity", other), node.output[0])
            gone = graph.removable(range(index + 1), node.output[0], kept=[other])
            names, saving_ns = graph.names(gone), values.cost_of(gone)
            return draft.rewrite("constants: zeros and ones left out", [node.output[0]], names, saving_ns)
    return None


def equal(values: Values, deadline: float) -> list[Rewrite]:
    """Return values that equal earlier ones, or reshape them."""
    graph, found, covered = values.graph, list[Rewrite](), set[int]()
    pairs = [(first, second) for first, second in _alike(values) if not _is_spelling(values, first, second)]
    priced = []
    for first, second in pairs:
        if late(deadline):
            break
        gone = graph.unneeded([second], [first])
        if gone and values.cost_of(gone) >= _LEAST_SHARE * values.total_ns:
            priced.append((values.cost_of(gone), first, second, gone))
    for saving, first, second, gone in sorted(priced, key=lambda entry: -entry[0]):
        if late(deadline):
            break
        if covered.issuperset(gone) or not values.attempt(_always, values, first, second, deadline):
            continue
        covered.update(gone)
        draft = Draft(graph)
        if values.shapes[first] == values.shapes[second]:
            draft.op("Identity", first, to=second)
        else:
            draft.reshape(first, values.target(second), to=second)
        found.append(draft.rewrite("equality: computed twice", [second], graph.names(gone), saving))
    return found


def _alike(values: Values) -> Iterator[tuple[str, str]]:
    """Yield pairs of values that are equal in every recorded run, the earlier one first."""
    random = np.random.default_rng(1)
    weights = random.standard_normal(_SAMPLE)
    groups = defaultdict[tuple[int, object], list[tuple[float, float, str]]](list)
    names = [value.name for value in values.graph.inputs]
    names += [name for node in values.graph.nodes for name in node.output if name]
    for name in names:
        array = values.runs[0].get(name)
        if array is None or array.dtype.kind not in "fiu" or array.size < _LEAST_ELEMENTS or values.is_constant(name):
            continue
        sample = array.reshape(-1)[:_SAMPLE].astype(np.float64)
        length = float(np.linalg.norm(sample))
        if np.isfinite(length) and length > 1e-9:
            groups[array.size, array.dtype].append((float(sample @ weights[: sample.size]) / length, length, name))
    for members in groups.values():
        members.sort()
        for place, (print_, length, name) in enumerate(members):
            for other_print, other_length, other in members[max(0, place - _NEIGHBOURS) : place][::-1]:
                if print_ - other_print > 1e-4:
                    break
                if abs(length - other_length) <= 1e-4 * length and _same_in_all(values, other, name):
                    first, second = sorted((name, other), key=lambda name: values.graph.producer.get(name, -1))
                    if values.graph.producer.get(first, -1) < values.graph.producer.get(second, -1):
                        yield first, second
                        break


def _same_in_all(values: Values, first: str, second: str) -> bool:
    return all(
        run[first].size == run[second].size and apart(run[first].reshape(-1), run[second].reshape(-1)) <= _CLOSE
        for run in values.runs
    )


def _is_spelling(values: Values, first: str, second: str) -> bool:
    """Return True if the second is the first under another name or shape, which costs nothing."""
    maker = values.graph.maker(second)
    return maker is not None and maker.op_type in _SPELLINGS and first in maker.input


def _always(values: Values, first: str, second: str, deadline: float) -> bool:
    """Return True if both are equal in generic runs, or for numbers of every size in their few common sources."""
    if all(name in generic_of(values).runs[0] for name in (first, second)) and all(
        apart(run[first].reshape(-1), run[second].reshape(-1)) <= 10 * _CLOSE for run in generic_of(values).runs
    ):
        return True
    pair = first, second
    for region in itertools.islice(_common(values, first, second), _MOST_TESTS):
        if late(deadline):
            return False
        if not all(is_exact(values, index) for index in region.nodes):
            continue
        made = {name for index in region.nodes for name in values.graph.nodes[index].output}
        outputs = [name for name in (first, second) if name in made]
        nodes = [values.graph.nodes[index] for index in region.nodes]
        reads = {name: values.dtypes[name] for name in region.reads}
        part = values.function(nodes, reads, outputs)
        if all(_same_on(dict(zip(reads, given, strict=True)), dict(zip(outputs, part(*given), strict=True)), pair)
               for given in _wide(values, region)):  # fmt: skip
            return True
    return False


def _same_on(reads: Feeds, made: Feeds, pair: tuple[str, str]) -> bool:
    first, second = (({**reads, **made}[name]).reshape(-1) for name in pair)
    if first.size != second.size or apart(first, second) > 10 * _CLOSE or np.isfinite(first).mean() < _LEAST_FINITE:
        return False
    return first.dtype.kind != "f" or bool(np.allclose(first, second, rtol=1e-3, atol=1e-6, equal_nan=True))


def _common(values: Values, first: str, second: str) -> Iterator[Region]:
    """Yield regions that compute both values from at most two others, growing backwards."""
    graph = values.graph
    front, taken = {first, second}, set[int]()
    while front and len(taken) < _MOST_NODES:
        name = max(front, key=lambda name: graph.producer.get(name, -1))
        index = graph.producer.get(name)
        if index is None:
            return
        front.discard(name)
        if index not in taken:
            taken.add(index)
            front.update(name for name in graph.reads[index] if not values.is_constant(name))
        front -= {name for taken_index in (index,) for name in graph.nodes[taken_index].output}
        if 0 < len(front) <= 2 and all(name in values.dtypes for name in front):
            yield Region(tuple(sorted(front)), tuple(sorted(taken)))


def _wide(values: Values, region: Region) -> Iterator[list[Array]]:
    """Yield arguments of every size; integers as recorded, unless they are only converted to numbers."""
    graph, random = values.graph, np.random.default_rng(2)

    def whole(name: str) -> Array:
        readers, array = [graph.nodes[index] for index in graph.readers[name]], values.runs[0][name]
        if all(node.op_type == "Cast" and values.is_float(node.output[0]) for node in readers):
            return random.integers(0, 256, array.shape).astype(array.dtype)
        return array

    for spread in (0.5, 3.0):
        yield [
            np.asarray(
                random.standard_normal(values.shapes[name])
                * np.exp(spread * random.standard_normal(values.shapes[name])),
                values.dtypes[name],
            )
            if values.dtypes[name].kind == "f"
            else whole(name)
            for name in region.reads
        ]
