"""Order: operators that shrink values go first, operators that copy values go last, if the result is the same.

Candidates are runs of operators that each read one value. Both orders are computed from random numbers and compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnx

from ...models.subgraphs import attribute_of
from .affine import pick
from .choice import chosen_first, everywhere, reordered
from .demand import selected
from .form import Array, Draft, Rewrite
from .generic import generic_of
from .parts import by_parts
from .values import POINTWISE, Values, apart, late, predicted_ns

_SHRINKING = frozenset({
    "AveragePool", "Gather", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceSum", "Resize", "Slice",
})  # fmt: skip
_COPYING = frozenset({"Expand", "Resize", "Tile", "Upsample"})
_LARGEST_MOVE, _LARGEST_TABLE = 1 << 22, 1 << 20
_SLOW_AVERAGE = 19
"""Opset from which ONNX Runtime averages by a slow kernel."""
_SMALLER, _CHEAPER = 0.6, 0.9
_LEAST_SHARE, _SORTED_NS, _ADDED_NS, _MOST_PARTS = 0.005, 20.0, 0.35, 4096
_LONGEST, _MOST_REGION, _SHORTEST = 6, 60, 4
_CLOSE = 2e-5
_MONOTONE = POINTWISE | {"LogSoftmax", "Softmax"}


def order(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of single operators and of runs of them: another order, or another operator."""
    found = list[Rewrite]()
    for index in values.dearest:
        if late(deadline):
            break
        for search in _SEARCHES:
            if rewrite := values.attempt(search, values, index):
                found.append(rewrite)
    return found


def _only(values: Values, node: onnx.NodeProto) -> str | None:
    """Return the one value that a node of one output reads; None if it reads several."""
    reads = values.computed(node)
    plain = (
        len(node.output) == 1 and len(reads) == 1 and not any(attribute.HasField("g") for attribute in node.attribute)
    )
    return reads[0] if plain else None


def _run_before(values: Values, index: int) -> list[int]:
    """Return the nodes before one, as far back as each is read by the next alone."""
    graph, run = values.graph, list[int]()
    while len(run) < _LONGEST:
        value = _only(values, graph.nodes[run[0] if run else index])
        maker = None if value is None else graph.producer.get(value)
        if maker is None or value is None or len(graph.readers[value]) != 1 or value in graph.wanted:
            return run
        if _only(values, graph.nodes[maker]) is None:
            return run
        run.insert(0, maker)
    return run


def _swapped(values: Values, index: int) -> Rewrite | None:
    """Return the rewrite that puts a node before the run of nodes that leads to it."""
    graph, last = values.graph, values.graph.nodes[index]
    run = _run_before(values, index)
    value = last.output[0]
    shapes = values.shapes
    for begin in range(len(run)):
        members = [graph.nodes[place] for place in run[begin:]]
        x = _only(values, members[0])
        shrinks = last.op_type in _SHRINKING and np.prod(shapes[value]) < _SMALLER * np.prod(shapes[last.input[0]])
        copies = members[0].op_type in _COPYING and len(members) == 1
        before = values.cost_of([*run[begin:], index])
        if x is None or not (shrinks or copies) or not values.is_float(x) or before < _LEAST_SHARE * values.total_ns:
            continue
        draft = Draft(graph)
        names = {str(_only(values, last)): x, **_sizes_before(values, draft, last, members)}
        made = draft.copy(last, names, to=graph.fresh("early"))
        for node in members:
            made = draft.copy(node, {str(_only(values, node)): made}, to=graph.fresh("moved"))
        draft.finish(made, value)
        after = _cost_if_equal(values, draft, [*members, last], x, value)
        if after is None or after > _CHEAPER * before:
            continue
        kind = f"order: {last.op_type} first" if shrinks else f"order: {members[0].op_type} last"
        return draft.rewrite(kind, [value], graph.names([*run[begin:], index]), before - after)
    return None


