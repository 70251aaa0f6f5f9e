"""Affine by impulses: a region that is affine in one value collapses to one operator with computed weights.

The responses to impulses show the operator: a move of elements, a factor for each channel, a convolution, or a product
with a matrix. Random numbers then check the result, and its predicted cost must be lower.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .form import Array, Draft, Rewrite
from .values import MACS_PER_NS, Region, Values, apart, late

_AFFINE = frozenset({
    "Add", "AveragePool", "BatchNormalization", "Cast", "Concat", "Conv", "ConvTranspose", "CumSum", "DepthToSpace",
    "Div", "Dropout", "Einsum", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Gemm",
    "GlobalAveragePool", "GridSample", "Identity", "MatMul", "Mean", "Mul", "Neg", "Pad", "ReduceMean", "ReduceSum",
    "Reshape", "Resize", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Sub", "Sum",
    "Tile", "Transpose", "Unsqueeze", "Upsample",
})  # fmt: skip
_SUMS = frozenset({"Add", "Concat", "Mean", "ScatterElements", "ScatterND", "Sub", "Sum"})
_HEAVY = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
_WIDENING = frozenset({"ConvTranspose", "GridSample", "Pad", "Resize", "Upsample"})
"""Operators that count as work, next to products."""
_ALONE = frozenset({"ConvTranspose", "GridSample"})
"""Operators that another one may replace alone."""
_SCALING = frozenset({"Add", "BatchNormalization", "Div", "Identity", "Mul", "Sub"})
_EITHER = frozenset({"Einsum", "Gemm", "MatMul", "Mul"})
"""Operators that are affine in any one input, if the others are constant."""

_LEAST_SHARE, _CHEAPER = 0.005, 0.985
_ONE_PRODUCT = 0.97
"""Share of a region in one product from which nothing else is worth saving."""
_MOST_NODES, _MOST_TRIES, _PROBE_S, _MANY = 1500, 6, 4.0, 12
_LARGEST_KERNEL, _LARGEST_MATRIX, _LARGEST_MOVE, _MOST_PROBES = 2401, 1 << 24, 1 << 22, 2048
_MOST_PHASES, _BLURRED = 16, 1e-2
_CONVOLUTION = "one convolution"
_CLOSE = 5e-5
"""Largest relative difference between a region and its replacement, on random numbers."""


def affine(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of affine regions to one operator."""
    graph, found, covered = values.graph, list[Rewrite](), set[int]()
    allowed = [_is_affine(values, index) for index in range(len(graph.nodes))]
    ends = list[tuple[float, int, list[Region]]]()
    for last in reversed(range(len(graph.nodes))):
        value = graph.nodes[last].output[0]
        alone = graph.nodes[last].op_type in _ALONE
        if not allowed[last] or values.is_constant(value) or (not alone and _goes_on(values, value, allowed)):
            continue
        regions = list(values.regions(value, lambda index: allowed[index], most_nodes=_MOST_NODES))
        most = max((values.cost_of(region.nodes) for region in regions), default=0.0)
        ends.append((-most, -last, sorted(regions, key=lambda region: -len(region.nodes))))
    for _, last, regions in sorted(ends, key=lambda end: end[:2]):
        value, tried = graph.nodes[-last].output[0], 0
        if -last in covered:
            continue
        for region in regions:
            gone = graph.removable(region.nodes, value)
            before = values.cost_of(gone)
            x = region.reads[0]
            alike = values.dtypes.get(x) == values.dtypes[value]
            single = len(gone) < 2 and not (gone and graph.nodes[gone[0]].op_type in _ALONE)
            if single or before < _LEAST_SHARE * values.total_ns or not alike or _is_one_product(values, gone):
                continue
            tried += 1
            if tried > _MOST_TRIES or late(deadline):
                break
            until = min(deadline, time.perf_counter() + _PROBE_S)
            if rewrite := values.attempt(_probed, values, region, gone, until):
                found.append(rewrite)
                covered |= set(region.nodes)
                break
    return found


