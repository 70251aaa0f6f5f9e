"""Seeded synthetic weights for anything in skeleton form: a zoo model, a brick, a user's structure.

How large each weight should be follows from the model's structure alone. He initialisation (He et al. 2015) gives a
filter the variance ``1 / (fan_in · E[x²])``, so that its output has unit second moment; after a ReLU ``E[x²]`` is 1/2
and this is the well-known ``2 / fan_in``. Here ``E[x²]`` is not assumed but carried along: one pass over the nodes
keeps mean and root mean square of every value. Residual sums then grow with the square root of the depth instead of
doubling per block, and the logits in front of a softmax stay near one, so that no exponential underflows into
denormal numbers. Unknown values (the inputs of a single layer) count as rectified: plain He. Estimates err on the
large side, which only makes later weights a little smaller.

``walk`` has the state; this module has the rule of each operator, and the pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, numpy_helper

from ....bricks.operators import MULTIPLYING, RECURRENT
from ....models.skeleton import is_weight
from ....models.subgraphs import bodies, declared_shape, infer_shapes
from ..legality import DomainKind, Site, structure_of
from .walk import BIAS, FLOATS, UNKNOWN, Draw, Moments, Walk, draw, operand

# What each operator asks of its weights, and what it does to the moments of its data.
#
# One small function per kind of operator; ``RULES`` maps operators to them. ``weights`` runs them in node order.


# Rules of the quantised operators: integer data in steps, scales that make a step small.


_STEPS = 32.0  # magnitude of quantised data, in quantisation steps
_STEPS_4BIT = 2.5
_SCALE = Draw("uniform", 0.9 / _STEPS, 1.1 / _STEPS)

_BIAS = 2
"""Slot of the bias of a product."""

QUANTISED = (
    "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearAdd", "QLinearAveragePool",
    "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul", "QLinearReduceMean",
    "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere",
)  # fmt: skip
"""ONNX Runtime's own operators on quantised data."""


def quantise(walk: Walk, node: NodeProto) -> Moments:
    """QuantizeLinear: the step follows the data's magnitude."""
    data, scale = node.input[0], node.input[1]
    walk.quantise(operand(node, 2), 0.0)
    size = walk.rms(data)
    step = max(size, 1e-6) / _STEPS
    return Moments(size / max(walk.claim(scale, Draw("uniform", 0.9 * step, 1.1 * step)), 1e-12))


def dequantise(walk: Walk, node: NodeProto) -> Moments:
    """Handle DequantizeLinear of an activation, or of a quantised weight with a scale that its consumer sets."""
    data, scale = node.input[0], node.input[1]
    walk.quantise(operand(node, 2), 0.0)
    if data not in walk.sources:
        return Moments(walk.rms(data) * walk.claim(scale, _SCALE))
    narrow = {walk.weights[name] for name in walk.sources[data]} & {TensorProto.INT4, TensorProto.UINT4}
    walk.quantise(data, _STEPS_4BIT if narrow else _STEPS)
    steps = walk.claim(data, Draw("values"))
    if scale not in walk.sources:
        return Moments(steps * walk.rms(scale))
    for value in node.output:  # the scale decides how large the dequantised weight is: the real consumer sets it
        walk.sources[value], walk.steps[value] = walk.sources[scale], steps
    return UNKNOWN


def quantised_product(walk: Walk, node: NodeProto) -> Moments:
    """QLinearConv and QLinearMatMul: x, its scale and zero point, the filter's three, the output's two."""
    data, weight, out = 0, 3, 6
    shape = walk.shapes.get(node.input[weight], (1, 1))
    fan = math.prod(shape[1:]) if node.op_type == "QLinearConv" else shape[-2]
    small = 1.0 / (_STEPS * math.sqrt(max(1, fan)))
    for slot, recipe in ((data + 1, _SCALE), (weight + 1, Draw("uniform", 0.9 * small, 1.1 * small)), (out, _SCALE)):
        walk.claim(node.input[slot], recipe)
    for slot in (data, weight):
        walk.quantise(node.input[slot], _STEPS)
        walk.quantise(node.input[slot + 2], 0.0)
    walk.quantise(node.input[out + 1], 0.0)
    return Moments(_STEPS)