def _sizes_before(
    values: Values, draft: Draft, last: onnx.NodeProto, members: Sequence[onnx.NodeProto]
) -> dict[str, str]:
    """Return the scales and sizes of a Resize in the order of axes before Transposes, by their old names."""
    perms = [attribute_of(node, "perm") for node in members if node.op_type == "Transpose"]
    if last.op_type != "Resize" or not perms or any(perm is None for perm in perms):
        return {}
    order, found = np.arange(len(perms[0])), dict[str, str]()
    for perm in perms:
        order = order[list(perm)]
    for name in last.input[2:]:
        array = values.constant(name) if name else None
        if array is not None and len(array) == len(order):
            found[name] = draft.constant(array[np.argsort(order)])
    return found


def _delayed(values: Values, index: int) -> Rewrite | None:
    """Return the rewrite that copies the result of a region instead of its input."""
    graph, copier = values.graph, values.graph.nodes[index]
    copied = copier.output[0]
    table = copier.op_type == "Gather" and values.is_constant(copier.input[0]) and not values.is_constant(copied)
    x = copier.input[0] if copier.op_type == "Expand" or table else _only(values, copier)
    doubled = copier.op_type == "Concat" and len(set(copier.input)) == 1
    if x != copier.input[0] or not {x, copied} <= values.shapes.keys() or (values.is_constant(x) and not table):
        return None
    large = np.prod(values.shapes[x]) > (_LARGEST_TABLE if table else np.prod(values.shapes[copied]) * _SMALLER)
    if large or not (doubled or copier.op_type in _COPYING | {"Gather"}):
        return None
    region, inside, ends = [index], {copied}, list[int]()
    for place in range(index + 1, len(graph.nodes)):
        node = graph.nodes[place]
        reads = values.computed(node)
        if reads and inside.issuperset(reads) and len(node.output) == 1:
            inside.add(node.output[0])
            region.append(place)
            ends.append(place)
            if len(region) > _MOST_REGION:
                break
    best: Rewrite | None = None
    low, high = 0, len(ends) - 1
    while low <= high:  # what is possible up to a node is possible up to those before it
        middle = (low + high + 1) // 2 if best else (low + high) // 2
        rewrite = _copied_at(values, index, _needed_for(values, ends[middle], region))
        if rewrite is None:
            high = middle - 1
        else:
            low = middle + 1
            best = rewrite if best is None or rewrite.saving_ns > best.saving_ns else best
    return best if best is not None and best.saving_ns > _LEAST_SHARE * values.total_ns else None


def _copied_at(values: Values, index: int, members: Sequence[int]) -> Rewrite | None:
    """Return the rewrite that copies the result of a region; None if its result differs."""
    graph, copier = values.graph, values.graph.nodes[index]
    x, value = copier.input[0], graph.nodes[members[-1]].output[0]
    if value not in values.shapes:
        return None
    before = values.cost_of(graph.removable(members, value))
    draft, names = Draft(graph), {copier.output[0]: x}
    for place in members[1:]:
        node = graph.nodes[place]
        names[node.output[0]] = draft.copy(node, names, to=graph.fresh("once"))
    inputs = {x: names[value]}
    unchanged = all(graph.nodes[place].op_type in POINTWISE for place in members[1:])
    if copier.op_type == "Expand" and not (unchanged and values.shapes[value] == values.shapes[copier.output[0]]):
        inputs[copier.input[1]] = values.shape_of_copies(draft, copier, {})
    draft.copy(copier, inputs, to=value)
    if values.is_constant(x):
        return values.cheaper(draft, "order: layers applied to the table", value, f"{len(members) - 1} layers")
    after = _cost_if_equal(values, draft, [graph.nodes[place] for place in members], x, value)
    if after is None:
        return None
    kind = f"order: {copier.op_type} last"
    return draft.rewrite(kind, [value], graph.names(members), max(before - after, 0.0))


def _needed_for(values: Values, end: int, region: Sequence[int]) -> list[int]:
    """Return the nodes of a region that one of them needs."""
    graph, needed, waiting = values.graph, {region[0], end}, [end]
    while waiting:
        for name in graph.reads[waiting.pop()]:
            place = graph.producer.get(name)
            if place in region and place is not None and place not in needed:
                needed.add(place)
                waiting.append(place)
    return sorted(needed)