def _is_affine(values: Values, index: int) -> bool:  # noqa: PLR0911  # one reason each
    """Return True if a node is affine in its computed inputs."""
    graph, node = values.graph, values.graph.nodes[index]
    kind = node.op_type
    if kind not in _AFFINE or node.domain not in {"", "ai.onnx"} or not values.is_float(node.output[0]):
        return False
    if len(node.output) > 1 and kind != "Split":
        return False
    reads = [name for name in node.input if name and not values.is_constant(name)]
    if kind.startswith("Scatter") and (
        node.input[1] in reads or graph.attributes[index].get("reduction", "none") not in {"add", "none"}
    ):
        return False
    if not all(values.is_float(name) for name in reads):
        return False
    if kind in _SUMS:
        return True
    if len(reads) != 1:
        return False
    if reads[0] != node.input[0] and kind not in _EITHER:
        return False
    return not (kind == "Pad" and graph.attributes[index].get("mode", "constant") != "constant")


def _is_one_product(values: Values, indices: Sequence[int]) -> bool:
    """Return True if one product takes nearly all of the nodes' time, so that one operator would not be faster."""
    heavy = [index for index in indices if values.graph.nodes[index].op_type in _HEAVY]
    widened = any(values.graph.nodes[index].op_type in _WIDENING for index in indices)
    return len(heavy) == 1 and not widened and values.costs[heavy[0]] > _ONE_PRODUCT * values.cost_of(indices)


def _goes_on(values: Values, value: str, allowed: Sequence[bool]) -> bool:
    """Return True if the only reader of a value scales it again, so that the larger region is tried instead."""
    graph = values.graph
    readers = graph.readers.get(value, [])
    if len(readers) != 1 or value in graph.wanted or not allowed[readers[0]]:
        return False
    reader, maker = graph.nodes[readers[0]], graph.maker(value)
    if maker is not None and maker.op_type == "Concat" and len(maker.input) > _MANY:
        return False  # the parts are perhaps moves of one value
    return reader.op_type in _SCALING and len(values.computed(reader)) == 1


def _probed(values: Values, region: Region, gone: Sequence[int], until: float) -> Rewrite | None:
    value = values.graph.nodes[region.nodes[-1]].output[0]
    return _Probe(values, region, value, gone, until).rewrite()


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Which inputs a convolution reads for one output.

    Attributes:
        strides: By axis.
        low: First tap by axis, relative to the stride times the output's place.
        high: Last tap by axis.
        taps: Number of taps that are not zero.
        spread: Share of the outputs that one input channel reaches.
    """

    strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    taps: int
    spread: float

    @property
    def size(self) -> tuple[int, ...]:
        return tuple(high - low + 1 for low, high in zip(self.low, self.high, strict=True))

    def taps_of(self, phase: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the taps that read inputs of a phase of the strides."""
        axes = zip(self.low, self.high, self.strides, phase, strict=True)
        return list(itertools.product(*(
            range(low + (at - low) % stride, high + 1, stride) for low, high, stride, at in axes
        )))  # fmt: skip

    def place(self, at: Sequence[int], tap: Sequence[int]) -> tuple[int, ...] | None:
        """Return the output that reads an input through a tap; None if the stride passes over it."""
        found = []
        for here, offset, stride in zip(at, tap, self.strides, strict=True):
            whole, rest = divmod(here - offset, stride)
            if rest:
                return None
            found.append(whole)
        return tuple(found)