def integer_product(walk: Walk, node: NodeProto) -> Moments:
    """ConvInteger and MatMulInteger: two quantised operands, their zero points after them."""
    for slot, size in enumerate((_STEPS, _STEPS, 0.0, 0.0)):
        walk.quantise(operand(node, slot), size)
    fan = math.prod(walk.shapes.get(node.input[1], (1, 1))[1:])
    return Moments(_STEPS * _STEPS * math.sqrt(max(1, fan)))


def quantised_operator(walk: Walk, node: NodeProto) -> Moments:
    """Handle a runtime's operator on quantised data: floats are scales, single integers zero points, others data."""
    for value in node.input:
        walk.quantise(value, _STEPS if math.prod(walk.shapes.get(value, ())) > 1 else 0.0)
        walk.claim(value, _SCALE)
    return Moments(_STEPS)


def block_quantised(walk: Walk, node: NodeProto) -> Moments:
    """MatMulNBits (data, packed filter, scales) and GatherBlockQuantized (packed table, indices, scales)."""
    product = node.op_type == "MatMulNBits"
    fan = next((item.i for item in node.attribute if item.name == "K"), 1) if product else 1
    small = 1.0 / (_STEPS_4BIT * math.sqrt(max(1, fan)))
    walk.claim(node.input[2], Draw("uniform", 0.9 * small, 1.1 * small))
    walk.quantise(node.input[1 if product else 0], _STEPS)
    return Moments(1.0)


def scale_biases(graph: GraphProto, arrays: MutableMapping[str, npt.NDArray[Any]]) -> None:
    """Give quantised biases the scale of real models: the data's scale times the filter's.

    Runtimes check it: they compute in integers only if a bias can be added to the products directly.
    """
    makers = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    constants = {tensor.name: tensor for tensor in graph.initializer}

    def scale(value: str) -> npt.NDArray[Any] | None:
        name = makers[value].input[1] if value in makers else ""
        return numpy_helper.to_array(constants[name]) if name in constants else arrays.get(name)

    for node in graph.node:
        if node.op_type in MULTIPLYING and len(node.input) > _BIAS and (maker := makers.get(node.input[_BIAS])):
            data, filters, name = scale(node.input[0]), scale(node.input[1]), maker.input[1]
            if data is not None and filters is not None and name in arrays:
                bias = arrays[name]
                product = data.astype(np.float64).ravel()[0] * filters.astype(np.float64).ravel()
                arrays[name] = np.resize(product, bias.shape).astype(bias.dtype)


_EMBEDDING = Draw("normal", high=0.02)  # what BERT and GPT-2 initialise their tables with
_SMALL = Draw("normal", high=BIAS)
_LOGITS = 4.0  # magnitude of a softmax's input from which the smallest of some thousand exponentials is in danger
_NEAR_ONE = Draw("uniform", 0.9, 1.1)
_VARIANCE = Draw("uniform", 0.5, 1.5)
_INVERSE_VARIANCE = math.log(_VARIANCE.high / _VARIANCE.low) / (_VARIANCE.high - _VARIANCE.low)

Rule = Callable[[Walk, NodeProto], Moments]


# Operators that multiply and add -------------------------------------------------------------------------------------


def unknown_operator(walk: Walk, node: NodeProto) -> Moments:
    """Operators without a rule: weight matrices are filters over their last axis but one, vectors are biases."""
    data = walk.moments(node.input[0]) if node.input else UNKNOWN
    for value in node.input[1:]:
        shape = walk.shapes.get(value, ())
        if value in walk.sources and len(shape) >= 2:
            walk.filter(value, shape[-2], data.rms)
        elif value:
            walk.moments(value)
    return data


def _biased(walk: Walk, product: Moments, bias: str) -> Moments:
    return Moments(math.hypot(product.rms, walk.claim(bias, _SMALL)), product.mean)


def _convolution(walk: Walk, node: NodeProto) -> Moments:
    shape = walk.shapes.get(node.input[1], ())
    fan = math.prod(shape[1:])
    if node.op_type == "ConvTranspose" and shape:
        # Each output sums over the input channels of its group and, per axis, over 1 in `stride` of the taps.
        strides = next((list(item.ints) for item in node.attribute if item.name == "strides"), [])
        fan = shape[0] // _integer_attributes(node).get("group", 1) * math.prod(shape[2:]) // max(1, math.prod(strides))
    product = walk.filter(node.input[1], fan, walk.rms(node.input[0]))
    return _biased(walk, product, operand(node, 2))