def _cost_if_equal(values: Values, draft: Draft, old: Sequence[onnx.NodeProto], x: str, value: str) -> float | None:
    """Return the predicted cost of new nodes; None unless they compute the same from random numbers."""
    made = [node.output[0] for node in draft.nodes]
    try:
        before = values.function(old, {x: values.dtypes[x]}, [value])
        after = values.function(draft.nodes, {x: values.dtypes[x]}, made, draft.constants)
        shapes = dict[str, tuple[int, ...]]()
        for seed, spread in enumerate((2.0, 40.0)):
            sample = _numbers(values, x, spread, seed)
            results = after(sample)
            if apart(results[-1], before(sample)[0]) > _CLOSE:
                return None
            shapes = {name: array.shape for name, array in zip(made, results, strict=True)}
    except Exception:  # noqa: BLE001  # the other order need not be legal, which the runtime says in its own ways
        return None
    known = {**values.shapes, **shapes}
    return sum(predicted_ns(node, known) for node in draft.nodes)


def _numbers(values: Values, name: str, spread: float, seed: int) -> Array:
    random = np.random.default_rng(seed)
    return (random.standard_normal(values.shapes[name]) * spread).astype(values.dtypes[name])


def _before_choice(values: Values, index: int) -> Rewrite | None:
    """Return the rewrite that chooses the largest element before monotone functions, not after them."""
    graph, node = values.graph, values.graph.nodes[index]
    indices_only = node.op_type == "TopK" and not graph.readers[node.output[0]] and node.output[0] not in graph.wanted
    if node.op_type not in {"ArgMax", "ArgMin"} and not indices_only:
        return None
    value, source = node.output[-1], node.input[0]
    if len(graph.readers[source]) != 1 or source in graph.wanted:
        return None
    regions = values.regions(source, lambda place: graph.nodes[place].op_type in _MONOTONE, most_nodes=16)
    for region in sorted(regions, key=lambda region: -len(region.nodes)):
        x = region.reads[0]
        if values.shapes.get(x) != values.shapes[source] or values.dtypes.get(x) != values.dtypes[source]:
            continue
        draft = Draft(graph)
        if node.op_type == "TopK":
            draft.copy(node, {source: x}, to=graph.fresh("unused"))
        else:
            draft.copy(node, {source: x}, to=value)
        old = values.function([*(graph.nodes[place] for place in region.nodes), node], {x: values.dtypes[x]}, [value])
        new = values.function(draft.nodes, {x: values.dtypes[x]}, [value], draft.constants)
        # Far from zero a saturated function ties, and either index is right: only moderate numbers are compared.
        samples = [_numbers(values, x, spread, seed) for seed, spread in enumerate((0.1, 1.0, 2.0))]
        if all(np.array_equal(old(sample)[0], new(sample)[0]) for sample in samples):
            gone = graph.removable(region.nodes, source)
            return draft.rewrite(
                f"order: {node.op_type} before monotone functions", [value], graph.names(gone), values.cost_of(gone)
            )
    return None