class _Probe:
    """The search for the operator that an affine region is equal to.

    Args:
        values: The graph.
        region: The region, which reads one value.
        value: Its result.
        gone: The nodes that it would replace.
        deadline: End of the search.
    """

    def __init__(self, values: Values, region: Region, value: str, gone: Sequence[int], deadline: float) -> None:
        self._values, self._value, self._gone, self._deadline = values, value, gone, deadline
        self._x = region.reads[0]
        self._dtype = values.dtypes[self._x]
        self._from, self._to = values.shapes[self._x], values.shapes[value]
        self._before = values.cost_of(gone)
        self._heavy = any(values.graph.nodes[index].op_type in _HEAVY for index in gone)
        self._part = values.part(region, value)
        random = np.random.default_rng(9)
        self._sample = random.standard_normal(self._from).astype(self._dtype)
        self._image = self._part(self._sample)[0].astype(np.float64)
        self._base = self._part(np.zeros(self._from, self._dtype))[0].astype(np.float64)
        self._scale = float(np.abs(self._image).max()) + 1e-12
        self._times: tuple[int, ...] = ()
        self._places_of: tuple[int, ...] = ()  # rows and columns of patches, if the result is a row for each patch

    def rewrite(self) -> Rewrite | None:
        """Return the rewrite; None if no operator fits or nothing is saved."""
        if not self._image.size or self._image.shape != self._to or not np.isfinite(self._image).all():
            return None
        options: tuple[Callable[[], Rewrite | None], ...] = (
            self._moved, self._scaled, self._convolution, self._product, self._overlapped, self._patches,
        )  # fmt: skip
        for option in options:
            if late(self._deadline):
                return None
            if rewrite := option():
                return rewrite
        return None

    def _at(self, array: Array) -> Array:
        """Return the region's result for an array, minus its result for zeros."""
        return self._folded(self._mapped(self._part(array)[0].astype(np.float64))) - self._base

    def _mapped(self, array: Array) -> Array:
        """Return rows of patches as a map of channels."""
        return array.swapaxes(1, 2).reshape(*self._to[:2], *self._places_of) if self._places_of else array

    def _accepted(self, draft: Draft, kind: str, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Rewrite | None:
        """Return the rewrite if it computes the same of random numbers, and is predicted to cost less."""
        known = {name: self._to for node in draft.nodes for name in node.output} | dict(shapes or {})
        after = self._values.cost_of_new(draft, known)
        if after > _CHEAPER * self._before:
            return None
        found = self._values.of_draft(draft, [self._x], self._value)(self._sample)[0]
        if apart(found, self._image) > (_CLOSE if self._dtype != np.float16 else 1e-2):
            return None
        names = self._values.graph.names(self._gone)
        return draft.rewrite(f"affine: {kind}", [self._value], names, self._before - after)

    # Moves: every output is one element of the input.

    def _moved(self) -> Rewrite | None:
        size = int(np.prod(self._from))
        if size >= _LARGEST_MOVE or size < 2 or self._dtype == np.float16 or np.abs(self._base).max() > 0:
            return None
        places = list[Array]()
        for axis, length in enumerate(self._from):  # each place is told by its coordinates, which interpolation blurs
            ahead = np.arange(1, length + 1, dtype=self._dtype).reshape(-1, *[1] * (len(self._from) - axis - 1))
            found = self._part(np.broadcast_to(ahead, self._from))[0]
            places.append(np.round(found).astype(np.int64) - 1)
            blurred = np.abs(found - 1 - places[-1]).max() > _BLURRED
            if blurred or places[-1].min() < 0 or places[-1].max() >= length:
                return None
        where = np.ravel_multi_index(places, self._from)
        draft = Draft(self._values.graph)
        kind = move(draft, where, self._from, self._x, self._value)
        return None if kind is None else self._accepted(draft, kind)

    # A factor and a summand for each channel.

    def _scaled(self) -> Rewrite | None:
        if self._from != self._to:
            return None
        change = self._image - self._base
        for axis in dict.fromkeys((1, len(self._from) - 1)):
            if axis >= len(self._from):
                continue
            others = tuple(place for place in range(len(self._from)) if place != axis)
            sample = self._sample.astype(np.float64)
            factor = (change * sample).sum(others, keepdims=True) / ((sample**2).sum(others, keepdims=True) + 1e-30)
            if np.abs(change - factor * sample).max() > _CLOSE * self._scale:
                continue
            draft, made, summand = Draft(self._values.graph), self._x, narrowed(self._base, self._scale)
            if np.abs(factor - 1).max() > 1e-7:
                made = draft.op("Mul", made, draft.constant(factor, self._dtype))
            if np.abs(summand).max() > 1e-9 * self._scale:
                made = draft.op("Add", made, draft.constant(summand, self._dtype))
            draft.finish(made, self._value)
            return self._accepted(draft, "affine by channel")
        return None

    # A convolution.

    def _convolution(self) -> Rewrite | None:  # noqa: PLR0911  # one reason each
        if len(self._from) != len(self._to) or len(self._from) not in {3, 4} or self._from[0] != self._to[0]:
            return None
        if not self._heavy and len(self._gone) < 3:
            return None
        times = [
            after // before if after > before else 1 for before, after in zip(self._from[2:], self._to[2:], strict=True)
        ]
        sizes = zip(self._from[2:], self._to[2:], times, strict=True)
        if any(
            after < 1 or after > before * number or (number > 1 and after % before) for before, after, number in sizes
        ):
            return None
        if np.prod(times) > _MOST_PHASES:
            return None
        self._phase(times)
        kernel = self._reach()
        if kernel is None or self._least_ns(kernel) > self._before:
            return None
        filters = self._filters(kernel)
        if filters is None or self._copies(filters):
            return None
        draft = Draft(self._values.graph)
        groups = self._write_convolution(draft, kernel, filters)
        if groups is None:
            return None
        shapes = {node.output[0]: self._from for node in draft.nodes if node.op_type == "Slice"}
        (convolution,) = (node for node in draft.nodes if node.op_type == "Conv")
        dilated = any(max(attribute.ints) > 1 for attribute in convolution.attribute if attribute.name == "dilations")
        kind = (
            "convolution by phases" if max(self._times) > 1 else "one dilated convolution" if dilated else _CONVOLUTION
        )
        return self._accepted(draft, kind, shapes)

    def _patches(self) -> Rewrite | None:
        """Return a convolution whose places are the rows of the result, as patches of an image."""
        if len(self._from) != 4 or len(self._to) != 3 or not self._heavy:
            return None
        batch, number, channels = self._to
        heights = [height for height in range(2, number) if number % height == 0]
        if not heights:
            return None
        height = min(heights, key=lambda size: abs(size * self._from[3] - number // size * self._from[2]))
        self._places_of, self._to = (height, number // height), (batch, channels, height, number // height)
        self._base = self._mapped(self._base)
        return self._convolution()

    def _phase(self, times: Sequence[int]) -> None:
        """Treat each of several results for one place of the input as a separate channel."""
        self._times = tuple(times)
        self._base, self._to = self._folded(self._base), self._folded(self._base).shape

    def _folded(self, array: Array) -> Array:
        if max(self._times, default=1) == 1:
            return array
        batch, channels, *sizes = array.shape
        split = [number for size, times in zip(sizes, self._times, strict=True) for number in (size // times, times)]
        rank = len(sizes)
        order = [0, 1, *(3 + 2 * axis for axis in range(rank)), *(2 + 2 * axis for axis in range(rank))]
        made = array.reshape(batch, channels, *split).transpose(order)
        return made.reshape(batch, channels * int(np.prod(self._times)), *made.shape[2 + rank :])

    def _copies(self, filters: Array) -> bool:
        """Return True if all phases are equal: copies after a smaller convolution are then cheaper."""
        phases = int(np.prod(self._times))
        split = filters.reshape(-1, phases, *filters.shape[1:])
        return phases > 1 and bool(np.abs(split - split[:, :1]).max() < 1e-6 * np.abs(filters).max())

    def _unfolded(self, draft: Draft, made: str) -> str:
        """Write the moves that interleave the channels of the phases; return the result's name."""
        batch, channels, *sizes = self._to
        rank, phases = len(sizes), int(np.prod(self._times))
        if self._places_of:
            return draft.op("Transpose", draft.reshape(made, [batch, channels, -1]), perm=[0, 2, 1])
        if phases == 1:
            return made
        if rank == 2 and len(set(self._times)) == 1 and self._values.graph.opset >= 11:
            return draft.op("DepthToSpace", made, blocksize=self._times[0], mode="CRD")
        made = draft.reshape(made, (batch, channels // phases, *self._times, *sizes))
        order = [place for axis in range(rank) for place in (2 + rank + axis, 2 + axis)]
        made = draft.op("Transpose", made, perm=[0, 1, *order])
        whole = [size * times for size, times in zip(sizes, self._times, strict=True)]
        return draft.reshape(made, (batch, channels // phases, *whole))

    def _reach(self) -> _Kernel | None:
        """Return the spread of the inputs of one output, by one impulse for each phase of the strides."""
        before, after = self._from[2:], self._to[2:]
        strides = tuple(max(1, round(size / small)) for size, small in zip(before, after, strict=True))
        random = np.random.default_rng(3)
        centre = [min(size - 1, (size // 2 // stride) * stride) for size, stride in zip(before, strides, strict=True)]
        low, high, lit, spread = [10**6] * len(before), [-(10**6)] * len(before), 0, 0.0
        for phase in itertools.product(*(range(stride) for stride in strides)):
            at = [min(size - 1, place + step) for size, place, step in zip(before, centre, phase, strict=True)]
            probe = np.zeros(self._from, self._dtype)
            probe[(0, slice(None), *at)] = random.choice([-1, 1], self._from[1]) * (1 + random.random(self._from[1]))
            seen = np.abs(self._at(probe))[0].max(0)
            if not seen.max() > 0:
                continue
            places = np.argwhere(seen > 1e-6 * seen.max())
            lit += len(places)
            if not spread:
                probe[0, 1:] = 0
                reached = np.abs(self._at(probe))[0].reshape(self._to[1], -1).max(1)
                spread = float((reached > 1e-6 * seen.max()).mean())
            for axis, stride in enumerate(strides):
                taps = at[axis] - stride * places[:, axis]
                low[axis], high[axis] = min(low[axis], int(taps.min())), max(high[axis], int(taps.max()))
        kernel = _Kernel(strides, tuple(low), tuple(high), lit, spread)
        taps = int(np.prod(kernel.size)) if min(kernel.size) > 0 else 0
        fits = 0 < taps <= _LARGEST_KERNEL and taps * self._to[1] * self._from[1] <= _LARGEST_MATRIX // 2
        return kernel if fits else None

    def _least_ns(self, kernel: _Kernel) -> float:
        """Return the least nanoseconds that a convolution with so many taps takes."""
        depth = kernel.taps * kernel.spread * self._from[1]
        return float(np.prod(self._to)) * (depth / MACS_PER_NS if depth > kernel.taps else 0.0)

    def _filters(self, kernel: _Kernel) -> Array | None:
        """Return the weights: impulses of several channels at once, so far apart that their images are disjoint."""
        channels = self._from[1]
        alone = channels > 1 and self._to[1] == channels == round(1 / max(kernel.spread, 1e-9))
        filters = np.zeros((self._to[1], channels, *kernel.size))
        probes = 0
        for phase in itertools.product(*(range(stride) for stride in kernel.strides)):
            places = self._places(kernel, phase)
            if not places:
                return None
            taps = kernel.taps_of(phase)
            places = places[:1] * channels if alone else places
            for first in range(0, channels, len(places)):
                probes += 1
                if late(self._deadline) or probes > _MOST_PROBES:
                    return None
                group = list(zip(range(first, min(channels, first + len(places))), places, strict=False))
                probe = np.zeros(self._from, self._dtype)
                for channel, at in group:
                    probe[(0, channel, *at)] = 1
                last = np.moveaxis(self._at(probe)[0], 0, -1)
                for channel, at in group:
                    reached = channel if alone else slice(None)
                    for tap in taps:
                        place = kernel.place(at, tap)
                        if place is not None:
                            offset = tuple(step - low for step, low in zip(tap, kernel.low, strict=True))
                            filters[(reached, channel, *offset)] = last[(*place, reached)]
        return filters

    def _places(self, kernel: _Kernel, phase: Sequence[int]) -> list[tuple[int, ...]]:
        """Return places of impulses with separate images inside the result."""
        axes = []
        for axis, (begin, stride) in enumerate(zip(phase, kernel.strides, strict=True)):
            apart_by = (kernel.size[axis] // stride + 1) * stride
            found = list[int]()
            for at in range(begin, self._from[2 + axis], stride):
                first, last = -((kernel.high[axis] - at) // stride), (at - kernel.low[axis]) // stride
                inside = 0 <= first <= last < self._to[2 + axis]
                if inside and (not found or at - found[-1] >= apart_by):
                    found.append(at)
            axes.append(found)
        return list(itertools.product(*axes))

    def _write_convolution(self, draft: Draft, kernel: _Kernel, filters: Array) -> int | None:
        filters = np.where(np.abs(filters) > np.abs(filters).max() * 1e-7, filters, 0)
        groups = groups_of(filters)
        filters = grouped(filters, groups)
        taps = taps_of(filters)
        filters = filters[(slice(None), slice(None), *(slice(tap.start, tap.stop, tap.step) for tap in taps))]
        begins = [-low - tap.start for low, tap in zip(kernel.low, taps, strict=True)]
        ends = [
            stride * (small - 1) + low + tap.stop - size
            for stride, small, low, tap, size in zip(
                kernel.strides, self._to[2:], kernel.low, taps, self._from[2:], strict=True
            )
        ]
        source = self._x
        if min(begins + ends) < 0:  # what no output reads is cut off first
            if self._values.graph.opset < 10:
                return None
            first = [max(0, -pad) for pad in begins]
            last = [size + min(0, pad) for size, pad in zip(self._from[2:], ends, strict=True)]
            axes = list(range(2, len(self._from)))
            bounds = [draft.constant(numbers, np.int64) for numbers in (first, last, axes)]
            source = draft.op("Slice", source, *bounds)
            begins, ends = [max(0, pad) for pad in begins], [max(0, pad) for pad in ends]
        inputs = [source, draft.constant(filters, self._dtype)]
        flat = self._base[0].reshape(self._to[1], -1)
        even = np.abs(self._base - self._base[:1, ...]).max() <= 1e-6 * self._scale
        even = even and np.abs(flat - flat[:, :1]).max() < 1e-6 * self._scale
        if even and np.abs(flat).max() > 1e-9 * self._scale:
            inputs.append(draft.constant(flat.mean(1), self._dtype))
        made = draft.op(
            "Conv", *inputs, kernel_shape=list(filters.shape[2:]), strides=list(kernel.strides), pads=begins + ends,
            dilations=[tap.step for tap in taps], group=groups,
        )  # fmt: skip
        if not even:
            made = draft.op("Add", made, draft.constant(self._base[:1], self._dtype))
        draft.finish(self._unfolded(draft, made), self._value)
        return groups

    # A product with a matrix along one axis.

    def _product(self) -> Rewrite | None:
        rank = len(self._from)
        if rank < 2 or rank != len(self._to) or not (self._heavy or len(self._gone) > _MANY):
            return None
        changed = [axis for axis in range(rank) if self._from[axis] != self._to[axis]]
        axes = changed or ([rank - 1] if len(self._gone) <= _MANY else range(rank - 1, max(rank - 4, -1), -1))
        found = (self._along(axis) for axis in axes if len(changed) < 2 and self._from[axis] > 1)
        return next((rewrite for rewrite in found if rewrite is not None), None)

    def _along(self, axis: int) -> Rewrite | None:
        rank, depth, width = len(self._from), self._from[axis], self._to[axis]
        rows = int(np.prod(self._from)) // depth
        if depth * width > _LARGEST_MATRIX or -(-depth // rows) > _MOST_PROBES:
            return None
        if rows * depth * width / MACS_PER_NS > self._before:
            return None
        shape = tuple(np.moveaxis(np.empty(self._from, np.bool_), axis, -1).shape)

        def response(probe: Array) -> Array:
            return np.moveaxis(self._at(np.moveaxis(probe.reshape(shape), -1, axis)), axis, -1).reshape(rows, width)

        probe = np.zeros((rows, depth), self._dtype)
        probe[0] = 1 + np.arange(depth) % 7
        if np.abs(response(probe)[1:]).max(initial=0) > _CLOSE * self._scale:
            return None  # rows mix
        matrix = np.zeros((depth, width))
        for first in range(0, depth, rows):
            if late(self._deadline):
                return None
            number = min(rows, depth - first)
            probe = np.zeros((rows, depth), self._dtype)
            probe[np.arange(number), first + np.arange(number)] = 1
            matrix[first : first + number] = response(probe)[:number]
        draft, summand = Draft(self._values.graph), narrowed(self._base, self._scale)
        added = np.abs(summand).max() >= 1e-9 * self._scale
        if added and rank == 2 and axis == 1 and summand.shape[0] == 1:
            inputs = draft.constant(matrix, self._dtype), draft.constant(summand.reshape(-1), self._dtype)
            draft.op("Gemm", self._x, *inputs, to=self._value)
        else:
            made = self._x
            if axis == rank - 2:
                made = draft.op("MatMul", draft.constant(matrix.T, self._dtype), made)
            else:
                order = [*(place for place in range(rank) if place != axis), axis]
                made = made if axis == rank - 1 else draft.op("Transpose", made, perm=order)
                made = draft.op("MatMul", made, draft.constant(matrix, self._dtype))
                inverse = [order.index(place) for place in range(rank)]
                made = made if axis == rank - 1 else draft.op("Transpose", made, perm=inverse)
            made = draft.op("Add", made, draft.constant(summand, self._dtype)) if added else made
            draft.finish(made, self._value)
        return self._accepted(draft, "one product")

    # Frames that overlap, added.

    def _overlapped(self) -> Rewrite | None:
        if len(self._from) != len(self._to) + 1 or self._from[:-2] != self._to[:-1] or self._base.any():
            return None
        *lead, number, size = self._from
        length, middle, starts, factors = self._to[-1], number // 2, list[int](), np.ones(size)
        for frame in (middle, middle + 1):
            probe = np.zeros(self._from, self._dtype)
            probe[(*[0] * len(lead), min(frame, number - 1))] = 1
            seen = self._at(probe)[tuple([0] * len(lead))]
            places = np.nonzero(seen)[0]
            starts.append(int(places[0]) if len(places) else 0)
            factors = seen[starts[-1] : starts[-1] + size]
        hop = starts[1] - starts[0]
        crop = middle * hop - starts[0]
        if not 0 < hop <= size or len(factors) < size or not 0 <= crop <= (number - 1) * hop + size - length:
            return None
        draft, parts = Draft(self._values.graph), -(-size // hop)
        made = self._x if (factors == 1).all() else draft.op("Mul", self._x, draft.constant(factors, self._dtype))

        def padded(value: str, axis: int, before: int, after: int) -> str:
            amounts = np.zeros((2, len(self._from)), np.int64)
            amounts[:, axis] = before, after
            return draft.op("Pad", value, draft.constant(amounts.reshape(-1))) if amounts.any() else value

        made, total = padded(made, -1, 0, parts * hop - size), ""
        for part in range(parts):
            bounds = ([part * hop], [(part + 1) * hop], [len(lead) + 1])
            own = draft.op("Slice", made, *(draft.constant(numbers, np.int64) for numbers in bounds))
            own = padded(own, -2, part, parts - 1 - part)
            total = draft.op("Add", total, own) if total else own
        total = draft.reshape(total, (*lead, (number + parts - 1) * hop))
        bounds = ([crop], [crop + length], [len(lead)])
        draft.op("Slice", total, *(draft.constant(numbers, np.int64) for numbers in bounds), to=self._value)
        shapes = {node.output[0]: (*lead, number + parts - 1, hop) for node in draft.nodes}
        return self._accepted(draft, "overlapping frames added", {**shapes, self._value: self._to})


def narrowed(array: Array, scale: float = 1e-7) -> Array:
    """Return an array with each axis along which it does not change cut to one element."""
    for axis in range(array.ndim):
        first = array.take([0], axis)
        same = array == first if array.dtype.kind != "f" else np.isclose(array, first, 0, 1e-7 * scale, equal_nan=True)
        if array.shape[axis] > 1 and same.all():
            array = first
    return array


def move(draft: Draft, where: Array, shape: Sequence[int], x: str, value: str) -> str | None:
    """Write one operator that moves elements to their places; return its kind, None if no operator does."""
    places = np.arange(int(np.prod(shape))).reshape(shape)
    if where.shape == places.shape and np.array_equal(where, places):
        draft.op("Identity", x, to=value)
        return "nothing"
    if where.size == places.size and np.array_equal(where.reshape(-1), places.reshape(-1)):
        kept = [0] if where.ndim and where.shape[0] == shape[0] else list(where.shape[:1])
        draft.reshape(x, [*kept, *where.shape[1:]], to=value)
        return "Reshape"
    if where.ndim != places.ndim:
        return _gathered(draft, where, shape, x, value)
    if sorted(where.shape) == sorted(shape) and places.ndim <= 5:
        for order in itertools.permutations(range(places.ndim)):
            if np.array_equal(places.transpose(order), where):
                draft.op("Transpose", x, perm=list(order), to=value)
                return "Transpose"
    lines = list[Array]()
    for axis, index in enumerate(np.unravel_index(where, shape)):
        ahead = np.moveaxis(index, axis, -1)
        lines.append(ahead.reshape(-1, where.shape[axis])[0])
        if not (ahead == lines[-1]).all():
            return _gathered(draft, where, shape, x, value)
    return _selected(draft, lines, shape, x, value)


def _selected(draft: Draft, lines: Sequence[Array], shape: Sequence[int], x: str, value: str) -> str:
    """Write a Resize for copies of neighbours in rows and columns; otherwise a selection along each axis."""
    times = [len(line) // size for line, size in zip(lines, shape, strict=True)]
    copied = all(np.array_equal(line, np.arange(len(line)) // max(n, 1)) for line, n in zip(lines, times, strict=True))
    if len(lines) == 4 and times[:2] == [1, 1] and max(times) > 1 and copied and draft.opset >= 11:
        scales = draft.constant([], np.float32), draft.constant(times, np.float32)
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        draft.op("Resize", x, *scales, to=value, mode="nearest", **how)
        return "Resize"
    picked = [axis for axis, line in enumerate(lines) if not np.array_equal(line, np.arange(shape[axis]))]
    for axis in picked:
        x = pick(draft, x, lines[axis], axis, to=value if axis == picked[-1] else "")
    return "selection"


def _gathered(draft: Draft, where: Array, shape: Sequence[int], x: str, value: str) -> str | None:
    """Write a Gather of blocks of neighbours, from each sample if all samples are alike."""
    if not where.ndim:
        return None
    samples, size = shape[0], int(np.prod(shape[1:]))
    own, lead = where.reshape(where.shape[0], -1), [0]
    if samples != len(own) or (own != own[0] + size * np.arange(samples)[:, None]).any():
        own, lead, size = where.reshape(1, -1), [], samples * size
    breaks = np.nonzero(np.diff(own[0]) != 1)[0] + 1
    block = int(np.gcd.reduce([size, own[0].size, *breaks, *own[0][[0, *breaks]]]))
    rows = draft.reshape(x, [*lead, -1, block])
    made = draft.op("Gather", rows, draft.constant(own[0][::block] // block, np.int64), axis=len(lead))
    draft.reshape(made, [*lead, *where.shape[len(lead) :]], to=value)
    return "selection"


def pick(draft: Draft, x: str, index: Array, axis: int, *, to: str = "") -> str:
    """Add the selection of some indices along an axis: a Slice for evenly spaced ones, else a Gather."""
    steps = np.unique(np.diff(index))
    if len(index) > 1 and len(steps) == 1 and steps[0]:
        end = index[-1] + np.sign(steps[0])
        bounds = (index[0], end if end >= 0 else -_LARGEST_MOVE, axis, steps[0])
        return draft.op("Slice", x, *(draft.constant([number], np.int64) for number in bounds), to=to)
    return draft.op("Gather", x, draft.constant(index, np.int64), axis=axis, to=to)


def taps_of(filters: Array) -> list[range]:
    """Return by axis the taps of a kernel that are not zero in every filter, evenly spaced.

    Args:
        filters: Weights by output channel and input channel.
    """
    used = np.abs(filters).max((0, 1)) > 0
    found = list[range]()
    for axis in range(used.ndim):
        places = np.nonzero(used.any(tuple(other for other in range(used.ndim) if other != axis)))[0]
        if not len(places):
            return [range(1)] * used.ndim
        step = max(1, int(np.gcd.reduce(places - places[0])))
        found.append(range(int(places[0]), int(places[-1]) + 1, step))
    return found


def groups_of(filters: Array) -> int:
    """Return the largest number of groups of channels that do not read each other, in order.

    Args:
        filters: Weights by output channel and input channel.
    """
    outputs, inputs = filters.shape[:2]
    used = np.abs(filters.reshape(outputs, inputs, -1)).max(-1) > 0
    for groups in sorted(
        (n for n in range(2, min(inputs, outputs) + 1) if not inputs % n and not outputs % n), reverse=True
    ):
        high, wide = outputs // groups, inputs // groups
        mask = np.kron(np.eye(groups, dtype=bool), np.ones((high, wide), bool))
        if not (used & ~mask).any():
            return groups
    return 1


def grouped(filters: Array, groups: int) -> Array:
    """Return weights in the form of a convolution with groups."""
    if groups == 1:
        return filters
    high, wide = filters.shape[0] // groups, filters.shape[1] // groups
    blocks = [filters[n * high : (n + 1) * high, n * wide : (n + 1) * wide] for n in range(groups)]
    return np.concatenate(blocks)
