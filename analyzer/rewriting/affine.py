"""Regions that are affine in one value, as one product or one convolution with weights computed from theirs.

Impulses through the region, in double precision, give the weights; the prover shows that they are all there is to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ...bricks.operators import MOVES, MULTIPLYING, Kind, Trait, having, named
from ...models.subgraphs import plain_domain
from .evaluation import Evaluation, Typed, Unclear
from .recording import Region, Values, late
from .rewrite import Array, Draft, Rewrite

_SUMS = having(Trait.SUMS)
_AVERAGES = named(Kind.POOL | Kind.GLOBAL_POOL, Trait.REAL) | named(Kind.REDUCTION, Trait.EXACT)
_LINEAR = (MOVES | _SUMS | MULTIPLYING | _AVERAGES | having(Trait.AFFINE)) - {"Cast"}
_LEAST_SHARE, _CHEAPER = 0.01, 0.9
_MOST_NODES, _MOST_TRIES, _MOST_PROBES, _MOST_WEIGHTS = 60, 3, 64, 1 << 22
_ZERO, _CLOSE = 1e-12, 1e-9


def affine(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of affine regions."""
    graph, rewrites, covered = values.graph, list[Rewrite](), set[int]()
    allowed = [_is_affine(values, index) for index in range(len(graph.nodes))]
    for last in reversed(range(len(graph.nodes))):
        value = graph.nodes[last].output[0]
        if last in covered or not allowed[last] or values.is_constant(value) or late(deadline):
            continue
        regions = [
            region for region in values.regions(value, lambda index: allowed[index], most_nodes=_MOST_NODES)
            if sum(graph.nodes[index].op_type in MULTIPLYING for index in region.nodes) and len(region.nodes) > 1
        ]  # fmt: skip
        for region in sorted(regions, key=lambda region: -len(region.nodes))[:_MOST_TRIES]:
            if rewrite := values.attempt(_collapsed, values, region, value):
                rewrites.append(rewrite)
                covered.update(region.nodes)
                break
    return rewrites


def _is_affine(values: Values, index: int) -> bool:
    """Return True if a node is affine in what it computes from."""
    node = values.graph.nodes[index]
    computed = values.computed(node)
    if node.op_type not in _LINEAR or plain_domain(node.domain) or not all(map(values.is_float, computed)):
        return False
    single = len(computed) == 1 and (node.op_type not in {"Div", *MOVES} or computed[0] == node.input[0])
    return values.is_float(node.output[0]) and (single or node.op_type in _SUMS)


def _collapsed(values: Values, region: Region, value: str) -> Rewrite | None:
    (x,) = region.reads
    gone = values.graph.removable(region.nodes, value)
    before = values.cost_of(gone)
    shape, out = values.shapes[x], values.shapes[value]
    if (
        len(gone) < 2
        or before < _LEAST_SHARE * values.total_ns
        or not (values.dtypes[x] == values.dtypes[value] == np.float32)
    ):
        return None
    probe = _Probe(values, region, value)
    search = _product if shape[:-1] == out[:-1] else _convolution if len(shape) == len(out) > 2 else None
    if search is None or not (proposal := search(values, probe, x, value)):
        return None
    draft, kind = proposal
    if not probe.agrees(draft):
        return None
    after = values.cost_of_new(draft, {node.output[0]: out for node in draft.nodes})
    if after > _CHEAPER * before:
        return None
    return draft.rewrite(f"affine: {kind}", [value], values.graph.names(gone), before - after)


class _Probe:
    """A region as a function of real numbers.

    Args:
        values: The graph.
        region: The region.
        value: Its result.
    """

    def __init__(self, values: Values, region: Region, value: str) -> None:
        graph = values.graph
        self._nodes: list[onnx.NodeProto] = [graph.nodes[index] for index in region.nodes]
        self._types = {name: (values.dtypes[name], values.shapes[name]) for name in values.dtypes}
        fixed = {name: values.runs[0][name] for name in values.of_shapes if name in values.runs[0]}
        self._constants, self._opsets = {**fixed, **graph.constants}, graph.opsets
        self._x, self._value, self.shape = region.reads[0], value, values.shapes[region.reads[0]]
        self.base = self(np.zeros(self.shape))

    def __call__(self, x: Array) -> Array:
        return self._evaluated(self._nodes, self._types, self._constants, x)

    def agrees(self, draft: Draft) -> bool:
        """Return True if new nodes compute the same from random numbers; all have the result's shape."""
        x, kind = np.random.default_rng(1).standard_normal(self.shape), self._types[self._value]
        types = {**self._types, **{node.output[0]: kind for node in draft.nodes}}
        new = self._evaluated(draft.nodes, types, {**self._constants, **draft.constants, **draft.exact}, x)
        old = self(x)
        return bool(np.abs(new - old).max() <= _CLOSE * np.abs(old).max())

    def _evaluated(
        self, nodes: Sequence[onnx.NodeProto], types: Mapping[str, Typed], constants: Mapping[str, Array], x: Array
    ) -> Array:
        state = Evaluation(types, constants, self._opsets, seed=0)
        state.give(self._x, x)
        state.evaluate(nodes, [self._value])
        return state.number(self._value)