def _fewer_sorted(values: Values, index: int) -> Rewrite | None:
    """Return a TopK of as many elements as are read of a larger one."""
    graph, node = values.graph, values.graph.nodes[index]
    if node.op_type != "TopK" or not graph.attributes[index].get("sorted", 1):
        return None
    readers = sorted({reader for name in node.output for reader in graph.readers[name]})
    axis = graph.attributes[index].get("axis", -1) % len(values.shapes[node.input[0]])
    number, count = 0, values.shapes[node.output[0]][axis]
    for reader in readers:
        kind = graph.nodes[reader].op_type
        picked = selected(values, reader) if kind in {"Gather", "Slice"} else None
        if picked is None or axis not in picked or graph.nodes[reader].input[0] not in node.output:
            return None
        number = max(number, int(picked[axis].max(initial=0)) + 1)
    if not readers or number > _SMALLER * count or any(name in graph.wanted for name in node.output):
        return None
    draft, outputs = Draft(graph), [graph.fresh("top") for _ in node.output]
    attributes = graph.attributes[index]
    draft.ops("TopK", (node.input[0], draft.constant([number], np.int64)), outputs, **attributes)
    new = dict(zip(node.output, outputs, strict=True))
    for reader in readers:
        old = graph.nodes[reader]
        negative = values.constant(old.input[1])
        if negative is None or negative.min() < 0:
            return None
        draft.copy(old, new, to=old.output[0])
    made = [graph.nodes[reader].output[0] for reader in readers]
    saving_ns = values.costs[index] + _SORTED_NS * float(np.prod(values.shapes[node.input[0]]))
    return draft.rewrite("order: fewer elements sorted", made, graph.names([index]), saving_ns, f"{number} of {count}")


def _separable(values: Values, index: int) -> Rewrite | None:
    """Return the rewrite of a large pool as one over rows and one over columns."""
    graph, node, attributes = values.graph, values.graph.nodes[index], values.graph.attributes[index]
    sizes = attributes.get("kernel_shape") or []
    average = node.op_type == "AveragePool"
    if node.op_type not in {"AveragePool", "MaxPool"} or len(node.output) > 1 or len(sizes) != 2 or min(sizes) < 2:
        return None
    pads = attributes.get("pads") or [0, 0, 0, 0]
    uneven = average and any(pads) and not attributes.get("count_include_pad", 0)
    plain = attributes.get("auto_pad", "NOTSET") == "NOTSET" and not attributes.get("ceil_mode", 0)
    if uneven or not plain or sum(sizes) >= _SMALLER * sizes[0] * sizes[1] or node.output[0] not in values.shapes:
        return None
    draft, made = Draft(graph), node.input[0]
    for axis in (0, 1):
        own: dict[str, Any] = {"count_include_pad": 1} if average else {}
        for name, default in (("strides", 1), ("dilations", 1)):
            given = attributes.get(name)
            if given:
                own[name] = [given[axis] if place == axis else default for place in (0, 1)]
        own["kernel_shape"] = [sizes[axis] if place == axis else 1 for place in (0, 1)]
        own["pads"] = [pads[place] if place % 2 == axis else 0 for place in range(4)]
        made = draft.op(node.op_type, made, **own)
    draft.finish(made, node.output[0])
    taps = values.shapes[node.output[0]]
    before = float(np.prod(taps)) * sizes[0] * sizes[1]
    saving_ns = before * (1 - sum(sizes) / (sizes[0] * sizes[1]))
    return draft.rewrite("order: pool by rows and columns", [node.output[0]], [node.name], saving_ns)


def _averaged(values: Values, index: int) -> Rewrite | None:
    """Return the rewrite of an average pool as a depthwise convolution: since opset 19 the pool has a slow kernel."""
    graph, node, attributes = values.graph, values.graph.nodes[index], values.graph.attributes[index]
    sizes, pads = attributes.get("kernel_shape") or [], attributes.get("pads") or [0]
    plain = attributes.get("auto_pad", "NOTSET") == "NOTSET" and not attributes.get("ceil_mode", 0)
    shape = values.shapes.get(node.input[0], ())
    if node.op_type != "AveragePool" or len(sizes) != 2 or len(shape) != 4 or graph.opset < _SLOW_AVERAGE or not plain:
        return None
    if (any(pads) and not attributes.get("count_include_pad", 0)) or not values.is_float(node.output[0]):
        return None
    draft, channels = Draft(graph), shape[1]
    filters = draft.constant(np.full((channels, 1, *sizes), 1 / np.prod(sizes)), values.dtypes[node.output[0]])
    own = {name: attributes[name] for name in ("dilations", "kernel_shape", "pads", "strides") if name in attributes}
    draft.op("Conv", node.input[0], filters, group=channels, to=node.output[0], **own)
    saving_ns = float(np.prod(values.shapes[node.output[0]])) * float(np.prod(sizes))
    return draft.rewrite("order: average as a convolution", node.output, [node.name], saving_ns)