def _contraction(walk: Walk, node: NodeProto, fan: int | None) -> Moments:
    """Handle a sum of ``fan`` products of the first two operands; the weight among them is the filter."""
    left, right = node.input[0], node.input[1]
    if right in walk.sources:
        return walk.filter(right, fan, walk.rms(left))
    if left in walk.sources:
        return walk.filter(left, fan, walk.rms(right))
    return Moments(walk.rms(left) * walk.rms(right) * math.sqrt(fan or 1))


def _gemm(walk: Walk, node: NodeProto) -> Moments:
    options = _integer_attributes(node)
    fan = walk.extent(node.input[1], 1 if options.get("transB") else 0)
    fan = fan or walk.extent(node.input[0], 0 if options.get("transA") else 1)
    return _biased(walk, _contraction(walk, node, fan), operand(node, 2))


def _fused_matmul(walk: Walk, node: NodeProto) -> Moments:
    options = _integer_attributes(node)
    scale = next((item.f for item in node.attribute if item.name == "alpha"), 1.0)
    fan = walk.extent(node.input[1], -1 if options.get("transB") else -2)
    return _contraction(walk, node, fan or walk.extent(node.input[0], -1)).scaled(scale)


def _matmul(walk: Walk, node: NodeProto) -> Moments:
    left, right = node.input[0], node.input[1]
    if left in walk.averages and right not in walk.sources:
        return walk.moments(right)
    axis = -1 if len(walk.shapes.get(right, (1, 1))) == 1 else -2
    return _contraction(walk, node, walk.extent(right, axis) or walk.extent(left, -1))


def _einsum(walk: Walk, node: NodeProto) -> Moments:
    equation = next((item.s.decode() for item in node.attribute if item.name == "equation"), "").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    if len(node.input) != 2 or "..." in equation or not arrow:
        return unknown_operator(walk, node)
    extents = {
        label: walk.extent(value, axis) or 1
        for value, term in zip(node.input, terms.split(","), strict=True)
        for axis, label in enumerate(term)
    }
    summed = math.prod(extent for label, extent in extents.items() if label not in result)
    return _contraction(walk, node, summed)


def _recurrent(walk: Walk, node: NodeProto) -> Moments:
    for slot, partner in ((1, walk.rms(node.input[0])), (2, 0.5)):
        walk.filter(node.input[slot], walk.extent(node.input[slot], -1), partner)
    for value in node.input[3:]:
        walk.claim(value, _SMALL)
    return Moments(0.5)


def _sum(walk: Walk, node: NodeProto) -> Moments:
    parts = [walk.moments(value) for value in node.input]
    signs = (1.0, -1.0) if node.op_type == "Sub" else (1.0,) * len(parts)
    mean = sum(sign * part.mean for sign, part in zip(signs, parts, strict=True))
    return Moments(math.hypot(mean, *(part.deviation for part in parts)), mean)


def _multiply(walk: Walk, node: NodeProto) -> Moments:
    left, right = node.input[0], node.input[1]
    product = walk.claim(left, _NEAR_ONE) * walk.claim(right, _NEAR_ONE)
    data = left if right in walk.sources or right in walk.constants else right
    other = walk.moments(data)
    return Moments(product, product * other.mean / other.rms if other.rms and data not in walk.sources else 0.0)


def _divide(walk: Walk, node: NodeProto) -> Moments:
    top, bottom = walk.moments(node.input[0]), walk.claim(node.input[1], _NEAR_ONE)
    return top.scaled(1.0 / bottom) if bottom else top


def _power(walk: Walk, node: NodeProto) -> Moments:
    base = walk.claim(node.input[0], _NEAR_ONE)
    walk.claim(node.input[1], Draw("values", values=(2.0,)))
    exponent = walk.scalar(node.input[1])
    power = min(max(2.0 if exponent is None else exponent, -4.0), 4.0)
    return Moments(min(max(base, 1e-6), 1e6) ** power)


# Normalisation -------------------------------------------------------------------------------------------------------


def _batch_norm(walk: Walk, node: NodeProto) -> Moments:
    data, variance = walk.moments(node.input[0]), node.input[4]
    walk.claim(node.input[2], _SMALL)
    walk.claim(node.input[3], Draw("normal", high=BIAS * min(data.rms, 1.0)))
    gain = walk.claim(node.input[1], _NEAR_ONE)
    if variance in walk.sources:
        walk.claim(variance, _VARIANCE)
        # E[1/v], not 1/E[v]: the 5 % between them would add up to a factor of ten over ResNet-50.
        return data.scaled(gain * math.sqrt(_INVERSE_VARIANCE))
    return data.scaled(gain / math.sqrt(max(walk.rms(variance), 1e-6)))


