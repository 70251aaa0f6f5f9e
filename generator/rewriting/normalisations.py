"""Normalisations by value: any spelling of a softmax or a normalisation becomes the fused operator.

A region that reads one value of its own shape and reduces on the way is evaluated on numbers of three sizes, and
compared with Softmax, or with ``_NORMALISATIONS`` if doubling what it reads changes nothing. Scale and shift come
from a regression, epsilon from the constants of the region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from .form import Array, Draft, Rewrite
from .values import POINTWISE, Region, Values, late

_REDUCING = frozenset({
    "GlobalAveragePool", "LpNormalization", "MeanVarianceNormalization", "ReduceL2", "ReduceLogSumExp", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare",
})  # fmt: skip
_FUSED = frozenset({"GroupNormalization", "InstanceNormalization", "LayerNormalization", "LogSoftmax", "Softmax"})
_MOVING = frozenset({"Expand", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "Tile"})
_EPSILONS = (1e-5, 1e-6, 1e-12, 1e-3, 1e-8, 1e-4, 1e-7)
_CLOSE, _ROUGH = 2e-5, 2e-2
_MOST_NODES, _MOST_TRIES, _FEWEST = 24, 5, 3
_MOST_ELEMENTS = 1 << 15
"""Elements that are enough for a regression."""
_SIZES = ((1.5, 0.7), (0.02, -0.01), (60.0, 5.0))
"""Spread and mean of the numbers that regions are evaluated on."""
_KEPT_SHARE = 0.6
"""Predicted share of a region that the fused operator takes."""


@dataclass(frozen=True, slots=True)
class _Case:
    """The results of a region for some numbers.

    Attributes:
        x: The arguments, in float64.
        y: The results.
        epsilons: Numbers to try.
    """

    x: tuple[Array, ...]
    y: tuple[Array, ...]
    epsilons: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x[0].shape)

    def fits(self, made: Sequence[Array], close: float = _CLOSE) -> bool:
        """Return True if computed results agree with the region's."""
        return all(
            np.abs(own - other).max() <= close * (np.abs(other).max() + 1e-12)
            for own, other in zip(made, self.y, strict=True)
        )

    def resembles(self, plain: Array, axis: int) -> bool:
        """Return True if the first result agrees roughly with a normalisation without epsilon."""
        return _Case(self.x[:1], self.y[:1], ()).regression([plain], axis, close=_ROUGH) is not None

    def regression(self, plain: Sequence[Array], axis: int, close: float = _CLOSE) -> tuple[Array, Array] | None:
        """Return scale and shift along an axis with which plain results agree, on some of them; None if none do."""
        own, other = ([_thinned(array, axis) for array in side] for side in (plain, self.y))
        x, y = (np.concatenate(side, 1) for side in (own, other))
        mean, wanted = x.mean(1, keepdims=True), y.mean(1, keepdims=True)
        scale = ((x - mean) * (y - wanted)).sum(1) / (((x - mean) ** 2).sum(1) + 1e-30)
        shift = wanted[:, 0] - scale * mean[:, 0]
        for part, result in zip(own, other, strict=True):
            error = np.abs(scale[:, None] * part + shift[:, None] - result).max()
            if error > close * (np.abs(result).max() + 1e-12):
                return None
        return scale, shift


