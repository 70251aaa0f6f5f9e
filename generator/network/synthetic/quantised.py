"""Rules of the quantised operators: integer data in steps, scales that make a step small."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from .draws import Draw
from .moments import UNKNOWN, Moments
from .walk import Walk, operand

__all__ = [
    "QUANTISED",
    "block_quantised",
    "dequantise",
    "integer_product",
    "quantise",
    "quantised_operator",
    "quantised_product",
    "scale_biases",
]

_STEPS = 32.0  # magnitude of quantised data, in quantisation steps
_STEPS_4BIT = 2.5
_SCALE = Draw("uniform", 0.9 / _STEPS, 1.1 / _STEPS)

_BIASED, _BIAS = frozenset({"Conv", "ConvTranspose", "Gemm"}), 2
"""Operators with a bias, and the slot of it."""

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
    """DequantizeLinear: of an activation, or of a quantised weight whose scale the real consumer then sets."""
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
    """A runtime's own operator on quantised data: floats are scales, single integers zero points, others data."""
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
    """Give quantised biases the scale that they have in every model: that of the data times that of the filter.

    Runtimes look at it: they compute in integers only where a bias can be added to the products as it is.

    Args:
        graph: The network.
        arrays: Its weights, changed in place.
    """
    makers = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    constants = {tensor.name: tensor for tensor in graph.initializer}

    def scale(value: str) -> npt.NDArray[Any] | None:
        name = makers[value].input[1] if value in makers else ""
        return numpy_helper.to_array(constants[name]) if name in constants else arrays.get(name)

    for node in graph.node:
        if node.op_type in _BIASED and len(node.input) > _BIAS and (maker := makers.get(node.input[_BIAS])):
            data, filters, name = scale(node.input[0]), scale(node.input[1]), maker.input[1]
            if data is not None and filters is not None and name in arrays:
                own = arrays[name]
                product = data.astype(np.float64).ravel()[0] * filters.astype(np.float64).ravel()
                arrays[name] = np.resize(product, own.shape).astype(own.dtype)