def _norm(walk: Walk, node: NodeProto) -> Moments:
    walk.moments(node.input[0])
    gain = walk.claim(operand(node, 1), _NEAR_ONE) if len(node.input) > 1 else 1.0
    return Moments(math.hypot(gain, walk.claim(operand(node, 2), _SMALL)))


def _skip_norm(walk: Walk, node: NodeProto) -> Moments:
    walk.claim(node.input[2], _NEAR_ONE)
    for value in node.input[3:]:
        walk.claim(value, _SMALL)
    return Moments(1.0)


def _embed_norm(walk: Walk, node: NodeProto) -> Moments:
    for value in node.input[2:5]:
        walk.claim(value, _EMBEDDING)
    return Moments(math.hypot(walk.claim(node.input[5], _NEAR_ONE), walk.claim(node.input[6], _SMALL)))


def _softmax(walk: Walk, node: NodeProto) -> Moments:
    size = walk.rms(node.input[0])
    if size > _LOGITS:  # T5 does not divide its scores: exponentials of them would underflow
        walk.damp(node.input[0], 1.0 / size)
    walk.averages.update(node.output)
    terms = walk.extent(node.input[0], _integer_attributes(node).get("axis", -1)) or 1
    return Moments(1.0 / math.sqrt(terms), 1.0 / terms)


# Pooling and reductions -----------------------------------------------------------------------------------


def _root(walk: Walk, node: NodeProto) -> Moments:
    data = max(walk.claim(node.input[0], _NEAR_ONE), 1e-12)
    size = {"Sqrt": math.sqrt(data), "Reciprocal": 1.0 / data, "Log": abs(math.log(data))}[node.op_type]
    return Moments(size, size)


def _max_pool(walk: Walk, node: NodeProto) -> Moments:
    window = next((math.prod(item.ints) for item in node.attribute if item.name == "kernel_shape"), 1)
    return walk.moments(node.input[0]).largest_of(window)


def _reduce_sum(walk: Walk, node: NodeProto) -> Moments:
    before, after = walk.shapes.get(node.input[0]), walk.shapes.get(node.output[0])
    static = before is not None and after is not None
    terms = math.prod(before or ()) / max(1, math.prod(after or ())) if static else 1.0
    return walk.moments(node.input[0]).scaled(math.sqrt(max(1.0, terms)))


# Operators that move data --------------------------------------------------------------------------------------------


def _rearrange(walk: Walk, node: NodeProto) -> Moments:
    """Operators behind which a weight keeps its identity: the real consumer comes later."""
    data = node.input[0]
    if data in walk.averages:
        walk.averages.update(node.output)
    if data not in walk.sources:
        return walk.moments(data)
    for value in node.output:
        walk.sources[value] = walk.sources[data]
        if data in walk.steps:
            walk.steps[value] = walk.steps[data]
    return UNKNOWN


def _gather(walk: Walk, node: NodeProto) -> Moments:
    if node.input[1] in walk.constants:  # a fixed part of the data
        return _rearrange(walk, node)
    if node.input[0] in walk.sources:
        return Moments(walk.claim(node.input[0], _EMBEDDING))
    return walk.moments(node.input[0])


def _largest(walk: Walk, node: NodeProto) -> Moments:
    return max((walk.moments(value) for value in node.input if value), key=lambda moments: moments.rms)


def _concat(walk: Walk, node: NodeProto) -> Moments:
    if all(value in walk.sources for value in node.input):  # the parts of one larger weight
        walk.sources[node.output[0]] = tuple(name for value in node.input for name in walk.sources[value])
        return UNKNOWN
    return _largest(walk, node)


def _where(walk: Walk, node: NodeProto) -> Moments:
    if not walk.averages.isdisjoint(node.input):
        walk.averages.update(node.output)
    return max((walk.moments(value) for value in node.input[1:]), key=lambda moments: moments.rms)