def _parts_of(values: Values, value: str, axis: int) -> list[str]:
    """Return the values that Concats join along an axis, one after the other."""
    parts, waiting = list[str](), [value]
    while waiting:
        name = waiting.pop()
        index = values.graph.producer.get(name)
        node = None if index is None else values.graph.nodes[index]
        joins = node is not None and node.op_type == "Concat" and len(parts) + len(waiting) < _MOST_PARTS
        if node is None or not joins or attribute_of(node, "axis") % len(values.shapes[name]) != axis:
            parts.append(name)
        else:
            waiting += reversed(node.input)
    return parts


def _grown(values: Values, index: int) -> Rewrite | None:
    """Return one Concat for several, each of which copies what the one before made; or a Slice of its part alone."""
    graph, node = values.graph, values.graph.nodes[index]
    value, shape = node.output[0], values.shapes.get(node.output[0])
    picked = (selected(values, index) or {}) if node.op_type == "Slice" else {}
    if not shape or (node.op_type != "Concat" and len(picked) != 1):
        return None
    axis = next(iter(picked), graph.attributes[index].get("axis", 0) % len(shape))
    parts, draft, kind = (
        _parts_of(values, value if not picked else node.input[0], axis),
        Draft(graph),
        "order: one Concat",
    )
    if picked and len(parts) > 1:
        ends = np.cumsum([values.shapes[name][axis] for name in parts])
        place = int(np.searchsorted(ends, picked[axis].max(initial=0), "right"))
        inside = picked[axis] - (ends[place] - values.shapes[parts[place]][axis])
        if not inside.size or inside.min() < 0 or values.target(parts[place])[axis] < 0:
            return None
        draft.finish(pick(draft, parts[place], inside, axis), value)
        saving_ns = values.costs[graph.producer[node.input[0]]] / len(graph.readers[node.input[0]])
        return draft.rewrite(kind, [value], [node.name], saving_ns)
    readers = [graph.nodes[place] for place in graph.readers[value]]
    grows = any(reader.op_type == "Concat" and attribute_of(reader, "axis") == axis for reader in readers)
    if picked or len(parts) <= len(node.input) or (grows and value not in graph.wanted):
        return None
    draft.op("Concat", *parts, axis=axis, to=value)
    gone = graph.unneeded([value], parts)
    return draft.rewrite(
        kind, [value], graph.names(gone), values.cost_of(gone) - values.costs[index], f"{len(parts)} parts"
    )


def _by_frames(values: Values, index: int) -> Rewrite | None:
    """Return a convolution of volumes with kernels of depth one as a convolution of images, frames as a batch."""
    graph, node, attributes = values.graph, values.graph.nodes[index], values.graph.attributes[index]
    weights = values.constant(node.input[1]) if node.op_type == "Conv" else None
    if (
        weights is None
        or weights.ndim != 5
        or weights.shape[2] != 1
        or attributes.get("auto_pad", "NOTSET") != "NOTSET"
    ):
        return None
    pads, strides = attributes.get("pads", [0] * 6), attributes.get("strides", [1] * 3)
    if pads[0] or pads[3] or strides[0] != 1:
        return None
    draft, (_, channels, depth, *size) = Draft(graph), values.shapes[node.input[0]]
    frames = draft.op("Transpose", node.input[0], perm=[0, 2, 1, 3, 4])
    images = draft.reshape(frames, [-1, channels, *size])
    made = draft.op(
        "Conv", images, draft.constant(weights[:, :, 0]), *node.input[2:], kernel_shape=list(weights.shape[3:]),
        pads=[*pads[1:3], *pads[4:]], strides=strides[1:], dilations=attributes.get("dilations", [1] * 3)[1:],
        group=attributes.get("group", 1),
    )  # fmt: skip
    height, width = values.shapes[node.output[0]][3:]
    made = draft.reshape(made, [-1, depth, weights.shape[0], height, width])
    draft.finish(draft.op("Transpose", made, perm=[0, 2, 1, 3, 4]), node.output[0])
    return values.cheaper(draft, "order: frames as a batch", node.output[0])