def _product(values: Values, probe: _Probe, x: str, value: str) -> tuple[Draft, str] | None:
    """Write a region that works on each row alone as a product with a matrix."""
    depth, width = probe.shape[-1], values.shapes[value][-1]
    rows, weights = int(np.prod(probe.shape[:-1])), np.zeros((depth, width))
    if depth * width > _MOST_WEIGHTS or -(-depth // rows) > _MOST_PROBES:
        return None
    for first in range(0, depth, rows):
        count, impulses = min(rows, depth - first), np.zeros((rows, depth))
        impulses[:count, first : first + count] = np.eye(count)
        change = (probe(impulses.reshape(probe.shape)) - probe.base).reshape(rows, width)
        weights[first : first + count] = change[:count]
    if not weights.any(1).all():  # a product would read what the region does not, and a NaN there would spread
        return None
    draft = Draft(values.graph)
    result = draft.op("MatMul", x, draft.constant(weights, np.float32))
    bias = probe.base.reshape(rows, width)
    if (np.abs(bias) > _ZERO).any():
        same = (bias == bias[:1]).all()
        result = draft.op("Add", result, draft.constant(bias[0] if same else probe.base, np.float32))
    draft.finish(result, value)
    return draft, "one product"


def _convolution(values: Values, probe: _Probe, x: str, value: str) -> tuple[Draft, str] | None:
    """Write a region that treats all places alike as a convolution."""
    (batch, channels, *sizes), (_, width, *out) = probe.shape, values.shapes[value]
    strides = [max(1, round(size / small)) for size, small in zip(sizes, out, strict=True)]
    phases = list(itertools.product(*map(range, strides)))
    if values.shapes[value][0] != batch or channels * len(phases) > _MOST_PROBES or min(out) < 1:
        return None
    taps = list(_taps(probe, channels, [size // 2 // step * step for size, step in zip(sizes, strides, strict=True)],
                      strides, phases))  # fmt: skip
    if not taps:
        return None
    offsets = np.array([tap for _, tap, _ in taps])
    low, high = offsets.min(0), offsets.max(0)
    kernel = (high - low + 1).tolist()
    begins = (-low).tolist()
    ends = [step * (small - 1) + size - begin - whole
            for step, small, size, begin, whole in zip(strides, out, kernel, begins, sizes, strict=True)]  # fmt: skip
    if min(*begins, *ends) < 0 or width * channels * np.prod(kernel) > _MOST_WEIGHTS:
        return None
    weights = np.zeros((width, channels, *kernel))
    for channel, tap, response in taps:
        weights[(slice(None), channel, *(np.array(tap) - low))] = response
    if not weights.any((0, *range(2, weights.ndim))).all():  # as above
        return None
    draft = Draft(values.graph)
    middle = (0, slice(None), *(size // 2 for size in out))
    if (np.abs(probe.base - probe.base[middle].reshape(1, -1, *[1] * len(out))) > _ZERO).any():
        return None
    inputs = [x, draft.constant(weights, np.float32), draft.constant(probe.base[middle], np.float32)]
    draft.op("Conv", *inputs, to=value, kernel_shape=kernel, strides=strides, pads=[*begins, *ends])
    return draft, "one convolution"


def _taps(
    probe: _Probe, channels: int, centre: Sequence[int], strides: Sequence[int], phases: Sequence[tuple[int, ...]]
) -> Iterator[tuple[int, tuple[int, ...], Array]]:
    """Yield the input channel, the offset and the weights by output channel of each tap."""
    for channel, phase in itertools.product(range(channels), phases):
        at = [begin + step for begin, step in zip(centre, phase, strict=True)]
        impulse: Any = np.zeros(probe.shape)
        try:
            impulse[(0, channel, *at)] = 1.0
        except IndexError as error:
            raise Unclear("too small for its strides") from error
        change = (probe(impulse) - probe.base)[0]
        for position in np.argwhere(np.abs(change).max(0) > _ZERO):
            tap = tuple(int(here - step * there) for here, step, there in zip(at, strides, position, strict=True))
            yield channel, tap, change[(slice(None), *position)]