def _thinned(array: Array, axis: int) -> Array:
    """Return some of the elements of an array, by their index along an axis."""
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    return rows[:, :: max(1, array.size // _MOST_ELEMENTS)]


_Form = Callable[[_Case, Draft, str, str], str | None]
"""Writes a fused operator that agrees with a case, from one value to another; returns its name, None if none agrees."""


def _softmax(case: _Case, draft: Draft, x: str, value: str) -> str | None:
    made = case.y[0]
    exponents = np.exp(np.minimum(made, 1.0))
    for axis in range(len(case.shape) - 1, -1, -1):
        if min(np.abs(array.sum(axis) - 1).max() for array in (made, exponents)) > _ROUGH:
            continue
        shifted = [array - array.max(axis, keepdims=True) for array in case.x]
        sums = [np.exp(array).sum(axis, keepdims=True) for array in shifted]
        if case.fits([np.exp(array) / total for array, total in zip(shifted, sums, strict=True)]):
            draft.op("Softmax", x, axis=axis, to=value)
            return "Softmax"
        if case.fits([array - np.log(total) for array, total in zip(shifted, sums, strict=True)]):
            draft.op("LogSoftmax", x, axis=axis, to=value)
            return "LogSoftmax"
    return None


def _normalised(x: Array, axes: tuple[int, ...], epsilon: float, *, centred: bool) -> Array:
    if centred:
        x = x - x.mean(axes, keepdims=True)
    made: Array = x / np.sqrt((x**2).mean(axes, keepdims=True) + epsilon)
    return made


def _searched(case: _Case, axes: tuple[int, ...], axis: int, *, centred: bool) -> tuple[float, Array, Array] | None:
    """Return epsilon, scale and shift of a normalisation that agrees; None without one."""
    if not case.resembles(_normalised(case.x[0], axes, 0.0, centred=centred), axis):
        return None
    for epsilon in case.epsilons:
        plain = [_normalised(array, axes, epsilon, centred=centred) for array in case.x]
        if found := case.regression(plain, axis):
            return epsilon, *found
    return None


def _layer(case: _Case, draft: Draft, x: str, value: str) -> str | None:
    """LayerNormalization and its form without a mean, over the last axis or over the channels behind the batch."""
    rank = len(case.shape)
    for axis in dict.fromkeys((rank - 1, 1)):
        for centred in (True, False):
            found = _searched(case, (axis,), axis, centred=centred)
            if found is None:
                continue
            epsilon, scale, shift = found
            last = axis == rank - 1
            source = x if last else draft.op("Transpose", x, perm=[0, *range(2, rank), 1])
            weight = draft.constant(scale, np.float32)
            if centred:
                made = draft.op(
                    "LayerNormalization", source, weight, draft.constant(shift, np.float32), axis=-1, epsilon=epsilon
                )
            else:
                made = draft.op("SimplifiedLayerNormalization", source, weight, axis=-1, epsilon=epsilon)
                if np.abs(shift).max() > 1e-6 * max(1.0, float(np.abs(scale).max())):
                    made = draft.op("Add", made, draft.constant(shift, np.float32))
            if not last:
                made = draft.op("Transpose", made, perm=[0, rank - 1, *range(1, rank - 1)])
            draft.finish(made, value)
            return "LayerNormalization" if centred else "root mean square"
    return None


def _instance(case: _Case, draft: Draft, x: str, value: str) -> str | None:
    """InstanceNormalization: each channel over rows and columns."""
    if len(case.shape) < 3:
        return None
    found = _searched(case, tuple(range(2, len(case.shape))), 1, centred=True)
    if found is None:
        return None
    epsilon, scale, shift = found
    inputs = (draft.constant(scale, np.float32), draft.constant(shift, np.float32))
    draft.op("InstanceNormalization", x, *inputs, to=value, epsilon=epsilon)
    return "InstanceNormalization"


def _group(case: _Case, draft: Draft, x: str, value: str) -> str | None:
    """GroupNormalization, as InstanceNormalization of groups with a factor for each channel behind it."""
    if len(case.shape) < 3:
        return None
    batch, channels, *rest = case.shape
    for groups in (number for number in range(1, channels) if channels % number == 0):
        first = _normalised(case.x[0].reshape(batch, groups, -1), (2,), 0.0, centred=True).reshape(case.shape)
        if not case.resembles(first, 1):
            continue
        folded = [array.reshape(batch, groups, -1) for array in case.x]
        for epsilon in case.epsilons:
            plain = [_normalised(array, (2,), epsilon, centred=True).reshape(case.shape) for array in folded]
            found = case.regression(plain, 1)
            if found is None:
                continue
            scale, shift = (array.reshape(-1, *[1] * len(rest)) for array in found)
            ones, zeros = (draft.constant(np.full(groups, number), np.float32) for number in (1, 0))
            made = draft.reshape(x, (0, groups, -1))
            made = draft.op("InstanceNormalization", made, ones, zeros, epsilon=epsilon)
            made = draft.op("Reshape", made, draft.op("Shape", x))
            if np.abs(scale - 1).max() > 1e-7:
                made = draft.op("Mul", made, draft.constant(scale, np.float32))
            if np.abs(shift).max() > 1e-7:
                made = draft.op("Add", made, draft.constant(shift, np.float32))
            draft.finish(made, value)
            return "GroupNormalization"
    return None


_NORMALISATIONS: tuple[_Form, ...] = (_layer, _instance, _group)
"""Forms that do not change when all that they read is doubled."""


def normalisations(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of regions that normalise, and of local response normalisations."""
    graph, found, covered = values.graph, list[Rewrite](), set[int]()
    kinds = POINTWISE | _REDUCING | _MOVING | _FUSED

    def allowed(index: int) -> bool:
        return graph.nodes[index].op_type in kinds or _is_mean(values, graph.nodes[index])

    for last in reversed(range(len(graph.nodes))):
        if late(deadline):
            break
        node = graph.nodes[last]
        value = node.output[0]
        if node.op_type == "LRN":
            found += _local_response(values, last)
        if node.op_type == "LayerNormalization":
            draft = Draft(graph)
            if apart := _kept_apart(values, draft, node.input[0]):
                saving_ns = float(np.prod(values.shapes[value]))
                names = [graph.name(graph.producer[name]) for name in apart]
                found.append(draft.rewrite("normalisations: addition kept apart", apart, names, saving_ns))
        if last in covered or not allowed(last) or node.op_type in _REDUCING or values.dtypes.get(value) != np.float32:
            continue
        if len(values.shapes[value]) < 2 or values.is_constant(value):
            continue
        regions = sorted(_candidates(values, value, allowed), key=lambda region: -len(region.nodes))
        for region in regions[:_MOST_TRIES]:
            if late(deadline):
                break
            if rewrite := values.attempt(_matched, values, region, value):
                found.append(rewrite)
                covered |= set(graph.removable(region.nodes, value))
                break
    return found


def _is_mean(values: Values, node: onnx.NodeProto) -> bool:
    """Return True if a node averages or sums by a product with equal numbers."""
    if node.op_type not in {"Conv", "MatMul"}:
        return False
    weight = values.constant(node.input[1])
    return weight is not None and weight.size > 1 and bool((weight == weight.flat[0]).all())


def _candidates(values: Values, value: str, allowed: Callable[[int], bool]) -> Iterator[Region]:
    for region in values.regions(value, allowed, most_nodes=_MOST_NODES):
        x = region.reads[0]
        kinds = {values.graph.nodes[index].op_type for index in region.nodes}
        plain = values.shapes.get(x) == values.shapes[value] and values.dtypes.get(x) == np.float32
        spelt = len(region.nodes) >= _FEWEST and kinds & (_REDUCING | {"MatMul"})
        moved = kinds & _FUSED and kinds & {"Log", "Transpose"}
        if plain and (spelt or moved):
            yield region


def _matched(values: Values, region: Region, value: str) -> Rewrite | None:
    gone = values.graph.removable(region.nodes, value)
    x = region.reads[0]
    part, random = values.part(region, value), np.random.default_rng(5)
    samples = [(random.standard_normal(values.shapes[x]) * spread + mean).astype(np.float32) for spread, mean in _SIZES]
    results = [part(sample)[0] for sample in samples]
    if not np.isfinite(results[-1]).all():  # large exponents overflow in some spellings
        samples, results = samples[:-1], results[:-1]
    if any(result.shape != values.shapes[value] or not np.isfinite(result).all() for result in results):
        return None
    twice = part(2 * samples[0])[0]
    scale = np.abs(results[0]).max() + 1e-12
    is_normalised = np.abs(twice - results[0]).max() < 2 * _ROUGH * scale
    case = _Case(
        tuple(sample.astype(np.float64) for sample in samples),
        tuple(result.astype(np.float64) for result in results),
        (*_numbers(values, region), *_EPSILONS),
    )
    for form in _NORMALISATIONS if is_normalised else (_softmax,):
        draft = Draft(values.graph)
        kind = form(case, draft, x, value)
        if kind is not None and len(draft.nodes) < len(gone):
            saving_ns = (1 - _KEPT_SHARE) * values.cost_of(gone)
            apart = _kept_apart(values, draft, x) if kind == "LayerNormalization" else []
            return draft.rewrite(f"normalisations: {kind}", [value, *apart], values.graph.names(gone), saving_ns)
    return None


def _kept_apart(values: Values, draft: Draft, x: str) -> list[str]:
    """Write an addition before a LayerNormalization as Sum, and return its value; empty without an addition.

    ONNX Runtime fuses Add with it into SkipLayerNormalization, which is slower than both on CPUs.
    """
    node = values.graph.maker(x)
    if node is None or node.op_type != "Add" or len(values.computed(node)) != 2:
        return []
    if any(values.shapes.get(name) != values.shapes[x] for name in node.input):
        return []
    draft.op("Sum", *node.input, to=x)
    return [x]


def _numbers(values: Values, region: Region) -> list[float]:
    """Return the small constants of a region; one is probably its epsilon."""
    found = dict[float, None]()
    for index in region.nodes:
        epsilon = values.graph.attributes[index].get("epsilon")
        if isinstance(epsilon, float):
            found[epsilon] = None
        for name in values.graph.reads[index]:
            array = values.constant(name)
            if (
                array is not None
                and array.size == 1
                and array.dtype.kind == "f"
                and 0 < float(array.reshape(-1)[0]) < 0.1
            ):
                found[float(array.reshape(-1)[0])] = None
    return list(found)


_ROOTS = (0.5, 0.75)


def _local_response(values: Values, index: int) -> Iterator[Rewrite]:
    """Rewrite LRN: its power becomes square roots, and its sum over channels a convolution with banded weights."""
    graph, node, attributes = values.graph, values.graph.nodes[index], values.graph.attributes[index]
    shape, size = values.shapes.get(node.input[0]), int(attributes.get("size", 0))
    alpha, beta, bias = (float(attributes.get(name, number)) for name, number in
                         (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))  # fmt: skip
    if shape is None or len(shape) != 4 or size % 2 == 0 or not any(np.isclose(beta, root) for root in _ROOTS):
        return
    channels, x = shape[1], node.input[0]
    distance = np.abs(np.subtract.outer(np.arange(channels), np.arange(channels)))
    band = np.where(distance <= size // 2, alpha / size, 0.0).reshape(channels, channels, 1, 1)
    draft = Draft(graph)
    weights = (draft.constant(band, np.float32), draft.constant(np.full(channels, bias), np.float32))
    root = draft.op("Sqrt", draft.op("Conv", draft.op("Mul", x, x), *weights, kernel_shape=[1, 1]))
    if np.isclose(beta, _ROOTS[1]):
        root = draft.op("Mul", root, draft.op("Sqrt", root))
    draft.op("Div", x, root, to=node.output[0])
    before = float(np.prod(shape)) * 30
    yield draft.rewrite("normalisations: local response", node.output, [node.name], before / 2)