def _integer_attributes(node: NodeProto) -> Mapping[str, int]:
    """Return the integer attributes that a node states."""
    return {item.name: item.i for item in node.attribute if item.type == AttributeProto.INT}


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "FusedConv", "NhwcFusedConv"), _convolution),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _fused_matmul),
    **dict.fromkeys(("FusedGemm", "Gemm"), _gemm),
    **dict.fromkeys(RECURRENT, _recurrent),
    **dict.fromkeys(("Add", "Sub", "Sum"), _sum),
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization",
                     "SimplifiedLayerNormalization", "MeanVarianceNormalization", "LpNormalization"), _norm),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_norm),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    **dict.fromkeys(("Sqrt", "Reciprocal", "Log"), _root),
    **dict.fromkeys(("ReduceSum", "ReduceL2"), _reduce_sum),
    **dict.fromkeys(("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast", "CastLike",
                     "Expand", "Tile", "Slice", "Split", "Dropout", "Pad"), _rearrange),
    **dict.fromkeys(("Max", "Min", "Mean"), _largest),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), quantised_product),
    **dict.fromkeys(("ConvInteger", "MatMulInteger"), integer_product),
    **dict.fromkeys(QUANTISED, quantised_operator),
    **dict.fromkeys(("GatherBlockQuantized", "MatMulNBits"), block_quantised),
    "BatchNormalization": _batch_norm,
    "Concat": _concat,
    "DequantizeLinear": dequantise,
    "Div": _divide,
    "Einsum": _einsum,
    "EmbedLayerNormalization": _embed_norm,
    "Gather": _gather,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Mul": _multiply,
    "Pow": _power,
    "QuantizeLinear": quantise,
    "Where": _where,
}  # fmt: skip
"""Rule by operator, of the default domain and of ``com.microsoft``; others take ``unknown_operator``."""


def synthesise(
    model: onnx.ModelProto, *, seed: int, rows: Mapping[str, npt.NDArray[Any]] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """One array for every weight input of a skeleton-form model.

    Filters are scaled so that activations keep unit second moment (He et al. 2015; see ``walk``),
    biases and running means are small, normalisation scales near one, variances between 0.5 and 1.5, quantisation
    scales positive, indices within the axis that they address. Everything is finite and free of denormal numbers.

    An array depends on the seed, the weight's position among the weights, its shape and its role in the structure,
    never on names: a renamed model gets equal weights.

    Args:
        model: Skeleton-form ONNX, shapes of weights static.
        seed: At least 0.
        rows: The rows that are read, by the table's name. The others are 0, in pages without memory, and the values of
            these rows depend on their number. Tables that are missing here are drawn whole.

    Returns:
        Name to array, in the order of the graph's inputs. Arrays are fresh and writable.

    Example:
        >>> from dlbricks.models.zoo import structure
        >>> weights = synthesise(structure("squeezenet").model, seed=0)
        >>> weights["conv1_w_0"].shape
        (64, 3, 3, 3)
    """
    # The distribution of every weight input of a skeleton, by name.
    graph = infer_shapes(model, propagate=False).graph
    walk = Walk(graph)
    _pass(walk, graph.node)
    planned = {name: walk.settle(name) for name in walk.weights}
    values = (value for value in model.graph.input if is_weight(value))
    arrays: dict[str, npt.NDArray[Any]] = {}
    for ordinal, value in enumerate(values):
        shape, read = declared_shape(value.type), (rows or {}).get(value.name)
        drawn = shape if read is None else (len(read), *shape[1:])
        array = draw(planned[value.name], value.type.tensor_type.elem_type, drawn, seed=seed, ordinal=ordinal)
        if read is not None:
            few, array = array, np.zeros(shape, array.dtype)
            array[read] = few
        arrays[value.name] = array
    scale_biases(model.graph, arrays)
    return arrays


def _pass(walk: Walk, nodes: Iterable[NodeProto]) -> None:
    """Pass over nodes in order, subgraphs included."""
    for node in nodes:
        for body in bodies(node):
            _pass(walk, body.node)
        _settle_integers(walk, node)
        profile = walk.follow(node)
        moments = profile.moments() if profile else RULES.get(node.op_type, unknown_operator)(walk, node)
        walk.record(node, moments, profile)


def _settle_integers(walk: Walk, node: NodeProto) -> None:
    """Settle integer weights that need legal values for this operator."""
    for slot, value in enumerate(node.input):
        for name in walk.sources.get(value, ()):
            if name in walk.draws or walk.weights[name] in FLOATS:
                continue
            domain = structure_of(Site(node, slot, walk.shapes, walk.constants))
            if domain is not None and domain.kind is DomainKind.RANGE:
                walk.draws[name] = Draw("integer", 0, int(domain.high))
            elif domain is not None:
                walk.draws[name] = Draw("values", values=tuple(map(int, domain.values)))