def _slice_written(values: Values, index: int) -> Rewrite | None:
    """Return a Concat of slices for a ScatterND that writes a whole range along one axis."""
    graph, node = values.graph, values.graph.nodes[index]
    indices = values.constant(node.input[1]) if node.op_type == "ScatterND" else None
    shape = values.shapes.get(node.input[0], ())
    if indices is None or graph.attributes[index].get("reduction", "none") not in {"none", b"none"}:
        return None
    if not shape or indices.shape[-1] > len(shape) or np.prod(shape) > _LARGEST_MOVE:
        return None
    numbered = np.arange(np.prod(shape)).reshape(shape)
    places = numbered[tuple(np.moveaxis(indices, -1, 0))]
    first, last = (np.array(np.unravel_index(place, shape)) for place in (places.min(), places.max()))
    extents = tuple(int(size) for size in last - first + 1)
    axes = [axis for axis, size in enumerate(extents) if size != shape[axis]]
    box = numbered[tuple(map(slice, first, last + 1))]
    if len(axes) != 1 or not np.array_equal(places.reshape(-1), box.reshape(-1)):
        return None
    draft, (axis,) = Draft(graph), axes
    begin, end = int(first[axis]), int(last[axis]) + 1
    written = [draft.reshape(node.input[2], list(extents))]
    head, tail = (
        [draft.op("Slice", node.input[0], *(draft.constant([number], np.int64) for number in (low, high, axis)))]
        if low < high else []
        for low, high in ((0, begin), (end, shape[axis]))
    )  # fmt: skip
    draft.finish(draft.op("Concat", *head, *written, *tail, axis=axis), node.output[0])
    before, after = values.costs[index] + float(indices.size), values.priced(draft, node.output[0])
    if after is None:
        return None
    return draft.rewrite("order: slice written by Concat", [node.output[0]], graph.names([index]), before - after / 2)


def _by_rows(values: Values, index: int) -> Rewrite | None:
    """Return a Gather for a GatherElements with equal indices for all elements of a row.

    A ScatterElements stays: several threads of the runtime's ScatterND lose sums of equal rows.
    """
    graph, node = values.graph, values.graph.nodes[index]
    if node.op_type != "GatherElements" or node.output[0] not in values.shapes:
        return None
    shape, chosen = (values.shapes.get(name, ()) for name in node.input[:2])
    axis, rank = graph.attributes[index].get("axis", 0) % max(len(shape), 1), len(shape)
    others = [place for place in range(rank) if place != axis]
    short = prod(shape[axis + 1 :]) < _SHORTEST or prod(shape[:axis]) > 1
    if short or any(shape[place] != chosen[place] for place in others):
        return None
    draft, rows, maker = Draft(graph), node.input[1], graph.maker(node.input[1])
    narrow = tuple(size if place == axis else 1 for place, size in enumerate(chosen))
    if maker is not None and maker.op_type == "Expand" and values.shapes.get(maker.input[0]) == narrow:
        rows = maker.input[0]
    elif all(chosen[place] < 2 or generic_of(values).is_one_slice(rows, place) for place in others):
        bounds = ([0] * len(others), [1] * len(others), others)
        rows = draft.op("Slice", rows, *(draft.constant(numbers, np.int64) for numbers in bounds))
    else:
        return None
    draft.op("Gather", node.input[0], draft.reshape(rows, [-1]), to=node.output[0], axis=axis)
    return values.cheaper(draft, "order: elements gathered by rows", node.output[0])


_SEARCHES = (
    _grown, _slice_written, _by_rows, _by_frames, _swapped, _delayed, by_parts, _before_choice, _fewer_sorted,
    _separable, _averaged, chosen_first, everywhere, reordered,
)  # fmt: skip
